"""Calling a generator: what goes in, what comes out, and what kind of failure an exception is."""

from __future__ import annotations

import copy
import datetime
import decimal
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from ..errors import BadOutput, CellError, Permanent, RateLimited, Retryable
from ..runtime.async_functions import looks_like_asyncio
from .tasks import Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..generators import CellContext
    from ..store.buffer import Buffer
    from .plan import Step

# Values that nobody can change; anything else is copied before a generator gets it.
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


def cell_arguments(step: Step, buffer: Buffer, row: int, context: CellContext | None) -> list[Any]:
    """What a cell function gets by position; nested values are copies."""
    arguments: list[Any] = []
    for name in step.positional:
        if name is None:
            arguments.append(context)
        else:
            value = buffer.values(name)[row]
            arguments.append(value if value.__class__ in _IMMUTABLE else copy.deepcopy(value))
    return arguments


def bind_cell(step: Step, buffer: Buffer, row: int, context: CellContext | None) -> Callable[[], Any]:
    """The call that fills one cell, with its arguments in it."""
    call = step.call
    assert call is not None
    keywords: dict[str, Any] = {name: copy.deepcopy(buffer.values(name)[row]) for name in call.keywords}
    if call.context_keyword is not None:
        keywords[call.context_keyword] = context
    return functools.partial(call.function, *cell_arguments(step, buffer, row, context), **keywords)


def bind_group(step: Step, argument: Any, context: CellContext | None) -> Callable[[], Any]:
    """The call that fills a whole column of a row group from its frame or its rows."""
    call = step.call
    assert call is not None
    if call.context_keyword is not None:
        return functools.partial(call.function, argument, **{call.context_keyword: context})
    return functools.partial(call.function, argument)


def cell_value(step: Step, result: Any) -> Any:
    """What a cell function returned, as one value or, with several outputs, as a tuple in their order.

    A column that may resize returns a list of them, one for each row that it makes of this one.
    """
    if step.allow_resize:
        return [_one_value(step, each) for each in _as_list(step, result)]
    return _one_value(step, result)


def _one_value(step: Step, result: Any) -> Any:
    outputs = step.outputs
    if len(outputs) == 1:
        return result
    if not isinstance(result, Mapping):
        raise BadOutput(f"column {step.name!r} must return a mapping of {_names(outputs)}, not {_kind(result)}")
    missing = [name for name in outputs[: step.required_outputs] if name not in result]
    unknown = [name for name in result if name not in outputs]
    if missing or unknown:
        raise BadOutput(_mismatch(step, missing, unknown))
    return tuple(result.get(name) for name in outputs)


def group_values(step: Step, result: Any, count: int) -> list[list[Any]]:
    """What a function for a whole column returned: a list of `count` values for each output, in their order.

    A column that may resize returns any number, but the same of each.
    """
    columns = _columns(step, result)
    if step.allow_resize:
        count = len(columns[0])
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
        missing = [name for name in outputs[: step.required_outputs] if name not in result]
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


def classify(step: Step, error: Exception) -> tuple[Status, Exception]:
    """What kind of failure this is, and the exception that says why."""
    if isinstance(error, ExceptionGroup):
        error = _sole_cause(error)
    if isinstance(error, RateLimited):
        return Status.REFUSED, error
    if isinstance(error, Retryable) or (step.retry_on and isinstance(error, step.retry_on)):
        return Status.RETRYABLE, error
    if looks_like_asyncio(error):
        explained = Permanent(f"its code is written for asyncio: say runtime='asyncio' of the column ({error})")
        explained.__cause__ = error
        return Status.PERMANENT, explained
    return Status.PERMANENT, error


def _sole_cause(group: ExceptionGroup[Exception]) -> Exception:
    """What stands for a group that a generator's own nursery raised: the leaf that weighs most."""
    leaves: list[Exception] = []
    pending: list[Exception] = [group]
    while pending:
        each = pending.pop(0)  # of equals the first one counts
        if isinstance(each, ExceptionGroup):
            pending.extend(each.exceptions)
        else:
            leaves.append(each)
    return max(leaves, key=_weight)


def _weight(error: Exception) -> int:
    if not isinstance(error, CellError):
        return 3
    return 2 if isinstance(error, Permanent) else 1 if isinstance(error, Retryable) else 0


def error_text(error: BaseException) -> str:
    """One line for reports: the class, unless it is one of ours, and the message."""
    message = " ".join(str(error).split())
    if type(error) in (Permanent, Retryable) and message:
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
