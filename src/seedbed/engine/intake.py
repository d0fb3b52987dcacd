"""Which rows a stage takes from another one next: pure, like the scheduler that asks it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable


class TakenRows(Protocol):
    """The rows that a stage has taken so far: `store.children.Children`."""

    @property
    def count(self) -> int: ...
    @property
    def has_waiting(self) -> bool: ...


@attrs.define(eq=False)
class Intake:
    """The finished row groups of the parent stage, taken one at a time in their order. Changed by the scheduler only.

    So the numbers of the rows that are made from them do not depend on the order in which they finished. A row group
    that was taken is taken again if it has other rows since, because dropped ones were retried.
    """

    parent: str
    """The stage that the rows come from."""
    children: TakenRows
    """The rows that were taken so far. Changed when a `Take` is performed."""
    _count: Callable[[], int]
    """How many row groups the parent has so far."""
    _is_settled: Callable[[int], bool]
    """True for row groups of the parent whose rows are on disk and do not change any more in this run."""
    _is_taken: Callable[[int], bool]
    """True for row groups of the parent all of whose rows were taken."""
    taking: bool = attrs.field(init=False, default=False)
    _next: int = attrs.field(init=False, default=0)

    def next(self) -> int | None:
        """The row group to be taken now; None if there is none."""
        while self._next < self._count() and self._is_settled(self._next):
            if not self._is_taken(self._next):
                return self._next
            self._next += 1
        return None

    @property
    def has_all(self) -> bool:
        """True if all row groups were taken that the parent has so far."""
        return self.next() is None and self._next >= self._count()
