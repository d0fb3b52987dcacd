"""Values that stand for what code would have returned: of the right type, and nothing more."""

from __future__ import annotations

import datetime
import decimal
import types
import typing
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TEXT = "placeholder"
_INSTANT = datetime.datetime(2024, 1, 1)  # noqa: DTZ001  columns of instants have no zone unless they say so
_BY_CLASS: dict[object, Any] = {
    str: TEXT,
    int: 1,
    float: 1.0,
    bool: True,
    bytes: b"placeholder",
    list: [],
    dict: {},
    datetime.datetime: _INSTANT,
    datetime.date: _INSTANT.date(),
}


def of_type(arrow: pa.DataType) -> Any:
    """A value of a declared type; null where no plain one fits."""
    kind = pa.types
    if kind.is_string(arrow) or kind.is_large_string(arrow):
        return TEXT
    if kind.is_boolean(arrow):
        return True
    if kind.is_integer(arrow):
        return 1
    if kind.is_floating(arrow):
        return 1.0
    if kind.is_decimal(arrow):
        return decimal.Decimal(1)
    if kind.is_binary(arrow) or kind.is_large_binary(arrow):
        return b"placeholder"
    if kind.is_list(arrow) or kind.is_large_list(arrow):
        return [of_type(arrow.value_type)]
    if kind.is_struct(arrow):
        return {field.name: of_type(field.type) for field in arrow}
    if kind.is_timestamp(arrow):
        return _INSTANT if arrow.tz is None else _INSTANT.replace(tzinfo=datetime.UTC)
    if kind.is_date(arrow):
        return _INSTANT.date()
    return datetime.timedelta(seconds=1) if kind.is_duration(arrow) else None


def of_annotation(annotation: Any) -> Any:
    """A value of the type that a function says it returns; text where it says nothing that is understood."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return of_annotation(next(each for each in typing.get_args(annotation) if each is not type(None)))
    if origin is list:
        return [of_annotation(typing.get_args(annotation)[0])]
    if origin is dict:
        return {}
    try:
        return _BY_CLASS.get(annotation, TEXT)
    except TypeError:  # not hashable, so no class
        return TEXT


def of_function(function: Callable[..., Any]) -> Any:
    """A value of the type that a function returns, as far as it says."""
    try:
        return of_annotation(typing.get_type_hints(function).get("return"))
    except Exception:  # noqa: BLE001  annotations can raise anything
        return TEXT


def of_outputs(outputs: tuple[str, ...], declared: Mapping[str, pa.DataType], function: Callable[..., Any]) -> Any:
    """What a cell function would return: one value or, for several outputs, a mapping of them."""
    if len(outputs) == 1:
        (name,) = outputs
        return of_type(declared[name]) if name in declared else of_function(function)
    return {name: of_type(declared[name]) if name in declared else TEXT for name in outputs}
