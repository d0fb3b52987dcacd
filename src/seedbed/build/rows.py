"""The rows of one row group: their values, which rows they are, and which of them were given up and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import polars as pl

from ..store.buffer import Buffer, make_frame
from ..store.entries import Rebuilt
from ..store.records import Drop
from .identity import follow_rows
from .tasks import TaskKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .identity import Identity
    from .plan import BuildPlan, Step

PRE_BATCH_COLUMN = "pre_batch"


class Rows:
    """Changed by the task of its row group only."""

    def __init__(self, plan: BuildPlan, source: range, identities: list[Identity] | None = None) -> None:
        """All rows of `source`, or only those that are named."""
        self._plan = plan
        self.source = source
        self.buffer = Buffer(plan.graph.outputs, len(source) if identities is None else len(identities))
        self.drops: list[Drop] = []
        # Why the whole row group is given up, if it is.
        self.skipped: str | None = None
        # What processors made of the rows, as long as it is not back in the buffer.
        self.frame: pl.DataFrame | None = None
        self._identities = identities  # None: the rows are the source rows
        self._skipped_cells: set[tuple[int, int]] = set()  # (node, row)

    def skips(self, step: Step, row: int) -> bool:
        """Whether a cell is not to be made, by its own rule or because one it needs was not; remembers the answer."""
        node = step.node
        skip = any((up, row) in self._skipped_cells for up in step.skipped_with)
        if not skip and step.skip is not None:
            values = {name: self.buffer.values(name)[row] for name in step.skip.requires}
            skip = bool(step.skip.decide(values))
        if skip:
            self._skipped_cells.add((node, row))
        return skip

    def was_skipped(self, step: Step, row: int) -> bool:
        """Whether a cell was not made because it was to be skipped."""
        return (step.node, row) in self._skipped_cells

    def identity(self, row: int) -> Identity:
        """Which row that is in the whole dataset."""
        return (self.source[row], 0) if self._identities is None else self._identities[row]

    def identities(self, rows: Sequence[int]) -> list[Identity]:
        """Which rows of the whole dataset will be in the part, in its order; `rows` are those that are not dropped."""
        return [self.identity(row) for row in (rows if self.frame is None else range(self.frame.height))]

    def positions(self) -> list[int] | None:
        """Where its rows are among the source rows; None if they are just these."""
        if self._identities is None:
            return None
        return [row - self.source.start for row, _ in self._identities]

    def drop(self, row: int, step: Step, attempts: int, error: str) -> Drop:
        """Record that a row failed."""
        source, copy = self.identity(row)
        drop = Drop(row=source, copy=copy, kind="failed", column=step.name, attempts=attempts, error=error)
        self.drops.append(drop)
        return drop

    def skip(self, reason: str) -> None:
        """Give the whole row group up."""
        self.skipped = reason
        self.drops = [drop for drop in self.drops if drop.kind == "failed"]
        gone = {(drop.row, drop.copy) for drop in self.drops}
        self.drops += [
            Drop(row=row, kind="skipped", column=PRE_BATCH_COLUMN, attempts=1, error=reason)
            for row in self.source
            if (row, 0) not in gone
        ]

    def finished(self, live: Sequence[int]) -> pl.DataFrame | dict[str, list[Any]]:
        """The rows to be written, as the store takes them."""
        if self.skipped is not None:
            return {}
        return self.frame if self.frame is not None else self.buffer.take(self._plan.graph.outputs, live)

    def processor_call(self, step: Step, live: Sequence[int]) -> Callable[[], tuple[pl.DataFrame, pl.DataFrame]]:
        """What runs a processor on the rows as they are now and gives the frames before and after it."""
        processor, frame = step.processor, self.frame
        assert processor is not None
        names = self._plan.seed_outputs if step.kind is TaskKind.PRE_BATCH else self._plan.graph.outputs
        columns = self.buffer.take(names, live) if frame is None else {}

        def call() -> tuple[pl.DataFrame, pl.DataFrame]:
            before = make_frame(columns, len(live)) if frame is None else frame
            after = processor.apply(before)
            if isinstance(after, pl.LazyFrame):
                after = after.collect()
            if not isinstance(after, pl.DataFrame):
                raise TypeError(f"a processor must return a polars frame, not {type(after).__name__}")
            if step.kind is TaskKind.PRE_BATCH:
                self._check_columns(after)
            return before, after

        return call

    def _check_columns(self, frame: pl.DataFrame) -> None:
        expected = self._plan.seed_outputs
        missing = [name for name in expected if name not in frame.columns]
        unknown = [name for name in frame.columns if name not in expected]
        parts = [f"lost {', '.join(map(repr, missing))}"] if missing else []
        parts += [f"has {', '.join(map(repr, unknown))}, which no column makes"] if unknown else []
        if parts:
            raise ValueError(f"the frame it returned {' and '.join(parts)}")

    def processed(self, step: Step, before: pl.DataFrame, after: pl.DataFrame, live: Sequence[int]) -> None:
        """Go on with the rows that a processor returned; the ones it took out are recorded."""
        at = live if self.frame is None else range(before.height)
        identities = [self.identity(row) for row in at]
        shared = [name for name in before.columns if name in after.columns]
        followed = follow_rows(before.select(shared).rows(), after.select(shared).rows(), identities)
        self.removed(step, identities, followed)
        self._identities = followed
        self.frame = after

    def removed(self, step: Step, before: Sequence[Identity], after: Sequence[Identity]) -> None:
        """Record the rows that were there before a processor or a column that may resize, and not after it."""
        kept = set(after)
        self.drops += [
            Drop(row=row, copy=copy, kind="removed", column=step.name, attempts=0, error="removed by a processor")
            for row, copy in before
            if (row, copy) not in kept
        ]

    def rebuild(self) -> int:
        """Put what the pre-batch processors left back into a buffer; returns how many rows that are."""
        assert self.frame is not None
        self.buffer = Buffer.from_frame(self.frame, self._plan.graph.outputs)
        self.frame = None
        return self.buffer.rows

    def rebuilt_as(self) -> Rebuilt:
        """What pre-batch processors left, for `take_over` in a later run."""
        assert self._identities is not None
        return Rebuilt(
            columns=self.buffer.take(self._plan.seed_outputs),
            identities=self._identities,
            drops=[attrs.asdict(drop) for drop in self.drops],
        )

    def take_over(self, columns: dict[str, list[Any]], identities: list[Identity], drops: list[Drop]) -> int:
        """Go on with the rows that pre-batch processors left in an earlier run; returns how many they are."""
        self.replace(columns, identities)
        self.drops = drops
        return len(identities)

    def replace(self, columns: dict[str, list[Any]], identities: list[Identity]) -> None:
        """Take other rows in place of these: what a column that may resize does."""
        height = len(identities)
        self.buffer = Buffer(self._plan.graph.outputs, height)
        for name, values in columns.items():
            for row, value in enumerate(values):
                self.buffer.update_cell(row, name, value)
        self._identities = identities
        self._skipped_cells.clear()
