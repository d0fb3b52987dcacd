"""The rows of one row group: their values, their identities, and which of them were dropped and why."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import polars as pl

from ..graph import Stage
from ..observe.report import REJECTED, Drop
from ..recipe.stages import ROW
from ..store import codec
from ..store.entries import Rebuilt
from ..store.provenance import match_rows
from ..store.schema import arrow_table
from ..store.values import Buffer, make_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from ..observe.report import Resized
    from ..store.entries import Failed
    from .plan import StagePlan
    from .tasks import Step

PRE_BATCH_COLUMN = "pre_batch"

# The number of a row, and 0, or 1, 2, … for rows that were added after the row of that number.
Identity = tuple[int, int]


def identities_by_position(source: range, count: int) -> list[Identity]:
    """The identities of the `count` rows that a processor returned in place of the source rows of a row group.

    A processor may do anything to rows, so only their position in its output is certain. Rows beyond the last number
    count as added after it: identities are in the order of the rows.
    """
    last = len(source) - 1
    return [(source[min(at, last)], max(0, at - last)) for at in range(count)]


class Rows:
    """Changed by the task of its row group only."""

    def __init__(self, plan: StagePlan, source: range, identities: list[Identity] | None = None) -> None:
        """All rows of `source`, or only those that are named."""
        self._plan = plan
        self.source = source
        self.buffer = Buffer(plan.graph.outputs, len(source) if identities is None else len(identities))
        self.drops: list[Drop] = []
        # How many rows each processor removed and added; which ones cannot be known.
        self.resized: Resized = ()
        # Why the whole row group is skipped, if it is.
        self.skipped: str | None = None
        # Columns with values that do not fit the declared type, which post-batch processors may remove; changed by the
        # thread of the first one.
        self.untyped: dict[str, pa.DataType] = {}
        # The rows that processors returned, as long as they are not back in the buffer, and for each its position
        # before the first of them, if that is known.
        self.frame: pl.DataFrame | None = None
        self.came_from: list[int | None] | None = None
        # The positions of the rows among the source rows; None: as their identities are.
        self._sources: list[int | None] | None = None
        self._identities = identities  # None: the rows are the source rows
        self._skipped_cells: set[tuple[int, int]] = set()  # (node, row)

    @property
    def count(self) -> int:
        """The number of rows, dropped ones included."""
        return self.buffer.rows

    def write_cell(self, step: Step, row: int, value: Any) -> None:
        """Write what a cell function returned: a value, or a tuple in the order of several outputs."""
        if len(step.outputs) == 1:
            self.buffer.update_cell(row, step.outputs[0], value)
        else:
            for name, each in zip(step.outputs, value, strict=True):
                self.buffer.update_cell(row, name, each)

    def write_value(self, name: str, row: int, value: Any) -> None:
        self.buffer.update_cell(row, name, value)

    def skips(self, step: Step, row: int) -> bool:
        """True if a cell is skipped, by its own rule, which may raise, or with one that it requires; it is noted."""
        node = step.node
        skip = any((up, row) in self._skipped_cells for up in step.skipped_with)
        rule = None if step.column is None else step.column.skip
        if not skip and rule is not None:
            skip = bool(rule.decide({name: self.buffer.values(name)[row] for name in rule.requires}))
        if skip:
            self._skipped_cells.add((node, row))
        return skip

    def shared_key(self, step: Step, row: int) -> bytes:
        """What identifies the answer that a cell of a column with `once_per` shares; may raise."""
        # Those of a column that is generated anew are stored elsewhere (`StagePlan.shared_key`).
        values = [self.buffer.values(name)[row] for name in step.once_per]
        return hashlib.blake2b(codec.encode([step.name, values]), digest_size=16).digest()

    def was_skipped(self, step: Step, row: int) -> bool:
        return (step.node, row) in self._skipped_cells

    def identity(self, row: int) -> Identity:
        return (self.source[row], 0) if self._identities is None else self._identities[row]

    def row(self, row: int) -> tuple[int, dict[str, Any]]:
        """The number of a row in the dataset, and its values so far."""
        return self.identity(row)[0], {name: self.buffer.values(name)[row] for name in self._plan.graph.outputs}

    def identities(self, rows: Sequence[int]) -> list[Identity]:
        return [self.identity(row) for row in rows]

    def pairs(self, rows: Sequence[int] | None = None) -> list[tuple[int, int]]:
        """What random values of rows depend on, by default of all source rows: their identities, or their origins.

        So a row that was made from another one has the same values whatever its number is.
        """
        identities = [(row, 0) for row in self.source] if rows is None else self.identities(rows)
        if self._plan.parent is None:
            return identities
        return [self._plan.origin(row) for row, _ in identities]

    def positions(self) -> list[int] | None:
        """The positions of its rows among the source rows; None if it has all of these."""
        return None if self._identities is None else [row - self.source.start for row, _ in self._identities]

    def accepts(self, row: int) -> bool:
        """True if a row is accepted; may raise."""
        acceptance = self._plan.acceptance
        assert acceptance is not None
        assert acceptance.predicate is not None
        predicate = acceptance.predicate
        return predicate.decide({name: self.buffer.values(name)[row] for name in predicate.requires})

    def reject(self, row: int) -> Drop:
        """Record that a row was not accepted."""
        acceptance = self._plan.acceptance
        assert acceptance is not None
        assert acceptance.predicate is not None
        source, copy = self.identity(row)
        name = acceptance.predicate.name
        drop = Drop(
            row=source, copy=copy, kind=REJECTED, column=name, attempts=1, error="not accepted", code="rejected"
        )
        self.drops.append(drop)
        return drop

    def drop(self, row: int, step: Step, attempts: int, error: str, code: str) -> Drop:
        """Record that a row failed."""
        source, copy = self.identity(row)
        drop = Drop(row=source, copy=copy, kind="failed", column=step.name, attempts=attempts, error=error, code=code)
        self.drops.append(drop)
        return drop

    def dropped(self, row: int, failed: Failed) -> Drop:
        """What there is to say about a row that failed by a column that was removed since."""
        source, copy = self.identity(row)
        return Drop(
            row=source,
            copy=copy,
            kind="failed",
            column=failed.column,
            attempts=failed.attempt,
            error=failed.error,
            code=failed.code,
            cost=failed.spent.cost,
        )

    def skip(self, reason: str) -> str:
        """Drop every row because a pre-batch processor failed; returns the drop reason as reports group it."""
        self.skipped = reason
        self.resized = ()
        self.drops = [drop for drop in self.drops if drop.kind != "skipped"]
        gone = {(drop.row, drop.copy) for drop in self.drops}
        self.drops += [
            Drop(row=row, kind="skipped", column=PRE_BATCH_COLUMN, attempts=1, error=reason, code="processor")
            for row in self.source
            if (row, 0) not in gone
        ]
        return f"{PRE_BATCH_COLUMN}: {reason}"

    def finished(self, live: Sequence[int]) -> pl.DataFrame | dict[str, list[Any]]:
        """The rows to be written, as the store takes them."""
        if self.skipped is not None:
            return {}
        return self.frame if self.frame is not None else self.buffer.take(self._plan.stored, live)

    def before_post_batch(self, live: Sequence[int]) -> dict[str, list[Any]] | None:
        """The rows as they were generated, if post-batch processors have changed them since."""
        if self.skipped is not None or self.frame is None:
            return None
        return self.buffer.take(self._plan.stored, live)

    def processor_call(
        self, step: Step, live: Sequence[int]
    ) -> Callable[[], tuple[pl.DataFrame, pl.DataFrame, list[int | None]]]:
        """A function that runs a processor on the rows.

        It returns the frames before and after it, and the position before it of each row after it, if that is known.
        """
        processor, frame = step.processor, self.frame
        assert processor is not None
        names = self._plan.seed_outputs if step.kind is Stage.PRE_BATCH else self._plan.stored
        columns = self.buffer.take(names, live) if frame is None else {}

        def call() -> tuple[pl.DataFrame, pl.DataFrame, list[int | None]]:
            before = frame
            if before is None:
                before = make_frame(columns, len(live), documents=self._plan.documents)
                before = before if step.kind is Stage.PRE_BATCH else self._typed(before)
            after = processor.apply(before)
            if isinstance(after, pl.LazyFrame):
                after = after.collect()
            if not isinstance(after, pl.DataFrame):
                raise TypeError(f"a processor must return a polars frame, not {type(after).__name__}")
            if step.kind is Stage.PRE_BATCH:
                self._check_columns(after)
            if ROW in names:
                _check_numbers(after)
            return before, after, match_rows(before, after)

        return call

    def _typed(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The rows in their declared types, which a post-batch processor may change."""
        for name, declared in self._plan.declared.items():
            if name not in frame.columns:  # it is a column of another stage
                continue
            table, conflicts = arrow_table(frame.select(name), {name: declared})
            if conflicts:
                self.untyped[name] = declared
            else:
                frame = frame.with_columns(pl.DataFrame(table))
        return frame

    def _check_columns(self, frame: pl.DataFrame) -> None:
        expected = self._plan.seed_outputs
        missing = [name for name in expected if name not in frame.columns]
        unknown = [name for name in frame.columns if name not in expected]
        parts = [f"lost {', '.join(map(repr, missing))}"] if missing else []
        parts += [f"has {', '.join(map(repr, unknown))}, which no column generates"] if unknown else []
        if parts:
            raise ValueError(f"the frame it returned {' and '.join(parts)}")

    def processed(self, name: str, before: pl.DataFrame, after: pl.DataFrame, came_from: Sequence[int | None]) -> None:
        """Continue with the rows that a processor returned, and count those that it removed or added."""
        earlier = self.came_from
        self.came_from = list(came_from)
        if earlier is not None:
            self.came_from = [None if at is None else earlier[at] for at in came_from]
        more = after.height - before.height
        self.resized = (*self.resized, (name, max(0, -more), max(0, more)))
        self.frame = after

    def rebuild(self) -> int:
        """Continue with the rows that pre-batch processors returned; returns how many they are."""
        assert self.frame is not None
        self.buffer = Buffer.from_frame(self.frame, self._plan.graph.outputs)
        self._identities = identities_by_position(self.source, self.buffer.rows)
        self._sources = self.came_from
        self.frame = self.came_from = None
        return self.buffer.rows

    def rebuilt_as(self) -> Rebuilt:
        """What pre-batch processors returned, for `take_over` in a later run."""
        return Rebuilt(
            columns=self.buffer.take(self._plan.seed_outputs),
            resized=self.resized,
            drops=list(self.drops),
            came_from=self._sources or [],
        )

    def take_over(self, rebuilt: Rebuilt) -> int:
        """Continue with the rows that pre-batch processors returned in an earlier run; returns how many they are."""
        count = len(next(iter(rebuilt.columns.values())))
        # Those of columns that the recipe no longer has are left out.
        known = {name: values for name, values in rebuilt.columns.items() if name in self._plan.seed_outputs}
        self.replace(known, identities_by_position(self.source, count))
        self.resized = rebuilt.resized
        self.drops = rebuilt.drops
        known_sources = [at if at is not None and at < len(self.source) else None for at in rebuilt.came_from]
        self._sources = known_sources if len(known_sources) == count else [None] * count
        return count

    def seed_rows(self, numbers: Sequence[int | None], earlier: Mapping[Identity, int | None]) -> list[int | None]:
        """The row of the seed file of each row, None where pre-batch processors made that unknown.

        `numbers` are those of the source rows, empty without a seed file, `earlier` those that are stored of rows.
        """
        if not numbers:
            return [None] * self.count
        if self._sources is not None:
            return [None if at is None else numbers[at] for at in self._sources]
        identities = self.identities(range(self.count))
        if self._plan.pre_batch:
            return [earlier.get(identity) for identity in identities]
        return [numbers[row - self.source.start] for row, _ in identities]

    def replace(self, columns: dict[str, list[Any]], identities: list[Identity]) -> None:
        """Take other rows in place of these."""
        self.buffer = Buffer(self._plan.graph.outputs, len(identities))
        for name, values in columns.items():
            for row, value in enumerate(values):
                self.buffer.update_cell(row, name, value)
        self._identities = identities
        self._skipped_cells.clear()


def _check_numbers(frame: pl.DataFrame) -> None:
    """Raise `ValueError` if rows that other stages take have lost their numbers."""
    if ROW not in frame.columns:
        raise ValueError(f"the frame it returned lost {ROW!r}, by which other stages name the rows that they take")
    if frame[ROW].null_count() or frame[ROW].is_duplicated().any():
        raise ValueError(f"the frame it returned has two rows of one {ROW!r}; other stages take a row only once")
