"""Columns that are computed from others: a Jinja2 template, an expression, polars SQL or a polars expression."""

from __future__ import annotations

import enum
import re
from typing import Any, ClassVar

import attrs
import polars as pl

from ..errors import ConfigError
from .spec import ColumnSpec
from .templates import Condition, Template, compile_condition, compile_template, is_template

LANGUAGES = ("jinja", "sql")

# Every operator is a level of polars' tree, which it follows by recursion: 20,000 of them, or 500 `||`, exhaust the C
# stack and end the process.
_MAX_OPERATORS = 1000
_MAX_CONCATENATIONS = 100
_MAX_LENGTH = 1_000_000
_LITERALS = re.compile(r"'[^']*+'|\"[^\"]*+\"")
_OPERATORS = re.compile(
    r"\|\||::|[-+*/%<>=!&|^~#@(\[]|\b(?:AND|OR|NOT|WHEN|LIKE|ILIKE|IN|IS|BETWEEN|AS)\b", re.IGNORECASE
)


class Mode(enum.Enum):
    """How an expression is computed."""

    TEMPLATE = "template"  # text with {{ }} or {% %}: gives text, row by row
    CONDITION = "condition"  # a Jinja2 expression: gives any value, row by row
    FRAME = "frame"  # polars, for all rows at once


def _key(value: Any) -> Any:
    """What two equal expressions have in common; comparing polars expressions makes another one."""
    return str(value) if isinstance(value, pl.Expr) else value


@attrs.frozen
class Expression(ColumnSpec):
    """A column that is computed from others.

    `expr` with `{{ }}` or `{% %}` is a Jinja2 template and gives text (or `dtype`, read from the text). Other text is
    an expression over the row, such as `quality.clarity >= 4`, in Jinja2's language or with `language="sql"` in
    polars SQL. In Python it may be a polars expression. What cannot be computed of a null is null.
    """

    type: ClassVar[str] = "expression"

    expr: str | pl.Expr = attrs.field(eq=_key)
    language: str = attrs.field(default="jinja", kw_only=True)

    def __attrs_post_init__(self) -> None:
        """Compile it once, so that what is wrong is known before anything runs."""
        if self.language not in LANGUAGES:
            allowed = " or ".join(repr(each) for each in LANGUAGES)
            raise ConfigError(f"{self.where}: language must be {allowed}, not {self.language!r}")
        if not isinstance(self.expr, str | pl.Expr):
            raise ConfigError(f"{self.where}: must be text or a polars expression, not {self.expr!r}")
        if self.mode is Mode.FRAME:
            self._check_frame(self.frame())
        else:
            self.row()

    @property
    def where(self) -> str:
        """What messages about it begin with."""
        return f"column {self.name!r}, expr"

    @property
    def mode(self) -> Mode:
        if isinstance(self.expr, pl.Expr) or self.language == "sql":
            return Mode.FRAME
        return Mode.TEMPLATE if is_template(self.expr) else Mode.CONDITION

    @property
    def requires(self) -> tuple[str, ...]:
        """The columns that it names."""
        if self.mode is Mode.FRAME:
            return tuple(dict.fromkeys(self.frame().meta.root_names()))
        return self.row().requires

    def row(self) -> Template | Condition:
        """What computes one row."""
        assert isinstance(self.expr, str)
        if self.mode is Mode.TEMPLATE:
            return compile_template(self.expr, where=self.where)
        return compile_condition(self.expr, where=self.where)

    def frame(self) -> pl.Expr:
        """What computes a frame."""
        if isinstance(self.expr, pl.Expr):
            return self.expr
        return compile_sql(self.expr, where=self.where)

    def _check_frame(self, expr: pl.Expr) -> None:
        if not row_by_row(expr):
            raise ConfigError(
                f"{self.where}: {str(expr)!r} looks at more than its own row, so that its values would depend on "
                "where row groups begin; write a frame function with @seedbed.column, or a processor"
            )


def compile_sql(text: str, *, where: str) -> pl.Expr:
    """A polars expression from SQL, as in `CASE WHEN stars > 3 THEN 'good' ELSE 'bad' END`. Raises `ConfigError`."""
    if isinstance(text, str):
        operators = _OPERATORS.findall(_LITERALS.sub("", text))
        if len(operators) > _MAX_OPERATORS or operators.count("||") > _MAX_CONCATENATIONS or len(text) > _MAX_LENGTH:
            raise ConfigError(
                f"{where}: {text[:60]!r}… is too large an SQL expression: at most {_MAX_OPERATORS} operators, "
                f"{_MAX_CONCATENATIONS} of them ||, and {_MAX_LENGTH} characters"
            )
    try:
        return pl.sql_expr(text)
    except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
        reason = str(error)[:500]
        raise ConfigError(f"{where}: {text[:200]!r} is not a polars SQL expression: {reason}") from error


def row_by_row(expr: pl.Expr) -> bool:
    """Whether what it gives for a row depends on that row alone; true where polars cannot say without the data."""
    try:
        if expr.meta.has_multiple_outputs():
            return False
        aggregates = expr.meta.is_scalar() and bool(expr.meta.root_names())
        return expr.meta.is_row_separable() and not aggregates
    except pl.exceptions.PolarsError:
        # Some expressions have no answer before their types are known.
        return True
