"""What processors do to frames: to those of a row group, and lazily to the whole dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import polars as pl
import pyarrow as pa

from ..recipe.expression import compile_sql
from ..recipe.processors import Deduplicate, DropColumns, Filter, SchemaTransform
from ..recipe.templates import Condition, Template
from .registry import processor_maker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .registry import Environment

F = TypeVar("F", pl.DataFrame, pl.LazyFrame)
Process = Callable[[F], F]


@processor_maker(DropColumns)
def drop_columns(spec: DropColumns, _: Environment) -> Process[Any]:
    """Leave columns out."""
    return lambda frame: frame.drop(spec.columns)


@processor_maker(Filter)
def filter_rows(spec: Filter, _: Environment) -> Process[Any]:
    """Keep the rows that fit."""
    if spec.language == "sql":
        expression = compile_sql(spec.expr, where=spec.label)
    else:
        condition = spec.condition()
        expression = _row_wise(condition.requires, condition.decide, pl.Boolean)
    return lambda frame: frame.filter(expression)


@processor_maker(Deduplicate)
def deduplicate(spec: Deduplicate, _: Environment) -> Process[Any]:
    """Keep the first of equal rows."""
    return lambda frame: frame.unique(spec.subset, keep="first", maintain_order=True)


@processor_maker(SchemaTransform)
def schema_transform(spec: SchemaTransform, _: Environment) -> Process[Any]:
    """Change types and names, and add columns of templates."""
    casts = [pl.col(name).cast(dtype) for name, dtype in spec.cast.items()]
    compiled = spec.compiled()
    requires = tuple(dict.fromkeys(name for each in spec.templates() for name in each.requires))

    def transform(frame: Any) -> Any:
        frame = frame.with_columns(casts).rename(dict(spec.rename))
        if not compiled:
            return frame
        # What a structure of templates gives has no type before it is computed, so a lazy frame is collected here.
        frame = frame.lazy().collect()
        rows = [_fill(compiled, values) for values in _rows(frame, requires)]
        # By pyarrow: polars leaves out what the first rows of a struct did not have.
        made = {name: pl.from_arrow(pa.array([row[name] for row in rows])) for name in compiled}
        added = pl.DataFrame({name: _series(name, values) for name, values in made.items()})
        return frame.with_columns(added) if spec.keep_others else added

    return transform


def _series(name: str, values: Any) -> pl.Series:
    assert isinstance(values, pl.Series)
    return values.alias(name)


def _rows(frame: pl.DataFrame, requires: Sequence[str]) -> list[dict[str, Any]]:
    return frame.select(requires).to_dicts() if requires else [{} for _ in range(frame.height)]


def _fill(structure: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(structure, Template):
        return structure.render(values)
    if isinstance(structure, Condition):
        return structure.evaluate(values)
    if isinstance(structure, dict):
        return {name: _fill(each, values) for name, each in structure.items()}
    if isinstance(structure, list):
        return [_fill(each, values) for each in structure]
    return structure


def _row_wise(requires: Sequence[str], decide: Callable[[Mapping[str, Any]], Any], dtype: Any) -> pl.Expr:
    """An expression, for lazy frames too, that asks a function about each row."""
    if not requires:
        return pl.lit(decide({}), dtype=dtype)

    def decide_all(rows: pl.Series) -> pl.Series:
        return pl.Series([decide(row) for row in rows.to_list()], dtype=dtype)

    return pl.struct(list(requires)).map_batches(decide_all, return_dtype=dtype, is_elementwise=True)
