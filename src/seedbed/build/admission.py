"""The run as a whole: one nursery, row groups let in one by one, and the end however it comes."""

from __future__ import annotations

import contextlib
import math
import os
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import trio

from ..errors import BuildError, BuildStopped, DeadlineExceeded, StoreError
from ..observe import events
from ..runtime.offload import open_processes
from ..runtime.throttle import ThrottleManager
from ..runtime.timers import Timers
from ..store.entries import Key, Purpose
from .checkpoint import checkpoint, finish, note_spending
from .fill import error_text
from .past import replay_group, replay_tasks
from .replay import collector_paused
from .retry import plan_retry
from .row_group import RowGroup
from .run import Run
from .sequential import SequentialGroup
from .tasks import locate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from ..observe.report import BuildReport
    from ..store.entries import Entry
    from ..store.records import GroupRecord
    from .checkpoint import FinishedGroup
    from .plan import BuildPlan
    from .retry import RetriedRows
    from .storage import Store

T = TypeVar("T")


async def run_build(
    plan: BuildPlan,
    *,
    store: Store | None,
    emitter: events.Events,
    deliver: Callable[[FinishedGroup], None],
    throttles: ThrottleManager | None = None,
    on_start: Callable[[Run], None] = lambda _: None,
) -> BuildReport:
    """Run a whole build. Raises what stopped it, with the report; what is checkpointed by then stays."""
    config = plan.config
    timers = Timers()
    own = throttles or ThrottleManager(
        plan.limits,
        timers=timers,
        default=plan.default_limits,
        patience=config.throttle_patience,
        backoff_base=config.backoff_base,
        backoff_max=config.backoff_max,
        rng=random.Random(config.jitter_seed),
    )
    error: BaseException | None = None
    async with open_processes(config.max_processes or os.cpu_count() or 1) as processes:
        run = Run(plan, timers=timers, throttles=own, processes=processes, emitter=emitter, store=store)
        on_start(run)
        unwatch: Callable[[], None] = lambda: None  # noqa: E731
        if emitter.active:
            _emit_started(run)
            unwatch = own.watch(
                lambda key, limit: emitter.emit(events.ThrottleChanged(time=run.now(), key=key, limit=limit))
            )
        try:
            async with _recording(run):
                await _run_all(run, deliver)
        except Exception as failure:  # noqa: BLE001  it is raised below, with the report
            error = failure
        finally:
            unwatch()
            run.dispatcher.close()
        if error is not None and store is not None and run.ledger.spent:
            # What was paid for row groups that are not finished counts too.
            with contextlib.suppress(StoreError):
                await note_spending(run, store.writer)
        report = make_report(run)
        if emitter.active:
            emitter.emit(
                events.BuildFinished(
                    time=trio.current_time(),
                    rows=report.written,
                    dropped=len(report.dropped),
                    error=None if error is None else error_text(error),
                )
            )
    # A reader that raised stopped the run; one that raised when there was nothing left to stop is not passed over.
    error = error or emitter.failure
    if error is None:
        return report
    sole = _sole(error)
    if isinstance(sole, BuildError | StoreError):
        sole.report = report
    raise sole


@asynccontextmanager
async def _recording(run: Run) -> AsyncIterator[None]:
    """Commit finished cells while the run goes on and, however it ends, all of them at its end."""
    recorder = run.recorder
    if recorder is None:
        yield
        return
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(recorder.run)
            yield
            nursery.cancel_scope.cancel(reason="the run is over")
    finally:
        await recorder.flush()


async def _run_all(run: Run, deliver: Callable[[FinishedGroup], None]) -> None:
    finished = False
    deadline = math.inf if run.plan.config.deadline is None else run.started + run.plan.config.deadline
    with trio.CancelScope(deadline=deadline) as run.scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run.timers.run)
            await (_admit(run, deliver) if run.plan.config.engine == "concurrent" else _in_sequence(run, deliver))
            if run.stopping is None:
                await finish(run)
                # A stop that came meanwhile was too late to stop anything.
                finished = True
            nursery.cancel_scope.cancel(reason="all row groups are over")
    if run.scope.cancelled_caught and run.stopping is None:
        run.stopping = DeadlineExceeded(f"the build did not finish within deadline={run.plan.config.deadline:g} s")
    if run.stopping is not None and not finished:
        raise run.stopping


async def _admit(run: Run, deliver: Callable[[FinishedGroup], None]) -> None:
    """Let row groups in, in order, never more at once than allowed; nothing is kept for those that wait outside."""
    plan = run.plan
    places = trio.Semaphore(plan.config.max_concurrent_row_groups)
    async with trio.open_nursery() as nursery:
        place = 0  # in the order of turns of stateful generators
        for index in range(plan.group_count):
            retry: RetriedRows | None = None
            entries: Sequence[Entry] = ()
            if run.is_done(index):
                if run.replaying:
                    await replay_group(run, index, nursery, place)
                    place += 1
                if index not in run.retrying:
                    continue
                found = await _retried(run, run.retrying[index])
                if found is None:
                    continue
                retry, entries = found
            elif run.recorder is not None and index in run.recorded:
                with collector_paused():
                    entries = await run.recorder.read(Key(group=index))
            await places.acquire()
            if run.stopping is not None:
                break
            # One after the other until each has taken in what earlier runs left of it: a stateful generator has its
            # turns in order in that, too.
            await nursery.start(_run_row_group, run, _Admitted(index, place, retry, entries), deliver, places)
            place += 1


