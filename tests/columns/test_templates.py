from __future__ import annotations

import re
from typing import ClassVar

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedbed.columns.spec import ColumnSpec
from seedbed.columns.templates import compile_condition, compile_template, lone_expression
from seedbed.errors import ConfigError, Permanent

WHERE = "column 'answer', prompt"


@attrs.frozen
class Plain(ColumnSpec):
    type: ClassVar[str] = "plain"


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("no columns at all", ()),
        ("{{ topic }} and {{ tone | upper }} and {{ topic }}", ("topic", "tone")),
        ("{% for each in items %}{{ each.name }}{{ loop.index }}{{ other }}{% endfor %}", ("items", "other")),
        ("{% set x = a %}{{ x + b }}", ("a", "b")),
        ("{{ range(3) | list }}{{ dict(a=1) }}", ()),
        ("{# {{ hidden }} #}{{ quality.clarity }}", ("quality",)),
    ],
)
def test_a_template_requires_the_names_that_it_does_not_define(text: str, columns: tuple[str, ...]) -> None:
    """Requirements are in order of appearance."""
    assert compile_template(text, where="template").requires == columns


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{{ len(text) }}", "line 1: unknown function 'len'; length is a filter: text | length"),
        ("{{ upper(text[1]) }}", "line 1: unknown function 'upper'; upper is a filter: value | upper"),
        ("{{ rnage(3) }}", "line 1: unknown function 'rnage'; did you mean 'range'?"),
        ("{{ fetch(text) }}", "line 1: unknown function 'fetch'"),
    ],
)
def test_functions_that_do_not_exist_are_found(text: str, error: str) -> None:
    """Values are no functions; the message has the filter that does the same, if there is one."""
    with pytest.raises(ConfigError, match=re.escape(error)):
        compile_template(text, where="x")
    assert compile_template("{% macro f(x) %}{{ x }}{% endmacro %}{{ f(a) }}", where="x").requires == ("a",)


def test_values_of_other_columns_are_not_needed() -> None:
    """A template reads only the values of the columns that it names."""
    asked: list[str] = []

    class Row(dict[str, int]):
        def __getitem__(self, name: str) -> int:
            asked.append(name)
            return super().__getitem__(name)

    template = compile_template("{{ a }}{{ b }}", where=WHERE)
    assert template.render(Row(a=1, b=2, secret=3)) == "12"
    assert asked == ["a", "b"]


def test_fields_take_precedence_over_methods() -> None:
    """A field of a struct is found although dicts have a method of that name."""
    template = compile_template("{{ box.items }} {{ box.values }} {{ box.keys() | list }}", where=WHERE)
    assert template.render({"box": {"items": 3, "values": "v"}}) == "3 v ['items', 'values']"


def test_tojson_does_not_escape_html() -> None:
    """The filter tojson leaves `<` unescaped, as prompts need."""
    assert compile_template("{{ a | tojson }}", where=WHERE).render({"a": ["<é>"]}) == '["<é>"]'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("one\n{{ broken", r"^column 'answer', prompt, line 2: unexpected end of template"),
        ("{{ a | nonsense }}", r"line 1: No filter named 'nonsense'"),
        ("{% if a %}", r"line 1: Unexpected end of template"),
        ("\n\n{% include 'other' %}", r"line 3: 'include' has no other template to read"),
        ("{{ [1, 2] | random }}", r"No filter named 'random'"),
        (3, r"column 'answer', prompt: a template is text, not 3"),
    ],
)
def test_an_invalid_template_is_rejected(text: str, message: str) -> None:
    """The message names the column and the line."""
    with pytest.raises(ConfigError, match=message):
        compile_template(text, where=WHERE)


