"""Samplers: their base class, and those of categories, identifiers and times.

Each column has its own random stream, keyed by the recipe's seed and its name. A block of 1,024 rows, aligned on the
number of the row in the whole dataset, is one jump in that stream (Philox is counter-based, so a jump is free); rows
that a processor copied from a row have blocks beside it. Only raw words of the bit generator are used, never the
distributions of numpy: their streams may change between versions and depend on how many values are drawn at once.

Where a number (or a date) is expected, `{"column": "x"}` takes it from another column, row by row; a dot reaches into a
structured value, as in `{"column": "person.age"}`. A row where that is null gets null.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import attrs
import numpy as np
import polars as pl

from .. import checks
from ..errors import ConfigError, Permanent
from ..graph import Kind
from .base import CellContext, Column
from .fields import Reference, as_reference
from .spec import ColumnSpec, Environment

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK = 1024
# Row numbers, or pairs of source row and copy in any order.
Rows = range | Sequence[tuple[int, int]]


class Stream:
    """The random words of one column."""

    def __init__(self, seed: int, column: str) -> None:
        digest = hashlib.blake2b(f"{seed}\0{column}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
        self._key = np.frombuffer(digest, dtype="<u8").astype(np.uint64)

    def bits(self, block: int, copy: int = 0) -> np.random.Philox:
        """The bit generator of one block of rows."""
        # The lowest two words count within the block and never reach the third.
        counter = np.array([0, 0, block, copy], dtype=np.uint64)
        return np.random.Philox(key=self._key, counter=counter)

    def words(self, rows: Rows, width: int = 1) -> NDArray[np.uint64]:
        """`width` words for each row."""
        words = np.empty((len(rows), width), dtype=np.uint64)
        for (block, copy), at, inside in blocks_of(rows):
            words[at] = self.bits(block, copy).random_raw((BLOCK, width))[inside]
        return words

    def uniforms(self, rows: Rows, width: int = 1) -> NDArray[np.float64]:
        """`width` numbers for each row, above 0 and below 1."""
        # 52 bits and a half: with 53 the largest would round to 1.
        return ((self.words(rows, width) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def blocks_of(rows: Rows) -> Iterator[tuple[tuple[int, int], slice | NDArray[np.intp], slice | NDArray[np.int64]]]:
    """For each block with some of the rows: its number and copy, their positions among the rows and in the block."""
    if isinstance(rows, range):
        for block in range(rows.start // BLOCK, -(-rows.stop // BLOCK) if rows else 0):
            first, last = max(rows.start, block * BLOCK), min(rows.stop, (block + 1) * BLOCK)
            inside = slice(first % BLOCK, first % BLOCK + last - first)
            yield (block, 0), slice(first - rows.start, last - rows.start), inside
    elif rows:
        numbers, copies = np.array(rows, dtype=np.int64).T
        found, belongs = np.unique(np.stack((numbers // BLOCK, copies), axis=1), axis=0, return_inverse=True)
        for index, (block, copy) in enumerate(found.tolist()):
            at = np.flatnonzero(belongs.reshape(-1) == index)
            yield (block, copy), at, numbers[at] % BLOCK


@attrs.frozen
class Numbers:
    """The numbers that a parameter accepts: a validator of constants, applied to the values of other columns too.

    `accepts` takes a number or an array. `is_whole` is for constants; a column may have whole numbers as floats.
    """

    expected: str = "a number"
    accepts: Callable[[Any], Any] = lambda _: True
    is_whole: bool = attrs.field(default=False, kw_only=True)

    def __call__(self, spec: ColumnSpec, attribute: attrs.Attribute[Any], value: object) -> None:
        is_valid = checks.is_whole if self.is_whole else checks.is_number
        if not isinstance(value, Reference) and not (is_valid(value) and self.accepts(value)):
            message = f'{spec.error_prefix}{attribute.name} must be {self.expected} or {{"column": …}}, not {value!r}'
            raise ConfigError(message, field=attribute.name)


any_number = Numbers()
any_whole = Numbers("a whole number", is_whole=True)
is_text = checks.expect("text", lambda value: isinstance(value, str))


def check_order(spec: ColumnSpec, low: Any, high: Any, names: str = "low and high") -> None:
    """Reject bounds in the wrong order."""
    if checks.is_number(low) and checks.is_number(high) and low > high:
        raise ConfigError(f"{spec.error_prefix}{names} are in the wrong order: {low!r} is above {high!r}")


def is_list(value: object) -> bool:
    """True for a sequence that is not text."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


