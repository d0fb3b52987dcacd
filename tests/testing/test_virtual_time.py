"""`virtual_time`: builds and plans wait without real time passing."""

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


def test_a_build_of_hours_ends_at_once(tmp_path: Path) -> None:
    """Calls of an hour each, two at a time, take their hours on the virtual clock only."""
    with virtual_time() as clock:
        dataset = sb.build(slow_recipe(), rows=4, out=tmp_path / "data")
    assert dataset.rows == 4
    assert clock.seconds == pytest.approx(2 * HOUR)
    assert dataset.report is not None
    assert dataset.report.seconds == pytest.approx(2 * HOUR)


def test_preview_and_resume_run_in_virtual_time(tmp_path: Path) -> None:
    """All synchronous functions that run the engine use virtual time, and their times add up."""
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


def test_the_clock_waits_for_worker_threads() -> None:
    """While a thread runs, the clock does not jump past the timeout of its column."""

    @sb.column(timeout=5.0)
    def slow() -> str:
        time.sleep(0.01)
        return "done"

    with virtual_time():
        frame = sb.preview(sb.Recipe(columns=[slow]), rows=3).to_polars()
    assert frame["slow"].to_list() == ["done"] * 3


def test_virtual_time_inside_a_running_loop() -> None:
    """In a notebook, the thread that runs the build has the virtual clock."""

    async def cell() -> float:
        with virtual_time() as clock:
            sb.preview(slow_recipe(), rows=2)
        return clock.seconds

    assert asyncio.run(cell()) == pytest.approx(HOUR)


def test_time_is_real_after_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """The virtual clock is removed, also after an exception."""
    with pytest.raises(ZeroDivisionError), virtual_time():
        raise ZeroDivisionError
    clocks: list[object] = []
    monkeypatch.setattr(trio, "run", lambda _main, clock: clocks.append(clock))
    sb.preview(slow_recipe(0.0), rows=1)
    assert clocks == [None]


def test_a_threshold_leaves_time_for_a_server_on_loopback() -> None:
    """With a threshold the clock waits for the network before it jumps over the latency of a server."""

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


def test_plans_run_in_virtual_time() -> None:
    """A node that sleeps for an hour delays its request by a virtual hour, and deadlines apply."""

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
