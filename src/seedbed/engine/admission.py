"""Which row group of a stage is admitted next, and when no more are needed: pure, like the scheduler that asks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable


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
    visited: int = attrs.field(init=False, default=0)
    _next: int = attrs.field(init=False, default=0)

    @property
    def done(self) -> bool:
        """True if no row group is visited and none will be."""
        return not self.visited and self._next_open() is None

    def admit(self) -> int | None:
        """The row group to be opened now, which is visited from now on; None if there is none."""
        if self.visited >= self.limit:
            return None
        index = self._next_open()
        if index is not None:
            self.visited += 1
            self._next = index + 1
        return index

    def left(self) -> None:
        """A row group that was visited needs nothing, is checkpointed, or was left unfinished."""
        self.visited -= 1

    def _next_open(self) -> int | None:
        while self._next < self.group_count:
            if self._is_open(self._next):
                return self._next
            self._next += 1
        return None