@attrs.frozen(kw_only=True, eq=False)
class Draw:
    """One call of a sampler: its rows, their random words, and the values that other columns have in these rows.

    `given` has a series without nulls for each parameter that is a reference.
    """

    name: str
    stream: Stream
    rows: Rows
    given: Mapping[str, pl.Series] = attrs.field(factory=dict)

    def uniform(self) -> NDArray[np.float64]:
        """A number above 0 and below 1 for each row."""
        return self.stream.uniforms(self.rows)[:, 0]

    def numbers(self, parameter: str, value: Any, rule: Numbers = any_number) -> Any:
        """A parameter as a number, or as an array of one number for each row if it is a reference."""
        series = self.given.get(parameter)
        if series is None:
            return float(value)
        if not series.dtype.is_numeric() and series.dtype != pl.Boolean:
            raise self.failure(parameter, value, f"holds {series.dtype}, not numbers")
        numbers = series.cast(pl.Float64).to_numpy()
        if not np.isfinite(numbers).all():
            raise self.failure(parameter, value, "holds a number that is not finite")
        fits = rule.accepts(numbers)
        if not np.all(fits):
            found = series.to_list()[int(np.argmin(fits))]
            raise self.failure(parameter, value, f"holds {found!r}, which is not {rule.expected.rstrip(',')}")
        return numbers

    def bounds(self, low: Any, high: Any) -> tuple[Any, Any]:
        """The parameters `low` and `high`."""
        low, high = self.numbers("low", low), self.numbers("high", high)
        if not np.all(low <= high):
            raise Permanent(f"column {self.name!r}: low is above high in {int(np.sum(low > high))} rows")
        return low, high

    def failure(self, parameter: str, reference: Reference, problem: str) -> Permanent:
        """The error for values of another column that a parameter cannot have."""
        return Permanent(f"column {self.name!r}: {parameter} is taken from {reference.column!r}, which {problem}")


@attrs.frozen
class Sampler(ColumnSpec):
    """Base of the specs of samplers, which define `sample` and `sample_dtype`, or `to_column`."""

    def references(self) -> dict[str, Reference]:
        """The parameters that are taken from other columns, by name."""
        values = ((field.name, getattr(self, field.name)) for field in attrs.fields(type(self)))
        return {name: value for name, value in values if isinstance(value, Reference)}

    def sample(self, draw: Draw) -> Any:
        """A value for each row of the draw, in order."""
        raise NotImplementedError

    def sample_dtype(self) -> Any:
        """The type of its values; None if it depends on another column."""
        raise NotImplementedError

    def to_column(self, environment: Environment) -> Column:
        """A column from scratch, or a full column if parameters are taken from other columns."""
        return self.draw_column(environment, self.sample, self.sample_dtype())

    def draw_column(self, environment: Environment, sample: Callable[[Draw], Any], dtype: Any) -> Column:
        """The column that `sample` fills; rows where a reference is null are not sampled, and their values are null."""
        draw = functools.partial(Draw, name=self.name, stream=Stream(environment.seed, self.name))
        references = self.references()
        if not references:

            def from_scratch(rows: Rows) -> Any:
                return sample(draw(rows=rows))

            return Column(self.name, from_scratch, kind=Kind.FROM_SCRATCH, dtype=dtype, takes_pairs=True)

        def transform(frame: pl.DataFrame, context: CellContext) -> Any:
            given = {name: reference.look_up(self.name, frame) for name, reference in references.items()}
            known = ~np.logical_or.reduce([series.is_null().to_numpy() for series in given.values()])
            if known.all() and frame.height:
                return sample(draw(rows=context.rows, given=given))
            values: list[Any] = [None] * frame.height
            if at := np.flatnonzero(known).tolist():
                rows = [context.rows[index] for index in at]
                found = sample(draw(rows=rows, given={name: series.gather(at) for name, series in given.items()}))
                for index, value in zip(at, found, strict=True):
                    values[index] = value
            return values

        requires = [reference.root for reference in references.values()]
        return Column(self.name, transform, kind=Kind.FULL_COLUMN, requires=requires, dtype=dtype)


def whole_steps(low: Any, high: Any, uniform: NDArray[np.float64]) -> NDArray[np.int64]:
    """A whole number from `low` to `high`, both included, for each row; the bounds are whole numbers or arrays."""
    first, last = np.asarray(low, dtype=np.int64), np.asarray(high, dtype=np.int64)
    steps: NDArray[np.int64] = np.minimum(first + np.floor(uniform * (last - first + 1)).astype(np.int64), last)
    return steps