@attrs.frozen
class _Admitted:
    """A row group that is let in: its place in the turns of stateful generators, and what earlier runs left of it."""

    index: int
    place: int
    retry: RetriedRows | None
    entries: Sequence[Entry]


async def _retried(run: Run, record: GroupRecord) -> tuple[RetriedRows, Sequence[Entry]] | None:
    """The dropped rows of a finished row group, and all that earlier runs left of them."""
    kept: Sequence[Entry] = ()
    recorder = run.recorder
    if recorder is not None:
        kept = await recorder.read(Key(group=record.index, revision=record.revision, purpose=Purpose.KEPT))
    found = plan_retry(record, kept, processed=bool(run.plan.pre_batch))
    if found is None or recorder is None:
        return found
    retry, entries = found
    key = Key(group=record.index, revision=record.revision, purpose=Purpose.RETRY)
    return retry, [*entries, *await recorder.read(key)]


async def _run_row_group(
    run: Run,
    admitted: _Admitted,
    deliver: Callable[[FinishedGroup], None],
    places: trio.Semaphore,
    task_status: trio.TaskStatus[None],
) -> None:
    index = admitted.index
    try:
        async with trio.open_nursery() as nursery:
            group = RowGroup(run, index, place=admitted.place, nursery=nursery, retry=admitted.retry)
            run.groups[index] = group
            try:
                _emit_admitted(run, group)
                await replay_tasks(run, group, group.begin(admitted.entries))
                task_status.started()
                if await group.drive() and await group.post_process():
                    deliver(await checkpoint(run, group))
            except BaseException as error:
                # The run is over or in doubt: whoever gets the turn that is passed on below must not start.
                run.dispatcher.stop()
                if isinstance(error, Exception):
                    locate(error, index)
                raise
            finally:
                group.close()
                del run.groups[index]
            # What is left here only serves threads that were given up.
            nursery.cancel_scope.cancel(reason=f"row group {index} is over")
    finally:
        places.release()


async def _in_sequence(run: Run, deliver: Callable[[FinishedGroup], None]) -> None:
    """One row group after the other."""
    for index in range(run.plan.group_count):
        if run.is_done(index):
            if run.replaying:
                async with trio.open_nursery() as nursery:
                    await replay_group(run, index, nursery)
            continue
        entries = (
            await run.recorder.read(Key(group=index)) if run.recorder is not None and index in run.recorded else ()
        )
        try:
            async with trio.open_nursery() as nursery:
                group = SequentialGroup(run, index, nursery, entries)
                _emit_admitted(run, group)
                try:
                    await group.fill()
                    deliver(await checkpoint(run, group))
                except Exception as error:
                    locate(error, index)
                    raise
                nursery.cancel_scope.cancel(reason=f"row group {index} is over")
        except* BuildStopped as stopped:
            for reason in leaves(stopped):
                if isinstance(reason, BuildStopped):
                    run.stop(reason)
        if run.stopping is not None:
            return


def _emit_admitted(run: Run, group: RowGroup | SequentialGroup) -> None:
    if run.events.active:
        run.events.emit(
            events.RowGroupAdmitted(time=trio.current_time(), row_group=group.index, rows=group.rows.buffer.rows)
        )


def _emit_started(run: Run) -> None:
    plan = run.plan
    run.events.emit(
        events.BuildStarted(
            time=trio.current_time(), rows=plan.rows, row_groups=plan.group_count, columns=plan.graph.outputs
        )
    )
    for message in run.ledger.damage:
        run.events.emit(events.DamageFound(time=trio.current_time(), message=message))


def make_report(run: Run) -> BuildReport:
    """What a run has done so far."""
    throttles: Mapping[str, Any] = run.throttles.statistics()
    return run.ledger.report(
        rows=run.plan.rows,
        unfinished=run.unfinished(),
        untried=[drop for record in run.retrying.values() for drop in record.drops],
        throttles=throttles,
        seconds=trio.current_time() - run.started,
    )


def _sole(error: BaseException) -> BaseException:
    """One leaf is raised as itself; several as one `BuildError` with the group as its cause."""
    found = list(leaves(error))
    if len(found) == 1 or all(isinstance(leaf, StoreError) for leaf in found):
        # A disk that refuses one thread refuses the others too: that is one message and not several.
        return found[0]
    several = BuildError(f"{len(found)} errors ended the build: " + "; ".join(error_text(leaf) for leaf in found))
    several.__cause__ = error
    return several


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions of a group, however deep, or the exception itself."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from leaves(each)
    else:
        yield error
