"""`virtual_time`: builds, plans and whatever else waits, without waiting."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest
import trio

import seedbed as sb
from seedbed.errors import RequestDeadlineExceeded
from seedbed.plans import PlanEngine
from seedbed.plans.builder import Node, PlanContext, plan
from seedbed.testing import serve_openai, virtual_time

if TYPE_CHECKING:
    from pathlib import Path

HOUR = 3600.0


def slow_recipe(latency: float = HOUR) -> sb.Recipe:
    """One column of calls that take long, two at a time."""
    return sb.Recipe(
        models={"writer": sb.Scripted(latency=latency, max_parallel_requests=2)},
        columns=[
            sb.Category("topic", values=["tea"]),
            sb.LLMText("question", model="writer", prompt="Ask about {{ topic }}."),
        ],
    )


def test_a_build_of_hours_is_over_at_once(tmp_path: Path) -> None:
    """Calls of an hour each, two at a time, take their hours on the virtual clock only."""
    with virtual_time() as clock:
        dataset = sb.build(slow_recipe(), rows=4, out=tmp_path / "data")
    assert dataset.rows == 4
    assert clock.seconds == pytest.approx(2 * HOUR)
    assert dataset.report is not None
    assert dataset.report.seconds == pytest.approx(2 * HOUR)


def test_a_preview_and_a_resume_wait_for_nothing_either(tmp_path: Path) -> None:
    """Everything synchronous that runs the engine is covered, and its times add up."""
    with virtual_time() as clock:
        sb.preview(slow_recipe(), rows=2)
        assert clock.seconds == pytest.approx(HOUR)
        sb.build(slow_recipe(), rows=2, out=tmp_path / "data")
        sb.resume(tmp_path / "data", slow_recipe())
    assert clock.seconds == pytest.approx(2 * HOUR)


def test_async_functions_run_in_virtual_time(tmp_path: Path) -> None:
    """`run` is `trio.run` on a clock that jumps, and returns what the function returns."""
    with virtual_time() as clock:

        async def main(rows: int) -> int:
            dataset = await sb.build_async(slow_recipe(), rows=rows, out=tmp_path / "data")
            await trio.sleep(HOUR)
            return dataset.rows

        assert clock.run(main, 2) == 2
    assert clock.seconds == pytest.approx(2 * HOUR)


def test_worker_threads_are_waited_for() -> None:
    """A thread that works keeps the clock from jumping past the timeout of its own column."""

    @sb.column(timeout=5.0)
    def slow() -> str:
        time.sleep(0.01)
        return "done"

    with virtual_time():
        frame = sb.preview(sb.Recipe(columns=[slow]), rows=3).to_polars()
    assert frame["slow"].to_list() == ["done"] * 3


def test_inside_of_a_running_loop() -> None:
    """A notebook's cell may use it: the thread that the build gets has the virtual clock."""

    async def cell() -> float:
        with virtual_time() as clock:
            sb.preview(slow_recipe(), rows=2)
        return clock.seconds

    assert asyncio.run(cell()) == pytest.approx(HOUR)


def test_after_the_block_time_is_real_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the virtual clock is left behind, not even when the block raised."""
    with pytest.raises(ZeroDivisionError), virtual_time():
        raise ZeroDivisionError
    clocks: list[object] = []
    monkeypatch.setattr(trio, "run", lambda _main, clock: clocks.append(clock))
    sb.preview(slow_recipe(0.0), rows=1)
    assert clocks == [None]


def test_a_server_on_loopback_has_its_chance_with_a_threshold() -> None:
    """With a threshold the clock waits for the network before it jumps over the latency that a server was given."""

    async def main() -> float:
        async with serve_openai(latency=60.0) as server:
            recipe = sb.Recipe(
                models={"writer": sb.OpenAICompatible(base_url=server.url, model="m")},
                columns=[sb.LLMText("question", model="writer", prompt="Ask.")],
            )
            async with sb.open_build(recipe, rows=1) as build:
                return (await build.wait()).seconds

    with virtual_time(threshold=0.2) as clock:
        assert clock.run(main) == pytest.approx(60.0, abs=1.0)


def test_plans_are_answered_in_virtual_time() -> None:
    """A node that waits for an hour holds a request up for an hour that does not pass, and deadlines see it."""

    @plan
    def slow(ctx: PlanContext) -> Node:
        return ctx.fixed_source(row_count=2).sleep(duration_ms=3_600_000)

    async def main(deadline: float) -> int:
        async with PlanEngine(endpoints=None, registries=None) as engine:
            response = await engine.execute(slow.plan(), {"user_id": 1}, deadline=deadline)
            return len(response.rows)

    with virtual_time() as clock:
        assert clock.run(main, 2 * HOUR) == 2
        assert clock.seconds == pytest.approx(HOUR)
        with pytest.raises(RequestDeadlineExceeded):
            clock.run(main, HOUR / 2)
    assert clock.seconds == pytest.approx(1.5 * HOUR)
