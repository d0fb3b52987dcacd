"""On resume, restore what earlier runs recorded of a row group.

A row group is a function of its outcomes: the same outcomes in the same order give the same state. An entry about a
task that is not ready at its place means that something before it was lost; it is ignored and the task runs again.
"""

from __future__ import annotations

import gc
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..graph import GROUP
from ..store.records import Drop
from .entries import ANSWER, FAILED, OK, REBUILT, ROWS
from .row_group import Consequence

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ..store.codec import Entry
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
    """Restore every entry that still fits; returns the finished cells by column."""
    with _collector_paused():
        return _replay(group, rows, {step.name: step for step in steps}, entries)


def _replay(group: RowGroup, rows: Rows, steps: dict[str, Step], entries: Iterable[Entry]) -> Counter[str]:
    cells: Counter[str] = Counter()
    for entry in entries:
        if entry[0] == OK:
            # Nearly all of them, and there may be a million.
            _, column, row, _, _, value, work = entry
            step = steps.get(column)
            if step is not None and group.restore_finished(step, row, value, work):
                cells[column] += len(value[0]) if row == GROUP else 1
            continue
        match entry:
            case (kind, str(column), int(row), attempt, salvage_round, error, fate) if kind == FAILED:
                if column in steps:
                    group.restore_failed(
                        steps[column],
                        row,
                        attempt=attempt,
                        salvage_round=salvage_round,
                        error=error,
                        fate=Consequence(fate),
                    )
            case (kind, str(column), int(row), _, asked, answer) if kind == ANSWER:
                group.restore_answer(column, row, asked, answer)
            case (kind, _, columns, resized, drops) if kind == REBUILT and group.can_restore_rebuilt():
                before = group.frontier.rows
                after = rows.take_over(columns, tuple(resized), [Drop(**drop) for drop in drops])
                group.restore_rebuilt(before, after)
            case (kind, str(column), of, columns) if kind == ROWS and column in steps:
                group.restore_rows(steps[column], of, columns)
                cells[column] += len(of)
    return cells
