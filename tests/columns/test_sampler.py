from __future__ import annotations

import functools
import math
import re
import uuid
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import drawn, transformed

import seedbed
from seedbed.columns.distributions import Bernoulli, Binomial, Gaussian, Poisson, Scipy, Uniform
from seedbed.columns.sampler import UUID, Category, Datetime, Sampler, Stream, Subcategory, Timedelta, permute32
from seedbed.columns.spec import Environment, make_column
from seedbed.errors import ConfigError, Permanent

if TYPE_CHECKING:
    from pathlib import Path

N = 20_000

FROM_SCRATCH = [
    Category("x", values=["a", "b", "c"]),
    Category("x", values=[1, 2, None], weights=[1, 2, 3]),
    Uniform("x", low=-1, high=3),
    Uniform("x", low=1, high=6, decimals=0),
    Gaussian("x", mean=5, std=2, low=0, decimals=2),
    Bernoulli("x", p=0.3),
    Binomial("x", n=12, p=0.4),
    Poisson("x", mean=3.5),
    UUID("x"),
    UUID("x", short=True, prefix="id-"),
    Datetime("x", start="2024-01-01", end="2024-12-31"),
    Timedelta("x", low=-3, high=3, unit="hour"),
    Scipy("x", dist="gamma", params={"a": 2.0}),
    Scipy("x", dist="geom", params={"p": 0.2}),
    Scipy("x", dist="dirichlet", params={"alpha": [1.0, 2.0, 3.0]}),
]
TRANSFORMS = [
    Category("x", given="k", values={"a": [1, 2, 3], "b": [4, 5]}, weights={"a": [3, 2, 1]}),
    Uniform("x", low={"column": "n"}, high=200),
    Gaussian("x", mean={"column": "n"}, std=1),
    Binomial("x", n={"column": "n"}, p=0.5),
    Poisson("x", mean={"column": "n"}),
    Scipy("x", dist="norm", params={"loc": {"column": "n"}}),
]


def kind(spec: Sampler) -> str:
    """Name a case by its sampler."""
    return spec.type


@pytest.mark.parametrize("spec", FROM_SCRATCH, ids=kind)
@given(data=st.data())
def test_a_value_depends_on_its_row_only(spec: Sampler, data: st.DataObject) -> None:
    """However the rows are cut into calls, and wherever a call begins, each row has the same value."""
    start = data.draw(st.integers(0, 1_100))
    cuts = sorted(data.draw(st.lists(st.integers(start, start + 1_100), max_size=3)))
    pieces = [value for low, high in pairwise([start, *cuts, start + 1_100]) for value in drawn(spec, range(low, high))]
    assert pieces == drawn(spec, range(start, start + 1_100))


FRAME: dict[str, list[Any]] = {"k": ["a", "b"] * 1_500, "n": [row % 50 for row in range(3_000)]}


@functools.cache
def whole_transform(index: int) -> list[Any]:
    """The values of all rows of the frame."""
    return transformed(TRANSFORMS[index], FRAME)


@pytest.mark.parametrize("index", range(len(TRANSFORMS)), ids=lambda index: TRANSFORMS[index].type)
@given(data=st.data())
def test_a_value_does_not_depend_on_other_rows_of_the_frame(index: int, data: st.DataObject) -> None:
    """Removing or reordering other rows of the frame does not change the value of a row."""
    spec, whole = TRANSFORMS[index], whole_transform(index)
    rows = data.draw(st.lists(st.integers(0, 2_999), unique=True, max_size=30))
    part = {name: [values[row] for row in rows] for name, values in FRAME.items()}
    assert transformed(spec, part, [(row, 0) for row in rows]) == [whole[row] for row in rows]


def test_copies_of_a_row_have_their_own_values() -> None:
    """Each row that a processor copied from a row has its own reproducible value."""
    frame = {"n": [0.0] * 4}
    spec = Gaussian("x", mean={"column": "n"})
    values = transformed(spec, frame, [(5, 0), (5, 1), (5, 2), (6, 0)])
    assert len(set(values)) == 4
    assert transformed(spec, {"n": [0.0]}, [(5, 2)]) == [values[2]]


