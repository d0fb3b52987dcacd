"""Stateful generators of a dataset that is gone on with: those whose state was not kept are called again.

What they return is thrown away; it is in the dataset already. They see what they saw: the rows of the part or, where
rows are missing there, what the journal has kept of their calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from ..graph import GROUP
from ..store.entries import GeneratorCall, Key, Purpose
from ..store.parts import read_table
from .cell import call_again
from .rows import Rows
from .tasks import Cell, TaskKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..store.entries import Entry
    from ..store.records import GroupRecord
    from .plan import Step
    from .run import Run
    from .tasks import Group


class PastGroup:
    """Rows of a row group that is finished: those of its part, or those of one call."""

    def __init__(
        self, run: Run, record: GroupRecord, columns: dict[str, list[Any]], count: int, nursery: trio.Nursery
    ) -> None:
        self.index = record.index
        self.nursery = nursery
        gone = {drop.row for drop in record.drops}
        identities = [(row, 0) for row in range(record.start, record.stop) if row not in gone]
        identities += [(record.start, 1)] * (count - len(identities))  # made by processors
        self.rows = Rows(run.plan, range(record.start, record.stop))
        self.rows.replace(columns, identities[:count])

    def live_rows(self) -> list[int]:
        """All of them."""
        return list(range(self.rows.buffer.rows))

    def missing_rows(self, _step: Step) -> list[int]:
        """All of them: a whole column is made once more."""
        return self.live_rows()

    def record(self, _entry: Entry) -> None:
        """Everything is recorded already."""

    def gave_up(self, _cell: Cell[PastGroup]) -> bool:
        """Nobody does."""
        return False


async def replay_tasks(run: Run, group: Group, tasks: Iterable[tuple[Step, int]]) -> None:
    """Make these tasks once more, one after the other, for the state that they leave behind."""
    for step, row in tasks:
        await call_again(run, Cell(step, group, row))


async def replay_group(run: Run, index: int, nursery: trio.Nursery, place: int | None = None) -> None:
    """A finished row group's turn with every stateful generator; `place` where turns are kept."""
    kept: Sequence[Entry] = ()
    key = Key(group=index, purpose=Purpose.CALLS)
    if run.recorder is not None and run.store is not None and key in run.store.recovered.kept:
        kept = await run.recorder.read(key)
    past: PastGroup | None = None
    for identity, instance in run.instances.items():
        if identity in run.replaying:
            if place is not None:
                turn = trio.Event()
                instance.turnstile.enter(place, turn.set)
                await turn.wait()
            steps = {run.plan.steps[node].name: run.plan.steps[node] for node in instance.nodes}
            if kept:
                for call in kept:
                    if isinstance(call, GeneratorCall) and call.column in steps:
                        past_call = _one_call(run, index, call.inputs, call.rows, nursery)
                        await _call_kept(run, past_call, steps[call.column])
            else:
                past = past or await _past_group(run, index, nursery)
                for step in steps.values():
                    await _call_kept(run, past, step)
        if place is not None:
            instance.turnstile.leave(place)


async def _call_kept(run: Run, past: PastGroup, step: Step) -> None:
    rows = past.live_rows() if step.kind is TaskKind.CELL else [GROUP]
    await replay_tasks(run, past, [(step, row) for row in rows])


def _one_call(run: Run, index: int, inputs: dict[str, list[Any]], count: int, nursery: trio.Nursery) -> PastGroup:
    return PastGroup(run, _record(run, index), inputs, count, nursery)


def _record(run: Run, index: int) -> GroupRecord:
    assert run.store is not None
    assert run.store.manifest is not None  # only a dataset that is gone on with has groups that are over
    return run.store.manifest.groups[index]


async def _past_group(run: Run, index: int, nursery: trio.Nursery) -> PastGroup:
    store = run.store
    assert store is not None
    record = _record(run, index)
    columns: dict[str, list[Any]] = {}
    part = record.part
    if part is not None:
        table = await run.store_thread(lambda: read_table(store.writer.path / part.name))
        made = set(run.plan.graph.outputs)
        columns = {name: table.column(name).to_pylist() for name in table.column_names if name in made}
    return PastGroup(run, record, columns, record.rows, nursery)
