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
REFUSALS = {"OVERLOADED", "DEADLINE_EXCEEDED"}
PLACES = (2, 3, 4, 6, 8)
"""How many requests the engine is let run at once: with so short a deadline, few have the time to share a core."""


@attrs.frozen
class Outcome:
    """What became of the requests that were made."""

    seconds: float
    latencies: list[float]  # of the answered, seconds
    errors: Counter[str]


async def unloaded_p50(port: int, requests: int) -> float:
    """Seconds that a request takes alone."""
    return (await run(Load(port=port, requests=requests, at_once=1, client=OWN))).p50_ms / 1000


async def peak(port: int, requests: int) -> float:
    """Requests a second that the engine can answer if nobody hurries it."""
    return (await run(Load(port=port, requests=requests, at_once=32, client=OWN))).per_second


async def overload(port: int, *, rate: float, seconds: float, deadline: float, places: int) -> Outcome:
    """Make so many requests a second, whatever becomes of those before."""
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
                await trio.sleep_until(began + (made + 1) / rate)
        taken = trio.current_time() - began
    expect(made == len(latencies) + sum(errors.values()), "a request has no end")
    expect(errors.keys() <= REFUSALS, f"requests ended otherwise than they should: {errors}")
    return Outcome(taken, latencies, errors)


def measure(port: int, *, short: bool) -> tuple[list[Table], list[Bar]]:
    """The best of the numbers of places; the bars are of that one."""
    requests, seconds, rounds = (50, 0.2, 1) if short else (2_000, 3.0, 3)
    alone = min(trio.run(partial(unloaded_p50, port, requests // 4)) for _ in range(rounds))
    most = max(trio.run(partial(peak, port, requests)) for _ in range(rounds))
    deadline = 2 * alone
    rows: list[dict[str, Any]] = []
    for places in PLACES[:1] if short else PLACES:
        found = trio.run(partial(overload, port, rate=2 * most, seconds=seconds, deadline=deadline, places=places))
        late = percentile(found.latencies, 0.99) / deadline if found.latencies else float("inf")
        rows.append(
            {
                "places": places,
                "asked a second": 2 * most,
                "answered a second": len(found.latencies) / found.seconds,
                "÷ peak": len(found.latencies) / found.seconds / most,
                "p99 of the answered ÷ deadline": late,
                "refused": found.errors["OVERLOADED"],
                "too late": found.errors["DEADLINE_EXCEEDED"],
            }
        )
    best = max(rows, key=lambda row: row["÷ peak"])
    title = f"Overload: alone p50 {alone * 1000:.2f} ms, deadline {deadline * 1000:.2f} ms, peak {most:,.0f} a second"
    return [Table(title=title, rows=rows)], [
        Bar(name="p99 of the answered ÷ deadline", measured=best["p99 of the answered ÷ deadline"], allowed=LATE_BAR),
        Bar(name="answered a second ÷ peak", measured=best["÷ peak"], allowed=THROUGHPUT_BAR, at_least=True),
    ]
