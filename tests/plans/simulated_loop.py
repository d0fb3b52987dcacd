"""A loop that answers requests, in simulated time: what `Admission` decides can be tried on it at will.

A request is five turns on the loop, with a wait for a server after each but the last. One pass of the loop does all
turns that are ready; a pass, a rejection and ending a request that is late cost time as well. The figures are those of
the ten-node plan of the benchmark. Several plans can be asked at once, each with its own costs, deadline and server; a
server can be down for a while, and the first request of a plan can cost more than the others.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque

import attrs

from seedbed.errors import Overloaded
from seedbed.plans.admission import Admission, Claim, Forecast, LoopMeter, ThreadPool

TURNS = 5
SPELL = 0.15
"""Seconds that a good or bad time lasts, in the mean."""


@attrs.frozen(kw_only=True)
class Costs:
    """Seconds on the loop."""

    work: float = 1.0e-3  # of a request, in all its turns
    wait: float = 0.19e-3  # for the server, after a turn; not on the loop
    loop_pass: float = 0.06e-3
    rejection: float = 0.035e-3
    late: float = 0.15e-3
    stall: float = 0.0  # the chance that a turn takes up to 3 ms more, because another process has the processor
    slow: float = 1.0  # how many times as long all of it takes in bad times, which come and go

    @property
    def alone(self) -> float:
        """The time that a request takes alone, averaged over good and bad times."""
        return (self.work + TURNS * self.loop_pass + (TURNS - 1) * self.wait) * (1 + self.slow) / 2

    def in_bad_times(self) -> Costs:
        return Costs(
            work=self.work * self.slow,
            wait=self.wait * self.slow,
            loop_pass=self.loop_pass * self.slow,
            rejection=self.rejection * self.slow,
            late=self.late * self.slow,
            stall=self.stall,
        )


@attrs.define
class Tally:
    """The outcomes of the requests."""

    seconds: float
    answered: int = 0
    late: int = 0
    rejected: int = 0

    @property
    def rate(self) -> float:
        """Answers per second."""
        return self.answered / self.seconds


@attrs.define(eq=False, kw_only=True)
class Stream:
    """Requests of one plan at a constant rate, each with the same deadline."""

    rate: float
    deadline: float
    costs: Costs = Costs()
    cold: float = 0.0  # seconds on the loop that the first request takes more than the others
    down: tuple[float, float] = (math.inf, math.inf)  # since when and until when the server answers nothing
    forecast: Forecast = attrs.field(factory=Forecast)
    made: int = 0  # in this run


@attrs.define(eq=False)
class Visit:
    """A request in progress."""

    stream: Stream
    deadline: float
    claim: Claim
    turns: int = 0  # done


class SimulatedLoop:
    """An engine on a loop of its own."""

    def __init__(self, *, limit: int = 64, max_queue: int = 64, seed: int = 0) -> None:
        self._now = 0.0  # when the pass began
        self._instant = 0.0  # within the pass
        self._meter = LoopMeter(self._clock)
        self._admission = Admission(
            limit, max_queue, meter=self._meter, pool=ThreadPool(1, self._clock), clock=self._clock
        )
        self._rng = random.Random(seed)
        self._spells = random.Random(0)  # the same in every run, so that runs can be compared
        self._slow = False  # in bad times
        self._change_at = SPELL
        self._ready: deque[Visit] = deque()
        self._away: list[tuple[float, int, Visit]] = []  # with the server, by when they are back
        self._waiting: deque[Visit] = deque()
        self._sent = 0

    def _clock(self) -> float:
        return self._instant

    def run(self, *streams: Stream, seconds: float) -> list[Tally]:
        """Continue from the end of the last run."""
        began = self._now
        tallies = {stream: Tally(seconds) for stream in streams}
        for stream in streams:
            stream.made = 0
        while self._now < began + seconds:
            if self._now >= self._change_at:
                self._slow = not self._slow
                self._change_at += self._spells.expovariate(1 / SPELL)
            self._instant = self._now
            self._meter.step(self._instant, None)
            arrived = []
            for stream in streams:
                due = int((self._now - began) * stream.rate)
                arrived += [stream] * (due - stream.made)
                stream.made = due
            self._rng.shuffle(arrived)
            for stream in arrived:
                self._arrive(stream, tallies[stream])
            while self._away and self._away[0][0] <= self._now:
                self._ready.append(heapq.heappop(self._away)[2])
            self._reject_hopeless(tallies)
            turns = list(self._ready)
            self._ready.clear()
            self._rng.shuffle(turns)  # as trio does
            for visit in turns:
                self._turn(visit, tallies[visit.stream])
            if self._instant > self._now:
                self._meter.step(self._instant, None)
                self._instant += max(self._costs(stream).loop_pass for stream in streams)
                self._meter.pause(self._instant)
                self._now = self._instant
            else:
                self._meter.pause(self._instant)
                due_at = min(began + (stream.made + 1) / stream.rate for stream in streams)
                self._now = max(self._now + 1e-7, min(due_at, self._back_at()))
        return list(tallies.values())

    def _costs(self, stream: Stream) -> Costs:
        return stream.costs.in_bad_times() if self._slow and stream.costs.slow != 1 else stream.costs

    def _back_at(self) -> float:
        return self._away[0][0] if self._away else math.inf

    def _arrive(self, stream: Stream, tally: Tally) -> None:
        deadline = self._now + stream.deadline
        try:
            claim = self._admission.ask(deadline, stream.forecast)
        except Overloaded:
            tally.rejected += 1
            self._instant += self._costs(stream).rejection
            return
        visit = Visit(stream, deadline, claim)
        if claim.has_slot():
            self._ready.append(visit)
        else:
            self._waiting.append(visit)
            claim.wake = lambda: self._called(visit)

    def _called(self, visit: Visit) -> None:
        self._waiting.remove(visit)
        self._ready.append(visit)

    def _reject_hopeless(self, tallies: dict[Stream, Tally]) -> None:
        for visit in [each for each in self._waiting if each.deadline - each.stream.forecast.alone <= self._now]:
            self._admission.withdraw(visit.claim)
            self._waiting.remove(visit)
            tallies[visit.stream].rejected += 1
            self._instant += 2 * self._costs(visit.stream).rejection

    def _turn(self, visit: Visit, tally: Tally) -> None:
        stream, costs, rng = visit.stream, self._costs(visit.stream), self._rng
        self._meter.step(self._instant, visit.claim)
        if visit.deadline <= self._instant:
            tally.late += 1
            self._admission.leave(visit.claim, in_time=False)
            self._instant += costs.late
            return
        self._instant += costs.work / TURNS * rng.lognormvariate(-0.03, 0.25) + stream.cold
        stream.cold = 0.0
        if rng.random() < costs.stall:
            self._instant += rng.random() * 0.003
        visit.turns += 1
        if visit.turns < TURNS:
            self._sent += 1
            back = self._instant + costs.wait * rng.lognormvariate(-0.03, 0.25)
            since, until = stream.down
            if since <= back < until:
                back = until
            # The deadline ends a request wherever it is.
            heapq.heappush(self._away, (min(back, max(visit.deadline, self._instant)), self._sent, visit))
            return
        in_time = self._instant < visit.deadline
        tally.answered += in_time
        tally.late += not in_time
        # What it used in this turn must be counted before it leaves.
        self._meter.step(self._instant, None)
        self._admission.leave(visit.claim, in_time=in_time)
