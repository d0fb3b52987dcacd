"""Samplers of numbers: each value is a function of its row's own random words and parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import numpy as np
import polars as pl

from .. import checks
from ..errors import ConfigError, Permanent
from ..graph import nearest
from .code import import_extra
from .fields import Reference, as_reference
from .sampler import (
    BLOCK,
    Draw,
    Numbers,
    Sampler,
    any_number,
    blocks_of,
    check_order,
    whole_steps,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .base import Column
    from .spec import Environment


# The largest `n` of a binomial and mean of a Poisson; above it a gaussian is as good.
LARGEST_COUNT = 1_000_000_000
_spread = Numbers("a number, 0 or more,", lambda value: value >= 0)
_probability = Numbers("a number from 0 to 1", lambda value: (value >= 0) & (value <= 1))
_expected = Numbers(f"a number from 0 to {LARGEST_COUNT}", lambda value: (value >= 0) & (value <= LARGEST_COUNT))
_trials = Numbers(
    f"a whole number from 0 to {LARGEST_COUNT}",
    lambda value: (value >= 0) & (value <= LARGEST_COUNT) & (value == np.floor(value)),
    is_whole=True,
)
_decimals = checks.optional(
    checks.expect("a whole number from 0 to 15", lambda value: checks.is_whole(value) and 0 <= value <= 15)
)
_optional_number = checks.optional(any_number)
# How far, in steps, a bound may miss a number of the given decimals and still count as it: 0.07 * 100 is not 7.
GRID_SLACK = 1e-6


@attrs.frozen(kw_only=True)
class _Bounded(Sampler):
    """A number within bounds, rounded."""

    low: float | Reference | None = attrs.field(default=None, converter=as_reference, validator=_optional_number)
    """Values below it are set to it."""
    high: float | Reference | None = attrs.field(default=None, converter=as_reference, validator=_optional_number)
    """Values above it are set to it."""
    decimals: int | None = attrs.field(default=None, validator=_decimals)
    """Round to so many decimals; 0 gives whole numbers."""

    def __attrs_post_init__(self) -> None:
        check_order(self, self.low, self.high)

    def sample_dtype(self) -> Any:
        return _dtype(self.decimals)

    def fit(self, draw: Draw, values: NDArray[np.float64], decimals: int | None) -> pl.Series:
        """Apply the bounds, then round."""
        if self.low is not None:
            values = np.maximum(values, draw.numbers("low", self.low))
        if self.high is not None:
            values = np.minimum(values, draw.numbers("high", self.high))
        if decimals is None:
            return pl.Series(values)
        rounded = np.round(values, decimals)
        return pl.Series(rounded.astype(np.int64) if decimals == 0 else rounded)


@attrs.frozen(kw_only=True)
class Uniform(_Bounded):
    """A number from `low` to `high`, all equally likely.

    With `decimals` every number of that many decimals within the bounds is equally likely, the bounds included.
    """

    type: ClassVar[str] = "uniform"

    low: float | Reference = attrs.field(default=0.0, converter=as_reference, validator=any_number)
    """The lowest value."""
    high: float | Reference = attrs.field(default=1.0, converter=as_reference, validator=any_number)
    """The highest value."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.decimals is not None and not self.references():
            self._grid(self.low, self.high, self.decimals, ConfigError)

    def sample(self, draw: Draw) -> pl.Series:
        low, high = draw.bounds(self.low, self.high)
        if self.decimals is None:
            return pl.Series(low + draw.uniform() * (high - low))
        steps = whole_steps(*self._grid(low, high, self.decimals, Permanent), draw.uniform())
        return pl.Series(steps if self.decimals == 0 else steps / 10**self.decimals)

    def _grid(self, low: Any, high: Any, decimals: int, error: Callable[[str], Exception]) -> tuple[Any, Any]:
        """The first and last number of this many decimals within bounds, in units of the last decimal."""
        scale = 10**decimals
        first, last = np.ceil(low * scale - GRID_SLACK), np.floor(high * scale + GRID_SLACK)
        if not np.all(first <= last):
            where = f"{low!r} and {high!r}" if np.ndim(first) == 0 else f"in {int(np.sum(first > last))} rows"
            raise error(f"{self.error_prefix}no number of {decimals} decimals lies between low and high, {where}")
        return first, last


