"""Synchronous code that awaits, from a worker thread, a script or inside a running loop."""

from __future__ import annotations

import asyncio
import math
import threading
from typing import TYPE_CHECKING, NoReturn

import pytest
import trio

from seedbed.errors import Permanent
from seedbed.runtime.threads import Lease, Portal, current_portal, in_event_loop, run_sync

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio.testing import MockClock


def leave_alone(_scope: trio.CancelScope) -> Callable[[], None]:
    """Own a scope and never cancel it."""
    return lambda: None


async def double(n: int) -> int:
    """Take a second to double a number."""
    await trio.sleep(1)
    return 2 * n


async def fail() -> NoReturn:
    """Raise."""
    raise ValueError("awaited and failed")


async def in_thread(function: Callable[[], object]) -> object:
    """Run a function in a thread as a cell does."""
    return await Lease(lambda: None).run(function)


async def test_a_thread_gets_results_and_exceptions(autojump_clock: MockClock) -> None:
    """A call through the portal takes virtual time and returns its result or exception in the thread."""
    async with trio.open_nursery() as nursery:
        portal = Portal(nursery, leave_alone)
        assert await in_thread(lambda: portal.run(double, 4)) == 8
        assert trio.current_time() == 1
        with pytest.raises(ValueError, match="awaited and failed"):
            await in_thread(lambda: portal.run(fail))
    assert autojump_clock.autojump_threshold == 0


async def test_the_clock_is_held_again_when_the_thread_continues(autojump_clock: MockClock) -> None:
    """Time passes while the thread awaits and stands still before and after."""
    thresholds = []

    def work() -> None:
        thresholds.append(autojump_clock.autojump_threshold)
        portal.run(double, 1)
        thresholds.append(autojump_clock.autojump_threshold)
        portal.run(double, 1)
        thresholds.append(autojump_clock.autojump_threshold)

    async with trio.open_nursery() as nursery:
        portal = Portal(nursery, leave_alone)
        await in_thread(work)
    assert thresholds == [math.inf] * 3
    assert trio.current_time() == 2


async def test_cancelling_a_row_cancels_the_calls_of_its_thread(autojump_clock: MockClock) -> None:
    """Cancelling the scope that the portal handed out ends the wait with an error in the thread."""
    scopes: list[trio.CancelScope] = []
    released = []

    def adopt(scope: trio.CancelScope) -> Callable[[], None]:
        scopes.append(scope)
        return lambda: released.append(scope)

    async with trio.open_nursery() as nursery:
        portal = Portal(nursery, adopt)

        async def cancel_later() -> None:
            await trio.sleep(5)
            scopes[0].cancel()

        nursery.start_soon(cancel_later)
        with pytest.raises(Permanent, match="the cell was cancelled"):
            await in_thread(lambda: portal.run(trio.sleep, 100))
    assert trio.current_time() == 5
    assert released == scopes


async def test_a_row_that_is_cancelled_already_starts_nothing(autojump_clock: MockClock) -> None:
    """A call from a thread whose row was dropped is not made."""
    called = []

    async def call() -> None:
        called.append(1)

    def adopt(scope: trio.CancelScope) -> Callable[[], None]:
        scope.cancel()
        return lambda: None

    async with trio.open_nursery() as nursery:
        portal = Portal(nursery, adopt)
        with pytest.raises(Permanent, match="the cell was cancelled"):
            await in_thread(lambda: portal.run(call))
    assert called == []


async def test_a_cancelled_nursery_answers_its_thread(autojump_clock: MockClock) -> None:
    """A thread that awaits when its row group is cancelled is not left waiting."""
    answers: list[object] = []

    def work() -> None:
        try:
            portal.run(trio.sleep_forever)
        except Permanent as error:
            answers.append(str(error))

    async with trio.open_nursery() as outer, trio.open_nursery() as nursery:
        portal = Portal(nursery, leave_alone)
        outer.start_soon(in_thread, work)
        await trio.testing.wait_all_tasks_blocked(0.01)
        nursery.cancel_scope.cancel()
    assert answers == ["the cell was cancelled"]
    assert autojump_clock.autojump_threshold == 0


async def test_a_closed_nursery_answers_its_thread(autojump_clock: MockClock) -> None:
    """A thread that outlives its row group gets an error for each call."""
    async with trio.open_nursery() as nursery:
        portal = Portal(nursery, leave_alone)
    with pytest.raises(Permanent, match="has ended"):
        await in_thread(lambda: portal.run(double, 1))
    assert autojump_clock.autojump_threshold == 0


def test_a_finished_run_answers_its_thread() -> None:
    """A thread that outlives the run gets an error for each call."""

    async def main() -> Portal:
        async with trio.open_nursery() as nursery:
            return Portal(nursery, leave_alone)

    portal = trio.run(main)
    with pytest.raises(Permanent, match="has ended"):
        portal.run(double, 1)


def test_a_script_can_await() -> None:
    """Without any loop, one is run for the call."""
    assert not in_event_loop()
    assert run_sync(double_now, 3) == 6
    with pytest.raises(ValueError, match="awaited and failed"):
        run_sync(fail)


async def double_now(n: int) -> int:
    """Double a number."""
    await trio.lowlevel.checkpoint()
    return 2 * n


async def test_code_inside_trio_can_await() -> None:
    """Inside a trio run the call gets a thread and a run of its own, and that thread is gone afterwards."""
    assert in_event_loop()
    before = threading.active_count()
    assert run_sync(double_now, 3) == 6
    assert threading.active_count() == before


def test_code_inside_asyncio_can_await() -> None:
    """Inside an asyncio loop the same holds."""

    async def main() -> int:
        assert in_event_loop()
        return run_sync(double_now, 3)

    assert asyncio.run(main()) == 6


async def test_a_cell_thread_awaits_in_its_own_run(autojump_clock: MockClock) -> None:
    """In a worker thread with a portal, the call runs in the run that the thread belongs to."""

    async def where() -> object:
        return trio.lowlevel.current_root_task()

    async with trio.open_nursery() as nursery:
        token = current_portal.set(Portal(nursery, leave_alone))
        try:
            assert await in_thread(lambda: run_sync(where)) is trio.lowlevel.current_root_task()
        finally:
            current_portal.reset(token)
