"""One attempt of one task: call the generator, check the result, return the outcome."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import trio

from ..errors import BadOutput, CellError, CellTimeout, Permanent, QuotaExhausted, RateLimited, is_out_of_memory
from ..graph import Kind
from ..observe import events
from ..observe.report import TaskTrace
from ..store.values import make_frame, python_values
from .context import Context
from .failures import breakdown, classify, is_panic
from .tasks import Outcome, Status, Task

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..columns.base import CellContext
    from ..store.values import Buffer
    from .services import OpenGroup, Services
    from .tasks import Step


# Immutable values; anything else is copied before a generator gets it.
_IMMUTABLE = frozenset({str, int, float, bool, type(None), bytes, datetime, date, time, timedelta, Decimal})


async def attempt(services: Services, group: OpenGroup, task: Task) -> Outcome:
    """Call the generator once, under the task's cancel scope, and settle its permit.

    An exception of the generator becomes the outcome and is never raised here; only a cancellation from outside (the
    row group or the run ends) leaves without an outcome.
    """
    step, now = task.step, services.now
    started = now()
    if not group.is_wanted(task):
        # Its row was dropped between its start and this first step: nothing is called and nothing is paid.
        _settle(services, task, Status.CANCELLED, None, None)
        return Outcome(task, Status.CANCELLED, None, None, started, started)
    if services.notify.events.active:
        services.notify.emit_task(events.TaskStarted, task)
    deadline = math.inf if step.timeout is None else started + step.timeout
    first = math.inf if step.first_call_timeout is None else started + step.first_call_timeout
    scope = task.scope = trio.CancelScope(deadline=min(first, deadline))
    context = None
    if step.wants_context:
        context = Context(services, group, task)
        context.scope = scope
        if first < deadline:
            context.deadline = deadline
    value: Any = None
    error: Exception | None = None
    try:
        with scope:
            try:
                if step.is_async_cell:
                    # Most cells, those of model columns among them: no other coroutine in between (overhead benchmark).
                    value = await call_cell(step, group.rows.buffer, task.row, context)
                    value = value if len(step.outputs) == 1 else cell_value(step, value)
                else:
                    value = await _generate(services, group, task, context)
            except Exception as exception:  # noqa: BLE001  whatever a generator raises is this task's outcome
                error = exception
    except Exception as exception:  # noqa: BLE001  raised by a generator's own nursery beside its cancellation
        error = exception
    except BaseException as exception:
        if not is_panic(exception):
            _settle(services, task, Status.CANCELLED, None, context)
            raise
        error = _no_fault_of_rows(services, step, exception)
    if error is not None and is_out_of_memory(error):
        error = _no_fault_of_rows(services, step, error)
    outcome = Outcome(task, Status.SUCCESS, value, None, started, now())
    if scope.cancelled_caught:
        if not group.is_wanted(task):
            outcome.status = Status.CANCELLED
        else:
            # Before its own timeout it was the deadline of a call, which passed in the same instant as the answer came.
            is_own = step.timeout is not None and outcome.seconds >= step.timeout
            limit = f"{step.timeout:g} s" if is_own else "a call"
            outcome.status, outcome.error = Status.RETRYABLE, CellTimeout(f"no result after {limit}")
    elif error is not None:
        outcome.status, outcome.error = classify(step, error)
    return _settled(services, outcome, context)


def _settled(services: Services, outcome: Outcome, context: Context | None) -> Outcome:
    """The outcome with its usage, after the permit was ended."""
    task = outcome.task
    if context is not None:
        outcome.usage, outcome.model = context.usage, context.model
        if services.recorder is not None:
            services.recorder.ended(context)
        if outcome.status in (Status.RETRYABLE, Status.RATE_LIMITED):
            outcome.keeps_answers = context.keep_answers(outcome.error)
        if outcome.status is not Status.SUCCESS:
            task.spent += context.usage.total
    if outcome.status is not Status.SUCCESS or task.permit is not None:
        outcome.retry_delay = _settle(services, task, outcome.status, outcome.error, context)
    if services.plan.config.trace:
        services.ledger.traces.append(_trace(outcome, context))
    return outcome


def _no_fault_of_rows(services: Services, step: Step, error: BaseException) -> CellError:
    """The failure of a task where memory ran out or a library panicked: the run stops, and no row is dropped.

    A panic in one cell is that cell's own failure, as any exception of its function is.
    """
    if step.kind is Kind.CELL and is_panic(error):
        return Permanent(f"{type(error).__name__}: {error}")
    stopped = breakdown(error, f"column {step.name!r}: ")
    assert stopped is not None
    services.scheduler.stop(stopped)
    # Flow control and not a failure: the task stays unfinished.
    return RateLimited(str(stopped))


async def repeat_call(services: Services, group: OpenGroup, step: Step, row: int) -> None:
    """Call a stateful generator for its state alone; its result or exception is known already."""
    task = Task(step, group.index, row)
    context = Context(services, group, task) if step.wants_context else None
    with suppress(Exception):
        await _generate(services, group, task, context)


async def _generate(services: Services, group: OpenGroup, task: Task, context: Context | None) -> Any:
    step = task.step
    if step.processor is not None:
        return await services.run_in_thread(task, group.nursery, group.rows.processor_call(step, group.live_rows()))
    if step.kind is not Kind.CELL:
        return await _generate_group(services, group, task, context)
    arguments, keywords = cell_arguments(step, group.rows.buffer, task.row, context)
    work = partial(step.call.function, *arguments, **keywords)
    if not step.needs_slot:
        result = await work()
    elif step.process:
        result = await services.processes.run(step.name, work)
    else:
        result = await services.run_in_thread(task, group.nursery, work)
    return cell_value(step, result)


async def _generate_group(
    services: Services, group: OpenGroup, task: Task, context: Context | None
) -> tuple[list[int], list[list[Any]]]:
    """Generate a column for a whole row group; returns the rows and a list of values for each output."""
    step, rows_of = task.step, group.rows
    from_scratch = step.kind is Kind.FROM_SCRATCH
    if from_scratch:
        rows = list(range(len(rows_of.source)))
        pairs = rows_of.pairs()
        takes_pairs = services.plan.parent is not None and step.column is not None and step.column.takes_pairs
        make_argument: Callable[[], Any] = lambda: pairs if takes_pairs else rows_of.source  # noqa: E731
    else:
        rows = group.missing_rows(step)
        if step.has_skip_rule:
            rows = [row for row in rows if not rows_of.skips(step, row)]
            if not rows:
                return rows, [[] for _ in step.outputs]
        # The lists are taken now, on the loop; the frame is built from them wherever the generator runs.
        inputs = rows_of.buffer.take(step.inputs, rows)
        make_argument = lambda: make_frame(inputs, len(rows), documents=services.plan.documents)  # noqa: E731
        pairs = rows_of.pairs(rows)
    if context is not None:
        context.rows = pairs

    def work() -> list[list[Any]]:
        return group_values(step, bind_group(step, make_argument(), context)(), len(rows))

    if step.call.is_async or step.process:
        argument = make_argument() if from_scratch else await services.store_thread(make_argument)
        bound = bind_group(step, argument, context)
        result = await (bound() if step.call.is_async else services.processes.run(step.name, bound))
        columns = group_values(step, result, len(rows))
    else:
        columns = await services.run_in_thread(task, group.nursery, work)
    picked = rows_of.positions() if from_scratch else None
    if picked is not None:
        # Only some of the source rows are wanted: those that an earlier run dropped, or that are redone.
        rows = group.rows_without(step)
        columns = [[values[picked[row]] for row in rows] for values in columns]
    return rows, columns


def _settle(
    services: Services, task: Task, status: Status, error: BaseException | None, context: Context | None
) -> float:
    """End the permit of a task; returns how long a rate-limited task must wait."""
    delay: float | None = None
    if context is not None and status is Status.CANCELLED:
        context.count_usage()  # the outcome may be too late to be taken in
    if context is not None and status is Status.RATE_LIMITED:
        # The throttle of the key that `call` used knows of it already; the column's own key may be another.
        delay = context.retry_delay
    permit, task.permit = task.permit, None
    if permit is not None:
        tokens = None if context is None else context.usage.total.tokens or None
        if status is Status.SUCCESS:
            permit.accepted(tokens)
        elif delay is None and isinstance(error, RateLimited):
            try:
                delay = permit.rate_limited(error, task.rate_limits + 1)
            except QuotaExhausted as exhausted:
                services.scheduler.stop(exhausted)
                delay = 0.0
        else:
            permit.finished(tokens)
    if delay is None and isinstance(error, RateLimited):
        delay = services.shared.unkeyed.rate_limited(task, error)
    return delay or 0.0


def _trace(outcome: Outcome, context: Context | None) -> TaskTrace:
    task = outcome.task
    return TaskTrace(
        kind=task.step.kind.value,
        column=task.step.name,
        row_group=task.group,
        row=task.row_or_none,
        attempt=task.attempt,
        status=outcome.status.value,
        ready=task.ready_at,
        submitted=task.started_at,
        slot=task.started_at if task.step.needs_slot else None,
        permit=task.started_at if task.step.key is not None else None,
        started=outcome.started,
        finished=outcome.finished,
        called=context.called if context is not None else 0.0,
        waited=context.waited if context is not None else 0.0,
    )


# The arguments of a generator, and its result checked.


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
    keyword = step.call.context_keyword
    return partial(step.call.function, argument, **({} if keyword is None else {keyword: context}))


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
        result = result.to_dict()
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
        return python_values(values)
    for method in ("to_list", "to_pylist", "tolist"):  # polars, pyarrow, numpy and what behaves like it
        if hasattr(values, method) and isinstance(listed := getattr(values, method)(), list):
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
