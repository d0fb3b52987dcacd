"""The event loops that others bring, and what the tests of them build."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import pytest
import trio
import uvloop

import seedbed as sb

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

T = TypeVar("T")

PATIENCE = 60  # seconds
# For processes that import what the tests import.
PYTHONPATH = os.pathsep.join([str(Path(sb.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])


def under_trio(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Trio itself."""
    return trio.run(main)


def under_anyio_on_trio(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Anyio with trio below."""
    return anyio.run(main, backend="trio")


def under_asyncio(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Plain asyncio."""
    return asyncio.run(main())


def under_anyio_on_asyncio(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Anyio with asyncio below."""
    return anyio.run(main, backend="asyncio")


def under_uvloop(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Asyncio on another loop."""
    return uvloop.run(main())


ALL = [under_trio, under_anyio_on_trio, under_asyncio, under_anyio_on_asyncio, under_uvloop]
GUESTS = [under_asyncio, under_anyio_on_asyncio, under_uvloop]
HOSTS = pytest.mark.parametrize("host", ALL)
GUEST_HOSTS = pytest.mark.parametrize("host", GUESTS)


async def numbers(rows: range) -> list[int]:
    """Fill a column with the numbers of its rows."""
    return list(rows)


NUMBERS = sb.Column("n", numbers, kind="from_scratch")


async def doubled(n: int) -> int:
    """Fill a cell on trio's loop."""
    await trio.sleep(0.001)
    return 2 * n


COLUMNS = [NUMBERS, sb.Column("doubled", doubled)]


class Waits:
    """A column whose cells hang after the first `quick` rows and record how they end."""

    def __init__(self, quick: int = 0) -> None:
        self._quick = quick
        self._arrivals = itertools.count(1)
        self.waiting = 0
        self.unwound = 0
        self.on_wait: Callable[[int], object] = lambda _: None

    async def agenerate(self, n: int) -> int:
        """Wait, if it is one of those that do."""
        if n < self._quick:
            return n
        self.waiting += 1
        try:
            self.on_wait(next(self._arrivals))
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 10):
                await trio.sleep(0.01)  # a caller that does not wait for this sees that it is missing
            self.waiting -= 1
            self.unwound += 1
        raise AssertionError("nothing wakes it")

    @property
    def columns(self) -> list[sb.Column]:
        return [NUMBERS, sb.Column("x", self)]


async def until(holds: Callable[[], object]) -> None:
    """Let the host's loop turn until something holds; a test in which it never does fails."""
    with anyio.fail_after(PATIENCE):
        while not holds():  # noqa: ASYNC110  what changes it is on trio's side, which knows no events of the host's
            await anyio.sleep(0.001)


@contextmanager
def child(*arguments: str | Path, environment: dict[str, str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Python in a process of its own; one that hangs is killed, so that its test fails."""
    with subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": PYTHONPATH, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    ) as process:
        timer = threading.Timer(PATIENCE, process.kill)
        timer.start()
        try:
            yield process
        finally:
            timer.cancel()
            timer.join()
            process.kill()
