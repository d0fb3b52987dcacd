"""One schema over all parts: columns as arrow, the schema that holds every part, and what does not fit it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from attrs.validators import instance_of

from ..errors import SchemaConflict
from .dtypes import DECIMAL_DIGITS, canonical, declared_type, fits, stored, unite
from .values import arrow_array, text_array

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# `declared_type` belongs to what a caller needs for `declared`, so it is offered here too.
__all__ = [
    "Conflict",
    "arrow_table",
    "cast",
    "conflict_error",
    "conform",
    "declared_type",
    "distinct_conflicts",
    "stored_table",
    "unify",
]


@attrs.frozen(kw_only=True)
class Conflict:
    """A column whose values could not have the type they should; the part that holds them kept them as `found`."""

    column: str = attrs.field(validator=instance_of(str))
    part: str = attrs.field(validator=instance_of(str))
    found: str = attrs.field(validator=instance_of(str))
    expected: str = attrs.field(validator=instance_of(str))

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
            # anything else is a misfit that was kept as it came.
            exact = wanted is None or field.type == wanted or pa.types.is_null(field.type)
            after = unite(before, field.type) if exact else None
            if after is None:
                found, expected = str(field.type), str(before)
                conflicts.append(Conflict(column=field.name, part=part, found=found, expected=expected))
                after = before
            united[field.name] = after
    if not distinct:
        united = {name: declared.get(name, pa.null()) for name in order}
    names = [*(name for name in order if name in united), *(name for name in united if name not in order)]
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
    conflicts = []
    names = columns.columns if isinstance(columns, pl.DataFrame) else list(columns)
    for name in names:
        wanted = declared.get(name)
        try:
            array = _frame_column(columns[name]) if isinstance(columns, pl.DataFrame) else arrow_array(columns[name])
            found = str(array.type)
        except Exception as error:  # noqa: BLE001 - a user's object may raise anything; its row group must be written
            array, found = text_array(list(columns[name])), str(error) or type(error).__name__
            expected = str(wanted) if wanted is not None else "values of one type"
            conflicts.append(Conflict(column=name, part=part, found=f"{found} (kept as JSON text)", expected=expected))
            wanted = None
        if wanted is not None and array.type != wanted:
            try:
                array = cast(array, wanted)
            except (TypeError, pa.ArrowException) as error:
                found = f"{found} ({error})" if isinstance(error, pa.ArrowException) else found
                conflicts.append(Conflict(column=name, part=part, found=found, expected=str(wanted)))
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


def cast(array: Any, wanted: pa.DataType) -> Any:
    """Cast an arrow column; `TypeError` if the types do not fit, an `ArrowException` if a value would be lost."""
    if not fits(array.type, wanted):
        raise TypeError(f"{array.type} does not fit {wanted}")
    return _convert(array, wanted)


def _convert(array: Any, wanted: Any) -> Any:
    # Level by level and only where the type changes: arrow's own cast of a list gives items of the null type the
    # length of the column (seen in 26.0), which makes an array that is not valid.
    if array.type == wanted:
        return array
    if isinstance(array, pa.ChunkedArray):
        return pa.chunked_array([_convert(chunk, wanted) for chunk in array.chunks], type=wanted)
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
        # arrow asks for room for every integer there could be; by way of the widest decimal it looks at the values.
        array = array.cast(pa.decimal128(DECIMAL_DIGITS, wanted.scale))
    return array.cast(wanted)


def conform(table: pa.Table, schema: pa.Schema, *, part: str) -> tuple[pa.Table, tuple[Conflict, ...]]:
    """Return the table with this schema, columns it lacks being null, and a conflict for each column that cannot be.

    A column in conflict keeps the type it has.
    """
    arrays: list[Any] = []
    conflicts = []
    for field in schema:
        if field.name not in table.column_names:
            arrays.append(pa.nulls(table.num_rows, field.type))
            continue
        column = table.column(field.name)
        try:
            column = cast(column, field.type)
        except (TypeError, pa.ArrowException) as error:
            found, expected = f"{column.type} ({error})", str(field.type)
            conflicts.append(Conflict(column=field.name, part=part, found=found, expected=expected))
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
