"""Values of cells as msgpack and back, each with its type exactly as it was.

Types that msgpack does not have are extensions, each with a number of the closed list below, so that untrusted bytes
can name no code: they give plain values or nothing. Values of other types, which only users' code generates, are
pickles in an extension of their own, which is read only for a caller that trusts the directory as much as its own code.
"""

from __future__ import annotations

import datetime as dt
import functools
import math
import pickle
import re
import struct
import uuid
import zoneinfo
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import attrs
import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from .. import errors
from ..models.base import ChatAnswer, EmbeddingAnswer, Image, ImageAnswer, Tokens, ToolCall

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

# What msgpack holds as it is, but for lone surrogates and large numbers.
PLAIN = frozenset({type(None), bool, int, float, str, bytes})
# What user-defined types raise when they are pickled, the constructors of the types below when they get nonsense, and a
# frame library that panics.
FAILED = (Exception, pl.exceptions.PanicException)
# How deep a value may be nested. A deeper one is stored as a pickle, and bytes that hold one are invalid: code
# that reads values recursively must not overflow the stack.
MAX_DEPTH = 200

# How many keys of a dict or items of a set may be other than text or bytes, whose hashes nobody can foresee. Others can
# be chosen so that all hashes are equal, and then each key is compared with all. A value with more is stored as a
# pickle, and bytes that hold one are invalid.
MAX_KEYS = 1_000

_PICKLE_PROTOCOL = 5
# From so many floats on, a list or tuple of nothing else is stored as one block: a vector of an embedding.
_VECTOR = 8
# Messages of msgpack up to this size cannot hold a map of too many keys; longer ones are checked before they are read.
_SHORT = 1 << 13
# Items that take no bytes, such as the rows of an array of shape (n, 0), and may be read all the same: a few bytes must
# not become a list that no memory has room for.
_MAX_EMPTY = 1 << 20
# Numbers, durations and instants of fixed size. Not long double: the C library cannot be trusted with invalid ones.
_DTYPE = re.compile(r"[<>|](b1|[iu][1248]|f[248]|c(8|16)|[mM]8(\[\d{0,9}(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?)")


class _ForeignError(Exception):
    """A value that only pickle can store."""


def pack(value: Any) -> Any:
    """Return a value as what msgpack has; raises one of `FAILED` if it cannot be stored."""
    if type(value) in _AS_IT_IS:
        return value
    try:
        return _pack(value, 0)
    except FAILED:  # a user-defined type, or an object that raises when it is inspected
        return msgspec.msgpack.Ext(_PICKLE, pickle.dumps(value, _PICKLE_PROTOCOL))


def unpacker(*, trusted: bool) -> Callable[[int, memoryview], Any]:
    """Return the `ext_hook` that reads packed values; those of user-defined types only if `trusted`."""
    return _unpack_trusted if trusted else _unpack


def encode(value: Any) -> bytes:
    """Return one value as bytes; raises one of `FAILED` if it cannot be stored."""
    return msgspec.msgpack.encode(pack(value))


def decode(data: bytes, *, trusted: bool) -> Any:
    """Return the value that `encode` stored; raises one of `FAILED` if it cannot be read."""
    check_maps(data)
    value = msgspec.msgpack.decode(data, ext_hook=unpacker(trusted=trusted))
    if not trusted:
        check_depth(value)
    return value


def check_maps(data: bytes | memoryview) -> None:
    """Raise one of `FAILED` for a map of msgpack that is long and whose keys are not all text: `pack` returns none.

    msgspec would build a dict of any keys before it can be looked at, see `MAX_KEYS`.
    """
    level = [memoryview(data)]
    for _ in range(2 * MAX_DEPTH):
        inner: list[msgspec.Raw] = []
        for each in level:
            first = each[0] if len(each) > _SHORT else 0
            if 0x90 <= first <= 0x9F or first in {0xDC, 0xDD}:
                inner += msgspec.msgpack.decode(each, type=list[msgspec.Raw])
            elif 0x80 <= first <= 0x8F or first in {0xDE, 0xDF}:
                inner += msgspec.msgpack.decode(each, type=dict[str, msgspec.Raw]).values()
        if not inner:
            return
        level = [memoryview(each) for each in inner]
    raise ValueError(f"a value is nested more than {MAX_DEPTH} levels deep")


