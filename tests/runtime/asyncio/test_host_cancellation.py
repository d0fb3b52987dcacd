"""Cancellation both ways, and errors that cross as themselves."""

from __future__ import annotations

import asyncio
import random
import sys
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest
import trio
from hosts import COLUMNS, GUEST_HOSTS, HOSTS, NUMBERS, Waits, under_asyncio, until

import seedbed as sb
from seedbed.errors import Overloaded
from seedbed.plans import PlanEngine, op, parse_plan
from seedbed.plans.ops import default_ops
from seedbed.plans.opspec import Rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from seedbed.plans.rowset import RowSet

SMALL = sb.RunConfig(buffer_size=2)


def test_a_cancelled_task_waits_until_its_build_has_unwound(tmp_path: Path) -> None:
    """Cancelling the host's task cancels every cell, waits for it, and leaves a directory that can be resumed."""
    cells = Waits(quick=2)

    async def main() -> None:
        async with sb.open_throttles():  # keeps the guest, whose end would wait for everything anyhow
            task = asyncio.create_task(sb.build_async(cells.columns, rows=6, out=tmp_path / "out", config=SMALL))
            await until(lambda: cells.waiting == 4 and (tmp_path / "out" / "batch_0000000.parquet").exists())
            task.cancel("enough")
            with pytest.raises(asyncio.CancelledError, match="enough"):
                await task
            assert (cells.waiting, cells.unwound) == (0, 4)

    under_asyncio(main)
    assert sb.Dataset.open(tmp_path / "out").rows == 2
    columns = [NUMBERS, sb.Column("x", doubled_x)]
    done = sb.build(columns, rows=6, out=tmp_path / "out", config=SMALL, resume=True, accept_changes=True)
    assert done.to_polars()["n"].to_list() == [0, 1, 2, 3, 4, 5]


async def doubled_x(n: int) -> int:
    """Fill the column that waited."""
    return n


def test_a_timeout_of_asyncio_is_a_timeout(tmp_path: Path) -> None:
    """`asyncio.timeout` around a build raises `TimeoutError`, after everything has unwound."""
    cells = Waits()

    async def main() -> None:
        async with asyncio.timeout(None) as timeout:
            cells.on_wait = lambda count: timeout.reschedule(0) if count == 3 else None
            await sb.build_async(cells.columns, rows=3, out=tmp_path / "out")

    with pytest.raises(TimeoutError):
        under_asyncio(main)
    assert cells.unwound == 3


@HOSTS
def test_a_scope_of_anyio_cancels_a_build(host: Callable[..., object], tmp_path: Path) -> None:
    """A cancelled scope of anyio ends where it should, with nothing left in it, under either backend."""
    cells = Waits()

    async def main() -> None:
        async with sb.open_throttles():
            with anyio.CancelScope() as scope:
                cells.on_wait = lambda count: scope.cancel() if count == 3 else None
                await sb.build_async(cells.columns, rows=3, out=tmp_path / "out")
            assert scope.cancelled_caught
            assert (cells.waiting, cells.unwound) == (0, 3)
            await anyio.lowlevel.checkpoint()  # nothing of the cancellation is left

    host(main)


@HOSTS
def test_a_task_group_that_fails_cancels_a_build_beside_it(host: Callable[..., object], tmp_path: Path) -> None:
    """When a sibling fails, the build unwinds, and the group raises what failed and nothing of the build."""
    cells = Waits()

    async def fail() -> None:
        await until(lambda: cells.waiting)
        raise KeyError("sibling")

    async def build() -> None:
        await sb.build_async(cells.columns, rows=2, out=tmp_path / "out")

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(build)
            group.start_soon(fail)

    with pytest.raises(ExceptionGroup) as caught:
        host(main)
    (error,) = caught.value.exceptions
    assert repr(error) == "KeyError('sibling')"
    assert (cells.waiting, cells.unwound) == (0, 2)


