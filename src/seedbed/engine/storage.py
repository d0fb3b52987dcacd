"""The directory of a run: its writer and its journal, opened together, and the recorder that commits entries."""

from __future__ import annotations

import contextlib
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import trio

from ..errors import OutputDirectoryError, StoreError
from ..runtime import faults
from ..store import codec
from ..store.entries import (
    Answer,
    Failed,
    Finished,
    Forgiven,
    Forgotten,
    Key,
    Purpose,
    Shared,
    SharedCall,
    cells_in,
)
from ..store.files import exists
from ..store.journal import Journal, Recovered, has_journal
from ..store.replace import is_half_removed, remove_dataset
from ..store.writer import DatasetWriter
from .source import RECIPE_NAME, store_recipe
from .takeover import discard_prepared, take_over

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from ..observe.report import Origin, Usage
    from ..store.entries import Entry, UsageEntries
    from ..store.manifest import Manifest
    from .config import RunConfig
    from .once import SharedAnswer
    from .plan import BuildPlan, StagePlan
    from .row_group import Consequence
    from .rows import Rows
    from .tasks import Step, Task

# A disk that hangs must not hang the run.
COMMIT_DEADLINE = 60.0


@attrs.define(eq=False)
class Store:
    """The directory of a stage: its writer, the journal if the run has one, and what earlier runs left if it resumes.

    All stages have the same journal, and `recovered` is what it holds of all of them. `damage` has one sentence for
    each damaged file or record, whose content is generated again.
    """

    writer: DatasetWriter
    journal: Journal | None = None
    manifest: Manifest | None = None
    recovered: Recovered = attrs.field(factory=Recovered)
    damage: tuple[str, ...] = ()


@attrs.define(eq=False)
class Stores:
    """The directories of all stages, by name, and the journal that they share."""

    by_stage: dict[str, Store] = attrs.field(factory=dict)
    journal: Journal | None = None

    def close(self) -> None:
        """Release everything; the journal before the writers, which lock out other processes."""
        with contextlib.ExitStack() as stack:
            for store in self.by_stage.values():
                stack.callback(store.writer.close)
            if self.journal is not None:
                stack.callback(_close, self.journal)


def _close(journal: Journal) -> None:
    # What is committed is on disk; that it could not be tidied up changes nothing.
    with contextlib.suppress(StoreError):
        journal.close()


def open_stores(plan: BuildPlan, out: Path) -> Stores:
    """Create the directory of a new dataset, or open the one that is resumed."""
    if plan.output.reuse is not None:
        if plan.overwrite or is_half_removed(out):
            remove_dataset(out)
        begun = take_over(plan.output, out)
        assert begun.header is not None  # a manifest without one cannot be read
        output = attrs.evolve(plan.output, done=begun, header=begun.header)
        plan = attrs.evolve(plan, stages=(output,), output=output)  # a recipe with stages takes nothing over
    discard_prepared(out)
    stores = Stores()
    try:
        if plan.output.done is None:
            _create(plan, out, stores)
        else:
            _open_left(plan, out, stores)
    except BaseException:
        stores.close()
        raise
    return stores


def _create(plan: BuildPlan, out: Path, stores: Stores) -> None:
    header = plan.output.header
    if plan.overwrite or is_half_removed(out):
        remove_dataset(out)
    # The root first: a process that dies in between leaves a dataset, whose other stages the next one creates.
    for stage in plan.from_output:
        assert stage.out is not None  # the build writes a directory
        stores.by_stage[stage.stage] = Store(DatasetWriter.create(stage.out, stage.header))
        if stage is plan.output and header.recipe is not None:
            store_recipe(out, header.recipe)
    if plan.config.durability == "cell":
        stores.journal = Journal.create(out)
    for store in stores.by_stage.values():
        store.journal = stores.journal


