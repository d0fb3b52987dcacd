"""Deduplicated requests in a build."""

from __future__ import annotations

from typing import TYPE_CHECKING

import seedbed as sb

if TYPE_CHECKING:
    from trio.testing import MockClock


async def test_a_cached_answer_uses_no_permit_and_no_tokens(autojump_clock: MockClock) -> None:
    """Forty rows with two different prompts send two calls; rows that wait for them hold no permit."""
    recipe = sb.Recipe(
        models={"writer": sb.Scripted(latency=1.0, max_parallel_requests=4)},
        columns=[
            sb.Category("topic", values=["tea", "rain"]),
            sb.LLMText("text", model="writer", prompt="About {{ topic }}.", dedupe=True),
        ],
    )
    async with sb.open_build(recipe, rows=40) as build:
        groups = [group.to_polars() async for group in build]
    report = build.report
    assert report.written == 40
    assert groups[0].group_by("topic").n_unique()["text"].to_list() == [1, 1]
    (throttle,) = report.throttles.values()
    assert (throttle.sent, throttle.accepted, throttle.in_flight) == (2, 2, 0)
    assert report.usage["text"].calls == 2