@attrs.frozen(kw_only=True)
class Gaussian(_Bounded):
    """A normally distributed number; a value outside of `low` and `high` is set to that bound."""

    type: ClassVar[str] = "gaussian"

    mean: float | Reference = attrs.field(default=0.0, converter=as_reference, validator=any_number)
    """The mean."""
    std: float | Reference = attrs.field(default=1.0, converter=as_reference, validator=_spread)
    """The standard deviation."""

    def sample(self, draw: Draw) -> pl.Series:
        mean, std = draw.numbers("mean", self.mean), draw.numbers("std", self.std, _spread)
        one, other = draw.stream.uniforms(draw.rows, 2).T
        standard = np.sqrt(-2.0 * np.log(one)) * np.cos(2.0 * np.pi * other)
        return self.fit(draw, mean + std * standard, self.decimals)


@attrs.frozen(kw_only=True)
class Bernoulli(Sampler):
    """True with probability `p`."""

    type: ClassVar[str] = "bernoulli"

    p: float | Reference = attrs.field(default=0.5, converter=as_reference, validator=_probability)
    """The probability of true."""

    def sample_dtype(self) -> Any:
        return pl.Boolean

    def sample(self, draw: Draw) -> pl.Series:
        return pl.Series(draw.uniform() < draw.numbers("p", self.p, _probability))


@attrs.frozen(kw_only=True)
class Binomial(Sampler):
    """The number of successes in `n` trials, each with probability `p`."""

    type: ClassVar[str] = "binomial"

    n: int | Reference = attrs.field(converter=as_reference, validator=_trials)
    """The number of trials."""
    p: float | Reference = attrs.field(default=0.5, converter=as_reference, validator=_probability)
    """The probability that one trial succeeds."""

    def sample_dtype(self) -> Any:
        return pl.Int64

    def sample(self, draw: Draw) -> pl.Series:
        n, p = draw.numbers("n", self.n, _trials), draw.numbers("p", self.p, _probability)
        return _counts(_binomial_table, draw.uniform(), n, p)


@attrs.frozen(kw_only=True)
class Poisson(Sampler):
    """The number of events if `mean` are expected."""

    type: ClassVar[str] = "poisson"

    mean: float | Reference = attrs.field(converter=as_reference, validator=_expected)
    """How many events are expected."""

    def sample_dtype(self) -> Any:
        return pl.Int64

    def sample(self, draw: Draw) -> pl.Series:
        return _counts(_poisson_table, draw.uniform(), draw.numbers("mean", self.mean, _expected))


def _parameters(value: Any) -> Any:
    return {name: as_reference(each) for name, each in value.items()} if isinstance(value, Mapping) else value


@attrs.frozen(kw_only=True)
class Scipy(_Bounded):
    """A value of any distribution of scipy.stats; needs `seedbed[scipy]`.

    Distributions of several dimensions give lists, and take constant parameters only.
    """

    type: ClassVar[str] = "scipy"

    dist: str = attrs.field(validator=checks.text)
    """The name of the distribution in scipy.stats."""
    params: Mapping[str, Any] = attrs.field(factory=dict, converter=_parameters, validator=checks.mapping)
    """Its parameters by name, as scipy calls them."""

    def references(self) -> dict[str, Reference]:
        """The parameters that are taken from other columns; those of the distribution are named `params.…`."""
        inner = {f"params.{name}": each for name, each in self.params.items() if isinstance(each, Reference)}
        return {**super().references(), **inner}

    def to_column(self, environment: Environment) -> Column:
        stats: Any = import_extra("scipy.stats", extra="scipy", column=self.name)
        distribution = getattr(stats, self.dist, None)
        if isinstance(distribution, stats.rv_continuous | stats.rv_discrete):
            return self._one_dimensional(environment, distribution, isinstance(distribution, stats.rv_discrete))
        if callable(getattr(distribution, "rvs", None)):
            return self._many_dimensional(environment, distribution)
        known = [name for name in dir(stats) if callable(getattr(getattr(stats, name), "rvs", None))]
        hint = nearest(self.dist, known)
        raise ConfigError(f"{self.error_prefix}scipy.stats has no distribution {self.dist!r}{hint}")

    def _one_dimensional(self, environment: Environment, distribution: Any, is_discrete: bool) -> Column:
        decimals = 0 if is_discrete else self.decimals

        def quantile(uniform: Any, params: Mapping[str, Any]) -> NDArray[np.float64]:
            return np.asarray(distribution.ppf(uniform, **params), dtype=np.float64)

        def sample(draw: Draw) -> pl.Series:
            params = {name: draw.numbers(f"params.{name}", value) for name, value in self.params.items()}
            values = quantile(draw.uniform(), params)
            if np.isnan(values).any():
                raise Permanent(f"{self.error_prefix}parameters of {self.dist} are outside their range in some rows")
            return self.fit(draw, values, decimals)

        for name, value in self.params.items():
            if not isinstance(value, Reference) and not checks.is_number(value):
                problem = f'params.{name} must be a number or {{"column": …}}, not {value!r}'
                raise ConfigError(f"{self.error_prefix}{problem}")
        constants = {name: 0.5 if isinstance(value, Reference) else value for name, value in self.params.items()}
        try:
            middle = quantile(0.5, constants)
        except (TypeError, ValueError) as error:
            shapes = ", ".join(filter(None, [distribution.shapes, "loc", "" if is_discrete else "scale"]))
            raise self._unfit(f"{error} (it takes {shapes})") from error
        if np.isnan(middle) and constants == self.params:
            raise self._unfit("they are outside its range")
        return self.draw_column(environment, sample, _dtype(decimals))

    def _many_dimensional(self, environment: Environment, distribution: Any) -> Column:
        if self.references() or self.low is not None or self.high is not None or self.decimals is not None:
            raise ConfigError(
                f"{self.error_prefix}{self.dist} has several dimensions: its params are constant, "
                "and it takes no low, high or decimals"
            )

        def block(bits: np.random.BitGenerator) -> NDArray[Any]:
            return np.asarray(distribution.rvs(**self.params, size=BLOCK, random_state=np.random.Generator(bits)))

        def sample(draw: Draw) -> list[Any]:
            values: list[Any] = []
            for (number, copy), _, inside in blocks_of(draw.rows):
                values += block(draw.stream.bits(number, copy))[inside].tolist()
            return values

        try:
            example = block(np.random.Philox(key=0))
        except (TypeError, ValueError) as error:
            raise self._unfit(str(error)) from error
        dtype: Any = pl.Int64 if np.issubdtype(example.dtype, np.integer) else pl.Float64
        for _ in example.shape[1:]:
            dtype = pl.List(dtype)
        return self.draw_column(environment, sample, dtype)

    def _unfit(self, problem: str) -> ConfigError:
        return ConfigError(f"{self.error_prefix}params {dict(self.params)!r} do not fit {self.dist}: {problem}")


