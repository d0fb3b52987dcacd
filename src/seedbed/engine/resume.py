"""Resume an interrupted build: what earlier runs stored, and how it is restored.

`History` knows which row groups are done. A row group is a function of its outcomes: the same outcomes in the same
order give the same state (`restore_entries`). Stateful generators get the state that was saved with their outcomes, and
dropped rows of finished row groups are retried with what is finished of them (`plan_retry`). A row group that an
earlier recipe wrote is written anew with its finished cells (`plan_renewal`).
"""

from __future__ import annotations

import gc
from collections import Counter
from typing import TYPE_CHECKING

import attrs

from ..errors import StoreError
from ..graph import GROUP, Kind
from ..store import codec
from ..store.entries import (
    Answer,
    DroppedRows,
    Failed,
    Finished,
    FinishedRows,
    Forgiven,
    Forgotten,
    GeneratorCall,
    Purpose,
    Rebuilt,
)
from ..store.journal import Recovered
from ..store.values import values_of
from .redo import cells_to_redo, selected_rows
from .row_group import Consequence
from .rows import identities_by_position

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    import pyarrow as pa

    from ..observe.report import Drop, Ledger, Origin, Resized
    from ..store.entries import Entry, Key
    from ..store.manifest import GroupRecord, Manifest
    from ..store.provenance import Provenance
    from .admission import AcceptedAdmission
    from .budget import Budget
    from .plan import StagePlan
    from .row_group import RowGroup
    from .rows import Identity, Rows
    from .storage import Store
    from .tasks import Step


def take_over_usage(stores: Iterable[Store], ledger: Ledger, budget: Budget) -> None:
    """Continue with the usage of earlier runs, which every stage and the journal store for all stages.

    The journal is usually ahead of the manifests, which were written at the last checkpoint.
    """
    for store in stores:
        if store.manifest is not None:
            ledger.take_over((*store.manifest.usage, *store.recovered.usage))
    for (column, _), usage in ledger.usage.items():
        budget.take_over(column, usage)