def _open_left(plan: BuildPlan, out: Path, stores: Stores) -> None:
    recovered = Recovered()
    damage: tuple[str, ...] = ()
    # The journal of a finished dataset may be gone: a new one goes on counting, or it would seem to have lost commits.
    left = [stage.done for stage in plan.stages if stage.done is not None]
    last_commit = max((group.commits for each in left for group in each.groups.values()), default=0)

    def open_journal(commits: int = 0) -> Journal:
        nonlocal recovered
        if stores.journal is None:
            stores.journal, recovered = Journal.open(
                out, trusted=plan.runs_own_code, commits=commits, numbered_from=last_commit
            )
        return stores.journal

    def forget_states(finished: int | None = None) -> None:
        nonlocal recovered
        open_journal().forget_states(finished)
        recovered = attrs.evolve(recovered, states={})

    for stage in plan.from_output:
        assert stage.out is not None  # the build writes a directory
        if stage.done is None:
            stores.by_stage[stage.stage] = Store(DatasetWriter.create(stage.out, stage.header))
            continue
        # Before the damage is cleared away: a process that dies in between must not find states that look right.
        writer, manifest, found = DatasetWriter.open(
            stage.out, on_damage=lambda: forget_states() if has_journal(out) else None
        )
        stores.by_stage[stage.stage] = Store(writer, manifest=manifest)
        damage += found
        has_more = manifest.groups.keys() - stage.done.groups.keys() or len(manifest.taken) != len(stage.done.taken)
        if manifest.header != stage.done.header or has_more:
            raise OutputDirectoryError(f"another process wrote {str(out)!r} while this build started: start it again")
    manifests = {name: store.writer.manifest for name, store in stores.by_stage.items()}
    root = stores.by_stage[plan.output.stage]
    recipe = root.writer.header.recipe
    if recipe is not None and not exists(out, RECIPE_NAME) and not root.writer.is_revising:
        store_recipe(out, recipe)  # the process died between the manifest and this
    # An existing journal is read whatever the options are now: its cells are paid for.
    if plan.config.durability == "cell" or has_journal(out):
        opened = open_journal(max(each.commits for each in manifests.values()))
        written = sum(len(each.groups) for each in manifests.values())
        lost = recovered.missing_groups(written)
        if lost is not None:
            # Before anything is generated again: the states are those after the rows that are lost.
            forget_states(written)
            damage = damage or (lost,)
        damage += recovered.damage
        _clear(opened, recovered, {name: store.writer for name, store in stores.by_stage.items()})
    # After the journal was opened: that of a finished dataset is gone, that of a growing one must be there.
    for stage in plan.from_output:
        is_changed = stage.done is not None and (stage.header != stage.done.header or stage.begins_revision)
        if is_changed and _change_stage(stage, stores, recovered):
            recovered = attrs.evolve(recovered, states={})
    for store in stores.by_stage.values():
        store.journal, store.recovered = stores.journal, recovered
        if store.manifest is not None:
            store.manifest = store.writer.manifest
    root.damage = damage


def _change_stage(plan: StagePlan, stores: Stores, recovered: Recovered) -> bool:
    """Begin a revision of a stage, or replace its header; True if states in the journal do not count any more."""
    writer, before = stores.by_stage[plan.stage].writer, stores.by_stage[plan.stage].writer.manifest.states
    names = plan.state_names.values()
    own = {name: each for name, each in recovered.states.items() if not plan.stage or name in names}
    states = {**(before.states if before is not None else {}), **own}
    if plan.begins_revision and own:
        writer.write_states(states)  # those of the dataset, should the revision be abandoned
    going_on = {name: state for name, state in states.items() if name not in plan.restarted}
    is_outdated = bool(own) and (plan.begins_revision or going_on != states)
    if is_outdated and stores.journal is not None:
        stores.journal.forget_states()
    if not plan.begins_revision:
        if going_on != states:
            writer.write_states(going_on)
        if stores.journal is not None:
            _forget_columns(plan, stores.journal, recovered)
    _change(plan, writer, going_on)
    return is_outdated


