"""`build` and `preview` from wherever synchronous code may run."""

from __future__ import annotations

import asyncio
import signal
import threading
from typing import TYPE_CHECKING

import outcome
import pytest
import trio

import seedbed as sb
from seedbed.engine import api

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


async def numbers(rows: range) -> list[int]:
    """Fill a column with the numbers of its rows."""
    return list(rows)


async def doubled(n: int) -> int:
    """Fill a cell on trio's loop."""
    await trio.lowlevel.checkpoint()
    return 2 * n


def text(doubled: int) -> str:
    """Fill a cell in a thread."""
    return str(doubled)


def nested(n: int) -> int:
    """Build a little dataset inside a cell."""
    return sb.preview([SEED], rows=n + 1).to_polars().height


SEED = sb.Column("n", numbers, kind="from_scratch")
COLUMNS = [SEED, sb.Column("doubled", doubled), sb.Column("text", text)]


def grow(out: Path) -> list[str]:
    """Build as a user does who knows nothing of loops."""
    return sb.build(COLUMNS, rows=3, out=out, config=sb.RunConfig(buffer_size=2)).to_polars()["text"].to_list()


def in_asyncio(function: Callable[[], list[str]]) -> list[str]:
    """Call it on the thread of an asyncio loop."""

    async def main() -> list[str]:
        return function()

    return asyncio.run(main())


def in_trio(function: Callable[[], list[str]]) -> list[str]:
    """Call it on the thread of a trio run."""

    async def main() -> list[str]:
        return function()

    return trio.run(main)


def in_trio_worker(function: Callable[[], list[str]]) -> list[str]:
    """Call it in a worker thread of a trio run."""
    return trio.run(trio.to_thread.run_sync, function)


def in_other_thread(function: Callable[[], list[str]]) -> list[str]:
    """Call it in a thread that is not the main one."""
    results: list[outcome.Outcome[list[str]]] = []
    thread = threading.Thread(target=lambda: results.append(outcome.capture(function)))
    thread.start()
    thread.join()
    return results[0].unwrap()


def in_asyncio_of_other_thread(function: Callable[[], list[str]]) -> list[str]:
    """Call it on the thread of a loop that is not in the main thread."""
    return in_other_thread(lambda: in_asyncio(function))


def in_script(function: Callable[[], list[str]]) -> list[str]:
    """Call it."""
    return function()


PLACES = pytest.mark.parametrize(
    "place", [in_script, in_asyncio, in_trio, in_trio_worker, in_other_thread, in_asyncio_of_other_thread]
)


@PLACES
def test_a_build_runs_anywhere(place: Callable[[Callable[[], list[str]]], list[str]], tmp_path: Path) -> None:
    """A build gives the same wherever it is called, and leaves signal handlers and threads as they were."""
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert place(lambda: grow(tmp_path / "out")) == ["0", "2", "4"]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("seedbed")]


@PLACES
def test_an_error_comes_out_anywhere(place: Callable[[Callable[[], list[str]]], list[str]], tmp_path: Path) -> None:
    """What is wrong with a build is raised where it was called, as itself."""
    (tmp_path / "used").touch()
    with pytest.raises(sb.OutputDirectoryError, match="not empty"):
        place(lambda: grow(tmp_path))


def test_a_build_in_a_loop_explains_itself_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first build on the thread of a loop says why it is in a thread and what there is instead; no other does."""
    api._explain_thread.cache_clear()
    grow(tmp_path / "script")
    assert not caplog.records
    for name in ("first", "second"):
        in_asyncio(lambda name=name: grow(tmp_path / name))  # type: ignore[misc]
    (record,) = caplog.records
    assert record.name == "seedbed"
    assert "an event loop runs in this thread" in record.message
    assert "await seedbed.build_async(...)" in record.message


def test_a_build_inside_a_cell_of_a_build(tmp_path: Path) -> None:
    """A sync cell, whose thread belongs to a run, may itself start one."""
    dataset = sb.build([SEED, sb.Column("nested", nested)], rows=3, out=tmp_path / "out")
    assert dataset.to_polars()["nested"].to_list() == [1, 2, 3]


def test_the_hosts_loop_still_works_after_a_preview() -> None:
    """An asyncio loop in which a preview ran still works: its tasks, its timers, its own signal handling."""

    async def main() -> list[object]:
        sleeper = asyncio.create_task(asyncio.sleep(0, "slept"))
        frame = sb.preview(COLUMNS, rows=2).to_polars()
        heard = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, heard.set)
        sb.preview(COLUMNS, rows=1, readers=[lambda _: None])
        signal.raise_signal(signal.SIGUSR1)
        await asyncio.wait_for(heard.wait(), 30)
        return [frame.height, await sleeper]

    assert asyncio.run(main()) == [2, "slept"]


def test_a_signal_of_the_loop_during_a_build_reaches_it() -> None:
    """A signal that is not ours and comes while a build runs in the loop's thread is handled by the loop afterwards."""

    async def raises(n: int) -> int:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        return n

    async def main() -> bool:
        heard = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, heard.set)
        sb.preview([SEED, sb.Column("raises", raises)], rows=1)
        await asyncio.wait_for(heard.wait(), 30)
        return heard.is_set()

    assert asyncio.run(main())
