"""Whether a key that refuses everything slows another one down.

Column `refused` is declared first; its key answers 429 to everything for about the first half of the run, and ten times
the submission budget of its cells are ready from the start. Column `steady` needs nothing of it and has its own key.
Counted are the calls of `steady` that finish while the other key refuses and the admitted row groups, which are all
there are, still hold work for it; the same span of a run without the other column is the measure.
"""

from __future__ import annotations

import sys

import attrs
import trio

from seedbed import CellContext, Column, RateLimited, RunConfig

from .common import Bar, Findings, Table, build_in_memory, expect, expect_row_numbers, main, row_of

BAR = 0.95
AT_ONCE = 64
LATENCY = 0.05
REFUSAL = 0.005  # a server that is full says so quickly
ANSWER = 0.01  # of the refusing key once it answers; so that it refuses for about half of the run

# How the other key refuses, by the name of the run: the Retry-After that it sends, if any. Without one the key is soon
# paused as a whole; with a short one it is asked again and again.
ALONE = "alone"
BESIDE = {"beside a key that refuses": None, "beside one that sends Retry-After: 0.01": 0.01}


@attrs.frozen(kw_only=True)
class Setting:
    """Sizes of a run."""

    budget: int
    rounds: int

    @property
    def rows(self) -> int:
        """Ten times the budget: a cell of each is ready at the start."""
        return self.budget * 10

    @property
    def span(self) -> float:
        """How long the key refuses: most of the time that `steady` is busy at its full limit, and never longer."""
        return 0.85 * self.rows / AT_ONCE * LATENCY


@attrs.frozen(kw_only=True)
class Taken:
    """What one run showed."""

    rate: float  # calls of `steady` per second, in the span
    refusals: int
    seconds: float


async def run(setting: Setting, name: str) -> Taken:
    """Build once, `steady` alone or with the refusing column before it."""
    started = trio.current_time()
    finished_in_span = refusals = 0

    async def refused(context: CellContext) -> int:
        nonlocal refusals
        if trio.current_time() - started < setting.span:
            await trio.sleep(REFUSAL)
            refusals += 1
            raise RateLimited("too many requests", retry_after=BESIDE[name])
        await trio.sleep(ANSWER)
        return row_of(context)

    async def steady(context: CellContext) -> int:
        nonlocal finished_in_span
        await trio.sleep(LATENCY)
        finished_in_span += trio.current_time() - started < setting.span
        return row_of(context)

    columns = [Column("steady", steady, key="steady")]
    if name in BESIDE:
        columns.insert(0, Column("refused", refused, key="refusing"))
    config = RunConfig(
        max_submitted_tasks=setting.budget, buffer_size=-(-setting.rows // 3), max_concurrent_row_groups=3
    )
    finished = await build_in_memory(columns, rows=setting.rows, at_once=AT_ONCE, config=config)
    expect_row_numbers(finished)
    expect(bool(refusals) == (name in BESIDE), f"{refusals} calls were refused")
    expect(finished_in_span < setting.rows, "the row groups held no work for the steady key at the end of the span")
    return Taken(rate=finished_in_span / setting.span, refusals=refusals, seconds=finished.seconds)


def measure(short: bool) -> Findings:
    """Compare the steady key's throughput with and without a refusing one beside it."""
    setting = Setting(budget=100, rounds=1) if short else Setting(budget=600, rounds=3)
    # The first build imports what builds need, which would count as a part of its span.
    trio.run(run, Setting(budget=10, rounds=1), ALONE)
    best: dict[str, Taken] = {}
    # Alternating, and the best of each, because what others do to the machine only ever slows it down.
    for name in [ALONE, *BESIDE] * setting.rounds:
        taken = trio.run(run, setting, name)
        best[name] = max(taken, best.get(name, taken), key=lambda each: each.rate)
    alone = best[ALONE].rate
    table = Table(
        title=(
            f"Steady key, {AT_ONCE} × {LATENCY * 1000:.0f} ms, while the other refuses ({setting.span:.1f} s), "
            f"{setting.rows:,} rows, budget {setting.budget}, best of {setting.rounds}"
        ),
        rows=[
            {
                "": name,
                "calls per second": taken.rate,
                "÷ alone": taken.rate / alone,
                "calls refused": taken.refusals,
                "whole run, s": taken.seconds,
                "share of it refused": setting.span / taken.seconds if name in BESIDE else 0.0,
            }
            for name, taken in best.items()
        ],
    )
    bars = [
        Bar(name=f"throughput {name} ÷ alone", measured=best[name].rate / alone, allowed=BAR, at_least=True)
        for name in BESIDE
    ]
    return Findings(tables=[table], bars=bars)


if __name__ == "__main__":
    sys.exit(main("fairness", measure))