def abandon_revision(directory: Path) -> bool:
    """Forget the unfinished revision of a dataset directory, which stays as it is; False if there is none."""
    writer, _, _ = DatasetWriter.open(directory)
    with contextlib.ExitStack() as stack:
        stack.callback(writer.close)
        if not writer.is_revising:
            return False
        # What a revision is paid for counts on: its usage is in the manifest, or in the journal's last commit.
        opened = Journal.open(directory, trusted=False) if has_journal(directory) else None
        if opened is not None:
            stack.callback(_close, opened[0])
            if opened[1].usage:
                writer.write_usage(opened[1].usage)
            opened[0].forget_states()  # those of the dataset are in the manifest
        writer.abandon_revision()
        if writer.header.recipe is not None and not exists(directory, RECIPE_NAME):
            store_recipe(directory, writer.header.recipe)  # it was removed for that of the revision
        if opened is not None:
            _clear(opened[0], opened[1], {"": writer})
            opened[0].finish()
    return True


def _change(plan: StagePlan, writer: DatasetWriter, states: Mapping[str, bytes]) -> None:
    """Begin a revision, or replace the header: the dataset has more rows now, or its recipe changed."""
    assert plan.done is not None
    assert plan.done.header is not None
    if plan.begins_revision:
        assert plan.redo is not None
        writer.begin_revision(plan.header, plan.redo, states=states)
        return
    # Before the header: `seedbed resume DIR` must not take the earlier recipe for a change of this one.
    if plan.header.recipe is not None and plan.header.recipe != plan.done.header.recipe and not writer.is_revising:
        store_recipe(writer.path, plan.header.recipe)
        faults.reach("recipe replaced")
    writer.change(plan.header)


def _forget_columns(plan: StagePlan, journal: Journal, recovered: Recovered) -> None:
    """Forget the cells of columns that are generated anew, in row groups that are not finished.

    They are those of a column that was removed and came back, or attempts by an earlier recipe.
    """
    keys = [
        key for key in recovered.groups if key.purpose in (Purpose.BUILD, Purpose.RENEWAL) and key.stage == plan.stage
    ]
    if keys and plan.fresh:
        journal.commit({key: [Forgotten(columns=sorted(plan.fresh))] for key in keys})
        faults.reach("columns forgotten")


def _clear(journal: Journal, recovered: Recovered, writers: Mapping[str, DatasetWriter]) -> None:
    """Remove what belongs to no state of the dataset any more: what a run that died had written but not freed yet.

    The manifest of each writer is what the run works on, and its `dataset_groups` are the row groups that a pending
    revision would replace.
    """
    for key in (*recovered.groups, *recovered.long_lived):
        writer = writers.get(key.stage)
        if writer is None:  # of a stage that is no longer in the recipe
            journal.free(key)
            continue
        manifest = writer.manifest
        if key.purpose is Purpose.SHARED:
            if key.revision not in writer.column_editions:  # of a column that is generated anew since
                journal.free(key)
            continue
        record = manifest.groups.get(key.group)
        if key.purpose is Purpose.BUILD:
            # A group that was skipped as a whole may be generated again now.
            is_obsolete = record is not None and record.skipped is None
        elif key.purpose is Purpose.CALLS:
            is_obsolete = record is None or manifest.finished is not None
        else:
            is_obsolete = record is None or record.revision != key.revision
            if key.purpose is Purpose.RENEWAL and record is not None:  # it may be that of an abandoned revision
                is_obsolete |= manifest.is_current(record)
            old = writer.dataset_groups.get(key.group)
            if key.purpose is Purpose.DROPPED and old is not None:
                is_obsolete &= old.revision != key.revision
        if is_obsolete:
            journal.free(key)


class OpenCell(Protocol):
    """A running cell that makes calls."""

    def record_answers(self) -> None:
        """Add an entry for each answer that has none yet."""


