"""Decide complete row groups, in order, and put the rows that count into the dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import trio
from msgspec.structs import replace

from ..errors import StoreError
from ..observe import events
from ..observe.report import REJECTED, Drop
from ..store.manifest import Decided
from ..store.values import python_values
from .duplicates import Duplicates

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    import polars as pl
    import pyarrow as pa

    from ..observe.report import Ledger
    from ..recipe.acceptance import RowRules
    from ..store.children import Children
    from ..store.manifest import Layout
    from ..store.writer import DatasetWriter
    from .admission import AcceptedAdmission
    from .rows import Identity
    from .tasks import Notices

# Deciding and writing are shielded from cancellation, but not for ever: a disk that hangs must not hang the run.
_DEADLINE = 300.0


@attrs.define(eq=False)
class Decisions:
    """The decided prefix of one run. Changed on trio's thread, one decision at a time."""

    admission: AcceptedAdmission
    rules: RowRules
    _layout: Layout | Children
    _writer: DatasetWriter | None  # None in memory
    _in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]
    _ledger: Ledger
    _notices: Notices
    _deliver: Callable[[int, int, pl.DataFrame | None, str | None], None]
    """Called with new rows of the dataset: their row group, how many they are, and the rows or the file's name."""
    _lock: trio.Lock = attrs.field(init=False, factory=trio.Lock)
    _duplicates: Duplicates | None = attrs.field(init=False, default=None)
    # In memory: the rows of complete row groups that are not decided yet.
    _frames: dict[int, pl.DataFrame] = attrs.field(init=False, factory=dict)
    # The identities of the rows of parts that this run wrote and that are not decided yet.
    _identities: dict[int, Sequence[Identity]] = attrs.field(init=False, factory=dict)

    def counts(self, recorded: Iterable[int]) -> tuple[int, int, list[range]]:
        """How many candidates were started, how many rows are surplus, and the rows that are not finished.

        `recorded` are row groups that the journal has entries of.
        """
        admission, layout = self.admission, self._layout
        open_groups = sorted(
            {*admission.unfinished, *(index for index in recorded if not admission.is_complete(index))}
        )
        unfinished = [layout.group_rows(index) for index in open_groups]
        duplicates = admission.compared - admission.kept
        surplus = admission.written - duplicates - self._ledger.placed
        return admission.complete_candidates + sum(map(len, unfinished)), surplus, unfinished

    async def completed(
        self, index: int, rows: int, identities: Sequence[Identity], frame: pl.DataFrame | None = None
    ) -> None:
        """The part of a row group is written; a `frame` has its rows in memory. Decide what can be decided now."""
        self._identities[index] = identities
        if frame is not None:
            self._frames[index] = frame
        self.admission.completed(index, rows)
        await self.advance()

    async def passed_over(self, index: int) -> None:
        """Nothing of a row group could be retried."""
        self.admission.passed_over(index)
        await self.advance()

    async def advance(self) -> None:
        """Decide row groups as long as the next one is complete, and put the rows that count into the dataset."""
        async with self._lock:
            writer = self._writer
            if writer is not None and self._duplicates is None and self.rules.compares_rows:
                # It only reads, and of many rows it takes minutes: cancellation leaves the thread alone.
                self._duplicates = await self._in_thread(lambda: load_duplicates(self.rules, writer))
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _DEADLINE) as scope:
                while (found := self.admission.next_decision()) is not None:
                    await self._decide(*found)
                await self._place()
        if scope.cancelled_caught:
            raise StoreError(f"the rows that count could not be written within {_DEADLINE:g} s")

    async def _decide(self, index: int, start: int, stop: int) -> None:
        writer = self._writer
        identities = self._identities.pop(index, None)
        decision = Decided(group=index, start=start, stop=stop)
        frame = self._frames.get(index)
        if start < stop:
            decide = self._decide_stored if frame is None else self._decide_frame
            found = await self._in_thread(lambda: decide(decision))
            source = self._layout.group_rows(index)
            if identities is not None and len(identities) != stop - start:
                identities = None  # post-batch processors have changed which rows there are
            rejected = [(start + at, _duplicate(source, start, at, identities, rule)) for at, rule in found]
            decision = replace(decision, rejected=tuple(rejected))
            if writer is not None:
                await self._in_thread(lambda: writer.decide(decision))
        self._ledger.drop([drop for _, drop in decision.rejected])
        for _, drop in decision.rejected:
            self._notices.emit(events.RowRejected, row_group=index, row=drop.row, by=drop.column)
        self.admission.decided(index, decision.kept)
        if frame is not None:
            del self._frames[index]
            room = self.admission.wanted - self._ledger.placed
            self._count(index, frame[decision.positions()].head(max(0, room)), None)
        self._notify()

    def _decide_frame(self, decision: Decided) -> list[tuple[int, str]]:
        frame = self._frames[decision.group]
        return self._compared({name: python_values(frame[name]) for name in self._names(frame.columns)}, decision)

    def _decide_stored(self, decision: Decided) -> list[tuple[int, str]]:
        if not self.rules.compares_rows:
            return []
        assert self._writer is not None
        table = self._writer.read_rows(decision.group, decision.start, decision.stop, self.rules.compared)
        return self._compared(_columns(table), decision)

    def _names(self, columns: Sequence[str]) -> list[str]:
        return [name for name in self.rules.compared if name in columns]

    def _compared(self, columns: Mapping[str, Sequence[Any]], decision: Decided) -> list[tuple[int, str]]:
        """The positions of duplicates among the rows that the decision is about, each with the rule."""
        if not self.rules.compares_rows:
            return []
        if self._duplicates is None:
            self._duplicates = Duplicates(self.rules)
        return self._duplicates.add(columns, decision.stop - decision.start)

    async def _place(self) -> None:
        writer = self._writer
        if writer is None:
            return
        for index, part in await self._in_thread(lambda: writer.place_rows(self.admission.wanted)):
            self._count(index, part.rows, part.name)

    def _count(self, index: int, rows: pl.DataFrame | int, name: str | None) -> None:
        frame = None if isinstance(rows, int) else rows
        count = rows if isinstance(rows, int) else rows.height
        ledger = self._ledger
        ledger.placed += count
        ledger.written = ledger.placed
        if count:
            self._deliver(index, count, frame, name)

    def _notify(self) -> None:
        admission = self.admission
        self._notices.emit(
            events.RowsDecided,
            accepted=admission.kept,
            candidates=admission.candidates,
            predicted=admission.predicted,
            rate=admission.rate,
        )


def load_duplicates(rules: RowRules, writer: DatasetWriter) -> Duplicates:
    """The index of all rows that count so far, from their files."""
    found = Duplicates(rules)
    for table in writer.kept_rows(rules.compared):
        found.add(_columns(table), table.num_rows, known=True)
    return found


def _columns(table: pa.Table) -> dict[str, list[Any]]:
    return {name: python_values(table.column(name)) for name in table.column_names}


def _duplicate(source: range, start: int, at: int, identities: Sequence[Identity] | None, rule: str) -> Drop:
    """What there is to say about a duplicate; `identities` are those of the rows that are decided, if known."""
    position = start + at
    row, copy = source[min(position, len(source) - 1)], max(0, position - len(source) + 1)
    if identities is not None:
        row, copy = identities[at]
    return Drop(
        row=row, copy=copy, kind=REJECTED, column=rule, attempts=1, error="it is in an earlier row", code="duplicate"
    )