class History:
    """Row groups that are done, those to be written anew or retried, and stateful generators to be replayed.

    Changed when a row group is checkpointed.
    """

    def __init__(self, plan: StagePlan, store: Store | None, ledger: Ledger) -> None:
        self._plan = plan
        self._store = store
        # Row groups that are done: all below the first number, and these.
        self._done_below = 0
        self._done_above: set[int] = set()
        # Row groups whose record is in the manifest, but which are not done yet.
        self._written: set[int] = set()
        # Row groups that an earlier recipe wrote, and that are not written anew yet.
        self.stale: dict[int, GroupRecord] = {}
        # Finished row groups whose dropped rows are to be retried, and were not yet.
        self.retrying: dict[int, GroupRecord] = {}
        # Stateful generators whose state was not saved, by identity: they are called again.
        self.replaying: set[int] = set()
        # Keys of the journal's records of calls of stateful generators, stored until everything is generated.
        recovered = Recovered() if store is None else store.recovered
        self.calls_stored = {
            key for key in recovered.long_lived if key.purpose is Purpose.CALLS and key.stage == plan.stage
        }
        # Keys of dropped rows that a revision, which is complete, has replaced.
        self.replaced: Sequence[Key] = ()
        # Row groups that the journal has entries of.
        self.recorded = frozenset(
            key.group for key in recovered.groups if key.purpose is Purpose.BUILD and key.stage == plan.stage
        )
        if store is not None:
            ledger.damage = store.damage
            if store.manifest is not None:
                self._take_over(store.manifest, recovered, ledger)

    def _take_over(self, manifest: Manifest, recovered: Recovered, ledger: Ledger) -> None:
        retry = self._plan.retry_dropped
        for index, group in sorted(manifest.groups.items()):
            if retry and group.skipped is not None:
                continue  # nothing of it was generated that could be lost: it is generated as a whole
            if not manifest.is_current(group):
                self.stale[index] = group
                self._written.add(index)
                continue
            self.group_done(index)
            if self._plan.acceptance is None:
                ledger.written += group.rows
            ledger.resize(group.resized)
            if group.skipped is not None:
                ledger.skipped.append(index)
            if retry and any(drop.kind == "failed" for drop in group.drops):
                self.retrying[index] = group
            else:
                ledger.drop(group.drops)
        if self._plan.acceptance is not None:
            ledger.written = ledger.placed = sum(placed.part.rows for placed in manifest.placed.values())
        for decision in manifest.decisions:
            ledger.drop([drop for _, drop in decision.rejected])
        if manifest.groups or recovered.groups:
            states = {**(manifest.states.states if manifest.states is not None else {}), **recovered.states}
            for identity, name in self._plan.state_names.items():
                steps = [self._plan.steps[node] for node in self._plan.instances[identity]]
                if not restore_state(steps, states.get(name), trusted=self._plan.runs_own_code):
                    self.replaying.add(identity)

    def is_open(self, index: int) -> bool:
        """True if a row group is to be generated, retried or replayed."""
        return not self.is_done(index) or index in self.retrying or bool(self.replaying)

    def is_done(self, index: int) -> bool:
        """True if a row group is checkpointed or skipped, by this run or an earlier one."""
        return index < self._done_below or index in self._done_above

    def is_settled(self, index: int) -> bool:
        """True if the rows of a row group are on disk and stay as they are in this run."""
        return self.is_done(index) and index not in self.retrying

    def finished_groups(self) -> int:
        """How many row groups are in the manifest."""
        return self._done_below + len(self._done_above | self._written)

    def group_written(self, index: int) -> None:
        """The record of a row group is in the manifest; that of a retried one was there before."""
        if not self.is_done(index):
            self._written.add(index)

    def group_done(self, index: int) -> None:
        """A row group is checkpointed or skipped."""
        self.stale.pop(index, None)
        self._written.discard(index)
        self._done_above.add(index)
        while self._done_below in self._done_above:
            self._done_above.remove(self._done_below)
            self._done_below += 1

    def resume_admission(self, admission: AcceptedAdmission) -> None:
        """Continue where earlier runs stopped to decide which rows count."""
        manifest = None if self._store is None else self._store.manifest
        if manifest is None:
            return
        reached = 1 + max((decision.group for decision in manifest.decisions), default=-1)
        decided: dict[int, int] = {}
        for decision in manifest.decisions:
            decided[decision.group] = max(decision.stop, decided.get(decision.group, 0))
        # A part that was damaged is gone, but its rows are in the dataset.
        complete = [
            (index, max(group.rows, decided.get(index, 0)), decided.get(index, 0))
            for index, group in manifest.groups.items()
            if group.skipped is None or self.is_done(index)
        ]
        admission.resume(complete, retried=self.retrying, reached=reached, kept=manifest.kept_rows)

    def unfinished(self) -> list[range]:
        """The source rows of all row groups that are not done, as few ranges as possible."""
        return self._plan.layout.rows_of_others(self._done_above, start=self._done_below)


def restore_state(steps: Sequence[Step], state: bytes | None, *, trusted: bool) -> bool:
    """Restore the state of the generator of `steps` from an earlier run; False if it has to be replayed instead.

    One that finds its rows by their numbers (`replays = False`) needs nothing, and one that calls models is not called
    again: that would be paid for twice. A state of user-defined types is read only if the directory is `trusted`.
    """
    set_state = getattr(steps[0].instance, "set_state", None)
    if state is not None and set_state is not None:
        try:
            found = codec.decode(state, trusted=trusted)
        except codec.FAILED:
            pass  # it is replayed
        else:
            set_state(found)
            return True
    return not all(map(_is_replayed, steps))


def _is_replayed(step: Step) -> bool:
    """True if a stateful generator is called again where its state is missing: damage may lose a saved one."""
    return step.instance is not None and getattr(step.instance, "replays", True) and step.key is None


def call_entries(rows: Rows, calls: Iterable[tuple[Step, Sequence[int]]]) -> list[GeneratorCall]:
    """The arguments of calls of stateful generators that may have to be replayed."""
    return [
        GeneratorCall(column=step.name, identities=identities, inputs=rows.buffer.take(step.inputs, of))
        for step, of in calls
        if _is_replayed(step)
        # Columns from scratch are generated for the source rows, before pre-batch processors change them.
        for identities in [
            identities_by_position(rows.source, len(of)) if step.kind is Kind.FROM_SCRATCH else rows.identities(of)
        ]
    ]


