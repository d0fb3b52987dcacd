"""Twice the load that the engine can take, under a deadline of twice the time that a request takes alone.

Requests arrive at twice the rate that the engine answers with 32 in flight and no deadline, those that are due in the
same millisecond together, whether or not earlier ones have ended. The process that answers them sends them, on its
loop.

The answered rate is compared with the most that the engine can answer within that deadline: the best number of
requests is in flight all the time, all others are dropped on arrival, and the answers in time are counted. It is not
the rate with 32 in flight, which is in the table too: 32 share each send, each read and each turn of the loop, which
saves a third of the work, but each takes many times the deadline. With N in flight that take L seconds each, N / L a
second are answered, whatever rule admits them; so a deadline is a limit on N.

A machine may be twice as fast in one second as in the next, so all of this is measured in short turns, many times over,
and each figure is that of all turns together.
"""

from __future__ import annotations

import itertools
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
from .work import Load, check, percentile, user_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from seedbed.plans.engine import PlanEngine
    from seedbed.plans.format import Plan

LATE_BAR = 1.2  # p99 of what is answered ÷ deadline
THROUGHPUT_BAR = 0.8  # ÷ the most that can be in time
MANY = 32  # in flight, without a deadline
FEW = (1, 2, 3, 4)  # in flight, under the deadline
TICK = 0.001
PAUSE = 0.005  # between requests that are to be alone: the loop sleeps
REJECTIONS = {"OVERLOADED", "DEADLINE_EXCEEDED"}
SLOTS = 64
"""How many requests run at once, as by default, and how many may wait."""


@attrs.frozen
class Outcome:
    """The outcomes of the requests that were sent."""

    seconds: float
    latencies: list[float]  # of the answered, seconds
    errors: Counter[str]


@attrs.frozen
class Round:
    """What was measured next to each other."""

    rate: float  # requests a second with many at once and without a deadline
    alone: float  # seconds, median
    in_time: dict[int, float]  # requests a second that are within the deadline, by how many are at once
    under: dict[float, Outcome]  # by load ÷ rate


class Traffic:
    """Requests for one engine."""

    def __init__(self, engine: PlanEngine, plan: Plan) -> None:
        self._engine = engine
        self._plan = plan

    async def answer(self, user_id: int) -> list[dict[str, Any]]:
        """Answer a request whose deadline leads to no rejection."""
        return (await self._engine.execute(self._plan, {"user_id": user_id}, deadline=10)).candidates

    async def keep_busy(self, requests: int, at_once: int) -> float:
        """Requests a second that are answered if so many are under way all the time and none is in a hurry."""
        began = time.perf_counter()
        await self._work(iter(range(requests)), at_once)
        return requests / (time.perf_counter() - began)

    async def in_time(self, at_once: int, *, rate: float, seconds: float, deadline: float) -> float:
        """Requests a second that are answered in time if so many are under way, whatever else arrives."""
        ends = trio.current_time() + seconds
        numbers = itertools.takewhile(lambda _: trio.current_time() < ends, itertools.count())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(_arrivals, _drop, rate=rate, seconds=seconds))
            latencies = await self._work(numbers, at_once)
        return sum(taken <= deadline for taken in latencies) / (trio.current_time() - ends + seconds)

    async def _work(self, numbers: Iterator[int], at_once: int) -> list[float]:
        latencies: list[float] = []

        async def work() -> None:
            for number in numbers:
                began = time.perf_counter()
                await self.answer(user_of(number))
                latencies.append(time.perf_counter() - began)

        async with trio.open_nursery() as nursery:
            for _ in range(at_once):
                nursery.start_soon(work)
        return latencies

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
        made = await _arrivals(make, rate=rate, seconds=seconds)
        taken = trio.current_time() - began
        expect(made == len(latencies) + sum(errors.values()), "a request has no end")
        expect(errors.keys() <= REJECTIONS, f"requests ended in unexpected errors: {errors}")
        return Outcome(taken, latencies, errors)


