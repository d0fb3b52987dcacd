"""What all samplers share: a column made from scratch, or, where a parameter is another column, one made of a frame."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import polars as pl

from ..errors import Permanent
from ..graph import Kind
from .blocks import Stream
from .column import Column

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..recipe.samplers import Reference
    from ..recipe.spec import ColumnSpec
    from .context import CellContext
    from .registry import Environment

Rows = range | Sequence[tuple[int, int]]


@attrs.frozen(kw_only=True, eq=False)
class Draw:
    """What one call of a sampler has: its rows, their random words, and what other columns say of these rows.

    `given` has a series without nulls for each parameter that is a reference.
    """

    name: str
    stream: Stream
    rows: Rows
    given: Mapping[str, pl.Series] = attrs.field(factory=dict)

    def uniform(self) -> NDArray[np.float64]:
        """A number above 0 and below 1 for each row."""
        return self.stream.uniforms(self.rows)[:, 0]

    def numbers(self, parameter: str, constant: Any) -> Any:
        """A parameter as a number, or as an array of one number for each row if another column says it."""
        series = self.given.get(parameter)
        if series is None:
            return float(constant)
        if not series.dtype.is_numeric() and series.dtype != pl.Boolean:
            raise self.failure(parameter, constant, f"holds {series.dtype}, not numbers")
        values = series.cast(pl.Float64).to_numpy()
        if not np.isfinite(values).all():
            raise self.failure(parameter, constant, "holds a number that is not finite")
        return values

    def check(self, parameter: str, constant: Any, fits: NDArray[np.bool_] | bool, wanted: str) -> None:
        """Refuse the values of another column that a parameter cannot have; constants were checked in the spec."""
        if parameter in self.given and not np.all(fits):
            bad = self.given[parameter].to_list()[int(np.argmin(fits))]
            raise self.failure(parameter, constant, f"holds {bad!r}, which is not {wanted}")

    def failure(self, parameter: str, reference: Reference, problem: str) -> Permanent:
        """What is wrong with a column that a parameter refers to."""
        return Permanent(f"column {self.name!r}: {parameter} is taken from {reference.column!r}, which {problem}")


Sample = Callable[[Draw], Any]


def sampler_column(
    spec: ColumnSpec,
    environment: Environment,
    sample: Sample,
    *,
    references: Mapping[str, Reference],
    dtype: Any,
) -> Column:
    """The column that a sampler fills; `sample` gives a value for each row of its draw, in order.

    Where a reference is null the value is null, and `sample` does not see that row.
    """
    stream = Stream(environment.seed, spec.name)
    common: dict[str, Any] = {
        "timeout": spec.timeout,
        "dtype": dtype if spec.dtype is None else spec.dtype,
    }
    if not references:

        def from_scratch(rows: range) -> Any:
            return sample(Draw(name=spec.name, stream=stream, rows=rows))

        return Column(spec.name, from_scratch, kind=Kind.FROM_SCRATCH, **common)

    def transform(frame: pl.DataFrame, context: CellContext) -> Any:
        given = {name: _look_up(spec.name, frame, reference) for name, reference in references.items()}
        known = ~np.logical_or.reduce([series.is_null().to_numpy() for series in given.values()])
        if not known.any():
            return [None] * frame.height
        if known.all():
            return sample(Draw(name=spec.name, stream=stream, rows=context.rows, given=given))
        at = np.flatnonzero(known).tolist()
        rows = [context.rows[index] for index in at]
        given = {name: series.gather(at) for name, series in given.items()}
        values: list[Any] = [None] * frame.height
        found = sample(Draw(name=spec.name, stream=stream, rows=rows, given=given))
        for index, value in zip(at, found if isinstance(found, list) else found.to_list(), strict=True):
            values[index] = value
        return values

    requires = tuple(dict.fromkeys(reference.root for reference in references.values()))
    return Column(spec.name, transform, kind=Kind.FULL_COLUMN, requires=requires, **common)


def _look_up(name: str, frame: pl.DataFrame, reference: Reference) -> pl.Series:
    series = frame[reference.root]
    for field in reference.fields:
        if series.dtype == pl.Null:
            return series
        if not isinstance(series.dtype, pl.Struct):
            raise Permanent(f"column {name!r} refers to {reference.column!r}, but {series.name!r} is not structured")
        known = [each.name for each in series.dtype.fields]
        if field not in known:
            raise Permanent(f"column {name!r} refers to {reference.column!r}, but there is no {field!r} among {known}")
        series = series.struct.field(field)
    return series
