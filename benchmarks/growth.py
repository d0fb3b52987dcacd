"""Whether a cell costs the same in a large build as in a small one, on disk and with checkpoints.

CPU per cell of many rows against few and of many columns against few, each time with the same number of cells: one
large build against as many small ones as make up for it. And the peak of memory, which is what the admitted row groups
need, however many rows there are.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import trio

import seedbed
from seedbed import CellContext, Column, Dataset, RunConfig

from .common import (
    DIAMOND,
    Bar,
    Findings,
    Table,
    best_of,
    count_paths,
    counted_paths,
    cpu_seconds,
    expect,
    limits,
    main,
    make_columns,
    row_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .common import Function, Graph

AT_ONCE = 128
ROWS_BAR = 1.15
COLUMNS_BAR = 1.3
MEMORY_BAR = 1.3
TEXT = 1_000  # characters of a cell where memory is measured, so that a leak of rows shows


@attrs.frozen(kw_only=True)
class Setting:
    """Sizes of a pass."""

    rows: tuple[int, int]  # a small and a large build of one diamond
    diamonds: tuple[int, int]  # a narrow and a wide build
    rows_of_diamonds: int
    memory_rows: tuple[int, ...]  # the bar compares the last two
    config: RunConfig
    rounds: int


FULL = Setting(
    rows=(5_000, 100_000),
    diamonds=(1, 8),
    rows_of_diamonds=4_000,
    memory_rows=(5_000, 20_000, 100_000),
    config=RunConfig(buffer_size=1000),
    rounds=2,
)
SHORT = Setting(
    rows=(100, 300),
    diamonds=(1, 8),
    rows_of_diamonds=50,
    memory_rows=(100, 300),
    config=RunConfig(buffer_size=20),
    rounds=1,
)


def side_by_side(diamonds: int) -> Graph:
    """That many diamonds: as many edges per column as one has."""
    return {
        f"{name}{index}": tuple(f"{each}{index}" for each in requires)
        for index in range(diamonds)
        for name, requires in DIAMOND.items()
    }


async def build(columns: Sequence[Column], rows: int, config: RunConfig, out: Path) -> Dataset:
    """Build into a directory and take each row group as it comes, as a user would."""
    async with seedbed.open_build(
        columns, rows=rows, out=out, config=config, limits=limits(columns, AT_ONCE)
    ) as running:
        made = [group.rows async for group in running]
        expect(sum(made) == rows, f"{rows} rows were asked for and {sum(made)} made")
        return running.dataset


def build_cpu(diamonds: int, rows: int, times: int, config: RunConfig) -> float:
    """CPU per cell, in µs, of that many builds one after the other."""
    graph = side_by_side(diamonds)
    columns = make_columns(graph, count_paths(graph), lambda _: "key")
    total = 0.0
    for _ in range(times):
        with tempfile.TemporaryDirectory() as directory:
            cpu, dataset = cpu_seconds(partial(trio.run, build, columns, rows, config, Path(directory, "out")))
            total += cpu
            distinct = dataset.to_polars().unique().to_dicts()
            expect(len(dataset) == rows, f"{rows} rows were asked for and {len(dataset)} are on disk")
            expect(distinct == [counted_paths(graph)], f"other rows than expected are on disk: {distinct[:3]}")
    return total / (len(graph) * rows * times) * 1e6


def write_text(graph: Graph) -> Callable[[str], Function]:
    """Functions whose values take memory: a text of its own in each cell that ends with the number of the row."""

    def fill(name: str) -> Function:
        async def source(context: CellContext) -> str:
            return name.ljust(TEXT, ".") + str(row_of(context))

        async def other(*inputs: str) -> str:
            return name.ljust(TEXT, ".") + inputs[0][TEXT:]

        return other if graph[name] else source

    return fill


def peak_memory(rows: int, config: RunConfig) -> float:
    """MB that a build of the diamond adds to a process at its peak; for a process that has done nothing else."""
    columns = make_columns(DIAMOND, write_text(DIAMOND), lambda _: "key")
    before = _status("VmRSS")
    with tempfile.TemporaryDirectory() as directory:
        dataset = trio.run(build, columns, rows, config, Path(directory, "out"))
        # The peak is read before the rows are, which takes memory for all of them.
        peak = _status("VmHWM")
        last = list(DIAMOND)[-1]
        expected = [last.ljust(TEXT, ".") + str(row) for row in range(rows)]
        expect(dataset.to_polars()[last].to_list() == expected, f"column {last!r} does not hold the texts of its rows")
    return (peak - before) / 1024


def _status(field: str) -> int:
    """A figure of this process, in kB. Not `getrusage`, whose peak a process inherits from the one that started it."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def peak_memory_in_child(rows: int, config: RunConfig) -> float:
    """`peak_memory` in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as children:
        return children.submit(peak_memory, rows, config).result()


def measure(short: bool) -> Findings:
    """Compare small builds with large ones."""
    setting = SHORT if short else FULL
    few, many = setting.rows
    narrow, wide = setting.diamonds
    by_rows = best_of(
        setting.rounds,
        {f"{rows:,} rows": partial(build_cpu, 1, rows, many // rows, setting.config) for rows in setting.rows},
    )
    by_columns = best_of(
        setting.rounds,
        {
            f"{each * len(DIAMOND)} columns": partial(
                build_cpu, each, setting.rows_of_diamonds, wide // each, setting.config
            )
            for each in setting.diamonds
        },
    )
    memory = {rows: peak_memory_in_child(rows, setting.config) for rows in setting.memory_rows}
    *_, middle, largest = memory.values()
    tables = [
        Table(title=f"CPU per cell, {len(DIAMOND)} columns, best of {setting.rounds}", rows=_ratios(by_rows)),
        Table(
            title=f"CPU per cell, {setting.rows_of_diamonds:,} rows, best of {setting.rounds}", rows=_ratios(by_columns)
        ),
        Table(
            title=f"Peak memory added by a build, {len(DIAMOND)} columns of texts of {TEXT} characters",
            rows=[{"": f"{rows:,} rows", "MB": peak} for rows, peak in memory.items()],
        ),
    ]
    bars = [
        _bar(f"CPU per cell at {many:,} rows ÷ at {few:,}", by_rows, ROWS_BAR),
        _bar(f"CPU per cell at {wide * len(DIAMOND)} columns ÷ at {narrow * len(DIAMOND)}", by_columns, COLUMNS_BAR),
        Bar(
            name="peak memory at {:,} rows ÷ at {:,}".format(*reversed(setting.memory_rows[-2:])),
            measured=largest / middle,
            allowed=MEMORY_BAR,
        ),
    ]
    return Findings(tables=tables, bars=bars)


def _ratios(cpu: dict[str, float]) -> list[dict[str, object]]:
    first = next(iter(cpu.values()))
    return [{"": name, "µs": each, "÷ first": each / first} for name, each in cpu.items()]


def _bar(name: str, cpu: dict[str, float], allowed: float) -> Bar:
    small, large = cpu.values()
    return Bar(name=name, measured=large / small, allowed=allowed)


if __name__ == "__main__":
    sys.exit(main("growth", measure))
