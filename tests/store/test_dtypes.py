"""Declared types, what fits into what, and what unites two types."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from seedbed.errors import ConfigError
from seedbed.store.schema import canonical, declared_type, fits, stored, unite

TEXT = pa.large_string()


def struct(**fields: pa.DataType) -> pa.DataType:
    """A struct type by its fields."""
    return pa.struct(list(fields.items()))


@pytest.mark.parametrize(
    ("declared", "kind"),
    [
        (str, TEXT),
        (int, pa.int64()),
        (float, pa.float64()),
        (bool, pa.bool_()),
        (bytes, pa.large_binary()),
        (datetime, pa.timestamp("us")),
        (date, pa.date32()),
        (time, pa.time64("us")),
        (timedelta, pa.duration("us")),
        (list[float], pa.large_list(pa.float64())),
        (list[list[str]], pa.large_list(pa.large_list(TEXT))),
        (pl.String, TEXT),
        (pl.Int8(), pa.int8()),
        (pl.Datetime("ms", "UTC"), pa.timestamp("ms", "UTC")),
        (pl.Decimal(10, 2), pa.decimal128(10, 2)),
        (pl.List(pl.Float32), pa.large_list(pa.float32())),
        (pl.Array(pl.Float32, 3), pa.list_(pa.float32(), 3)),
        (pl.Struct({"a": pl.String}), struct(a=TEXT)),
        (pa.string(), TEXT),
        (pa.list_(pa.string()), pa.large_list(TEXT)),
        (pa.timestamp("s"), pa.timestamp("ms")),
        (pa.date64(), pa.date32()),
        (pa.struct([pa.field("a", pa.string(), nullable=False)]), struct(a=TEXT)),
    ],
)
def test_declared_types(declared: object, kind: pa.DataType) -> None:
    """Polars, arrow and Python types have one arrow spelling."""
    assert declared_type(declared) == kind


@pytest.mark.parametrize(
    "declared",
    [
        "str",
        None,
        object,
        dict,
        list,
        list[object],
        Decimal,
        pl.Object,
        pl.Null,
        pl.Unknown,
        pl.List,
        pl.Struct,
        pl.Categorical,
        pl.Enum(["a"]),
        pl.Int128,
        pa.null(),
        pa.map_(pa.string(), pa.int8()),
        pa.decimal256(50),
    ],
)
def test_types_that_cannot_be_declared(declared: object) -> None:
    """A type without content, or that cannot be stored, is an error that names it."""
    with pytest.raises(ConfigError, match="a column cannot be declared as"):
        declared_type(declared)


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (pa.null(), TEXT, TEXT),
        (pa.int8(), pa.int64(), pa.int64()),
        (pa.uint8(), pa.int8(), pa.int16()),
        (pa.uint32(), pa.int8(), pa.int64()),
        (pa.uint64(), pa.int64(), None),
        (pa.int64(), pa.float64(), pa.float64()),
        (pa.int8(), pa.float32(), pa.float64()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.decimal128(3, 2), pa.decimal128(4, 0), pa.decimal128(6, 2)),
        (pa.decimal128(3, 2), pa.int64(), pa.decimal128(22, 2)),
        (pa.decimal128(38, 2), pa.decimal128(38, 10), None),
        (pa.decimal128(3, 2), pa.float64(), None),
        (pa.bool_(), pa.int64(), None),
        (TEXT, pa.int64(), None),
        (TEXT, pa.large_binary(), None),
        (pa.binary(2), pa.large_binary(), pa.large_binary()),
        (pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("us")),
        (pa.timestamp("us", "Europe/Berlin"), pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC")),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), None),
        (pa.duration("ms"), pa.duration("ns"), pa.duration("ns")),
        (pa.time64("us"), pa.time64("ns"), pa.time64("ns")),
        (struct(a=pa.int64()), struct(b=TEXT, a=pa.float64()), struct(a=pa.float64(), b=TEXT)),
        (pa.struct([]), struct(a=TEXT), struct(a=TEXT)),
        (struct(a=pa.int64()), struct(a=TEXT), None),
        (struct(a=pa.int64()), pa.large_list(pa.int64()), None),
        (pa.large_list(pa.null()), pa.large_list(struct(a=TEXT)), pa.large_list(struct(a=TEXT))),
        (pa.large_list(pa.int64()), pa.large_list(TEXT), None),
        (pa.list_(pa.int8(), 2), pa.list_(pa.float32(), 2), pa.list_(pa.float64(), 2)),
        (pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 3), pa.large_list(pa.int8())),
    ],
)
def test_two_types_united(one: pa.DataType, other: pa.DataType, both: pa.DataType | None) -> None:
    """The union of two types is the same from either side, and None where one would have to give way."""
    assert unite(one, other) == both
    swapped = unite(other, one)
    if both is None:
        assert swapped is None
    else:
        assert swapped is not None
        assert fits(swapped, both)
        assert fits(both, swapped)


LEAVES = st.sampled_from(
    [
        pa.null(), pa.bool_(), pa.int8(), pa.uint16(), pa.int64(), pa.uint64(), pa.float32(), pa.float64(), TEXT,
        pa.large_binary(), pa.date32(), pa.timestamp("ms"), pa.timestamp("us", "UTC"), pa.decimal128(5, 2),
    ]
)  # fmt: skip
TYPES = st.recursive(
    LEAVES,
    lambda inner: (
        st.builds(pa.large_list, inner)
        | st.dictionaries(st.sampled_from("abc"), inner, max_size=3).map(lambda fields: pa.struct(list(fields.items())))
    ),
    max_leaves=5,
)


@given(TYPES, TYPES)
def test_a_union_holds_both(one: Any, other: Any) -> None:
    """Both types fit into their union, uniting again changes nothing, and nulls of either can really be cast."""
    both = unite(one, other)
    assume(both is not None)
    assert both is not None
    for kind in (one, other):
        assert fits(kind, both)
        assert unite(both, kind) == both
        assert pa.nulls(2, kind).cast(both).null_count == 2
    assert canonical(both) == both
    assert fits(stored(both), both)
