from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedbed.store.statistics import FieldStatistics, Statistics, diversity, histogram, statistics


def of(frame: pl.DataFrame, *, size: int = 7, **options: Any) -> Statistics:
    """The statistics of a frame that comes in pieces."""
    pieces = [frame.slice(at, size) for at in range(0, max(1, frame.height), size)]
    return statistics(pieces, rows=frame.height, **options)


def field(frame: pl.DataFrame, name: str, **options: Any) -> FieldStatistics:
    """The statistics of one field of a frame."""
    return next(each for each in of(frame, **options).fields if each.name == name)


@given(values=st.lists(st.none() | st.integers(-50, 50), max_size=60), size=st.integers(1, 20))
def test_numbers_are_those_of_all_rows(values: list[int | None], size: int) -> None:
    """Counts, extremes, mean, median and the histogram are those of the values, however they are cut into frames."""
    found = field(pl.DataFrame({"n": values}, schema={"n": pl.Int64}), "n", size=size)
    known = [value for value in values if value is not None]
    assert (found.rows, found.nulls, found.distinct) == (len(values), len(values) - len(known), len(set(known)))
    assert found.duplicates == len(known) - len(set(known))
    assert sum(count for *_, count in found.histogram) == len(known)
    if known:
        assert (found.minimum, found.maximum) == (min(known), max(known))
        assert found.mean == pytest.approx(np.mean(known))
        assert found.median == pytest.approx(np.median(known))
        assert found.std == pytest.approx(np.std(known), abs=1e-6)


def test_distributions_are_those_of_an_even_sample() -> None:
    """Of more rows than the sample holds every k-th one is taken, whatever the parts are; counts stay exact."""
    found = of(pl.DataFrame({"n": range(1_000)}), size=33, sample=100)
    (numbers,) = found.fields
    assert (found.rows, found.sampled) == (1_000, 100)
    assert (numbers.distinct, numbers.maximum) == (1_000, 999)
    assert sum(count for *_, count in numbers.histogram) == 100


@pytest.mark.parametrize(
    ("values", "dtype", "kind", "mean"),
    [
        (["ab", "abcd", None], pl.String, "text", 3),
        ([True, False, True, True], pl.Boolean, "boolean", 0.75),
        ([[1], [1, 2, 3]], pl.List(pl.Int64), "list", 2),
        ([b"abc", b"a"], pl.Binary, "binary", 2),
        ([None, None], pl.Null, "null", None),
        ([datetime(2026, 1, 1, tzinfo=UTC)], pl.Datetime("us", "UTC"), "time", 1_767_225_600),
        ([float("nan"), float("inf"), 2.0], pl.Float64, "number", 2),
    ],
)
def test_kinds_of_columns(values: list[Any], dtype: Any, kind: str, mean: float | None) -> None:
    """Numbers are measured by their value, everything else by its length; what is not finite does not count."""
    found = field(pl.DataFrame({"x": pl.Series(values, dtype=dtype)}), "x")
    assert (found.kind, found.mean) == (kind, mean)


def test_scores_within_structs_have_statistics() -> None:
    """Numbers in a struct, however deep, are fields of their own, and correlate with others."""
    rows = [{"judge": {"clarity": {"score": at % 5}, "why": "so"}, "half": at % 5 / 2, "none": 1} for at in range(50)]
    found = of(pl.DataFrame(rows))
    names = [each.name for each in found.fields]
    assert names == ["judge", "judge.clarity.score", "half", "none"]
    pairs = {(one, other): value for one, other, value in found.correlations}
    assert pairs["judge.clarity.score", "half"] == pytest.approx(1)
    assert ("half", "none") not in pairs  # a constant correlates with nothing


def test_the_most_frequent_values() -> None:
    """Values that occur more than once are listed with their number, unless every value is different."""
    frame = pl.DataFrame({"topic": ["tea"] * 3 + ["rain"] * 2, "id": list("abcde")})
    assert field(frame, "topic").top == (("tea", 3), ("rain", 2))
    assert field(frame, "id").top == ()


def test_diversity_tells_copies_from_different_texts() -> None:
    """Texts with few changes are near-duplicates; texts of other words are not."""
    words = [f"word{at}" for at in range(400)]
    different = [" ".join(words[at * 20 : at * 20 + 20]) for at in range(20)]
    alike = [f"{' '.join(words[:40])} end{at}" for at in range(20)]
    one, other = diversity(different), diversity(alike)
    assert one is not None
    assert other is not None
    assert (one.near_duplicates, one.distinct_1) == (0, 1)
    assert other.near_duplicates == 1
    assert other.distinct_2 < one.distinct_2
    assert other.compression > one.compression
    assert diversity(["alone"]) is None


def test_many_distinct_values_are_estimated() -> None:
    """Beyond the hashes that are stored, the number of distinct values is an estimate within a percent."""
    frames = (pl.DataFrame({"n": range(start, start + 50_000)}) for start in range(0, 600_000, 50_000))
    (found,) = statistics(frames, rows=600_000).fields
    assert found.distinct == pytest.approx(600_000, rel=0.01)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=50))
def test_histograms_hold_every_value(values: list[float]) -> None:
    """The bins cover all values, each once, and are in order."""
    bins = histogram(np.array(values))
    assert sum(count for *_, count in bins) == len(values)
    assert all(low <= high for low, high, _ in bins)
    assert (bins[0][0], max(values) <= bins[-1][1]) == (min(values), True)


def test_a_frame_of_statistics() -> None:
    """`Dataset.profile` is a frame with a row for each field, also of a dataset without rows."""
    frame = of(pl.DataFrame({"a": ["x", "x"], "b": [1, 2]})).frame()
    assert frame.select("column", "nulls", "distinct").rows() == [("a", 0, 1), ("b", 0, 2)]
    assert frame["top"][0].to_list() == [{"value": "x", "count": 2}]
    assert of(pl.DataFrame({"a": []}, schema={"a": pl.String})).frame().height == 1
