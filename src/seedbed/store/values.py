"""Python values as one arrow column.

pyarrow's own inference is not used for mixed or nested values, because it silently loses data: it turns strings into
bytes, drops time zones and truncates. Here every level of nesting has one arrow type that holds all of its values, or
raises a `TypeError` or `ValueError` with the reason.

A column of type `JSON` holds any documents: in arrow and polars their text, in Python the objects.

`Buffer` holds the Python values of one row group until then.
"""

from __future__ import annotations

import base64
import json
import re
from collections import deque
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence


# Arrow's own type for documents, which parquet, DuckDB, polars and Hugging Face `datasets` know too.
JSON = pa.json_(pa.large_string())
POLARS_JSON = pl.Series(pa.array([], JSON)).dtype

_NONE = type(None)
_SURROGATE = re.compile("[\ud800-\udfff]")


def arrow_array(values: Sequence[Any]) -> pa.Array[Any] | pa.ChunkedArray[Any]:
    """Return the values as one arrow column; raise `TypeError` or `ValueError` if no one type holds them all.

    Integers beside floats become doubles, dictionaries become structs with every key seen, and all null is the null
    type. A lone surrogate, which UTF-8 cannot hold, becomes U+FFFD. Aware datetimes become instants in UTC.
    """
    kinds = set(map(type, values))
    kinds.discard(_NONE)
    if not kinds:
        return pa.nulls(len(values))
    if not kinds <= _BUILDERS.keys():
        vectors = _vectors(values, kinds)
        if vectors is not None:
            return vectors
        converters = {kind: _converter(kind) for kind in kinds - _BUILDERS.keys()}
        return arrow_array([converters[type(v)](v) if type(v) in converters else v for v in values])
    if len(kinds) == 1:
        built: pa.Array[Any] = _BUILDERS[kinds.pop()](values)
        return built
    if kinds == {int, float}:
        return pa.array(values, pa.float64())
    if kinds == {int, Decimal}:
        return _decimals(values)
    names = " and ".join(sorted(kind.__name__ for kind in kinds))
    raise TypeError(f"values of {names}")


def text_array(values: Sequence[Any]) -> pa.Array[Any] | pa.ChunkedArray[Any]:
    """Return each value as JSON text, or as its `str` where JSON cannot express it; never raises, null stays null."""
    return pa.array([None if value is None else _text(value) for value in values], pa.large_string())


def is_json(dtype: object) -> bool:
    """True for the type of documents, as arrow or polars has it."""
    return isinstance(dtype, pa.JsonType) or (
        isinstance(dtype, pl.BaseExtension) and dtype.ext_name() == JSON.extension_name
    )


def json_array(values: Sequence[Any]) -> pa.ExtensionArray[Any]:
    """Return documents as one arrow column; raise `TypeError` or `ValueError` for a value that JSON cannot express."""
    texts = [None if value is None else json_text(value) for value in values]
    return pa.ExtensionArray.from_storage(JSON, pa.array(texts, pa.large_string()))


def json_series(series: pl.Series) -> pl.Series:
    """Return a column as documents: text is parsed, other values are encoded; raise `TypeError` or `ValueError`."""
    values = series.to_list() if is_json(series.dtype) or series.dtype == pl.String else None
    if values is None:
        return pl.Series(series.name, json_array(series.to_list()))
    documents = python_values(pl.Series(series.name, values, dtype=POLARS_JSON))
    return pl.Series(series.name, json_array(documents))


def json_text(value: object) -> str:
    """Return the JSON text of a value, which is equal to it after parsing; the order of keys is kept."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    # UTF-8 cannot hold lone surrogates, but escapes can.
    return json.dumps(value, allow_nan=False) if _SURROGATE.search(text) else text


def python_values(column: pl.Series | pa.Array[Any] | pa.ChunkedArray[Any]) -> list[Any]:
    """Return the values of a column as Python objects, documents parsed; `ValueError` for text that is not JSON."""
    if isinstance(column, pl.Series):
        values, dtype = column.to_list(), column.dtype
    else:
        values, dtype = column.to_pylist(), column.type
    if not is_json(dtype):
        return values
    try:
        return [None if text is None else json.loads(text) for text in values]
    except RecursionError as error:
        raise ValueError("a document is nested too deep") from error


def python_rows(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a frame as Python objects, documents parsed; `ValueError` for text that is not JSON."""
    names = [name for name, dtype in frame.schema.items() if is_json(dtype)]
    rows = frame.to_dicts()
    for name in names:
        for row, value in zip(rows, python_values(frame[name]), strict=True):
            row[name] = value
    return rows


