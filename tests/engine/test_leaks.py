"""What is left after a build: nothing, or what the report names."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
import tracemalloc
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

import seedbed as sb

if TYPE_CHECKING:
    from seedbed.engine.run import Run


async def numbers(rows: range) -> list[int]:
    """Fill a column with the numbers of its rows."""
    return list(rows)


async def answered(n: int) -> int:
    """Fill a cell under a permit."""
    await trio.lowlevel.checkpoint()
    return n


def threaded(n: int) -> str:
    """Fill a cell in a thread."""
    return str(n)


SEED = sb.Column("n", numbers, kind="from_scratch")
COLUMNS = [SEED, sb.Column("answered", answered, key="k"), sb.Column("threaded", threaded)]
BUILDS = 200


def descriptors() -> int:
    """How many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


async def grow(out: Path, throttles: Any = None) -> None:
    """Build a little dataset on disk."""
    await sb.build_async(COLUMNS, rows=4, out=out, config=sb.RunConfig(buffer_size=2), throttles=throttles)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_many_builds_leave_no_file_open(tmp_path: Path) -> None:
    """After two hundred builds no more files are open than after a few, whether each has its own run or not."""
    for index in range(5):
        sb.build(COLUMNS, rows=4, out=tmp_path / f"warm{index}", config=sb.RunConfig(buffer_size=2))
    gc.collect()
    before = descriptors()
    for index in range(BUILDS // 2):
        sb.build(COLUMNS, rows=4, out=tmp_path / f"own{index}", config=sb.RunConfig(buffer_size=2))

    async def shared() -> None:
        for index in range(BUILDS // 2):
            await grow(tmp_path / f"shared{index}")

    trio.run(shared)
    assert descriptors() <= before


def test_many_builds_in_one_run_keep_no_memory(tmp_path: Path) -> None:
    """Two hundred builds that share a run and its throttles need no more memory than a few."""

    async def main() -> tuple[int, int, int]:
        async with sb.open_throttles() as throttles:
            for index in range(20):
                await grow(tmp_path / f"warm{index}", throttles)
            gc.collect()
            tracemalloc.start()
            try:
                before = tracemalloc.get_traced_memory()[0]
                for index in range(BUILDS):
                    await grow(tmp_path / f"out{index}", throttles)
                gc.collect()
                after = tracemalloc.get_traced_memory()[0]
            finally:
                tracemalloc.stop()
            return before, after, len(throttles.get("k")._listeners)

    before, after, listeners = trio.run(main)
    # The history of a shared throttle may grow to its bound; a run that stayed alive would cost 20 kB a build.
    assert after - before < BUILDS * 1_500
    assert listeners == 0


async def test_a_run_is_freed(autojump_clock: trio.testing.MockClock) -> None:
    """Nothing keeps the state of a run alive once its build is out of sight, however it ended."""
    runs: list[weakref.ref[Run]] = []

    async def one(stop: bool) -> None:
        async def refused(n: int) -> int:
            if n == 1:
                raise sb.RateLimited(retry_after=50)
            await trio.sleep(1)
            return n

        async with sb.open_build([SEED, sb.Column("refused", refused, key="k")], rows=2) as build:
            await trio.sleep(0.5)
            assert build._run is not None
            runs.append(weakref.ref(build._run))
            if stop:
                build.stop()
                with pytest.raises(sb.Interrupted):
                    await build.wait()

    await one(stop=True)
    await one(stop=False)
    gc.collect()
    assert [run() for run in runs] == [None, None]


def test_no_thread_is_left_at_work(tmp_path: Path) -> None:
    """When a build has ended none of its threads works: those that trio keeps for the next one have its own name."""
    before = set(threading.enumerate())
    sb.build(COLUMNS, rows=4, out=tmp_path / "out", config=sb.RunConfig(buffer_size=2))
    left = [thread.name for thread in threading.enumerate() if thread not in before]
    assert [name for name in left if not name.startswith("Trio thread ")] == []


async def test_a_thread_that_cannot_be_ended_is_named(tmp_path: Path) -> None:
    """User code that hangs in a thread does not keep a cancelled run; the report names its column until it ends."""
    entered, leave = trio.Event(), threading.Event()
    token = trio.lowlevel.current_trio_token()

    def hangs(n: int) -> int:
        token.run_sync_soon(entered.set)
        leave.wait()
        return n

    try:
        async with sb.open_build([SEED, sb.Column("hangs", hangs)], rows=1, out=tmp_path / "out") as build:
            await entered.wait()
            build.stop()
            build.stop()
            with pytest.raises(sb.Interrupted) as stopped:
                await build.wait()
        report = stopped.value.report
        assert report is not None
        assert report.running_threads == {"hangs": 1}
        assert "threads still running: hangs (1)" in str(report)
    finally:
        leave.set()
    run = build._run
    assert run is not None
    with trio.fail_after(30):
        while run.scheduler.statistics().active:  # its slot comes back when it really ends, run or no run
            await trio.testing.wait_all_tasks_blocked(0.001)
    assert run.ledger.late_threads == {"hangs": 1}


def own_pid(n: int) -> int:
    """Say which process fills the cell."""
    return os.getpid()


def test_no_process_is_left(tmp_path: Path) -> None:
    """The worker processes of a build are gone when it has ended."""
    column = sb.Column("pid", own_pid, process=True)
    dataset = sb.build([SEED, column], rows=4, out=tmp_path / "out", config=sb.RunConfig(max_processes=1))
    pids = set(dataset.to_polars()["pid"])
    assert os.getpid() not in pids
    assert multiprocessing.active_children() == []
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
