"""Columns that share a throttle key and have limits of their own below it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import trio
from engine_helpers import config, grow, seed

from seedbed import Column, KeyLimits

if TYPE_CHECKING:
    from trio.testing import MockClock


async def test_an_alias_respects_its_own_limit_and_others_use_the_rest(autojump_clock: MockClock) -> None:
    """Two columns share a key of ten; one may have two at once and the other has the remaining eight."""
    in_flight: Counter[str] = Counter()
    peaks: Counter[str] = Counter()

    def calls(name: str) -> object:
        async def fill(n: int) -> int:
            in_flight[name] += 1
            in_flight["both"] += 1
            for key in (name, "both"):
                peaks[key] = max(peaks[key], in_flight[key])
            await trio.sleep(1)
            in_flight[name] -= 1
            in_flight["both"] -= 1
            return n

        return fill

    grown = await grow(
        [
            seed(),
            Column("slow", calls("slow"), key="k", lane="alias", lane_limit=2),
            Column("fast", calls("fast"), key="k"),
        ],
        rows=40,
        limits={"k": KeyLimits(max_parallel_requests=10)},
        config=config(),
    )
    assert grown.report.written == 40
    assert peaks["slow"] == 2
    assert peaks["both"] == 10
    assert peaks["fast"] >= 8
