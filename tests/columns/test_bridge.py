"""The bridge adds the missing method, `generate` or `agenerate`, to a generator."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest
import trio

from seedbed import Column, RunConfig, bridge, open_build
from seedbed.columns.base import UncallableError
from seedbed.columns.custom import Bridged


class Async:
    """Written async."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    async def agenerate(self, n: int, *, plus: int = 0) -> int:
        await trio.lowlevel.checkpoint()
        self.threads.append(threading.current_thread())
        if n < 0:
            raise ValueError("negative")
        return n + plus


class Sync:
    """Written sync."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def generate(self, n: int, *, plus: int = 0) -> int:
        self.threads.append(threading.current_thread())
        if n < 0:
            raise ValueError("negative")
        return n + plus


def numbers(rows: range) -> list[int]:
    """The row numbers."""
    return list(rows)


class TestGenerate:
    def test_from_plain_code(self) -> None:
        """Without a loop, the async method has one of its own for the call."""
        assert bridge(Async()).generate(1, plus=2) == 3

    def test_exceptions_are_not_wrapped(self) -> None:
        """An exception of the async method is raised unchanged."""
        with pytest.raises(ValueError, match="negative"):
            bridge(Async()).generate(-1)

    async def test_inside_a_running_trio_loop(self) -> None:
        """Sync code called from async code gets its answer from a thread, and the loop continues."""
        generator = Async()
        assert bridge(generator).generate(1, plus=2) == 3
        assert generator.threads[0] is not threading.current_thread()
        with pytest.raises(ValueError, match="negative"):
            bridge(generator).generate(-1)
        await trio.lowlevel.checkpoint()

    def test_inside_a_running_asyncio_loop(self) -> None:
        """The same in a notebook, whose loop is asyncio's."""

        async def notebook() -> int:
            await asyncio.sleep(0)
            answer = bridge(Async()).generate(1, plus=2)
            await asyncio.sleep(0)
            return answer

        assert asyncio.run(notebook()) == 3

    async def test_in_a_plain_worker_thread(self) -> None:
        """A thread without a loop and without a build has a loop made for the call."""
        assert await trio.to_thread.run_sync(lambda: bridge(Async()).generate(5)) == 5

    async def test_context_variables_are_copied(self) -> None:
        """The async method sees the context variables of the caller, also in a thread."""
        variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")

        async def read() -> str:
            return variable.get()

        variable.set("mine")
        assert bridge(read).generate() == "mine"

    def test_a_sync_generator_is_called_directly(self) -> None:
        """No thread or loop is involved."""
        generator = Sync()
        assert bridge(generator).generate(1) == 1
        assert generator.threads == [threading.current_thread()]

    @pytest.mark.parametrize("slots", [1, 2, 8])
    async def test_in_a_worker_thread_of_a_build(self, slots: int) -> None:
        """The call runs on the build's own loop through its portal; with one slot it does not deadlock."""
        inner = Async()

        def v(n: int) -> int:
            return int(bridge(inner).generate(n, plus=100))

        async with open_build(
            [Column("n", numbers, kind="from_scratch"), Column("v", v)],
            rows=6,
            config=RunConfig(max_active_tasks=slots, max_submitted_tasks=slots),
        ) as build:
            (frame,) = [group.to_polars() async for group in build]
        assert frame["v"].to_list() == [100, 101, 102, 103, 104, 105]
        assert set(inner.threads) == {threading.current_thread()}

    async def test_virtual_time_passes_while_a_thread_waits(self, autojump_clock: trio.testing.MockClock) -> None:
        """A thread that waits through the portal does not hold the clock."""

        async def slow(n: int) -> int:
            await trio.sleep(1_000)
            return n

        def v(n: int) -> int:
            return int(bridge(slow).generate(n))

        start = trio.current_time()
        async with open_build([Column("n", numbers, kind="from_scratch"), Column("v", v)], rows=3) as build:
            report = await build.wait()
        assert report.written == 3
        assert trio.current_time() - start == 1_000


class TestAgenerate:
    async def test_sync_code_gets_a_thread(self) -> None:
        """The loop is not blocked."""
        generator = Sync()
        assert await bridge(generator).agenerate(1, plus=2) == 3
        assert generator.threads[0] is not threading.current_thread()

    async def test_async_code_is_awaited_directly(self) -> None:
        """No thread or loop is involved."""
        generator = Async()
        assert await bridge(generator).agenerate(1) == 1
        assert generator.threads == [threading.current_thread()]

    async def test_exceptions_are_not_wrapped(self) -> None:
        """An exception in the thread is raised unchanged."""
        with pytest.raises(ValueError, match="negative"):
            await bridge(Sync()).agenerate(-1)

    async def test_the_thread_limit_is_released(self) -> None:
        """Every token of trio's limiter is released, also after an exception."""
        limiter = trio.to_thread.current_default_thread_limiter()
        before = limiter.borrowed_tokens
        await bridge(Sync()).agenerate(1)
        with pytest.raises(ValueError, match="negative"):
            await bridge(Sync()).agenerate(-1)
        assert limiter.borrowed_tokens == before


class TestBridge:
    def test_functions_can_be_bridged(self) -> None:
        """A bridged function has both methods."""
        assert bridge(lambda n: n + 1).generate(1) == 2

    def test_bridging_twice_changes_nothing(self) -> None:
        """A bridged generator is returned as it is."""
        once = bridge(Sync())
        assert bridge(once) is once
        assert isinstance(once, Bridged)

    @pytest.mark.parametrize(
        ("generator", "text"),
        [
            (3, "has 3 as its generator, which is not a function and has neither generate nor agenerate"),
            (Sync, "has the class Sync as its generator; give it an instance"),
            (Async, "has the class Async as its generator; give it an instance"),
        ],
    )
    def test_invalid_generators_are_rejected(self, generator: object, text: str) -> None:
        """An object with neither method and a class are rejected."""
        with pytest.raises(UncallableError, match=text):
            bridge(generator)

    async def test_a_bridged_generator_fills_a_column(self) -> None:
        """A column accepts a bridged generator."""
        async with open_build(
            [Column("n", numbers, kind="from_scratch"), Column("v", bridge(Sync()), requires=["n"])], rows=2
        ) as build:
            (frame,) = [group.to_polars() async for group in build]
        assert frame["v"].to_list() == [0, 1]