def _integers(values: Sequence[Any]) -> pa.Array[Any]:
    try:
        return pa.array(values, pa.int64())
    except OverflowError:
        return pa.array(values, pa.uint64())


def _strings(values: Sequence[Any]) -> pa.Array[Any] | pa.ChunkedArray[Any]:
    try:
        return pa.array(values, pa.large_string())
    except UnicodeEncodeError:
        return pa.array([None if value is None else _without_surrogates(value) for value in values], pa.large_string())


def _without_surrogates(text: str) -> str:
    # Pairs of surrogates are joined to the character they mean; a lone one becomes U+FFFD.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _decimals(values: Sequence[Any]) -> pa.Array[Any]:
    # Of integers beside decimals pyarrow takes the digits of the first value for those of all.
    array: pa.Array[Any] = pa.array([Decimal(value) if isinstance(value, int) else value for value in values])
    if not pa.types.is_decimal128(array.type):
        raise ValueError("decimals of more than 38 digits")
    return array


def _datetimes(values: Sequence[Any]) -> pa.Array[Any]:
    aware = {value.utcoffset() is not None for value in values if value is not None}
    if len(aware) == 2:
        raise TypeError("datetimes with and without a time zone")
    return pa.array(values, pa.timestamp("us", "UTC") if True in aware else pa.timestamp("us"))


def _times(values: Sequence[Any]) -> pa.Array[Any]:
    if any(value is not None and value.tzinfo is not None for value in values):
        raise TypeError("times with a time zone")
    return pa.array(values, pa.time64("us"))


def _structs(values: Sequence[Any]) -> pa.Array[Any]:
    keys = dict.fromkeys(chain.from_iterable(value for value in values if value is not None))
    if not all(isinstance(key, str) for key in keys):
        raise TypeError("dictionaries with keys that are not strings")
    if any("\0" in key for key in keys):
        # Arrow hands names to polars as C strings, which end there: two keys could become one.
        raise ValueError("dictionaries with NUL in a key")
    if not keys:
        return pa.array(values, pa.struct([]))
    children = [_whole(arrow_array([None if value is None else value.get(key) for value in values])) for key in keys]
    fields = [pa.field(key, child.type) for key, child in zip(keys, children, strict=True)]
    return pa.StructArray.from_arrays(children, fields=fields, mask=_null_mask(values))


def _lists(values: Sequence[Any]) -> pa.Array[Any]:
    items = arrow_array(list(chain.from_iterable(value for value in values if value is not None)))
    return _list_array([0 if value is None else len(value) for value in values], _whole(items), values)


def _list_array(lengths: Sequence[int], items: pa.Array[Any], values: Sequence[Any]) -> pa.Array[Any]:
    offsets = pa.array([0, *accumulate(lengths)], pa.int64())
    return pa.LargeListArray.from_arrays(offsets, items, mask=_null_mask(values))


def _null_mask(values: Sequence[Any]) -> pa.BooleanArray:
    return pa.array([value is None for value in values], pa.bool_())


def _whole(array: pa.Array[Any] | pa.ChunkedArray[Any]) -> pa.Array[Any]:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


_BUILDERS: dict[type, Callable[[Sequence[Any]], Any]] = {
    bool: lambda values: pa.array(values, pa.bool_()),
    int: _integers,
    float: lambda values: pa.array(values, pa.float64()),
    str: _strings,
    bytes: lambda values: pa.array(values, pa.large_binary()),
    Decimal: _decimals,
    datetime: _datetimes,
    date: lambda values: pa.array(values, pa.date32()),
    time: _times,
    timedelta: lambda values: pa.array(values, pa.duration("us")),
    dict: _structs,
    list: _lists,
}


def _vectors(values: Sequence[Any], kinds: set[type]) -> pa.Array[Any] | None:
    """Series and flat numpy arrays of one number type as a list column of that type, without Python items."""
    if not kinds <= {pl.Series, np.ndarray} or any(getattr(value, "ndim", 1) != 1 for value in values):
        return None
    vectors = [value for value in values if value is not None]
    arrays = [vector.to_arrow() if isinstance(vector, pl.Series) else pa.array(vector) for vector in vectors]
    kind = arrays[0].type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)) or any(array.type != kind for array in arrays):
        return None
    lengths = [0 if value is None else len(value) for value in values]
    return _list_array(lengths, pa.concat_arrays(arrays), values)


def _converter(kind: type) -> Callable[[Any], Any]:
    """Return what converts a type that arrow does not know to one that it does; `TypeError` if nothing does."""
    for base, convert in _CONVERTERS.items():
        if issubclass(kind, base):
            return convert
    raise TypeError(f"values of {kind.__name__}")


