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

    def ask(self, deadline: float, forecast: Forecast) -> Claim:
        """Ask for a place: there is one, or `wait` for it. Raises Overloaded if there is neither place nor hope."""
        if self._closed:
            raise _closing()
        return self._places.ask(trio.current_time(), deadline, forecast)

    async def wait(self, claim: Claim) -> None:
        """Wait for a place, until less is left before the deadline than a request takes at least."""
        woken = trio.Event()
        claim.wake = woken.set
        try:
            with trio.CancelScope(deadline=claim.deadline - claim.forecast.alone):
                await woken.wait()
        except BaseException:
            self.give_up(claim)
            raise
        if not claim.has_place():
            self.give_up(claim)
            raise _closing() if self._closed else Overloaded("its deadline could not be met any more while it waited")

    def give_up(self, claim: Claim) -> None:
        """A request ends before it has begun, with or without a place."""
        if claim.has_place():
            self.leave(claim, in_time=None)
        else:
            self._places.withdraw(claim)

    def leave(self, claim: Claim, *, in_time: bool | None) -> None:
        """A request that had a place is over: done, cut off at its deadline, or ended otherwise (None)."""
        self._places.leave(claim, trio.current_time(), in_time=in_time)
        if not self._places.running:
            self._idle.set()

    def close(self) -> None:
        """Refuse those who wait, and all who come."""
        self._closed = True
        for claim in self._places.waiting:
            # At once, or a place that becomes free before it has woken would still be given to it.
            self._places.withdraw(claim)
            claim.wake()

    async def wait_idle(self) -> None:
        """Wait until nothing runs."""
        while self._places.running:
            self._idle = trio.Event()
            await self._idle.wait()


def _closing() -> Overloaded:
    return Overloaded("the engine is closing")