def check_depth(value: Any) -> None:
    """Raise `ValueError` for a value that is nested too deep; iterative, since recursion would not survive it."""
    level = [value]
    for _ in range(MAX_DEPTH + 4):  # an entry nests a value in containers of its own
        level = [each for each in level if type(each) in _NESTED]
        if not level:
            return
        level = [inner for each in level for inner in ((*each, *each.values()) if isinstance(each, dict) else each)]
    raise ValueError(f"a value is nested more than {MAX_DEPTH} levels deep")


_NESTED = frozenset({list, tuple, dict, set, frozenset})


# Packing: a value as what msgpack has, or as an extension.


def _pack(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind is str:
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                return msgspec.msgpack.Ext(_TEXT, value.encode("utf-8", "surrogatepass"))
        return value
    if kind is int:
        if -(1 << 63) <= value < 1 << 64:
            return value
        size = value.bit_length() // 8 + 1
        return msgspec.msgpack.Ext(_INT, value.to_bytes(size, "little", signed=True))
    if kind in _AS_IT_IS:
        return value
    if depth >= MAX_DEPTH:
        raise _ForeignError
    if kind is list:
        return _pack_floats(_FLOAT_LIST, value) or _pack_all(value, depth)
    if kind is dict and all(type(key) is str and key.isascii() for key in value):
        return {key: _pack(inner, depth + 1) for key, inner in value.items()}
    found = _TAGS_BY_TYPE.get(kind)
    if found is None or (kind in _HASHED and not _are_few(value)):
        raise _ForeignError
    if kind is tuple and (floats := _pack_floats(_FLOAT_TUPLE, value)) is not None:
        return floats
    tag, fields = found
    return msgspec.msgpack.Ext(tag, msgspec.msgpack.encode(_pack_all(fields(value), depth)))


_AS_IT_IS = frozenset({type(None), bool, float, bytes})


def _pack_all(values: Iterable[Any], depth: int) -> list[Any]:
    depth += 1
    return [_pack(value, depth) for value in values]


def _pack_floats(tag: int, values: Sequence[Any]) -> msgspec.msgpack.Ext | None:
    if len(values) < _VECTOR or set(map(type, values)) != {float}:
        return None
    return msgspec.msgpack.Ext(tag, struct.pack(f"<{len(values)}d", *values))


# Unpacking. msgspec bounds how deep it recurses by Python's own limit, calls of these hooks included.


def _unpack_trusted(tag: int, data: memoryview) -> Any:
    return pickle.loads(data) if tag == _PICKLE else _unpack(tag, data)


def _unpack(tag: int, data: memoryview) -> Any:
    if tag == _TEXT:
        return str(data, "utf-8", "surrogatepass")
    if tag == _INT:
        return int.from_bytes(data, "little", signed=True)
    if tag == _FLOAT_LIST:
        return list(struct.unpack(f"<{len(data) // 8}d", data))
    if tag == _FLOAT_TUPLE:
        return struct.unpack(f"<{len(data) // 8}d", data)
    make = _MAKERS.get(tag)
    if make is None:
        raise ValueError(f"unknown tag {tag}")
    check_maps(data)
    return make(*msgspec.msgpack.decode(data, type=list[Any], ext_hook=_unpack))


def _pairs(value: dict[Any, Any]) -> Iterable[Any]:
    return (each for pair in value.items() for each in pair)


def _make_dict(*pairs: Any) -> dict[Any, Any]:
    return dict(zip(_few(pairs[::2]), pairs[1::2], strict=True))


def _few(keys: Sequence[Any]) -> Sequence[Any]:
    if not _are_few(keys):
        raise ValueError(f"more than {MAX_KEYS:,} keys other than text")
    return keys


def _are_few(keys: Collection[Any]) -> bool:
    return len(keys) <= MAX_KEYS or sum(type(key) not in _UNFORESEEN for key in keys) <= MAX_KEYS


_HASHED = frozenset({dict, set, frozenset})
# Python hashes these with a secret of the process.
_UNFORESEEN = frozenset({str, bytes})


def _date_fields(value: dt.date) -> Iterable[Any]:
    return value.year, value.month, value.day


def _make_date(year: int, month: int, day: int) -> dt.date:
    # `date` alone also takes the bytes of a pickle, and does not check them.
    return dt.date(year, month, day)


def _time_fields(value: dt.datetime | dt.time) -> Iterable[Any]:
    return value.hour, value.minute, value.second, value.microsecond, value.tzinfo, value.fold


def _make_time(*fields: Any) -> dt.time:
    return dt.time(*fields[:5], fold=fields[5])


def _zone_fields(value: zoneinfo.ZoneInfo) -> Iterable[Any]:
    if value.key not in _known_zones():
        raise _ForeignError
    return (value.key,)


def _make_zone(key: str) -> zoneinfo.ZoneInfo:
    # Python looks for a zone that it does not know in a package, by import.
    if key not in _known_zones():
        raise ValueError(f"unknown time zone {key!r}")
    return zoneinfo.ZoneInfo(key)


@functools.cache
def _known_zones() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones())


