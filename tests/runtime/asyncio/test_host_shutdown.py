"""A host that shuts down leaves nothing running, and its thread as it was."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
from hosts import COLUMNS, GUEST_HOSTS, Waits, child, under_asyncio, until

import seedbed as sb
from seedbed.runtime.asyncio import aclose, guest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FAULTS = Path(__file__).parents[2] / "faults"


@pytest.fixture(autouse=True)
def usable_thread() -> Iterator[None]:
    """After each of these tests trio runs in this thread, by itself and as a guest."""
    yield
    assert guest._thread.guest is None
    assert not trio.lowlevel.in_trio_run()

    async def main() -> int:
        async with sb.open_build(COLUMNS, rows=1) as build:
            return (await build.wait()).written

    assert trio.run(main) == 1
    assert under_asyncio(main) == 1
    gc.collect()


@GUEST_HOSTS
def test_a_loop_that_ends_ends_the_builds_in_it(host: Callable[..., object], tmp_path: Path) -> None:
    """When the main task returns, builds of other tasks are cancelled and unwind before the loop is closed."""
    cells = Waits()
    tasks: list[asyncio.Task[object]] = []

    async def main() -> None:
        tasks.extend(
            asyncio.create_task(sb.build_async(cells.columns, rows=2, out=tmp_path / name)) for name in ("a", "b")
        )
        await until(lambda: cells.waiting >= 4)

    host(main)
    assert cells.unwound == 4
    assert all(task.cancelled() for task in tasks)


@GUEST_HOSTS
def test_a_loop_that_ends_while_the_guest_starts(host: Callable[..., object], tmp_path: Path) -> None:
    """If the loop ends early, the guest is cancelled while it starts and nothing is left."""

    async def main(turns: int) -> None:
        task = asyncio.create_task(sb.build_async(COLUMNS, rows=2, out=tmp_path / str(turns)))
        for _ in range(turns):
            await asyncio.sleep(0)
        del task

    for turns in range(12):
        host(lambda turns=turns: main(turns))  # type: ignore[misc]
        assert guest._thread.guest is None


def test_a_build_that_begins_while_the_guest_ends_gets_another(tmp_path: Path) -> None:
    """Whatever the instant at which a build comes, it never meets a guest that is about to end."""

    async def main() -> None:
        async def one(number: int) -> int:
            for _ in range(number):
                await asyncio.sleep(0)
            return (await sb.build_async(COLUMNS, rows=1, out=tmp_path / str(number))).rows

        async def throttles(number: int) -> None:
            for _ in range(number):
                async with sb.open_throttles():
                    pass

        built = await asyncio.gather(*map(one, range(0, 60, 3)), *map(throttles, range(5)))
        assert built[:20] == [1] * 20

    under_asyncio(main)


def test_a_stopped_loop_continues_when_run_again() -> None:
    """`loop.stop` in the middle of a build harms nothing: the loop can be run again, and the build ends."""
    loop = asyncio.new_event_loop()

    async def build() -> int:
        async with sb.open_build(COLUMNS, rows=20, config=sb.RunConfig(buffer_size=2)) as running:
            async for group in running:
                if group.row_group == 1:
                    loop.stop()
            return running.report.written

    task = loop.create_task(build())
    loop.run_forever()
    assert not task.done()
    assert loop.run_until_complete(task) == 20
    loop.close()


def test_aclose_ends_the_builds_of_a_loop_run_by_hand() -> None:
    """After `aclose` a loop can be closed: the build and the tasks that wait for it are cancelled."""
    cells = Waits()
    loop = asyncio.new_event_loop()

    async def build() -> None:
        async with sb.open_build(cells.columns, rows=2):
            await asyncio.Event().wait()

    async def started() -> None:
        await until(lambda: cells.waiting >= 2)

    task = loop.create_task(build())
    loop.run_until_complete(started())
    loop.run_until_complete(aclose())
    loop.run_until_complete(asyncio.wait([task]))
    assert cells.unwound == 2
    assert task.cancelled()
    loop.run_until_complete(aclose())  # there is nothing more to end
    loop.close()


def test_aclose_under_trio_has_nothing_to_do() -> None:
    """The same program can call it under any host."""
    trio.run(aclose)


@pytest.mark.parametrize("rescue", [aclose, lambda: sb.build_async(COLUMNS, rows=1, out=sys.argv[-1])])
def test_a_loop_that_is_closed_under_its_guest_does_not_cost_the_thread(
    rescue: Callable[[], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever uses the thread next ends what a loop left behind, and has trio for themselves."""
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "out")])
    cells = Waits()
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _loop, _context: None)  # its tasks are lost, and asyncio says so
    block = sb.open_build(cells.columns, rows=2)

    async def enter() -> None:
        await block.__aenter__()
        await until(lambda: cells.waiting >= 2)

    loop.run_until_complete(enter())
    loop.close()
    assert trio.lowlevel.in_trio_run()

    async def main() -> None:
        await rescue()  # type: ignore[misc]

    under_asyncio(main)
    assert cells.unwound == 2


def test_another_loop_of_the_thread_gets_an_error() -> None:
    """While one loop of a thread has something open, another cannot, and says so."""
    loop, other = asyncio.new_event_loop(), asyncio.new_event_loop()
    block = sb.open_throttles()
    loop.run_until_complete(block.__aenter__())

    async def main() -> None:
        async with sb.open_throttles():
            raise AssertionError("it was entered")

    with pytest.raises(sb.SeedbedError, match="another asyncio loop of this thread"):
        other.run_until_complete(main())
    with pytest.raises(sb.SeedbedError, match="belong to another asyncio loop"):
        other.run_until_complete(aclose())
    other.close()
    loop.run_until_complete(block.__aexit__(None, None, None))
    loop.close()


def test_a_guest_run_of_other_code_is_not_used() -> None:
    """Where a program runs trio as a guest by itself, the error on asyncio's side says to await in a trio task."""

    async def main() -> None:
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        trio.lowlevel.start_guest_run(
            trio.sleep,
            0.05,
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            done_callback=lambda _: done.set(),
            host_uses_signal_set_wakeup_fd=True,
        )
        with pytest.raises(sb.SeedbedError, match="a guest of other code"):
            async with sb.open_throttles():
                pass
        await done.wait()

    under_asyncio(main)


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
@pytest.mark.parametrize("how", ["asyncio", "anyio", "by hand"])
def test_ctrl_c_ends_the_build_and_leaves_the_thread_usable(how: str, tmp_path: Path) -> None:
    """A Ctrl-C unwinds waiting cells, ends the loop with KeyboardInterrupt, says nothing else, and trio runs again."""
    with child(FAULTS / "hosted_build.py", tmp_path / "out", how, environment={"PYTHONWARNINGS": "error"}) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for _ in range(4):
            assert process.stdout.readline() == "waiting\n"
        while not (tmp_path / "out" / "batch_0000000.parquet").exists():
            pass
        process.send_signal(signal.SIGINT)
        said = process.stdout.read().splitlines()
        complaints = process.stderr.read()
    assert complaints == ""
    assert said == [*["unwound"] * 4, "interrupted False", "rows 6 MainThread Trio"]