# In this order: an enum may also be a string or an integer, a datetime is also a date.
_CONVERTERS: dict[type, Callable[[Any], Any]] = {
    Enum: lambda value: value.value,
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    bytes: bytes,
    bytearray: bytes,
    memoryview: bytes,
    datetime: lambda value: datetime.fromisoformat(datetime.isoformat(value)),
    date: lambda value: date(value.year, value.month, value.day),
    Mapping: dict,
    list: list,
    tuple: list,
    deque: list,
    np.generic: lambda value: value.tolist(),
    np.ndarray: lambda value: value.tolist(),
    pl.Series: pl.Series.to_list,
    pa.Array: lambda value: value.to_pylist(),
    pa.ChunkedArray: lambda value: value.to_pylist(),
    pa.Scalar: lambda value: value.as_py(),
}


def _text(value: object) -> str:
    # A user's object may raise anything when it is looked at, and no value may cost its row group.
    try:
        text = json.dumps(value, default=_json_default, ensure_ascii=False)
    except Exception:  # noqa: BLE001
        try:
            text = str(value)
        except Exception:  # noqa: BLE001
            text = f"<{type(value).__qualname__}>"
    return _without_surrogates(text)


def _json_default(value: Any) -> object:
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode()
    try:
        return _converter(type(value))(value)
    except TypeError:
        return str(value)


def values_of(column: pa.ChunkedArray[Any]) -> list[Any]:
    """Return a stored column as values that are stored as the same type again, documents parsed."""
    kind: Any = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if is_list and kind.value_type in _VECTORS:  # those of Python numbers would become vectors of 64 bits
        return [None if each is None else np.asarray(each, _VECTORS[kind.value_type]) for each in column.to_pylist()]
    return python_values(column)


_VECTORS: dict[pa.DataType, type] = {
    pa.float16(): np.float16,
    pa.float32(): np.float32,
    pa.int8(): np.int8,
    pa.int16(): np.int16,
    pa.int32(): np.int32,
    pa.uint8(): np.uint8,
    pa.uint16(): np.uint16,
    pa.uint32(): np.uint32,
    pa.uint64(): np.uint64,
}


class Buffer:
    """One row group, column by column; a cell that was not written is None.

    Only its row group writes it, cell by cell; `free` releases the memory after the checkpoint.
    """

    __slots__ = ("_columns", "rows")

    def __init__(self, columns: Iterable[str], rows: int) -> None:
        self.rows = rows
        self._columns: dict[str, list[Any]] = {column: [None] * rows for column in columns}

    @classmethod
    def from_frame(cls, frame: pl.DataFrame, columns: Sequence[str]) -> Buffer:
        """Return a buffer of the frame's rows: columns in the frame are filled, the others are empty.

        Columns that only the frame has are left out.
        """
        buffer = cls(columns, frame.height)
        for column in columns:
            if column in frame.columns:
                buffer._columns[column] = python_values(frame[column])
        return buffer

    def update_cell(self, row: int, column: str, value: object) -> None:
        self._columns[column][row] = value

    def values(self, column: str) -> list[Any]:
        """Return the column itself, not a copy: to be read only."""
        return self._columns[column]

    def take(self, columns: Iterable[str], rows: Sequence[int] | None = None) -> dict[str, list[Any]]:
        """Return the columns, or only the given local rows of them."""
        if rows is None:
            return {column: self._columns[column] for column in columns}
        return {column: list(map(self._columns[column].__getitem__, rows)) for column in columns}

    def free(self) -> None:
        """Forget every value; the buffer has no columns from then on."""
        self._columns.clear()


def make_frame(
    columns: Mapping[str, list[Any]], height: int, *, documents: Container[str] = frozenset()
) -> pl.DataFrame:
    """Return the columns as polars, also where there is none; `documents` names those that are declared as JSON.

    A struct has every key that any row has. A column whose values have no one type is of dtype Object.
    """
    if not columns:
        return pl.DataFrame(height=height)
    return pl.DataFrame([_series(name, values, name in documents) for name, values in columns.items()])


def _series(name: str, values: list[Any], are_documents: bool) -> pl.Series:
    try:
        if are_documents:
            return pl.Series(name, json_array(values))
        # Not by polars' own inference: it forgets struct keys that first appear after row 100.
        return pl.Series(name, arrow_array(values))
    except Exception:  # noqa: BLE001 - a user's object may raise anything when it is looked at
        return pl.Series(name, values, dtype=pl.Object)