def _dtype(decimals: int | None) -> Any:
    return pl.Int64 if decimals == 0 else pl.Float64


Table = tuple[int, "NDArray[np.float64]"]


def _counts(table: Callable[..., Table], uniform: NDArray[np.float64], *parameters: Any) -> pl.Series:
    """Counts by inversion: `table` gives the first count that matters and the cumulative shares from there on."""
    if all(isinstance(each, float) for each in parameters):
        first, shares = table(*parameters)
        return pl.Series(first + np.searchsorted(shares, uniform))
    spread = np.stack(np.broadcast_arrays(*parameters), axis=1)
    distinct, belongs = np.unique(spread, axis=0, return_inverse=True)
    # Rows of equal parameters become adjacent: one search per table, independent of the number of rows.
    order = np.argsort(belongs.reshape(-1), kind="stable")
    ends = np.cumsum(np.bincount(belongs.reshape(-1)))
    counts = np.empty(len(uniform), dtype=np.int64)
    for rows, each in zip(np.split(order, ends[:-1]), distinct.tolist(), strict=True):
        first, shares = table(*each)
        counts[rows] = first + np.searchsorted(shares, uniform[rows])
    return pl.Series(counts)


def _window(mean: float, std: float, last: float) -> NDArray[np.float64]:
    # Twelve deviations omit less than the smallest uniform number can reach; 40 is for the tails of tiny means.
    first = max(0.0, np.floor(mean - 12 * std - 40))
    return np.arange(first, min(last, np.ceil(mean + 12 * std + 40)) + 1)


def _shares(counts: NDArray[np.float64], log_ratios: NDArray[np.float64]) -> Table:
    """Cumulative shares from the logarithms of the ratio of each count's probability to that of the one before."""
    logs = np.concatenate(([0.0], np.cumsum(log_ratios)))
    cumulative = np.cumsum(np.exp(logs - logs.max()))
    return int(counts[0]), cumulative / cumulative[-1]


@functools.lru_cache(maxsize=16)
def _poisson_table(mean: float) -> Table:
    if mean == 0:
        return 0, np.ones(1)
    counts = _window(mean, mean**0.5, np.inf)
    return _shares(counts, np.log(mean) - np.log(counts[1:]))


@functools.lru_cache(maxsize=16)
def _binomial_table(n: float, p: float) -> Table:
    if p in (0, 1) or n == 0:
        return int(n * p), np.ones(1)
    counts = _window(n * p, (n * p * (1 - p)) ** 0.5, n)
    return _shares(counts, np.log(n - counts[:-1]) - np.log(counts[1:]) + np.log(p) - np.log1p(-p))
