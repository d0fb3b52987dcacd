"""Callbacks at instants of trio's clock."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from seedbed.runtime.tasks import Timers


async def test_callbacks_run_at_their_instants_in_order(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    """Callbacks run at their instants, those of one instant in the order of their registration."""
    timers, ran = Timers(), []
    start = trio.current_time()
    for name, when in (("late", 3.0), ("early", 1.0), ("first", 2.0), ("second", 2.0)):
        timers.call_at(start + when, lambda name=name: ran.append((name, trio.current_time() - start)))
    nursery.start_soon(timers.run)
    await trio.sleep(10)
    assert ran == [("early", 1.0), ("first", 2.0), ("second", 2.0), ("late", 3.0)]


async def test_an_earlier_callback_shortens_the_sleep(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    """A callback registered while the task sleeps until a later one runs in time."""
    timers, ran = Timers(), []
    nursery.start_soon(timers.run)
    start = trio.current_time()
    timers.call_at(start + 100, lambda: ran.append("far"))
    await wait_all_tasks_blocked()
    timers.call_at(start + 1, lambda: ran.append("near"))
    await trio.sleep(2)
    assert ran == ["near"]


async def test_past_instants_run_as_soon_as_possible(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    """A callback in the past runs without time passing."""
    timers, ran = Timers(), []
    nursery.start_soon(timers.run)
    await wait_all_tasks_blocked()
    timers.call_at(trio.current_time() - 5, lambda: ran.append(trio.current_time()))
    start = trio.current_time()
    await wait_all_tasks_blocked()
    assert ran == [start]


async def test_a_callback_may_register_another(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    """Also for one that is due at once."""
    timers, ran = Timers(), []

    def again(left: int) -> None:
        ran.append(left)
        if left:
            timers.call_at(trio.current_time(), partial(again, left - 1))

    timers.call_at(trio.current_time(), partial(again, 3))
    nursery.start_soon(timers.run)
    await wait_all_tasks_blocked()
    assert ran == [3, 2, 1, 0]


async def test_an_exception_leaves_the_task(autojump_clock: MockClock) -> None:
    """An exception of a callback is raised by `run`, and later callbacks stay in the heap."""
    timers = Timers()

    def fail() -> None:
        raise ValueError("in a callback")

    timers.call_at(trio.current_time(), fail)
    timers.call_at(trio.current_time() + 1, fail)
    with pytest.raises(ValueError, match="in a callback"):
        await timers.run()


async def test_callbacks_wait_until_run_is_started(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    """After a cancelled run the callbacks are still there for the next one."""
    timers, ran = Timers(), []
    timers.call_at(trio.current_time() + 5, lambda: ran.append("done"))
    with trio.move_on_after(1):
        await timers.run()
    await trio.sleep(10)
    assert ran == []
    nursery.start_soon(timers.run)
    await wait_all_tasks_blocked()
    assert ran == ["done"]
