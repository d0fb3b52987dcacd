"""The types of columns as a recipe file names them: `int`, `list[str]`, or a polars type such as `Int32`."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from typing import Any

import polars as pl

from ..errors import ConfigError
from ..graph import nearest

_NAMES: dict[str, Any] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "bytes": bytes,
    "date": date,
    "datetime": datetime,
    "time": time,
    "timedelta": timedelta,
}
# Polars types that need no argument.
_POLARS: dict[str, Any] = {
    dtype.__name__: dtype
    for dtype in (
        *(pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64),
        *(pl.Float32, pl.Float64, pl.String, pl.Boolean, pl.Binary, pl.Date, pl.Time, pl.Datetime, pl.Duration),
    )
}
_TEXTS = {dtype: name for name, dtype in (_NAMES | _POLARS).items()}


def read_dtype(value: Any) -> Any:
    """The type that a text names, or a mapping of texts; anything but text is returned as it is."""
    if isinstance(value, Mapping):
        return {name: read_dtype(each) for name, each in value.items()}
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.startswith("list[") and text.endswith("]"):
        return types.GenericAlias(list, (read_dtype(text[len("list[") : -1]),))
    known = _NAMES | _POLARS
    if text not in known:
        raise ConfigError(f"there is no type {value!r}{nearest(text, known)}")
    return known[text]


def dtype_text(dtype: Any) -> str | None:
    """The text that `read_dtype` reads as this type; None for a type that no text names."""
    if isinstance(dtype, types.GenericAlias) and typing.get_origin(dtype) is list:
        inner = dtype_text(typing.get_args(dtype)[0])
        return None if inner is None else f"list[{inner}]"
    try:
        return _TEXTS.get(dtype)
    except TypeError:
        return None