def restore_entries(group: RowGroup, rows: Rows, steps: Sequence[Step], entries: Iterable[Entry]) -> Counter[str]:
    """Restore every entry that still fits; returns the finished cells by column.

    `StoreError` if no run of this recipe writes such an entry: a directory may come from someone else.
    """
    # Nothing that is restored is garbage, and scanning a million cells for it takes longer than the restore. Never held
    # across an await: the collector belongs to the whole process.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return _restore_entries(group, rows, {step.name: step for step in steps}, entries)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise StoreError(
            f"the journal of row group {group.index} holds an entry that no run of this recipe wrote: {error}"
        ) from error
    finally:
        if was_enabled:
            gc.enable()


def _restore_entries(group: RowGroup, rows: Rows, steps: dict[str, Step], entries: Iterable[Entry]) -> Counter[str]:
    cells: Counter[str] = Counter()
    for entry in _without_forgiven(_without_forgotten(list(entries)), steps):
        if type(entry) is Finished:  # nearly all of them, and there may be a million
            step = steps.get(entry.column)
            if step is not None and group.restore_finished(step, entry.row, entry.value, entry.origin):
                cells[entry.column] += entry.cells
            continue
        match entry:
            case Failed(column=column, row=row) if column in steps:
                group.restore_failed(
                    steps[column],
                    row,
                    attempt=entry.attempt,
                    salvage_round=entry.salvage_round,
                    error=entry.error,
                    consequence=Consequence(entry.consequence),
                    code=entry.code,
                    spent=entry.spent,
                )
            case Failed(row=row, consequence=Consequence.DROPPED.value):  # by a column that was removed
                for each in range(rows.count) if row == GROUP else (row,):
                    if 0 <= each < rows.count and not group.frontier.dropped[each]:
                        group.restore_dropped(None, each, rows.dropped(each, entry))
            case Answer(column=column, row=row):
                group.restore_answer(column, row, entry.key, entry.answer, entry.spent)
            case Rebuilt() if group.can_restore_rebuilt():
                before = group.frontier.rows
                after = rows.take_over(entry)
                group.restore_rebuilt(before, after)
            case FinishedRows(column=column) if column in steps:
                group.restore_rows(steps[column], entry.rows, entry.columns, entry.origins)
                cells[column] += len(entry.rows)
    return cells


def _without_forgotten(entries: list[Entry]) -> list[Entry]:
    """The entries without those of columns that are generated anew since."""
    found: list[Entry] = []
    for entry in entries:
        if isinstance(entry, Forgotten):
            found = [each for each in found if getattr(each, "column", None) not in entry.columns]
        else:
            found.append(entry)
    return found


def _without_forgiven(entries: list[Entry], steps: Mapping[str, Step]) -> list[Entry]:
    """The entries without failures that do not count any more; those of stateful generators are calls, too."""
    last = next((at for at in reversed(range(len(entries))) if type(entries[at]) is Forgiven), None)
    if last is None:
        return entries
    return [
        entry
        for at, entry in enumerate(entries)
        if at >= last or not isinstance(entry, Failed) or entry.column not in steps or steps[entry.column].instance
    ]


@attrs.frozen(kw_only=True)
class RetriedRows:
    """The rows of a finished row group that are retried, and `drops`, those that stay dropped.

    `rows.order` names the rows that its part holds now, in its `revision`; None if a new part is written from all rows.
    `rows.resized` is None if the pre-batch processors have yet to see the rows.
    """

    revision: int
    rows: DroppedRows
    drops: tuple[Drop, ...]
    seed_rows: Mapping[Identity, int | None] = attrs.field(factory=dict)

    def merged(self, added: Sequence[Identity], *, appended: bool) -> tuple[list[int], list[Identity]]:
        """Where the rows of the new part come from, the old one followed by those `added`, and which rows they are.

        If they are `appended`, rows that are decided keep their positions.
        """
        assert self.rows.order is not None
        both = [*self.rows.order, *added]
        if appended:
            return list(range(len(both))), both
        order = sorted(range(len(both)), key=both.__getitem__)
        return order, [both[at] for at in order]


