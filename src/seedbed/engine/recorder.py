"""The journal of a run: entries are collected on the loop and committed in a thread."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import trio

from ..errors import StoreError
from ..store.entries import Answer, Failed, Finished, cells_in
from .resume import read_state

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from ..store.entries import Entry, Key, Usage
    from ..store.journal import Journal
    from .config import RunConfig
    from .plan import BuildPlan
    from .row_group import Consequence
    from .rows import Rows
    from .tasks import Step, Task

# A disk that hangs must not hang the run.
COMMIT_DEADLINE = 60.0


class OpenCell(Protocol):
    """A running cell that makes calls; `record_answers` adds an entry for each answer that has none yet."""

    def record_answers(self) -> None: ...


class Recorder:
    """Collects entries and commits them every `commit_interval`, or sooner when there are `commit_count` of them.

    Everything happens on trio's thread but the work in the store's threads. Entries stay in order: the durable ones are
    always a prefix of all.
    """

    def __init__(
        self,
        journal: Journal,
        config: RunConfig,
        *,
        in_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
        usage: Callable[[], Usage],
        finished: Callable[[], int],
        on_commit: Callable[[int], None],
        on_unpicklable: Callable[[str], None],
    ) -> None:
        self._journal = journal
        self._in_thread = in_thread
        self._usage = usage
        self._finished = finished
        self._on_commit = on_commit
        self._on_unpicklable = on_unpicklable
        self._unpicklable: set[str] = set()  # columns that were reported
        self._unpicklable_total = 0
        self._interval = config.commit_interval
        self._most = config.commit_count
        self._pending: dict[Key, list[Entry]] = {}
        self._states: dict[str, bytes] = {}
        self._has_states = False
        # Running cells with answers that are in no entry yet. Most finish before the next commit and are removed.
        self._open: set[OpenCell] = set()
        self._count = 0
        self._wanted = trio.Event()  # there is something to commit
        self._full = trio.Event()  # a commit is due at once
        self._lock = trio.Lock()  # one thread at a time uses the journal
        # A commit failed: what came after it must not become durable without it.
        self._broken = False

    def add(self, key: Key, entry: Entry) -> None:
        """Add an entry; it is durable after the next commit."""
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = []
        pending.append(entry)
        self._count += 1
        if self._count == 1:
            self._wanted.set()
        if self._count == self._most:
            self._full.set()

    def answered(self, cell: OpenCell) -> None:
        """A call of a cell was answered; if the cell still runs at the next commit, the answer is stored."""
        self._open.add(cell)
        self._wanted.set()

    def over(self, cell: OpenCell) -> None:
        """A cell finished: its outcome replaces its answers."""
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
            with trio.move_on_after(self._interval):
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
                return
            if self._broken:
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
        """The number of the last commit."""
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


class GroupEntries:
    """The journal of one row group, as its state machine has it."""

    def __init__(self, recorder: Recorder, key: Key, rows: Rows, plan: BuildPlan) -> None:
        self._recorder = recorder
        self._key = key
        self._rows = rows
        self._plan = plan

    def finished(self, task: Task, value: Any, work: tuple[int, int, float] | None) -> None:
        """A task succeeded."""
        name, attempt, salvage_round = task.step.name, task.attempt, task.salvage_round
        entry = Finished(
            column=name, row=task.row, attempt=attempt, salvage_round=salvage_round, value=value, cost=work
        )
        if task.step.instance is not None:
            self._save_state(task.step)
        self._recorder.add(self._key, entry)

    def failed(self, task: Task, error: str, consequence: Consequence) -> None:
        """An attempt failed."""
        name, attempt, fate = task.step.name, task.attempt, consequence.value
        entry = Failed(
            column=name, row=task.row, attempt=attempt, salvage_round=task.salvage_round, error=error, consequence=fate
        )
        if task.step.instance is not None:
            self._save_state(task.step)
        self._recorder.add(self._key, entry)

    def answered(self, task: Task, key: bytes, answer: Any) -> None:
        """A call of a running task was answered."""
        entry = Answer(column=task.step.name, row=task.row, attempt=task.attempt, key=key, answer=answer)
        self._recorder.add(self._key, entry)

    def rebuilt(self) -> None:
        """Pre-batch processors have run."""
        self._recorder.add(self._key, self._rows.rebuilt_as())

    def _save_state(self, step: Step) -> None:
        """Save the state of a stateful generator, if it can be read, with the entry that is added next."""
        state = read_state(step)
        if state is not None:
            self._recorder.save_state(self._plan.state_names[id(step.instance)], state)
