from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from seedbed.observe.log import BlockWarning, watch_blocking

if TYPE_CHECKING:
    import pytest


class Clock:
    """Moves only when a test moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_a_step_that_takes_long_is_reported_by_the_name_of_its_task() -> None:
    """A task that keeps the loop busy is named, even if it was its last step; one that awaits is not."""
    clock, seen = Clock(), []

    async def polite() -> None:
        for _ in range(10):
            clock.now += 0.05
            await trio.lowlevel.checkpoint()

    async def rude() -> None:
        clock.now += 0.25

    with watch_blocking(lambda name, seconds: seen.append((name, seconds)), clock=clock):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(polite, name="polite")
            nursery.start_soon(rude, name="rude")
    clock.now += 1.0
    await trio.lowlevel.checkpoint()
    assert seen == [("rude", 0.25)]


def test_a_column_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    """The warning names the column and what to do; it comes again only when it is ten times as bad."""
    warn = BlockWarning(frozenset({"slow"}))
    for name, seconds in [("slow", 0.2), ("slow", 0.3), ("seedbed.engine.timers", 5.0), ("slow", 2.5)]:
        warn(name, seconds)
    messages = [record.getMessage() for record in caplog.records]
    assert [message.partition(":")[0] for message in messages] == [
        "async code of column 'slow' blocked the event loop for 200 ms",
        "async code of column 'slow' blocked the event loop for 2500 ms",
    ]
    assert "(column=slow)" in messages[0]
