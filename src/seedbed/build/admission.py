"""The run as a whole: one nursery, row groups let in one by one, and the end however it comes."""

from __future__ import annotations

import contextlib
import math
import os
import random
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import polars as pl
import trio

from ..errors import BuildError, BuildStopped, DeadlineExceeded, ProcessorFailed, StoreError
from ..observe import events
from ..runtime.offload import open_processes
from ..runtime.throttle import ThrottleManager
from ..runtime.timers import Timers
from ..store.dataset import Dataset
from ..store.schema import arrow_table, conflict_error
from .fill import error_text
from .row_group import RowGroup
from .run import Run
from .sequential import SequentialGroup
from .tasks import locate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from ..observe.report import BuildReport
    from ..store.writer import DatasetWriter
    from .plan import BuildPlan

T = TypeVar("T")

# A checkpoint is shielded from cancellation, but not for ever: a disk that hangs must not hang the run.
CHECKPOINT_DEADLINE = 60.0


@attrs.frozen(kw_only=True)
class FinishedGroup:
    """A row group that is complete: on disk, or in memory in a preview."""

    row_group: int
    source_rows: range
    rows: int
    dropped: int
    path: Path | None
    _frame: pl.DataFrame | None = attrs.field(default=None, repr=False)

    def to_polars(self) -> pl.DataFrame:
        """Its rows."""
        if self._frame is not None:
            return self._frame
        return pl.DataFrame() if self.path is None else pl.read_parquet(self.path)


async def run_build(
    plan: BuildPlan,
    *,
    writer: DatasetWriter | None,
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
        run = Run(plan, timers=timers, throttles=own, processes=processes, emitter=emitter, writer=writer)
        on_start(run)
        unwatch: Callable[[], None] = lambda: None  # noqa: E731
        if emitter.active:
            _emit_started(run)
            unwatch = own.watch(
                lambda key, limit: emitter.emit(events.ThrottleChanged(time=run.now(), key=key, limit=limit))
            )
        try:
            await _run_all(run, deliver)
        except Exception as failure:  # noqa: BLE001  it is raised below, with the report
            error = failure
        finally:
            unwatch()
            run.dispatcher.close()
        if error is not None and writer is not None and run.ledger.spent:
            # What was paid for row groups that are not finished counts too.
            with contextlib.suppress(OSError):
                await _note_spending(run, writer)
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


async def _run_all(run: Run, deliver: Callable[[FinishedGroup], None]) -> None:
    finished = False
    deadline = math.inf if run.plan.config.deadline is None else run.started + run.plan.config.deadline
    with trio.CancelScope(deadline=deadline) as run.scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run.timers.run)
            await (_admit(run, deliver) if run.plan.config.engine == "concurrent" else _in_sequence(run, deliver))
            if run.stopping is None:
                await _finish(run)
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
            if run.is_done(index):
                continue
            await places.acquire()
            if run.stopping is not None:
                break
            nursery.start_soon(_run_row_group, run, index, place, deliver, places)
            place += 1


async def _run_row_group(
    run: Run, index: int, place: int, deliver: Callable[[FinishedGroup], None], places: trio.Semaphore
) -> None:
    try:
        async with trio.open_nursery() as nursery:
            group = run.groups[index] = RowGroup(run, index, place=place, nursery=nursery)
            try:
                _emit_admitted(run, group)
                if await group.drive() and await group.post_process():
                    deliver(await _checkpoint(run, group))
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
            continue
        try:
            async with trio.open_nursery() as nursery:
                group = SequentialGroup(run, index, nursery)
                _emit_admitted(run, group)
                try:
                    await group.fill()
                    deliver(await _checkpoint(run, group))
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


async def _checkpoint(run: Run, group: RowGroup | SequentialGroup) -> FinishedGroup:
    """Write a finished row group and free it."""
    rows = group.rows.finished(group.live_rows())
    path: Path | None = None
    frame: pl.DataFrame | None = None
    if run.writer is None:
        table, conflicts = await run.store_thread(lambda: arrow_table(rows, run.plan.declared))
        frame = pl.DataFrame(table)
        count = frame.height
    else:
        record = await _write(run, run.writer, group, rows)
        conflicts, count = record.conflicts, record.rows
        if record.part is not None:
            path = run.writer.path / record.part.name
    ledger = run.ledger
    ledger.written += count
    ledger.dropped.extend(group.rows.drops)
    if group.rows.skipped is not None:
        ledger.skipped.append(group.index)
    for conflict in conflicts:
        ledger.conflicts.append(str(conflict))
        if run.events.active:
            run.events.emit(
                events.SchemaConflictFound(time=trio.current_time(), row_group=group.index, message=str(conflict))
            )
    if run.events.active:
        run.events.emit(
            events.RowGroupFinished(
                time=trio.current_time(), row_group=group.index, rows=count, dropped=len(group.rows.drops)
            )
        )
    run.group_done(group.index)
    if run.writer is not None and ledger.spent:
        await _note_spending(run, run.writer)
    group.rows.buffer.free()
    return FinishedGroup(
        row_group=group.index,
        source_rows=group.rows.source,
        rows=count,
        dropped=len(group.rows.drops),
        path=path,
        frame=frame,
    )


