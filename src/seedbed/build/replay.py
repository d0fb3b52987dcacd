"""Taking in again what earlier runs have recorded of a row group.

A row group is what its outcomes made of it, so the same outcomes in the same order make it what it was. An entry about
a task that is not ready at its place means that something before it was lost; it is left out and the task is run again.
"""

from __future__ import annotations

import gc
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs

from ..graph import GROUP
from ..store.records import Drop
from .recorder import ANSWER, DROPPED, FAILED, GOES_ON, OK, REBUILT, ROWS
from .tasks import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..store.codec import Entry
    from .plan import Step
    from .row_group import RowGroup


@attrs.define(eq=False)
class Replayed:
    """What came of it: finished cells by column."""

    cells: Counter[str] = attrs.field(factory=Counter)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Nothing that is replayed is garbage, and looking for it among a million cells takes longer than the replay."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def replay(group: RowGroup, entries: Iterable[Entry]) -> Replayed:
    """Take in every entry that still fits."""
    steps = {step.name: step for step in group.run.plan.steps}
    replayed = Replayed()
    for entry in entries:
        if entry[0] == OK:
            # Nearly all of them, and there may be a million: no detours.
            _, column, row, _, _, value, cost = entry
            step = steps.get(column)
            if step is not None and _finished(group, step, row, value, cost):
                replayed.cells[column] += len(value[0]) if row == GROUP else 1
                if step.instance is not None:
                    group.note_call(step, row, value)
            continue
        match entry:
            case (kind, str(column), int(row), *_) if kind == FAILED and column in steps:
                if steps[column].instance is not None and group.find(column, row) is not None:
                    group.note_call(steps[column], row)
                _failed(group, entry)
            case (kind, str(column), int(row), _, asked, answer) if kind == ANSWER:
                cell = group.find(column, row)
                if cell is not None:
                    cell.answers = {**(cell.answers or {}), asked: answer}
            case (kind, _, columns, resized, drops) if kind == REBUILT and group.can_take_rebuilt():
                group.take_rebuilt(columns, tuple(resized), [Drop(**drop) for drop in drops])
            case (kind, str(column), rows, columns) if kind == ROWS and column in steps:
                group.take_rows(steps[column], rows, columns)
                replayed.cells[column] += len(rows)
    return replayed


def _finished(group: RowGroup, step: Step, row: int, value: object, cost: tuple[int, int, float] | None) -> bool:
    cell = group.find(step.name, row)
    if cell is not None:
        if cell.state is State.DEFERRED:
            group.salvage.forget(cell)
        group.take(cell, value, cost)
        return True
    if 0 <= row < group.frontier.rows and group.frontier.dropped[row]:
        group.write_cell(step, row, value)
        return True
    return False


def _failed(group: RowGroup, entry: Entry) -> None:
    _, column, row, attempt, salvage_round, error, fate = entry
    cell = group.find(column, row)
    if cell is None:
        return
    if cell.state is State.DEFERRED:
        group.salvage.forget(cell)
    cell.attempt, cell.salvage_round = attempt, salvage_round
    group.salvage.rounds = max(group.salvage.rounds, salvage_round)
    if fate != GOES_ON:
        cell.answers = None
    if fate == DROPPED or not group.defer(cell, group.run.now()):
        group.give_up(cell, error)
