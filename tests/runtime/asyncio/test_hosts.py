"""The same code under every event loop."""

from __future__ import annotations

import contextvars
import threading
from typing import TYPE_CHECKING

import anyio
import pytest
import trio
from hosts import ALL, COLUMNS, GUEST_HOSTS, HOSTS, NUMBERS, under_asyncio, until

import seedbed as sb
from seedbed.errors import PlanError
from seedbed.plans import PlanEngine, parse_plan
from seedbed.runtime.asyncio import guest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

COLOUR: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")
SMALL = sb.RunConfig(buffer_size=2)


@HOSTS
def test_a_build_is_the_same_everywhere(host: Callable[..., sb.Dataset], tmp_path: Path) -> None:
    """`build_async` makes the same dataset whatever loop its caller runs."""

    async def main() -> sb.Dataset:
        return await sb.build_async(COLUMNS, rows=5, out=tmp_path / "out", config=SMALL)

    dataset = host(main)
    assert dataset.complete
    assert dataset.to_polars()["doubled"].to_list() == [0, 2, 4, 6, 8]
    assert dataset.report is not None
    assert dataset.report.written == 5


def cubed(n: int) -> int:
    """Fill a cell in a thread, or in a process."""
    return n**3


@HOSTS
def test_threads_and_processes_work_everywhere(host: Callable[..., sb.Dataset], tmp_path: Path) -> None:
    """Sync functions run in threads and processes under every host."""
    columns = [NUMBERS, sb.Column("t", cubed), sb.Column("c", cubed, process=True)]

    async def main() -> sb.Dataset:
        return await sb.build_async(columns, rows=3, out=tmp_path / "out")

    assert host(main).to_polars().rows() == [(0, 0, 0), (1, 1, 1), (2, 8, 8)]


@HOSTS
def test_groups_come_as_they_finish_everywhere(host: Callable[..., object]) -> None:
    """`open_build` hands out every row group, then its report, and works together with anyio's own tools."""

    async def main() -> None:
        seen: dict[int, list[int]] = {}
        async with sb.open_build(COLUMNS, rows=6, config=SMALL) as build:
            with anyio.fail_after(60):
                async for group in build:
                    seen[group.row_group] = group.to_polars()["doubled"].to_list()
            assert build.report.written == 6
            assert await build.wait() == build.report
        assert seen == {0: [0, 2], 1: [4, 6], 2: [8, 10]}

    host(main)


@HOSTS
def test_a_block_that_is_left_early_ends_the_build(host: Callable[..., object]) -> None:
    """Leaving the block before the build has ended cancels the rest and waits for it."""
    cells = [0, 0]

    async def endless(n: int) -> int:
        cells[0] += 1
        try:
            await trio.sleep_forever()
        finally:
            cells[1] += 1
        return n

    async def main() -> None:
        async with sb.open_build([NUMBERS, sb.Column("x", endless)], rows=4):
            await until(lambda: cells[0] >= 4)

    host(main)
    assert cells == [4, 4]


@HOSTS
def test_stop_gives_cells_in_flight_their_grace_period(host: Callable[..., object], tmp_path: Path) -> None:
    """`stop`, which does not wait, works from the host's side, and `wait` raises why the build ended."""
    go: list[trio.Event] = []

    async def held(n: int) -> int:
        go.append(trio.Event())
        await go[-1].wait()
        return n

    async def main() -> sb.Interrupted:
        config = sb.RunConfig(buffer_size=1, max_concurrent_row_groups=2)
        async with sb.open_build([NUMBERS, sb.Column("x", held)], rows=9, out=tmp_path / "out", config=config) as build:
            await until(lambda: len(go) >= 2)
            build.stop()
            for event in go:
                event.set()
            with pytest.raises(sb.Interrupted) as caught:
                await build.wait()
        return caught.value

    stopped = host(main)
    assert isinstance(stopped, sb.Interrupted)
    assert stopped.report is not None
    assert stopped.report.written == 2


@HOSTS
def test_context_variables_of_the_caller_are_seen_in_cells(host: Callable[..., object]) -> None:
    """A cell sees what its caller's context holds, under a guest run too, which another caller started."""
    seen: list[str] = []

    async def look(n: int) -> int:
        seen.append(COLOUR.get())
        return n

    async def main() -> None:
        async with sb.open_throttles():  # starts the guest, without the colour
            COLOUR.set("green")
            async with sb.open_build([NUMBERS, sb.Column("x", look)], rows=2) as build:
                await build.wait()

    contextvars.Context().run(host, main)
    assert seen == ["green", "green"]


PLAN = parse_plan(
    {
        "schema_version": 1,
        "plan_name": "first_three",
        "nodes": [
            {"node_id": "n0", "op": "test::fixed_source", "inputs": [], "params": {"row_count": 10}},
            {"node_id": "n1", "op": "core::take", "inputs": ["n0"], "params": {"count": 3}},
        ],
        "outputs": ["n1"],
        "expr_table": {},
        "pred_table": {},
    }
)


