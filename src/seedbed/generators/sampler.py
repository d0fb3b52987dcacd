"""Samplers of categories, identifiers and times."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ..errors import ConfigError, Permanent
from ..recipe.samplers import UNITS, UUID, Category, Choices, Datetime, Reference, Subcategory, Timedelta
from .blocks import permute32
from .drawing import Draw, sampler_column
from .registry import Environment, maker

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from .column import Column

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@maker(Category)
def make_category(spec: Category, environment: Environment) -> Column:
    """A column of one of several values, perhaps by case."""
    cases = spec.cases()
    if isinstance(cases, Choices):
        only = cases
        dtype = _dtype(spec.name, only.values)

        def choose(draw: Draw) -> list[Any]:
            return _pick(only, draw.uniform())

        return sampler_column(spec, environment, choose, references={}, dtype=dtype)

    default = spec.otherwise()
    assert spec.given is not None
    reference = Reference(spec.given)
    by_case, everything = cases, [*cases.values(), *([default] if default else [])]
    by_text = {_text(case): choices for case, choices in cases.items()}
    dtype = _dtype(spec.name, [value for choices in everything for value in choices.values])

    def choose_by_case(draw: Draw) -> list[Any]:
        uniform = draw.uniform()
        rows_of: dict[Any, list[int]] = {}
        for row, case in enumerate(draw.given["given"].to_list()):
            try:
                rows_of.setdefault(case, []).append(row)
            except TypeError:  # not hashable
                raise draw.failure("given", reference, f"holds {case!r}, which cannot be a case") from None
        values: list[Any] = [None] * len(uniform)
        for case, rows in rows_of.items():
            choices = by_case.get(case) or by_text.get(_text(case), default)
            if choices is None:
                known = ", ".join(repr(each) for each in by_case)
                raise Permanent(
                    f"column {draw.name!r}: no values are given for {reference.column} = {case!r}; "
                    f"the cases are {known}; a default would cover the others"
                )
            for row, value in zip(rows, _pick(choices, uniform[rows]), strict=True):
                values[row] = value
        return values

    return sampler_column(spec, environment, choose_by_case, references={"given": reference}, dtype=dtype)


@maker(Subcategory)
def make_subcategory(spec: Subcategory, environment: Environment) -> Column:
    """A column of values that depend on a category."""
    return make_category(spec.as_category(), environment)


def _text(case: object) -> str:
    # Files have no keys but text: the case True of a boolean column is "true" or "True" there.
    text = str(case)
    return text.lower() if text in ("True", "False") else text


def _pick(choices: Choices, uniform: NDArray[np.float64]) -> list[Any]:
    values = choices.values
    if choices.weights is None:
        chosen = np.floor(uniform * len(values)).astype(np.int64)
    else:
        shares = np.cumsum(np.array(choices.weights, dtype=np.float64))
        chosen = np.searchsorted(shares / shares[-1], uniform, side="right")
    return list(map(values.__getitem__, chosen.tolist()))


def _dtype(name: str, values: Iterable[Any]) -> Any:
    known = [value for value in values if value is not None]
    if not known:
        return None
    kinds = {type(value) for value in known}
    if kinds == {int, float}:
        return pl.Float64
    if kinds == {int} and any(not -(2**63) <= value < 2**63 for value in known):
        raise ConfigError(f"column {name!r}: values has whole numbers that 64 bits do not hold")
    if len(kinds) == 1:
        try:
            return pl.Series(known, strict=True).dtype
        except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
            raise ConfigError(f"column {name!r}: values that no one type holds: {error}") from error
    names = " and ".join(sorted(kind.__name__ for kind in kinds))
    raise ConfigError(f"column {name!r}: values of {names} cannot be in one column")


@maker(UUID)
def make_uuid(spec: UUID, environment: Environment) -> Column:
    """A column of identifiers."""
    case = str.upper if spec.uppercase else str

    def identify(draw: Draw) -> list[str]:
        if spec.short:
            assert isinstance(draw.rows, range)
            keys = draw.stream.bits(0).random_raw(8).tolist()
            numbers = permute32(np.arange(draw.rows.start, draw.rows.stop, dtype=np.uint64), keys)
            digits = case(numbers.astype(">u4").tobytes().hex())
            return [spec.prefix + digits[at : at + 8] for at in range(0, len(digits), 8)]
        words = draw.stream.words(draw.rows, 2)
        words[:, 0] = (words[:, 0] & np.uint64(0xFFFFFFFFFFFF0FFF)) | np.uint64(0x4000)
        words[:, 1] = (words[:, 1] & np.uint64(0x3FFFFFFFFFFFFFFF)) | np.uint64(0x8000000000000000)
        digits = case(words.astype(">u8").tobytes().hex())
        return [
            f"{spec.prefix}{digits[at : at + 8]}-{digits[at + 8 : at + 12]}-{digits[at + 12 : at + 16]}"
            f"-{digits[at + 16 : at + 20]}-{digits[at + 20 : at + 32]}"
            for at in range(0, len(digits), 32)
        ]

    return sampler_column(spec, environment, identify, references={}, dtype=pl.String)


def whole_steps(low: Any, high: Any, uniform: NDArray[np.float64]) -> NDArray[np.int64]:
    """A whole number from `low` to `high`, both included, for each row; the bounds are whole, alone or one a row."""
    first, last = np.asarray(low, dtype=np.int64), np.asarray(high, dtype=np.int64)
    steps: NDArray[np.int64] = np.minimum(first + np.floor(uniform * (last - first + 1)).astype(np.int64), last)
    return steps


@maker(Datetime)
def make_datetime(spec: Datetime, environment: Environment) -> Column:
    """A column of instants, dates or formatted text."""
    references = spec.references()
    unit = UNITS[spec.unit]

    def instant(draw: Draw) -> pl.Series:
        (start, zone), (end, end_zone) = (_instants(draw, name, getattr(spec, name)) for name in ("start", "end"))
        if zone != end_zone:
            raise Permanent(f"column {draw.name!r}: one of start and end has a time zone and the other has none")
        early = np.asarray(end >= start)
        if not early.all():
            raise Permanent(f"column {draw.name!r}: start is after end in {int((~early).sum())} rows")
        steps = whole_steps(0, (end - start) // unit, draw.uniform())
        values = pl.Series((start + steps * unit).astype(np.int64)).cast(pl.Datetime("us", zone))
        if spec.as_date:
            return values.dt.date()
        return values if spec.format is None else values.dt.strftime(spec.format)

    dtype: Any
    if spec.as_date:
        dtype = pl.Date
    elif spec.format is not None:
        dtype = pl.String
    elif isinstance(spec.start, Reference) or isinstance(spec.end, Reference):
        dtype = None  # the time zone is the other column's
    else:
        dtype = pl.Datetime("us", None if spec.start.tzinfo is None else "UTC")
    return sampler_column(spec, environment, instant, references=references, dtype=dtype)


def _instants(draw: Draw, parameter: str, constant: Any) -> tuple[Any, str | None]:
    """A parameter as microseconds since 1970 and its zone, which is UTC or none."""
    series = draw.given.get(parameter)
    if series is None:
        aware = constant.tzinfo is not None
        since = (constant if aware else constant.replace(tzinfo=UTC)) - _EPOCH
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds, "UTC" if aware else None
    if series.dtype != pl.Date and not isinstance(series.dtype, pl.Datetime):
        raise draw.failure(parameter, constant, f"holds {series.dtype}, not dates or datetimes")
    zone = "UTC" if isinstance(series.dtype, pl.Datetime) and series.dtype.time_zone is not None else None
    return series.cast(pl.Datetime("us", zone)).cast(pl.Int64).to_numpy(), zone


@maker(Timedelta)
def make_timedelta(spec: Timedelta, environment: Environment) -> Column:
    """A column of spans of time, or of instants so much after those of another column."""
    references: Mapping[str, Reference] = spec.references()
    unit = UNITS[spec.unit]

    def span(draw: Draw) -> pl.Series:
        low, high = np.ceil(draw.numbers("low", spec.low)), np.floor(draw.numbers("high", spec.high))
        if not np.all(low <= high):
            raise Permanent(f"column {draw.name!r}: low is above high in {int(np.sum(low > high))} rows")
        spans = whole_steps(low, high, draw.uniform()) * unit
        if spec.of is None:
            return pl.Series(spans.astype(np.int64)).cast(pl.Duration("us"))
        since, zone = _instants(draw, "of", references["of"])
        return pl.Series((since + spans).astype(np.int64)).cast(pl.Datetime("us", zone))

    # With `of`, whether there is a time zone is known when the other column is.
    dtype = pl.Duration("us") if spec.of is None else None
    return sampler_column(spec, environment, span, references=references, dtype=dtype)
