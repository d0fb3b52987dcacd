"""A loop that answers requests, in simulated time and without trio: what `Places` decides can be tried on it at will.

A request is five turns on the loop, with a wait for a server after each but the last. One pass of the loop does all
turns that are ready; a pass, a refusal and ending a request that is late cost time as well. The figures are those of
the ten-node plan of the benchmark.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from typing import TYPE_CHECKING

import attrs

from seedbed.errors import Overloaded

if TYPE_CHECKING:
    from seedbed.plans.forecast import Forecast
    from seedbed.plans.places import Claim, Places

TURNS = 5
SPELL = 0.15
"""Seconds that a good or bad time lasts, in the mean."""


@attrs.frozen(kw_only=True)
class Costs:
    """Seconds on the loop."""

    work: float = 1.0e-3  # of a request, in all its turns
    wait: float = 0.19e-3  # for the server, after a turn; not on the loop
    loop_pass: float = 0.06e-3
    refusal: float = 0.035e-3
    late: float = 0.15e-3
    stall: float = 0.0  # the chance that a turn takes up to 3 ms more, because somebody else has the processor
    slow: float = 1.0  # how many times as long all of it takes in bad times, which come and go

    @property
    def alone(self) -> float:
        """What a request takes if there is no other, in good and bad times together."""
        return (self.work + TURNS * self.loop_pass + (TURNS - 1) * self.wait) * (1 + self.slow) / 2

    def in_bad_times(self) -> Costs:
        return Costs(
            work=self.work * self.slow,
            wait=self.wait * self.slow,
            loop_pass=self.loop_pass * self.slow,
            refusal=self.refusal * self.slow,
            late=self.late * self.slow,
            stall=self.stall,
        )


@attrs.define(eq=False)
class Visit:
    """A request on its way."""

    arrival: float
    deadline: float
    claim: Claim | None = None
    turns: int = 0  # done


@attrs.define
class Tally:
    """What became of the requests."""

    seconds: float
    answered: int = 0
    late: int = 0
    refused: int = 0

    @property
    def rate(self) -> float:
        """Answers a second."""
        return self.answered / self.seconds


class SimulatedLoop:
    """Requests arrive evenly, so many a second, each with so much time, for as long as `run` is told."""

    def __init__(self, places: Places, forecast: Forecast, costs: Costs, *, seed: int = 0) -> None:
        self._places = places
        self._forecast = forecast
        self._costs = costs
        self._other_costs = costs.in_bad_times()
        self._change_at = math.inf if costs.slow == 1 else SPELL
        self._rng = random.Random(seed)
        self._now = 0.0
        self._ready: deque[Visit] = deque()
        self._away: list[tuple[float, int, Visit]] = []  # with the server, by when they are back
        self._waiting: deque[Visit] = deque()
        self._sent = 0

    def run(self, *, rate: float, deadline: float, seconds: float) -> Tally:
        """Go on from where the last run ended."""
        began, made = self._now, 0
        tally = Tally(seconds)
        while self._now < began + seconds:
            if self._now >= self._change_at:
                self._costs, self._other_costs = self._other_costs, self._costs
                self._change_at = self._now + self._rng.expovariate(1 / SPELL)
            cost = 0.0
            due = int((self._now - began) * rate)
            for _ in range(made, due):
                cost += self._arrive(deadline, tally)
            made = due
            while self._away and self._away[0][0] <= self._now:
                self._ready.append(heapq.heappop(self._away)[2])
            cost += self._refuse_hopeless(tally)
            turns = list(self._ready)
            self._ready.clear()
            self._rng.shuffle(turns)  # as trio does
            for visit in turns:
                cost += self._turn(visit, self._now + cost, tally)
            if cost:
                self._now += cost + self._costs.loop_pass
            else:
                self._now = max(self._now + 1e-7, min(began + (made + 1) / rate, self._back_at()))
        return tally

    def _back_at(self) -> float:
        return self._away[0][0] if self._away else math.inf

    def _arrive(self, deadline: float, tally: Tally) -> float:
        visit = Visit(self._now, self._now + deadline)
        try:
            visit.claim = self._places.ask(self._now, visit.deadline, self._forecast)
        except Overloaded:
            tally.refused += 1
            return self._costs.refusal
        if visit.claim.began is not None:
            self._ready.append(visit)
        else:
            self._waiting.append(visit)
            visit.claim.wake = lambda: self._called(visit)
        return 0.0

    def _called(self, visit: Visit) -> None:
        self._waiting.remove(visit)
        self._ready.append(visit)

    def _refuse_hopeless(self, tally: Tally) -> float:
        gone = [visit for visit in self._waiting if visit.deadline - self._forecast.alone <= self._now]
        for visit in gone:
            assert visit.claim is not None
            self._places.withdraw(visit.claim)
            self._waiting.remove(visit)
        tally.refused += len(gone)
        return len(gone) * 2 * self._costs.refusal

    def _turn(self, visit: Visit, now: float, tally: Tally) -> float:
        costs, rng = self._costs, self._rng
        assert visit.claim is not None
        if visit.deadline <= now:
            tally.late += 1
            self._places.leave(visit.claim, now, in_time=False)
            return costs.late
        cost = costs.work / TURNS * rng.lognormvariate(-0.03, 0.25)
        if rng.random() < costs.stall:
            cost += rng.random() * 0.003
        visit.turns += 1
        if visit.turns < TURNS:
            self._sent += 1
            back = now + cost + costs.wait * rng.lognormvariate(-0.03, 0.25)
            heapq.heappush(self._away, (back, self._sent, visit))
            return cost
        in_time = now + cost < visit.deadline
        tally.answered += in_time
        tally.late += not in_time
        self._places.leave(visit.claim, now + cost, in_time=in_time)
        return cost
