"""Columns that are drawn: the same values for the same seed, whatever the size of the row groups.

Where a number (or a date) is wanted, `{"column": "x"}` takes it from another column, row by row; a dot reaches into a
structured value, as in `{"column": "person.age"}`. A row where that is null gets null.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timezone
from typing import Any, ClassVar

import attrs

from ..errors import ConfigError
from .spec import ColumnSpec

UNITS: Mapping[str, int] = {
    "day": 86_400_000_000,
    "hour": 3_600_000_000,
    "minute": 60_000_000,
    "second": 1_000_000,
    "millisecond": 1_000,
    "microsecond": 1,
}
"""Microseconds of each unit of time."""
_SHORT_UNITS = {
    "D": "day",
    "d": "day",
    "h": "hour",
    "m": "minute",
    "s": "second",
    "ms": "millisecond",
    "us": "microsecond",
}

LARGEST_COUNT = 1_000_000_000
"""What `n` of a binomial and the mean of a Poisson may be at most; above it a gaussian is as good."""


@attrs.frozen
class Reference:
    """A value that is taken from another column of the same row; a dot reaches into a structured value."""

    column: str

    @property
    def root(self) -> str:
        """The column that it needs."""
        return self.column.partition(".")[0]

    @property
    def fields(self) -> tuple[str, ...]:
        """The way from that column's value to the one that is meant."""
        return tuple(self.column.split(".")[1:])


def _referring(value: Any) -> Any:
    if isinstance(value, Mapping) and set(value) == {"column"} and isinstance(value["column"], str):
        return Reference(value["column"])
    return value