def test_a_constant_reference_equals_a_constant() -> None:
    """A parameter from a column with one value everywhere gives the same values as that constant."""
    assert transformed(Uniform("x", high={"column": "n"}), {"n": [1.0] * 3_000}) == drawn(Uniform("x"), 3_000)


@pytest.mark.parametrize("spec", FROM_SCRATCH, ids=kind)
def test_values_depend_on_seed_and_column_name(spec: Sampler) -> None:
    """Another seed or column name gives other values; the same ones give the same values."""
    values = drawn(spec, 100)
    assert drawn(spec, 100) == values
    assert drawn(spec, 100, seed=8) != values
    assert drawn(type(spec)("y", **{name: getattr(spec, name) for name in own_fields(spec)}), 100) != values


def own_fields(spec: Sampler) -> list[str]:
    """The names of the fields that its class adds."""
    common = {"name", "skip_when", "skip_policy", "timeout", "dtype"}
    return [field for field in spec.__annotations__ if field not in common | {"type"}]


@pytest.mark.parametrize("spec", FROM_SCRATCH, ids=kind)
def test_values_have_the_declared_type(spec: Sampler) -> None:
    """A build writes values of the declared type, without a lossy cast."""
    column = make_column(spec, Environment(seed=7))
    frame = seedbed.preview([column], rows=50).to_polars()
    assert frame.schema["x"] == column.dtype
    assert frame["x"].to_list() == drawn(spec, 50)


def test_recorded_values() -> None:
    """The random stream never changes, so that old datasets can be resumed."""
    assert Stream(7, "x").words(range(1_023, 1_025)).tolist() == [[1222938780803823117], [3322414867441796408]]
    assert drawn(Category("topic", values=["tea", "bread", "rain"]), 6) == [
        "bread",
        "rain",
        "rain",
        "tea",
        "tea",
        "rain",
    ]


def test_category_follows_its_weights() -> None:
    """Shares follow the weights, which may have any sum; a value of weight 0 is never chosen."""
    counts = Counter(drawn(Category("x", values=["a", "b", "c", "d"], weights=[0, 30, 70, 0]), N))
    assert set(counts) == {"b", "c"}
    assert counts["b"] / N == pytest.approx(0.3, abs=0.015)
    even = Counter(drawn(Category("x", values=["a", "b", "c"]), N))
    assert all(count / N == pytest.approx(1 / 3, abs=0.015) for count in even.values())


def test_the_case_determines_the_list() -> None:
    """Each case has its list; the default is for all other cases, and null stays null."""
    spec = Category("city", given="country", values={"fr": ["Lyon"], "de": ["Ulm", "Jena"]}, default=["?"])
    cities = transformed(spec, {"country": ["fr", "de", None, "it", "de"] * 20})
    assert cities[0::5] == ["Lyon"] * 20
    assert set(cities[1::5]) == {"Ulm", "Jena"}
    assert cities[2::5] == [None] * 20
    assert cities[3::5] == ["?"] * 20


def test_a_missing_case_is_an_error() -> None:
    """Without a default, the message names the unknown case and the known ones."""
    spec = Subcategory("city", category="country", values={"fr": ["Lyon"], "de": ["Ulm"]})
    with pytest.raises(Permanent, match="no values are given for country = 'it'; the cases are 'fr', 'de'"):
        transformed(spec, {"country": ["fr", "it"]})
    with pytest.raises(Permanent, match="which cannot be a case"):
        transformed(spec, {"country": [["fr"]]})


@pytest.mark.parametrize("cases", [{1: ["one"], 2: ["two"]}, {"1": ["one"], "2": ["two"]}])
def test_cases_of_numbers_may_be_text(cases: dict[Any, list[str]]) -> None:
    """Keys in recipe files are always text."""
    assert transformed(Category("x", given="n", values=cases), {"n": [2, 1]}) == ["two", "one"]


