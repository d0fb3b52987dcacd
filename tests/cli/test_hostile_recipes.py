"""Recipes that are written to crash or hang the process that checks them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from command import seedbed

if TYPE_CHECKING:
    from pathlib import Path

DEEP = 100_000


def column(field: str, value: object, kind: str = "expression", **others: object) -> str:
    """One column of JSON, which is YAML too."""
    return json.dumps({"columns": [{"name": "a", "type": kind, field: value, **others}]})


def structured(schema: object) -> str:
    """A recipe whose model answers by a schema."""
    models = {"m": {"type": "scripted"}}
    fields = {"name": "a", "type": "llm-structured", "model": "m", "prompt": "x", "schema": schema}
    return json.dumps({"models": models, "columns": [fields]})


def nested(levels: int) -> object:
    """A schema of lists of lists."""
    value: object = {"type": "string"}
    for _ in range(levels):
        value = {"type": "array", "items": value}
    return value


def laughs(merge: str = "") -> str:
    """Forty lines of YAML that stand for 10**39 values."""
    lines = [f"a0: &a0 {{{'x: 1' if merge else 'x: [1, 1]'}}}"]
    for level in range(1, 40):
        inner = ", ".join([f"*a{level - 1}"] * 10)
        lines.append(f"a{level}: &a{level} {{{merge or 'x'}: [{inner}]}}")
    return "\n".join([*lines, "columns: [*a39]"])


HOSTILE = {
    "alias-in-itself.yaml": "columns: &a [*a]\n",
    "alias-in-its-column.yaml": "columns:\n- &a {name: x, type: category, values: [*a]}\n",
    "alias-as-key.yaml": "columns: &a {? *a : 1}\n",
    "alias-bomb.yaml": laughs(),
    "merge-bomb.yaml": laughs("<<"),
    "merge-of-many.yaml": f"a: &a {{{', '.join(f'k{i}: 1' for i in range(24_000))}}}\nb: {{<<: [{'*a, ' * 45_000}]}}\n",
    "merge-itself.yaml": "columns: &a {<<: *a}\n",
    "deep-flow.yaml": "columns: " + "[" * DEEP,
    "deep-map.yaml": "columns: " + "{a: " * DEEP,
    "deep-block.yaml": "columns:\n " + "- " * 5_000 + "x",
    "name-long.yaml": f"columns: [{{name: {'n' * 300_000}, type: uuid}}]",
    "requires-long.yaml": column("expr", "{{ " + "n" * 300_000 + " }}"),
    "cycle-long.yaml": column("expr", "{{ " + "n" * 300_000 + " }}").replace("name: a", "name: " + "n" * 300_000),
    "model-long.yaml": f"columns: [{{name: a, type: llm-text, prompt: x, model: {'n' * 300_000}}}]",
    "huge.yaml": "# " + "x" * 5_000_000,
    "many-values.yaml": "columns: [" + "1," * 150_000 + "]",
    "long-text.yaml": "seed: " + "x" * 300_000,
    "long-key.yaml": "x" * 300_000 + ": 1\n",
    "long-number.yaml": "seed: " + "9" * 100_000,
    "wrong-tag.yaml": "columns: !!int x\n",
    "wrong-flag.yaml": "columns: !!bool x\n",
    "wrong-date.yaml": "columns: !!timestamp 2001-99-99\n",
    "wrong-list-key.yaml": "columns: {? [a] : 1}\n",
    "python-tag.yaml": "columns: !!python/object/apply:os.system [id]\n",
    "nul.yaml": "columns:\n- {name: a\0b}\n",
    "not-utf-8.yaml": b"columns: \xff\xfe",
    "empty.yaml": "",
    "half-a-character.yaml": 'columns: [{name: a, type: expression, expr: "\\ud800"}]',
    "half-a-character-in-a-key.json": '{"\\ud800": 1}',
    "half-a-character-in-a-name.json": column("expr", "1").replace('"a"', '"\\udfff"'),
    "nul-in-a-name.yaml": 'columns:\n- {name: "a\\0b", type: expression, expr: "1"}\n',
    "escape-in-a-name.json": column("expr", "1").replace('"a"', '"\\u001b[2J"'),
    "nul-in-a-new-name.yaml": (
        'columns: [{name: a, type: expression, expr: "1"}]\n'
        'processors:\n- {type: schema_transform, rename: {a: "b\\0c"}}\n'
    ),
    "deep.json": "[" * DEEP,
    "deep-objects.json": '{"columns":' * 500 + "1" + "}" * 500,
    "long-number.json": '{"seed": ' + "9" * 100_000 + "}",
    "deep.toml": "columns = " + "[" * 5_000,
    "dotted.toml": "a." * 400_000 + "a = 1\n",
    "dotted-header.toml": "[" + "a." * 400_000 + "a]\n",
    "quoted-dots.toml": '"a" . ' * 100_000 + "a = 1\n",
    "long-number.toml": "seed = " + "9" * 100_000,
    "sql-terms.yaml": column("expr", "+".join(["1"] * 20_000), language="sql"),
    "sql-and.yaml": column("expr", " AND ".join(["1=1"] * 20_000), language="sql"),
    "sql-concat.yaml": column("expr", "||".join(["'a'"] * 2_000), language="sql"),
    "sql-parentheses.yaml": column("expr", "(" * DEEP, language="sql"),
    "sql-minus.yaml": column("expr", "- " * DEEP + "1", language="sql"),
    "sql-filter.yaml": json.dumps(
        {
            "columns": [{"name": "a", "type": "expression", "expr": "1"}],
            "processors": [{"type": "filter", "language": "sql", "expr": "+".join(["a"] * 20_000)}],
        }
    ),
    "template-parentheses.yaml": column("expr", "{{ " + "(" * DEEP + " }}x"),
    "template-terms.yaml": column("expr", "x{{ " + "+".join(["1"] * 20_000) + " }}"),
    "template-loops.yaml": column("expr", "{% for i in [1] %}" * 30 + "{% endfor %}" * 30),
    "template-ifs.yaml": column("expr", "{% if 1 %}" * 5_000 + "{% endif %}" * 5_000),
    "template-number.yaml": column("expr", "x{{ " + "9" * 10_000 + " }}"),
    "template-huge.yaml": column("expr", "{{ 1 }}" + "x" * 2_000_000),
    "condition-not.yaml": column("expr", "not " * DEEP + "1"),
    "condition-lists.yaml": column("expr", "[" * DEEP),
    "condition-attributes.yaml": column("expr", "a" + ".b" * DEEP),
    "skip-when-and.yaml": column("skip_when", " and ".join(["1"] * 20_000), expr="1"),
    "dtype-lists.yaml": column("dtype", "list[" * 5_000 + "int" + "]" * 5_000, expr="1"),
    "dtype-calls.yaml": column("dtype", "List(" * 150 + "Int8" + ")" * 150, expr="1"),
    "dtype-size.yaml": column("dtype", f"Array(Int8, {10**40})", expr="1"),
    "dtype-minus.yaml": column("dtype", "-" * DEEP + "1", expr="1"),
    "dtype-nul.yaml": column("dtype", "in\0t", expr="1"),
    "schema-deep.json": structured(nested(300)),
    "schema-circle.json": structured({"$ref": "#/a", "a": {"$ref": "#"}}),
    "schema-regex.json": structured({"type": "string", "pattern": "(" * 5_000}),
    "schema-repeats.json": structured({"type": "string", "pattern": "a{" + "9" * 30 + "}"}),
    "low-and-high.json": column("low", 10**400, "uniform", high=10**401),
    "latency.json": json.dumps({"models": {"m": {"type": "scripted", "latency": 10**400}}, "columns": []}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_recipe_is_rejected_with_its_place(name: str, tmp_path: Path) -> None:
    """`check` of a recipe that is too deep, too large or no text ends with status 2 and names the file."""
    content = HOSTILE[name]
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    ended = seedbed("check", name, cwd=tmp_path)
    assert ended.code == 2, ended.err[-500:]
    assert re.search(rf"^{re.escape(name)}(:\d+)?: ", ended.out, re.MULTILINE), ended.out[-500:]
    assert "Traceback" not in ended.out + ended.err
    assert len(ended.out) < 20_000


@pytest.mark.parametrize(
    "text",
    [
        "x{{ [1]|slice(999999999)|list }}",
        "x{{ 'x'|center(99999999999) }}",
        "x{{ 2.5|round(999999999, 'ceil') }}",
        "x{{ '%999999999999d'|format(1) }}",
        "x{{ range(99999)|map('string')|join('x' * 999999) }}",
        "x{{ [1]|batch(999999999, 1)|list }}",
    ],
)
def test_nothing_of_a_template_is_computed_by_a_check(text: str, tmp_path: Path) -> None:
    """`check` compiles templates and computes nothing of them, so that it ends whatever they would do."""
    (tmp_path / "r.json").write_text(column("expr", text))
    assert seedbed("check", "r.json", cwd=tmp_path).code == 0
