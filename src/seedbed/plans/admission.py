"""Who may run now, who waits and who is refused: decided without waiting."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final

import trio

from ..errors import Overloaded

if TYPE_CHECKING:
    from collections.abc import Callable

# How much the last request counts in what is thought of the next.
_RECENT: Final = 1 / 16
# Requests are not all alike: what is expected to take so much less than the time there is will mostly be in time.
_MARGIN: Final = 1.2


class Admission:
    """At most `limit` requests run and `max_queue` wait; all others are refused at once.

    Requests share one loop, so one more makes all of them later. One with a deadline is not started beside others if
    what it takes alone and the work of the others together would take longer than it has: it waits. Without this, an
    engine that is asked for more than it can do would begin everything and finish nothing. `busy` says how many seconds
    the loop has worked so far. Of those who wait, the first who fits is next; who comes when nothing runs always fits.
    """

    def __init__(self, limit: int, max_queue: int, busy: Callable[[], float] = float) -> None:
        self.limit = limit
        self.max_queue = max_queue
        self.running = 0
        self.closed = False
        self.work = 0.0  # seconds of the loop that a request takes, the last ones counting most
        self._busy = busy
        self._busy_at = 0.0  # when it was last looked at, while something runs
        self._queue: deque[_Waiting] = deque()
        self._idle = trio.Event()

    @property
    def queued(self) -> int:
        return len(self._queue)

    async def enter(self, deadline: float, least: float = 0.0, usual: float = 0.0) -> None:
        """Get a place, at a time when `least` seconds are left before the deadline.

        That is what a request takes at least, and `usual` what it has taken of late. Who waited has less time than who
        comes, and is started only if even the usual is in time: else its work would mostly be for nothing.
        """
        if self.closed:
            raise Overloaded("the engine is closing")
        if not self.running or self._fits(deadline, least):
            self._start()
            return
        if len(self._queue) >= self.max_queue:
            raise Overloaded(f"{self.running} requests run and {len(self._queue)} wait (max_queue)")
        waiting = _Waiting(deadline, usual)
        self._queue.append(waiting)
        latest = deadline - least
        try:
            with trio.CancelScope(deadline=latest):
                await waiting.woken.wait()
        except BaseException:
            self._give_up(waiting)
            raise
        if waiting.refused:
            self._give_up(waiting)
            raise Overloaded("the engine is closing")
        if not waiting.admitted or trio.current_time() >= latest:
            self._give_up(waiting)
            raise Overloaded("its deadline could not be met any more when its turn came")

    def leave(self) -> None:
        """A request that had a place is over."""
        busy = self._busy()
        self.work += (busy - self._busy_at - self.work) * _RECENT
        self._busy_at = busy
        self._free()

    def close(self) -> None:
        """Refuse those who wait, and all who come."""
        self.closed = True
        for waiting in self._queue:
            waiting.refused = True
            waiting.woken.set()

    async def wait_idle(self) -> None:
        """Wait until nothing runs."""
        while self.running:
            self._idle = trio.Event()
            await self._idle.wait()

    def _fits(self, deadline: float, alone: float) -> bool:
        if self.running >= self.limit:
            return False
        if deadline == math.inf or not self.work:
            return True
        return trio.current_time() + _MARGIN * (alone + self.running * self.work) < deadline

    def _start(self) -> None:
        if not self.running:
            self._busy_at = self._busy()  # what the loop did while nothing ran was not for requests
        self.running += 1

    def _free(self) -> None:
        """Give a place back, and to those who wait what is free."""
        self.running -= 1
        if self._queue and not self.closed:
            left: deque[_Waiting] = deque()
            for waiting in self._queue:
                if self._fits(waiting.deadline, waiting.usual):
                    self._start()
                    waiting.admitted = True
                    waiting.woken.set()
                else:
                    left.append(waiting)
            self._queue = left
        if not self.running:
            self._idle.set()

    def _give_up(self, waiting: _Waiting) -> None:
        if waiting.admitted:
            self._free()
        else:
            self._queue.remove(waiting)


class _Waiting:
    __slots__ = ("admitted", "deadline", "refused", "usual", "woken")

    def __init__(self, deadline: float, usual: float) -> None:
        self.deadline = deadline
        self.usual = usual
        self.woken = trio.Event()
        self.admitted = False  # has a place
        self.refused = False  # will get none
