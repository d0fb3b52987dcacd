"""The check of a recipe finds fields that no value has, in templates, expressions, filters and references."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

import seedbed as sb
from seedbed.columns.fields import column_shapes, field_problems, schema_shape
from seedbed.columns.spec import Environment, make_column
from seedbed.columns.templates import compile_condition, compile_template
from seedbed.errors import DatasetGenerationError

TASKS = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "items": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}},
            },
        },
        "extra": {"type": "object", "properties": {"note": {"type": "string"}}, "additionalProperties": True},
        "anything": {},
        "tree": {"$ref": "#/$defs/node"},
    },
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"label": {"type": "string"}, "left": {"$ref": "#/$defs/node"}},
        }
    },
}
EVENT = {
    "anyOf": [
        {"type": "object", "properties": {"city": {"type": "string"}}},
        {"type": "object", "properties": {"to": {"type": "string"}, "body": {"$ref": "#/$defs/body"}}},
    ],
    "$defs": {"body": {"type": "object", "properties": {"lines": {"type": "array"}}}},
}


def recipe(*columns: Any, processors: Any = ()) -> sb.Recipe:
    """Columns with fields, and those of a test."""
    given = [
        sb.Category("topic", values=["tea", "bread"]),
        sb.LLMText("text", model="m", prompt="{{ topic }}", trace=True),
        sb.LLMStructured("s", model="m", prompt="{{ topic }}", schema=TASKS),
        sb.LLMStructured("event", model="m", prompt="{{ topic }}", schema=EVENT),
        sb.LLMStructured("open", model="m", prompt="{{ topic }}", schema={"type": "object"}),
        sb.Judge("j", model="m", of="text", scores={"clarity": "1 to 5"}),
        sb.Person("who"),
        sb.Validation("valid", of="text", kind="python", lint=False),
        sb.Expression("n", "1", dtype="Struct({'a': Struct({'b': Int64})})"),
    ]
    return sb.Recipe(columns=[*given, *columns], models={"m": sb.Scripted()}, processors=processors)


def shapes() -> Any:
    """What is known of the columns."""
    here = Environment(models={"m": sb.Scripted()})
    return column_shapes(make_column(each, here) for each in recipe().columns)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{{ s.titel }}", "unknown field 'titel' of 's'; did you mean 'title'?"),
        ("{{ s['titel'] }}", "unknown field 'titel' of 's'; did you mean 'title'?"),
        ("{{ j.clarty }}", "unknown field 'clarty' of 'j'; did you mean 'clarity'?"),
        ("{{ j.clarity.scor }}", "'j.clarity' is a number and has no field 'scor'"),
        ("{{ topic.name }}", "'topic' is text and has no field 'name'"),
        ("{% for t in s['items'] %}{{ t.nam }}{% endfor %}", "unknown field 'nam' of 't'; did you mean 'name'?"),
        ("{{ s['items'][0].nam }}", "unknown field 'nam' of 's.items[0]'; did you mean 'name'?"),
        ("{{ s['items'].name }}", "'s.items' is a list and has no field 'name'; use its items, as in s.items[0].name"),
        ("{{ s['items'] | map(attribute='nam') | join }}", "unknown field 'nam' of 's.items[…]'; did you mean 'name'?"),
        ("{% for t in s['items'] | sort(attribute='nme') %}{{ t.name }}{% endfor %}", "unknown field 'nme' of"),
        ("{{ (s['items'] | first).nam }}", "unknown field 'nam' of 's.items | first'; did you mean 'name'?"),
        ("{% set x = s %}{{ s.titel }}{{ x.y }}", "unknown field 'titel' of 's'"),
        ("{{ s.tree.labl }}", "unknown field 'labl' of 's.tree'; did you mean 'label'?"),
        ("{{ event.citty }}", "unknown field 'citty' of 'event'; did you mean 'city'?"),
        ("{{ event.body.line }}", "unknown field 'line' of 'event.body'; did you mean 'lines'?"),
        ("{{ who.frst_name }}", "unknown field 'frst_name' of 'who'; did you mean 'first_name'?"),
        ("{{ valid.is_vald }}", "unknown field 'is_vald' of 'valid'; did you mean 'is_valid'?"),
        ("{% for m in valid.messages %}{{ m.mesage }}{% endfor %}", "unknown field 'mesage' of 'm'"),
        ("{% for turn in text__trace %}{{ turn.text }}{% endfor %}", "unknown field 'text' of 'turn'"),
        ("{{ n.a.c }}", "unknown field 'c' of 'n.a'"),
        ("{% if topic == 'tea' %}\n{{ s.titel if s.title else s.tite }}{% endif %}", "line 2: unknown field 'titel'"),
    ],
)
def test_wrong_fields_of_templates(text: str, problem: str) -> None:
    """Each is found with its path and the closest field."""
    found = field_problems(compile_template(text, where="column 'x', prompt"), shapes(), where="column 'x', prompt")
    assert found
    assert problem in found[0]
    assert found[0].startswith("column 'x', prompt, line ")


@pytest.mark.parametrize(
    "text",
    [
        "{{ s.title.upper() }} {{ s.keys() | list }} {{ s.get('x') }} {{ s | tojson }}",
        "{{ s.extra.note }} {{ s.extra.other.deep }} {{ s.anything.x.y[0] }} {{ open.a.b }}",
        "{{ s.tree.left.left.left.label }}",
        "{{ event.city or event.to }} {{ event.body.lines[0].any }}",
        "{% for t in s['items'] %}{{ loop.index }}{{ t.name }}{% for g in t.tags %}{{ g }}{% endfor %}{% endfor %}",
        "{% for k, v in s.items() %}{{ k }}{{ v.x }}{% endfor %}",
        "{% for s in s['items'] %}{{ s.name }}{% endfor %}",
        "{% set s = open %}{{ s.whatever }}",
        "{% set ns = namespace(x=1) %}{% set ns.x = 2 %}{{ ns.x }}",
        "{% macro m(s) %}{{ s.free }}{% endmacro %}{{ m(open) }}",
        "{% with s = open %}{{ s.free }}{% endwith %}",
        "{{ s['items'] | map(attribute='tags') | first | first }}",
        "{{ s['items'] | selectattr('name', 'eq', 'x') | map(attribute='tags.0') | list }}",
        "{{ s['items'] | groupby('name') | first }}",
        "{{ (s or open).free }}",
        "{{ who.first_name }} {{ j.clarity_reasoning }} {{ valid.messages[0].message }} {{ text.split()[0].x }}",
        "{% for turn in text__trace %}{{ turn.role }}: {{ turn.content }}{% endfor %}",
        "{{ s[topic] }} {{ s['items'][1:][0].name }} {{ s['items'].index(1) }}",
    ],
)
def test_no_false_alarms(text: str) -> None:
    """Open objects, unknown values, methods, names that are set and nested loops are left alone."""
    assert field_problems(compile_template(text, where="x"), shapes(), where="x") == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("j.clarity >= 4 and s.titel", "x: unknown field 'titel' of 's'; did you mean 'title'?"),
        ("{{ j.clarit >= 4 }}", "x: unknown field 'clarit' of 'j'; did you mean 'clarity'?"),
        ("j.clarity is none or open.x", None),
    ],
)
def test_fields_of_expressions(text: str, problem: str | None) -> None:
    """Expressions are followed as templates are."""
    found = field_problems(compile_condition(text, where="x"), shapes(), where="x")
    assert found == ([] if problem is None else [problem])


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"type": "object", "properties": {"a": {}}}, {}]},
        {"allOf": [{"$ref": "https://example.com/x"}], "type": "object", "properties": {"a": {}}},
        {"type": "object", "properties": {"a": {}}, "if": {}, "then": {"properties": {"b": {}}}},
        {"type": "object", "properties": {"a": {}}, "patternProperties": {"^x": {}}},
        {"type": ["object", "string"], "properties": {"a": {}}},
        {"properties": {"a": {}}},
        {"$ref": "#"},
        True,
    ],
)
def test_schemas_that_leave_fields_open(schema: Any) -> None:
    """Whatever may add fields makes every field possible."""
    text = compile_template("{{ v.b.c }}", where="x")
    assert field_problems(text, {"v": schema_shape(schema)}, where="x") == []


def test_the_check_names_the_place_of_each() -> None:
    """Templates, expressions, skip rules, references and filters are checked in one go, before anything is paid for."""
    given = recipe(
        sb.LLMText("one", model="m", prompt="{{ s.titel }}", system="{{ j.clarty }}", skip_when="who.agee > 3"),
        sb.Expression("two", "j.claritty > 3"),
        sb.Expression("three", "j.claritty > 3", language="sql"),
        sb.Expression("four", pl.col("j").struct.field("claritty") > 3),
        sb.Expression("five", "j.clarity > 3", language="sql"),
        sb.Uniform("six", low=0, high={"column": "j.clarityy"}),
        processors=[
            sb.SchemaTransform(rename={"j": "quality"}, template={"t": "{{ quality.clarty }}", "u": "{{ s.title }}"}),
            sb.Filter(expr="quality.scor > 3"),
            sb.Filter(expr="t.any and u.any", stage="after_generation"),
        ],
    )
    with pytest.raises(DatasetGenerationError) as caught:
        given.resolve(given.environment())
    found = [problem.partition(";")[0] for problem in caught.value.problems]
    assert found == [
        "columns[9].skip_when: column 'one', skip_when: unknown field 'agee' of 'who'",
        "columns[9].prompt: column 'one', prompt, line 1: unknown field 'titel' of 's'",
        "columns[9].system: column 'one', system, line 1: unknown field 'clarty' of 'j'",
        "columns[10].expr: column 'two', expr: unknown field 'claritty' of 'j'",
        "columns[11].expr: column 'three', expr: unknown field 'claritty'",
        "columns[12].expr: column 'four', expr: unknown field 'claritty'",
        "columns[14].high: column 'six', high: unknown field 'clarityy' of 'j'",
        "processors[0]: schema_transform, template.t: unknown field 'clarty' of 'quality'",
        "processors[1]: filter: unknown field 'scor' of 'quality' (known: 'clarity', 'clarity_reasoning')",
    ]
