"""What a run that regenerates or takes over cells would generate, and what that probably costs."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import attrs

from ..store.manifest import read
from .changes import measure_progress
from .redo import cells_to_redo, selected_in

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ..store.manifest import GroupRecord
    from .plan import StagePlan


@attrs.frozen(kw_only=True)
class ColumnEstimate:
    """What a redo, or a dataset that takes over another one, is about to generate of one column."""

    column: str
    """The column."""
    cells: int
    """How many cells are generated."""
    reused: int
    """How many are taken over."""
    calls_model: bool
    """Whether it calls a model."""
    cost: float | None
    """What the cells will cost if each costs as much as those of this column did so far; None if that is not known."""


def estimate_cells(plan: StagePlan) -> list[ColumnEstimate]:
    """Count the cells of each column that a run generates, or takes over, in the rows of the dataset."""
    done = {} if plan.done is None else plan.done.groups
    selected: Mapping[int, list[int]] = {}
    if plan.redo is not None and plan.redo.where is not None and plan.done is not None and plan.out is not None:
        selected = {record.index: rows for record, rows in selected_in(plan.out, plan.done, plan.redo.where)}
    wanted, reused = Counter[str](), Counter[str]()
    for index in range(plan.layout.count):
        record = done.get(index)
        if record is not None and plan.done is not None and record.edition == plan.header.edition:
            continue
        for name, (cells, rows) in _cells_of_group(plan, index, record, selected.get(index, [])).items():
            wanted[name] += cells
            reused[name] += rows - cells
    costs = _costs(plan)
    return [
        ColumnEstimate(
            column=step.name,
            cells=wanted[step.name],
            reused=reused[step.name],
            calls_model=step.key is not None,
            cost=None if step.name not in costs else costs[step.name] * wanted[step.name],
        )
        for step in plan.steps
    ]


def _cells_of_group(
    plan: StagePlan, index: int, record: GroupRecord | None, selected: list[int]
) -> Mapping[str, tuple[int, int]]:
    """By column, how many cells of a row group are generated, and how many rows it has."""
    redo = plan.redo
    if record is None or (redo is not None and redo.everything):
        rows = len(plan.layout.group_rows(index))
        return {step.name: (rows, rows) for step in plan.steps}
    part = record.generated or record.part
    if plan.reuse is not None:  # its files are still in the other dataset
        found = plan.reuse.manifest.groups[index]
        part = found.generated or found.part
    written = 0 if part is None else part.rows
    if plan.reuse is not None and record.stop < found.stop:
        written = len(range(record.start, record.stop)) - len(record.drops)
    # Rows that were dropped because of what is generated anew; which of their other cells are stored is not counted.
    again = sum(drop.kind == "failed" and plan.is_redone(drop.column, record) for drop in record.drops)
    rows = written + again
    if redo is not None and redo.where is not None:
        cells = cells_to_redo(plan.graph, plan.steps, redo.columns, selected, range(written))
        return {name: (len(found), written) for name, found in cells.items()}
    added = plan.header.added
    return {step.name: (rows if added.get(step.name, 0) > record.edition else 0, rows) for step in plan.steps}


def _costs(plan: StagePlan) -> dict[str, float]:
    """The average cost of a cell of each column that has one, in the dataset that the cells come from."""
    source: Path | None = plan.reuse.source if plan.reuse is not None else plan.out
    if source is None or plan.done is None:
        return {}
    manifest = read(source)
    cells = measure_progress(source, manifest).cells
    costs: defaultdict[str, float] = defaultdict(float)
    for column, _, usage in manifest.usage:
        costs[column] += usage.cost
    return {name: cost / cells[name] for name, cost in costs.items() if cells.get(name)}
