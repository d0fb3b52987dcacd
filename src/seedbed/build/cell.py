"""The life of one task, from the moment it has all it needs to its outcome."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from ..errors import CellError, CellTimeout, Permanent, QuotaExhausted, RateLimited
from ..observe import events
from ..observe.trace import TaskTrace
from ..store.buffer import make_frame
from .context import Context
from .fill import bind_cell, bind_group, cell_arguments, cell_value, classify, group_values
from .shutdown import breakdown, is_panic
from .tasks import Cell, Outcome, Status, TaskKind, locate

if TYPE_CHECKING:
    from collections.abc import Callable

    from .plan import Step
    from .row_group import RowGroup
    from .run import Run
    from .tasks import Group

T = TypeVar("T")
G = TypeVar("G", bound="Group")


async def run_cell(run: Run, cell: Cell[RowGroup]) -> None:
    """Run one attempt of a task in its row group's nursery and send its outcome.

    Whatever happens, permit, slot and budget are given back before anything is sent. Only a cancellation from outside
    (the row group or the run is over) leaves without an outcome.
    """
    try:
        outcome = await attempt(run, cell)
    except BaseException as error:
        # The run is over or in doubt: what still waits must not start in the place that comes free here.
        run.dispatcher.stop()
        if isinstance(error, Exception):
            locate(error, cell.group.index, cell)
        raise
    finally:
        run.dispatcher.ended(cell)
    cell.group.deliver(outcome)


async def attempt(run: Run, cell: Cell[G]) -> Outcome[G]:  # noqa: PLR0912  the life of a task, step by step
    """Call the generator once, under the task's scope, and settle the permit.

    What the generator raises is the outcome and is never raised here.
    """
    step = cell.step
    if cell.group.gave_up(cell):
        # Its row was dropped between its start and this first step: nothing is called and nothing paid for it.
        _settle(run, cell, Status.CANCELLED, None, None)
        return Outcome(cell, Status.CANCELLED, None, None, run.now(), run.now())
    if run.events.active:
        run.emit_task(events.TaskStarted, cell)
    started = run.now()
    scope = cell.scope = (
        trio.CancelScope() if step.timeout is None else trio.CancelScope(deadline=started + step.timeout)
    )
    context = Context(run, cell) if step.wants_context else None
    value: Any = None
    error: Exception | None = None
    try:
        with scope:
            try:
                if step.direct is not None:
                    # The way of nearly all cells, without a detour: it is what the engine's cost per cell is made of.
                    value = await step.direct(*cell_arguments(step, cell.group.rows.buffer, cell.row, context))
                else:
                    value = await _fill(run, cell, context)
            except Exception as exception:  # noqa: BLE001  whatever a generator raises is this task's outcome
                error = exception
    except Exception as exception:  # noqa: BLE001  what a generator's own nursery raised beside its cancellation
        error = exception
    except BaseException as exception:
        if not is_panic(exception):
            _settle(run, cell, Status.CANCELLED, None, context)
            raise
        error = _no_fault_of_rows(run, step, exception)
    if isinstance(error, MemoryError):
        error = _no_fault_of_rows(run, step, error)
    outcome = Outcome(cell, Status.SUCCESS, value, None, started, run.now())
    if context is not None:
        outcome.usage = context.usage
    if scope.cancelled_caught:
        if cell.group.gave_up(cell):
            outcome.status = Status.CANCELLED
        else:
            outcome.status = Status.RETRYABLE
            outcome.error = CellTimeout(f"no result after {step.timeout:g} s")
    elif error is not None:
        outcome.status, outcome.error = classify(step, error)
    if context is not None:
        outcome.goes_on = context.end(outcome)
    if cell.permit is not None or cell.reserved is not None or context is not None or outcome.status is Status.REFUSED:
        outcome.retry_delay = _settle(run, cell, outcome.status, outcome.error, context)
    if run.trace:
        run.ledger.traces.append(_trace(outcome, context))
    return outcome


def _no_fault_of_rows(run: Run, step: Step, error: BaseException) -> CellError:
    """What the task failed with where memory ran out or a library panicked: the run stops, and no row is dropped.

    A panic in one cell is that cell's own failure, as any exception of its function is.
    """
    if step.kind is TaskKind.CELL and is_panic(error):
        return Permanent(f"{type(error).__name__}: {error}")
    stopped = breakdown(error, f"column {step.name!r}: ")
    assert stopped is not None
    run.stop(stopped)
    # Flow control and not a failure: the task stays unfinished.
    return RateLimited(str(stopped))


async def call_again(run: Run, cell: Cell[Group]) -> None:
    """Call a stateful generator for its state alone; what it returns or raises is known already."""
    context = Context(run, cell) if cell.step.wants_context else None
    with suppress(Exception):
        await _fill(run, cell, context)


async def _fill(run: Run, cell: Cell[Group], context: Context | None) -> Any:
    step, group = cell.step, cell.group
    call = step.call
    if call is None:
        return await run.threads.run(cell, group.rows.processor_call(step, group.live_rows()))
    if step.kind is TaskKind.CELL:
        work = bind_cell(step, group.rows.buffer, cell.row, context)
        if call.is_async:
            result = await work()
        elif step.process:
            result = await run.processes.run(step.name, work)
        else:
            result = await run.threads.run(cell, work)
        return cell_value(step, result) if len(step.outputs) > 1 or step.allow_resize else result
    rows, columns = await _fill_group(run, cell, context)
    picked = group.rows.positions() if step.kind is TaskKind.FROM_SCRATCH else None
    if picked is not None:
        # Only some of the source rows are wanted, those that an earlier run dropped.
        rows, columns = list(range(len(picked))), [[values[at] for at in picked] for values in columns]
    return rows, columns


async def _fill_group(run: Run, cell: Cell[Group], context: Context | None) -> tuple[list[int], list[list[Any]]]:
    """Run a task for a whole row group; returns the rows it was for and a list of values for each output."""
    step, group = cell.step, cell.group
    call = step.call
    assert call is not None
    if step.kind is TaskKind.FROM_SCRATCH:
        rows = list(range(len(group.rows.source)))
        make_argument: Callable[[], Any] = lambda: group.rows.source  # noqa: E731
        identities = [(row, 0) for row in group.rows.source]
    else:
        rows = group.missing_rows(step)
        if step.skip is not None or step.skipped_with:
            rows = [row for row in rows if not group.rows.skips(step, row)]
            if not rows:
                return rows, [[] for _ in step.outputs]
        # The lists are taken now, on the loop; the frame is made of them wherever the generator runs.
        columns = group.rows.buffer.take(step.inputs, rows)
        make_argument = lambda: make_frame(columns, len(rows))  # noqa: E731
        identities = [group.rows.identity(row) for row in rows]
    if context is not None:
        context.about(identities)
    if call.is_async:
        argument = make_argument() if step.kind is TaskKind.FROM_SCRATCH else await run.store_thread(make_argument)
        result = await bind_group(step, argument, context)()
        return rows, group_values(step, result, len(rows))
    if step.process:
        argument = await run.store_thread(make_argument)
        result = await run.processes.run(step.name, bind_group(step, argument, context))
        return rows, group_values(step, result, len(rows))

    def work() -> list[list[Any]]:
        return group_values(step, bind_group(step, make_argument(), context)(), len(rows))

    return rows, await run.threads.run(cell, work)


def _settle(run: Run, cell: Cell[Group], status: Status, error: BaseException | None, context: Context | None) -> float:
    """Give back what the task held; returns how long a refused task must wait."""
    delay: float | None = None
    usage = context.usage if context is not None else None
    if context is not None and status is Status.CANCELLED:
        context.count_usage()  # nobody may be there any more to take the outcome in
    if context is not None and status is Status.REFUSED:
        # A key that `call` asked has heard of it already, and the column's own key may be another.
        delay = context.refused_for
    if cell.reserved is not None:
        # Before the permit: who is started by its end must find the budget settled.
        run.spending.settle(cell.step, cell.reserved, usage, sent=status is not Status.REFUSED)
        cell.reserved = None
    permit, cell.permit = cell.permit, None
    if permit is not None:
        tokens = usage.tokens if usage is not None and usage.calls else None
        if status is Status.SUCCESS:
            permit.accepted(tokens)
        elif delay is None and isinstance(error, RateLimited):
            try:
                delay = permit.refused(error, cell.refusals + 1)
            except QuotaExhausted as exhausted:
                run.stop(exhausted)
                delay = 0.0
        else:
            permit.finished(tokens)
    if delay is None and isinstance(error, RateLimited):
        delay = run.refused_without_permit(cell, error)
    return delay or 0.0


def _trace(outcome: Outcome[Group], context: Context | None) -> TaskTrace:
    cell = outcome.cell
    task = cell.task
    return TaskTrace(
        kind=task.kind.value,
        column=task.column,
        row_group=task.row_group,
        row=task.row,
        attempt=cell.attempt,
        status=outcome.status.value,
        ready=cell.ready_at,
        submitted=cell.submitted_at,
        slot=cell.submitted_at if cell.step.needs_slot else None,
        permit=cell.submitted_at if cell.step.key is not None else None,
        started=outcome.started,
        finished=outcome.finished,
        called=context.called if context is not None else 0.0,
        waited=context.waited if context is not None else 0.0,
    )
