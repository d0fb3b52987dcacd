"""Calling a generator: its arguments, and its result checked."""

from __future__ import annotations

import copy
import datetime
import decimal
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from ..errors import BadOutput

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..generators import CellContext
    from ..store.buffer import Buffer
    from .tasks import Step

# Immutable values; anything else is copied before a generator gets it.
_IMMUTABLE = frozenset(
    {
        str,
        int,
        float,
        bool,
        type(None),
        bytes,
        datetime.datetime,
        datetime.date,
        datetime.time,
        datetime.timedelta,
        decimal.Decimal,
    }
)


def cell_arguments(
    step: Step, buffer: Buffer, row: int, context: CellContext | None
) -> tuple[list[Any], dict[str, Any]]:
    """What the function of one cell is called with; nested values are copies."""
    call = step.call
    arguments: list[Any] = []
    for name in call.positional:
        if name is None:
            arguments.append(context)
        else:
            value = buffer.values(name)[row]
            arguments.append(value if value.__class__ in _IMMUTABLE else copy.deepcopy(value))
    keywords: dict[str, Any] = {}
    for name in call.keywords:
        value = buffer.values(name)[row]
        keywords[name] = value if value.__class__ in _IMMUTABLE else copy.deepcopy(value)
    if call.context_keyword is not None:
        keywords[call.context_keyword] = context
    return arguments, keywords


def call_cell(step: Step, buffer: Buffer, row: int, context: CellContext | None) -> Any:
    """Call the function of one cell; its arguments do not outlive that, an async function returns its coroutine."""
    arguments, keywords = cell_arguments(step, buffer, row, context)
    return step.call.function(*arguments, **keywords)


def bind_group(step: Step, argument: Any, context: CellContext | None) -> Callable[[], Any]:
    """The call that fills a whole column of a row group from its frame or its rows."""
    call = step.call
    if call.context_keyword is not None:
        return functools.partial(call.function, argument, **{call.context_keyword: context})
    return functools.partial(call.function, argument)


def cell_value(step: Step, result: Any) -> Any:
    """What a cell function returned, as one value or, with several outputs, as a tuple in their order."""
    outputs = step.outputs
    if len(outputs) == 1:
        return result
    if not isinstance(result, Mapping):
        raise BadOutput(f"column {step.name!r} must return a mapping of {_names(outputs)}, not {_kind(result)}")
    missing = [name for name in step.required_outputs if name not in result]
    unknown = [name for name in result if name not in outputs]
    if missing or unknown:
        raise BadOutput(_mismatch(step, missing, unknown))
    return tuple(result.get(name) for name in outputs)


def group_values(step: Step, result: Any, count: int) -> list[list[Any]]:
    """What a function for a whole column returned: a list of `count` values for each output, in their order."""
    columns = _columns(step, result)
    for name, values in zip(step.outputs, columns, strict=True):
        if len(values) != count:
            raise BadOutput(f"column {step.name!r} returned {len(values)} values of {name!r} for {count} rows")
    return columns


def _columns(step: Step, result: Any) -> list[list[Any]]:
    outputs = step.outputs
    if isinstance(result, pl.LazyFrame):
        result = result.collect()
    if isinstance(result, pa.Table):
        result = pl.from_arrow(result)
    if isinstance(result, pl.DataFrame):
        result = {name: result[name] for name in result.columns}
    if isinstance(result, Mapping):
        missing = [name for name in step.required_outputs if name not in result]
        # A function that adds its columns to the frame it was given returns the others too.
        unknown = [name for name in result if name not in outputs and name not in step.inputs]
        if missing or unknown:
            raise BadOutput(_mismatch(step, missing, unknown))
        given = [_as_list(step, result[name]) if name in result else None for name in outputs]
        height = next(len(values) for values in given if values is not None)
        return [[None] * height if values is None else values for values in given]
    if len(outputs) > 1:
        wanted = f"a frame or mapping of {_names(outputs)}"
        raise BadOutput(f"column {step.name!r} must return {wanted}, not {_kind(result)}")
    return [_as_list(step, result)]


def _as_list(step: Step, values: Any) -> list[Any]:
    if isinstance(values, list):
        return values
    if isinstance(values, pl.Series):
        return values.to_list()
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values.to_pylist()
    if hasattr(values, "tolist"):  # numpy and what behaves like it
        listed = values.tolist()
        if isinstance(listed, list):
            return listed
    if isinstance(values, Sequence) and not isinstance(values, str | bytes):
        return list(values)
    raise BadOutput(f"column {step.name!r} must return a sequence of values, one a row, not {_kind(values)}")


def _mismatch(step: Step, missing: Sequence[str], unknown: Sequence[str]) -> str:
    parts = [f"did not return {_names(missing)}"] if missing else []
    parts += [f"returned {_names(unknown)}, which is none of its outputs"] if unknown else []
    return f"column {step.name!r} {' and '.join(parts)}"


def _names(names: Sequence[Any]) -> str:
    return ", ".join(repr(name) for name in names)


def _kind(value: Any) -> str:
    return f"a value of type {type(value).__name__}"