@HOSTS
def test_an_engine_answers_everywhere(host: Callable[..., object]) -> None:
    """Requests at once are answered whatever loop they come from, and what is wrong with one is raised as itself."""

    async def main() -> list[list[int]]:
        answers: list[list[int]] = []
        async with PlanEngine(max_concurrent_requests=4) as engine:

            async def ask(user: int) -> None:
                response = await engine.execute(PLAN, {"user_id": user})
                answers.append([each["id"] for each in response.candidates])

            async with anyio.create_task_group() as group:
                for user in range(5):
                    group.start_soon(ask, user)
            with pytest.raises(PlanError, match="deadline"):
                await engine.execute(PLAN, {"user_id": 1}, deadline=0)
            assert engine.statistics().outcomes == {"OK": 5, "DEADLINE_EXCEEDED": 1}
        assert engine.drained is not None
        return answers

    assert host(main) == [[1, 2, 3]] * 5


@HOSTS
def test_two_builds_share_one_throttle(host: Callable[..., object], tmp_path: Path) -> None:
    """Builds under one `open_throttles` never have more in flight than their key allows together."""
    flying = [0, 0]

    async def call(n: int) -> int:
        flying[0] += 1
        flying[1] = max(flying)
        await trio.sleep(0.002)
        flying[0] -= 1
        return n

    columns = [NUMBERS, sb.Column("x", call, key="endpoint")]

    async def main() -> None:
        async with sb.open_throttles({"endpoint": sb.KeyLimits(max_parallel_requests=3)}) as throttles:

            async def one(name: str) -> None:
                await sb.build_async(columns, rows=12, out=tmp_path / name, throttles=throttles)

            async with anyio.create_task_group() as group:
                group.start_soon(one, "a")
                group.start_soon(one, "b")
            assert throttles.keys() == ("endpoint",)

    host(main)
    assert flying == [0, 3]
    assert [sb.Dataset.open(tmp_path / name).rows for name in "ab"] == [12, 12]


@GUEST_HOSTS
def test_all_that_a_thread_runs_shares_one_guest(host: Callable[..., object]) -> None:
    """Builds, throttles and engines of a loop are in one trio run without a thread of ours, which ends with them."""
    seen: set[object] = set()

    async def look(n: int) -> int:
        seen.add(trio.lowlevel.current_trio_token())
        return n

    async def main() -> None:
        async with sb.open_throttles(), PlanEngine(), sb.open_build([NUMBERS, sb.Column("x", look)], rows=3) as build:
            async with sb.open_build([NUMBERS, sb.Column("x", look)], rows=3) as other:
                await other.wait()
            await build.wait()
            assert guest._thread.guest is not None
            assert not [each.name for each in threading.enumerate() if "seedbed" in each.name]
        assert guest._thread.guest is None
        assert not trio.lowlevel.in_trio_run()

    host(main)
    assert len(seen) == 1


def test_loops_of_two_threads_have_a_guest_each(tmp_path: Path) -> None:
    """Two asyncio loops in two threads build at the same time, each with trio on its own thread."""
    together = threading.Barrier(2)
    tokens: list[object] = []

    def work(name: str) -> None:
        async def meet(n: int) -> int:
            tokens.append(trio.lowlevel.current_trio_token())
            await trio.to_thread.run_sync(together.wait, 60)
            return n

        async def main() -> None:
            await sb.build_async([NUMBERS, sb.Column("x", meet)], rows=1, out=tmp_path / name)

        under_asyncio(main)

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(set(tokens)) == 2
    assert [sb.Dataset.open(tmp_path / name).rows for name in "ab"] == [1, 1]


@pytest.mark.parametrize("function", [sb.build_async, sb.open_build, sb.open_throttles, PlanEngine.execute])
def test_a_wrapped_function_keeps_its_name_and_its_documentation(function: Callable[..., object]) -> None:
    """`help` shows the signature and docstring of the original."""
    assert function.__doc__
    assert function.__wrapped__.__name__ == function.__name__  # type: ignore[attr-defined]


def test_without_a_loop_the_error_names_what_is_needed() -> None:
    """Awaited by something that is neither trio nor asyncio, it names both."""
    with pytest.raises(sb.SeedbedError, match="under trio, anyio or asyncio"):
        sb.build_async(COLUMNS, rows=1, out="nowhere").send(None)


def test_every_host_leaves_its_thread_as_it_was() -> None:
    """One host after the other in one thread, each with a build: none is in the next one's way."""

    async def main() -> int:
        async with sb.open_build(COLUMNS, rows=1) as build:
            return (await build.wait()).written

    assert [host(main) for host in (*ALL, *reversed(ALL))] == [1] * 10
