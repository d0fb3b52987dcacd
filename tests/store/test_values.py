"""Python values as one arrow column."""

from __future__ import annotations

import enum
import json
import math
from collections import OrderedDict
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedbed.store.values import arrow_array, text_array


class Colour(enum.Enum):
    RED = "red"


class Size(enum.IntEnum):
    SMALL = 1


@pytest.mark.parametrize(
    ("values", "kind", "read"),
    [
        ([None, None], pa.null(), [None, None]),
        ([], pa.null(), []),
        ([1, None], pa.int64(), [1, None]),
        ([2**63, 1], pa.uint64(), [2**63, 1]),
        ([1, 2.5], pa.float64(), [1.0, 2.5]),
        ([True, None], pa.bool_(), [True, None]),
        (["é", None], pa.large_string(), ["é", None]),
        ([b"\xff"], pa.large_binary(), [b"\xff"]),
        ([Decimal("1.5"), 1000], pa.decimal128(5, 1), [Decimal("1.5"), Decimal(1000)]),
        ([date(2020, 1, 2)], pa.date32(), [date(2020, 1, 2)]),
        ([time(1, 2)], pa.time64("us"), [time(1, 2)]),
        ([timedelta(1)], pa.duration("us"), [timedelta(1)]),
        ([datetime(2020, 1, 2)], pa.timestamp("us"), [datetime(2020, 1, 2)]),  # noqa: DTZ001 - that it has none matters
        ([{"a": 1}, None, {"b": "x"}], None, [{"a": 1, "b": None}, None, {"a": None, "b": "x"}]),
        ([{}, None], pa.struct([]), [{}, None]),
        ([{"a": {}}, {"a": None}], None, [{"a": {}}, {"a": None}]),
        ([{}, {"a": 1}], None, [{"a": None}, {"a": 1}]),
        ([[1], None, [], [2.5, None]], pa.large_list(pa.float64()), [[1.0], None, [], [2.5, None]]),
        ([[{"a": [1]}], [{"b": 2}]], None, [[{"a": [1], "b": None}], [{"a": None, "b": 2}]]),
        ([(1, 2), [3]], pa.large_list(pa.int64()), [[1, 2], [3]]),
        ([Colour.RED, None, "blue"], pa.large_string(), ["red", None, "blue"]),
        ([Size.SMALL, 2], pa.int64(), [1, 2]),
        ([OrderedDict(a=1)], None, [{"a": 1}]),
        ([bytearray(b"x"), b"y"], pa.large_binary(), [b"x", b"y"]),
        ([pa.scalar(3), 4], pa.int64(), [3, 4]),
        ([pl.Series([1.5, None], dtype=pl.Float32), None], pa.large_list(pa.float32()), [[1.5, None], None]),
        ([pl.Series([1]), pl.Series([1.5]), [2]], pa.large_list(pa.float64()), [[1.0], [1.5], [2.0]]),
        ([pl.Series(["a"]), None], pa.large_list(pa.large_string()), [["a"], None]),
        (["\ud83d\ude00", "cut \ud83d"], pa.large_string(), ["\U0001f600", "cut �"]),
    ],
)
def test_values_keep_their_meaning(values: list[Any], kind: pa.DataType | None, read: list[Any]) -> None:
    """Values that one arrow type can hold come back as they were, united over all rows."""
    array = arrow_array(values)
    array.validate(full=True)
    assert array.to_pylist() == read
    if kind is not None:
        assert array.type == kind


def test_aware_datetimes_are_instants() -> None:
    """Datetimes of several zones become instants in UTC."""
    noon = datetime(2020, 1, 2, 12, tzinfo=UTC)
    array = arrow_array([noon, noon.astimezone(timezone(timedelta(hours=5)))])
    assert array.type == pa.timestamp("us", "UTC")
    assert array.to_pylist() == [noon, noon]


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("do not look")


def deep() -> list[Any]:
    """A list inside a list inside a list, and so on."""
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    return nested


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1, "a", None], ["1", '"a"', None]),
        ([True, 1], ["true", "1"]),
        (["a", b"a"], ['"a"', '"YQ=="']),
        ([2**70], [str(2**70)]),
        ([2**60 + 1, 0.5], [str(2**60 + 1), "0.5"]),
        ([{"a": 1}, [1]], ['{"a": 1}', "[1]"]),
        ([{"a": 1}, {"a": "x"}], ['{"a": 1}', '{"a": "x"}']),
        ([{1: 2}], ['{"1": 2}']),
        ([{"": 1, "\0": 2}], ['{"": 1, "\\u0000": 2}']),
        ([{3, 1}], ["[1, 3]"]),
        ([{"k": {2, 1}}], ['{"k": [1, 2]}']),
        ([date(2020, 1, 2), 1], ['"2020-01-02"', "1"]),
        ([datetime(2020, 1, 2), datetime(2020, 1, 2, tzinfo=UTC)], None),  # noqa: DTZ001 - mixed on purpose
        ([time(1, tzinfo=UTC)], ['"01:00:00+00:00"']),
        ([{(1, 2): 3}], ["{(1, 2): 3}"]),
        (["\ud83d", 1], ['"�"', "1"]),
        ([Hostile()], ["<Hostile>"]),
        ([Decimal("1e-60"), Decimal("1e60")], None),
        ([10**5000], ["<int>"]),
    ],
)
def test_values_without_one_type_raise_or_become_text(values: list[Any], text: list[Any] | None) -> None:
    """What no arrow type holds is refused, and its text is JSON or, where JSON has no word, `str`."""
    with pytest.raises((TypeError, ValueError, OverflowError)):
        arrow_array(values)
    array = text_array(values)
    assert array.type == pa.large_string()
    assert array.null_count == values.count(None)
    if text is not None:
        assert array.to_pylist() == text


def test_circular_values_become_text() -> None:
    """A value nested deeper than Python can follow, or inside itself, still has a text."""
    loop: list[Any] = []
    loop.append(loop)
    for value in (deep(), loop):
        with pytest.raises(RecursionError):
            arrow_array([value])
        assert text_array([value]).null_count == 0


def test_numpy_values() -> None:
    """Arrays become lists of their number type, scalars become Python values."""
    np = pytest.importorskip("numpy")
    vectors = arrow_array([np.array([1.5, 2], np.float32), None])
    assert (vectors.type, vectors.to_pylist()) == (pa.large_list(pa.float32()), [[1.5, 2.0], None])
    assert arrow_array([np.array([[1, 2]])]).to_pylist() == [[[1, 2]]]
    assert arrow_array([np.float32(1.5), np.int64(3), 2]).to_pylist() == [1.5, 3.0, 2.0]


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary() | st.dates()
ANYTHING = st.recursive(
    SCALARS | st.sets(st.integers(), max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3),
    max_leaves=10,
)


@given(st.lists(ANYTHING, max_size=6))
def test_any_values_become_a_column(values: list[Any]) -> None:
    """Whatever the values are, either one arrow type holds them or their text does, row for row."""
    try:
        array = arrow_array(values)
    except (TypeError, ValueError, OverflowError):
        array = text_array(values)
    array.validate(full=True)
    assert len(array) == len(values)
    assert [value is None for value in array.to_pylist()] == [value is None for value in values]


@given(st.lists(st.floats() | st.none() | st.booleans()))
def test_text_of_plain_values_is_json(values: list[Any]) -> None:
    """The text of plain values reads back as the same values."""
    for value, text in zip(values, text_array(values).to_pylist(), strict=True):
        read: Any = None if text is None else json.loads(text)
        assert read == value or (math.isnan(value) and math.isnan(read))
