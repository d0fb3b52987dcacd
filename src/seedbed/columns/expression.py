"""Columns that are computed from others: a Jinja2 template, an expression, polars SQL or a polars expression."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import polars as pl

from .. import checks
from ..errors import CellError, ConfigError, Permanent
from ..graph import Kind
from ..store.values import JSON, python_rows, python_values
from .base import Column
from .dtypes import dtype_text
from .spec import ColumnSpec, Environment
from .templates import Condition, Template, compile_condition, compile_template, is_template

if TYPE_CHECKING:
    from collections.abc import Callable

    from .base import CellContext
    from .fields import Text


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


def _key(value: Any) -> Any:
    # `==` of two polars expressions gives a third one.
    return str(value) if isinstance(value, pl.Expr) else value


@attrs.frozen
class Expression(ColumnSpec):
    """A column that is computed from others.

    `expr` with `{{ }}` or `{% %}` is a Jinja2 template and gives text (or `dtype`, parsed from the text). Other text is
    an expression over the row, such as `quality.clarity >= 4`, in Jinja2's language or with `language="sql"` in
    polars SQL. In Python it may be a polars expression. An operation that has no result for a null gives null.
    """

    type: ClassVar[str] = "expression"

    expr: str | pl.Expr = attrs.field(eq=_key)
    """The template, expression or SQL; in Python also a polars expression."""
    language: str = attrs.field(default="jinja", kw_only=True, validator=checks.one_of(*LANGUAGES))
    """The language of an expression without `{{ }}`."""

    def __attrs_post_init__(self) -> None:
        """Compile it, so that its problems are known before anything runs."""
        if not isinstance(self.expr, str | pl.Expr):
            raise ConfigError(f"{self.where}: must be text or a polars expression, not {self.expr!r}", field="expr")
        self.compiled()

    @property
    def where(self) -> str:
        return f"column {self.name!r}, expr"

    def compiled(self) -> Template | Condition | pl.Expr:
        """A template gives text and a condition any value, row by row; polars computes all rows at once."""
        if isinstance(self.expr, pl.Expr):
            return _row_by_row(self.expr, self.where)
        if self.language == "sql":
            return compile_sql(self.expr, where=self.where)
        compile_text = compile_template if is_template(self.expr) else compile_condition
        return compile_text(self.expr, where=self.where)

    def texts(self) -> dict[str, Text]:
        return {**super().texts(), "expr": self.compiled()}

    def to_column(self, environment: Environment) -> Column:  # noqa: ARG002
        """A full column: polars computes it at once, a template row by row."""
        compiled = self.compiled()
        requires = requirements(compiled)
        compute = self._by_frame(compiled) if isinstance(compiled, pl.Expr) else self._by_row(compiled)

        def fill(frame: pl.DataFrame, context: CellContext) -> list[Any]:
            if requires:
                return compute(frame)
            # A frame without columns has no height: a constant is computed once and repeated.
            return compute(pl.DataFrame({"": [0]})) * len(context.rows)

        dtype = str if isinstance(compiled, Template) else None
        return Column(self.name, fill, kind=Kind.FULL_COLUMN, requires=requires, dtype=dtype)

    def by_cell(self, column: Column) -> Column:
        """Its column, computed cell by cell as soon as a row has what it needs; not if it is a polars expression.

        A row that depends on nothing else need not wait for its row group: one that is not accepted is left at once.
        """
        compiled = self.compiled()
        if isinstance(compiled, pl.Expr) or not compiled.requires:
            return column
        evaluate = self._parsed(compiled) if isinstance(compiled, Template) else compiled.evaluate

        async def cell(**values: Any) -> Any:  # async: it takes no thread
            return evaluate(values)

        return attrs.evolve(column, generator=cell, kind=Kind.CELL, requires=column.inputs)

    def _by_frame(self, expression: pl.Expr) -> Callable[[pl.DataFrame], list[Any]]:
        def compute(frame: pl.DataFrame) -> list[Any]:
            try:
                return python_values(frame.with_columns(expression.alias(self.name))[self.name])
            except pl.exceptions.PolarsError as error:
                raise Permanent(f"{self.where}: {error}") from error

        return compute

    def _by_row(self, compiled: Template | Condition) -> Callable[[pl.DataFrame], list[Any]]:
        evaluate = self._parsed(compiled) if isinstance(compiled, Template) else compiled.evaluate

        def compute(values: dict[str, Any]) -> Any:
            try:
                return evaluate(values)
            except CellError as error:
                return error  # only that row fails

        return lambda frame: [compute(values) for values in python_rows(frame)]

    def _parsed(self, template: Template) -> Callable[[dict[str, Any]], Any]:
        """The text of a template, parsed as `dtype`: an empty text and that of a null are null."""
        dtype = self.dtype
        if dtype is None or dtype_text(dtype) in ("str", "String"):
            return template.render
        parse = _PARSERS.get(dtype) or (lambda text: pl.Series([text]).cast(dtype).item())

        def evaluate(values: dict[str, Any]) -> Any:
            text = template.render(values).strip()
            if text in ("", "None"):
                return None
            try:
                return parse(text)
            except (ValueError, RecursionError, pl.exceptions.PolarsError) as error:
                expected = dtype_text(dtype) or dtype
                raise Permanent(f"{self.where}: gave {text!r}, which is not a valid {expected}") from error

        return evaluate


def requirements(compiled: Template | Condition | pl.Expr) -> tuple[str, ...]:
    """The columns that it names, each once."""
    return tuple(dict.fromkeys(compiled.meta.root_names())) if isinstance(compiled, pl.Expr) else compiled.requires


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
        expression = pl.sql_expr(text)
    except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {text[:200]!r} is not a polars SQL expression: {str(error)[:500]}") from error
    return _row_by_row(expression, where)


def _row_by_row(expr: pl.Expr, where: str) -> pl.Expr:
    """The expression; a `ConfigError` if its value in a row depends on other rows, as far as polars knows that."""
    try:
        is_separable = not expr.meta.has_multiple_outputs() and expr.meta.is_row_separable()
        aggregates = is_separable and expr.meta.is_scalar() and bool(expr.meta.root_names())
    except pl.exceptions.PolarsError:  # it needs to know the types of the columns
        return expr
    if is_separable and not aggregates:
        return expr
    raise ConfigError(
        f"{where}: {str(expr)!r} looks at more than its own row, so that its values would depend on where row groups "
        "begin; write a frame function with @seedbed.column, or a processor"
    )


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


_PARSERS: dict[Any, Callable[[str], Any]] = {
    int: int,
    float: float,
    bool: _boolean,
    pl.Boolean: _boolean,
    JSON: json.loads,
}
