"""What it is worth to run a chain of CPU nodes as one, and on the loop where that is quicker than a thread."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import trio

from seedbed.plans.builder import Key, Node, PlanContext, plan
from seedbed.plans.engine import PlanEngine

from ..common import Bar, Table, expect

if TYPE_CHECKING:
    from seedbed.plans.compile import Fusion
    from seedbed.plans.format import Plan

# Rows, and how many times as fast `auto` must be as `off`.
BARS = {10: 1.0, 100: 2.0, 1_000: 1.0, 100_000: 1.0}
MODES: tuple[Fusion, ...] = ("off", "auto")


def make_plan(rows: int) -> Plan:
    """vm, filter, sort and take of so many rows."""

    @plan(name="chain")
    def chain(ctx: PlanContext) -> Node:
        scored = ctx.fixed_source(row_count=rows).vm(out_key=Key.final_score, expr=Key.id * -0.5 + 3)
        kept = scored.filter(pred=Key.final_score < 2)
        return kept.sort(by=Key.final_score, order="asc").take(count=10)

    return chain.plan()


async def compare(rows: int, requests: int, rounds: int) -> dict[str, float]:
    """The least seconds that a request took on average in a round, by mode; the modes take turns."""
    best = dict.fromkeys(MODES, float("inf"))
    chain = make_plan(rows)
    async with PlanEngine() as engine:
        answers = [(await engine.execute(chain, {"user_id": 1}, fusion=mode)).candidates for mode in MODES]
        expect(answers[0] == answers[1] and len(answers[0]) > 0, f"modes differ at {rows} rows")
        for _ in range(rounds):
            for mode in MODES:
                began = time.perf_counter()
                for _ in range(requests):
                    await engine.execute(chain, {"user_id": 1}, fusion=mode)
                best[mode] = min(best[mode], (time.perf_counter() - began) / requests)
    return best


def measure(*, short: bool) -> tuple[list[Table], list[Bar]]:
    """All sizes."""
    table: list[dict[str, Any]] = []
    bars: list[Bar] = []
    for rows, bar in BARS.items():
        requests, rounds = (2, 1) if short else (5 if rows > 10_000 else 40, 15)
        best = trio.run(compare, rows, requests, rounds)
        gain = best["off"] / best["auto"]
        table.append(
            {"rows": rows, **{f"{mode}, ms": seconds * 1000 for mode, seconds in best.items()}, "off ÷ auto": gain}
        )
        bars.append(Bar(name=f"{rows:,} rows: fusion off ÷ auto", measured=gain, allowed=bar, at_least=True))
    return [Table(title="A chain of four CPU nodes, a request alone", rows=table)], bars
