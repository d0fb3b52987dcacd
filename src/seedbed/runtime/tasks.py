"""Helpers around trio tasks: callbacks at an instant, a hidden nursery, and unwrapping of exception groups."""

from __future__ import annotations

import heapq
import itertools
import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator


class Timers:
    """A heap of synchronous callbacks and the one task that runs them when they are due.

    Everything in the engine that must happen later (the retry of a rate-limited cell, the end of a pause, a permit that
    stays taken for a while) is a callback here, so that nothing polls and nothing sleeps in a task of its own.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        # The scope that the running task sleeps in; its deadline is the first callback's instant.
        self._sleep: trio.CancelScope | None = None

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


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions of a group, however deep, or the exception itself."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from leaves(each)
    else:
        yield error


def sole_leaf(error: BaseException) -> BaseException:
    """The exception of a group that holds only one, however deep; any other error as it is."""
    found = list(leaves(error))
    return found[0] if len(found) == 1 else error


@asynccontextmanager
async def open_hidden_nursery(reason: str) -> AsyncIterator[trio.Nursery]:
    """Open a nursery that is invisible to the caller of the block; its tasks are cancelled when the block ends.

    What the block raises leaves unchanged, and so does the only error of a task: not in an exception group.
    `reason` is that of the cancellation.
    """
    raised: BaseException | None = None
    leaving: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            try:
                yield nursery
            except BaseException as error:
                raised = error
                raise
            nursery.cancel_scope.cancel(reason=reason)
    except BaseExceptionGroup as group:
        leaving = raised if raised is not None and _adds_nothing(group, raised) else sole_leaf(group)
    # Outside of `except`, so that the group does not become the context of one of its own exceptions.
    if leaving is not None:
        raise leaving


def _adds_nothing(group: BaseExceptionGroup[BaseException], raised: BaseException) -> bool:
    """True if a nursery's group holds all that its block raised and otherwise only cancellations of our tasks.

    Leaves are compared, because a cancel scope copies the groups that pass through it.
    """
    own, all_of_it = set(map(id, leaves(raised))), list(leaves(group))
    return own <= set(map(id, all_of_it)) and all(id(e) in own or isinstance(e, trio.Cancelled) for e in all_of_it)
