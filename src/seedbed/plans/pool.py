"""The threads that CPU work of plans runs in."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeVar

import trio

from ..errors import Overloaded
from ..runtime.offload import Lease

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class _Waiter:
    __slots__ = ("granted", "woken")

    def __init__(self) -> None:
        self.woken = trio.Event()
        self.granted = False


class ThreadPool:
    """So many threads, first come, first served.

    A thread whose caller was cancelled goes on and keeps its place: it is *late*. When all are late nobody can tell
    when one will be free, so callers are refused and not kept waiting. All on trio's thread.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.busy = 0  # late ones included
        self.late = 0
        self.late_completions = 0
        self._waiters: deque[_Waiter] = deque()
        self._idle = trio.Event()

    @property
    def stuck(self) -> bool:
        """Whether every thread works for a caller that is gone."""
        return self.late >= self.size

    async def run(self, function: Callable[[], T]) -> T:
        """Run `function` in a thread; when cancelled, the thread is given up and this raises at once."""
        await self._acquire()
        lease = Lease(lambda: self._release(lease))
        started = False

        def work() -> T:
            nonlocal started
            started = True
            return function()

        try:
            return await lease.run(work)
        except trio.Cancelled:
            if lease.abandoned:
                self._count_late()
            elif started:  # it ended in the instant between the cancellation and now
                self.late_completions += 1
            raise

    def _count_late(self) -> None:
        self.late += 1
        if self.stuck:
            for waiter in self._waiters:
                waiter.woken.set()
            self._waiters.clear()

    async def wait_idle(self) -> None:
        """Wait until no thread works."""
        while self.busy:
            self._idle = trio.Event()
            await self._idle.wait()

    async def _acquire(self) -> None:
        if self.stuck:
            raise self._refusal()
        if self.busy < self.size:
            self.busy += 1
            return
        waiter = _Waiter()
        self._waiters.append(waiter)
        try:
            await waiter.woken.wait()
        except trio.Cancelled:
            if waiter.granted:
                self._pass_on()
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
            raise
        if not waiter.granted:
            raise self._refusal()

    def _refusal(self) -> Overloaded:
        return Overloaded(f"all {self.size} threads (cpu_threads) still work on nodes whose time was over")

    def _release(self, lease: Lease) -> None:
        if lease.abandoned:
            self.late -= 1
            self.late_completions += 1
        self._pass_on()

    def _pass_on(self) -> None:
        if self._waiters:
            waiter = self._waiters.popleft()
            waiter.granted = True
            waiter.woken.set()
        else:
            self.busy -= 1
            if not self.busy:
                self._idle.set()
