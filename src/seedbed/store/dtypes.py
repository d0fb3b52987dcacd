"""Arrow types: what a declared type means, which fit into which, and what unites two of them.

All of it is pure. Types are kept in one canonical spelling (large strings, binaries and lists, as polars has them; no
unit that parquet cannot hold), so that equal means equal. A type that holds nothing yet is the null type.
"""

from __future__ import annotations

import types
import typing
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from ..errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

# Parquet has no struct without fields: on disk `{}` is a struct with this one field of nothing. It never leaves the
# store: readers drop it again, and any real field takes its place.
EMPTY_STRUCT_FIELD = "{}"

_UNITS = ("s", "ms", "us", "ns")
_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}
DECIMAL_DIGITS = 38
_PYTHON_TYPES: dict[object, pa.DataType] = {
    str: pa.large_string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    bytes: pa.large_binary(),
    datetime: pa.timestamp("us"),
    date: pa.date32(),
    time: pa.time64("us"),
    timedelta: pa.duration("us"),
}


def declared_type(declared: object) -> pa.DataType:
    """Return the arrow type of a polars, arrow or Python type; `ConfigError` for one that cannot be stored."""
    problem = f"a column cannot be declared as {declared!r}"
    if isinstance(declared, type) and declared in _PYTHON_TYPES:
        return _PYTHON_TYPES[declared]
    if isinstance(declared, types.GenericAlias) and typing.get_origin(declared) is list:
        return pa.large_list(declared_type(typing.get_args(declared)[0]))
    if isinstance(declared, pa.DataType):
        arrow = declared
    elif isinstance(declared, pl.DataType) or (isinstance(declared, type) and issubclass(declared, pl.DataType)):
        if isinstance(declared, type) and issubclass(declared, (pl.List, pl.Array, pl.Struct)):
            raise ConfigError(f"{problem}: say what it holds, as in pl.List(pl.Int64)")
        if declared in (pl.Object, pl.Unknown, pl.Null):
            raise ConfigError(f"{problem}: it says nothing about what is stored")
        try:
            arrow = pl.Series([], dtype=declared).to_arrow().type
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise ConfigError(f"{problem}: {error}") from error
    else:
        raise ConfigError(f"{problem}: give a polars or arrow type, one of {_python_names()}, or list[...] of one")
    if pa.types.is_null(arrow) or pa.types.is_dictionary(arrow):
        raise ConfigError(f"{problem}: declare the type of its values")
    try:
        return canonical(arrow)
    except TypeError as error:
        raise ConfigError(f"{problem}: {error}") from error


def _python_names() -> str:
    return ", ".join(kind.__name__ for kind in _PYTHON_TYPES if isinstance(kind, type))


def canonical(arrow: pa.DataType) -> pa.DataType:
    """Return the one spelling of an arrow type that parts are written with; `TypeError` if there is none."""
    return _rebuild(arrow, _canonical_leaf)


def stored(arrow: pa.DataType) -> pa.DataType:
    """Return the type as parquet can hold it: a struct without fields gets `EMPTY_STRUCT_FIELD`."""
    return _rebuild(arrow, _stored_leaf)


def _rebuild(arrow: Any, change: Callable[[Any], pa.DataType]) -> pa.DataType:
    if pa.types.is_struct(arrow):
        return change(pa.struct([pa.field(field.name, _rebuild(field.type, change)) for field in arrow]))
    if pa.types.is_fixed_size_list(arrow):
        fixed: pa.DataType = pa.list_(_rebuild(arrow.value_type, change), arrow.list_size)
        return fixed
    if _is_list(arrow):
        return pa.large_list(_rebuild(arrow.value_type, change))
    return change(arrow)


def _stored_leaf(arrow: Any) -> pa.DataType:
    if pa.types.is_struct(arrow) and not arrow.num_fields:
        return pa.struct([pa.field(EMPTY_STRUCT_FIELD, pa.null())])
    return arrow  # type: ignore[no-any-return]


def _canonical_leaf(arrow: Any) -> pa.DataType:
    is_ = pa.types
    if is_.is_struct(arrow) or is_.is_null(arrow) or is_.is_boolean(arrow) or is_.is_date32(arrow):
        return arrow
    if is_.is_integer(arrow) or is_.is_floating(arrow) or is_.is_time64(arrow) or is_.is_fixed_size_binary(arrow):
        return arrow
    if is_.is_string(arrow) or is_.is_large_string(arrow) or is_.is_string_view(arrow):
        return pa.large_string()
    if is_.is_binary(arrow) or is_.is_large_binary(arrow) or is_.is_binary_view(arrow):
        return pa.large_binary()
    if is_.is_dictionary(arrow):
        return canonical(arrow.value_type)
    if is_.is_timestamp(arrow):
        return pa.timestamp("ms", arrow.tz) if arrow.unit == "s" else arrow
    if is_.is_duration(arrow):
        return pa.duration("ms") if arrow.unit == "s" else arrow
    if is_.is_time32(arrow):
        return pa.time64("us")
    if is_.is_date64(arrow):
        return pa.date32()
    if is_.is_decimal(arrow) and arrow.precision <= DECIMAL_DIGITS:
        return pa.decimal128(arrow.precision, arrow.scale)
    raise TypeError(f"{arrow} cannot be stored")