@pytest.mark.parametrize("cases", [{True: [1], False: [0]}, {"true": [1], "false": [0]}, {"True": [1], "False": [0]}])
def test_cases_of_booleans_may_be_text(cases: dict[Any, list[int]]) -> None:
    """True and false are found as keys, however a file writes them."""
    assert transformed(Category("x", given="n", values=cases), {"n": [True, False]}) == [1, 0]


def test_a_case_may_be_a_field_of_a_struct() -> None:
    """A dot selects a field of a struct; a missing field is named."""
    people: dict[str, list[Any]] = {"person": [{"sex": "female"}, {"sex": "male"}]}
    spec = Category("x", given="person.sex", values={"female": ["f"], "male": ["m"]})
    assert transformed(spec, people) == ["f", "m"]
    with pytest.raises(Permanent, match=r"refers to 'person.age', but 'age' is not among \['sex'\]"):
        transformed(Category("x", given="person.age", values={1: [1]}), people)
    with pytest.raises(Permanent, match="'person' is not structured"):
        transformed(spec, {"person": ["female"]})


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (["a"], pl.String),
        ([1, 2], pl.Int64),
        ([1, 2.5], pl.Float64),
        ([True, None], pl.Boolean),
        ([date(2024, 1, 1)], pl.Date),
        ([["a"], ["b", "c"]], pl.List(pl.String)),
        ([{"a": 1}], pl.Struct({"a": pl.Int64})),
        ([None], None),
    ],
)
def test_the_type_of_a_category_is_that_of_its_values(values: list[Any], dtype: Any) -> None:
    """It is known from the values before anything is drawn."""
    assert make_column(Category("x", values=values), Environment()).dtype == dtype


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, "a"], "values of int and str"),
        ([2**70], "whole numbers that exceed 64 bits"),
        ([[1], ["a"]], "no common type"),
    ],
)
def test_values_of_no_common_type_are_rejected(values: list[Any], message: str) -> None:
    """Values that no column can hold are rejected before anything runs."""
    with pytest.raises(ConfigError, match=message):
        make_column(Category("x", values=values), Environment())


def test_uniform_fills_its_range_evenly() -> None:
    """Each eighth of the range has an eighth of the numbers."""
    values = np.array(drawn(Uniform("x", low=-2, high=6), N))
    assert values.min() >= -2
    assert values.max() <= 6
    assert np.histogram(values, bins=8)[0] / N == pytest.approx(1 / 8, abs=0.01)


def test_uniform_with_decimals_includes_its_bounds_evenly() -> None:
    """The bounds are as likely as other numbers, which rounding would not give."""
    counts = Counter(drawn(Uniform("x", low=1, high=6, decimals=0), N))
    assert set(counts) == {1, 2, 3, 4, 5, 6}
    assert all(count / N == pytest.approx(1 / 6, abs=0.015) for count in counts.values())
    assert set(drawn(Uniform("x", low=0.07, high=0.09, decimals=2), 500)) == {0.07, 0.08, 0.09}


def test_gaussian_has_mean_deviation_and_bounds() -> None:
    """Mean, deviation and shape are as specified; bounds clip."""
    values = np.array(drawn(Gaussian("x", mean=10, std=2), N))
    assert values.mean() == pytest.approx(10, abs=0.05)
    assert values.std() == pytest.approx(2, abs=0.05)
    assert (values < 10 + 2 * 1.6449).mean() == pytest.approx(0.95, abs=0.01)
    clipped = drawn(Gaussian("x", mean=0, std=5, low=-1, high=1), 1_000)
    assert min(clipped) == -1
    assert max(clipped) == 1
    assert all(isinstance(value, int) for value in drawn(Gaussian("x", decimals=0), 10))


