"""What the engine costs per cell, against the bare loop that does only what no design can avoid.

20,000 rows of five columns that do nothing. The loop spawns, for as many cells, a trio task that enters a cancel scope,
takes and releases a limiter and sends on a memory channel.
"""

from __future__ import annotations

import math
import sys
from functools import partial

import trio

from seedbed import RunConfig

from .common import (
    DIAMOND,
    Bar,
    Findings,
    Table,
    best_of,
    build_in_memory,
    count_paths,
    counted_paths,
    cpu_seconds,
    expect,
    main,
    make_columns,
)

AT_ONCE = 128
BAR = 2.0


async def bare_loop(cells: int) -> None:
    """Run that many tasks, 128 at once; completions are drained as they come."""
    limiter = trio.CapacityLimiter(AT_ONCE)
    send, receive = trio.open_memory_channel[int](math.inf)

    async def cell(index: int) -> None:
        with trio.CancelScope():
            async with limiter:
                pass
        send.send_nowait(index)

    started = done = 0
    async with trio.open_nursery() as nursery:
        while done < cells:
            while started < cells and started - done < AT_ONCE:
                nursery.start_soon(cell, started)
                started += 1
            await receive.receive()
            done += 1
            while True:
                try:
                    receive.receive_nowait()
                except trio.WouldBlock:
                    break
                done += 1


def bare_cpu(cells: int) -> float:
    """CPU of the bare loop."""
    return cpu_seconds(partial(trio.run, bare_loop, cells))[0]


def engine_cpu(rows: int, key: str | None) -> float:
    """CPU of building the diamond; all columns have the same key, or none."""
    columns = make_columns(DIAMOND, count_paths(DIAMOND), lambda _: key)
    build = partial(build_in_memory, columns, rows=rows, at_once=AT_ONCE, config=RunConfig())
    cpu, finished = cpu_seconds(partial(trio.run, build))
    for name, value in counted_paths(DIAMOND).items():
        expect(finished.values()[name] == [value] * rows, f"column {name!r} is not {value} everywhere")
    return cpu


def measure(short: bool) -> Findings:
    """Compare the engine, with and without a throttle key, with the bare loop."""
    rows, rounds = (500, 1) if short else (20_000, 12)
    cells = rows * len(DIAMOND)
    best = best_of(
        rounds,
        {
            "bare loop": partial(bare_cpu, cells),
            "engine, one key": partial(engine_cpu, rows, "key"),
            "engine, no key": partial(engine_cpu, rows, None),
        },
    )
    bare = best["bare loop"]
    table = Table(
        title=f"CPU per cell, {rows:,} rows × {len(DIAMOND)} columns, best of {rounds}",
        rows=[{"": name, "µs": cpu / cells * 1e6, "÷ bare": cpu / bare} for name, cpu in best.items()],
    )
    return Findings(
        tables=[table],
        bars=[Bar(name="CPU per cell with a key ÷ bare loop", measured=best["engine, one key"] / bare, allowed=BAR)],
    )


if __name__ == "__main__":
    sys.exit(main("overhead", measure))