async def _arrivals(make: Callable[[int], Awaitable[None]], *, rate: float, seconds: float) -> int:
    """Make so many requests a second, and wait until all of them have ended; says how many there were."""
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
    return made


async def _drop(_number: int) -> None:
    pass


async def run(port: int, *, loads: tuple[float, ...], rounds: int, requests: int, seconds: float) -> list[Round]:
    """All rounds, with one engine; the first is not counted, since the engine does not know its requests yet."""
    found: list[Round] = []
    settings = Load(port=port, requests=0, at_once=SLOTS, client=OWN)
    async with open_engine(settings, max_queue=SLOTS) as (engine, plan):
        traffic = Traffic(engine, plan)
        await check(traffic.answer)
        for _ in range(rounds + 1):
            alone, rate = await traffic.alone(requests // 10), await traffic.keep_busy(requests, MANY)
            deadline = 2 * alone
            in_time = {
                few: await traffic.in_time(few, rate=2 * rate, seconds=seconds / 2, deadline=deadline) for few in FEW
            }
            under = {load: await traffic.arrive(rate=load * rate, seconds=seconds, deadline=deadline) for load in loads}
            found.append(Round(rate, alone, in_time, under))
    return found[1:]


def row(load: float, rounds: list[Round], most: float) -> dict[str, Any]:
    """One load, over all rounds."""
    outcomes = [each.under[load] for each in rounds]
    answered = statistics.mean(len(outcome.latencies) / outcome.seconds for outcome in outcomes)
    late = [
        latency / (2 * one.alone)
        for outcome, one in zip(outcomes, rounds, strict=True)
        for latency in outcome.latencies
    ]
    made = sum(len(outcome.latencies) + sum(outcome.errors.values()) for outcome in outcomes)
    return {
        f"load ÷ rate with {MANY} at once": load,
        "answered a second": answered,
        "÷ the most that can be in time": answered / most,
        f"÷ rate with {MANY} at once": answered / statistics.mean(each.rate for each in rounds),
        "p99 of the answered ÷ deadline": percentile(late or [float("inf")], 0.99),
        "rejected, %": 100 * sum(outcome.errors["OVERLOADED"] for outcome in outcomes) / made,
        "too late, %": 100 * sum(outcome.errors["DEADLINE_EXCEEDED"] for outcome in outcomes) / made,
    }


def measure(port: int, *, short: bool) -> tuple[list[Table], list[Bar]]:
    """From half the rate to twice; the bars are of the last."""
    loads = (2.0,) if short else (0.5, 0.75, 1.0, 2.0)
    rounds, requests, seconds = (1, 50, 0.2) if short else (40, 150, 0.25)
    found = trio.run(partial(run, port, loads=loads, rounds=rounds, requests=requests, seconds=seconds))
    rate = statistics.mean(each.rate for each in found)
    in_time = {few: statistics.mean(each.in_time[few] for each in found) for few in FEW}
    best = max(FEW, key=lambda few: in_time[few])
    rows = [row(load, found, in_time[best]) for load in loads]
    alone = statistics.mean(each.alone for each in found)
    title = (
        f"alone {alone * 1000:.2f} ms, deadline twice that, {rate:,.0f} a second with {MANY} at once, "
        f"means of {rounds} round{'s' if rounds > 1 else ''}"
    )
    twice = rows[-1]
    return [
        Table(
            title=f"What can be in time, without rejections: {title}",
            rows=[
                {"at once": few, "in time a second": each, f"÷ rate with {MANY} at once": each / rate}
                for few, each in in_time.items()
            ],
        ),
        Table(title=f"Overload: {title}; the most is in time with {best} at once", rows=rows),
    ], [
        Bar(name="p99 of the answered ÷ deadline", measured=twice["p99 of the answered ÷ deadline"], allowed=LATE_BAR),
        Bar(
            name="answered a second ÷ the most that can be in time",
            measured=twice["÷ the most that can be in time"],
            allowed=THROUGHPUT_BAR,
            at_least=True,
        ),
    ]
