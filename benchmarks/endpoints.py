"""How a recipe runs against a model server: its wall time, its CPU per call, and what refusals cost it.

The diamond as a recipe: a sampler, B and C from it, D from both, E from D, each cell of them a call over HTTP to a
server in a process of its own that takes 50 ms, built into a directory. Ideal is calls × latency ÷ calls at once. CPU
is compared with the same calls made by hand with aiohttp, in the same run; a server may also refuse and fail at random
(10 % and 2 %, never one call more than twice), or take 16 calls at once and refuse what comes above.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import attrs

import seedbed
from seedbed.models.answers import plausible_text
from seedbed.testing import serve_openai_process

from .common import Bar, Findings, Table, cpu_seconds, expect, main
from .peers.processes import ANSWER, run_peer
from .peers.with_seedbed import make_recipe
from .peers.work import PROMPTS, SAMPLER, Work

WALL_BARS = {32: 1.15, 128: 1.5}  # wall time ÷ ideal, by calls at once
LONG_WALL_BARS = {32: 1.10, 128: 1.25}  # with 2,000 rows or more
CPU_BAR = 1.67  # CPU per call ÷ by hand with aiohttp: 0.5 ms where that takes 0.3
FAILING = {"rate_limit_share": 0.10, "error_share": 0.02}
FAILING_AT_ONCE = 32
FAILING_BAR = 1.3  # wall time ÷ that of the run without failures
CAPACITY = 16
FULL_WALL_BAR = 1.5  # wall time ÷ ideal, with as many at once as the server takes
REFUSED_BAR = 0.05  # share of all calls


@attrs.frozen(kw_only=True)
class Setting:
    """How much is measured."""

    rows: tuple[int, ...]
    latency: float
    rounds: int
    # What the server answers to everything; None if the answer depends on the prompt, which costs the server more.
    answer: str | None


FULL = Setting(rows=(500, 2_000), latency=0.05, rounds=3, answer=ANSWER)
SHORT = Setting(rows=(60,), latency=0.005, rounds=1, answer=None)


@attrs.frozen(kw_only=True)
class Built:
    """What a build took, and what the server saw of it."""

    wall: float
    cpu: float
    calls: int
    refused: int
    failed: int
    max_in_flight: int


def build(setting: Setting, rows: int, at_once: int, **behaviour: Any) -> Built:
    """Build the recipe once, against a server that behaves like that, and check what was made and what was asked."""
    with (
        serve_openai_process(latency=setting.latency, answer=setting.answer, **behaviour) as server,
        tempfile.TemporaryDirectory() as directory,
    ):
        recipe = make_recipe(Work(url=server.url, rows=rows, at_once=at_once))

        def timed() -> tuple[float, seedbed.Dataset]:
            started = time.perf_counter()
            dataset = seedbed.build(recipe, rows=rows, out=Path(directory, "out"), progress="none")
            return time.perf_counter() - started, dataset

        cpu, (wall, dataset) = cpu_seconds(timed)
        seen = server.statistics()
        check(dataset, rows, setting.answer, seen["prompts"], exactly_once=not behaviour)
    statuses = seen["statuses"]
    expect(statuses["200"] == rows * len(PROMPTS), f"{rows * len(PROMPTS)} answers are enough, there were {statuses}")
    return Built(
        wall=wall,
        cpu=cpu,
        calls=seen["requests"],
        refused=statuses.get("429", 0),
        failed=statuses.get("500", 0),
        max_in_flight=seen["max_in_flight"],
    )


def check(
    dataset: seedbed.Dataset, rows: int, answer: str | None, prompts: dict[str, int], *, exactly_once: bool
) -> None:
    """No row may be missing, every cell must be the answer to its prompt, and nothing else may have been asked."""
    frame = dataset.to_polars()
    expect(len(frame) == rows, f"{len(frame)} rows instead of {rows}: {dataset.report}")
    expect(frame[SAMPLER].n_unique() == rows, "two rows have the same sample")
    asked: Counter[str] = Counter()
    for row in frame.iter_rows(named=True):
        for name, template in PROMPTS.items():
            prompt = template.format(**row)
            asked[prompt] += 1
            answered = plausible_text(prompt).strip() if answer is None else answer
            expect(row[name] == answered, f"column {name!r} holds {row[name]!r}, the server said {answered!r}")
    if exactly_once:
        expect(prompts == asked, "the server was asked something else than the prompts of the dataset, each once")
    else:
        expect(prompts.keys() == asked.keys(), "the server was asked something else than the prompts of the dataset")


def measure_plain(setting: Setting, *, short: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[Bar]]:
    """Rows of the table of wall time and CPU, and of what failures cost beside them, and the bars of both."""
    plain: list[dict[str, Any]] = []
    failing: list[dict[str, Any]] = []
    bars: list[Bar] = []
    for rows in setting.rows:
        for at_once, wall_bar in WALL_BARS.items():
            work = Work(url="", rows=rows, at_once=at_once)
            built, failed, by_hand = [], [], []
            for _ in range(setting.rounds):
                built.append(build(setting, rows, at_once))
                if at_once == FAILING_AT_ONCE:
                    failed.append(build(setting, rows, at_once, **FAILING))
                if not short:
                    by_hand.append(
                        run_peer(sys.executable, "with_aiohttp", rows=rows, at_once=at_once, latency=setting.latency)
                    )
            ideal = work.ideal(setting.latency)
            wall = min(each.wall for each in built)
            cpu = min(each.cpu for each in built)
            row = {
                "rows": rows,
                "at once": at_once,
                "ideal, s": ideal,
                "wall, s": wall,
                "wall ÷ ideal": wall / ideal,
                "CPU per call, ms": cpu / work.calls * 1000,
            }
            where = f"{rows:,} rows, {at_once} at once"
            bars.append(
                Bar(
                    name=f"{where}: wall ÷ ideal",
                    measured=wall / ideal,
                    allowed=wall_bar if rows < 2_000 else LONG_WALL_BARS[at_once],
                )
            )
            if by_hand:
                hand = min(each.cpu for each in by_hand)
                row |= {
                    "by hand, wall ÷ ideal": min(each.wall for each in by_hand) / ideal,
                    "by hand, CPU per call, ms": hand / work.calls * 1000,
                    "CPU ÷ by hand": cpu / hand,
                }
                bars.append(Bar(name=f"{where}: CPU per call ÷ by hand", measured=cpu / hand, allowed=CPU_BAR))
            plain.append(row)
            if failed:
                with_failures = min(each.wall for each in failed)
                failing.append(
                    {
                        "rows": rows,
                        "at once": at_once,
                        "429": max(each.refused for each in failed),
                        "500": max(each.failed for each in failed),
                        "wall, s": with_failures,
                        "÷ without": with_failures / wall,
                    }
                )
                name = f"{where}, 10 % 429 and 2 % 500: wall ÷ without"
                bars.append(Bar(name=name, measured=with_failures / wall, allowed=FAILING_BAR))
    return plain, failing, bars


def measure_full(setting: Setting) -> tuple[list[dict[str, Any]], list[Bar]]:
    """Rows of the table of a server that takes no more than 16 calls at once, and its bars."""
    table: list[dict[str, Any]] = []
    bars: list[Bar] = []
    for rows in setting.rows:
        ideal = Work(url="", rows=rows, at_once=CAPACITY).ideal(setting.latency)
        for at_once in WALL_BARS:
            built = [build(setting, rows, at_once, capacity=CAPACITY) for _ in range(setting.rounds)]
            expect(all(each.max_in_flight <= CAPACITY for each in built), "the server took more than it can")
            wall = min(each.wall for each in built)
            # Of all rounds: how many are refused is a matter of luck too, and not only of other load.
            refused = sum(each.refused for each in built) / sum(each.calls for each in built)
            table.append(
                {
                    "rows": rows,
                    "at once": at_once,
                    "ideal at 16, s": ideal,
                    "wall, s": wall,
                    "wall ÷ ideal": wall / ideal,
                    "refused, %": refused * 100,
                }
            )
            where = f"{rows:,} rows, {at_once} at once, the server full at {CAPACITY}"
            bars.append(Bar(name=f"{where}: wall ÷ ideal", measured=wall / ideal, allowed=FULL_WALL_BAR))
            bars.append(Bar(name=f"{where}: share of calls refused", measured=refused, allowed=REFUSED_BAR))
    return table, bars


def measure(short: bool) -> Findings:
    """Build against a good server, a failing one and a full one."""
    if not short and importlib.util.find_spec("aiohttp") is None:
        sys.exit("endpoints: CPU per call is compared with aiohttp; install it, or measure with nox -s bench")
    setting = SHORT if short else FULL
    build(setting, 20, 8)  # imports and first uses of things are not measured
    plain, failing, plain_bars = measure_plain(setting, short=short)
    full, full_bars = measure_full(setting)
    latency = f"{setting.latency * 1000:.0f} ms a call, best of {setting.rounds}"
    return Findings(
        tables=[
            Table(title=f"The diamond against a server, {latency}", rows=plain),
            Table(title=f"A server that answers 10 % with 429 and 2 % with 500, {latency}", rows=failing),
            Table(title=f"A server that takes {CAPACITY} calls at once, {latency}", rows=full),
        ],
        bars=[*plain_bars, *full_bars],
    )


if __name__ == "__main__":
    sys.exit(main("endpoints", measure))
