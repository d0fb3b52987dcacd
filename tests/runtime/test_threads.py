"""Threads and processes: the clock stops while they run, and their slots are released when they end."""

from __future__ import annotations

import math
import os
import threading
from typing import TYPE_CHECKING, NoReturn

import pytest
import trio

from seedbed.errors import WorkerCrashed
from seedbed.runtime import threads
from seedbed.runtime.threads import Lease, finish_in_thread, hold_clock, open_processes, release_clock

if TYPE_CHECKING:
    from trio.testing import MockClock


def crash() -> NoReturn:
    """End the process that runs this."""
    os._exit(1)


def forever() -> NoReturn:
    """Never come back."""
    threading.Event().wait()
    raise AssertionError


def own_pid(*_: object) -> int:
    """Say which process runs this."""
    return os.getpid()


async def test_nested_holds_are_counted(autojump_clock: MockClock) -> None:
    """The clock jumps again only when every hold is released, with the threshold that it had."""
    hold_clock()
    hold_clock()
    assert autojump_clock.autojump_threshold == math.inf
    release_clock()
    assert autojump_clock.autojump_threshold == math.inf
    release_clock()
    assert autojump_clock.autojump_threshold == 0


async def test_a_real_clock_is_left_alone() -> None:
    """Holding does nothing where no clock jumps."""
    hold_clock()
    release_clock()
    assert threads._hold_count.get() == 0


async def test_the_clock_stands_still_while_a_thread_works(autojump_clock: MockClock) -> None:
    """A thread takes no virtual time, however long it works, and sleeping tasks continue when it has ended."""
    slept = []
    leave = threading.Event()

    async def sleeper() -> None:
        await trio.sleep(5)
        slept.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleeper)
        nursery.start_soon(Lease(lambda: None).run, leave.wait)
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert slept == []
        assert trio.current_time() == 0
        leave.set()
    assert slept == [5]


async def test_a_lease_ends_once(autojump_clock: MockClock) -> None:
    """A lease ends exactly once, when its thread returns or raises."""
    ended = []
    assert await Lease(lambda: ended.append("returned")).run(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await Lease(lambda: ended.append("raised")).run(lambda: 1 // 0)
    assert ended == ["returned", "raised"]
    assert autojump_clock.autojump_threshold == 0


async def test_a_lease_cancelled_before_its_thread_starts_ends_at_once(autojump_clock: MockClock) -> None:
    """Where there was never a thread, the lease ends without one and the function is not called."""
    ended, called = [], []
    lease = Lease(lambda: ended.append(1))
    with trio.CancelScope() as scope:
        scope.cancel()
        await lease.run(lambda: called.append(1))
    assert (ended, called, lease.abandoned) == ([1], [], False)
    assert autojump_clock.autojump_threshold == 0


async def test_an_abandoned_thread_holds_its_lease_until_it_ends(autojump_clock: MockClock) -> None:
    """A cancelled lease raises at once; slot and clock are released when the thread ends."""
    leave, calls, over = threading.Event(), [], trio.Event()

    def end() -> None:
        calls.append("end")
        over.set()

    lease = Lease(end)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lease.run, leave.wait)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    assert lease.abandoned
    assert calls == []
    assert autojump_clock.autojump_threshold == math.inf
    leave.set()
    await over.wait()
    assert calls == ["end"]
    assert autojump_clock.autojump_threshold == 0


async def test_finish_in_thread_waits_when_cancelled(autojump_clock: MockClock) -> None:
    """Work in `finish_in_thread` returns its result although its task is cancelled meanwhile."""
    entered, leave, results = threading.Event(), threading.Event(), []

    def work() -> int:
        entered.set()
        leave.wait()
        return 7

    async def run() -> None:
        results.append(await finish_in_thread(work))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await trio.to_thread.run_sync(entered.wait)
        nursery.cancel_scope.cancel()
        leave.set()
    assert results == [7]
    assert autojump_clock.autojump_threshold == 0


async def test_a_process_is_reused_and_ended_with_its_context() -> None:
    """Functions run in another process, one after the other in the same, and none of them is left afterwards."""
    async with open_processes(1) as processes:
        first = await processes.run("x", own_pid)
        assert first not in {os.getpid(), None}
        assert await processes.run("x", own_pid, 1) == first
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


async def test_a_crashed_process_is_an_error_of_its_column(autojump_clock: MockClock) -> None:
    """A process that dies is `WorkerCrashed` with the column's name, and the next call gets a new process."""
    async with open_processes(1) as processes:
        with pytest.raises(WorkerCrashed, match="ran column 'x' died"):
            await processes.run("x", crash)
        assert await processes.run("x", own_pid) != os.getpid()
    assert autojump_clock.autojump_threshold == 0


async def test_a_cancelled_call_kills_its_process() -> None:
    """A process that would run forever does not delay a cancelled run."""
    async with open_processes(1) as processes:
        pid = await processes.run("x", own_pid)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(processes.run, "x", forever)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert await processes.run("x", own_pid) != pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("error", [None, KeyError("mine")])
async def test_leaving_the_processes_releases_the_clock(error: Exception | None, autojump_clock: MockClock) -> None:
    """Leaving the context, normally, by an exception or cancelled, leaves the clock as it was."""
    try:
        async with open_processes(1):
            if error is not None:
                raise error
    except KeyError as raised:
        assert raised is error  # noqa: PT017 - it may also not be raised
    with trio.CancelScope() as scope:
        async with open_processes(1):
            scope.cancel()
            await trio.sleep_forever()
    assert autojump_clock.autojump_threshold == 0
    assert threads._hold_count.get() == 0
