"""Fills a column with what an expression gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from ..errors import CellError, Permanent
from ..recipe.dtypes import dtype_text
from ..recipe.expression import Expression, Mode
from ..recipe.templates import Template
from .column import Column
from .registry import maker

if TYPE_CHECKING:
    from collections.abc import Callable

    from .context import CellContext
    from .registry import Environment


@maker(Expression)
def make_expression(spec: Expression, _: Environment) -> Column:
    """A full column: polars computes it at once, a template row by row."""
    requires = spec.requires
    compute = _by_frame(spec) if spec.mode is Mode.FRAME else _by_row(spec)

    def fill(frame: pl.DataFrame, context: CellContext) -> list[Any]:
        if requires:
            return compute(frame)
        # A frame without columns has no height: a constant is computed once and repeated.
        return compute(pl.DataFrame({"": [0]})) * len(context.rows)

    dtype = str if spec.mode is Mode.TEMPLATE and spec.dtype is None else spec.dtype
    return Column(spec.name, fill, kind="full_column", requires=requires, dtype=dtype)


def _by_frame(spec: Expression) -> Callable[[pl.DataFrame], list[Any]]:
    expression = spec.frame()

    def compute(frame: pl.DataFrame) -> list[Any]:
        try:
            return frame.with_columns(expression.alias(spec.name))[spec.name].to_list()
        except pl.exceptions.PolarsError as error:
            raise Permanent(f"{spec.where}: {error}") from error

    return compute


def _by_row(spec: Expression) -> Callable[[pl.DataFrame], list[Any]]:
    row = spec.row()
    if isinstance(row, Template):
        read, template = _reader(spec), row

        def one(values: dict[str, Any]) -> Any:
            return read(template.render(values))
    else:
        one = row.evaluate

    def each(values: dict[str, Any]) -> Any:
        try:
            return one(values)
        except CellError as error:
            return error  # that row failed, and it alone

    return lambda frame: [each(values) for values in frame.iter_rows(named=True)]


def _reader(spec: Expression) -> Callable[[str], Any]:
    """What makes a value of the text that a template gave; nothing, and the text of a null, are null."""
    dtype = spec.dtype
    if dtype is None or dtype_text(dtype) in ("str", "String"):
        return lambda text: text
    parse = _PARSERS.get(dtype) or (lambda text: pl.Series([text]).cast(dtype).item())

    def read(text: str) -> Any:
        text = text.strip()
        if text in ("", "None"):
            return None
        try:
            return parse(text)
        except (ValueError, pl.exceptions.PolarsError) as error:
            raise Permanent(f"{spec.where}: gave {text!r}, which is no {dtype_text(dtype) or dtype}") from error

    return read


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


_PARSERS: dict[Any, Callable[[str], Any]] = {int: int, float: float, bool: _boolean, pl.Boolean: _boolean}
