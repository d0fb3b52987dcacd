"""Who may run now, who waits and who is refused: decided without waiting."""

from __future__ import annotations

from collections import deque

import trio

from ..errors import Overloaded


class Admission:
    """At most `limit` requests run and `max_queue` wait, first come, first served; all others are refused at once."""

    def __init__(self, limit: int, max_queue: int) -> None:
        self.limit = limit
        self.max_queue = max_queue
        self.running = 0
        self.closed = False
        self._queue: deque[_Waiting] = deque()
        self._idle = trio.Event()

    @property
    def queued(self) -> int:
        return len(self._queue)

    async def enter(self, latest: float) -> None:
        """Get a place, by the instant `latest` at the latest."""
        if self.closed:
            raise Overloaded("the engine is closing")
        if self.running < self.limit:
            self.running += 1
            return
        if len(self._queue) >= self.max_queue:
            raise Overloaded(f"{self.running} requests run and {len(self._queue)} wait (max_queue)")
        waiting = _Waiting()
        self._queue.append(waiting)
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
        if self._queue and not self.closed:
            waiting = self._queue.popleft()
            waiting.admitted = True
            waiting.woken.set()
            return
        self.running -= 1
        if not self.running:
            self._idle.set()

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

    def _give_up(self, waiting: _Waiting) -> None:
        if waiting.admitted:
            self.leave()
        else:
            self._queue.remove(waiting)


class _Waiting:
    __slots__ = ("admitted", "refused", "woken")

    def __init__(self) -> None:
        self.woken = trio.Event()
        self.admitted = False  # has a place
        self.refused = False  # will get none
