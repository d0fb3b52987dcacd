"""Making finished cells durable while the run goes on: they are collected on the loop and committed in a thread.

What an outcome was is kept as an entry, a plain tuple whose first two items are what it is and whose column it is of:

- `(OK, column, row, attempt, salvage round, value, paid)`: a finished task, `row` GROUP for one of the whole group;
- `(FAILED, column, row, attempt, salvage round, error, fate)`: a failed attempt and what that meant for the task;
- `(ANSWER, column, row, attempt, asked, answer)`: one call of several that a cell makes was answered;
- `(REBUILT, None, columns, resized, drops)`: the rows that pre-batch processors left, how many rows they took out and
  added;
- `(ROWS, column, rows, columns)`: finished rows of a column, of rows that are tried again;
- `(KEPT, None, order, identities, resized, count)`: first of what is kept of a row group with dropped rows, with the
  number of entries behind it. `order` names the rows of the part, `identities` those of the entries. `order` is None
  where post-batch processors made the part: then the entries are of all rows. `resized` is that of REBUILT, None if
  the rows did not come to the pre-batch processors;
- `(CALL, column, identities, inputs)`: a call of a stateful generator, where the part does not show its rows.

`replay` reads them, `past` those of calls.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

import trio

from ..errors import StoreError
from ..graph import GROUP
from ..store.journal import Batch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from ..store.codec import Entry
    from ..store.journal import Journal
    from .config import RunConfig

OK = "ok"
ANSWER = "answer"
FAILED = "failed"
REBUILT = "rebuilt"
ROWS = "rows"
KEPT = "kept"
CALL = "call"

# What a failed attempt meant: its rows are dropped; it is tried again; it is, with the answers that it had.
DROPPED = "dropped"
AGAIN = "again"
GOES_ON = "goes on"

# The disk is waited for, but not for ever.
COMMIT_DEADLINE = 60.0

_REVISION_BITS = 40
# Stands for the revision where calls are kept: a part never has so many.
_CALLS = (1 << 22) - 1


def kept_key(index: int, revision: int) -> int:
    """Under which key the journal keeps the dropped rows of a row group, as its part is in that revision."""
    return index | revision << _REVISION_BITS


def calls_key(index: int) -> int:
    """Under which key the journal keeps what stateful generators were called with for a row group."""
    return kept_key(index, _CALLS)


def is_calls_key(key: int) -> bool:
    """Whether `calls_key` made a key."""
    return key >= 0 and key_parts(key)[1] == _CALLS


def retry_key(index: int, revision: int) -> int:
    """Under which key the entries go of a row group whose dropped rows are tried again."""
    return ~kept_key(index, revision)


def key_parts(key: int) -> tuple[int, int]:
    """Row group and revision of a key that `kept_key` or `retry_key` made."""
    if key < 0:
        key = ~key
    return key & (1 << _REVISION_BITS) - 1, key >> _REVISION_BITS


def cells_of(entry: Entry) -> int:
    """How many finished cells an entry holds."""
    if entry[0] != OK:
        return 0
    return len(entry[5][0]) if entry[2] == GROUP else 1


class OpenCell(Protocol):
    """A cell under way that makes calls."""

    def record_answers(self) -> None:
        """Add an entry for each answer that has none yet."""
        ...


class Recorder:
    """Collects entries and commits them every `commit_interval`, or sooner when there are `commit_count` of them.

    Everything but the work that is handed to threads happens on trio's thread. Entries keep their order: what is
    durable is always a beginning of what happened.
    """

    def __init__(
        self,
        journal: Journal,
        config: RunConfig,
        *,
        in_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
        spending: Callable[[], tuple[tuple[str, str, int, int, int, float], ...]],
        on_commit: Callable[[int], None],
        on_unkept: Callable[[str], None],
    ) -> None:
        self._journal = journal
        self._in_thread = in_thread
        self._spending = spending
        self._on_commit = on_commit
        self._on_unkept = on_unkept
        self._unkept: set[str] = set()  # columns that were told of
        self._unkept_total = 0
        self._interval = config.commit_interval
        self._most = config.commit_count
        self._pending: dict[int, list[Entry]] = {}
        self._states: dict[str, bytes] = {}
        self._has_states = False
        # Cells under way with answers that are in no entry yet. Most are over before the next commit and leave again.
        self._open: set[OpenCell] = set()
        self._count = 0
        self._wanted = trio.Event()  # there is something to commit
        self._full = trio.Event()  # there is so much that it is not waited for more
        self._lock = trio.Lock()  # one thread at a time is with the journal
        # A commit failed: what came after it must not become durable without it.
        self._broken = False

    def add(self, key: int, entry: Entry) -> None:
        """Take in what happened; it is durable a commit later."""
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
        """A call of a cell was answered; if the cell is still under way at the next commit, the answer goes with it."""
        self._open.add(cell)
        self._wanted.set()

    def over(self, cell: OpenCell) -> None:
        """A cell is over: its outcome tells more than its answers."""
        self._open.discard(cell)

    def keep_state(self, name: str, state: bytes) -> None:
        """The state of a stateful generator after the entry that is added next."""
        self._states[name] = state
        self._has_states = True

    async def run(self) -> None:
        """Commit again and again, until cancelled; raises `StoreError` when the journal cannot be written."""
        while True:
            await self._wanted.wait()
            with trio.move_on_after(self._interval):
                await self._full.wait()
            await self.flush()

    async def flush(self) -> None:
        """Make durable what was added so far; not interrupted by cancellation, but it takes only so long."""
        async with self._alone():
            for cell in self._open:
                cell.record_answers()
            self._open.clear()
            if not self._count:
                self._wanted = trio.Event()  # what there was went with its row group
                return
            if self._broken:
                return
            batch = Batch(groups=self._pending, spending=self._spending(), states=self._states)
            self._pending, self._states, self._count = {}, {}, 0
            self._wanted, self._full = trio.Event(), trio.Event()
            try:
                await self._in_thread(lambda: self._journal.commit(batch))
            except Exception:
                self._broken = True
                raise
            self._on_commit(_cells(batch.groups.values()) - self._count_unkept())

    def _count_unkept(self) -> int:
        """How many entries of the last commit could not be kept; their columns are told of once."""
        total = self._journal.unkept.total()
        before, self._unkept_total = self._unkept_total, total
        for column in self._journal.unkept.keys() - self._unkept:
            self._unkept.add(column)
            self._on_unkept(column)
        return total - before

    async def flush_states(self) -> None:
        """Make durable what stateful generators have told so far: before the rows that they made count as written.

        Otherwise a generator would go on from before those rows, which nobody will ask it for again.
        """
        if self._has_states:
            await self.flush()

    async def read(self, key: int) -> list[Entry]:
        """What earlier runs have recorded of a row group."""
        async with self._alone():
            entries: list[Entry] = await self._in_thread(lambda: self._journal.read(key))
            return entries

    async def read_kept(self, key: int) -> list[Entry]:
        """What is kept of the dropped rows of a row group."""
        async with self._alone():
            entries: list[Entry] = await self._in_thread(lambda: self._journal.kept(key))
            return entries

    async def keep(self, key: int, entries: Sequence[Entry]) -> None:
        """Keep what is finished of dropped rows beyond the checkpoint that is to come."""
        async with self._alone():
            await self._in_thread(lambda: self._journal.keep(key, entries))

    async def free(self, key: int) -> None:
        """A row group is in the dataset: its entries are not needed any more, committed or not."""
        gone = self._pending.pop(key, [])
        self._count -= len(gone)
        async with self._alone():
            await self._in_thread(lambda: self._journal.free(key))
        self._on_commit(_cells([gone]))

    async def drop_kept(self, key: int) -> None:
        """What was kept under this key is of no use any more."""
        async with self._alone():
            await self._in_thread(lambda: self._journal.drop_kept(key))

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Have the journal alone, shielded from cancellation; one that hangs is a `StoreError`."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + COMMIT_DEADLINE) as scope:
            async with self._lock:
                yield
        if scope.cancelled_caught:
            self._broken = True
            raise StoreError(f"the journal could not be written within {COMMIT_DEADLINE:g} s")


def _cells(groups: Iterable[Sequence[Entry]]) -> int:
    return sum(cells_of(entry) for entries in groups for entry in entries)