# Microseconds of each unit of time.
UNITS: Mapping[str, int] = {
    "day": 86_400_000_000,
    "hour": 3_600_000_000,
    "minute": 60_000_000,
    "second": 1_000_000,
    "millisecond": 1_000,
    "microsecond": 1,
}
_SHORT_UNITS = dict(zip(("D", "d", "h", "m", "s", "ms", "us"), ("day", *UNITS), strict=True))


@attrs.frozen
class Choices:
    """Values to choose from, and the weight of each, of any sum."""

    values: tuple[Any, ...]
    weights: tuple[float, ...] | None = None

    def pick(self, uniform: NDArray[np.float64]) -> list[Any]:
        """A value for each number above 0 and below 1."""
        if self.weights is None:
            chosen = np.floor(uniform * len(self.values)).astype(np.int64)
        else:
            shares = np.cumsum(np.array(self.weights, dtype=np.float64))
            chosen = np.searchsorted(shares / shares[-1], uniform, side="right")
        return list(map(self.values.__getitem__, chosen.tolist()))


def _choices(prefix: str, where: str, values: Any, weights: Any) -> Choices:
    if not is_list(values) or not values:
        raise ConfigError(f"{prefix}{where} must be a list of at least one value, not {values!r}")
    if weights is None:
        return Choices(tuple(values))
    if not is_list(weights) or not all(checks.is_number(weight) and weight >= 0 for weight in weights):
        raise ConfigError(f"{prefix}weights of {where} must be numbers, 0 or more, not {weights!r}")
    if len(weights) != len(values):
        raise ConfigError(f"{prefix}{where} has {len(values)} values, but {len(weights)} weights")
    if not sum(weights) > 0:
        raise ConfigError(f"{prefix}the weights of {where} are all 0, so nothing can be chosen")
    return Choices(tuple(values), tuple(weights))


@attrs.frozen(kw_only=True)
class Category(Sampler):
    """One of a list, in proportion to its weight.

    With `given`, another column's value determines the list: `values` (and `weights`) map each of its values to a list.
    Where that column is null, the value is null.
    """

    type: ClassVar[str] = "category"

    values: Annotated[Any, "a list, or a mapping of lists"]
    """The values to choose from; with `given` a mapping from the values of that column to such lists."""
    weights: Annotated[Any, "a list of numbers, or a mapping of such lists"] = None
    """A weight for each value, of any sum, in the form of `values`; without them all values are equally likely."""
    given: str | None = attrs.field(default=None, validator=checks.optional(checks.name))
    """The column whose value determines the list."""
    default: Annotated[Any, "a list"] = None
    """The list where the value of that column has none in `values`; without it such a row fails."""

    def __attrs_post_init__(self) -> None:
        self.cases()

    def cases(self) -> tuple[dict[Any, Choices], Choices | None]:
        """The choices of each case, and the default choices; without `given` all rows have the default."""
        prefix = self.error_prefix
        if self.given is None:
            if isinstance(self.values, Mapping):
                raise ConfigError(f'{prefix}values by case need given="…", the column that determines the case')
            if self.default is not None:
                raise ConfigError(f"{prefix}default is for values by case; without given there are none")
            return {}, _choices(prefix, "values", self.values, self.weights)
        if not isinstance(self.values, Mapping) or not self.values:
            raise ConfigError(f"{prefix}values must be a mapping from each case to a list, not {self.values!r}")
        weights = {} if self.weights is None else self.weights
        if not isinstance(weights, Mapping):
            raise ConfigError(f"{prefix}weights must be a mapping from cases to lists, not {weights!r}")
        if unknown := [case for case in weights if case not in self.values]:
            raise ConfigError(f"{prefix}weights are given for case {unknown[0]!r}, which has no values")
        cases = {
            case: _choices(prefix, f"values of {case!r}", values, weights.get(case))
            for case, values in self.values.items()
        }
        return cases, None if self.default is None else _choices(prefix, "default", self.default, None)

    def references(self) -> dict[str, Reference]:
        return {} if self.given is None else {"given": Reference(self.given)}

    def to_column(self, environment: Environment) -> Column:
        cases, default = self.cases()
        everything = [*cases.values(), *([default] if default else [])]
        dtype = _dtype(self.error_prefix, [value for choices in everything for value in choices.values])
        by_text = {_text(case): choices for case, choices in cases.items()}

        def choose(draw: Draw) -> list[Any]:
            uniform = draw.uniform()
            if not cases:
                assert default is not None
                return default.pick(uniform)
            rows_of: dict[Any, list[int]] = {}
            for row, case in enumerate(draw.given["given"].to_list()):
                try:
                    rows_of.setdefault(case, []).append(row)
                except TypeError:  # not hashable
                    problem = f"holds {case!r}, which cannot be a case"
                    raise draw.failure("given", self.references()["given"], problem) from None
            values: list[Any] = [None] * len(uniform)
            for case, rows in rows_of.items():
                choices = cases.get(case) or by_text.get(_text(case), default)
                if choices is None:
                    known = ", ".join(map(repr, cases))
                    raise Permanent(
                        f"{self.error_prefix}no values are given for {self.given} = {case!r}; "
                        f"the cases are {known}; a default would cover the others"
                    )
                for row, value in zip(rows, choices.pick(uniform[rows]), strict=True):
                    values[row] = value
            return values

        return self.draw_column(environment, choose, dtype)