def plan_retry(
    record: GroupRecord, stored: Sequence[Entry], *, seeds: Collection[str], processed: bool
) -> tuple[RetriedRows, Sequence[Entry]] | None:
    """The rows of a finished row group that can be retried, and their finished cells; None if no row can be retried.

    Rows that processors have seen (`processed`) can be retried only if their values were stored. `seeds` are the
    columns that pre-batch processors see, if any: a row that failed in one of them never reached the processors and has
    no identity after them.
    """
    failed = [drop for drop in record.drops if drop.kind == "failed"]
    if stored and isinstance(stored[0], DroppedRows):
        rows, known = stored[0], stored[1:]
        if processed and len(known) != rows.count:
            return None  # some values are not stored and cannot be generated from rows before the processors
    else:
        gone, known = {drop.row for drop in failed}, ()
        order = [(row, 0) for row in range(record.start, record.stop) if row not in gone]
        if processed and (order or any(drop.column not in seeds for drop in failed)):
            return None
        identities = [(row, 0) for row in sorted(gone)]
        rows = DroppedRows(order=order, identities=identities, resized=None if processed else (), count=0)
    if not rows.identities or (rows.order is not None and len(rows.order) != record.rows):
        return None
    identified = set(rows.identities)
    tried = {
        drop
        for drop in failed
        if (drop.row, drop.copy) in identified and (rows.resized is None or drop.column not in seeds)
    }
    drops = tuple(drop for drop in record.drops if drop not in tried)
    seed_rows = {(drop.row, drop.copy): drop.seed_row for drop in tried}
    return RetriedRows(revision=record.revision, rows=rows, drops=drops, seed_rows=seed_rows), known


@attrs.frozen(kw_only=True)
class RenewedRows:
    """The rows of a row group that an earlier recipe wrote, in order, with their finished cells.

    `drops` stay dropped: those with a position belong to the row there. `dropped_cells` are finished cells of dropped
    rows.
    """

    record: GroupRecord
    identities: list[Identity] | None
    drops: list[tuple[int | None, Drop]]
    cells: list[FinishedRows]
    dropped_cells: list[FinishedRows]
    resized: Resized | None
    seed_rows: Mapping[Identity, int | None]

    @classmethod
    def nothing_of(cls, record: GroupRecord) -> RenewedRows:
        """A row group that is generated as a whole: all of its source rows, before the pre-batch processors."""
        return cls(record=record, identities=None, drops=[], cells=[], dropped_cells=[], resized=None, seed_rows={})


def plan_renewal(
    plan: StagePlan,
    record: GroupRecord,
    table: pa.Table | None,
    stored: Sequence[Entry],
    retried: Sequence[Entry],
    *,
    provenance: Provenance,
) -> RenewedRows | None:
    """The rows of a row group that is written anew: those of its `table`, and its dropped rows.

    `stored` is what is stored of dropped rows, `retried` what a retry of them finished that was not completed, and
    `provenance` that of the rows that are written. None if nothing of it is regenerated.
    """
    header = stored[0] if stored and isinstance(stored[0], DroppedRows) else None
    # A row that failed before the pre-batch processors has no identity after them.
    seeds = plan.seeds if plan.pre_batch else frozenset[str]()
    gone = {(drop.row, drop.copy) for drop in record.drops if drop.column not in seeds}
    written = _written_identities(plan, record, header, gone)
    if len(written) != (0 if table is None else table.num_rows):
        raise StoreError(f"row group {record.index} has other rows than its record in the manifest")
    dropped = [] if header is None else [identity for identity in header.identities if identity in gone]
    if header is None and not plan.pre_batch:  # nothing is stored of them: all of their cells are missing
        dropped = [(drop.row, drop.copy) for drop in record.drops if plan.is_redone(drop.column, record)]
    identities = sorted({*written, *dropped})
    at = {identity: position for position, identity in enumerate(identities)}
    added = plan.header.added
    steps = [plan.steps[node] for node in plan.graph.order]
    steps = [step for step in steps if added.get(step.name, 0) <= record.edition]
    rows = [at[identity] for identity in written]
    redone: Mapping[str, Collection[int]] = {}
    redo = plan.redo
    if redo is not None and redo.where is not None and record.edition < redo.edition:
        selected = [] if table is None else selected_rows(redo.where, table)
        if not selected:
            return None
        redone = cells_to_redo(plan.graph, plan.steps, redo.columns, selected, range(len(written)))
    cells: list[FinishedRows] = []
    if table is not None:
        own = [step for step in steps if step is not plan.inherited_step or plan.pre_batch]  # else it is looked up
        origins = {step.name: provenance.origins_of(step.name, written) for step in own}
        taken = (_cells_of(step, table, rows, redone.get(step.name, ()), origins[step.name]) for step in own)
        cells = [each for each in taken if each.rows]
    dropped_cells: list[FinishedRows] = []
    if header is not None:
        # A retry numbers the rows that it could retry, which are those of `stored`.
        places = {row: at[identity] for row, identity in enumerate(header.identities) if identity in gone}
        known = {step.name: step for step in steps}
        found = (each for each in (*stored[1:], *retried) if isinstance(each, Finished | FinishedRows))
        dropped_cells = [_moved(known[each.column], each, places) for each in found if each.column in known]
    return RenewedRows(
        record=record,
        identities=identities,
        drops=[(None if drop.column in seeds else at.get((drop.row, drop.copy)), drop) for drop in record.drops],
        cells=cells,
        dropped_cells=[each for each in dropped_cells if each.rows],
        resized=record.resized[: len(plan.pre_batch)],
        seed_rows={**provenance.seed_rows, **{(drop.row, drop.copy): drop.seed_row for drop in record.drops}},
    )


