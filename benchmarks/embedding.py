"""What it costs to be a guest: the same build under asyncio and under trio itself.

The diamond of `endpoints` against a server in a process of its own that takes 50 ms, built into a directory by
`build_async`: under `trio.run`, and under `asyncio.run` (and uvloop, where it is installed), where trio is a guest of
that loop. Wall and CPU are those of the whole build, the start and the end of the guest run included.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio

import seedbed
from seedbed.testing import serve_openai_process

from .common import Bar, Findings, Table, cpu_seconds, main
from .endpoints import check
from .peers.processes import ANSWER
from .peers.with_seedbed import make_recipe
from .peers.work import PROMPTS, Work

WALL_BAR = 1.1
CPU_BAR = 1.5
LATENCY = 0.05

Main = Callable[[], Coroutine[Any, Any, seedbed.Dataset]]


def under_asyncio(function: Main) -> seedbed.Dataset:
    """Run it as a program that uses asyncio does."""
    return asyncio.run(function())


def under_uvloop(function: Main) -> seedbed.Dataset:
    """Run it as a program that uses uvloop does."""
    import uvloop  # noqa: PLC0415  nothing but this comparison needs it

    return uvloop.run(function())


@attrs.frozen
class Taken:
    """What a build took, in seconds."""

    wall: float
    cpu: float


def build(host: Callable[[Main], seedbed.Dataset], rows: int, at_once: int, answer: str | None) -> Taken:
    """Build the recipe once under a host and check what was made."""
    with (
        serve_openai_process(latency=LATENCY, answer=answer) as server,
        tempfile.TemporaryDirectory() as directory,
    ):
        recipe = make_recipe(Work(url=server.url, rows=rows, at_once=at_once))
        function = partial(seedbed.build_async, recipe, rows=rows, out=Path(directory, "out"))

        def timed() -> tuple[float, seedbed.Dataset]:
            started = time.perf_counter()
            dataset = host(function)
            return time.perf_counter() - started, dataset

        cpu, (wall, dataset) = cpu_seconds(timed)
        check(dataset, rows, answer, server.statistics()["prompts"], exactly_once=True)
    return Taken(wall, cpu)


def measure(short: bool) -> Findings:
    """Build under each host in turn, and compare each with trio itself."""
    rows, rounds, answer = (60, 1, None) if short else (1_000, 5, ANSWER)
    hosts: dict[str, Callable[[Main], seedbed.Dataset]] = {"trio": trio.run, "asyncio": under_asyncio}
    if importlib.util.find_spec("uvloop") is not None:
        hosts["uvloop"] = under_uvloop
    table: list[dict[str, Any]] = []
    bars: list[Bar] = []
    for at_once in (32, 128):
        taken: dict[str, list[Taken]] = {name: [] for name in hosts}
        for _ in range(rounds):  # by turns, so that a machine that is busy for a while is busy for all
            for name, host in hosts.items():
                taken[name].append(build(host, rows, at_once, answer))
        wall = {name: min(each.wall for each in found) for name, found in taken.items()}
        cpu = {name: min(each.cpu for each in found) for name, found in taken.items()}
        for name in hosts:
            walls, cpus = wall[name] / wall["trio"], cpu[name] / cpu["trio"]
            table.append(
                {
                    "at once": at_once,
                    "host": name,
                    "wall, s": wall[name],
                    "÷ trio": walls,
                    "CPU per call, ms": cpu[name] / (rows * len(PROMPTS)) * 1000,
                    "CPU ÷ trio": cpus,
                }
            )
            if name == "asyncio":
                bars += [
                    Bar(name=f"{at_once} at once: wall ÷ trio", measured=walls, allowed=WALL_BAR),
                    Bar(name=f"{at_once} at once: CPU ÷ trio", measured=cpus, allowed=CPU_BAR),
                ]
    title = f"{rows:,} rows × {len(PROMPTS)} calls of {LATENCY * 1000:.0f} ms, best of {rounds}"
    return Findings(tables=[Table(title=title, rows=table)], bars=bars)


if __name__ == "__main__":
    sys.exit(main("embedding", measure))