@attrs.frozen(kw_only=True)
class Subcategory(Category):
    """One of the list that another column's value determines: a `Category` with `given`."""

    type: ClassVar[str] = "subcategory"

    given: str = attrs.field(alias="category", validator=checks.name)
    """The column whose value determines the list."""


@attrs.frozen(kw_only=True)
class UUID(Sampler):
    """A pseudo-random identifier in the form of version 4, the same for the same seed and row."""

    type: ClassVar[str] = "uuid"

    prefix: str = attrs.field(default="", validator=is_text)
    """Text in front of it."""
    short: bool = attrs.field(default=False, validator=checks.flag)
    """8 hex digits, unique up to 2³² rows, in place of the 36 characters of a UUID."""
    uppercase: bool = attrs.field(default=False, validator=checks.flag)
    """Upper-case digits."""

    def sample_dtype(self) -> Any:
        return pl.String

    def sample(self, draw: Draw) -> list[str]:
        case = str.upper if self.uppercase else str
        if self.short:
            assert isinstance(draw.rows, range)
            keys = draw.stream.bits(0).random_raw(8).tolist()
            numbers = permute32(np.arange(draw.rows.start, draw.rows.stop, dtype=np.uint64), keys)
            digits = case(numbers.astype(">u4").tobytes().hex())
            return [self.prefix + digits[at : at + 8] for at in range(0, len(digits), 8)]
        words = draw.stream.words(draw.rows, 2)
        words[:, 0] = (words[:, 0] & np.uint64(0xFFFFFFFFFFFF0FFF)) | np.uint64(0x4000)
        words[:, 1] = (words[:, 1] & np.uint64(0x3FFFFFFFFFFFFFFF)) | np.uint64(0x8000000000000000)
        digits = case(words.astype(">u8").tobytes().hex())
        return [
            f"{self.prefix}{digits[at : at + 8]}-{digits[at + 8 : at + 12]}-{digits[at + 12 : at + 16]}"
            f"-{digits[at + 16 : at + 20]}-{digits[at + 20 : at + 32]}"
            for at in range(0, len(digits), 32)
        ]


def permute32(numbers: NDArray[np.uint64], key: Sequence[int]) -> NDArray[np.uint64]:
    """A pseudo-random permutation of the 32-bit numbers: a Feistel network of one round for each key."""
    low = np.uint64(0xFFFF)
    left, right = (numbers >> np.uint64(16)) & low, numbers & low
    for each in key:
        mixed = (right + np.uint64(each & 0xFFFFFFFF)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        left, right = right, left ^ ((mixed >> np.uint64(40)) & low)
    return (left << np.uint64(16)) | right


def _instant(value: Any) -> Any:
    """A date, datetime or ISO text as a datetime; anything else is returned for the validator to reject."""
    value = as_reference(value)
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return value
    if isinstance(value, datetime):
        return value if value.utcoffset() is None else value.astimezone(timezone.utc)  # noqa: UP017
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day)  # noqa: DTZ001  a date has no zone
    return value


def _unit(value: Any) -> Any:
    return _SHORT_UNITS.get(value, value) if isinstance(value, str) else value


_check_instant = checks.expect(
    'a date, a datetime, ISO text of one or {"column": …}', lambda value: isinstance(value, datetime | Reference)
)
_check_unit = checks.expect(
    f"one of {', '.join(UNITS)} (or {', '.join(_SHORT_UNITS)})",
    lambda value: isinstance(value, str) and value in UNITS,
)