@pytest.mark.parametrize(
    ("text", "values", "message"),
    [
        ("one\n{{ a.b }}", {"a": {"c": 1}}, r"^column 'answer', prompt, line 2: 'dict object' has no attribute 'b'"),
        ("{{ a }}", {}, r"^column 'answer', prompt: unknown column 'a'$"),
        ("\n\n{{ a / 0 }}", {"a": 1}, r"line 3: ZeroDivisionError"),
        ("{{ a.__class__.x }}", {"a": 1}, r"access to attribute '__class__' of 'int' object is unsafe"),
        ("{{ a.append(1) }}", {"a": [1]}, r"access to attribute 'append' of 'list' object is unsafe"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", {}, r"unsafe"),
        ("{{ 'x' * 10000000000 }}", {}, r"OverflowError: a repetition of more than 1000000 items"),
        ("{{ 10000000000 * a }}", {"a": [1]}, r"OverflowError: a repetition of more than 1000000 items"),
        ("{{ 9 ** (9 ** 9) }}", {}, r"OverflowError: a power of more than 1000000 bits"),
    ],
)
def test_a_failing_template_fails_its_row(text: str, values: dict[str, object], message: str) -> None:
    """The message names the column and the line; leaving the sandbox fails too."""
    with pytest.raises(Permanent, match=message):
        compile_template(text, where=WHERE).render(values)


@pytest.mark.parametrize(
    ("text", "values", "result"),
    [
        ("quality.clarity >= 4", {"quality": {"clarity": 5}}, True),
        ("quality.clarity >= 4", {"quality": {"clarity": 3}}, False),
        ("quality.clarity >= 4", {"quality": None}, None),
        ("quality.clarity >= 4", {"quality": {"clarity": None}}, None),
        ("quality.clarity is none", {"quality": None}, True),
        ("quality['clarity'].level == 1 or b", {"quality": None, "b": 2}, 2),
        ("a + b * 2", {"a": 1, "b": 3}, 7),
        ("['-' * a, 2 ** a, 2 ** -a]", {"a": 2}, ["--", 4, 0.25]),
        ("a is none", {"a": None}, True),
        ("a or 'nothing'", {"a": None}, "nothing"),
        ("tone in ['dry', 'warm']", {"tone": "dry"}, True),
        ("{{ a == 1 }}", {"a": 1}, True),
        ("{{ -a }}", {"a": 1}, -1),
        ("{{- a -}}", {"a": 1}, 1),
        ("{'x': a}", {"a": [1]}, {"x": [1]}),
        ("items | length", {"items": [None]}, 1),
    ],
)
def test_values_of_conditions(text: str, values: dict[str, object], result: object) -> None:
    """An operation that has no result for a null gives null."""
    assert compile_condition(text, where=WHERE).evaluate(values) == result


def test_a_failing_condition_without_nulls_is_an_error() -> None:
    """The message shows the expression."""
    condition = compile_condition("quality.clarty >= 4", where="column 'good', expr")
    with pytest.raises(
        Permanent, match=r"^column 'good', expr: 'quality.clarty >= 4': 'dict object' has no attribute 'clarty'"
    ):
        condition.evaluate({"quality": {"clarity": 1}})
    with pytest.raises(Permanent, match="has no attribute 'b'"):
        compile_condition("a.b", where="x").evaluate({"a": {}})


@pytest.mark.parametrize("text", ["a >", "a b", "", "{% if a %}", "a }} {{ b"])
def test_an_invalid_expression_is_rejected(text: str) -> None:
    """The message quotes the text."""
    with pytest.raises(ConfigError, match=r"^x: .* is not an expression: "):
        compile_condition(text, where="x")


def test_lone_expression_recognises_one_expression() -> None:
    """A template of one expression is distinguished from a longer one."""
    assert lone_expression(" {{ a + 1 }}\n") == "a + 1"
    assert lone_expression("{{ a }} {{ b }}") is None
    assert lone_expression("a {{ b }}") is None


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="{}\r"), max_size=40))
def test_text_without_braces_is_unchanged(text: str) -> None:
    """Text with nothing to fill in comes out as it went in."""
    assert compile_template(text, where=WHERE).render({}) == text


@given(
    st.lists(st.sampled_from(["{{ a }}", "{{- b -}}", "{# % #}", " %", "%s", "%(a)s\n", "{{ a }}%"])),
    st.one_of(st.text(), st.integers(), st.none()),
    st.text(),
)
def test_inserted_columns(parts: list[str], a: object, b: str) -> None:
    """A template that only inserts columns gives what one with an instruction that does nothing gives."""
    text = "".join(parts)
    expected = compile_template(text + "{% if false %}{% endif %}", where=WHERE).render({"a": a, "b": b})
    assert compile_template(text, where=WHERE).render({"a": a, "b": b}) == expected


def test_a_column_named_self() -> None:
    """`self` is not a column but Jinja2's own, also in a template that only inserts columns."""
    assert compile_template("{{ self }}", where=WHERE).render({"self": "x"}) == "<TemplateReference None>"


