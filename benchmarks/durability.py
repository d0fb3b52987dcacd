"""The cost of the journal, and how soon a killed run resumes.

The diamond of four cell columns with one key, each cell a text of 200 characters, into a directory: with the journal
(`durability="cell"`) against whole row groups. First without any latency, where only the journal differs, then with
50 ms a call, as a model would take. Then a million finished cells: a child process is killed with SIGKILL when it has
them, and the time from the start of the resume to its first call is measured; once with all of them in one open row
group, where each is replayed, once in row groups of the default size, nearly all of them in parts.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

import seedbed
from seedbed import Column, RunConfig

from .common import Bar, Findings, Table, best_of, cpu_seconds, expect, limits, main

if TYPE_CHECKING:
    import polars as pl

# Where the texts of cells are cut from, so that they compress no better than language does.
WORDS = " ".join(
    random.Random(7).choices(["tea", "bread", "rain", "of", "and", "harvest", "slow", "11", "why"], k=200_000)
)
AT_ONCE = 32
CPU_BAR = 1.15
WALL_BAR = 1.03
RESUME_BAR = 10.0
JOURNAL = ".seedbed/journal-*.log"


def numbers(rows: range) -> list[int]:
    """Row numbers."""
    return list(rows)


def cell_columns(latency: float) -> list[Column]:
    """A diamond: one, two that need it, one that needs both."""

    async def ask(label: str, n: int) -> str:
        if latency:
            await trio.sleep(latency)
        at = (n * 7919 + len(label)) % (len(WORDS) - 190)
        return f"{label} {n:6d} {WORDS[at : at + 190]}"

    async def first(n: int) -> str:
        return await ask("first", n)

    async def left(n: int, first: str) -> str:
        return await ask("left" + first[:0], n)

    async def right(n: int, first: str) -> str:
        return await ask("right" + first[:0], n)

    async def last(n: int, left: str, right: str) -> str:
        return await ask("last" + left[:0] + right[:0], n)

    cells = [Column(function.__name__, function, key="key") for function in (first, left, right, last)]
    return [Column("n", numbers, kind="from_scratch"), *cells]


async def build(rows: int, latency: float, durability: str, out: Path) -> float:
    """Build and return how long it took."""
    columns = cell_columns(latency)
    config = RunConfig(durability=durability)
    started = trio.current_time()
    dataset = await seedbed.build_async(columns, rows=rows, out=out, config=config, limits=limits(columns, AT_ONCE))
    seconds = trio.current_time() - started
    report = dataset.report
    expect(report is not None and report.written == rows, "rows are missing")
    expect(report is not None and report.durable == rows * 5, "a finished build has cells that are not durable")
    return seconds


def measured(rows: int, latency: float, durability: str, *, wall: bool) -> float:
    """Processor time or seconds of one build into a directory of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        cpu, seconds = cpu_seconds(partial(trio.run, build, rows, latency, durability, out))
        left = [path.name for path in out.glob(JOURNAL)]
        expect(not left, f"a finished build left {left} behind")
    return seconds if wall else cpu


class LastCell:
    """The last column: in the last row it kills the process, or notes when it was called and ends the run."""

    def __init__(self, rows: int, *, kill: bool) -> None:
        self.last_row = rows - 1
        self.kill = kill
        self.called = 0.0
        self.build: seedbed.Build | None = None

    async def agenerate(self, n: int, everything: int) -> int:
        if n != self.last_row:
            return everything
        if self.kill:
            await trio.sleep(1)  # everything before it is committed
            os.kill(os.getpid(), signal.SIGKILL)
        self.called = trio.current_time()
        assert self.build is not None
        self.build.stop()
        self.build.stop()
        return everything


def row_numbers(frame: pl.DataFrame) -> list[int]:
    """A whole column, which waits for every cell of its row group."""
    return frame["n"].to_list()


def stopped_columns(last_cell: LastCell) -> list[Column]:
    """The diamond, a whole column after it, and a cell after that."""
    everything = Column("everything", row_numbers, kind="full_column", requires=("n", "last"))
    return [*cell_columns(0.0), everything, Column("last_cell", last_cell)]


def fill(out: Path, rows: int, buffer_size: int) -> None:
    """Build until the last column begins in the last row group; never returns."""
    columns = stopped_columns(LastCell(rows, kill=True))
    config = RunConfig(buffer_size=buffer_size)
    seedbed.build(columns, rows=rows, out=out, config=config, limits=limits(columns, AT_ONCE), progress="none")