@attrs.frozen(kw_only=True)
class Datetime(Sampler):
    """An instant from `start` to `end`, both included.

    Dates and datetimes may be ISO text. With a time zone (both or neither) values are in UTC.
    """

    type: ClassVar[str] = "datetime"

    start: datetime | Reference = attrs.field(converter=_instant, validator=_check_instant)
    """The earliest instant."""
    end: datetime | Reference = attrs.field(converter=_instant, validator=_check_instant)
    """The latest instant."""
    unit: str = attrs.field(default="second", converter=_unit, validator=_check_unit)
    """Instants are whole steps of this unit from `start`."""
    as_date: bool = attrs.field(default=False, validator=checks.flag)
    """Give dates in place of datetimes."""
    format: str | None = attrs.field(default=None, validator=checks.optional(is_text))
    """Give text in this format of `strftime`, such as `%d %B %Y`."""

    def __attrs_post_init__(self) -> None:
        if self.as_date and self.format is not None:
            raise ConfigError(f"{self.error_prefix}as_date and format exclude each other")
        if isinstance(self.start, Reference) or isinstance(self.end, Reference):
            return
        if (self.start.tzinfo is None) != (self.end.tzinfo is None):
            raise ConfigError(f"{self.error_prefix}start and end must both have a time zone, or neither")
        if self.start > self.end:
            raise ConfigError(f"{self.error_prefix}start {self.start} is after end {self.end}")

    def sample_dtype(self) -> Any:
        if self.as_date:
            return pl.Date
        if self.format is not None:
            return pl.String
        if isinstance(self.start, Reference) or isinstance(self.end, Reference):
            return None  # the time zone is the other column's
        return pl.Datetime("us", None if self.start.tzinfo is None else "UTC")

    def sample(self, draw: Draw) -> pl.Series:
        (start, zone), (end, end_zone) = _instants(draw, "start", self.start), _instants(draw, "end", self.end)
        if zone != end_zone:
            raise Permanent(f"{self.error_prefix}one of start and end has a time zone and the other has none")
        late = np.asarray(start > end)
        if late.any():
            raise Permanent(f"{self.error_prefix}start is after end in {int(late.sum())} rows")
        unit = UNITS[self.unit]
        steps = whole_steps(0, (end - start) // unit, draw.uniform())
        values = pl.Series((start + steps * unit).astype(np.int64)).cast(pl.Datetime("us", zone))
        if self.as_date:
            return values.dt.date()
        return values if self.format is None else values.dt.strftime(self.format)


@attrs.frozen(kw_only=True)
class Timedelta(Sampler):
    """A span of time of `low` to `high` whole units, both included.

    With `of`, the instant that lies that span after the value of another column.
    """

    type: ClassVar[str] = "timedelta"

    low: int | Reference = attrs.field(default=0, converter=as_reference, validator=any_whole)
    """The shortest span, in units; below 0 it lies in the past."""
    high: int | Reference = attrs.field(converter=as_reference, validator=any_whole)
    """The longest span, in units."""
    unit: str = attrs.field(default="day", converter=_unit, validator=_check_unit)
    """The unit of `low` and `high`."""
    of: str | None = attrs.field(default=None, validator=checks.optional(checks.name))
    """A column of dates or datetimes that the span is added to."""

    def __attrs_post_init__(self) -> None:
        check_order(self, self.low, self.high)

    def references(self) -> dict[str, Reference]:
        found = super().references()
        return found if self.of is None else {**found, "of": Reference(self.of)}

    def sample_dtype(self) -> Any:
        # With `of`, the time zone is the other column's.
        return pl.Duration("us") if self.of is None else None

    def sample(self, draw: Draw) -> pl.Series:
        low, high = draw.bounds(self.low, self.high)
        low, high = np.ceil(low), np.floor(high)
        if not np.all(low <= high):
            raise Permanent(f"{self.error_prefix}no whole number lies between low and high in some rows")
        spans = whole_steps(low, high, draw.uniform()) * UNITS[self.unit]
        if self.of is None:
            return pl.Series(spans.astype(np.int64)).cast(pl.Duration("us"))
        since, zone = _instants(draw, "of", Reference(self.of))
        return pl.Series((since + spans).astype(np.int64)).cast(pl.Datetime("us", zone))


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _text(case: object) -> str:
    # Keys in files are text: the case True of a boolean column is "true" or "True" there.
    text = str(case)
    return text.lower() if text in ("True", "False") else text


def _dtype(prefix: str, values: Iterable[Any]) -> Any:
    known = [value for value in values if value is not None]
    if not known:
        return None
    kinds = {type(value) for value in known}
    if kinds == {int, float}:
        return pl.Float64
    if kinds == {int} and any(not -(2**63) <= value < 2**63 for value in known):
        raise ConfigError(f"{prefix}values has whole numbers that exceed 64 bits")
    if len(kinds) == 1:
        try:
            return pl.Series(known, strict=True).dtype
        except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
            raise ConfigError(f"{prefix}values have no common type: {error}") from error
    names = " and ".join(sorted(kind.__name__ for kind in kinds))
    raise ConfigError(f"{prefix}values of {names} cannot be in one column")


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