def _fail(spec: ColumnSpec, field: str, value: object, wanted: str) -> ConfigError:
    return ConfigError(f"column {spec.name!r}: {field} must be {wanted}, not {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


Validator = Callable[[Any, Any, Any], None]


def _number(wanted: str = "a number", accept: Callable[[float], bool] = lambda _: True) -> Validator:
    def check(spec: ColumnSpec, attribute: attrs.Attribute[Any], value: Any) -> None:
        if not isinstance(value, Reference) and not (_is_number(value) and accept(value)):
            raise _fail(spec, attribute.name, value, f'{wanted} or {{"column": …}}')

    return check


def _whole(wanted: str, accept: Callable[[int], bool], *, or_reference: bool = False) -> Validator:
    def check(spec: ColumnSpec, attribute: attrs.Attribute[Any], value: Any) -> None:
        if or_reference and isinstance(value, Reference):
            return
        if not (_is_whole(value) and accept(value)):
            raise _fail(spec, attribute.name, value, wanted + (' or {"column": …}' if or_reference else ""))

    return check


def _column_path(spec: ColumnSpec, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise _fail(spec, attribute.name, value, "the name of a column")


def _text(spec: ColumnSpec, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not isinstance(value, str):
        raise _fail(spec, attribute.name, value, "text")


def _flag(spec: ColumnSpec, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not isinstance(value, bool):
        raise _fail(spec, attribute.name, value, "true or false")


_optional = attrs.validators.optional
_decimals = _optional(_whole("a whole number from 0 to 15", lambda value: 0 <= value <= 15))


_any_number = _number()
_any_whole = _whole("a whole number", lambda _: True, or_reference=True)
_spread = _number("a number, 0 or more,", lambda value: value >= 0)
_probability = _number("a number from 0 to 1", lambda value: 0 <= value <= 1)
_trials = _whole(
    f"a whole number from 0 to {LARGEST_COUNT}", lambda value: 0 <= value <= LARGEST_COUNT, or_reference=True
)
_expected = _number(f"a number from 0 to {LARGEST_COUNT}", lambda value: 0 <= value <= LARGEST_COUNT)


def _check_order(spec: ColumnSpec, low: Any, high: Any, names: str = "low and high") -> None:
    if _is_number(low) and _is_number(high) and low > high:
        raise ConfigError(f"column {spec.name!r}: {names} are in the wrong order: {low!r} is above {high!r}")


@attrs.frozen
class Sampler(ColumnSpec):
    """Base of the specs below."""

    def references(self) -> dict[str, Reference]:
        """The parameters that are taken from other columns, by name."""
        values = ((field.name, getattr(self, field.name)) for field in attrs.fields(type(self)))
        return {name: value for name, value in values if isinstance(value, Reference)}


@attrs.frozen
class Choices:
    """Values to choose from, and the share of each; the shares need not sum to anything."""

    values: tuple[Any, ...]
    weights: tuple[float, ...] | None = None


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _choices(spec: ColumnSpec, where: str, values: Any, weights: Any) -> Choices:
    if not _is_list(values) or not values:
        raise ConfigError(f"column {spec.name!r}: {where} must be a list of at least one value, not {values!r}")
    if weights is None:
        return Choices(tuple(values))
    if not _is_list(weights) or not all(_is_number(weight) and weight >= 0 for weight in weights):
        raise ConfigError(f"column {spec.name!r}: weights of {where} must be numbers, 0 or more, not {weights!r}")
    if len(weights) != len(values):
        raise ConfigError(f"column {spec.name!r}: {where} has {len(values)} values, but {len(weights)} weights")
    if not sum(weights) > 0:
        raise ConfigError(f"column {spec.name!r}: the weights of {where} are all 0, so nothing can be chosen")
    return Choices(tuple(values), tuple(weights))


def _cases(spec: ColumnSpec, values: Any, weights: Any) -> dict[Any, Choices]:
    if not isinstance(values, Mapping) or not values:
        raise ConfigError(
            f"column {spec.name!r}: values must be a mapping from each case to its list of values, not {values!r}"
        )
    weights = {} if weights is None else weights
    if not isinstance(weights, Mapping):
        raise ConfigError(f"column {spec.name!r}: weights must be a mapping from cases to lists, not {weights!r}")
    unknown = [case for case in weights if case not in values]
    if unknown:
        raise ConfigError(f"column {spec.name!r}: weights are given for case {unknown[0]!r}, which has no values")
    return {case: _choices(spec, f"values of {case!r}", each, weights.get(case)) for case, each in values.items()}


@attrs.frozen
class Category(Sampler):
    """One of `values`, each as often as its weight says (weights need not sum to 1; without them all are alike).

    With `given`, another column's value says which list to choose from: `values` (and `weights`) map each case to its
    list, and `default` is the list for all other cases. Without a default a value that is no case is an error; null
    gives null.
    """

    type: ClassVar[str] = "category"

    values: Any = attrs.field(kw_only=True)
    weights: Any = attrs.field(default=None, kw_only=True)
    given: str | None = attrs.field(default=None, kw_only=True, validator=_optional(_column_path))
    default: Any = attrs.field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        self.cases()
        self.otherwise()

    def cases(self) -> dict[Any, Choices] | Choices:
        """The choices for each case, or the only ones there are."""
        if self.given is not None:
            return _cases(self, self.values, self.weights)
        if isinstance(self.values, Mapping):
            raise ConfigError(f'column {self.name!r}: values by case need given="…", the column that says which case')
        return _choices(self, "values", self.values, self.weights)

    def otherwise(self) -> Choices | None:
        """The choices where no case fits, if there are any."""
        if self.default is None:
            return None
        if self.given is None:
            raise ConfigError(f"column {self.name!r}: default is for values by case; without given there are none")
        return _choices(self, "default", self.default, None)


@attrs.frozen
class Subcategory(Sampler):
    """A value that depends on the value of a category column: `values` maps each category to the list to choose from.

    The same as a `Category` with `given`.
    """

    type: ClassVar[str] = "subcategory"

    category: str = attrs.field(kw_only=True, validator=_column_path)
    values: Any = attrs.field(kw_only=True)
    weights: Any = attrs.field(default=None, kw_only=True)
    default: Any = attrs.field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        self.as_category()

    def as_category(self) -> Category:
        """The category column that this is."""
        common = {field.name: getattr(self, field.name) for field in attrs.fields(ColumnSpec)}
        return Category(**common, given=self.category, values=self.values, weights=self.weights, default=self.default)


@attrs.frozen
class Uniform(Sampler):
    """A number from `low` to `high`, all equally likely.

    With `decimals` every number of so many decimals within the bounds is equally likely, the bounds included;
    `decimals=0` gives whole numbers.
    """

    type: ClassVar[str] = "uniform"

    low: float | Reference = attrs.field(default=0.0, converter=_referring, validator=_any_number, kw_only=True)
    high: float | Reference = attrs.field(default=1.0, converter=_referring, validator=_any_number, kw_only=True)
    decimals: int | None = attrs.field(default=None, kw_only=True, validator=_decimals)

    def __attrs_post_init__(self) -> None:
        _check_order(self, self.low, self.high)
        if self.decimals is not None and not self.references():
            scale = 10**self.decimals
            low, high = float(self.low) * scale, float(self.high) * scale  # type: ignore[arg-type]
            if math.ceil(low - GRID_SLACK) > math.floor(high + GRID_SLACK):
                raise ConfigError(
                    f"column {self.name!r}: no number of {self.decimals} decimals lies between low and high, "
                    f"{self.low!r} and {self.high!r}"
                )


GRID_SLACK = 1e-6
"""How far, in steps, a bound may miss the numbers of so many decimals and still be one of them: 0.07 * 100 is not 7."""


@attrs.frozen
class Gaussian(Sampler):
    """A normally distributed number; what falls outside of `low` and `high` is set to that bound.

    `decimals=0` gives whole numbers.
    """

    type: ClassVar[str] = "gaussian"

    mean: float | Reference = attrs.field(default=0.0, converter=_referring, validator=_any_number, kw_only=True)
    std: float | Reference = attrs.field(default=1.0, converter=_referring, validator=_spread, kw_only=True)
    low: float | Reference | None = attrs.field(
        default=None, converter=_referring, validator=_optional(_any_number), kw_only=True
    )
    high: float | Reference | None = attrs.field(
        default=None, converter=_referring, validator=_optional(_any_number), kw_only=True
    )
    decimals: int | None = attrs.field(default=None, kw_only=True, validator=_decimals)

    def __attrs_post_init__(self) -> None:
        _check_order(self, self.low, self.high)


@attrs.frozen
class Bernoulli(Sampler):
    """True with probability `p`."""

    type: ClassVar[str] = "bernoulli"

    p: float | Reference = attrs.field(default=0.5, converter=_referring, validator=_probability, kw_only=True)


@attrs.frozen
class Binomial(Sampler):
    """How many of `n` trials succeed, each with probability `p`."""

    type: ClassVar[str] = "binomial"

    n: int | Reference = attrs.field(converter=_referring, validator=_trials, kw_only=True)
    p: float | Reference = attrs.field(default=0.5, converter=_referring, validator=_probability, kw_only=True)


@attrs.frozen
class Poisson(Sampler):
    """How many events happen where `mean` are expected."""

    type: ClassVar[str] = "poisson"

    mean: float | Reference = attrs.field(converter=_referring, validator=_expected, kw_only=True)


@attrs.frozen
class UUID(Sampler):
    """A random-looking identifier, the same for the same seed and row: version 4 in shape, or 8 hex digits.

    `short=True` gives the 8 digits; up to 2³² rows no two of them are alike. `prefix` goes in front of either.
    """

    type: ClassVar[str] = "uuid"

    prefix: str = attrs.field(default="", kw_only=True, validator=_text)
    short: bool = attrs.field(default=False, kw_only=True, validator=_flag)
    uppercase: bool = attrs.field(default=False, kw_only=True, validator=_flag)


def _instant(value: Any) -> Any:
    """A date, datetime or ISO text as a datetime; what is neither stays as it is for the validator to refuse."""
    value = _referring(value)
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


def _check_instant(spec: ColumnSpec, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not isinstance(value, datetime | Reference):
        raise _fail(spec, attribute.name, value, 'a date, a datetime, ISO text of one or {"column": …}')


def _unit(value: Any) -> Any:
    return _SHORT_UNITS.get(value, value) if isinstance(value, str) else value


def _check_unit(spec: ColumnSpec, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value not in UNITS:
        raise _fail(spec, attribute.name, value, f"one of {', '.join(UNITS)} (or {', '.join(_SHORT_UNITS)})")


@attrs.frozen
class Datetime(Sampler):
    """An instant from `start` to `end`, both included, in whole steps of `unit` counted from `start`.

    Dates and datetimes may be ISO text. With a time zone (both or neither) values are in UTC. `as_date=True` gives
    dates, and `format` (as of strftime) text.
    """

    type: ClassVar[str] = "datetime"

    start: datetime | Reference = attrs.field(kw_only=True, converter=_instant, validator=_check_instant)
    end: datetime | Reference = attrs.field(kw_only=True, converter=_instant, validator=_check_instant)
    unit: str = attrs.field(default="second", kw_only=True, converter=_unit, validator=_check_unit)
    as_date: bool = attrs.field(default=False, kw_only=True, validator=_flag)
    format: str | None = attrs.field(default=None, kw_only=True, validator=_optional(_text))

    def __attrs_post_init__(self) -> None:
        if self.as_date and self.format is not None:
            raise ConfigError(f"column {self.name!r}: as_date and format exclude each other")
        if isinstance(self.start, Reference) or isinstance(self.end, Reference):
            return
        if (self.start.tzinfo is None) != (self.end.tzinfo is None):
            raise ConfigError(f"column {self.name!r}: start and end must both have a time zone, or neither")
        if self.start > self.end:
            raise ConfigError(f"column {self.name!r}: start {self.start} is after end {self.end}")


@attrs.frozen
class Timedelta(Sampler):
    """A span of time of `low` to `high` whole units, both included.

    With `of`, the name of a column of dates or datetimes, it is added to that column's value: an instant so much later
    (or, below 0, earlier).
    """

    type: ClassVar[str] = "timedelta"

    low: int | Reference = attrs.field(default=0, converter=_referring, validator=_any_whole, kw_only=True)
    high: int | Reference = attrs.field(converter=_referring, validator=_any_whole, kw_only=True)
    unit: str = attrs.field(default="day", kw_only=True, converter=_unit, validator=_check_unit)
    of: str | None = attrs.field(default=None, kw_only=True, validator=_optional(_column_path))

    def __attrs_post_init__(self) -> None:
        _check_order(self, self.low, self.high)

    def references(self) -> dict[str, Reference]:
        """The parameters that are taken from other columns, `of` among them."""
        found = super().references()
        return found if self.of is None else {**found, "of": Reference(self.of)}


def _locales(value: Any) -> Any:
    return (value,) if isinstance(value, str) else tuple(value) if _is_list(value) else value


def _pair(value: Any) -> Any:
    return tuple(value) if _is_list(value) else value


def _date(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError:
            return value
    return value.date() if isinstance(value, datetime) else value


@attrs.frozen
class Person(Sampler):
    """Somebody who does not exist: names, sex, age, birth date, address, e-mail and phone, as one structured value.

    Needs Faker (`seedbed[person]`). `locale` is one or several (each person is from one of them); `age` is the youngest
    and the oldest age; `sex` is "female" or "male", both if not given. Ages are those on the day `as_of`, which stays,
    so that the same seed makes the same people tomorrow.
    """

    type: ClassVar[str] = "person"

    locale: tuple[str, ...] = attrs.field(default=("en_US",), kw_only=True, converter=_locales)
    age: tuple[int, int] = attrs.field(default=(18, 90), kw_only=True, converter=_pair)
    sex: str | None = attrs.field(default=None, kw_only=True)
    as_of: date = attrs.field(default=date(2025, 1, 1), kw_only=True, converter=_date)

    def __attrs_post_init__(self) -> None:
        if not (isinstance(self.locale, tuple) and self.locale and all(isinstance(one, str) for one in self.locale)):
            raise _fail(self, "locale", self.locale, 'a locale such as "fr_FR", or a list of them')
        ages = self.age
        if not (isinstance(ages, tuple) and len(ages) == 2 and all(_is_whole(one) and 0 <= one <= 130 for one in ages)):
            raise _fail(self, "age", ages, "the youngest and the oldest age, two whole numbers from 0 to 130")
        _check_order(self, *ages, names="the two ages")
        if self.sex not in (None, "female", "male"):
            raise _fail(self, "sex", self.sex, '"female" or "male", or nothing for both')
        if not isinstance(self.as_of, date):
            raise _fail(self, "as_of", self.as_of, "a date")


def _parameters(value: Any) -> Any:
    return {name: _referring(each) for name, each in value.items()} if isinstance(value, Mapping) else value


@attrs.frozen
class Scipy(Sampler):
    """A value of any distribution of scipy.stats: `dist="beta", params={"a": 2, "b": 5}`; needs `seedbed[scipy]`.

    What falls outside of `low` and `high` is set to that bound; `decimals=0` gives whole numbers. Distributions of
    several dimensions give lists, and take constant parameters only.
    """

    type: ClassVar[str] = "scipy"

    dist: str = attrs.field(kw_only=True, validator=_text)
    params: Mapping[str, Any] = attrs.field(factory=dict, kw_only=True, converter=_parameters)
    low: float | Reference | None = attrs.field(
        default=None, converter=_referring, validator=_optional(_any_number), kw_only=True
    )
    high: float | Reference | None = attrs.field(
        default=None, converter=_referring, validator=_optional(_any_number), kw_only=True
    )
    decimals: int | None = attrs.field(default=None, kw_only=True, validator=_decimals)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.params, Mapping):
            raise _fail(self, "params", self.params, "a mapping from parameter names to numbers")
        _check_order(self, self.low, self.high)

    def references(self) -> dict[str, Reference]:
        """The parameters that are taken from other columns; those of the distribution are named `params.…`."""
        inner = {f"params.{name}": each for name, each in self.params.items() if isinstance(each, Reference)}
        return {**super().references(), **inner}
