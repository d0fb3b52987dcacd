"""The types of columns as a recipe file names them: `int`, `list[str]`, `json`, `Int32`, `Struct({'name': String})`."""

from __future__ import annotations

import ast
import types
import typing
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from itertools import accumulate
from typing import Any

import polars as pl
import pyarrow as pa

from ..checks import MAX_DEPTH
from ..errors import ConfigError
from ..graph import nearest
from ..store.schema import declared_type
from ..store.values import JSON, is_json

_MAX_LENGTH = 100_000
# The types that need no argument, and polars' types that take arguments.
_NAMES: dict[str, Any] = {
    each.__name__: each
    for each in (
        *(str, int, float, bool, bytes, date, datetime, time, timedelta),
        *(pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64),
        *(pl.Float32, pl.Float64, pl.String, pl.Boolean, pl.Binary, pl.Date, pl.Time, pl.Datetime, pl.Duration),
        *(pl.Decimal, pl.Categorical),
    )
} | {"json": JSON}
_MAKERS: dict[str, Any] = {
    each.__name__: each for each in (pl.List, pl.Array, pl.Struct, pl.Enum, pl.Datetime, pl.Duration, pl.Decimal)
}
_TEXTS = {dtype: name for name, dtype in _NAMES.items()}


def read_dtype(value: Any) -> Any:
    """The type that a text names, or a mapping of texts; anything but text is returned as it is."""
    if isinstance(value, Mapping):
        return {name: read_dtype(each) for name, each in value.items()}
    if not isinstance(value, str):
        return value
    levels = accumulate((char in "([{") - (char in ")]}") for char in value)
    if len(value) > _MAX_LENGTH or max(levels, default=0) > MAX_DEPTH:
        raise ConfigError(f"the type {value[:20]!r}… is nested too deep or too long")
    try:
        return _read(ast.parse(value.strip(), mode="eval").body)
    except ConfigError:
        raise
    except SyntaxError:
        return _known(value, _NAMES)
    except (RecursionError, MemoryError):  # too many levels for the parser
        raise ConfigError(f"the type {value[:20]!r}… is nested too deep") from None
    except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
        raise ConfigError(f"invalid type {value!r}: {error}") from error


def _read(node: ast.expr) -> Any:
    """The type of an expression; only the types above are called, and no other code runs."""
    match node:
        case ast.Name(id=name):
            return _known(name, _NAMES)
        case ast.Subscript(value=ast.Name(id="list"), slice=inner):
            if (item := _read(inner)) is JSON:
                raise ConfigError("json is the type of a whole column: a document may be a list")
            return types.GenericAlias(list, (item,))
        case ast.Call(func=ast.Name(id=name), args=given, keywords=named):
            arguments = {each.arg: _read_argument(each.value) for each in named if each.arg is not None}
            return _known(name, _MAKERS)(*map(_read_argument, given), **arguments)
    return _known(ast.unparse(node), _NAMES)


def _known(name: str, among: Mapping[str, Any]) -> Any:
    if name not in among:
        raise ConfigError(f"unknown type {name!r}{nearest(name, among)}")
    return among[name]


def _read_argument(node: ast.expr) -> Any:
    """A type, a mapping of names to types, or a constant."""
    match node:
        case ast.Dict(keys=keys, values=values) if all(isinstance(key, ast.Constant) for key in keys):
            names = [str(ast.literal_eval(key)) for key in keys if key is not None]
            return {name: _read(each) for name, each in zip(names, values, strict=True)}
        case ast.Name() | ast.Subscript() | ast.Call():
            return _read(node)
    constant = ast.literal_eval(node)
    if isinstance(constant, int) and abs(constant) >= 2**31:
        raise ConfigError(f"{constant} is too large a number for a type")
    return constant


def dtype_text(dtype: Any) -> str | None:
    """The text that `read_dtype` reads as this type; None for other values, and for a type that cannot be stored."""
    if is_json(dtype):
        return "json"
    if isinstance(dtype, types.GenericAlias) and typing.get_origin(dtype) is list:
        inner = dtype_text(typing.get_args(dtype)[0])
        return None if inner is None else f"list[{inner}]"
    if isinstance(dtype, pa.DataType):
        return _arrow_text(dtype)
    if isinstance(dtype, pl.DataType) and (arguments := _arguments(dtype)):
        return None if None in arguments else f"{type(dtype).__name__}({', '.join(map(str, arguments))})"
    try:
        # An instance of a type that takes no argument is equivalent to the type.
        return _TEXTS.get(type(dtype) if isinstance(dtype, pl.DataType) else dtype)
    except TypeError:
        return None


def _arguments(dtype: pl.DataType) -> list[str | None]:
    """The arguments of a polars type as texts; None for one that cannot be stored."""
    # Not by polars' `repr`, which may change with its version: datasets store this text.
    match dtype:
        case pl.List():
            return [dtype_text(dtype.inner)]
        case pl.Array():
            return [dtype_text(dtype.inner), str(dtype.size)]
        case pl.Struct():
            fields = {field.name: dtype_text(field.dtype) for field in dtype.fields}
            inner = ", ".join(f"{name!r}: {text}" for name, text in fields.items())
            return [None if None in fields.values() else f"{{{inner}}}"]
        case pl.Enum():
            return [repr(dtype.categories.to_list())]
        case pl.Datetime():
            return [repr(each) for each in (dtype.time_unit, dtype.time_zone) if each is not None]
        case pl.Duration():
            return [repr(dtype.time_unit)]
        case pl.Decimal():
            return [repr(dtype.precision), repr(dtype.scale)]
    return []


def _arrow_text(dtype: pa.DataType) -> str:
    """The text of the polars type that is the same on disk; else arrow's, which `read_dtype` rejects."""
    try:
        arrow = declared_type(dtype)
        same = pl.Series(pa.array([], type=arrow)).dtype
        text = dtype_text(same) if declared_type(same) == arrow else None
    except (pl.exceptions.PolarsError, pa.ArrowException, ConfigError, TypeError, ValueError):
        text = None
    return f"arrow {dtype}" if text is None else text
