"""Which row group of a stage is admitted next, and when no more are needed: pure, like the scheduler that asks it.

`Admission` takes the row groups as they come. Where not every candidate becomes a row, `AcceptedAdmission` admits as
many as it takes to have the wanted rows, and no more than it has to: it estimates how many of the rows that are open
will count. Which rows count does not depend on that, nor on time: row groups are decided in order, and the first
rows that are kept are the dataset.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable


class Progress(Protocol):
    """A row group that is open."""

    @property
    def accepted(self) -> int:
        """Rows that were accepted and have not failed."""

    @property
    def undecided(self) -> int:
        """Rows that may still be accepted."""


@attrs.define(eq=False)
class Admission:
    """The row groups of a stage, in order. Changed by the scheduler only.

    A row group that is visited is being opened, open, or being checkpointed.
    """

    group_count: int
    _is_open: Callable[[int], bool]
    """True for row groups that have to be visited: to be generated, retried or replayed."""
    limit: int
    """How many row groups may be visited at once."""
    _visited: dict[int, Progress | None] = attrs.field(init=False, factory=dict)
    _next: int = attrs.field(init=False, default=0)

    @property
    def visited(self) -> int:
        return len(self._visited)

    @property
    def enough(self) -> bool:
        """True if what is open need not be finished, but for what `finishes` names."""
        return False

    def finishes(self, index: int) -> bool:  # noqa: ARG002
        """True if an open row group is to be finished although there is enough."""
        return True

    @property
    def done(self) -> bool:
        """True if no row group is visited and none will be."""
        return not self._visited and self._next_open() is None

    @property
    def has_more(self) -> bool:
        """True if a row group is still to be admitted."""
        return self._next_open() is not None

    def admit(self) -> int | None:
        """The row group to be opened now, which is visited from now on; None if there is none."""
        if self.visited >= self.limit or not self._has_need():
            return None
        index = self._next_open()
        if index is not None:
            self._visited[index] = None
            self._next = index + 1
        return index

    def opened(self, index: int, group: Progress) -> None:
        """A row group was opened."""
        self._visited[index] = group

    def left(self, index: int) -> None:
        """A row group that was visited needs nothing, is checkpointed, or was left unfinished."""
        del self._visited[index]

    def _has_need(self) -> bool:
        """True if another row group is needed besides those that are visited."""
        return True

    def _next_open(self) -> int | None:
        while self._next < self.group_count:
            if self._is_open(self._next):
                return self._next
            self._next += 1
        return None


# Standard deviations. A high estimate of the rate keeps a run that knows little of it from starting too much; what
# chance may take away from the open rows keeps the end of a run from being one row group after the other.
_CAUTION = 3.0
_RESERVE = 2.0


@attrs.define(eq=False)
class AcceptedAdmission(Admission):
    """Row groups of candidates: as many as it takes to have `wanted` rows.

    A row group is *complete* once its part is written, and *decided* once it is known which rows of that count. Row
    groups are decided in order: first those that were decided before and have been retried, then new ones.
    """

    wanted: int = attrs.field(kw_only=True)
    _size: Callable[[int], int] = attrs.field(kw_only=True)
    """How many candidates a row group has."""
    kept: int = attrs.field(init=False, default=0)  # rows that count, wanted or not
    # By complete row group: the rows of its part, and how many of them are decided. Their sums, and the candidates.
    _rows: dict[int, int] = attrs.field(init=False, factory=dict)
    _decided: dict[int, int] = attrs.field(init=False, factory=dict)
    written: int = attrs.field(init=False, default=0)
    compared: int = attrs.field(init=False, default=0)
    complete_candidates: int = attrs.field(init=False, default=0)
    _due: set[int] = attrs.field(init=False, factory=set)  # complete row groups that are to be decided
    _again: list[int] = attrs.field(init=False, factory=list)  # row groups that are decided again, in order
    _retried: frozenset[int] = attrs.field(init=False, default=frozenset())
    _reached: int = attrs.field(init=False, default=0)  # row groups below it were decided once

    def resume(
        self, complete: Iterable[tuple[int, int, int]], *, retried: Collection[int], reached: int, kept: int
    ) -> None:
        """Continue from earlier runs.

        `complete` are the row groups in the manifest: their index, the rows of their parts, and how many of these are
        decided; `retried` are those of them whose dropped rows are to be retried. All below `reached` were decided
        once, and `kept` rows count.
        """
        self.kept, self._reached, self._retried = kept, reached, frozenset(retried)
        for index, rows, decided in complete:
            self._decided[index] = decided
            self.compared += decided
            self._note_rows(index, rows)
            if index not in retried and (rows > decided or index >= reached):
                self._due.add(index)
        self._again = [
            index for index in range(reached) if index in retried or index not in self._rows or index in self._due
        ]

    @property
    def enough(self) -> bool:
        return self.kept >= self.wanted

    def finishes(self, index: int) -> bool:
        return index < self._reached

    @property
    def done(self) -> bool:
        if self._visited:
            return False
        index = self._next_open()
        return index is None or (self.enough and index >= self._reached)

    @property
    def unfinished(self) -> list[int]:
        """Row groups that were begun and are not complete."""
        return [index for index in range(self._next) if index not in self._rows]

    @property
    def candidates(self) -> int:
        """Candidates so far, those of open row groups included."""
        return self.complete_candidates + sum(map(self._size, self.unfinished))

    @property
    def predicted(self) -> int:
        """How many candidates it will take, by the rate so far."""
        left = self.wanted - self.kept
        if left <= 0:
            return self.candidates
        rate = (self.written + 1) / (self.complete_candidates + 2) * self._unique_share
        return max(self.candidates, self.complete_candidates + math.ceil(left / rate))

    @property
    def rate(self) -> float:
        """The share of the candidates of complete row groups that count, or will by the share of duplicates so far."""
        return min(1.0, self.written / max(1, self.complete_candidates) * self.kept / max(1, self.compared))

    def is_complete(self, index: int) -> bool:
        """True if the part of a row group is written."""
        return index in self._rows

    def completed(self, index: int, rows: int) -> None:
        """The part of a row group is written and has so many rows."""
        self._note_rows(index, rows)
        self._due.add(index)

    def passed_over(self, index: int) -> None:
        """Nothing of a row group could be retried."""
        if index in self._retried:
            self._due.add(index)

    def next_decision(self) -> tuple[int, int, int] | None:
        """The row group that is to be decided now, and from which of its rows to which; None if it is not complete."""
        index = self._again[0] if self._again else self._reached
        return (index, self._decided.get(index, 0), self._rows[index]) if index in self._due else None

    def decided(self, index: int, kept: int) -> None:
        """It was decided how many of the rows of a row group count."""
        self._due.remove(index)
        self.compared += self._rows[index] - self._decided.get(index, 0)
        self._decided[index] = self._rows[index]
        self.kept += kept
        if self._again:
            self._again.pop(0)
        else:
            self._reached += 1

    def _note_rows(self, index: int, rows: int) -> None:
        self.complete_candidates += 0 if index in self._rows else self._size(index)
        self.written += rows - self._rows.get(index, 0)
        self._rows[index] = rows

    @property
    def _unique_share(self) -> float:
        """The share of written rows that are no duplicates."""
        return (self.kept + 1) / (self.compared + 1)

    def _has_need(self) -> bool:
        """True unless the open row groups will do, by an estimate of how many of their rows will count.

        The rate has a Beta distribution, uniform before anything is known.
        """
        index = self._next_open()
        if index is None or index < self._reached or index < max(self._due, default=0):
            return True  # what comes after it waits for it to be decided
        judged, accepted, undecided, likely = self.complete_candidates, self.written, 0, self.written - self.compared
        for at, group in self._visited.items():
            if at in self._rows:
                continue
            if group is None:
                undecided += self._size(at)
                continue
            likely += group.accepted
            undecided += group.undecided
            accepted += group.accepted
            judged += max(0, self._size(at) - group.undecided)
        judged = max(judged, accepted)  # processors may add rows
        mean = (accepted + 1) / (judged + 2)
        high = min(1.0, mean + _CAUTION * math.sqrt(mean * (1 - mean) / (judged + 3)))
        expected = undecided * high - _RESERVE * math.sqrt(undecided * mean * (1 - mean))
        return self.kept + self._unique_share * (likely + max(0.0, expected)) < self.wanted
