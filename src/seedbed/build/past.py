"""Stateful generators of a dataset that is gone on with: those whose state was not kept are called again.

What they return is thrown away; it is in the dataset already. They see the rows of the dataset in order, as they did,
but for rows that were dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from ..graph import GROUP
from ..store.parts import read_table
from .cell import call_again
from .rows import Rows
from .tasks import Cell, TaskKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..store.codec import Entry
    from ..store.records import GroupRecord
    from .plan import Step
    from .run import Run
    from .tasks import Group


class PastGroup:
    """A row group that is finished, as far as its part tells."""

    def __init__(self, run: Run, record: GroupRecord, columns: dict[str, list[Any]], nursery: trio.Nursery) -> None:
        self.index = record.index
        self.nursery = nursery
        gone = {drop.row for drop in record.drops}
        identities = [(row, 0) for row in range(record.start, record.stop) if row not in gone]
        identities += [(record.start, 1)] * (record.rows - len(identities))  # made by processors
        self.rows = Rows(run.plan, range(record.start, record.stop))
        self.rows.replace(columns, identities[: record.rows])

    def live_rows(self) -> list[int]:
        """All that are in the part."""
        return list(range(self.rows.buffer.rows))

    def missing_rows(self, _step: Step) -> list[int]:
        """All that are in the part: a whole column is made once more."""
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
    past: PastGroup | None = None
    for identity, instance in run.instances.items():
        if identity in run.replaying:
            if place is not None:
                turn = trio.Event()
                instance.turnstile.enter(place, turn.set)
                await turn.wait()
            past = past or await _past_group(run, index, nursery)
            for node in instance.nodes:
                step = run.plan.steps[node]
                rows = past.live_rows() if step.kind is TaskKind.CELL else [GROUP]
                await replay_tasks(run, past, [(step, row) for row in rows])
        if place is not None:
            instance.turnstile.leave(place)


async def _past_group(run: Run, index: int, nursery: trio.Nursery) -> PastGroup:
    store = run.store
    assert store is not None
    assert store.manifest is not None  # only a dataset that is gone on with has groups that are over
    record = store.manifest.groups[index]
    columns: dict[str, list[Any]] = {}
    part = record.part
    if part is not None:
        table = await run.store_thread(lambda: read_table(store.writer.path / part.name))
        made = set(run.plan.graph.outputs)
        columns = {name: table.column(name).to_pylist() for name in table.column_names if name in made}
    return PastGroup(run, record, columns, nursery)
