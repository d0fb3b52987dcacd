"""Waiting in a simulation: rounded instants are right on average, and calls share one processor."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import trio

from seedbed.simulation.calls import Grid, Processor

if TYPE_CHECKING:
    from trio.testing import MockClock


async def wait_for(grid: Grid, seconds: float, times: int) -> list[float]:
    """How long each wait took."""
    took: list[float] = []

    async def one() -> None:
        began = trio.current_time()
        await grid.sleep(seconds)
        took.append(trio.current_time() - began)

    async with trio.open_nursery() as nursery:
        for _ in range(times):
            nursery.start_soon(one)
    return took


async def test_without_a_grid_waits_are_exact(autojump_clock: MockClock) -> None:
    """A wait takes as long as it is asked to."""
    assert await wait_for(Grid(0.0, random.Random(1)), 0.2503, 5) == [pytest.approx(0.2503)] * 5


async def test_a_grid_is_right_on_average(autojump_clock: MockClock) -> None:
    """Instants are rounded up and down so often that nothing is longer or shorter in the end."""
    took = await wait_for(Grid(1.0, random.Random(1)), 2.25, 4_000)
    assert {round(each, 6) for each in took} == {2.0, 3.0}
    assert sum(took) / len(took) == pytest.approx(2.25, rel=0.02)


async def test_calls_have_the_processor_one_after_the_other(autojump_clock: MockClock) -> None:
    """Calls at one instant wait for each other; after a while it is free again."""
    processor = Processor(0.5)
    assert [processor.take() for _ in range(3)] == [0.5, 1.0, 1.5]
    await trio.sleep(10.0)
    assert processor.take() == pytest.approx(0.5)