@attrs.define(eq=False)
class Recorder:
    """Collects entries and commits them every `commit_interval`, or sooner when there are `commit_count` of them.

    Everything happens on trio's thread but the work in the store's threads. Entries stay in order: the durable ones are
    always a prefix of all.
    """

    _journal: Journal
    _config: RunConfig
    _in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]
    _usage: Callable[[], UsageEntries]
    _finished: Callable[[], int]
    _on_commit: Callable[[int], None]
    _on_unpicklable: Callable[[str], None]
    _unpicklable: set[str] = attrs.field(init=False, factory=set)  # columns that were reported
    _unpicklable_total: int = attrs.field(init=False, default=0)
    _pending: dict[Key, list[Entry]] = attrs.field(init=False, factory=dict)
    _states: dict[str, bytes] = attrs.field(init=False, factory=dict)
    _has_states: bool = attrs.field(init=False, default=False)
    # Running cells with answers that are in no entry yet. Most finish before the next commit and are removed.
    _open: set[OpenCell] = attrs.field(init=False, factory=set)
    _count: int = attrs.field(init=False, default=0)
    _wanted: trio.Event = attrs.field(init=False, factory=trio.Event)  # there is something to commit
    _full: trio.Event = attrs.field(init=False, factory=trio.Event)  # a commit is due at once
    _lock: trio.Lock = attrs.field(init=False, factory=trio.Lock)  # one thread at a time uses the journal
    # A commit failed: what came after it must not become durable without it.
    _broken: bool = attrs.field(init=False, default=False)

    def add(self, key: Key, entry: Entry) -> None:
        """Add an entry; it is durable after the next commit."""
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = []
        pending.append(entry)
        self._count += 1
        if self._count == 1:
            self._wanted.set()
        if self._count == self._config.commit_count:
            self._full.set()

    def answered(self, cell: OpenCell) -> None:
        """A call of a cell was answered; if the cell still runs at the next commit, the answer is stored."""
        self._open.add(cell)
        self._wanted.set()

    def ended(self, cell: OpenCell) -> None:
        """The attempt of a cell ended: its outcome replaces its answers."""
        self._open.discard(cell)

    def save_state(self, name: str, state: bytes) -> None:
        """The state of a stateful generator after the entry that is added next."""
        self._states[name] = state
        self._has_states = True

    @asynccontextmanager
    async def committing(self) -> AsyncIterator[None]:
        """Commit entries during the block and, however it ends, all of them at its end."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.run)
                yield
                nursery.cancel_scope.cancel(reason="the run has ended")
        finally:
            await self.flush()

    async def run(self) -> None:
        """Commit in a loop until cancelled; raises `StoreError` when the journal cannot be written."""
        while True:
            await self._wanted.wait()
            with trio.move_on_after(self._config.commit_interval):
                await self._full.wait()
            await self.flush()

    async def flush(self) -> None:
        """Make durable what was added so far; shielded from cancellation, with a deadline."""
        async with self._alone():
            for cell in self._open:
                cell.record_answers()
            self._open.clear()
            if not self._count:
                self._wanted = trio.Event()  # the entries were freed with their row group
            if not self._count or self._broken:
                return
            groups = self._pending
            commit = partial(
                self._journal.commit, groups, states=self._states, usage=self._usage(), finished=self._finished()
            )
            self._pending, self._states, self._count = {}, {}, 0
            self._wanted, self._full = trio.Event(), trio.Event()
            try:
                await self._in_thread(commit)
            except Exception:
                self._broken = True
                raise
            # Long-lived entries repeat those of cells that were counted when they finished.
            cells = sum(cells_in(entries) for key, entries in groups.items() if not key.is_long_lived)
            self._on_commit(cells - self._count_unpicklable())

    def _count_unpicklable(self) -> int:
        """How many entries of the last commit could not be stored; each column is reported once."""
        total = self._journal.unpicklable.total()
        before, self._unpicklable_total = self._unpicklable_total, total
        for column in self._journal.unpicklable.keys() - self._unpicklable:
            self._unpicklable.add(column)
            self._on_unpicklable(column)
        return total - before

    async def flush_states(self) -> None:
        """Make the states of stateful generators durable before the rows that they generated count as written.

        Otherwise a resumed generator would continue from a state before those rows, which are not requested again.
        """
        if self._has_states:
            await self.flush()

    async def read(self, key: Key) -> list[Entry]:
        """Return what earlier runs have stored under a key."""
        async with self._alone():
            entries: list[Entry] = await self._in_thread(lambda: self._journal.read(key))
            return entries

    @property
    def commits(self) -> int:
        return self._journal.commits

    async def store(self, key: Key, entries: Sequence[Entry]) -> None:
        """Make durable everything added so far and then these entries, which outlive the next checkpoint."""
        for entry in entries:
            self.add(key, entry)
        await self.flush()
        if self._broken:
            raise StoreError("the journal could not be written: an earlier commit of it failed")

    async def free(self, key: Key) -> None:
        """Forget the entries of a key, committed or not: its row group is in the dataset."""
        gone = self._pending.pop(key, [])
        self._count -= len(gone)
        finished = self._finished()
        async with self._alone():
            await self._in_thread(lambda: self._journal.free(key, finished=finished))
        self._on_commit(cells_in(gone))

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Exclusive use of the journal, shielded from cancellation; `StoreError` if it hangs."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + COMMIT_DEADLINE) as scope:
            async with self._lock:
                yield
        if scope.cancelled_caught:
            self._broken = True
            raise StoreError(f"the journal could not be written within {COMMIT_DEADLINE:g} s")


def read_state(step: Step) -> bytes | None:
    """The state of a stateful generator that has `get_state`, as the journal stores it."""
    get_state = getattr(step.instance, "get_state", None)
    if get_state is None:
        return None
    state = get_state()
    try:
        return codec.encode(state)
    except codec.FAILED as error:
        raise StoreError(
            f"the state of column {step.name!r} cannot be saved: the value that get_state returned cannot be pickled"
        ) from error


@attrs.frozen(eq=False)
class GroupEntries:
    """The journal of one row group, as its state machine has it."""

    _recorder: Recorder
    _key: Key
    _rows: Rows
    _plan: StagePlan

    def finished(self, task: Task, value: Any, origin: Origin | None) -> None:
        name, attempt, salvage_round = task.step.name, task.attempt, task.salvage_round
        entry = Finished(
            column=name, row=task.row, attempt=attempt, salvage_round=salvage_round, value=value, origin=origin
        )
        self._add(task, entry)

    def failed(self, task: Task, error: str, consequence: Consequence, code: str) -> None:
        entry = Failed(
            column=task.step.name,
            row=task.row,
            attempt=task.attempt,
            salvage_round=task.salvage_round,
            error=error,
            consequence=consequence.value,
            code=code,
            spent=task.spent,
        )
        self._add(task, entry)

    def answered(self, task: Task, key: bytes, answer: Any, spent: Usage) -> None:
        self._recorder.add(*self._answer(task, key, answer, spent))

    def _answer(self, task: Task, key: bytes, answer: Any, spent: Usage) -> tuple[Key, Entry]:
        column = task.step.name
        if task.shared_key is None:
            row, attempt = task.row, task.attempt
            return self._key, Answer(column=column, row=row, attempt=attempt, key=key, answer=answer, spent=spent)
        return self._plan.shared_key(column), SharedCall(
            column=column, key=task.shared_key, call=key, answer=answer, spent=spent
        )

    def shared(self, task: Task, answer: SharedAnswer) -> None:
        """Add the answer of a cell whose column runs once per key."""
        assert task.shared_key is not None
        entry = Shared(
            column=task.step.name,
            key=task.shared_key,
            value=answer.value,
            origin=answer.origin,
            error=answer.error,
            code=answer.code,
            attempts=answer.attempts,
        )
        self._recorder.add(self._plan.shared_key(task.step.name), entry)

    async def intend(self, task: Task, key: bytes) -> None:
        """Make durable that a tool that must not run twice is about to run, and all before it."""
        at, entry = self._answer(task, key, None, task.spent)
        await self._recorder.store(at, [entry])

    def rebuilt(self) -> None:
        self._recorder.add(self._key, self._rows.rebuilt_as())

    def forgiven(self) -> None:
        self._recorder.add(self._key, Forgiven())

    def _add(self, task: Task, entry: Finished | Failed) -> None:
        """Add an entry, with the state of the stateful generator after it if that can be read."""
        step = task.step
        if step.instance is not None and (state := read_state(step)) is not None:
            self._recorder.save_state(self._plan.state_names[id(step.instance)], state)
        self._recorder.add(self._key, entry)
