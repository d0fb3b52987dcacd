from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from seedbed.observe.log import BlockingWatch

if TYPE_CHECKING:
    import pytest


class Clock:
    """Moves only when a test moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def run_steps(clock: Clock, name: str, *steps: float) -> None:
    """Run a task of that name whose steps take these seconds."""

    async def work() -> None:
        for seconds in steps:
            clock.now += seconds
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work, name=name)


def blocked(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The beginnings of the warnings."""
    return [record.getMessage().partition(":")[0] for record in caplog.records]


async def test_a_column_that_blocks_the_loop_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """A column that keeps the loop busy is named; one that awaits often is not, nor is the engine."""
    clock = Clock()
    with BlockingWatch(frozenset({"slow", "polite"}), clock=clock):
        await run_steps(clock, "polite", *[0.05] * 10)
        await run_steps(clock, "seedbed.engine.timers", 5.0)
        await run_steps(clock, "slow", 0.25)
    await run_steps(clock, "polite", 5.0)
    assert blocked(caplog) == ["async code of column 'slow' blocked the event loop for 250 ms"]
    assert "(column=slow)" in caplog.records[0].getMessage()


async def test_a_column_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    """The next warning about a column comes when it blocks ten times as long."""
    clock = Clock()
    with BlockingWatch(frozenset({"slow"}), clock=clock):
        await run_steps(clock, "slow", 0.2, 0.3, 2.5)
    assert blocked(caplog) == [
        "async code of column 'slow' blocked the event loop for 200 ms",
        "async code of column 'slow' blocked the event loop for 2500 ms",
    ]
