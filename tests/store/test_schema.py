"""Columns as arrow and one schema over all parts."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from seedbed.store.schema import arrow_table, conform, stored_table, unify

TEXT: pa.DataType = pa.large_string()


def struct(**fields: pa.DataType) -> pa.DataType:
    """A struct type by its fields."""
    return pa.struct(list(fields.items()))


@pytest.mark.parametrize(
    ("values", "declared", "read"),
    [
        ([1, None], pa.float64(), [1.0, None]),
        ([1.0, 2], pa.int64(), [1, 2]),
        ([300], pa.int16(), [300]),
        ([None], TEXT, [None]),
        ([], TEXT, []),
        ([1], pa.decimal128(10, 2), [Decimal(1)]),
        ([date(2020, 1, 2)], pa.timestamp("us"), [datetime(2020, 1, 2)]),  # noqa: DTZ001 - declared without a zone
        ([[1, 2], None], pa.list_(pa.float32(), 2), [[1.0, 2.0], None]),
        ([{"b": 1}, {}], struct(a=TEXT, b=pa.float64()), [{"a": None, "b": 1.0}, {"a": None, "b": None}]),
        ([b"ab"], pa.binary(2), [b"ab"]),
    ],
)
def test_declared_types_win(values: list[Any], declared: pa.DataType, read: list[Any]) -> None:
    """Values that fit a declared type have that type in the table."""
    table, conflicts = arrow_table({"c": values}, {"c": declared})
    assert conflicts == ()
    assert table.schema.field("c").type == declared
    assert table["c"].to_pylist() == read


@pytest.mark.parametrize(
    ("values", "declared", "kind"),
    [
        ([1.5], pa.int64(), pa.float64()),
        ([300], pa.int8(), pa.int64()),
        (["1"], pa.int64(), TEXT),
        ([1], TEXT, pa.int64()),
        ([1], pa.bool_(), pa.int64()),
        ([True], pa.int64(), pa.bool_()),
        ([{"a": 1, "extra": 2}], struct(a=pa.int64()), struct(a=pa.int64(), extra=pa.int64())),
        ([[1, 2, 3]], pa.list_(pa.int64(), 2), pa.large_list(pa.int64())),
        ([1, "a"], pa.int64(), TEXT),
    ],
)
def test_a_value_of_another_type_is_stored_and_reported(
    values: list[Any], declared: pa.DataType, kind: pa.DataType
) -> None:
    """A value that a declared type cannot hold without loss is stored with its own type, and the column is named."""
    table, (conflict,) = arrow_table({"fine": [0] * len(values), "c": values}, {"c": declared}, part="part 7")
    assert table.schema == pa.schema([("fine", pa.int64()), ("c", kind)])
    assert (conflict.column, conflict.part, conflict.expected) == ("c", "part 7", str(declared))
    assert str(conflict).startswith("column 'c' of part 7 holds")


def test_frames_are_spelled_the_same() -> None:
    """A frame that a processor gave has the types that the same values have as lists."""
    frame = pl.DataFrame(
        {"s": ["a", None], "c": pl.Series(["x", "y"], dtype=pl.Categorical), "n": [None, None], "e": [{}, None]}
    ).with_columns(o=pl.Series([1, 2], dtype=pl.Object), big=pl.Series([2**100, 1], dtype=pl.Int128))
    table, (conflict,) = arrow_table(frame, {"o": pa.float64()})
    assert conflict.column == "big"
    assert table["big"].to_pylist() == [str(2**100), "1"]
    assert table.drop_columns("big").schema == pa.schema(
        {"s": TEXT, "c": TEXT, "n": pa.null(), "e": pa.struct([]), "o": pa.float64()}
    )


def test_empty_structs_are_stored_and_read_back() -> None:
    """On disk a struct without fields has one of nothing, at any depth, and conforming drops it again."""
    schema = pa.schema({"e": pa.struct([]), "deep": pa.large_list(struct(x=pa.struct([])))})
    table = pa.table({"e": [{}, None], "deep": [[{"x": {}}], None]}, schema=schema)
    on_disk = stored_table(table)
    assert "struct<>" not in str(on_disk.schema)
    back, conflicts = conform(on_disk, schema, part="p")
    assert conflicts == ()
    assert back.equals(table)


def cast(column: Any, wanted: pa.DataType) -> Any:
    """Cast a column as that of a table is that has to have a schema."""
    table, conflicts = conform(pa.table({"c": column}), pa.schema({"c": wanted}), part="p")
    assert conflicts == ()
    return table["c"]


@pytest.mark.parametrize(
    ("values", "wanted", "read"),
    [
        ([[None, None], None], pa.large_list(pa.int8()), [[None, None], None]),
        ([{"n": [None, None], "i": 1}], None, [{"n": [None, None], "i": 1.0}]),
        ([[{"n": [None, None, None]}, {}], [], None, [None]], None, None),
        ([[[], [1]], None, [None, [2, 3]]], pa.large_list(pa.large_list(pa.float64())), None),
    ],
)
def test_nested_nulls_are_cast(values: list[Any], wanted: pa.DataType | None, read: list[Any] | None) -> None:
    """Nested values, items of nothing among them, and slices of them are cast to valid arrays that hold the same."""
    table, _ = arrow_table({"c": values}, {})
    column = table["c"]
    if wanted is None:
        more = struct(n=pa.large_list(pa.null()), i=pa.float64())
        wanted = more if pa.types.is_struct(column.type) else pa.large_list(more)
    for part in (column, column.slice(1), column.slice(0, 1), column.slice(0, 0)):
        done = cast(part, wanted)
        done.validate(full=True)
        assert done.type == wanted
        if read is not None and len(part) == len(values):
            assert done.to_pylist() == read
        assert cast(done, wanted).equals(done)
        assert [value is None for value in done.to_pylist()] == [value is None for value in part.to_pylist()]


def test_unify_names_column_part_and_types() -> None:
    """Of parts that cannot be united the one that differs is named, with what it holds and what the others hold."""
    schemas: list[tuple[str, pa.Schema]] = [
        ("part 0", pa.schema([pa.field("b", pa.int64())])),
        ("part 1", pa.schema({"a": pa.int64(), "b": TEXT})),
        ("part 2", pa.schema({"a": pa.float64(), "c": TEXT})),
    ]
    schema, (conflict,) = unify(schemas, order=["c", "a", "gone"])
    assert schema == pa.schema({"c": TEXT, "a": pa.float64(), "b": pa.int64()})
    assert str(conflict) == "column 'b' of part 1 holds large_string, expected int64"


def test_unify_keeps_declared_types() -> None:
    """A declared type is never widened by what a part holds: another type there is a conflict, null is not."""
    schemas = [("p0", pa.schema({"a": pa.null()})), ("p1", pa.schema({"a": pa.float64()}))]
    schema, (conflict,) = unify(schemas, declared={"a": pa.int64()})
    assert schema == pa.schema({"a": pa.int64()})
    assert (conflict.part, conflict.found, conflict.expected) == ("p1", "double", "int64")


def test_unify_nothing() -> None:
    """Without any part the columns asked for have their declared types, or null."""
    schema, conflicts = unify([], declared={"b": TEXT}, order=["a", "b"])
    assert schema == pa.schema({"a": pa.null(), "b": TEXT})
    assert conflicts == ()