def test_gaussian_around_another_column() -> None:
    """A parameter may be another column's value, and null there is null here."""
    values = transformed(Gaussian("x", mean={"column": "n"}, std=0.01), {"n": [1, None, 100]})
    assert values[0] == pytest.approx(1, abs=0.1)
    assert values[1] is None
    assert values[2] == pytest.approx(100, abs=0.1)
    assert transformed(Gaussian("x", mean={"column": "n"}), {"n": [None, None]}) == [None, None]


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_bernoulli_has_its_probability(p: float) -> None:
    """Probabilities of 0 and 1 are exact."""
    assert np.mean(drawn(Bernoulli("x", p=p), N)) == pytest.approx(p, abs=0.01 if 0 < p < 1 else 0)


@pytest.mark.parametrize(
    ("n", "p"), [(10, 0.3), (1, 0.5), (0, 0.5), (7, 0.0), (7, 1.0), (1_000_000, 0.001), (10**9, 0.5)]
)
def test_binomial_has_its_mean_and_deviation(n: int, p: float) -> None:
    """Mean and deviation are those of the distribution, for small and large parameters."""
    values = np.array(drawn(Binomial("x", n=n, p=p), N))
    std = math.sqrt(n * p * (1 - p))
    assert values.min() >= 0
    assert values.max() <= n
    assert values.mean() == pytest.approx(n * p, abs=4 * std / math.sqrt(N))
    assert values.std() == pytest.approx(std, rel=0.03)


@pytest.mark.parametrize("mean", [0.0, 0.01, 4.0, 800.0, 1e9])
def test_poisson_has_its_mean_and_deviation(mean: float) -> None:
    """Mean and deviation are those of the distribution, for small and large parameters."""
    values = np.array(drawn(Poisson("x", mean=mean), N))
    assert values.min() >= 0
    assert values.mean() == pytest.approx(mean, abs=4 * math.sqrt(mean / N))
    assert values.std() == pytest.approx(math.sqrt(mean), rel=0.06)


def test_counts_are_distributed_as_in_scipy() -> None:
    """The share of each count of a binomial and a Poisson is that of scipy."""
    stats = pytest.importorskip("scipy.stats")
    for values, law in [
        (drawn(Binomial("x", n=8, p=0.35), N), stats.binom(8, 0.35)),
        (drawn(Poisson("x", mean=2.5), N), stats.poisson(2.5)),
    ]:
        counts = Counter(values)
        for value in range(9):
            assert counts[value] / N == pytest.approx(law.pmf(value), abs=0.012)


def test_parameters_of_counts_may_differ_by_row() -> None:
    """Each row's count follows its own parameters."""
    values = transformed(
        Binomial("x", n={"column": "n"}, p={"column": "p"}), {"n": [0, 5, 9] * 50, "p": [0.5, 1, 0] * 50}
    )
    assert values == [0, 5, 0] * 50
    means = [float(10 * (row % 100)) for row in range(5_000)]
    counts = np.array(transformed(Poisson("x", mean={"column": "m"}), {"m": means}))
    assert np.corrcoef(counts, means)[0, 1] > 0.99


