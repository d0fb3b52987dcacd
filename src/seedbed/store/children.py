"""The rows of a stage that takes them from another: which rows they are made from, and their row groups. Pure.

A stage records each row group of its parent that it takes, in the order of the parent's rows, as `Taken`: the parent's
rows that are new to it, and how many rows each becomes or which group it belongs to. Everything here follows from these
records in their order, so a row keeps its number and its place once it has them.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, TypeAlias

import attrs
import msgspec

from ..observe.report import Count, Row  # noqa: TC001 - msgspec reads the annotations

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# No value of a list is longer than memory; a record from elsewhere must not make numbers that no range holds.
_Many: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]


class SourceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Where the rows of a stage come from, as its header stores it; `each` and `by` are those of the recipe.

    `size` is that of a group, None for all rows of a key; `by` is None for a stage whose rows each come from one row.
    """

    stage: str
    each: str = ""
    by: tuple[str, ...] | None = None
    size: Annotated[int, msgspec.Meta(ge=1)] | None = None
    remainder: str = "keep"


class Taken(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="taken"):
    """Rows of the parent stage that a stage took: those of one of its row groups that were new.

    `counts` has how many rows each becomes; of a stage of groups `keys` has the key of each. `parent` is None at the
    end of the parent's rows, where groups that are not full end too.
    """

    number: Count
    """Its place among these records, counted from 0: each is written twice, and counts once."""
    parent: Count | None = None
    revision: Count = 0
    edition: Count = 0
    rows: tuple[Row, ...] = ()
    counts: tuple[_Many, ...] = ()
    keys: tuple[str, ...] = ()

    @property
    def version(self) -> tuple[int, int]:
        """Which state of the parent's row group it was."""
        return self.revision, self.edition


@attrs.define(eq=False)
class Children:
    """The rows of a stage, numbered from 0. Changed by `take` only."""

    source: SourceSpec
    size: int
    """The most rows of a row group; one ends also where the rows of a `Taken` end."""
    rows: int = 0
    records: int = 0
    """How many records were applied."""
    taken: dict[int, tuple[int, int]] = attrs.field(factory=dict)
    """By row group of the parent: the version of it that was taken last."""
    _known: set[int] = attrs.field(factory=set)  # rows of the parent that were taken
    # Of rows that come from one row each: the number of the first row of each parent row, and that parent row.
    _firsts: list[int] = attrs.field(factory=list)
    _parents: list[int] = attrs.field(factory=list)
    _members: list[tuple[int, ...]] = attrs.field(factory=list)  # of groups
    _waiting: dict[str, list[int]] = attrs.field(factory=dict)  # groups that are not full, by key
    # For each `Taken` with rows: its first row group, and its rows. Not a list of row groups: a record from elsewhere
    # could make it very long.
    _firsts_of: list[int] = attrs.field(factory=list)
    _rows_of: list[range] = attrs.field(factory=list)
    count: int = 0
    """How many row groups there are so far."""

    @property
    def has_waiting(self) -> bool:
        """True if rows wait for their group to become full."""
        return bool(self._waiting)

    def is_new(self, row: int) -> bool:
        """True if a row of the parent was not taken yet."""
        return row not in self._known

    def take(self, taken: Taken) -> None:
        """Apply the next record."""
        before = self.rows
        self.records += 1
        if taken.parent is not None:
            self.taken[taken.parent] = taken.version
        self._known.update(taken.rows)
        if self.source.by is None:
            for row, count in zip(taken.rows, taken.counts, strict=True):
                if count:
                    self._firsts.append(self.rows)
                    self._parents.append(row)
                    self.rows += count
        else:
            self._group(taken)
        if self.rows > before:
            self._firsts_of.append(self.count)
            self._rows_of.append(range(before, self.rows))
            self.count += len(range(before, self.rows, self.size))

    def _group(self, taken: Taken) -> None:
        for row, key in zip(taken.rows, taken.keys, strict=True):
            waiting = self._waiting.setdefault(key, [])
            waiting.append(row)
            if len(waiting) == self.source.size:
                self._emit(self._waiting.pop(key))
        if taken.parent is None:
            for waiting in self._waiting.values():
                if self.source.remainder == "keep" or self.source.size is None:
                    self._emit(waiting)
            self._waiting.clear()

    def _emit(self, members: Sequence[int]) -> None:
        self._members.append(tuple(members))
        self.rows += 1

    def group_rows(self, index: int) -> range:
        """The numbers of the rows of a row group."""
        if not 0 <= index < self.count:
            raise IndexError(f"there is no row group {index}, only {self.count}")
        at = bisect_right(self._firsts_of, index) - 1
        rows = self._rows_of[at]
        start = rows.start + (index - self._firsts_of[at]) * self.size
        return range(start, min(start + self.size, rows.stop))

    def rows_of_others(self, done: Iterable[int], *, start: int = 0) -> list[range]:
        """Return the rows of all groups from `start` on that are not in `done`, as few ranges as possible."""
        ranges: list[range] = []
        for before, after in pairwise([start - 1, *sorted(done), self.count]):
            if before + 1 < after:
                ranges.append(range(self.group_rows(before + 1).start, self.group_rows(after - 1).stop))
        return ranges

    def index_of(self, row: int) -> int:
        """The row group that a row is in."""
        at = bisect_right(self._rows_of, row, key=lambda rows: rows.start) - 1
        return self._firsts_of[at] + (row - self._rows_of[at].start) // self.size

    def origin(self, row: int) -> tuple[int, int]:
        """The row of the parent that a row was made from, and which of its rows it is; of a group its first member."""
        if self.source.by is not None:
            return self._members[row][0], 0
        at = bisect_right(self._firsts, row) - 1
        return self._parents[at], row - self._firsts[at]

    def parents(self, row: int) -> tuple[int, ...]:
        """The rows of the parent that a row was made from."""
        return self._members[row] if self.source.by is not None else (self.origin(row)[0],)
