"""Types as texts: what is written down is read as the same type, and nothing else is run."""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedbed.columns.dtypes import dtype_text, read_dtype
from seedbed.errors import ConfigError
from seedbed.store.schema import declared_type

LEAVES = st.sampled_from(
    [
        pl.Int8(),
        pl.String(),
        pl.Boolean(),
        pl.Datetime("ms", "Europe/Berlin"),
        pl.Datetime("ns"),
        pl.Duration("us"),
        pl.Decimal(12, 3),
        pl.Enum(["it's", 'a "quote"', "\n", "é"]),
    ]
)
TYPES = st.recursive(
    LEAVES,
    lambda inner: (
        st.builds(pl.List, inner)
        | st.builds(pl.Array, inner, st.integers(1, 5))
        | st.dictionaries(st.text(), inner, max_size=3).map(pl.Struct)
    ),
    max_leaves=5,
)


@given(TYPES)
def test_polars_types_round_trip_through_text(dtype: pl.DataType) -> None:
    """Nested types too; different types have different texts."""
    text = dtype_text(dtype)
    assert text is not None
    assert read_dtype(text) == dtype
    assert dtype_text(pl.List(dtype)) != text


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        (pl.Struct({"a": pl.Int64, "b c": pl.List(pl.String)}), "Struct({'a': Int64, 'b c': List(String)})"),
        (pl.Array(pl.Float32, (2, 3)), "Array(Array(Float32, 3), 2)"),
        (pl.Datetime("us", "UTC"), "Datetime('us', 'UTC')"),
        (pl.Decimal, "Decimal"),
        (pl.Categorical(), "Categorical"),
        (list[pl.List(pl.Int8)], "list[List(Int8)]"),  # type: ignore[misc]
        (pa.struct([("a", pa.list_(pa.int16()))]), "Struct({'a': List(Int16)})"),
        (pa.timestamp("s", "UTC"), "Datetime('ms', 'UTC')"),
    ],
)
def test_texts_of_types(dtype: Any, text: str) -> None:
    """Python types have their names; arrow types have the text of the polars type that is stored in the same way."""
    assert dtype_text(dtype) == text
    read = read_dtype(text)
    if dtype != pl.Categorical:  # a column cannot be declared so, but cast
        assert declared_type(read) == declared_type(dtype)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("Array(Int8, shape=(2, 3))", pl.Array(pl.Int8, (2, 3))),
        ("Enum(categories=['a', 'b'])", pl.Enum(["a", "b"])),
        (" Struct({'a': list[str], 'b': int}) ", pl.Struct({"a": pl.List(pl.String), "b": pl.Int64})),
    ],
)
def test_read_dtype_accepts_other_spellings(text: str, same: pl.DataType) -> None:
    """Arguments by name, Python types as inner types, and spaces are accepted."""
    assert read_dtype(text) == same


def test_arrow_types_that_polars_does_not_have() -> None:
    """Each has its own text, which cannot be read."""
    assert dtype_text(pa.binary(16)) != dtype_text(pa.binary(8))
    with pytest.raises(ConfigError, match=r"unknown type 'arrow fixed_size_binary\[16\]'"):
        read_dtype(dtype_text(pa.binary(16)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Listt(Int8)", "unknown type 'Listt'; did you mean 'List'"),
        ("list[strr]", "unknown type 'strr'; did you mean 'str'"),
        ("List(Int8", r"unknown type 'List\(Int8'"),
        ("List()", r"invalid type 'List\(\)': .*missing"),
        ("Datetime('hours')", "invalid type .*time_unit"),
        ("Struct({**Int8})", "invalid type"),
        ("__import__('os').getcwd()", "unknown type"),
        ("List(print('x'))", "unknown type 'print'"),
        pytest.param("-" * 100_000 + "1", "nested too deep", id="too deep"),
    ],
)
def test_invalid_types_are_rejected(text: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the invalid part, and no code runs."""
    with pytest.raises(ConfigError, match=message):
        read_dtype(text)
    assert not capsys.readouterr().out