def test_skip_when_becomes_a_skip_rule() -> None:
    """The rule has the columns and the decision; null does not skip."""
    rule = Plain("a", skip_when="b.score < 3 or c").skip_rule()
    assert rule is not None
    assert rule.requires == ("b", "c")
    assert rule.decide({"b": {"score": 1}, "c": False})
    assert rule.decide({"b": {"score": 5}, "c": "text"})
    assert not rule.decide({"b": None, "c": None})
    assert Plain("a").skip_rule() is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"skip_when": "b >"}, r"column 'a', skip_when: 'b >' is not an expression"),
        ({"skip_when": True}, r"column 'a', skip_when: an expression is text, not True"),
        ({"skip_policy": "maybe"}, r"column 'a': skip_policy must be 'run' or 'skip', not 'maybe'"),
        ({"timeout": 0}, r"column 'a': timeout must be seconds above 0, not 0"),
        ({"timeout": "1"}, r"timeout must be seconds above 0, not '1'"),
        ({"dtype": "strin"}, r"unknown type 'strin'; did you mean 'str"),
        ({"name": ""}, r"a column's name must be text, not ''"),
    ],
)
def test_shared_fields_of_specs_are_checked(fields: dict[str, object], message: str) -> None:
    """The fields of all columns are checked when a spec is created."""
    with pytest.raises(ConfigError, match=message):
        Plain(**{"name": "a", **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% for a in [[1, 2]] * 60 recursive %}{{ loop([a] * 60) }}{% endfor %}",
        "{% block b %}{{ self.b() }}{{ self.b() }}{% endblock %}",
        "{% set s = namespace(x='xx') %}{% for i in range(60) %}{% set s.x = s.x ~ s.x %}{% endfor %}",
        "{% set s = namespace(x='xx') %}{% for i in range(60) %}{% set s.x = s.x + s.x %}{% endfor %}",
        "{% set s = namespace(x=9) %}{% for i in range(60) %}{% set s.x = s.x * s.x %}{% endfor %}",
        "{% set s = namespace(x=1) %}{% for i in range(60) %}{% set s.x = [s.x, s.x] %}{% endfor %}{{ s.x }}",
        "{% set s = namespace(x=1) %}{% for i in range(60) %}{% set s.x = [s.x, s.x] %}{% endfor %}{{ s.x | tojson }}",
        "{% set s = namespace(x=1) %}{% for i in range(9999) %}{% set s.x = (s.x,) %}{% endfor %}{{ {s.x: 1} }}",
        "{% set s = namespace(x=1) %}{% for i in range(9999) %}{% set s.x = (s.x,) %}{% endfor %}{{ {}[s.x] }}",
        "{% for i in range(99999) %}" + "long text " * 1000 + "{% endfor %}",
        "{% set x = 'x' * 999999 %}{% for i in range(99999) %}{{ x }}{% endfor %}",
        "{% set x = [1] * 999999 %}{% for i in range(99999) %}{{ 'y' in x }}{% endfor %}",
        "{{ [1] | slice(999999999) | list }}",
        "{{ [1] | batch(999999999, 1) | list }}",
        "{{ 'x' | center(99999999999) }}",
        "{{ 'x'.ljust(99999999999) }}",
        "{{ ('\n' * 9999) | indent(99999999) }}",
        "{{ 2.5 | round(999999999, 'ceil') }}",
        "{{ '%999999999999d' | format(1) }}",
        "{{ '%999999999999d' % 1 }}",
        "{{ '%*d' % (999999999999, 1) }}",
        "{{ '{:999999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 999999999999) }}",
        "{{ range(99999) | join('x' * 999999) }}",
        "{{ ('x' * 999999).join(['a'] * 999999) }}",
        "{{ ('x' * 999999) | replace('x', 'y' * 999999) }}",
        "{{ ('x' * 999999).replace('x', 'y' * 999999) }}",
        "{{ ('x' * 999999).translate({120: 'y' * 999999}) }}",
        "{{ ('x' * 900000) | wordwrap(1) }}",
        "{{ range(99999) | map('center', 99999) | list }}",
        "{{ [[1] * 999] * 9999 | sum(start=[]) }}",
        "{{ {'a': [1]} | tojson(indent=99999999999) }}",
    ],
)
def test_an_endless_rendering_fails_its_row(text: str) -> None:
    """A template that loops or grows without end is stopped, and the error names the column."""
    with pytest.raises(
        Permanent, match=r"^column 'answer', prompt(, line \d+)?: (OverflowError|RecursionError|TypeError)"
    ):
        compile_template(text, where=WHERE).render({})


def test_an_endless_expression_fails() -> None:
    """Expressions are bounded too, also if one of their values is null."""
    with pytest.raises(Permanent, match="more than 1000000 steps"):
        compile_condition("range(99999) | map('center', a or 99999) | list", where="x").evaluate({"a": None})


def test_ordinary_work_is_within_bounds() -> None:
    """Long texts, long lists and loops of many thousand rounds are rendered."""
    values = {"doc": "word " * 1_000_000, "items": [{"n": n} for n in range(20_000)]}
    text = "{{ doc | upper | replace('WORD', 'w') | length }} {% for i in items %}{{ i.n ~ ', ' }}{% endfor %}"
    assert compile_template(text, where=WHERE).render(values).startswith("2000000 0, 1, 2, ")
    picture = compile_template("{{ ('x' * 500000) | wordwrap(76) | length }}", where=WHERE)
    assert picture.render({}) == "506578"
