"""Waiting in a simulation: rounded instants are exact on average, and calls share the thread of the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from seedbed.simulation.calls import Network

if TYPE_CHECKING:
    from trio.testing import MockClock


async def wait_for(network: Network, seconds: float, times: int) -> list[float]:
    """How long each wait took."""
    took: list[float] = []

    async def one() -> None:
        began = trio.current_time()
        await network.sleep(seconds)
        took.append(trio.current_time() - began)

    async with trio.open_nursery() as nursery:
        for _ in range(times):
            nursery.start_soon(one)
    return took


async def test_without_rounding_waits_are_exact(autojump_clock: MockClock) -> None:
    """A wait takes exactly as long as requested."""
    assert await wait_for(Network(), 0.2503, 5) == [pytest.approx(0.2503)] * 5


async def test_rounded_waits_are_exact_on_average(autojump_clock: MockClock) -> None:
    """Instants are rounded up and down with such chances that the mean duration does not change."""
    took = await wait_for(Network(rounding=1.0), 2.25, 4_000)
    assert {round(each, 6) for each in took} == {2.0, 3.0}
    assert sum(took) / len(took) == pytest.approx(2.25, rel=0.02)


async def test_calls_occupy_the_engine_one_after_the_other(autojump_clock: MockClock) -> None:
    """Calls at one instant wait for each other; later the engine is free again."""
    network = Network(overhead=0.5)
    assert [network.occupy() for _ in range(3)] == [0.5, 1.0, 1.5]
    await trio.sleep(10.0)
    assert network.occupy() == pytest.approx(0.5)
