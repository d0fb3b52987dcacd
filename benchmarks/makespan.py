"""How near a build comes to the shortest time in which its calls could be made at all.

2,000 rows of the diamond on the real clock: A is made from scratch, each cell of the others is a call as long as a
latency drawn beforehand: constant, or log-normal with a heavy tail. All calls share one key, or B and C have one and D
and E another; a key takes 128 calls at once. Beside it what a schedule without any cost would reach, and the same calls
made column by column, by hand, and one after the other, with `engine="sequential"`.

What no engine that cannot see into the future, or no single core, could meet is shown and not judged: a tail so heavy
that the last calls decide (σ = 1, and σ = 0.5 where a second key waits for the first), where the free schedule itself
stays below the bar; and keys that together make over 4,000 calls a second (two, or one a column, at 50 ms).
"""

from __future__ import annotations

import heapq
import math
import random
import sys
from collections import deque
from typing import TYPE_CHECKING

import trio

from seedbed import Column, RunConfig

from .common import (
    DIAMOND,
    Bar,
    Findings,
    Table,
    build_in_memory,
    expect,
    expect_row_numbers,
    main,
    make_columns,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .common import Function

AT_ONCE = 128
BARS = {0.5: 0.95, 0.05: 0.85}  # share of the bound, by mean latency
# Standard deviation of the logarithm. At 0.5 one call in a thousand takes over 4 times the mean, at 1 over 13 times.
SPREADS = {"constant": 0.0, "log-normal, σ 0.5": 0.5, "log-normal, σ 1": 1.0}
# Which are judged: the largest spread by keys, and the keys by mean latency.
JUDGED_SPREAD = {"one": 0.5, "two": 0.0}
JUDGED_KEYS = {0.5: ("one", "two"), 0.05: ("one",)}
KEYS: dict[str, Callable[[str], str]] = {
    "one": lambda _: "key",
    "two": lambda column: "writer" if column in "bc" else "judge",
    "one a column": str,
}
CALLS: dict[str, tuple[str, ...]] = {name: requires for name, requires in DIAMOND.items() if requires}

Latencies = dict[str, list[float]]  # of each row, by column


def draw(spread: float, mean: float, rows: int) -> Latencies:
    """Latencies of every cell; the same in every run. A takes no time."""
    rng = random.Random(2)
    middle = math.log(mean) - spread**2 / 2
    drawn = {name: [rng.lognormvariate(middle, spread) for _ in range(rows)] for name in CALLS}
    return {"a": [0.0] * rows, **drawn}


def heads(latencies: Latencies) -> Latencies:
    """The earliest instant at which each cell could start, if nothing but its inputs held it up."""
    starts: Latencies = {}
    for name, requires in DIAMOND.items():
        ends = [[starts[each][row] + latencies[each][row] for each in requires] for row in range(len(latencies[name]))]
        starts[name] = [max(each, default=0.0) for each in ends]
    return starts


def tails(latencies: Latencies) -> Latencies:
    """The least time from the end of each cell to the end of its row."""
    left: Latencies = {}
    for name in reversed(list(DIAMOND)):
        after = [each for each, requires in DIAMOND.items() if name in requires]
        left[name] = [
            max((latencies[each][row] + left[each][row] for each in after), default=0.0)
            for row in range(len(latencies[name]))
        ]
    return left


def lower_bound(latencies: Latencies, key: Callable[[str], str]) -> float:
    """No run can be shorter.

    For each key: its first call cannot start before its inputs can be there, its work takes 128 at a time, and after
    its last call the row of that call has still to be finished. And no run is shorter than its longest row.
    """
    head, tail = heads(latencies), tails(latencies)
    bound = 0.0
    for used in {key(name) for name in CALLS}:
        names = [name for name in CALLS if key(name) == used]
        start = min(min(head[name]) for name in names)
        work = sum(sum(latencies[name]) for name in names)
        out = min(min(tail[name]) for name in names)
        bound = max(bound, start + work / AT_ONCE + out)
    rows = range(len(latencies["a"]))
    longest = max(head[name][row] + latencies[name][row] + tail[name][row] for name in DIAMOND for row in rows)
    return max(bound, longest)


def greedy_schedule(latencies: Latencies, key: Callable[[str], str]) -> float:
    """Seconds of the schedule that starts every cell as soon as its inputs and a place are there, oldest first.

    It is computed and not run, so it has no cost and grows no limit; but like the engine it does not know how long a
    call will take, which the lower bound does. Where calls differ much, the last of them are long by chance, and this
    is as near to the bound as can be hoped for.
    """
    dependents = {name: [each for each, requires in DIAMOND.items() if name in requires] for name in DIAMOND}
    # A is there from the start.
    missing = {name: [len(requires)] * len(latencies[name]) for name, requires in CALLS.items()}
    ready: dict[str, deque[tuple[str, int]]] = {key(name): deque() for name in CALLS}
    in_flight = dict.fromkeys(ready, 0)
    ends: list[tuple[float, str, int]] = []  # a heap
    now = 0.0
    for row in range(len(latencies["a"])):
        for name in dependents["a"]:
            ready[key(name)].append((name, row))
    while True:
        for used, queue in ready.items():
            while queue and in_flight[used] < AT_ONCE:
                name, row = queue.popleft()
                in_flight[used] += 1
                heapq.heappush(ends, (now + latencies[name][row], name, row))
        if not ends:
            return now
        now, name, row = heapq.heappop(ends)
        in_flight[key(name)] -= 1
        for dependent in dependents[name]:
            missing[dependent][row] -= 1
            if not missing[dependent][row]:
                ready[key(dependent)].append((dependent, row))


def sleep_for(latencies: Latencies) -> Callable[[str], Function]:
    """Functions that take as long as was drawn; the value of every cell is the number of its row."""

    def fill(name: str) -> Function:
        async def one(row: int) -> int:
            await trio.sleep(latencies[name][row])
            return row

        async def two(row: int, same: int) -> int:
            expect(row == same, f"a cell of row {row} got an input of row {same}")
            return await one(row)

        return one if len(CALLS[name]) == 1 else two

    return fill


async def row_numbers(rows: Sequence[int]) -> list[int]:
    """What A holds."""
    return list(rows)


async def engine(latencies: Latencies, key: Callable[[str], str], rows: int, config: RunConfig) -> float:
    """Seconds that a build takes."""
    columns = [Column("a", row_numbers, kind="from_scratch"), *make_columns(CALLS, sleep_for(latencies), key)]
    finished = await build_in_memory(columns, rows=rows, at_once=AT_ONCE, config=config)
    expect_row_numbers(finished)
    return finished.seconds


async def column_by_column(latencies: Latencies) -> float:
    """Seconds that the same calls take when each column waits for all rows of the one before; keys do not matter."""
    limiter = trio.CapacityLimiter(AT_ONCE)

    async def call(row: int, seconds: float) -> None:
        await trio.sleep(seconds)
        limiter.release_on_behalf_of(row)

    started = trio.current_time()
    for column in (latencies[name] for name in CALLS):
        async with trio.open_nursery() as nursery:
            for row, seconds in enumerate(column):
                await limiter.acquire_on_behalf_of(row)
                nursery.start_soon(call, row, seconds)
    return trio.current_time() - started


def sequentially(latencies: Latencies, seconds: float) -> float:
    """Seconds that `engine="sequential"` would take for all rows, from as many as it makes in about `seconds`."""
    rows = range(len(latencies["a"]))
    work = [sum(column[row] for column in latencies.values()) for row in rows]
    tried = max(1, sum(1 for row in rows if sum(work[: row + 1]) <= seconds))
    taken = trio.run(engine, latencies, lambda _: "key", tried, RunConfig(engine="sequential"))
    return float(taken / sum(work[:tried]) * sum(work))


def measure(short: bool) -> Findings:
    """Compare wall time and lower bound for all latencies and ways to share keys."""
    rows = 300 if short else 2_000
    table: list[dict[str, object]] = []
    bars: list[Bar] = []
    for mean, bar in ({0.005: 0.0} if short else BARS).items():
        for latency, spread in SPREADS.items():
            latencies = draw(spread, mean, rows)
            by_column = trio.run(column_by_column, latencies)
            in_sequence = sequentially(latencies, mean * 15)
            for keys, key in KEYS.items():
                judged = keys in JUDGED_KEYS.get(mean, ()) and spread <= JUDGED_SPREAD[keys]
                bound = lower_bound(latencies, key)
                # Short runs feel every hiccup of the machine; the best of three shows the engine.
                rounds = 3 if mean < 0.1 and not short else 1
                wall = min(trio.run(engine, latencies, key, rows, RunConfig()) for _ in range(rounds))
                table.append(
                    {
                        "latency": latency,
                        "mean, ms": round(mean * 1000),
                        "keys": keys,
                        "bound, s": bound,
                        "engine, s": wall,
                        "bound ÷ engine": bound / wall,
                        "bound ÷ greedy": bound / greedy_schedule(latencies, key),
                        "bar": bar if judged else "none",
                        "column by column, s": by_column,
                        "sequential, s (from a few rows)": in_sequence,
                    }
                )
                if judged:
                    name = f"{latency} {mean * 1000:.0f} ms, keys: {keys}: lower bound ÷ wall time"
                    bars.append(Bar(name=name, measured=bound / wall, allowed=bar, at_least=True))
    title = f"Wall time, {rows:,} rows × {len(CALLS)} columns of calls, {AT_ONCE} at once per key"
    return Findings(tables=[Table(title=title, rows=table)], bars=bars)


if __name__ == "__main__":
    sys.exit(main("makespan", measure))
