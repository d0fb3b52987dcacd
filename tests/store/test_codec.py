"""Entries of the journal as bytes and back."""

from __future__ import annotations

import enum
import math
import os
import pickle
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedbed.errors import CellError, CellTimeout, Permanent, RateLimited
from seedbed.store.codec import decode, encode

texts = st.text(st.characters())  # lone surrogates included
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers().map(lambda number: number << 300)
    | st.floats()
    | st.complex_numbers()
    | texts
    | st.binary()
    | st.binary().map(bytearray)
    | st.dates()
    | st.times()
    | st.datetimes(timezones=st.none() | st.timezones() | st.just(UTC))
    | st.timedeltas()
    | st.decimals()
    | st.fractions()
    | st.uuids()
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(texts | st.integers(), inner)
        | st.frozensets(texts)
        | st.sets(st.integers())
        | st.lists(inner).map(deque)
        | st.dictionaries(texts, inner).map(OrderedDict)
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    """Equal with the same types all the way down, and floats by their bits."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    if isinstance(one, complex):
        return same(one.real, other.real) and same(one.imag, other.imag)
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    if isinstance(one, (list, tuple, deque)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Decimal):
        return one.as_tuple() == other.as_tuple()
    if isinstance(one, datetime):
        return (one, one.fold, str(one.tzinfo)) == (other, other.fold, str(other.tzinfo))
    return bool(one == other)


@given(st.lists(st.tuples(st.just("ok"), texts, st.integers(0, 10), values), max_size=6), st.booleans())
def test_entries_come_back_exactly(entries: list[tuple[Any, ...]], trusted: bool) -> None:
    """Any value of a column, however nested, comes back with its type, its sign and its bits."""
    data, unkept = encode(entries)
    assert unkept == []
    assert same(decode(data, trusted=trusted), entries)


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3).T,
        np.array(["a", None], dtype=object),
        np.float32(1.5),
        np.datetime64("2020-01-01"),
        pl.Series("a", [1, None, 3]),
        pl.DataFrame({"a": [[1.5], None], "b": ["x", "y"]}),
        Counter("hello"),
        defaultdict(list, a=[1]),
        PurePosixPath("a/b"),
        timezone(timedelta(hours=2), "home"),
        RateLimited("later", retry_after=2.5),
        CellTimeout("slow"),
        range(3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_more_types_that_are_harmless(value: Any) -> None:
    """Arrays, frames and why a cell failed come back without trust."""
    ((found,),) = decode(encode([(value,)])[0], trusted=False)
    assert type(found) is type(value)
    if isinstance(value, np.ndarray):
        assert found.dtype == value.dtype
        assert found.tolist() == value.tolist()
    elif isinstance(value, (pl.Series, pl.DataFrame)):
        assert found.equals(value)
    elif isinstance(value, CellError):
        assert (found.args, vars(found)) == (value.args, vars(value))
    else:
        assert found == value


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("module", ["pathlib", "pathlib._local"])
def test_paths_come_back_whichever_python_wrote_them(module: str, trusted: bool) -> None:
    """Python 3.13 pickles paths by a module that no other has, and each reads what the others wrote."""
    written = f"](c{module}\nPurePosixPath\n(Va\nVb\ntRta.".encode()
    assert decode(written, trusted=trusted) == [(PurePosixPath("a/b"),)]


class Colour(enum.Enum):
    """A type that is no one else's."""

    RED = "red"


@attrs.frozen
class Shape:
    """Another."""

    sides: int


class Own(Permanent):
    """An error of column code."""


class Listed(list):  # type: ignore[type-arg]
    """A list that is filled after it is made."""


class Mapped(dict):  # type: ignore[type-arg]
    """A mapping that is filled after it is made."""


@pytest.mark.parametrize(
    "value",
    [Colour.RED, Shape(3), Own("x"), Listed([1]), Mapped(a=1), Shape, {"deep": [(Colour.RED,)]}, os.getcwd],
    ids=lambda value: type(value).__name__,
)
def test_types_that_are_not_known_need_trust(value: Any) -> None:
    """An entry with a value of a foreign type is left out and its neighbours are not; with trust it comes back."""
    data, unkept = encode([("before",), ("it", value), ("after",)])
    assert unkept == []
    assert decode(data, trusted=False) == [("before",), ("after",)]
    before, (_, found), after = decode(data, trusted=True)
    assert (before, after) == (("before",), ("after",))
    assert type(found) is type(value)


class Attack:
    """Would make a directory when it is read."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


def test_nothing_of_a_foreign_pickle_is_run(tmp_path: Any) -> None:
    """A pickle that would run something runs nothing, directly or by way of an attribute."""
    target = tmp_path / "made"
    assert decode(encode([(Attack(str(target)),)])[0], trusted=False) == []
    by_attribute = (
        b"\x80\x05\x8c\x08builtins\x8c\x07getattr\x93\x8c\x08zoneinfo\x8c\x08ZoneInfo\x93\x8c\x0b__getattr__\x86R."
    )
    assert decode(by_attribute, trusted=False) == []
    assert not target.exists()


def test_values_that_cannot_be_pickled_cost_only_their_entry() -> None:
    """An entry that cannot be kept is named by its position and the others are there."""
    generator = (number for number in range(3))
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    data, unkept = encode([("a",), ("b", generator), ("c", math.nan), ("d", deep), ("e", lambda: 1)])
    assert unkept == [1, 3, 4]
    assert [entry[0] for entry in decode(data, trusted=True)] == ["a", "c"]


class Moody:
    """Can be written but not read."""

    def __setstate__(self, state: object) -> None:
        raise ValueError("not today")

    def __getstate__(self) -> object:
        return 1


def test_values_that_cannot_be_read_cost_only_their_entry() -> None:
    """A class that raises when it is made again, or is no longer there, leaves out its entry alone."""
    data, _ = encode([("a",), ("b", Moody()), ("c", date(2020, 1, 1), time(1))])
    assert [entry[0] for entry in decode(data, trusted=True)] == ["a", "c"]
    gone = pickle.dumps([("x", Shape(1))], 5).replace(b"Shape", b"Shade")
    assert decode(gone + encode([("y", UUID(int=1), Fraction(1, 3), ZoneInfo("UTC"))])[0], trusted=True)[0][0] == "y"