def _is_list(arrow: pa.DataType) -> bool:
    # Covers every list but the one of a fixed size, which has its own branch wherever it matters.
    return pa.types.is_list(arrow) or pa.types.is_large_list(arrow) or pa.types.is_list_view(arrow)


def _is_any_list(arrow: pa.DataType) -> bool:
    return _is_list(arrow) or pa.types.is_fixed_size_list(arrow)


def _is_number(arrow: pa.DataType) -> bool:
    return pa.types.is_integer(arrow) or pa.types.is_floating(arrow) or pa.types.is_decimal(arrow)


def fits(found: Any, wanted: Any) -> bool:
    """Whether values of one type may be cast to another; the cast itself still refuses a value that would be lost."""
    if found == wanted or pa.types.is_null(found):
        return True
    if pa.types.is_struct(found) and pa.types.is_struct(wanted):
        into = {field.name: field.type for field in wanted}
        return all(
            fits(field.type, into[field.name]) if field.name in into else _is_placeholder(field) for field in found
        )
    if _is_any_list(found) and _is_any_list(wanted):
        return fits(found.value_type, wanted.value_type)
    if pa.types.is_timestamp(found) and pa.types.is_timestamp(wanted):
        return (found.tz is None) == (wanted.tz is None)
    return (
        (_is_number(found) and _is_number(wanted))
        or (pa.types.is_date(found) and pa.types.is_timestamp(wanted) and wanted.tz is None)
        or any(same(found) and same(wanted) for same in (_is_binary, pa.types.is_time, pa.types.is_duration))
    )


def _is_binary(arrow: pa.DataType) -> bool:
    return pa.types.is_large_binary(arrow) or pa.types.is_fixed_size_binary(arrow)


def _is_placeholder(field: pa.Field[Any]) -> bool:
    return field.name == EMPTY_STRUCT_FIELD and pa.types.is_null(field.type)


def unite(one: Any, other: Any) -> pa.DataType | None:
    """Return the smallest canonical type that holds both, or None if there is none."""
    if one == other or pa.types.is_null(other):
        return one  # type: ignore[no-any-return]
    if pa.types.is_null(one):
        return other  # type: ignore[no-any-return]
    if _is_number(one) and _is_number(other):
        return _unite_numbers(one, other)
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return _unite_structs(one, other)
    if _is_any_list(one) and _is_any_list(other):
        item = unite(one.value_type, other.value_type)
        if item is None:
            return None
        fixed = pa.types.is_fixed_size_list(one) and pa.types.is_fixed_size_list(other)
        return pa.list_(item, one.list_size) if fixed and one.list_size == other.list_size else pa.large_list(item)
    if _is_binary(one) and _is_binary(other):
        return pa.large_binary()
    if pa.types.is_timestamp(one) and pa.types.is_timestamp(other) and (one.tz is None) == (other.tz is None):
        return pa.timestamp(_finer(one, other), one.tz if one.tz == other.tz else "UTC")
    if pa.types.is_duration(one) and pa.types.is_duration(other):
        return pa.duration(_finer(one, other))
    if pa.types.is_time(one) and pa.types.is_time(other):
        return pa.time64(_finer(one, other))
    return None


def _finer(one: Any, other: Any) -> Any:
    return max(one.unit, other.unit, key=_UNITS.index)


def _unite_structs(one: Any, other: Any) -> pa.DataType | None:
    fields: dict[str, pa.DataType] = {field.name: field.type for field in one}
    for field in other:
        united = unite(fields.get(field.name, pa.null()), field.type)
        if united is None:
            return None
        fields[field.name] = united
    return pa.struct([pa.field(name, kind) for name, kind in fields.items()])


def _unite_numbers(one: Any, other: Any) -> pa.DataType | None:
    numbers = (one, other)
    floats = [kind for kind in numbers if pa.types.is_floating(kind)]
    decimals = [kind for kind in numbers if pa.types.is_decimal(kind)]
    if decimals:
        if floats:
            return None
        scale = max(kind.scale for kind in decimals)
        whole = max(
            kind.precision - kind.scale if kind in decimals else _INTEGER_DIGITS[kind.bit_width] for kind in numbers
        )
        return pa.decimal128(whole + scale, scale) if whole + scale <= DECIMAL_DIGITS else None
    if floats:
        return max(floats, key=lambda kind: kind.bit_width) if len(floats) == len(numbers) else pa.float64()
    if pa.types.is_signed_integer(one) == pa.types.is_signed_integer(other):
        return one if one.bit_width >= other.bit_width else other  # type: ignore[no-any-return]
    signed, unsigned = numbers if pa.types.is_signed_integer(one) else (other, one)
    for kind in (pa.int16(), pa.int32(), pa.int64()):
        if kind.bit_width >= signed.bit_width and kind.bit_width > unsigned.bit_width:
            return kind
    return None
