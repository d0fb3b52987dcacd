"""Waiting for one of the places that requests have to share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from ..errors import Overloaded
from .places import Places

if TYPE_CHECKING:
    from .forecast import Forecast
    from .places import Claim


class Admission:
    """The places of an engine. `Places` decides; here is waited for what it decided. All on trio's thread."""

    def __init__(self, limit: int, max_queue: int) -> None:
        self._places = Places(limit, max_queue)
        self._closed = False
        self._idle = trio.Event()

    @property
    def running(self) -> int:
        return self._places.running

    @property
    def queued(self) -> int:
        return self._places.queued

    async def enter(self, deadline: float, forecast: Forecast) -> Claim:
        """Get a place, at a time when as much is left before the deadline as a request takes at least."""
        if self._closed:
            raise _closing()
        claim = self._places.ask(trio.current_time(), deadline, forecast)
        if claim.has_place():
            return claim
        woken = trio.Event()
        claim.wake = woken.set
        try:
            with trio.CancelScope(deadline=deadline - forecast.alone):
                await woken.wait()
        except BaseException:
            self._give_up(claim)
            raise
        if not claim.has_place():
            self._give_up(claim)
            raise _closing() if self._closed else Overloaded("its deadline could not be met any more while it waited")
        return claim

    def leave(self, claim: Claim, *, in_time: bool | None) -> None:
        """A request that had a place is over: done, cut off at its deadline, or ended otherwise (None)."""
        self._places.leave(claim, trio.current_time(), in_time=in_time)
        if not self._places.running:
            self._idle.set()

    def close(self) -> None:
        """Refuse those who wait, and all who come."""
        self._closed = True
        for claim in self._places.waiting:
            claim.wake()

    async def wait_idle(self) -> None:
        """Wait until nothing runs."""
        while self._places.running:
            self._idle = trio.Event()
            await self._idle.wait()

    def _give_up(self, claim: Claim) -> None:
        if claim.has_place():
            self.leave(claim, in_time=None)
        else:
            self._places.withdraw(claim)


def _closing() -> Overloaded:
    return Overloaded("the engine is closing")
