"""Entries of the journal as bytes and back."""

from __future__ import annotations

import enum
import math
import os
import struct
import subprocess
import sys
from collections import defaultdict, deque
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hostile_pickles import OBJECT_POINTER
from hypothesis import given, settings
from hypothesis import strategies as st

from seedbed.errors import CellError, CellTimeout, Permanent, RateLimited
from seedbed.models.base import ChatAnswer, EmbeddingAnswer, Image, ImageAnswer, ToolCall
from seedbed.store import codec
from seedbed.store.entries import DroppedRows, Entry, Finished
from seedbed.store.entries import decode as decode_entries
from seedbed.store.entries import encode as encode_entries

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

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
    | st.datetimes(timezones=st.none() | st.timezone_keys(allow_prefix=False).map(ZoneInfo) | st.just(UTC))
    | st.timedeltas()
    | st.decimals()
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
    ),
    max_leaves=12,
)


def encode(cells: Sequence[Any]) -> tuple[bytes, list[int]]:
    """Encode the values of cells as entries; return the bytes and the positions of values that cannot be stored."""
    entries: list[Entry] = [
        Finished(column="a", row=at, attempt=1, salvage_round=0, value=value, origin=None)
        for at, value in enumerate(cells)
    ]
    data, lost = encode_entries(entries)
    return data, [entry.row for entry in lost if isinstance(entry, Finished)]


def decode(data: bytes, *, trusted: bool) -> list[Any]:
    """Return the values of the cells that can be read."""
    return [entry.value for entry in decode_entries(data, trusted=trusted) if isinstance(entry, Finished)]


def raw(*cells: Any) -> bytes:
    """Return entries whose values are these messages of msgpack, whatever they mean."""
    return msgspec.msgpack.encode([[1, "a", at, 1, 0, value, None] for at, value in enumerate(cells)])


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
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Decimal):
        return one.as_tuple() == other.as_tuple()
    if isinstance(one, datetime):
        return (one, one.fold, str(one.tzinfo)) == (other, other.fold, str(other.tzinfo))
    return bool(one == other)


