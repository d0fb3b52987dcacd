"""Waiting on a grid: on average as long as asked for, and cancelled like any other wait."""

from __future__ import annotations

import random

import pytest
import trio
from trio.testing import MockClock

from seedbed.simulation.calls import Processor, Waits


async def wait_for(waits: Waits, seconds: float, times: int) -> list[float]:
    """How long each wait took."""
    took: list[float] = []

    async def one() -> None:
        began = trio.current_time()
        await waits.sleep(seconds)
        took.append(trio.current_time() - began)

    async with trio.open_nursery() as outer:
        outer.start_soon(waits.run)
        async with trio.open_nursery() as nursery:
            for _ in range(times):
                nursery.start_soon(one)
        outer.cancel_scope.cancel()
    return took


def test_a_fine_grid_is_exact() -> None:
    """A wait of whole milliseconds takes them."""
    took = trio.run(wait_for, Waits(0.001, random.Random(1)), 0.25, 5, clock=MockClock(autojump_threshold=0))
    assert took == [pytest.approx(0.25)] * 5


def test_a_coarse_grid_is_right_on_average() -> None:
    """Instants are rounded up and down so often that nothing is longer or shorter in the end."""
    took = trio.run(wait_for, Waits(1.0, random.Random(1)), 2.25, 4_000, clock=MockClock(autojump_threshold=0))
    assert {round(each, 6) for each in took} == {2.0, 3.0}
    assert sum(took) / len(took) == pytest.approx(2.25, rel=0.02)


async def test_a_wait_can_be_cancelled(autojump_clock: MockClock) -> None:
    """A cancelled wait ends at once and is not woken later."""
    waits = Waits(0.001, random.Random(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(waits.run)
        with trio.move_on_after(1.0) as scope:
            await waits.sleep(10.0)
        assert scope.cancelled_caught
        assert trio.current_time() == pytest.approx(1.0)
        await trio.sleep(20.0)
        nursery.cancel_scope.cancel()


async def test_no_wait_is_a_checkpoint(autojump_clock: MockClock) -> None:
    """Even nothing to wait for lets others run, and can be cancelled."""
    with trio.CancelScope() as scope:
        scope.cancel()
        await Waits(0.001, random.Random(1)).sleep(0.0)
    assert scope.cancelled_caught


async def test_calls_have_the_processor_one_after_the_other(autojump_clock: MockClock) -> None:
    """Calls at one instant wait for each other; after a while it is free again."""
    processor = Processor(0.5)
    assert [processor.take() for _ in range(3)] == [0.5, 1.0, 1.5]
    await trio.sleep(10.0)
    assert processor.take() == pytest.approx(0.5)
