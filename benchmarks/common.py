"""What all benchmarks share: the diamond, how time is taken, and how results are shown and judged."""

from __future__ import annotations

import argparse
import gc
import inspect
import json
import platform
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import attrs
import polars as pl
import trio

import seedbed

T = TypeVar("T")
Graph = Mapping[str, tuple[str, ...]]
Function = Callable[..., Awaitable[Any]]

DIAMOND: Graph = {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c"), "e": ("d",)}
"""Columns and what they require, in topological order."""


class WrongResultError(Exception):
    """A build did not make what it should have; how fast it was says nothing then."""


def expect(holds: bool, message: str) -> None:
    """Raise `WrongResultError` unless something holds."""
    if not holds:
        raise WrongResultError(message)


def make_columns(
    graph: Graph, fill: Callable[[str], Function], key: Callable[[str], str | None]
) -> list[seedbed.Column]:
    """A column for each node of the graph: `fill` gives its function, `key` its throttle key."""
    columns = []
    for name, requires in graph.items():
        function = fill(name)
        if requires:
            # A cell function's parameters are its requirements, and those have other names in each column.
            function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
                [inspect.Parameter(required, inspect.Parameter.POSITIONAL_OR_KEYWORD) for required in requires]
            )
        columns.append(seedbed.Column(name, function, key=key(name)))
    return columns


def count_paths(graph: Graph) -> Callable[[str], Function]:
    """Functions that do nothing but tell their inputs apart from others: each adds them up, and one."""

    def fill(name: str) -> Function:
        async def source() -> int:
            return 1

        async def one(value: int) -> int:
            return value + 1

        async def two(first: int, second: int) -> int:
            return first + second + 1

        return (source, one, two)[len(graph[name])]

    return fill


def counted_paths(graph: Graph) -> dict[str, int]:
    """What `count_paths` makes of every row."""
    values: dict[str, int] = {}
    for name, requires in graph.items():
        values[name] = 1 + sum(values[each] for each in requires)
    return values


def row_of(context: seedbed.CellContext) -> int:
    """The number of a cell's row."""
    assert context.row is not None  # it is None only for whole row groups
    return context.row


def cpu_seconds(function: Callable[[], T]) -> tuple[float, T]:
    """Processor time that a call takes, all threads together, and what it returned.

    The garbage collector is on, as it is for users, and everything that is measured starts right after a collection.
    """
    gc.collect()
    before = time.process_time()
    result = function()
    return time.process_time() - before, result


def best_of(rounds: int, measures: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """The least that each measure gave.

    They alternate, so that a machine that is busy for a while is busy for all of them, and what others do to the
    machine only ever adds.
    """
    taken: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            taken[name].append(measure())
    return {name: min(values) for name, values in taken.items()}


def limits(columns: Sequence[seedbed.Column], at_once: int) -> dict[str, seedbed.KeyLimits]:
    """The same ceiling for every key that the columns use."""
    keys = {column.key for column in columns if column.key is not None}
    return {key: seedbed.KeyLimits(max_parallel_requests=at_once) for key in keys}


@attrs.frozen(kw_only=True)
class Finished:
    """A build in memory that is over."""

    seconds: float
    groups: Sequence[seedbed.FinishedGroup]
    report: seedbed.BuildReport

    def values(self) -> dict[str, list[Any]]:
        """What was made, by column, in the order of rows; every row must be there."""
        expect(self.report.written == self.report.requested, f"rows are missing: {self.report}")
        groups = sorted(self.groups, key=lambda group: group.row_group)
        return pl.concat([group.to_polars() for group in groups]).to_dict(as_series=False)


async def build_in_memory(
    columns: Sequence[seedbed.Column], *, rows: int, at_once: int, config: seedbed.RunConfig
) -> Finished:
    """Build without a directory and keep the rows."""
    started = trio.current_time()
    async with seedbed.open_build(columns, rows=rows, config=config, limits=limits(columns, at_once)) as build:
        groups = [group async for group in build]
        seconds = trio.current_time() - started
        return Finished(seconds=seconds, groups=groups, report=build.report)


def expect_row_numbers(finished: Finished) -> None:
    """Every cell must hold the number of its row."""
    for name, values in finished.values().items():
        expect(
            values == list(range(finished.report.requested)), f"column {name!r} does not hold the numbers of its rows"
        )


@attrs.frozen(kw_only=True)
class Table:
    """Rows of figures under one title; every row has the same names."""

    title: str
    rows: Sequence[Mapping[str, Any]]

    def __str__(self) -> str:
        names = list(self.rows[0])
        lines = [names, *([_shown(row[name]) for name in names] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = (
            "  ".join(
                cell.ljust(width) if isinstance(self.rows[0][name], str) else cell.rjust(width)
                for name, cell, width in zip(names, line, widths, strict=True)
            ).rstrip()
            for line in lines
        )
        return "\n".join([self.title, *text])


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


@attrs.frozen(kw_only=True)
class Bar:
    """What a full run must reach: at most or, with `at_least`, at least `allowed`."""

    name: str
    measured: float
    allowed: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.measured >= self.allowed if self.at_least else self.measured <= self.allowed

    def __str__(self) -> str:
        bound = "at least" if self.at_least else "at most"
        verdict = "met" if self.met else "MISSED"
        return f"{verdict}: {self.name}: {self.measured:.3f}, {bound} {self.allowed:.3f}"


@attrs.frozen(kw_only=True)
class Findings:
    """What a benchmark found."""

    tables: Sequence[Table]
    bars: Sequence[Bar]


def main(name: str, measure: Callable[[bool], Findings]) -> int:
    """Run a benchmark from the command line and return its exit code; `measure` is told whether the pass is short."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.add_argument("--short", action="store_true", help="a quick pass that checks results and not speed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file, too")
    arguments = parser.parse_args()
    started = time.monotonic()
    try:
        findings = measure(arguments.short)
    except WrongResultError as wrong:
        print(f"{name}: wrong result: {wrong}", file=sys.stderr)
        return 1
    for table in findings.tables:
        print(f"{table}\n")
    if arguments.short:
        print("short pass: results are right, speed is not judged")
    else:
        print(*findings.bars, sep="\n")
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(_record(name, findings, arguments.short, started), indent=2) + "\n")
    return 0 if arguments.short or all(bar.met for bar in findings.bars) else 1


def _record(name: str, findings: Findings, short: bool, started: float) -> dict[str, Any]:
    return {
        "benchmark": name,
        "short": short,
        "seconds": time.monotonic() - started,
        "python": platform.python_version(),
        "trio": trio.__version__,
        "tables": [attrs.asdict(table) for table in findings.tables],
        "bars": [{**attrs.asdict(bar), "met": bar.met} for bar in findings.bars],
    }
