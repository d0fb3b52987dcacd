"""Twice the load that the engine can take, under a deadline of twice the time that a request takes alone."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from typing import Any

import attrs
import trio

from seedbed.errors import PlanError

from ..common import Bar, Table, expect
from .with_seedbed import OWN, open_engine, run
from .work import CHECKED, Load, percentile, user_of

LATE_BAR = 1.2  # p99 of what is answered ÷ deadline
THROUGHPUT_BAR = 0.8  # ÷ peak
UNLOADED = 0.05  # of the peak: requests that arrive alone, when the loop sleeps
TICK = 0.001
REFUSALS = {"OVERLOADED", "DEADLINE_EXCEEDED"}
PLACES = 64
"""How many requests the engine is let run at once, and how many may wait: as many as by default."""


@attrs.frozen
class Outcome:
    """What became of the requests that were made."""

    seconds: float
    latencies: list[float]  # of the answered, seconds
    errors: Counter[str]


async def peak(port: int, requests: int) -> float:
    """Requests a second that the engine can answer if nobody hurries it."""
    return (await run(Load(port=port, requests=requests, at_once=32, client=OWN))).per_second


async def arrive(port: int, *, rate: float, seconds: float, deadline: float | None, places: int) -> Outcome:
    """Let so many requests a second arrive, whatever becomes of those before."""
    latencies: list[float] = []
    errors: Counter[str] = Counter()
    load = Load(port=port, requests=0, at_once=places, client=OWN)
    async with open_engine(load, max_queue=places) as (engine, plan):

        async def make(number: int) -> None:
            began = time.perf_counter()
            try:
                response = await engine.execute(plan, {"user_id": user_of(number)}, deadline=deadline)
                expect(len(response.candidates) > 0, "an answer is empty")
            except PlanError as error:
                errors[error.code] += 1
            else:
                latencies.append(time.perf_counter() - began)

        for number in range(CHECKED):
            await engine.execute(plan, {"user_id": user_of(number)})
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            made = 0
            while (now := trio.current_time()) < began + seconds:
                due = int((now - began) * rate)
                for number in range(made, due):
                    nursery.start_soon(make, number)
                made = max(made, due)
                # No more than a thousand times a second, or waking up for arrivals would be most of the load.
                await trio.sleep_until(max(began + (made + 1) / rate, now + TICK))
        taken = trio.current_time() - began
    expect(made == len(latencies) + sum(errors.values()), "a request has no end")
    expect(errors.keys() <= REFUSALS, f"requests ended otherwise than they should: {errors}")
    return Outcome(taken, latencies, errors)


def measure(port: int, *, short: bool) -> tuple[list[Table], list[Bar]]:
    """From half the peak to twice; the bars are of the last. The peak is that of requests without a deadline."""
    requests, seconds, rounds = (50, 0.2, 1) if short else (2_000, 3.0, 3)
    most = max(trio.run(partial(peak, port, requests)) for _ in range(rounds))
    idle = partial(arrive, port, rate=most * UNLOADED, seconds=seconds, deadline=None, places=64)
    alone = min(percentile(trio.run(idle).latencies, 0.5) for _ in range(rounds))
    deadline = 2 * alone
    rows: list[dict[str, Any]] = []
    loads = (2.0,) if short else (0.5, 0.75, 1.0, 2.0)
    for load in loads:
        found = trio.run(partial(arrive, port, rate=load * most, seconds=seconds, deadline=deadline, places=PLACES))
        rows.append(
            {
                "load ÷ peak": load,
                "asked a second": load * most,
                "answered a second": len(found.latencies) / found.seconds,
                "answered ÷ peak": len(found.latencies) / found.seconds / most,
                "p99 of the answered ÷ deadline": percentile(found.latencies or [float("inf")], 0.99) / deadline,
                "refused": found.errors["OVERLOADED"],
                "too late": found.errors["DEADLINE_EXCEEDED"],
            }
        )
    twice = rows[-1]
    title = f"Overload: alone p50 {alone * 1000:.2f} ms, deadline {deadline * 1000:.2f} ms, peak {most:,.0f} a second"
    return [Table(title=title, rows=rows)], [
        Bar(name="p99 of the answered ÷ deadline", measured=twice["p99 of the answered ÷ deadline"], allowed=LATE_BAR),
        Bar(name="answered a second ÷ peak", measured=twice["answered ÷ peak"], allowed=THROUGHPUT_BAR, at_least=True),
    ]