async def _write(run: Run, writer: DatasetWriter, group: RowGroup | SequentialGroup, rows: Any) -> Any:
    """Write a part off the loop. Cancellation waits for it, but only so long; a writer given up does not commit."""
    given_up = False

    def work() -> Any:
        return writer.write_group(
            group.index,
            rows,
            start=group.rows.source.start,
            stop=group.rows.source.stop,
            drops=group.rows.drops,
            skipped=group.rows.skipped,
            abandoned=lambda: given_up,
        )

    try:
        with trio.fail_after(CHECKPOINT_DEADLINE) as scope:
            scope.shield = True
            return await run.store_thread(work)
    except trio.TooSlowError as slow:
        raise StoreError(
            f"writing row group {group.index} to {writer.path} took more than {CHECKPOINT_DEADLINE:g} s"
        ) from slow
    except OSError as error:
        raise StoreError(f"row group {group.index} could not be written to {writer.path}: {error}") from error
    finally:
        given_up = True


async def _note_spending(run: Run, writer: DatasetWriter) -> None:
    entries = [(column, model, *entry) for (column, model), entry in run.ledger.spent.items()]
    with trio.CancelScope(shield=True, deadline=trio.current_time() + CHECKPOINT_DEADLINE):
        await run.store_thread(lambda: writer.write_spending(entries))


async def _finish(run: Run) -> None:
    """Everything is generated: one schema for all parts, then the processors over the whole dataset."""
    writer, plan = run.writer, run.plan
    if writer is None:
        return
    try:
        conflicts = await _wind_up(run, lambda abandoned: writer.finish(abandoned=abandoned))
        if plan.after_generation:
            frame = await _process_all(run, writer)
            await _wind_up(run, lambda abandoned: writer.write_processed(frame, abandoned=abandoned))
    except OSError as error:
        raise StoreError(f"the dataset in {writer.path} could not be finished: {error}") from error
    run.ledger.conflicts[:] = [str(conflict) for conflict in conflicts]
    if conflicts:
        raise conflict_error(conflicts)


async def _wind_up(run: Run, write: Callable[[Callable[[], bool]], T]) -> T:
    """Write off the loop, however long it takes; when cancelled, the writer is told and has some time to leave off."""
    given_up = False
    over = trio.Event()
    shield = trio.CancelScope(shield=True)

    async def tell() -> None:
        nonlocal given_up
        try:
            await over.wait()
        finally:
            given_up = True
            shield.deadline = trio.current_time() + CHECKPOINT_DEADLINE

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tell)
        with shield:
            result = await run.store_thread(lambda: write(lambda: given_up))
        over.set()
    return result


async def _process_all(run: Run, writer: DatasetWriter) -> pl.DataFrame:
    """Run the processors over the whole dataset. They are user code: when cancelled, their thread is left alone."""
    try:
        return await run.store_thread(lambda: _processed(run.plan, writer))
    except trio.Cancelled:
        run.ledger.running_threads[" + ".join(each.label for each in run.plan.after_generation)] += 1
        raise


def _processed(plan: BuildPlan, writer: DatasetWriter) -> pl.DataFrame:
    frame: Any = Dataset.open(writer.path).scan()
    for processor in plan.after_generation:
        try:
            frame = processor.apply(frame)
            if isinstance(frame, pl.DataFrame):
                frame = frame.lazy()
            if not isinstance(frame, pl.LazyFrame):
                raise TypeError(f"it must return a polars frame, not {type(frame).__name__}")
        except Exception as error:
            raise ProcessorFailed(
                f"after-generation processor {processor.label!r} failed: {error_text(error)}"
            ) from error
    try:
        whole: pl.DataFrame = frame.collect()
    except Exception as error:
        names = ", ".join(processor.label for processor in plan.after_generation)
        raise ProcessorFailed(f"after-generation processors {names} failed: {error_text(error)}") from error
    return whole


def _emit_admitted(run: Run, group: RowGroup | SequentialGroup) -> None:
    if run.events.active:
        run.events.emit(
            events.RowGroupAdmitted(time=trio.current_time(), row_group=group.index, rows=len(group.rows.source))
        )


def _emit_started(run: Run) -> None:
    plan = run.plan
    run.events.emit(
        events.BuildStarted(
            time=trio.current_time(), rows=plan.rows, row_groups=plan.group_count, columns=plan.graph.outputs
        )
    )


def make_report(run: Run) -> BuildReport:
    """What a run has done so far."""
    throttles: Mapping[str, Any] = run.throttles.statistics()
    return run.ledger.report(
        rows=run.plan.rows,
        unfinished=run.unfinished(),
        throttles=throttles,
        seconds=trio.current_time() - run.started,
    )


def _sole(error: BaseException) -> BaseException:
    """One leaf is raised as itself; several as one `BuildError` with the group as its cause."""
    found = list(leaves(error))
    if len(found) == 1:
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
