"""Who may run now, who waits and who is refused: decided without waiting."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final

from ..errors import Overloaded

if TYPE_CHECKING:
    from collections.abc import Callable

    from .forecast import Forecast

# How many times what is expected there must be time for; chosen with the simulation in the tests. What is too late was
# done for nothing, which is worse than to have refused it: to begin takes more than an even chance.
_MARGIN: Final = 1.1
# Who waited takes the place of somebody who is about to come and has more time left, so it must have more to spare.
_SPARE: Final = 1.7


class Claim:
    """A request that asked for a place. Changed by `Places` only, but for `wake`, which whoever waits may set."""

    __slots__ = ("began", "deadline", "forecast", "running", "wake")

    def __init__(self, deadline: float, forecast: Forecast) -> None:
        self.deadline = deadline
        self.forecast = forecast
        self.began: float | None = None  # when it got its place
        self.running = 0  # how many ran then, itself included
        self.wake: Callable[[], object] = _nobody_waits  # called when it gets its place after all

    def has_place(self) -> bool:
        """Whether it runs, or has run."""
        return self.began is not None


class Places:
    """At most `limit` requests run and `max_queue` wait; all others are refused at once.

    One with a deadline is started beside others only if it is expected to be in time. Without this, an engine that is
    asked for more than it can do would begin everything and finish nothing. If it is not, it waits, but only as long as
    it can hope: there is time to spare, and no more wait before it than may be expected to end until then. Refusing at
    once is cheap, and whoever is refused at once can still ask somebody else. Of those who wait, the first who fits is
    next. Who comes when nothing runs always fits.
    """

    def __init__(self, limit: int, max_queue: int) -> None:
        self.limit = limit
        self.max_queue = max_queue
        self.running = 0
        self._queue: deque[Claim] = deque()

    @property
    def queued(self) -> int:
        """How many wait."""
        return len(self._queue)

    @property
    def waiting(self) -> tuple[Claim, ...]:
        """Those who wait, the first to come standing first."""
        return tuple(self._queue)

    def ask(self, now: float, deadline: float, forecast: Forecast) -> Claim:
        """Ask for a place: the claim has begun or waits. Raises Overloaded if there is neither place nor hope."""
        claim = Claim(deadline, forecast)
        if self._fits(claim, now, _MARGIN):
            self._start(claim, now)
            return claim
        if len(self._queue) >= self.max_queue:
            raise Overloaded(f"{self.running} requests run and {len(self._queue)} wait (max_queue)")
        if deadline < math.inf and not self._may_hope(claim, now):
            raise Overloaded(
                f"its deadline could not be met: {self.running} requests run and {len(self._queue)} wait before it"
            )
        self._queue.append(claim)
        return claim

    def leave(self, claim: Claim, now: float, *, in_time: bool | None) -> None:
        """A request that had a place is over: done, cut off at its deadline, or ended otherwise (None)."""
        if in_time is not None and claim.began is not None:
            claim.forecast.learn(now - claim.began, claim.running, in_time=in_time)
        self.running -= 1
        self._fill(now)

    def withdraw(self, claim: Claim) -> None:
        """One who waited does so no longer; nothing happens if that was said before."""
        if claim in self._queue:
            self._queue.remove(claim)

    def _fits(self, claim: Claim, now: float, spare: float) -> bool:
        if not self.running:
            return True
        if self.running >= self.limit:
            return False
        return now + spare * claim.forecast.seconds(self.running + 1) <= claim.deadline

    def _may_hope(self, claim: Claim, now: float) -> bool:
        needed = _SPARE * claim.forecast.seconds(self.running)
        if not needed:
            return True
        slack = claim.deadline - now - needed
        # The next place is for the first who waits; and in the time that one needs, as many end as run.
        return slack >= 0 and len(self._queue) < 1 + self.running * slack / needed

    def _start(self, claim: Claim, now: float) -> None:
        self.running += 1
        claim.began = now
        claim.running = self.running

    def _fill(self, now: float) -> None:
        """Give what is free to those who wait."""
        begun: list[Claim] = []
        for claim in self._queue:
            if self.running >= self.limit:
                break
            if self._fits(claim, now, _SPARE):
                self._start(claim, now)
                begun.append(claim)
        for claim in begun:
            self._queue.remove(claim)
            claim.wake()


def _nobody_waits() -> None:
    pass