@pytest.mark.parametrize(
    ("spec", "values", "message"),
    [
        (
            Bernoulli("x", p={"column": "n"}),
            [0.5, 1.5],
            "p is taken from 'n', which holds 1.5, which is not a number from",
        ),
        (Binomial("x", n={"column": "n"}), [2.5], "holds 2.5, which is not a whole number"),
        (Poisson("x", mean={"column": "n"}), [-1], "holds -1, which is not a number from 0"),
        (Gaussian("x", std={"column": "n"}), [-1], "holds -1, which is not a number, 0 or more"),
        (Gaussian("x", mean={"column": "n"}), ["a"], "holds String, not numbers"),
        (Gaussian("x", mean={"column": "n"}), [float("nan")], "not finite"),
        (Uniform("x", low={"column": "n"}), [3], "low is above high in 1 rows"),
        (Uniform("x", low={"column": "n"}, decimals=0, high=3), [2.5, 3.5], "low is above high"),
        (Uniform("x", low={"column": "n"}, decimals=0, high=2.8), [2.5], "no number of 0 decimals"),
        (Timedelta("x", low={"column": "n"}, high=1), [3], "low is above high in 1 rows"),
        (Timedelta("x", high=1, of="n"), ["soon"], "of is taken from 'n', which holds String, not dates"),
        (Datetime("x", start={"column": "n"}, end="2024-01-01"), [date(2025, 1, 1)], "start is after end in 1 rows"),
        (Scipy("x", dist="beta", params={"a": {"column": "n"}, "b": 1}), [-1], "outside their range in some rows"),
    ],
)
def test_invalid_values_of_a_referenced_column_are_reported(spec: Sampler, values: list[Any], message: str) -> None:
    """Values from another column are checked like constants, and the message names the column."""
    with pytest.raises(Permanent, match=f"column 'x': .*{message}"):
        transformed(spec, {"n": values})


def test_uuids_are_distinct_and_of_version_4() -> None:
    """A prefix and upper case are options."""
    values = drawn(UUID("x"), N)
    assert len(set(values)) == N
    assert {uuid.UUID(value).version for value in values[:100]} == {4}
    assert {uuid.UUID(value).variant for value in values[:100]} == {uuid.RFC_4122}
    assert re.fullmatch(
        r"row-[0-9A-F]{8}(-[0-9A-F]{4}){3}-[0-9A-F]{12}", drawn(UUID("x", prefix="row-", uppercase=True), 1)[0]
    )


def test_short_uuids_are_distinct() -> None:
    """Eight random digits would collide within 100,000 rows; these do not."""
    values = drawn(UUID("x", short=True), 100_000)
    assert len(set(values)) == 100_000
    assert all(re.fullmatch("[0-9a-f]{8}", value) for value in values[:100])


@given(st.lists(st.integers(0, 2**64 - 1), min_size=8, max_size=8), st.sets(st.integers(0, 2**32 - 1), min_size=2))
def test_permute32_is_a_permutation(key: list[int], numbers: set[int]) -> None:
    """Different numbers stay different, within 32 bits, for any key."""
    permuted = permute32(np.array(sorted(numbers), dtype=np.uint64), key)
    assert len(set(permuted.tolist())) == len(numbers)
    assert int(permuted.max()) < 2**32


def test_datetimes_are_steps_of_the_unit() -> None:
    """Start and end are included; values may be dates, text or in UTC."""
    values = drawn(Datetime("x", start="2024-02-27", end="2024-03-01", unit="D"), 200)
    days = [datetime(2024, 2, 27) + timedelta(days=step) for step in range(4)]  # noqa: DTZ001
    assert sorted(set(values)) == days
    assert set(drawn(Datetime("x", start="2024-02-29", end="2024-02-29", as_date=True), 3)) == {date(2024, 2, 29)}
    assert drawn(Datetime("x", start="2024-02-29", end="2024-02-29", format="%d.%m.%Y"), 1) == ["29.02.2024"]
    aware = drawn(Datetime("x", start="1960-01-01T00:00+01:00", end="1960-01-01T00:00+01:00"), 1)
    assert aware == [datetime(1959, 12, 31, 23, tzinfo=UTC)]


def test_bounds_of_datetimes_may_be_other_columns() -> None:
    """Values lie between the bounds of their row; the time zones of the bounds must match."""
    starts = [datetime(2024, 1, day) for day in range(1, 29)]  # noqa: DTZ001
    values = transformed(Datetime("x", start={"column": "d"}, end="2024-01-31"), {"d": starts})
    assert all(start <= value <= datetime(2024, 1, 31) for start, value in zip(starts, values, strict=True))  # noqa: DTZ001
    zoned = pl.Series("d", starts).dt.replace_time_zone("Europe/Paris")
    with pytest.raises(Permanent, match="one of start and end has a time zone"):
        transformed(Datetime("x", start={"column": "d"}, end="2024-01-31"), {"d": zoned})  # type: ignore[dict-item]