def _array_fields(value: np.ndarray[Any, Any]) -> Iterable[Any]:
    text, order = value.dtype.str, "C" if value.flags.c_contiguous or not value.flags.f_contiguous else "F"
    if not _DTYPE.fullmatch(text):
        raise _ForeignError
    return text, order, list(value.shape), value.tobytes(order="C")


def _make_array(text: str, order: str, shape: Sequence[int], data: bytes) -> np.ndarray[Any, Any]:
    if not _DTYPE.fullmatch(text):
        raise ValueError(f"not a numeric dtype: {text!r}")
    if not all(type(size) is int and 0 <= size < 1 << 40 for size in shape) or order not in {"C", "F"}:
        raise ValueError("not the shape of an array")
    found = np.frombuffer(data, dtype=np.dtype(text))
    # numpy counts True by adding up bytes and then trusts the sum with the size of a buffer.
    if found.dtype.kind == "b" and found.size and found.view(np.uint8).max() > 1:
        raise ValueError("not booleans")
    if found.size != math.prod(shape):
        raise ValueError("not as many items as the shape of an array has")
    if math.prod(size or 1 for size in shape) > max(found.size, _MAX_EMPTY):
        raise ValueError("an array of too many empty rows")
    return found.reshape(shape).copy(order="F" if order == "F" else "C")


def _scalar_fields(value: np.generic) -> Iterable[Any]:
    return _array_fields(np.asarray(value))


def _frame_fields(value: pl.DataFrame) -> Iterable[Any]:
    table = value.to_arrow()
    # Some types of polars are others after Arrow.
    if pl.DataFrame(table.slice(0, 0)).schema != value.schema:
        raise _ForeignError
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return (sink.getvalue().to_pybytes(),)


def _make_frame(data: bytes) -> pl.DataFrame:
    table = pa.ipc.open_stream(data).read_all()
    # Reading believes every offset that is written there.
    table.validate(full=True)
    most = max(8 * len(data), _MAX_EMPTY)
    for column in table.columns:
        _check_lengths(column.chunks, most)
    return pl.DataFrame(table)


