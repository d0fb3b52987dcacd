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
from ..store.entries import Answer, Failed, Fate, Finished, FinishedRows, Rebuilt
from ..store.records import Drop
from .tasks import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..store.entries import Entry
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
        match entry:
            # Nearly all of them, and there may be a million: no detours.
            case Finished():
                step = steps.get(entry.column)
                if step is not None and _finished(group, step, entry):
                    replayed.cells[entry.column] += entry.cells
                    if step.instance is not None:
                        group.note_call(step, entry.row, entry.value)
            case Failed(column=column, row=row) if column in steps:
                if steps[column].instance is not None and group.find(column, row) is not None:
                    group.note_call(steps[column], row)
                _failed(group, entry)
            case Answer():
                cell = group.find(entry.column, entry.row)
                if cell is not None:
                    cell.answers = {**(cell.answers or {}), entry.asked: entry.answer}
            case Rebuilt(columns=columns) if group.frontier.barrier and set(columns) == set(
                group.run.plan.seed_outputs
            ):
                group.take_rebuilt(entry.columns, list(entry.identities), [Drop(**drop) for drop in entry.drops])
            case FinishedRows(column=column) if column in steps and len(entry.columns) == len(steps[column].outputs):
                group.take_rows(steps[column], entry.rows, entry.columns)
                replayed.cells[column] += len(entry.rows)
    return replayed


def _finished(group: RowGroup, step: Step, entry: Finished) -> bool:
    row = entry.row
    if not _fits(group, step, entry):
        return False
    cell = group.find(step.name, row)
    if cell is not None:
        if cell.state is State.DEFERRED:
            group.salvage.forget(cell)
        group.take(cell, entry.value, entry.cost)
        return True
    if 0 <= row < group.frontier.rows and group.frontier.dropped[row]:
        group.write_cell(step, row, entry.value)
        return True
    return False


def _fits(group: RowGroup, step: Step, entry: Finished) -> bool:
    """True if a value is one that this column can have given: a journal may be a stranger's."""
    if entry.row == GROUP:
        rows, columns = entry.value
        return len(columns) == len(step.outputs) and max(rows, default=0) < max(1, group.frontier.rows)
    return len(step.outputs) == 1 or (isinstance(entry.value, tuple | list) and len(entry.value) == len(step.outputs))


def _failed(group: RowGroup, entry: Failed) -> None:
    cell = group.find(entry.column, entry.row)
    if cell is None:
        return
    if cell.state is State.DEFERRED:
        group.salvage.forget(cell)
    cell.attempt, cell.salvage_round = entry.attempt, entry.salvage_round
    group.salvage.rounds = max(group.salvage.rounds, entry.salvage_round)
    if entry.fate != Fate.RETRIED_WITH_ANSWERS:
        cell.answers = None
    if entry.fate == Fate.DROPPED or not group.defer(cell, group.run.now()):
        group.give_up(cell, entry.error)
