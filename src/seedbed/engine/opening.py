"""Open a row group with what earlier runs left of it.

Stateful generators whose state was not saved are replayed: they are called again with the same arguments, and the
results, which are in the dataset already, are ignored. The arguments come from the rows of the part or, where rows are
missing there, from what the journal stored of their calls.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import attrs
import msgspec
import trio

from ..errors import PartError, StoreError
from ..graph import GROUP, Kind
from ..observe import events
from ..observe.report import REJECTED
from ..store.entries import GeneratorCall, Purpose, Shared, SharedCall
from ..store.parts import read_table
from ..store.provenance import Provenance, read_provenance
from ..store.values import python_values
from .once import SharedAnswer
from .resume import RenewedRows, RetriedRows, plan_renewal, plan_retry, restore_entries
from .row_group import RowGroup
from .rows import Rows, identities_by_position
from .services import OpenGroup
from .storage import GroupEntries
from .taking import inherited_values
from .worker import repeat_call

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..store.entries import Entry
    from ..store.manifest import GroupRecord
    from .rows import Identity
    from .services import Services
    from .tasks import Step


async def restore_shared(services: Services) -> None:
    """Restore the answers of columns with `once_per`; a run that retries dropped rows tries their failures again."""
    recorder, shared = services.recorder, services.shared
    if recorder is None or not shared.once:
        return
    steps = {step.name: step for step in shared.steps if step.once_per}
    keys = dict.fromkeys(services.plan.shared_key(name) for name in steps)
    found = [(key, entry) for key in keys for entry in await recorder.read(key)]
    for stored, entry in found:
        if not isinstance(entry, Shared | SharedCall) or stored != services.plan.shared_key(entry.column):
            continue  # of a column that is generated anew since
        match entry:
            case Shared(column=column, key=key, value=value) if column in steps:
                outputs = len(steps[column].outputs)
                fits = outputs == 1 or (isinstance(value, list | tuple) and len(value) == outputs)
                if services.plan.retry_dropped if entry.error is not None else not fits:
                    continue
                answer = SharedAnswer(
                    value=value, origin=entry.origin, error=entry.error, code=entry.code, attempts=entry.attempts
                )
                shared.once[column].restore(key, answer)
            case SharedCall(column=column) if column in steps:
                shared.once[column].restore_call(entry.key, entry.call, entry.answer, entry.spent)


async def open_group(services: Services, index: int, turn: int, nursery: trio.Nursery) -> OpenGroup | None:
    """Perform `Admit`; None if there is nothing to do for the row group."""
    history, recorder, scheduler = services.history, services.recorder, services.scheduler
    earlier: RetriedRows | RenewedRows | None = None
    entries: Sequence[Entry] = ()
    if history.replaying and (index in history.stale or history.is_done(index)):
        await _replay(services, index, turn, nursery)
    if index in history.stale or history.is_done(index):
        found: tuple[RetriedRows | RenewedRows, Sequence[Entry]] | None = None
        if index in history.stale:
            found = await _read_renewed(services, history.stale[index])
        elif index in history.retrying:
            found = await _read_retried(services, history.retrying[index])
        if found is None:
            for instance in services.shared.instances.values():
                instance.turnstile.leave(turn)
            if services.decisions is not None:
                await services.decisions.passed_over(index)
            scheduler.passed_over(index, services.stage)
            return None
        earlier, entries = found
    elif recorder is not None and index in history.recorded:
        entries = await recorder.read(services.plan.key(index))
    group, state = _new_group(services, index, turn, nursery, earlier)
    services.groups[index] = group
    services.notify.emit(events.RowGroupAdmitted, row_group=index, rows=group.rows.count)
    await _begin(services, group, state)
    if group.retry is not None:
        rejected = {(drop.row, drop.copy) for drop in group.retry.drops if drop.kind == REJECTED}
        for row in range(group.rows.count):
            if group.rows.identity(row) in rejected:
                state.restore_rejected(row)
    if group.renewal is not None:
        _restore_drops(services, group, state, group.renewal)
        taken_over = [*group.renewal.cells, *group.renewal.dropped_cells]
        services.ledger.reused += sum(len(each.rows) for each in taken_over)
        entries = [*taken_over, *entries]
    restored = restore_entries(state, group.rows, services.plan.steps, entries)
    services.ledger.restored += restored.total()
    services.ledger.durable += restored.total()
    for column, cells in restored.items():
        services.notify.emit(events.CellsRestored, row_group=index, column=column, cells=cells)
    for step, row, _ in list(state.calls):
        if step.instance is not None and id(step.instance) in history.replaying:
            await repeat_call(services, group, step, row)
    scheduler.admitted(state)
    services.wake()
    return group


async def _begin(services: Services, group: OpenGroup, state: RowGroup) -> None:
    """Begin a row group with what its rows have from others, which is read again whenever it is opened."""
    inherited = services.plan.inherited_step
    # Rows that pre-batch processors returned have other numbers: theirs are stored with their cells.
    is_processed = group.retry is not None and group.rows.resized and bool(services.plan.pre_batch)
    if inherited is not None and (is_processed or (group.renewal is not None and services.plan.pre_batch)):
        inherited = None
    values = None if inherited is None else await inherited_values(services, inherited, group.rows)
    state.begin()
    if inherited is not None:
        state.restore_finished(inherited, GROUP, values, None)


def _new_group(
    services: Services, index: int, turn: int, nursery: trio.Nursery, earlier: RetriedRows | RenewedRows | None
) -> tuple[OpenGroup, RowGroup]:
    plan, recorder = services.plan, services.recorder
    retry = earlier if isinstance(earlier, RetriedRows) else None
    renewal = earlier if isinstance(earlier, RenewedRows) else None
    identities = renewal.identities if renewal is not None else None
    if retry is not None:
        identities = list(retry.rows.identities)
    rows = Rows(plan, plan.layout.group_rows(index), identities)
    barrier, key = bool(plan.pre_batch), services.plan.key(index)
    if renewal is not None:
        key = services.plan.key(index, revision=renewal.record.revision, purpose=Purpose.RENEWAL)
        if renewal.resized is not None:
            barrier, rows.resized = False, renewal.resized
    if retry is not None:
        key = services.plan.key(index, revision=retry.revision, purpose=Purpose.RETRY)
        if retry.rows.resized is not None:
            # Rows that are retried have passed the pre-batch processors.
            barrier, rows.resized = False, retry.rows.resized
    journal = None
    if recorder is not None and plan.config.durability == "cell":
        journal = GroupEntries(recorder, key, rows, plan)
    state = RowGroup(index, turn, services.shared, rows, journal=journal, barrier=barrier)
    return OpenGroup(index, rows, nursery, key, retry=retry, renewal=renewal, state=state, journal=journal), state


async def _read_renewed(services: Services, record: GroupRecord) -> tuple[RenewedRows, Sequence[Entry]] | None:
    """The rows of a row group that an earlier recipe wrote, and what earlier runs added to them.

    None if nothing of it changes: then it is listed as it is.
    """
    store, recorder, plan, redo = services.store, services.recorder, services.plan, services.plan.redo
    assert store is not None  # only a resumed dataset has row groups of an earlier recipe
    if len(record.resized) > len(plan.pre_batch) and record.generated is None:
        raise StoreError(
            f"row group {record.index} cannot be processed again: its rows before the post-batch processors are lost; "
            "resume with the processors as they were, or pass --overwrite (overwrite=True) for a new dataset"
        )

    async def read(purpose: Purpose) -> Sequence[Entry]:
        key = services.plan.key(record.index, revision=record.revision, purpose=purpose)
        return () if recorder is None else await recorder.read(key)

    if redo is not None and redo.everything and record.edition < redo.edition:
        return RenewedRows.nothing_of(record), await read(Purpose.RENEWAL)
    part = record.generated or record.part
    table = None if part is None else await services.store_thread(lambda: read_table(store.writer.path, part))
    provenance = await _read_provenance(services, record)
    dropped, retried = await read(Purpose.DROPPED), await read(Purpose.RETRY)
    try:
        renewal = plan_renewal(plan, record, table, dropped, retried, provenance=provenance)
    except (ValueError, LookupError, TypeError) as error:
        raise StoreError(f"row group {record.index} holds values that no run of this recipe wrote: {error}") from error
    if renewal is not None:
        return renewal, await read(Purpose.RENEWAL)
    listed = await services.store_thread(lambda: store.writer.carry(record))
    services.ledger.written += listed.rows
    services.ledger.reused += listed.rows * len(plan.steps)
    services.ledger.resize(listed.resized)
    services.ledger.dropped.extend(listed.drops)
    services.history.group_done(record.index)
    return None


def _restore_drops(services: Services, group: OpenGroup, state: RowGroup, renewal: RenewedRows) -> None:
    """Rows that were dropped stay dropped, unless they are retried and something is stored of them."""
    plan = services.plan
    steps = {step.name: step for step in plan.steps}
    for row, drop in renewal.drops:
        if row is None:
            group.rows.drops.append(drop)
        elif drop.kind != "failed" or not (plan.retry_dropped or plan.is_redone(drop.column, renewal.record)):
            state.restore_dropped(steps.get(drop.column), row, drop)


async def _read_retried(services: Services, record: GroupRecord) -> tuple[RetriedRows, Sequence[Entry]] | None:
    """The dropped rows of a finished row group, and everything that earlier runs left of them."""
    recorder, plan = services.recorder, services.plan

    async def read(purpose: Purpose) -> Sequence[Entry]:
        key = services.plan.key(record.index, revision=record.revision, purpose=purpose)
        return () if recorder is None else await recorder.read(key)

    seeds = plan.seeds if plan.pre_batch else ()
    processed = bool(plan.pre_batch or plan.post_batch)
    found = plan_retry(record, await read(Purpose.DROPPED), seeds=seeds, processed=processed)
    if found is None:
        return None
    retried, known = found
    if plan.pre_batch and plan.post_batch:  # the others of its rows are written again too
        provenance = await _read_provenance(services, record)
        retried = attrs.evolve(retried, seed_rows={**provenance.seed_rows, **retried.seed_rows})
    return retried, [*known, *await read(Purpose.RETRY)]


async def _read_provenance(services: Services, record: GroupRecord) -> Provenance:
    """Where the rows of a finished row group came from; nothing is known if its file is missing or damaged."""
    store, part = services.store, record.provenance
    if store is None or part is None:
        return Provenance()
    with suppress(PartError, msgspec.MsgspecError):  # it may come from someone else
        return await services.store_thread(lambda: Provenance.of(read_provenance(store.writer.path, part)))
    return Provenance()


async def _replay(services: Services, index: int, turn: int, nursery: trio.Nursery) -> None:
    """Replay a finished row group with every stateful generator that needs it, when its turn comes."""
    store, recorder, plan = services.store, services.recorder, services.plan
    assert store is not None
    assert store.manifest is not None  # only a resumed dataset has groups that are done
    record, added = store.manifest.groups[index], plan.header.added
    source, key = range(record.start, record.stop), services.plan.key(index, purpose=Purpose.CALLS)
    stored: Sequence[Entry] = ()
    if recorder is not None and key in store.recovered.long_lived:
        stored = await recorder.read(key)

    def past(columns: dict[str, list[Any]], identities: list[Identity]) -> OpenGroup:
        rows = Rows(plan, source)
        rows.replace(columns, identities)
        return OpenGroup(index, rows, nursery, journal_key=services.plan.key(index))

    written: OpenGroup | None = None
    for identity, instance in services.shared.instances.items():
        if identity not in services.history.replaying:
            continue
        up = trio.Event()
        instance.turnstile.enter(turn, up.set)
        await up.wait()
        known = [plan.steps[node] for node in instance.nodes]
        steps = {step.name: step for step in known if added.get(step.name, 0) <= record.edition}
        if stored:
            calls = [each for each in stored if isinstance(each, GeneratorCall) and each.column in steps]
            groups = ((steps[call.column], past(call.inputs, list(call.identities))) for call in calls)
        else:
            columns = await _read_part(services, record)
            height = len(next(iter(columns.values()), ()))
            written = written or past(columns, identities_by_position(source, height))
            groups = ((step, written) for step in steps.values())
            if store.damage:
                _name_lost_calls(services, record, steps.values())
        for step, group in groups:
            for row in group.live_rows() if step.kind is Kind.CELL else [GROUP]:
                await repeat_call(services, group, step, row)


def _name_lost_calls(services: Services, record: GroupRecord, steps: Iterable[Step]) -> None:
    """Report stateful generators that are replayed without calls that only a damaged journal had.

    These are calls for rows that were dropped because of a column that the generator does not need.
    """
    history, graph = services.history, services.plan.graph
    if not any(rows.stop > record.stop for rows in history.unfinished()):
        return  # nothing is generated after these calls
    failed = {drop.column for drop in record.drops if drop.kind == "failed"}
    for step in steps:
        needed, waiting = set[str](), [step.name]
        while waiting:
            upstream = set(graph.upstream(waiting.pop())) - needed
            needed |= upstream
            waiting += upstream
        if step.kind is not Kind.FROM_SCRATCH and failed - needed:
            lost = f"calls of the stateful column {step.name!r} for dropped rows of row group {record.index} are lost"
            services.ledger.damage += (f"{lost}; values that it generates for later rows may differ",)


async def _read_part(services: Services, record: GroupRecord) -> dict[str, list[Any]]:
    """The rows of a part by column, without columns that processors added."""
    store, part = services.store, record.generated or record.part
    if store is None or part is None:
        return {}
    table = await services.store_thread(lambda: read_table(store.writer.path, part))
    outputs = set(services.plan.graph.outputs)
    return {name: python_values(table.column(name)) for name in table.column_names if name in outputs}
