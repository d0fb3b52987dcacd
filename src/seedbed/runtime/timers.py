"""Callbacks at instants of trio's clock, all run by one task."""

from __future__ import annotations

import heapq
import itertools
import math
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable


class Timers:
    """A heap of synchronous callbacks and the one task that runs them when they are due.

    Everything in the engine that must happen later (a refused cell that may be sent again, a pause that ends, a permit
    that stays taken for a while) is a callback here, so that nothing polls and nothing sleeps in a task of its own.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        # The scope that the running task sleeps in; its deadline is the first callback's instant.
        self._sleep: trio.CancelScope | None = None

    def __len__(self) -> int:
        return len(self._heap)

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        """Run `callback` at instant `when` of trio's clock (as soon as possible if that is past)."""
        heapq.heappush(self._heap, (when, next(self._order), callback))
        if self._sleep is not None and when < self._sleep.deadline:
            self._sleep.deadline = when

    async def run(self) -> None:
        """Run callbacks until cancelled; an exception of a callback leaves this task."""
        try:
            while True:
                now = trio.current_time()
                while self._heap and self._heap[0][0] <= now:
                    heapq.heappop(self._heap)[2]()
                deadline = self._heap[0][0] if self._heap else math.inf
                with trio.CancelScope(deadline=deadline) as self._sleep:
                    await trio.sleep_forever()
        finally:
            self._sleep = None
