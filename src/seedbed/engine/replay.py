"""On resume, restore what earlier runs recorded of a row group.

A row group is a function of its outcomes: the same outcomes in the same order give the same state. An entry about a
task that is not ready at its place means that something before it was lost; it is ignored and the task runs again.
"""

from __future__ import annotations

import gc
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..errors import StoreError
from ..store.entries import Answer, Failed, Finished, FinishedRows, Rebuilt
from ..store.records import Drop
from .row_group import Consequence

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ..store.entries import Entry
    from .row_group import RowGroup
    from .rows import Rows
    from .tasks import Step


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Nothing that is replayed is garbage, and scanning a million cells for it takes longer than the replay.

    Never held across an await: the collector belongs to the whole process.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def replay(group: RowGroup, rows: Rows, steps: Sequence[Step], entries: Iterable[Entry]) -> Counter[str]:
    """Restore every entry that still fits; returns the finished cells by column.

    `StoreError` if an entry is none that a run of this recipe writes: a directory may come from someone else.
    """
    with _collector_paused():
        try:
            return _replay(group, rows, {step.name: step for step in steps}, entries)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise StoreError(
                f"the journal of row group {group.index} holds an entry that no run of this recipe wrote: {error}"
            ) from error


def _replay(group: RowGroup, rows: Rows, steps: dict[str, Step], entries: Iterable[Entry]) -> Counter[str]:
    cells: Counter[str] = Counter()
    for entry in entries:
        if type(entry) is Finished:  # nearly all of them, and there may be a million
            step = steps.get(entry.column)
            if step is not None and group.restore_finished(step, entry.row, entry.value, entry.cost):
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
                    fate=Consequence(entry.consequence),
                )
            case Answer(column=column, row=row):
                group.restore_answer(column, row, entry.key, entry.answer)
            case Rebuilt(columns=columns) if group.can_restore_rebuilt():
                before = group.frontier.rows
                after = rows.take_over(columns, entry.resized, [Drop(**drop) for drop in entry.drops])
                group.restore_rebuilt(before, after)
            case FinishedRows(column=column) if column in steps:
                group.restore_rows(steps[column], entry.rows, entry.columns)
                cells[column] += len(entry.rows)
    return cells
