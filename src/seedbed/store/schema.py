"""Arrow types and schemas: what a declared type means, and one schema over all parts.

Types have one canonical spelling (large strings, binaries and lists, as polars has them; no unit that parquet cannot
hold), so that equal means equal. A column that holds nothing yet has the null type. Where no type holds all values of a
column, that is a `Conflict`, and no value is lost.
"""

from __future__ import annotations

import types
import typing
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import ConfigError, SchemaConflict
from .values import JSON, arrow_array, json_array, text_array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


# Parquet has no struct without fields: on disk `{}` is a struct with this one field of nothing. It never leaves the
# store: readers drop it again, and any real field takes its place.
EMPTY_STRUCT_FIELD = "{}"

_UNITS = ("s", "ms", "us", "ns")
_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}
DECIMAL_DIGITS = 38
_PYTHON_TYPES: dict[type, pa.DataType] = {
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
            raise ConfigError(f"{problem}: give the type of what it holds, as in pl.List(pl.Int64)")
        if declared in (pl.Object, pl.Unknown, pl.Null):
            raise ConfigError(f"{problem}: it does not determine what is stored")
        try:
            arrow = pl.Series([], dtype=declared).to_arrow().type
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise ConfigError(f"{problem}: {error}") from error
    else:
        names = ", ".join(kind.__name__ for kind in _PYTHON_TYPES)
        raise ConfigError(f"{problem}: give a polars or arrow type, one of {names}, or list[...] of one")
    if pa.types.is_null(arrow) or pa.types.is_dictionary(arrow):
        raise ConfigError(f"{problem}: declare the type of its values")
    try:
        return canonical(arrow)
    except TypeError as error:
        raise ConfigError(f"{problem}: {error}") from error


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
    if isinstance(arrow, pa.JsonType):
        return JSON
    raise TypeError(f"{arrow} cannot be stored")


def _is_list(arrow: pa.DataType) -> bool:
    # Covers every list but the one of a fixed size, which has its own branch wherever it matters.
    return pa.types.is_list(arrow) or pa.types.is_large_list(arrow) or pa.types.is_list_view(arrow)


def _is_any_list(arrow: pa.DataType) -> bool:
    return _is_list(arrow) or pa.types.is_fixed_size_list(arrow)


def _is_number(arrow: pa.DataType) -> bool:
    return pa.types.is_integer(arrow) or pa.types.is_floating(arrow) or pa.types.is_decimal(arrow)


def fits(found: Any, wanted: Any) -> bool:
    """True if values of one type may be cast to another; the cast itself still raises where a value would be lost."""
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


class Conflict(msgspec.Struct, frozen=True, kw_only=True):
    """A column whose values do not fit the type `expected`; the part has them as `found`."""

    column: str
    part: str
    found: str
    expected: str

    def __str__(self) -> str:
        return f"column {self.column!r} of {self.part} holds {self.found}, expected {self.expected}"


def unify(
    schemas: Iterable[tuple[str, pa.Schema]],
    *,
    declared: Mapping[str, pa.DataType] | None = None,
    order: Sequence[str] = (),
) -> tuple[pa.Schema, tuple[Conflict, ...]]:
    """Return the schema that holds every part, and a conflict for each column and part that it cannot hold.

    `schemas` are (part, schema) pairs. Declared types win. Columns come in `order` first, then as they were first seen;
    a column of `order` that no part has is left out unless there is no part at all. A column in conflict has the type
    of the parts before it.
    """
    declared = declared or {}
    united: dict[str, pa.DataType] = {}
    conflicts = []
    # Most parts have the very same schema: only the first of each kind is looked at.
    distinct: dict[pa.Schema, str] = {}
    for part, schema in schemas:
        distinct.setdefault(schema, part)
    for schema, part in distinct.items():
        for field in schema:
            wanted = declared.get(field.name)
            before = united.get(field.name, pa.null()) if wanted is None else wanted
            # Under a declared type a part has exactly that type, or null where a processor left the column out;
            # anything else is a misfit that was stored as it came.
            exact = wanted is None or field.type == wanted or pa.types.is_null(field.type)
            after = unite(before, field.type) if exact else None
            if after is None:
                found, expected = str(field.type), str(before)
                conflicts.append(Conflict(column=field.name, part=part, found=found, expected=expected))
                after = before
            united[field.name] = after
    if not distinct:
        united = {name: declared.get(name, pa.null()) for name in order}
    names = dict.fromkeys([*(name for name in order if name in united), *united])
    return pa.schema([pa.field(name, united[name]) for name in names]), tuple(conflicts)


def arrow_table(
    columns: Mapping[str, Sequence[Any]] | pl.DataFrame,
    declared: Mapping[str, pa.DataType],
    *,
    part: str = "the table",
) -> tuple[pa.Table, tuple[Conflict, ...]]:
    """Return the columns as arrow, each of its declared or of one inferred type, and what did not fit.

    No value is ever lost for its type: where a value does not fit the declared type the column has the inferred one,
    and where no one type holds all values they are JSON text; either is a conflict that names the column.
    """
    arrays: dict[str, Any] = {}
    conflicts: list[Conflict] = []
    names = columns.columns if isinstance(columns, pl.DataFrame) else list(columns)
    for name in names:
        wanted = declared.get(name)
        try:
            if isinstance(columns, pl.DataFrame):
                array = _frame_column(columns[name])
            else:
                array = json_array(columns[name]) if wanted == JSON else arrow_array(columns[name])
        except Exception as error:  # noqa: BLE001 - a user's object may raise anything; its row group must be written
            array = text_array(list(columns[name]))
            found = f"{str(error) or type(error).__name__} (stored as JSON text)"
            expected = str(wanted) if wanted is not None else "values of one type"
            conflicts.append(Conflict(column=name, part=part, found=found, expected=expected))
            wanted = None
        if wanted is not None:
            array, misfit = _fit(array, wanted, name, part)
            conflicts += misfit
        arrays[name] = array
    schema = pa.schema([pa.field(name, array.type) for name, array in arrays.items()])
    return pa.Table.from_arrays(list(arrays.values()), schema=schema), tuple(conflicts)


def _frame_column(series: pl.Series) -> Any:
    if series.dtype == pl.Object:
        return arrow_array(series.to_list())
    array = series.to_arrow()
    return _convert(array, canonical(array.type))


def stored_table(table: pa.Table) -> pa.Table:
    """Return the table with columns that parquet can hold."""
    schema = pa.schema([pa.field(field.name, stored(field.type)) for field in table.schema])
    arrays = [_convert(table.column(field.name), field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _fit(column: Any, wanted: pa.DataType, name: str, part: str) -> tuple[Any, list[Conflict]]:
    """Cast a column; if its values do not fit, return it unchanged with the conflict."""
    found = str(column.type)
    if fits(column.type, wanted):
        try:
            return _convert(column, wanted), []
        except pa.ArrowException as error:  # a value would be lost
            found += f" ({error})"
    return column, [Conflict(column=name, part=part, found=found, expected=str(wanted))]


def _convert(array: Any, wanted: Any) -> Any:
    # Level by level and only where the type changes: arrow's own cast of a list gives items of the null type the
    # length of the column (seen in 26.0), which makes an array that is not valid.
    if array.type == wanted:
        return array
    if isinstance(array, pa.ChunkedArray):
        return pa.chunked_array([_convert(chunk, wanted) for chunk in array.chunks], type=wanted)
    if isinstance(array, pa.ExtensionArray):  # JSON whose storage is another kind of text
        return pa.ExtensionArray.from_storage(wanted, array.storage.cast(wanted.storage_type))
    if pa.types.is_struct(array.type) and pa.types.is_struct(wanted) and wanted.num_fields:
        present = {field.name: array.field(position) for position, field in enumerate(array.type)}
        children = [
            _convert(present[field.name], field.type) if field.name in present else pa.nulls(len(array), field.type)
            for field in wanted
        ]
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=array.is_null())
    if pa.types.is_large_list(array.type) and pa.types.is_large_list(wanted):
        items = _convert(array.flatten(), wanted.value_type)
        lengths = pc.fill_null(pc.list_value_length(array), 0)
        offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths).cast(pa.int64())])
        return pa.LargeListArray.from_arrays(offsets, items, mask=array.is_null())
    if pa.types.is_integer(array.type) and pa.types.is_decimal(wanted):
        # arrow requires room for any integer of the type; from the widest decimal it checks the values.
        array = array.cast(pa.decimal128(DECIMAL_DIGITS, wanted.scale))
    return array.cast(wanted)