def _check_lengths(arrays: Iterable[pa.Array[Any]], most: int) -> None:
    """Raise `ValueError` for arrays of nulls, or of structs without fields, that hold more items than `most`."""
    for array in arrays:
        if len(array) > most:
            raise ValueError("a frame of too many empty rows")
        if isinstance(array, pa.StructArray):
            _check_lengths(array.flatten(), most)
        elif isinstance(array, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
            _check_lengths([array.values], most)


def _series_fields(value: pl.Series) -> Iterable[Any]:
    return value.name, *_frame_fields(value.alias("values").to_frame())


_ERRORS: dict[str, type[errors.CellError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.CellError)
}


def _error_fields(value: errors.CellError) -> Iterable[Any]:
    return type(value).__name__, value.args, vars(value)


def _make_error(name: str, args: tuple[Any, ...], attributes: dict[str, Any]) -> errors.CellError:
    kind = _ERRORS[name]
    if type(args) is not tuple or type(attributes) is not dict:
        raise ValueError("not an error of a cell")
    error = kind.__new__(kind, *args)
    error.__dict__.update({str(key): value for key, value in attributes.items()})
    return error


def _attrs_tag(tag: int, kind: type[Any]) -> tuple[int, type[Any], Callable[[Any], Iterable[Any]], Callable[..., Any]]:
    """An attrs class of ours: its fields in order, each of the type that it is declared with."""
    names = [field.name for field in attrs.fields(kind)]

    def fields(value: Any) -> Iterable[Any]:
        return (getattr(value, name) for name in names)

    def make(*values: Any) -> Any:
        return msgspec.convert(dict(zip(names, values, strict=True)), kind)

    return tag, kind, fields, make


def _of(kind: type[Any], make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Require a value of exactly this type: `bytes` of a number, for instance, would be that many zeros."""

    def checked(value: Any) -> Any:
        if type(value) is not kind:
            raise ValueError(f"not a {kind.__name__}")
        return make(value)

    return checked


# The tags. A number is never given to another type, or old journals would be read wrong.
_TEXT, _INT, _FLOAT_LIST, _FLOAT_TUPLE, _PICKLE = 1, 2, 3, 4, 70

_TAGS: list[tuple[int, type[Any], Callable[[Any], Iterable[Any]], Callable[..., Any]]] = [
    (5, tuple, iter, lambda *items: items),
    (6, dict, _pairs, _make_dict),
    (7, set, iter, lambda *items: set(_few(items))),
    (8, frozenset, iter, lambda *items: frozenset(_few(items))),
    (9, bytearray, lambda value: (bytes(value),), _of(bytes, bytearray)),
    (10, complex, lambda value: (value.real, value.imag), complex),
    (20, dt.date, _date_fields, _make_date),
    (21, dt.time, _time_fields, _make_time),
    (
        22,
        dt.datetime,
        lambda value: (*_date_fields(value), *_time_fields(value)),
        lambda year, month, day, *time: dt.datetime.combine(_make_date(year, month, day), _make_time(*time)),
    ),
    (23, dt.timedelta, lambda value: (value.days, value.seconds, value.microseconds), dt.timedelta),
    (24, dt.timezone, lambda value: value.__getinitargs__(), dt.timezone),
    (25, zoneinfo.ZoneInfo, _zone_fields, _make_zone),
    (30, Decimal, lambda value: (str(value),), _of(str, Decimal)),
    (
        32,
        uuid.UUID,
        lambda value: (value.bytes, value.is_safe.value),
        lambda data, safe: uuid.UUID(bytes=data, is_safe=uuid.SafeUUID(safe)),
    ),
    (40, np.ndarray, _array_fields, _make_array),
    (44, pl.DataFrame, _frame_fields, _make_frame),
    (45, pl.Series, _series_fields, lambda name, data: _make_frame(data).to_series().alias(name)),
    _attrs_tag(50, Tokens),
    _attrs_tag(51, ChatAnswer),
    _attrs_tag(52, EmbeddingAnswer),
    _attrs_tag(53, Image),
    _attrs_tag(54, ImageAnswer),
    _attrs_tag(55, ToolCall),
]
_SCALAR, _ERROR = 41, 60

_TAGS_BY_TYPE: dict[type[Any], tuple[int, Callable[[Any], Iterable[Any]]]] = {
    **{kind: (tag, fields) for tag, kind, fields, _ in _TAGS},
    **{
        kind: (_SCALAR, _scalar_fields) for kind in set(np.sctypeDict.values()) if issubclass(kind, np.number | np.bool)
    },
    **dict.fromkeys((np.datetime64, np.timedelta64), (_SCALAR, _scalar_fields)),
    **dict.fromkeys(_ERRORS.values(), (_ERROR, _error_fields)),
}
_MAKERS: dict[int, Callable[..., Any]] = {
    **{tag: make for tag, _, _, make in _TAGS},
    _SCALAR: lambda *fields: _make_array(*fields)[()],
    _ERROR: _make_error,
}
