"""Write finished row groups to disk, and complete the dataset at the end of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import msgspec
import polars as pl
import trio

from ..errors import AllRowsDropped, ProcessorFailed, StoreError
from ..graph import Kind
from ..observe import events
from ..recipe.stages import PARENT, ROW, K
from ..runtime.tasks import open_hidden_nursery
from ..store.children import Children
from ..store.dataset import Dataset, dropped_columns
from ..store.entries import DroppedRows, FinishedRows, GeneratorCall, Purpose
from ..store.files import remove
from ..store.manifest import GroupRecord, read
from ..store.provenance import provenance_table
from ..store.schema import arrow_table, conflict_error
from ..store.values import values_of
from .failures import error_text
from .resume import call_entries, dropped_entries
from .source import RECIPE_NAME, store_recipe
from .storage import read_state

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from pathlib import Path

    import pyarrow as pa

    from ..observe.report import Drop, Resized
    from ..store.entries import Entry
    from ..store.journal import Journal
    from ..store.schema import Conflict
    from ..store.writer import DatasetWriter
    from .plan import StagePlan
    from .rows import Identity
    from .services import OpenGroup, Services
    from .tasks import Processor

T = TypeVar("T")

# A checkpoint is shielded from cancellation, but not for ever: a disk that hangs must not hang the run.
CHECKPOINT_DEADLINE = 60.0


@attrs.frozen(kw_only=True)
class FinishedGroup:
    """A row group that is complete: on disk, or in memory in a preview."""

    row_group: int
    """Its number."""
    stage: str = ""
    """Its stage, empty in a recipe without stages."""
    source_rows: range
    """The numbers of the rows that it began with."""
    rows: int
    """How many rows it has."""
    dropped: int
    """How many rows were dropped."""
    path: Path | None
    """Its file; None in memory."""
    _frame: pl.DataFrame | None = attrs.field(default=None, repr=False)

    def to_polars(self) -> pl.DataFrame:
        """Its rows."""
        if self._frame is not None:
            return self._frame
        return pl.DataFrame() if self.path is None else pl.read_parquet(self.path)


async def checkpoint(services: Services, group: OpenGroup) -> FinishedGroup | None:
    """Write a finished row group and free it; None where it is still to be decided which of its rows count."""
    rows, ledger, store = group.rows.finished(group.live_rows()), services.ledger, services.store
    await _complete_drops(services, group)
    path: Path | None = None
    frame: pl.DataFrame | None = None
    # What the manifest has of the row group so far, if dropped rows of it are retried.
    earlier = None if group.retry is None else services.history.retrying[group.index]
    rows_before = 0 if earlier is None else earlier.rows
    if store is None:
        declared = {**services.plan.header.declared_types, **group.rows.untyped}
        table, conflicts = await services.store_thread(lambda: arrow_table(rows, declared))
        frame = pl.DataFrame(table)
        count = frame.height
        if ROW in table.column_names and services.decisions is None:
            services.finished_rows[group.index] = {name: values_of(table.column(name)) for name in table.column_names}
    else:
        record = await _write(services, store.writer, group, rows, rows_before)
        conflicts, count = record.conflicts, record.rows
        if record.part is not None:
            path = store.writer.path / record.part.name
    written = count - rows_before
    if store is not None and services.recorder is None:
        services.committed(written * len(services.plan.steps))
    ledger.resize(group.rows.resized, before=() if earlier is None else earlier.resized)
    ledger.drop(group.rows.drops)
    if group.retry is not None:
        ledger.drop(group.retry.drops)
        del services.history.retrying[group.index]
    if group.rows.skipped is not None:
        ledger.skipped.append(group.index)
    for conflict in conflicts:
        ledger.conflicts.append(str(conflict))
        services.notify.emit(events.SchemaConflictFound, row_group=group.index, message=str(conflict))
    services.notify.emit(events.RowGroupFinished, row_group=group.index, rows=written, dropped=len(group.rows.drops))
    services.history.group_done(group.index)
    if store is not None and ledger.usage:
        await write_usage(services, store.writer)
    identities = group.rows.identities(group.live_rows())
    group.rows.buffer.free()
    if services.decisions is not None:
        await services.decisions.completed(group.index, count, identities, frame)
        return None
    ledger.written += written
    return FinishedGroup(
        row_group=group.index,
        stage=services.stage,
        source_rows=group.rows.source,
        rows=count,
        dropped=len(group.rows.drops),
        path=path,
        frame=frame,
    )


async def _complete_drops(services: Services, group: OpenGroup) -> None:
    """Add to the drops of a row group what is known of them at its end: their cost and their rows of the seed file."""
    assert group.state is not None
    costs, found = group.state.drop_costs(), []
    numbers: Sequence[int | None] = ()
    if group.rows.drops:
        numbers = await _seed_numbers(services, group)
        seeds = dict(zip(group.rows.identities(range(group.rows.count)), group.seed_rows(numbers), strict=True))
    before = {step.name for step in services.plan.steps if step.kind is Kind.FROM_SCRATCH}
    for drop in group.rows.drops:
        if drop in costs or drop.kind == "skipped":
            seed_row = seeds.get((drop.row, drop.copy))
            if services.plan.pre_batch and (drop.column in before or drop.kind == "skipped"):
                # It was dropped before the processors, as a row of its own number.
                seed_row = numbers[drop.row - group.rows.source.start] if numbers else None
            drop = msgspec.structs.replace(drop, cost=costs.get(drop, 0.0), seed_row=seed_row)  # noqa: PLW2901
        found.append(drop)
    group.rows.drops = found


async def _seed_numbers(services: Services, group: OpenGroup) -> Sequence[int | None]:
    """The numbers that the source rows of a row group have in the seed file; empty without one."""
    readers = (each.column.generator for each in services.plan.steps if each.column is not None)
    reader = next((each for each in readers if hasattr(each, "seed_rows")), None)
    if reader is None or services.store is None:
        return ()
    source = group.rows.source
    numbers: Sequence[int | None] = await services.store_thread(lambda: reader.seed_rows(source))
    return numbers


async def _provenance(services: Services, group: OpenGroup) -> Callable[[], pa.Table] | None:
    """What returns the provenance of a row group; None where its record in the manifest says as much."""
    plan, rows, state = services.plan, group.rows, group.state
    assert state is not None
    steps = [step.name for step in plan.steps if step.makes_calls]
    numbers = await _seed_numbers(services, group)
    is_plain = not (steps or numbers or plan.pre_batch or plan.post_batch or plan.header.provenance)
    if is_plain or rows.skipped is not None:
        return None
    live, seeds = group.live_rows(), group.seed_rows(numbers)
    at: list[int | None] = [*live]
    if rows.came_from is not None:
        at = [None if position is None else live[position] for position in rows.came_from]
        kept = set(at)
        at += [row for row in live if row not in kept]

    def build() -> pa.Table:
        origins = {
            name: [None if row is None else known.get(row) for row in at]
            for name in steps
            for known in [state.origins.get(name, {})]
        }
        identities = [None if row is None else rows.identity(row) for row in at]
        return provenance_table(identities, [None if row is None else seeds[row] for row in at], origins)

    return build


async def _write(services: Services, writer: DatasetWriter, group: OpenGroup, rows: Any, before: int) -> GroupRecord:
    """Store what is finished of dropped rows, then write the part and its record, then free the journal's entries.

    `before` is how many rows the part had.
    """
    plan, recorder, retry, index, state = services.plan, services.recorder, group.retry, group.index, group.state
    assert state is not None
    frontier, identities = state.frontier, group.rows.identities(group.live_rows())
    earlier = None if retry is None else retry.revision
    if group.renewal is not None:
        earlier = group.renewal.record.revision
    order: list[int] | None = None
    if retry is not None and retry.rows.order is not None:
        order, identities = retry.merged(identities, appended=plan.acceptance is not None)
    elif retry is not None:
        # Post-batch processors returned the part, and have returned another for all rows of the group.
        height = rows.height if isinstance(rows, pl.DataFrame) else len(next(iter(rows.values()), ()))
        order = list(range(before, before + height))
    if recorder is not None:
        await recorder.flush_states()
        if services.shared.once:
            await recorder.flush()  # a value that a part holds is not generated again for another row
        dropped = [row for row in range(frontier.rows) if frontier.dropped[row]]
        if dropped:
            # For a run that retries them; post-batch processors need the other rows of the group too.
            of, named = (range(frontier.rows), None) if plan.post_batch else (dropped, identities)
            cells = dropped_entries(
                plan, group.rows, of, frontier.is_done, order=named, resized=state.resized, origins=state.origins
            )
            revision = 0 if earlier is None else earlier + 1
            await recorder.store(services.plan.key(index, revision=revision, purpose=Purpose.DROPPED), cells)
        if retry is None and (plan.post_batch or dropped):
            # The part will not show what stateful generators were called with.
            calls: list[Entry] = [*call_entries(group.rows, [(step, called) for step, _, called in state.calls])]
            if calls:
                key = services.plan.key(index, purpose=Purpose.CALLS)
                if group.renewal is not None:  # those of the columns that it had
                    edition, added = group.renewal.record.edition, plan.header.added
                    stored = [each for each in await recorder.read(key) if isinstance(each, GeneratorCall)]
                    known = {step.name for step in plan.steps if added.get(step.name, 0) <= edition}
                    calls = [*(each for each in stored if each.column in known), *calls]
                await recorder.store(key, calls)
                services.history.calls_stored.add(key)
    record = await _write_part(services, writer, group, rows, order)
    services.history.group_written(index)
    if recorder is not None:
        await recorder.free(group.journal_key)
        if earlier is not None:
            await recorder.free(plan.key(index, revision=earlier, purpose=Purpose.RETRY))
            shown = writer.dataset_groups.get(index) if writer.is_revising else None
            if shown is None or shown.revision != earlier:  # else the dataset needs it if the revision is abandoned
                await recorder.free(plan.key(index, revision=earlier, purpose=Purpose.DROPPED))
    return record


async def _write_part(
    services: Services, writer: DatasetWriter, group: OpenGroup, rows: Any, order: list[int] | None
) -> GroupRecord:
    """Write a part off the loop. Cancellation waits for it until a deadline; an abandoned writer does not commit."""
    is_abandoned = False
    retry, of = group.retry, group.rows
    provenance = await _provenance(services, group)
    record = GroupRecord(
        index=group.index,
        start=of.source.start,
        stop=of.source.stop,
        drops=(*(retry.drops if retry is not None else ()), *of.drops),
        resized=of.resized,
        skipped=of.skipped,
        commits=services.recorder.commits if services.recorder is not None else 0,
    )
    generated = of.before_post_batch(group.live_rows())

    def work() -> GroupRecord | None:
        return writer.write_group(
            record,
            rows,
            order=order,
            generated=generated,
            declared=of.untyped,
            provenance=None if provenance is None else provenance(),
            abandoned=lambda: is_abandoned,
        )

    try:
        with trio.fail_after(CHECKPOINT_DEADLINE, shield=True):
            written = await services.store_thread(work)
            assert written is not None  # it was not abandoned
            return written
    except trio.TooSlowError as slow:
        raise StoreError(
            f"writing row group {group.index} to {writer.path} took more than {CHECKPOINT_DEADLINE:g} s"
        ) from slow
    except (OSError, StoreError) as error:
        raise StoreError(f"row group {group.index} could not be written to {writer.path}: {error}") from error
    finally:
        is_abandoned = True


async def write_usage(services: Services, writer: DatasetWriter) -> None:
    """Record the usage of all runs of this dataset so far in the manifest."""
    entries = services.usage_entries()
    with trio.CancelScope(shield=True, deadline=trio.current_time() + CHECKPOINT_DEADLINE):
        await services.store_thread(lambda: writer.write_usage(entries))


def finished_group(
    services: Services, index: int, rows: int, frame: pl.DataFrame | None, name: str | None
) -> FinishedGroup:
    """Rows of a row group of which it was decided that they count."""
    store = services.store
    return FinishedGroup(
        row_group=index,
        stage=services.stage,
        source_rows=services.plan.layout.group_rows(index),
        rows=rows,
        dropped=0,
        path=None if store is None or name is None else store.writer.path / name,
        frame=frame,
    )


async def finish(stages: Collection[Services]) -> None:
    """Everything is generated: finish the dataset of each stage, then remove the journal that they share."""
    conflicts: list[Conflict] = []
    for services in stages:
        conflicts += await _finish_stage(services)
    services = next(iter(stages))
    if services.store is not None and services.store.journal is not None:
        journal, writer = services.store.journal, services.store.writer

        def end(_: object) -> None:
            for each in stages:
                # Everything is generated: no generator is replayed any more.
                for key in (*each.history.calls_stored, *each.history.replaced):
                    journal.free(key)
            # Where there are enough rows, row groups that were begun are finished when the dataset grows.
            journal.finish(left=any(each.plan.acceptance is not None for each in stages))

        try:
            await _wind_up(services, end)
        except OSError as error:
            raise StoreError(f"the dataset in {writer.path} could not be finished: {error}") from error
    if conflicts:
        raise conflict_error(conflicts)


async def _finish_stage(services: Services) -> Sequence[Conflict]:
    """One schema for all parts of a stage, then the processors over its whole dataset; returns what has no one type."""
    store, plan = services.store, services.plan
    if store is None:
        return ()
    writer, journal = store.writer, store.journal
    if services.recorder is not None and (plan.acceptance is not None or services.shared.once):
        # What open row groups left, and what all of them share, is for a dataset that grows.
        await services.recorder.flush()
    try:
        if plan.after_generation:
            await _wind_up(services, lambda abandoned: writer.unify(abandoned=abandoned))
            frame, resized = await _process_all(services, writer)
            await _wind_up(services, lambda abandoned: writer.publish(frame, resized=resized, abandoned=abandoned))
            services.ledger.written = frame.height
            services.ledger.resize(resized)
        duplicates = [drop for decision in writer.decisions for _, drop in decision.rejected]
        dropped = await services.store_thread(lambda: _dropped_rows(plan, writer.groups, duplicates, journal))
        replaced = (
            {index: group.revision for index, group in writer.dataset_groups.items()} if writer.is_revising else {}
        )
        if writer.is_revising:
            _check_revision(services)
            remove(writer.path, RECIPE_NAME)  # that of the revision follows
        # Last: a dataset that says that it is complete has the rows that the processors returned.
        conflicts = await _wind_up(services, lambda abandoned: writer.finish(dropped=dropped, abandoned=abandoned))
        if replaced and plan.header.recipe is not None:
            store_recipe(writer.path, plan.header.recipe)
        found = {name: read_state(plan.steps[plan.instances[at][0]]) for at, name in plan.state_names.items()}
        if states := {name: state for name, state in found.items() if state is not None}:
            await _wind_up(services, lambda _: writer.write_states(states))
        if journal is not None:
            services.history.replaced = [
                plan.key(index, revision=revision, purpose=Purpose.DROPPED)
                for index, revision in replaced.items()
                if index not in writer.dataset_groups or writer.dataset_groups[index].revision != revision
            ]
    except OSError as error:
        raise StoreError(f"the dataset in {writer.path} could not be finished: {error}") from error
    services.ledger.conflicts[:] = [str(conflict) for conflict in conflicts]
    return conflicts


def _check_revision(services: Services) -> None:
    """Raise `AllRowsDropped` if failures left no row of a revision: then the dataset stays as it is."""
    ledger = services.ledger
    if ledger.dropped and not ledger.written and not ledger.report(rows=0, unfinished=()).removed:
        raise AllRowsDropped(
            f"all {len(ledger.dropped):,} rows of the new revision were dropped, and the dataset is unchanged; once "
            "the cause is fixed, resume with retry_dropped=True, or take the redo back (abandon_redo)"
        )


def _dropped_rows(
    plan: StagePlan, groups: Iterable[GroupRecord], duplicates: Iterable[Drop], journal: Journal | None
) -> dict[str, list[Any]]:
    """All dropped and rejected rows, with their finished cells, which only the journal stores.

    Those of duplicates are in the parts of their row groups.
    """
    outputs = plan.graph.outputs
    steps = {step.name: step for step in plan.steps}
    drops: list[Drop] = []
    cells: list[dict[str, Any]] = []
    for group in groups:
        if not group.drops:
            continue
        key = plan.key(group.index, revision=group.revision, purpose=Purpose.DROPPED)
        known: dict[Identity, dict[str, Any]] = {}
        match journal.read(key) if journal is not None else []:
            case [DroppedRows(identities=identities), *entries]:
                for entry in entries:
                    if isinstance(entry, FinishedRows) and entry.column in steps:
                        for name, values in zip(steps[entry.column].outputs, entry.columns, strict=False):
                            for row, value in zip(entry.rows, values, strict=True):
                                known.setdefault(identities[row], {})[name] = value
        # By row: the order in which they failed depends on timing.
        in_order = sorted(group.drops, key=lambda drop: (drop.row, drop.copy))
        drops += in_order
        cells += [known.get((drop.row, drop.copy), {}) for drop in in_order]
    drops += duplicates
    cells += [{} for _ in drops[len(cells) :]]
    cells = [{**_numbers(plan, drop), **known} for drop, known in zip(drops, cells, strict=True)]
    found = dropped_columns(drops)
    return {**{name: [each.get(name) for each in cells] for name in outputs}, **found} if drops else {}


def _numbers(plan: StagePlan, drop: Drop) -> dict[str, Any]:
    """The row, or the rows, that a dropped row was made from, and which of the rows made from it it was."""
    children = plan.layout
    if not isinstance(children, Children):
        return {}
    if children.source.by is not None:
        return {PARENT: list(children.parents(drop.row))}
    parent, k = children.origin(drop.row)
    return {PARENT: parent, K: k}


async def _wind_up(services: Services, write: Callable[[Callable[[], bool]], T]) -> T:
    """Write off the loop, however long it takes; when cancelled, the writer is notified and has some time to stop."""
    is_abandoned = False
    shield = trio.CancelScope(shield=True)

    async def limit_on_cancel() -> None:
        nonlocal is_abandoned
        try:
            await trio.sleep_forever()
        finally:
            is_abandoned = True
            shield.deadline = trio.current_time() + CHECKPOINT_DEADLINE

    # Hidden, so that an OSError of the thread leaves it as itself and not in a group.
    async with open_hidden_nursery("the write is finished") as nursery:
        nursery.start_soon(limit_on_cancel)
        with shield:
            result = await services.store_thread(lambda: write(lambda: is_abandoned))
    return result


async def _process_all(services: Services, writer: DatasetWriter) -> tuple[pl.DataFrame, Resized]:
    """Run the processors over the whole dataset. They are user code: when cancelled, their thread is left alone."""
    try:
        return await services.store_thread(lambda: _processed_dataset(services.plan, writer))
    except trio.Cancelled:
        services.ledger.running_threads[" + ".join(each.label for each in services.plan.after_generation)] += 1
        raise


def _processed_dataset(plan: StagePlan, writer: DatasetWriter) -> tuple[pl.DataFrame, Resized]:
    dataset = Dataset(writer.path, read(writer.path).working, raw=True)
    return process_all(plan.after_generation, dataset.scan(), dataset.rows)


def process_all(processors: Iterable[Processor], rows: pl.LazyFrame, height: int) -> tuple[pl.DataFrame, Resized]:
    """The rows that after-generation processors return, and how many rows each removed and added."""
    # Polars pickles the predicates that it passes down to a scan; a Python function in a filter may not survive that.
    frame = rows.map_batches(lambda rows: rows, predicate_pushdown=False, streamable=True)
    resized = []
    returned: Any = None
    for processor in processors:
        try:
            returned = processor.apply(frame)
            if isinstance(returned, pl.LazyFrame):
                returned = returned.collect()
            if not isinstance(returned, pl.DataFrame):
                raise TypeError(f"it must return a polars frame, not {type(returned).__name__}")
        except StoreError:  # a part that cannot be read
            raise
        except Exception as error:
            raise ProcessorFailed(
                f"after-generation processor {processor.label!r} failed: {error_text(error)}"
            ) from error
        more, height = returned.height - height, returned.height
        resized.append((processor.label, max(0, -more), max(0, more)))
        frame = returned.lazy()
    return returned, tuple(resized)
