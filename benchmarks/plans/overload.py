"""Twice the load that the engine can take, under a deadline of twice the time that a request takes alone.

Requests are made by the process that answers them, in its own loop: what making them costs is the engine's loss, and
nothing is subtracted. The peak is what the same engine answers if 32 requests are under way all the time and none is in
a hurry; under overload, requests arrive at twice that rate, those that are due in a millisecond together, whatever
becomes of those before. A machine may be twice as fast in one second as in the next, so the two, and the time that a
request takes alone, are measured in turn many times over, every ratio is one of neighbours, and the bars are for the
medians.

With that deadline two or three requests can be under way at once, and the peak takes 32, which each take many times as
long; so the table also says what the most is that is answered in time at any of the loads.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import trio

from seedbed.errors import PlanError

from ..common import Bar, Table, expect
from .with_seedbed import OWN, open_engine
from .with_seedbed import measure as keep_busy
from .work import Load, percentile, user_of

if TYPE_CHECKING:
    from seedbed.plans.engine import PlanEngine
    from seedbed.plans.model import Plan

LATE_BAR = 1.2  # p99 of what is answered ÷ deadline
THROUGHPUT_BAR = 0.8  # ÷ peak
AT_ONCE = 32  # at the peak
TICK = 0.001
PAUSE = 0.005  # between requests that are to be alone: the loop sleeps
REFUSALS = {"OVERLOADED", "DEADLINE_EXCEEDED"}
PLACES = 64
"""How many requests the engine is let run at once, and how many may wait: as many run as by default."""


@attrs.frozen
class Outcome:
    """What became of the requests that were made."""

    seconds: float
    latencies: list[float]  # of the answered, seconds
    errors: Counter[str]


@attrs.frozen
class Round:
    """What was measured next to each other."""

    peak: float  # requests a second
    alone: float  # seconds, median
    under: dict[float, Outcome]  # by load ÷ peak


class Traffic:
    """Requests for one engine."""

    def __init__(self, engine: PlanEngine, plan: Plan, port: int) -> None:
        self._engine = engine
        self._plan = plan
        self._port = port

    async def answer(self, user_id: int) -> list[dict[str, Any]]:
        """One that has time enough, so that nobody has to be refused."""
        return (await self._engine.execute(self._plan, {"user_id": user_id}, deadline=10)).candidates

    async def peak(self, requests: int) -> float:
        """Requests a second that are answered if nobody hurries."""
        load = Load(port=self._port, requests=requests, at_once=AT_ONCE, client=OWN)
        return (await keep_busy(load, self.answer)).per_second

    async def alone(self, requests: int) -> float:
        """The median of seconds that a request takes if there is no other."""
        taken: list[float] = []
        for number in range(requests):
            await trio.sleep(PAUSE)
            began = time.perf_counter()
            await self.answer(user_of(number))
            taken.append(time.perf_counter() - began)
        return statistics.median(taken)

    async def arrive(self, *, rate: float, seconds: float, deadline: float) -> Outcome:
        """Let so many requests a second arrive, whatever becomes of those before."""
        latencies: list[float] = []
        errors: Counter[str] = Counter()

        async def make(number: int) -> None:
            began = time.perf_counter()
            try:
                response = await self._engine.execute(self._plan, {"user_id": user_of(number)}, deadline=deadline)
                expect(len(response.candidates) > 0, "an answer is empty")
            except PlanError as error:
                errors[error.code] += 1
            else:
                latencies.append(time.perf_counter() - began)

        began = trio.current_time()
        made = 0
        async with trio.open_nursery() as nursery:
            while (now := trio.current_time()) < began + seconds:
                due = int((now - began) * rate)
                for number in range(made, due):
                    nursery.start_soon(make, number)
                made = max(made, due)
                # No more than a thousand times a second, or waking up for arrivals would be much of the load.
                await trio.sleep_until(max(began + (made + 1) / rate, now + TICK))
        taken = trio.current_time() - began
        expect(made == len(latencies) + sum(errors.values()), "a request has no end")
        expect(errors.keys() <= REFUSALS, f"requests ended otherwise than they should: {errors}")
        return Outcome(taken, latencies, errors)


async def run(port: int, *, loads: tuple[float, ...], rounds: int, requests: int, seconds: float) -> list[Round]:
    """All rounds, with one engine; the first is not counted, since the engine does not know its requests yet."""
    found: list[Round] = []
    knobs = Load(port=port, requests=0, at_once=PLACES, client=OWN)
    async with open_engine(knobs, max_queue=PLACES) as (engine, plan):
        traffic = Traffic(engine, plan, port)
        for _ in range(rounds + 1):
            alone, peak = await traffic.alone(requests // 10), await traffic.peak(requests)
            under = {
                load: await traffic.arrive(rate=load * peak, seconds=seconds, deadline=2 * alone) for load in loads
            }
            found.append(Round(peak, alone, under))
    return found[1:]


def row(load: float, rounds: list[Round]) -> dict[str, Any]:
    """One load, in the median of the rounds."""
    outcomes = [each.under[load] for each in rounds]
    answered = [len(outcome.latencies) / outcome.seconds for outcome in outcomes]
    ratios = [each / one.peak for each, one in zip(answered, rounds, strict=True)]
    late = [
        percentile(outcome.latencies or [float("inf")], 0.99) / (2 * one.alone)
        for outcome, one in zip(outcomes, rounds, strict=True)
    ]
    made = sum(len(outcome.latencies) + sum(outcome.errors.values()) for outcome in outcomes)
    return {
        "load ÷ peak without a deadline": load,
        "answered a second": statistics.median(answered),
        "answered ÷ peak": statistics.median(ratios),
        "least": min(ratios),
        "most": max(ratios),
        "p99 of the answered ÷ deadline": statistics.median(late),
        "refused, %": 100 * sum(outcome.errors["OVERLOADED"] for outcome in outcomes) / made,
        "too late, %": 100 * sum(outcome.errors["DEADLINE_EXCEEDED"] for outcome in outcomes) / made,
    }


def measure(port: int, *, short: bool) -> tuple[list[Table], list[Bar]]:
    """From half the peak to twice; the bars are of the last."""
    loads = (2.0,) if short else (0.5, 0.75, 1.0, 2.0)
    rounds, requests, seconds = (1, 50, 0.2) if short else (15, 400, 0.5)
    found = trio.run(partial(run, port, loads=loads, rounds=rounds, requests=requests, seconds=seconds))
    rows = [row(load, found) for load in loads]
    alone = statistics.median(each.alone for each in found)
    peak = statistics.median(each.peak for each in found)
    title = (
        f"Overload: alone {alone * 1000:.2f} ms, deadline twice that, peak {peak:,.0f} a second, "
        f"medians of {rounds} round{'s' if rounds > 1 else ''}"
    )
    twice = rows[-1]
    most = max(each["answered ÷ peak"] for each in rows)
    for each in rows:
        each["answered ÷ the most"] = each["answered ÷ peak"] / most if most else 0.0
    return [Table(title=title, rows=rows)], [
        Bar(name="p99 of the answered ÷ deadline", measured=twice["p99 of the answered ÷ deadline"], allowed=LATE_BAR),
        Bar(name="answered a second ÷ peak", measured=twice["answered ÷ peak"], allowed=THROUGHPUT_BAR, at_least=True),
    ]