@HOSTS
def test_an_error_of_the_build_is_raised_as_itself(host: Callable[..., object], tmp_path: Path) -> None:
    """The error of a build is not wrapped in a group of one, whether it occurs at the start or later."""
    (tmp_path / "used").touch()

    async def fails(n: int) -> int:
        raise sb.Permanent("never")

    async def main() -> None:
        with pytest.raises(sb.OutputDirectoryError, match="not empty"):
            await sb.build_async(COLUMNS, rows=1, out=tmp_path)
        with pytest.raises(sb.DatasetGenerationError, match="at least one column"):
            async with sb.open_build([], rows=1):
                raise AssertionError("it was entered")
        config = sb.RunConfig(shutdown_error_window=2, buffer_size=4)
        with pytest.raises(sb.EarlyShutdown) as caught:
            await sb.build_async([NUMBERS, sb.Column("x", fails)], rows=8, out=tmp_path / "out", config=config)
        assert caught.value.report is not None

    host(main)


@HOSTS
def test_exceptions_of_the_block_are_raised_unchanged(host: Callable[..., object]) -> None:
    """An exception of the block ends the build and comes out as the same object, with its own traceback."""
    cells = Waits()
    error = KeyError("mine")

    async def main() -> None:
        async with sb.open_throttles():
            with pytest.raises(KeyError) as caught:
                async with sb.open_build(cells.columns, rows=2):
                    await until(lambda: cells.waiting >= 2)
                    raise error
            assert caught.value is error
            assert cells.unwound == 2

    host(main)


@GUEST_HOSTS
def test_an_exit_inside_a_cell_interrupts_the_block(host: Callable[..., object]) -> None:
    """A failure inside the run cancels the host's block and is raised in place of the cancellation."""

    async def leaves(n: int) -> int:
        sys.exit(7)

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        with pytest.raises(SystemExit, match="7"):
            async with sb.open_build([NUMBERS, sb.Column("x", leaves)], rows=1):
                await asyncio.sleep(3600)
        assert task.cancelling() == 0
        with pytest.raises(SystemExit, match="7"):
            async with sb.open_build([NUMBERS, sb.Column("x", leaves)], rows=1) as build:
                await until(build._ended.is_set)
        await asyncio.sleep(0)
        assert task.cancelling() == 0

    host(main)


@GUEST_HOSTS
def test_a_group_that_arrives_for_a_cancelled_wait_is_not_lost(host: Callable[..., object]) -> None:
    """However often waiting for the next row group is cancelled, every group is returned once."""
    chance = random.Random(5)

    async def main() -> None:
        seen: list[int] = []
        async with sb.open_build(COLUMNS, rows=120, config=sb.RunConfig(buffer_size=2)) as build:
            while True:
                try:
                    group = await asyncio.wait_for(anext(build), chance.random() / 200)
                except TimeoutError:
                    continue
                except StopAsyncIteration:
                    break
                seen.append(group.row_group)
        assert sorted(seen) == list(range(60))

    host(main)


PLAN = {
    "schema_version": 1,
    "plan_name": "waits",
    "nodes": [{"node_id": "n0", "op": "embed::waits", "inputs": [], "params": {}}],
    "outputs": ["n0"],
    "expr_table": {},
    "pred_table": {},
}


@GUEST_HOSTS
def test_leaving_an_engine_can_be_cancelled(host: Callable[..., object]) -> None:
    """An engine that waits for its last requests is hurried by a cancellation of the host, and ends them."""
    ended: list[BaseException] = []
    waiting = [0]

    @op("embed::waits", gives=Rows.NEW, inputs=(0, 0))
    async def waits(_inputs: tuple[RowSet, ...], _params: object, _context: object) -> RowSet:
        waiting[0] += 1
        await trio.sleep_forever()
        raise AssertionError

    ops = default_ops().copy()
    ops.add(waits)
    plan = parse_plan(PLAN, ops=ops)

    async def main() -> None:
        requests: list[asyncio.Task[object]] = []

        async def serve() -> None:
            async with PlanEngine(ops=ops, grace=3600) as engine:
                requests.append(asyncio.create_task(engine.execute(plan, {"user_id": 1})))
                await until(lambda: waiting[0])
                waiting[0] += 1

        service = asyncio.create_task(serve())
        await until(lambda: waiting[0] == 2)
        await asyncio.sleep(0)
        service.cancel()
        with pytest.raises(asyncio.CancelledError):
            await service
        await asyncio.wait(requests)
        ended.append(requests[0].exception() or AssertionError("it went well"))

    host(main)
    assert isinstance(ended[0], Overloaded)