async def time_to_first_call(out: Path, rows: int) -> tuple[float, int]:
    """Seconds from the start of a resume to its first call, and how many finished cells it ran again."""
    last_cell = LastCell(rows, kill=False)
    columns = stopped_columns(last_cell)
    started = trio.current_time()
    try:
        async with seedbed.open_build(
            columns, rows=rows, out=out, resume=True, limits=limits(columns, AT_ONCE)
        ) as last_cell.build:
            await last_cell.build.wait()
    except seedbed.Interrupted:
        pass
    expect(last_cell.called > 0, "the resumed run did not come to its last cell")
    assert last_cell.build is not None
    return last_cell.called - started, sum(last_cell.build.report.attempts.values()) - 1


def resumed(rows: int, buffer_size: int) -> dict[str, object]:
    """Kill a build when it has four cells in each row, and resume it."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        command = [sys.executable, "-m", "benchmarks.durability", "--fill", str(out), str(rows), str(buffer_size)]
        ended = subprocess.run(command, check=False)
        expect(ended.returncode == -signal.SIGKILL, f"the child was not killed, it ended with {ended.returncode}")
        journal = journal_size(out)
        parts = sum(path.stat().st_size for path in out.glob("*.parquet"))
        seconds, made = trio.run(time_to_first_call, out, rows)
        expect(made == 0, f"{made} tasks were run again")
    return {
        "row groups of": buffer_size,
        "finished cells": rows * 4,
        "seconds to the first call": seconds,
        "journal, MB": journal / 1e6,
        "parts, MB": parts / 1e6,
    }


def journal_size(out: Path) -> int:
    """How many bytes the journal has; a segment may go while they are counted."""
    sizes = [0]
    for path in out.glob(JOURNAL):
        with contextlib.suppress(FileNotFoundError):
            sizes.append(path.stat().st_size)
    return sum(sizes)


def size_table(rows: int) -> Table:
    """The journal of an open row group against the parquet of the same cells."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        largest = 0

        def watch(_event: object) -> None:
            nonlocal largest
            largest = max(largest, journal_size(out))

        columns = cell_columns(0.0)
        seedbed.build(columns, rows=rows, out=out, limits=limits(columns, AT_ONCE), readers=[watch], progress="none")
        parts = sum(path.stat().st_size for path in out.glob("*.parquet"))
    return Table(
        title=f"Bytes on disk, {rows:,} rows in row groups of 1,000, three at once",
        rows=[
            {"": "journal at its largest", "MB": largest / 1e6, "bytes a cell of text": largest / (3_000 * 4)},
            {"": "parquet, compressed", "MB": parts / 1e6, "bytes a cell of text": parts / (rows * 4)},
        ],
    )


def measure(short: bool) -> Findings:
    """Compare both durabilities, and resume killed builds."""
    rows, rounds = (200, 1) if short else (10_000, 5)
    cpu = best_of(
        rounds,
        {name: partial(measured, rows, 0.0, name, wall=False) for name in ("row_group", "cell")},
    )
    calls, rounds = (64, 1) if short else (1_000, 3)
    wall = best_of(
        rounds,
        {name: partial(measured, calls, 0.05, name, wall=True) for name in ("row_group", "cell")},
    )
    tables = [
        Table(
            title=f"CPU per cell without latency, {rows:,} rows × 5 columns",
            rows=[
                {"": name, "µs": seconds / rows / 5 * 1e6, "÷ row_group": seconds / cpu["row_group"]}
                for name, seconds in cpu.items()
            ],
        ),
        Table(
            title=f"Seconds at 50 ms a call, {AT_ONCE} at once, {calls:,} rows × 4 calls",
            rows=[
                {"": name, "s": seconds, "÷ row_group": seconds / wall["row_group"]} for name, seconds in wall.items()
            ],
        ),
    ]
    million = 500 if short else 250_000
    resumes = [resumed(million, million), resumed(million, max(1, million // 250))]
    tables += [Table(title="Resume after SIGKILL", rows=resumes), size_table(3_000 if short else 30_000)]
    slowest = max(float(str(each["seconds to the first call"])) for each in resumes)
    return Findings(
        tables=tables,
        bars=[
            Bar(name="CPU per cell, journal ÷ row groups", measured=cpu["cell"] / cpu["row_group"], allowed=CPU_BAR),
            Bar(
                name="wall at 50 ms, journal ÷ row groups", measured=wall["cell"] / wall["row_group"], allowed=WALL_BAR
            ),
            Bar(name="seconds to the first call after 1,000,000 cells", measured=slowest, allowed=RESUME_BAR),
        ],
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--fill"]:
        fill(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    sys.exit(main("durability", measure))
