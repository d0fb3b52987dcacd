"""Samplers of numbers: each value is a function of its row's own random words and parameters."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ..errors import ConfigError, Permanent
from ..graph import nearest
from ..recipe.samplers import (
    GRID_SLACK,
    LARGEST_COUNT,
    Bernoulli,
    Binomial,
    Gaussian,
    Poisson,
    Reference,
    Scipy,
    Uniform,
)
from .blocks import BLOCK, blocks_of
from .drawing import Draw, sampler_column
from .extras import import_extra
from .registry import Environment, maker
from .sampler import whole_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from .column import Column


def _rounded(values: NDArray[np.float64], decimals: int | None) -> pl.Series:
    if decimals is None:
        return pl.Series(values)
    rounded = np.round(values, decimals)
    return pl.Series(rounded.astype(np.int64) if decimals == 0 else rounded)


def _number_dtype(decimals: int | None) -> Any:
    return pl.Int64 if decimals == 0 else pl.Float64


def _clipped(draw: Draw, spec: Gaussian | Scipy, values: NDArray[np.float64]) -> NDArray[np.float64]:
    if spec.low is not None:
        values = np.maximum(values, draw.numbers("low", spec.low))
    if spec.high is not None:
        values = np.minimum(values, draw.numbers("high", spec.high))
    return values


@maker(Uniform)
def make_uniform(spec: Uniform, environment: Environment) -> Column:
    """A column of numbers that are all equally likely."""

    def uniform(draw: Draw) -> pl.Series:
        low, high = draw.numbers("low", spec.low), draw.numbers("high", spec.high)
        if not np.all(low <= high):
            raise Permanent(f"column {draw.name!r}: low is above high in {int(np.sum(low > high))} rows")
        if spec.decimals is None:
            return pl.Series(low + draw.uniform() * (high - low))
        scale = 10**spec.decimals
        first, last = np.ceil(low * scale - GRID_SLACK), np.floor(high * scale + GRID_SLACK)
        if not np.all(first <= last):
            raise Permanent(
                f"column {draw.name!r}: no number of {spec.decimals} decimals lies between low and high "
                f"in {int(np.sum(first > last))} rows"
            )
        steps = whole_steps(first, last, draw.uniform())
        return pl.Series(steps.astype(np.int64) if spec.decimals == 0 else steps / scale)

    dtype = _number_dtype(spec.decimals)
    return sampler_column(spec, environment, uniform, references=spec.references(), dtype=dtype)


@maker(Gaussian)
def make_gaussian(spec: Gaussian, environment: Environment) -> Column:
    """A column of normally distributed numbers."""

    def gaussian(draw: Draw) -> pl.Series:
        mean, std = draw.numbers("mean", spec.mean), draw.numbers("std", spec.std)
        draw.check("std", spec.std, std >= 0, "a number, 0 or more")
        one, other = draw.stream.uniforms(draw.rows, 2).T
        standard = np.sqrt(-2.0 * np.log(one)) * np.cos(2.0 * np.pi * other)
        return _rounded(_clipped(draw, spec, mean + std * standard), spec.decimals)

    dtype = _number_dtype(spec.decimals)
    return sampler_column(spec, environment, gaussian, references=spec.references(), dtype=dtype)


@maker(Bernoulli)
def make_bernoulli(spec: Bernoulli, environment: Environment) -> Column:
    """A column of true and false."""

    def bernoulli(draw: Draw) -> pl.Series:
        p = draw.numbers("p", spec.p)
        draw.check("p", spec.p, (p >= 0) & (p <= 1), "a number from 0 to 1")
        return pl.Series(draw.uniform() < p)

    return sampler_column(spec, environment, bernoulli, references=spec.references(), dtype=pl.Boolean)


@maker(Binomial)
def make_binomial(spec: Binomial, environment: Environment) -> Column:
    """A column of numbers of successes."""

    def binomial(draw: Draw) -> pl.Series:
        n, p = draw.numbers("n", spec.n), draw.numbers("p", spec.p)
        whole = (n >= 0) & (n <= LARGEST_COUNT) & (n == np.floor(n))
        draw.check("n", spec.n, whole, f"a whole number from 0 to {LARGEST_COUNT}")
        draw.check("p", spec.p, (p >= 0) & (p <= 1), "a number from 0 to 1")
        return _counts(_binomial_table, draw.uniform(), n, p)

    return sampler_column(spec, environment, binomial, references=spec.references(), dtype=pl.Int64)


@maker(Poisson)
def make_poisson(spec: Poisson, environment: Environment) -> Column:
    """A column of numbers of events."""

    def poisson(draw: Draw) -> pl.Series:
        mean = draw.numbers("mean", spec.mean)
        draw.check("mean", spec.mean, (mean >= 0) & (mean <= LARGEST_COUNT), f"a number from 0 to {LARGEST_COUNT}")
        return _counts(_poisson_table, draw.uniform(), mean)

    return sampler_column(spec, environment, poisson, references=spec.references(), dtype=pl.Int64)


Table = tuple[int, "NDArray[np.float64]"]


def _counts(table: Callable[..., Table], uniform: NDArray[np.float64], *parameters: Any) -> pl.Series:
    """Counts by inversion: `table` gives the first count that matters and the cumulative shares from there on."""
    if all(isinstance(each, float) for each in parameters):
        first, shares = table(*parameters)
        return pl.Series(first + np.searchsorted(shares, uniform))
    spread = np.stack(np.broadcast_arrays(*parameters), axis=1)
    distinct, belongs = np.unique(spread, axis=0, return_inverse=True)
    # Rows of the same parameters next to each other: one look into each table, however many there are.
    order = np.argsort(belongs.reshape(-1), kind="stable")
    ends = np.cumsum(np.bincount(belongs.reshape(-1)))
    counts = np.empty(len(uniform), dtype=np.int64)
    for rows, each in zip(np.split(order, ends[:-1]), distinct.tolist(), strict=True):
        first, shares = table(*each)
        counts[rows] = first + np.searchsorted(shares, uniform[rows])
    return pl.Series(counts)


def _window(mean: float, std: float, last: float) -> NDArray[np.float64]:
    # Twelve deviations leave out less than the smallest uniform number can reach; 40 is for the tails of tiny means.
    first = max(0.0, np.floor(mean - 12 * std - 40))
    return np.arange(first, min(last, np.ceil(mean + 12 * std + 40)) + 1)


def _shares(counts: NDArray[np.float64], log_ratios: NDArray[np.float64]) -> Table:
    """Cumulative shares from the logarithms of how much likelier each count is than the one before it."""
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


@maker(Scipy)
def make_scipy(spec: Scipy, environment: Environment) -> Column:
    """A column of values of a distribution of scipy."""
    stats: Any = import_extra("scipy.stats", extra="scipy", column=spec.name)
    distribution = getattr(stats, spec.dist, None)
    if isinstance(distribution, stats.rv_continuous | stats.rv_discrete):
        is_discrete = isinstance(distribution, stats.rv_discrete)
        return _one_dimensional(spec, environment, distribution, is_discrete=is_discrete)
    if callable(getattr(distribution, "rvs", None)):
        return _many_dimensional(spec, environment, distribution)
    known = [name for name in dir(stats) if callable(getattr(getattr(stats, name), "rvs", None))]
    raise ConfigError(f"column {spec.name!r}: scipy.stats has no distribution {spec.dist!r}{nearest(spec.dist, known)}")


def _one_dimensional(spec: Scipy, environment: Environment, distribution: Any, *, is_discrete: bool) -> Column:
    whole = is_discrete or spec.decimals == 0

    def quantile(uniform: Any, params: Mapping[str, Any]) -> NDArray[np.float64]:
        return np.asarray(distribution.ppf(uniform, **params), dtype=np.float64)

    def sample(draw: Draw) -> pl.Series:
        params = {name: draw.numbers(f"params.{name}", value) for name, value in spec.params.items()}
        values = quantile(draw.uniform(), params)
        if np.isnan(values).any():
            raise Permanent(f"column {draw.name!r}: parameters of {spec.dist} are outside their range in some rows")
        return _rounded(_clipped(draw, spec, values), 0 if whole else spec.decimals)

    for name, value in spec.params.items():
        if isinstance(value, bool) or not isinstance(value, int | float | Reference):
            raise ConfigError(f'column {spec.name!r}: params.{name} must be a number or {{"column": …}}, not {value!r}')
    constants = {name: 0.5 if isinstance(value, Reference) else value for name, value in spec.params.items()}
    try:
        middle = quantile(0.5, constants)
    except (TypeError, ValueError) as error:
        shapes = ", ".join(filter(None, [distribution.shapes, "loc", "" if is_discrete else "scale"]))
        raise ConfigError(
            f"column {spec.name!r}: params {dict(spec.params)!r} do not fit {spec.dist}, which takes {shapes}: {error}"
        ) from error
    references = spec.references()
    if np.isnan(middle) and not any(name.startswith("params.") for name in references):
        raise ConfigError(f"column {spec.name!r}: params {dict(spec.params)!r} are outside the range of {spec.dist}")
    return sampler_column(spec, environment, sample, references=references, dtype=pl.Int64 if whole else pl.Float64)


def _many_dimensional(spec: Scipy, environment: Environment, distribution: Any) -> Column:
    if spec.references() or spec.low is not None or spec.high is not None or spec.decimals is not None:
        raise ConfigError(
            f"column {spec.name!r}: {spec.dist} has several dimensions: its params are constant, "
            "and it takes no low, high or decimals"
        )

    def block(bits: np.random.BitGenerator) -> NDArray[Any]:
        return np.asarray(distribution.rvs(**spec.params, size=BLOCK, random_state=np.random.Generator(bits)))

    def sample(draw: Draw) -> list[Any]:
        values: list[Any] = []
        for (number, copy), _, inside in blocks_of(draw.rows):
            values += block(draw.stream.bits(number, copy))[inside].tolist()
        return values

    try:
        shape = block(np.random.Philox(key=0))
    except (TypeError, ValueError) as error:
        problem = f"column {spec.name!r}: params {dict(spec.params)!r} do not fit {spec.dist}: {error}"
        raise ConfigError(problem) from error
    dtype: Any = pl.Int64 if np.issubdtype(shape.dtype, np.integer) else pl.Float64
    for _ in shape.shape[1:]:
        dtype = pl.List(dtype)
    return sampler_column(spec, environment, sample, references={}, dtype=dtype)
