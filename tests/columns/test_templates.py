from __future__ import annotations

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
def test_requirements(text: str, columns: tuple[str, ...]) -> None:
    """A template requires the names that it does not make itself, in the order in which they appear."""
    assert compile_template(text, where="template").requires == columns


def test_values_of_other_columns_are_not_needed() -> None:
    """A template takes the values of the columns that it names and leaves the others alone."""
    asked: list[str] = []

    class Row(dict[str, int]):
        def __getitem__(self, name: str) -> int:
            asked.append(name)
            return super().__getitem__(name)

    template = compile_template("{{ a }}{{ b }}", where=WHERE)
    assert template.render(Row(a=1, b=2, secret=3)) == "12"
    assert asked == ["a", "b"]


def test_fields_come_before_methods() -> None:
    """A field of a struct is found though dicts have a method of that name."""
    template = compile_template("{{ box.items }} {{ box.values }} {{ box.keys() | list }}", where=WHERE)
    assert template.render({"box": {"items": 3, "values": "v"}}) == "3 v ['items', 'values']"


def test_json_is_for_prompts() -> None:
    """The filter tojson keeps what HTML would escape."""
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
def test_a_broken_template_is_refused(text: str, message: str) -> None:
    """What is wrong with a template is said with its column and its line, before anything runs."""
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
def test_a_failing_template(text: str, values: dict[str, object], message: str) -> None:
    """A row for which a template fails, or leaves its sandbox, fails for good and says where."""
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
def test_conditions(text: str, values: dict[str, object], result: object) -> None:
    """An expression gives a value, and null where a null leaves nothing to compute."""
    assert compile_condition(text, where=WHERE).evaluate(values) == result


def test_a_condition_that_fails() -> None:
    """Without a null among its values, a failing expression is an error that shows it."""
    condition = compile_condition("quality.clarty >= 4", where="column 'good', expr")
    with pytest.raises(
        Permanent, match=r"^column 'good', expr: 'quality.clarty >= 4': 'dict object' has no attribute 'clarty'"
    ):
        condition.evaluate({"quality": {"clarity": 1}})
    with pytest.raises(Permanent, match="has no attribute 'b'"):
        compile_condition("a.b", where="x").evaluate({"a": {}})


@pytest.mark.parametrize("text", ["a >", "a b", "", "{% if a %}", "a }} {{ b"])
def test_what_is_no_expression(text: str) -> None:
    """Text that is no expression is refused, and quoted."""
    with pytest.raises(ConfigError, match=r"^x: .* is not an expression: "):
        compile_condition(text, where="x")


def test_lone_expressions() -> None:
    """A template of one expression is told from a longer one."""
    assert lone_expression(" {{ a + 1 }}\n") == "a + 1"
    assert lone_expression("{{ a }} {{ b }}") is None
    assert lone_expression("a {{ b }}") is None


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="{}\r"), max_size=40))
def test_text_without_braces_is_kept(text: str) -> None:
    """Text with nothing to fill in comes out as it went in."""
    assert compile_template(text, where=WHERE).render({}) == text


def test_skip_rules() -> None:
    """A spec's skip_when becomes a rule with its columns and a decision; a null decides for not skipping."""
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
def test_what_all_specs_refuse(fields: dict[str, object], message: str) -> None:
    """The fields that all columns have are checked when a spec is made."""
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
        "{{ range(99999) | map('center', 99999) | list }}",
        "{{ [[1] * 999] * 9999 | sum(start=[]) }}",
        "{{ {'a': [1]} | tojson(indent=99999999999) }}",
    ],
)
def test_a_rendering_that_does_not_end(text: str) -> None:
    """A template that would loop or grow without end fails its row, and the error names the column."""
    with pytest.raises(
        Permanent, match=r"^column 'answer', prompt(, line \d+)?: (OverflowError|RecursionError|TypeError)"
    ):
        compile_template(text, where=WHERE).render({})


def test_an_expression_that_does_not_end() -> None:
    """An expression is bounded too, and a null among its values does not hide that."""
    with pytest.raises(Permanent, match="more than 1000000 steps"):
        compile_condition("range(99999) | map('center', a or 99999) | list", where="x").evaluate({"a": None})


def test_ordinary_work_is_within_bounds() -> None:
    """Long texts, long lists and loops of many thousand rounds are rendered."""
    values = {"doc": "word " * 1_000_000, "items": [{"n": n} for n in range(20_000)]}
    text = "{{ doc | upper | replace('WORD', 'w') | length }} {% for i in items %}{{ i.n ~ ', ' }}{% endfor %}"
    assert compile_template(text, where=WHERE).render(values).startswith("2000000 0, 1, 2, ")