def _cells_of(
    step: Step, table: pa.Table, rows: Sequence[int], redone: Collection[int], origins: Sequence[Origin | None]
) -> FinishedRows:
    """The cells of a column, in the positions `rows`, but for those that are `redone`, by position in the table."""
    columns = [values_of(table.column(name)) for name in step.outputs]
    if not redone:
        return FinishedRows(column=step.name, rows=[*rows], columns=columns, origins=[*origins])
    kept = [at for at in range(len(rows)) if at not in redone]
    columns = [[values[at] for at in kept] for values in columns]
    found = [origins[at] for at in kept] if origins else []
    return FinishedRows(column=step.name, rows=[rows[at] for at in kept], columns=columns, origins=found)


def _written_identities(
    plan: StagePlan, record: GroupRecord, stored: DroppedRows | None, gone: Collection[Identity]
) -> list[Identity]:
    """The identities of the rows of a part before its post-batch processors."""
    if stored is not None and stored.order is not None:
        return stored.order
    source, part = range(record.start, record.stop), record.generated or record.part
    if stored is not None:
        found = stored.identities
    elif plan.pre_batch:
        found = identities_by_position(source, len(gone) + (0 if part is None else part.rows))
    else:
        found = [(row, 0) for row in source]
    return [identity for identity in found if identity not in gone]


def _moved(step: Step, entry: Finished | FinishedRows, places: Mapping[int, int]) -> FinishedRows:
    """Finished cells with other positions of their rows, without those of rows that have none."""
    origins: Sequence[Origin | None]
    if isinstance(entry, FinishedRows):
        rows, columns, origins = entry.rows, entry.columns, entry.origins
    elif entry.row < 0:
        rows, columns = entry.value
        origins = entry.origin.split(len(rows)) if entry.origin is not None else ()
    else:
        values = [entry.value] if len(step.outputs) == 1 else entry.value
        rows, columns, origins = [entry.row], [[value] for value in values], [entry.origin]
    found = [at for at, row in enumerate(rows) if row in places]
    return FinishedRows(
        column=entry.column,
        rows=[places[rows[at]] for at in found],
        columns=[[values[at] for at in found] for values in columns],
        origins=[origins[at] for at in found] if origins else [],
    )


def dropped_entries(
    plan: StagePlan,
    rows: Rows,
    of: Sequence[int],
    is_done: Callable[[int, int], bool],
    *,
    order: Sequence[Identity] | None,
    resized: Resized | None,
    origins: Mapping[str, Mapping[int, Origin]],
) -> list[Entry]:
    """The finished cells of some rows of a row group, for `plan_retry`; `order` identifies the rows of its part."""
    entries: list[Entry] = []
    for node in plan.graph.order:
        step = plan.steps[node]
        if step is plan.inherited_step and not plan.pre_batch:
            continue  # it is looked up
        done = [(at, row) for at, row in enumerate(of) if is_done(node, row) and not rows.was_skipped(step, row)]
        if done:
            columns = list(rows.buffer.take(step.outputs, [row for _, row in done]).values())
            known = origins.get(step.name)
            shown = [] if known is None else [known.get(row) for _, row in done]
            entries.append(FinishedRows(column=step.name, rows=[at for at, _ in done], columns=columns, origins=shown))
    part = None if order is None else list(order)
    header = DroppedRows(order=part, identities=rows.identities(of), resized=resized, count=len(entries))
    return [header, *entries]
