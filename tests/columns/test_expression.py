from __future__ import annotations

import polars as pl
import pytest
from grow import grown, made

import seedbed
from seedbed.columns.custom import column
from seedbed.columns.expression import Expression
from seedbed.columns.spec import Environment
from seedbed.columns.templates import Condition, Template
from seedbed.errors import ConfigError
from seedbed.recipe.recipe import Recipe


@column
def number(rows: range) -> list[int]:
    """Row numbers."""
    return list(rows)


@column
async def quality(number: int) -> dict[str, int] | None:
    """A struct that is sometimes null."""
    return None if number == 0 else {"clarity": number}


@pytest.mark.parametrize(
    ("expression", "values"),
    [
        (Expression("out", "quality.clarity >= 2"), [None, False, True]),
        (Expression("out", "quality.clarity >= 2", language="sql"), [None, False, True]),
        (Expression("out", pl.col("quality").struct.field("clarity") >= 2), [None, False, True]),
        (Expression("out", "no {{ number }}!"), ["no 0!", "no 1!", "no 2!"]),
        (Expression("out", "{{ number + 1 }}", dtype="int"), [1, 2, 3]),
        (Expression("out", "{{ number > 0 }}", dtype=bool), [False, True, True]),
        (Expression("out", "{{ number / 2 if number else '' }}", dtype=pl.Float32), [None, 0.5, 1.0]),
        (Expression("out", "number * 2 + 1"), [1, 3, 5]),
        (Expression("out", "CASE WHEN number > 1 THEN 'b' ELSE 'a' END", language="sql"), ["a", "a", "b"]),
        (Expression("out", "[number, 7]"), [[0, 7], [1, 7], [2, 7]]),
        (Expression("out", "20 + 1"), [21, 21, 21]),
        (Expression("out", "constant {% raw %}{{{% endraw %}"), ["constant {{"] * 3),
        (Expression("out", pl.lit("x")), ["x", "x", "x"]),
        (Expression("out", "number", skip_when="number == 1"), [0, None, 2]),
    ],
)
def test_expressions_are_computed_in_each_language(expression: Expression, values: list[object]) -> None:
    """An expression column is computed from the columns that it names, in any of the languages."""
    assert grown(Recipe(columns=[number, quality, expression]), 3)["out"].to_list() == values


def test_requirements_are_read_from_the_expression() -> None:
    """An expression requires the columns that it names, each once."""
    assert Expression("a", "x.y + x.z > w").to_column(Environment()).requires == ("x", "w")
    assert Expression("a", "{{ x.y }}{{ w }}").to_column(Environment()).requires == ("x", "w")
    assert Expression("a", "x.y + x.z > w", language="sql").to_column(Environment()).requires == ("x", "w")
    assert Expression("a", (pl.col("x") + pl.col("w")).abs()).to_column(Environment()).requires == ("x", "w")


def test_the_text_and_language_select_the_compiler() -> None:
    """Text with braces is a template, other text a condition or SQL, and a polars expression remains one."""
    assert isinstance(Expression("a", "{% if b %}x{% endif %}").compiled(), Template)
    assert isinstance(Expression("a", "b").compiled(), Condition)
    assert isinstance(Expression("a", "b", language="sql").compiled(), pl.Expr)
    assert isinstance(Expression("a", pl.col("b")).compiled(), pl.Expr)


def test_templates_are_text_by_default() -> None:
    """A template's column is text unless another type is declared."""
    text, whole, free = made(
        Recipe(columns=[Expression("a", "{{ 1 }}"), Expression("b", "{{ 1 }}", dtype=int), Expression("c", "1")])
    )
    assert (text.dtypes(), whole.dtypes(), free.dtypes()) == ({"a": str}, {"b": int}, {})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"expr": "a >"}, r"column 'x', expr: 'a >' is not an expression"),
        ({"expr": "{{ a"}, r"column 'x', expr, line 1: "),
        ({"expr": "a >", "language": "sql"}, r"column 'x', expr: 'a >' is not a polars SQL expression"),
        ({"expr": "a", "language": "python"}, r"language must be 'jinja' or 'sql', not 'python'"),
        ({"expr": 3}, r"column 'x', expr: must be text or a polars expression, not 3"),
        ({"expr": pl.col("a").shift()}, r"column 'x', expr: .*shift.* looks at more than its own row"),
        ({"expr": "sum(a)", "language": "sql"}, r"looks at more than its own row"),
        ({"expr": pl.all()}, r"looks at more than its own row"),
    ],
)
def test_invalid_expressions_are_rejected(fields: dict[str, object], message: str) -> None:
    """An invalid expression is rejected when its spec is created."""
    with pytest.raises(ConfigError, match=message):
        Expression("x", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (Expression("out", "number.size > 1"), "column 'out', expr: 'number.size > 1': 'int object' has no attribute"),
        (Expression("out", "n{{ number }}", dtype=int), "column 'out', expr: gave 'n0', which is not a valid int"),
        (Expression("out", "quality.shine > 1", language="sql"), "column 'out', expr: "),
    ],
)
def test_failures_name_the_column(expression: Expression, message: str) -> None:
    """Rows are dropped with a reason that names the column and the expression."""
    preview = seedbed.preview(made(Recipe(columns=[number, quality, expression])), rows=2)
    assert preview.to_polars().height == 0
    assert message in preview.report.dropped[0].error


def test_expressions_are_values() -> None:
    """Equal specs are equal, also with polars expressions in them."""
    assert Expression("a", pl.col("b") + 1) == Expression("a", pl.col("b") + 1)
    assert Expression("a", pl.col("b") + 1) != Expression("a", pl.col("b") + 2)
