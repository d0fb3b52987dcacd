"""Calls samplers as the engine does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import polars as pl

from seedbed.columns.spec import Environment, make_column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seedbed.columns.spec import ColumnSpec


@attrs.frozen
class Rows:
    """The part of a context that samplers read."""

    rows: Sequence[tuple[int, int]]


def drawn(spec: ColumnSpec, rows: range | int, seed: int = 7) -> list[Any]:
    """The values of a from-scratch column for these rows."""
    column = make_column(spec, Environment(seed=seed))
    assert column.kind.value == "from_scratch"
    assert column.problem is None
    assert column.call is not None
    return listed(column.call.function(rows if isinstance(rows, range) else range(rows)))


def transformed(
    spec: ColumnSpec, frame: dict[str, list[Any]], rows: Sequence[tuple[int, int]] | None = None, seed: int = 7
) -> list[Any]:
    """The values of a full column for a frame, by default of the first rows."""
    column = make_column(spec, Environment(seed=seed))
    assert column.kind.value == "full_column"
    assert column.problem is None
    assert column.call is not None
    data = pl.DataFrame(frame).select(column.requires)
    context = Rows([(row, 0) for row in range(data.height)] if rows is None else rows)
    return listed(column.call.function(data, **{column.call.context_keyword or "": context}))


def listed(values: Any) -> list[Any]:
    """The values of a whole-column function as a list."""
    return values if isinstance(values, list) else list(values.to_list())
