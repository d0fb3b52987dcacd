"""How long a cell was in its calls, and how long it waited to make them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

import seedbed as sb
from seedbed.observe.report import profile_frame, traces_frame

if TYPE_CHECKING:
    from trio.testing import MockClock


async def test_a_trace_separates_calls_waits_and_the_rest(autojump_clock: MockClock) -> None:
    """Two calls of a second each, a wait of three for a rate limit in between, and half a second of other work."""
    answers = 0

    async def fill(context: sb.CellContext) -> int:
        async def send() -> int:
            nonlocal answers
            await trio.sleep(1)
            answers += 1
            if answers == 2:
                raise sb.RateLimited("later", retry_after=3)
            return 1

        total = await context.call(send)
        await trio.sleep(0.5)
        return total + await context.call(send)

    column = sb.Column("v", fill, key="k")
    async with sb.open_build([column], rows=1, config=sb.RunConfig(trace=True)) as build:
        report = await build.wait()
    (trace,) = report.traces
    assert trace.called == pytest.approx(3)  # the refused one took its second as well
    # A refused permit may stay taken for a while longer.
    assert 3 <= trace.waited <= 4.01
    assert trace.finished - trace.started == pytest.approx(trace.called + trace.waited + 0.5)
    (column_profile,) = profile_frame(traces_frame(report.traces))
    assert column_profile.parse == pytest.approx(0.5)
