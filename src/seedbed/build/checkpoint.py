"""A row group that is finished goes to disk, and so does the dataset at the end of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import polars as pl
import trio

from ..errors import ProcessorFailed, StoreError
from ..observe import events
from ..store.dataset import Dataset
from ..store.entries import Key, Purpose
from ..store.schema import arrow_table, conflict_error
from .fill import error_text
from .retry import merge_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from ..store.journal import Journal
    from ..store.records import GroupRecord
    from ..store.writer import DatasetWriter
    from .plan import BuildPlan
    from .row_group import RowGroup
    from .run import Run
    from .sequential import SequentialGroup

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


async def checkpoint(run: Run, group: RowGroup | SequentialGroup) -> FinishedGroup:
    """Write a finished row group and free it."""
    rows = group.rows.finished(group.live_rows())
    path: Path | None = None
    frame: pl.DataFrame | None = None
    if run.store is None:
        table, conflicts = await run.store_thread(lambda: arrow_table(rows, run.plan.declared))
        frame = pl.DataFrame(table)
        count = added = frame.height
    else:
        record = await _write(run, run.store.writer, group, rows)
        conflicts, count = record.conflicts, record.rows
        if record.part is not None:
            path = run.store.writer.path / record.part.name
        added = count - (len(group.retry.order) if group.retry is not None else 0)
        if run.recorder is None:
            run.committed(added * len(run.plan.steps))
    ledger = run.ledger
    ledger.written += added
    ledger.dropped.extend(group.rows.drops)
    if group.retry is not None:
        ledger.dropped.extend(group.retry.drops)
        del run.retrying[group.index]
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
                time=trio.current_time(), row_group=group.index, rows=added, dropped=len(group.rows.drops)
            )
        )
    run.group_done(group.index)
    if run.store is not None and ledger.spent:
        await note_spending(run, run.store.writer)
    group.rows.buffer.free()
    return FinishedGroup(
        row_group=group.index,
        source_rows=group.rows.source,
        rows=count,
        dropped=len(group.rows.drops),
        path=path,
        frame=frame,
    )


async def _write(run: Run, writer: DatasetWriter, group: RowGroup | SequentialGroup, rows: Any) -> GroupRecord:
    """Write a part: first what is kept of its dropped rows, then the part and its line, then the journal is freed."""
    recorder, retry, index = run.recorder, group.retry, group.index
    held = group.rows.identities(group.live_rows())
    order: list[int] | None = None
    revision = 0
    if retry is not None:
        order = merge_order(retry.order, held)
        held = [[*retry.order, *held][at] for at in order]
        revision = retry.revision + 1
    if recorder is not None:
        await recorder.flush_states()
        kept = group.kept_entries(held)
        if kept:
            await recorder.keep(Key(group=index, revision=revision, purpose=Purpose.KEPT), kept)
        calls = group.call_entries() if retry is None else []
        if calls:
            key = Key(group=index, purpose=Purpose.CALLS)
            await recorder.keep(key, calls)
            run.calls_kept.add(key)
    record = await _write_part(run, writer, group, rows, order)
    if recorder is not None:
        await recorder.free(group.journal_key)
        if retry is not None:
            await recorder.free(Key(group=index, revision=retry.revision, purpose=Purpose.KEPT))
    return record


async def _write_part(
    run: Run, writer: DatasetWriter, group: RowGroup | SequentialGroup, rows: Any, order: list[int] | None
) -> GroupRecord:
    """Write a part off the loop. Cancellation waits for it, but only so long; a writer given up does not commit."""
    given_up = False
    retry = group.retry
    commits = run.recorder.commits if run.recorder is not None else 0

    def work() -> GroupRecord | None:
        if retry is not None and order is not None:
            return writer.add_rows(
                group.index,
                rows,
                order=order,
                drops=(*retry.drops, *group.rows.drops),
                commits=commits,
                abandoned=lambda: given_up,
            )
        return writer.write_group(
            group.index,
            rows,
            start=group.rows.source.start,
            stop=group.rows.source.stop,
            drops=group.rows.drops,
            skipped=group.rows.skipped,
            commits=commits,
            abandoned=lambda: given_up,
        )

    try:
        with trio.fail_after(CHECKPOINT_DEADLINE) as scope:
            scope.shield = True
            record = await run.store_thread(work)
            assert record is not None  # nobody has given it up
            return record
    except trio.TooSlowError as slow:
        raise StoreError(
            f"writing row group {group.index} to {writer.path} took more than {CHECKPOINT_DEADLINE:g} s"
        ) from slow
    except (OSError, StoreError) as error:
        raise StoreError(f"row group {group.index} could not be written to {writer.path}: {error}") from error
    finally:
        given_up = True


async def note_spending(run: Run, writer: DatasetWriter) -> None:
    """Have the manifest say what all runs of this dataset have used so far."""
    entries = run.spent()
    with trio.CancelScope(shield=True, deadline=trio.current_time() + CHECKPOINT_DEADLINE):
        await run.store_thread(lambda: writer.write_spending(entries))


async def finish(run: Run) -> None:
    """Everything is generated: one schema for all parts, then the processors over the whole dataset."""
    store, plan = run.store, run.plan
    if store is None:
        return
    writer, journal = store.writer, store.journal
    try:
        conflicts = await _wind_up(run, lambda abandoned: writer.finish(abandoned=abandoned))
        if plan.after_generation:
            frame = await _process_all(run, writer)
            await _wind_up(run, lambda abandoned: writer.write_processed(frame, abandoned=abandoned))
        states = run.states()
        if states:
            await _wind_up(run, lambda _: writer.write_states(states))
        if journal is not None:
            await _wind_up(run, lambda _: _finish_journal(journal, run.calls_kept))
    except OSError as error:
        raise StoreError(f"the dataset in {writer.path} could not be finished: {error}") from error
    run.ledger.conflicts[:] = [str(conflict) for conflict in conflicts]
    if conflicts:
        raise conflict_error(conflicts)


def _finish_journal(journal: Journal, calls: Iterable[Key]) -> None:
    for key in calls:
        journal.free(key)  # everything is made: nobody has to be brought back for the rest
    journal.finish()


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