def conform(table: pa.Table, schema: pa.Schema, *, part: str) -> tuple[pa.Table, tuple[Conflict, ...]]:
    """Return the table with this schema, columns it lacks being null, and a conflict for each column that cannot be.

    A column in conflict keeps the type it has.
    """
    arrays: list[Any] = []
    conflicts: list[Conflict] = []
    present = dict(zip(table.column_names, table.columns, strict=True))
    for field in schema:
        column = present.get(field.name)
        if column is None:
            arrays.append(pa.nulls(table.num_rows, field.type))
            continue
        column, misfit = _fit(column, field.type, field.name, part)
        conflicts += misfit
        arrays.append(column)
    return pa.Table.from_arrays(arrays, names=schema.names), tuple(conflicts)


def distinct_conflicts(conflicts: Iterable[Conflict]) -> tuple[Conflict, ...]:
    """Return the first conflict of each column and part: a part may be found wrong when written and again when read."""
    first: dict[tuple[str, str], Conflict] = {}
    for conflict in conflicts:
        first.setdefault((conflict.column, conflict.part), conflict)
    return tuple(first.values())


def conflict_error(conflicts: Sequence[Conflict]) -> SchemaConflict:
    """Return the error that names every conflict and what can still be read."""
    lines = "; ".join(map(str, conflicts))
    return SchemaConflict(f"{lines}. Other columns can be read by columns=[...], and each part file by itself")