def test_timedeltas_are_whole_units() -> None:
    """Low and high are included; with `of` the span is added to that column."""
    assert set(drawn(Timedelta("x", low=-1, high=1, unit="hour"), 100)) == {
        timedelta(hours=step) for step in (-1, 0, 1)
    }
    later = transformed(Timedelta("x", low=2, high=2, of="d"), {"d": [date(2024, 2, 28), None]})
    assert later == [datetime(2024, 3, 1), None]  # noqa: DTZ001


def test_scipy_distributions_are_bounded_and_rounded() -> None:
    """Discrete distributions give whole numbers, those of several dimensions lists."""
    values = np.array(drawn(Scipy("x", dist="beta", params={"a": 2, "b": 6}), N))
    assert values.mean() == pytest.approx(0.25, abs=0.01)
    assert all(isinstance(value, int) for value in drawn(Scipy("x", dist="geom", params={"p": 0.2}), 10))
    capped = drawn(Scipy("x", dist="expon", params={"scale": 3}, high=4, decimals=1), 500)
    assert max(capped) == 4
    assert all(round(value, 1) == value for value in capped)
    assert all(
        sum(value) == pytest.approx(1) for value in drawn(Scipy("x", dist="dirichlet", params={"alpha": [1, 2]}), 5)
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dist": "bet"}, "scipy.stats has no distribution 'bet'.*'beta'"),
        ({"dist": "beta"}, r"do not fit beta: .* \(it takes a, b, loc, scale\)"),
        ({"dist": "beta", "params": {"a": 1, "c": 2}}, "do not fit beta"),
        ({"dist": "beta", "params": {"a": -1, "b": 2}}, "do not fit beta: they are outside its range"),
        ({"dist": "beta", "params": {"a": "1", "b": 2}}, "params.a must be a number"),
        ({"dist": "dirichlet", "params": {"alpha": {"column": "x"}}}, "several dimensions"),
        ({"dist": "dirichlet", "params": {"alpha": [1, 2]}, "decimals": 1}, "several dimensions"),
        ({"dist": "dirichlet", "params": {"alpha": [-1, 2]}}, "do not fit dirichlet"),
    ],
)
def test_invalid_distributions_are_rejected(fields: dict[str, Any], message: str) -> None:
    """Names and parameters are checked before anything is drawn."""
    with pytest.raises(ConfigError, match=f"column 'x': .*{message}"):
        make_column(Scipy("x", **fields), Environment())


def test_without_scipy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without scipy the message names the extra to install."""
    monkeypatch.setitem(__import__("sys").modules, "scipy.stats", None)
    with pytest.raises(
        ConfigError, match=r"column 'x' needs scipy, which is not installed .*: install seedbed\[scipy\]"
    ):
        make_column(Scipy("x", dist="norm"), Environment())


@pytest.mark.parametrize("buffer_size", [7, 64, 1_000])
def test_values_do_not_depend_on_the_size_of_row_groups(buffer_size: int, tmp_path: Path) -> None:
    """A build has the same values for any size of row groups and any concurrency."""
    columns = [
        make_column(spec, Environment(seed=3))
        for spec in (
            Category("k", values=["a", "b"]),
            Subcategory("x", category="k", values={"a": [1, 2, 3], "b": [4, 5, 6]}),
            Gaussian("g", mean={"column": "x"}, decimals=3),
            Timedelta("late", high=9, of="day"),
            Datetime("day", start="2024-01-01", end="2024-06-30", unit="day"),
        )
    ]
    config = seedbed.RunConfig(buffer_size=buffer_size)
    frame = seedbed.build(columns, rows=150, out=tmp_path / "d", config=config).to_polars()
    whole = seedbed.preview(columns, rows=150).to_polars()
    assert frame.equals(whole)
