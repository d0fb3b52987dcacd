"""The threads that CPU work of plans runs in."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from ..errors import Overloaded
from ..runtime.offload import Lease

if TYPE_CHECKING:
    from collections.abc import Callable

    from .admission import Claim

PATIENCE: Final = 1.0
"""Seconds without a free thread after which a request that has no deadline is refused."""

T = TypeVar("T")


class _Waiter:
    __slots__ = ("granted", "woken")

    def __init__(self) -> None:
        self.woken = trio.Event()
        self.granted = False


class ThreadPool:
    """So many threads, first come, first served.

    A thread whose caller was cancelled goes on and keeps its slot: it is *late*. A request waits for a thread as long
    as it can still finish; one without a deadline until no thread has become free for `PATIENCE` seconds. All on trio's
    thread.
    """

    def __init__(self, size: int, clock: Callable[[], float]) -> None:
        self.size = size
        self.busy = 0  # late ones included
        self.late = 0
        self.late_completions = 0
        self._clock = clock
        self._freed_at = -math.inf  # when a thread last became free
        self._waiters: deque[_Waiter] = deque()
        self._idle = trio.Event()

    async def run(self, function: Callable[[], T], claim: Claim | None = None) -> T:
        """Run `function` in a thread; when cancelled, the thread is abandoned and this raises at once."""
        await self._acquire(claim)
        lease = Lease(lambda: self._release(lease))
        started = False
        began = self._clock()

        def work() -> T:
            nonlocal started
            started = True
            return function()

        try:
            return await lease.run(work)
        except trio.Cancelled:
            if lease.abandoned:
                self.late += 1
            elif started:  # it ended in the instant between the cancellation and now
                self.late_completions += 1
            raise
        finally:
            if claim is not None:
                claim.threads += self._clock() - began

    async def wait_idle(self) -> None:
        """Wait until no thread works."""
        while self.busy:
            self._idle = trio.Event()
            await self._idle.wait()

    async def _acquire(self, claim: Claim | None = None) -> None:
        if self.busy < self.size:
            self.busy += 1
            return
        waiter = _Waiter()
        self._waiters.append(waiter)
        asked = self._clock()
        ends = math.inf if claim is None else claim.deadline - claim.forecast.threads
        try:
            while not waiter.granted:
                patient_until = max(asked, self._freed_at) + PATIENCE if ends == math.inf else ends
                if self._clock() >= patient_until:
                    raise Overloaded(
                        f"none of {self.size} threads (cpu_threads) became free in time; "
                        f"{self.late} work on nodes whose requests have ended"
                    )
                with trio.CancelScope(deadline=patient_until):
                    await waiter.woken.wait()
        except BaseException:
            if waiter.granted:
                self._pass_on()
            else:
                self._waiters.remove(waiter)
            raise

    def _release(self, lease: Lease) -> None:
        if lease.abandoned:
            self.late -= 1
            self.late_completions += 1
        self._pass_on()

    def _pass_on(self) -> None:
        self._freed_at = self._clock()
        if self._waiters:
            waiter = self._waiters.popleft()
            waiter.granted = True
            waiter.woken.set()
        else:
            self.busy -= 1
            if not self.busy:
                self._idle.set()