@given(st.lists(st.tuples(st.just("ok"), texts, st.integers(0, 10), values), max_size=6), st.booleans())
def test_values_are_restored_exactly(entries: list[tuple[Any, ...]], trusted: bool) -> None:
    """Any value of a column, however nested, is restored with its type, its sign and its bits."""
    data, unpicklable = encode(entries)
    assert unpicklable == []
    assert same(decode(data, trusted=trusted), entries)


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3).T,
        np.float32(1.5),
        np.datetime64("2020-01-01"),
        pl.Series("a", [1, None, 3]),
        pl.DataFrame({"a": [[1.5], None], "b": ["x", "y"]}),
        timezone(timedelta(hours=2), "home"),
        RateLimited("later", retry_after=2.5),
        CellTimeout("slow"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_more_types_are_read_without_trust(value: Any) -> None:
    """Arrays, frames and errors of cells are restored without trust."""
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


def test_a_frame_that_arrow_cannot_hold_is_read_with_trust() -> None:
    """A column whose name Arrow refuses, where polars panics, costs neither the run nor the entry."""
    frame = pl.DataFrame({"a\0b": [1]})
    ((found,),) = decode(encode([(frame,)])[0], trusted=True)
    assert found.equals(frame)


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
    """A list that is filled after it is created."""


class Mapped(dict):  # type: ignore[type-arg]
    """A mapping that is filled after it is created."""


@pytest.mark.parametrize(
    "value",
    [
        Colour.RED,
        Shape(3),
        Own("x"),
        Listed([1]),
        Mapped(a=1),
        Shape,
        {"deep": [(Colour.RED,)]},
        os.getcwd,
        np.str_("a"),
        defaultdict(list),
        deque([1]),
        Fraction(1, 3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_types_need_trust(value: Any) -> None:
    """Without trust an entry with a value of another type is left out, its neighbors are not; with trust it is read."""
    data, unpicklable = encode([("before",), ("it", value), ("after",)])
    assert unpicklable == []
    assert decode(data, trusted=False) == [("before",), ("after",)]
    before, (_, found), after = decode(data, trusted=True)
    assert (before, after) == (("before",), ("after",))
    assert type(found) is type(value)


class Attack:
    """Creates a directory when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


def test_untrusted_pickles_run_nothing(tmp_path: Any) -> None:
    """A pickle that would run something runs nothing, directly or by way of an attribute."""
    target = tmp_path / "made"
    assert decode(encode([(Attack(str(target)),)])[0], trusted=False) == []
    assert not target.exists()


@pytest.mark.parametrize("trusted", [False, True])
def test_a_pickle_is_not_an_entry(trusted: bool) -> None:
    """A pickle that turns numbers into a pointer is not unpickled as an entry, with or without trust."""
    assert decode(OBJECT_POINTER, trusted=trusted) == []
    assert decode(raw(1, msgspec.msgpack.Ext(codec._PICKLE, OBJECT_POINTER)), trusted=False) == [1]


def test_values_that_cannot_be_pickled_cost_only_their_entry() -> None:
    """An entry that cannot be stored is reported, and the others are stored."""
    generator = (number for number in range(3))
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    data, unpicklable = encode([("a",), ("b", generator), ("c", math.nan), ("d", deep), ("e", lambda: 1)])
    assert unpicklable == [1, 3, 4]
    assert [entry[0] for entry in decode(data, trusted=True)] == ["a", "c"]


class Moody:
    """Can be written but not read."""

    def __setstate__(self, state: object) -> None:
        raise ValueError("not today")

    def __getstate__(self) -> object:
        return 1


def test_values_that_cannot_be_read_cost_only_their_entry() -> None:
    """A class that raises when it is unpickled, or no longer exists, costs only its entry."""
    data, _ = encode([("a",), ("b", Moody()), ("c", date(2020, 1, 1), time(1))])
    assert [entry[0] for entry in decode(data, trusted=True)] == ["a", "c"]
    data, _ = encode([("x", Shape(1)), ("y", UUID(int=1), ZoneInfo("UTC"))])
    assert [entry[0] for entry in decode(data.replace(b"Shape", b"Shade"), trusted=True)] == ["y"]


# A hook stays for the life of the process; it records only while `watched` is not empty.
FORBIDDEN = {"import", "pickle.find_class", "compile", "exec", "os.system", "subprocess.Popen"}
watched: list[list[str]] = []
sys.addaudithook(lambda event, _: watched[-1].append(event) if watched and event in FORBIDDEN else None)


def decode_watched(data: bytes, *, trusted: bool) -> tuple[list[Any], list[str]]:
    """Decode, and return the entries and the imports, classes looked up and code run meanwhile."""
    events: list[str] = []
    watched.append(events)
    try:
        return decode(data, trusted=trusted), events
    finally:
        watched.pop()


def check_decode(data: bytes) -> None:
    """Any bytes give entries or nothing and import nothing, and the entries can be stored again."""
    entries, events = decode_watched(data, trusted=False)
    assert events == []
    assert encode(entries)[1] == []


every_kind: list[tuple[Any, ...]] = [
    ("ok", "column", 3, 1, 0, {"a": [1.5, None, True, "\ud800"], "b": {1: 2}}, (1, 2, 0.5)),
    ("numbers", 1 << 80, -1, 1.5, 1j, Decimal("1.50"), [0.5] * 9, (0.25,) * 9),
    ("times", date(2020, 1, 1), time(1, fold=1), datetime(2020, 1, 1, tzinfo=ZoneInfo("Europe/Berlin")), timedelta(1)),
    ("zones", UTC, timezone(timedelta(hours=2), "home"), ZoneInfo("UTC")),
    ("containers", (1, (2,)), {1}, frozenset("a")),
    ("others", b"x", bytearray(b"y"), UUID(int=5)),
    ("arrays", np.arange(6.0).reshape(2, 3), np.array([True, False])),
    ("scalars", np.float32(1), np.bool_(True), np.datetime64(1, "s"), np.timedelta64(1, "D")),
    ("frames", pl.Series("a", [1, None]), pl.DataFrame({"a": [[1.5], None], "b": ["x", "y"]})),
    (
        "answers",
        ChatAnswer(text="t", tool_calls=(ToolCall(id="1", name="add", arguments="{}"),)),
        EmbeddingAnswer(vectors=((0.5,) * 8,)),
    ),
    ("images", ImageAnswer(images=(Image(data=b"p"),)), RateLimited("later", retry_after=2.5), CellTimeout("slow")),
]
sample, _ = encode([*every_kind, ("foreign", Colour.RED)])
samples = [sample, *(encode([entry])[0] for entry in every_kind)]
decode(sample, trusted=False)  # what the kinds themselves import late


def test_the_audit_hook_sees_imports() -> None:
    """With trust a pickled class is looked up: the check of the other tests can fail."""
    assert "pickle.find_class" in decode_watched(sample, trusted=True)[1]


def test_every_kind_of_the_sample_is_plain() -> None:
    """The sample that is fuzzed holds every tag, and all of it is read without trust."""
    assert [entry[0] for entry in decode(sample, trusted=False)] == [entry[0] for entry in every_kind]
    tags = {codec._TEXT, codec._INT, codec._FLOAT_LIST, codec._FLOAT_TUPLE, codec._PICKLE}
    seen: set[int] = set()

    def note(tag: int, data: memoryview) -> Any:
        seen.add(tag)
        if tag not in tags:
            msgspec.msgpack.decode(data, ext_hook=note)

    msgspec.msgpack.decode(sample, ext_hook=note)
    assert seen == tags | set(codec._MAKERS)


def test_a_date_is_not_made_from_the_bytes_of_a_pickle() -> None:
    """`date` takes one argument of bytes without checking the day: such a value is left out."""
    state = msgspec.msgpack.Ext(20, msgspec.msgpack.encode([b"\x07\xd0\x01\xff"]))
    assert decode(raw(1, state), trusted=False) == [1]


@given(st.binary())
def test_any_bytes_give_entries_or_nothing(data: bytes) -> None:
    """Random bytes never raise."""
    check_decode(data)


packed = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text(), inner)
        | st.builds(
            lambda tag, items: msgspec.msgpack.Ext(tag, msgspec.msgpack.encode(items)),
            st.sampled_from(sorted(codec._MAKERS)) | st.just(codec._PICKLE) | st.integers(-128, 127),
            st.lists(inner),
        )
        | st.builds(msgspec.msgpack.Ext, st.sampled_from(sorted(codec._MAKERS)), st.binary())
    ),
    max_leaves=20,
)


@given(st.lists(packed))
def test_tags_with_other_values_than_they_hold_cost_only_their_entry(cells: Any) -> None:
    """Well-formed bytes whose tags hold anything are read or left out."""
    check_decode(raw(*cells))


@settings(max_examples=settings.default.max_examples // 4)
@given(st.lists(st.tuples(st.integers(-1, 8), st.lists(packed))))
def test_entries_with_other_fields_than_they_have_cost_only_themselves(entries: Any) -> None:
    """Well-formed arrays that are no entries are read or left out."""
    check_decode(msgspec.msgpack.encode([[kind, *fields] for kind, fields in entries]))


# A million in the thorough profile; in the other some thousands.
MUTATIONS = 20 if settings.default.max_examples < 1_000 else 334


@given(st.randoms(use_true_random=True))
def test_damaged_bytes_give_entries_or_nothing(random: Random) -> None:
    """Bytes of which some are changed, cut out, doubled or moved are read or left out."""
    for _ in range(MUTATIONS):
        data = bytearray(random.choice(samples))
        for _ in range(random.choice((1, 1, 2, 5))):
            start = random.randrange(len(data))
            stop = min(len(data), start + random.choice((1, 1, 2, 8, 50)))
            match random.randrange(4):
                case 0:
                    data[start] = random.choice((0, 1, 0x7F, 0x80, 0xC7, 0xC9, 0xFF, random.randrange(256)))
                case 1:
                    data[start] ^= 1 << random.randrange(8)
                case 2 if stop - start < len(data):
                    del data[start:stop]
                case _:
                    place = random.randrange(len(data))
                    data[place:place] = data[start:stop]
        check_decode(bytes(data))


@pytest.mark.parametrize("piece", [b"\x91", b"\x81\xa0", b"\xdd\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x05"])
def test_endless_nesting_gives_nothing(piece: bytes) -> None:
    """Arrays in arrays and tags in tags, more than any stack has room for, are left out."""
    assert decode(b"\x91\x97\x01\xa1a\x00\x01\x00" + piece * 100_000 + b"\xc0\xc0", trusted=False) == []


def test_values_that_are_nested_too_deep_are_not_read() -> None:
    """What passes the limit on nesting is left out without trust, its neighbours are not."""
    for wrap in (lambda value: [value], lambda value: (value,), lambda value: {"a": value}):
        value: Any = 1
        for _ in range(codec.MAX_DEPTH - 1):
            value = wrap(value)
        assert decode(encode([(value,)])[0], trusted=False) == [(value,)]
        for _ in range(10):
            value = wrap(value)
        data = raw([value], "next")
        assert decode(encode([(value,), ("next",)])[0], trusted=False) == [("next",)]
        assert decode(encode([(value,), ("next",)])[0], trusted=True) == [(value,), ("next",)]
        if not isinstance(value, tuple):
            assert decode(data, trusted=False) == ["next"]


# Integers with one hash: a dict or set of many compares each with all others.
COLLIDING = [codec.pack((2**61 - 1) * (1 << 64 | number)) for number in range(40_000)]


def ext(tag: int, items: Sequence[Any]) -> msgspec.msgpack.Ext:
    """A tag with the items that it holds."""
    return msgspec.msgpack.Ext(tag, msgspec.msgpack.encode(items))


def message_of_a_map(keys: Sequence[Any]) -> msgspec.Raw:
    """A map of msgpack with any keys."""
    pairs = b"".join(msgspec.msgpack.encode(key) + b"\xc0" for key in keys)
    return msgspec.Raw(b"\xdf" + len(keys).to_bytes(4, "big") + pairs)


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize(
    "value",
    [
        pytest.param(ext(6, [each for key in COLLIDING for each in (key, None)]), id="dict"),
        pytest.param(ext(7, COLLIDING), id="set"),
        pytest.param(ext(8, COLLIDING), id="frozenset"),
        pytest.param(message_of_a_map(COLLIDING), id="map"),
        pytest.param({"a": [[message_of_a_map(COLLIDING)]]}, id="map in lists"),
        pytest.param(ext(5, [message_of_a_map(COLLIDING)]), id="map in a tuple"),
    ],
)
def test_keys_that_collide_are_not_read(value: Any, trusted: bool) -> None:
    """Many keys whose hashes can be chosen are left out: reading them would take hours. Their neighbours are read."""
    assert decode(raw(value, "next"), trusted=trusted) == ["next"]
    with pytest.raises(codec.FAILED):
        codec.decode(msgspec.msgpack.encode(value), trusted=trusted)


@pytest.mark.parametrize("limit", [codec.MAX_KEYS, codec.MAX_KEYS + 1])
@pytest.mark.parametrize("make", [set, frozenset, dict.fromkeys, lambda numbers: [dict.fromkeys(numbers)]])
def test_many_keys_are_restored_with_trust(make: Any, limit: int) -> None:
    """Larger dicts and sets are stored like user-defined types; the number of texts in one is not limited."""
    values = [(make(range(limit)),), (make(map(str, range(limit))),), (make(f"ü{each}" for each in range(limit)),)]
    data, lost = encode(values)
    assert (decode(data, trusted=True), lost) == (values, [])
    assert decode(data, trusted=False) == (values if limit == codec.MAX_KEYS else values[1:])


def test_identities_are_in_range() -> None:
    """Of pairs of any integers, a stranger can choose very many with one hash."""
    for identity, is_read in (
        ((2**40 - 1, 2**31 - 1), True),
        ((2**40, 0), False),
        ((0, 2**31), False),
        ((-1, 0), False),
    ):
        entry = DroppedRows(order=None, identities=[identity], resized=None, count=0)
        assert decode_entries(encode_entries([entry])[0], trusted=True) == ([entry] if is_read else [])


def frame_of(array: pa.Array[Any]) -> msgspec.msgpack.Ext:
    """A frame as it is stored, of one column."""
    batch, sink = pa.record_batch([array], names=["a"]), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return msgspec.msgpack.Ext(44, msgspec.msgpack.encode([sink.getvalue().to_pybytes()]))


MANY = 2**30


@pytest.mark.parametrize(
    "value",
    [
        codec.pack(np.zeros((2**38, 0))),
        codec.pack(np.zeros((3, 2**38, 0), "M8[s]")),
        frame_of(pa.nulls(MANY)),
        frame_of(pa.LargeListArray.from_arrays(pa.array([0, MANY]), pa.nulls(MANY))),
        frame_of(pa.FixedSizeListArray.from_arrays(pa.nulls(MANY), MANY)),
        frame_of(pa.StructArray.from_arrays([pa.nulls(MANY)], ["a"])),
    ],
)
def test_a_few_bytes_are_not_read_as_more_items_than_memory_has_room_for(value: Any) -> None:
    """Arrays with an axis of length zero and frames of nulls hold any number of items in no bytes."""
    data = raw(value, "next")
    assert len(data) < 2_000
    assert decode(data, trusted=False) == ["next"]


@pytest.mark.parametrize("value", [np.zeros((1_000, 0)), np.zeros((0, 768)), pl.Series("a", [None] * 5_000)])
def test_empty_items_are_restored(value: Any) -> None:
    """A usual number of items in no bytes is read."""
    [(found,)] = decode(encode([(value,)])[0], trusted=False)
    assert (found.shape, found.dtype) == (value.shape, value.dtype)


def test_reading_imports_nothing() -> None:
    """Reading every kind of value and thousands of damaged ones imports no module, finds no class and runs no code."""
    program = f"""
import random, sys
from seedbed.store.entries import decode
sample = {sample!r}
decode(sample, trusted=False)  # what the kinds themselves import late
loaded, random = set(sys.modules), random.Random(1)
seen = []
sys.addaudithook(lambda event, args: seen.append(event) if event in {{"pickle.find_class", "compile", "exec",
    "subprocess.Popen", "os.system"}} else None)
for _ in range(3_000):
    data = bytearray(sample)
    for _ in range(random.choice((1, 2, 4))):
        data[random.randrange(len(data))] = random.randrange(256)
    decode(bytes(data), trusted=False)
print(sorted(set(sys.modules) - loaded), sorted(set(seen)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "[] []"
