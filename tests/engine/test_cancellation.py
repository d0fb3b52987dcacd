"""Work that is cancelled on its way, wherever it is, leaves nothing behind and holds nobody up."""

from __future__ import annotations

import multiprocessing
import threading
from typing import TYPE_CHECKING, Any

import pytest
import trio
from step_harness import Trial, every_step, steady_order

import seedbed as sb

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import polars as pl

CONFIG: dict[str, Any] = {"jitter_seed": 1, "shutdown_error_window": 1_000}


async def numbers(rows: range) -> list[int]:
    """Fill a column with the numbers of its rows."""
    return list(rows)


async def first_fails(n: int) -> int:
    """Fail for row 0 after a second."""
    await trio.sleep(1)
    if n == 0:
        raise sb.Permanent("row 0 fails")
    return n


SEED = sb.Column("n", numbers, kind="from_scratch")
FAILING = sb.Column("failing", first_fails)


async def grow(columns: list[sb.Column], rows: int, **options: Any) -> tuple[list[sb.FinishedGroup], sb.BuildReport]:
    """Build in memory; a build that hangs is cut off."""
    with trio.fail_after(10_000):
        async with sb.open_build(columns, rows=rows, config=sb.RunConfig(**CONFIG, **options)) as build:
            groups = [group async for group in build]
            assert build._run is not None
            statistics = build._run.scheduler.statistics()
            assert (statistics.submitted, statistics.active, statistics.queued, statistics.parked) == (0, 0, 0, 0)
            return groups, build.report


async def test_a_cell_that_became_ready_in_the_instant_its_row_was_dropped_does_not_run(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """What one outcome makes ready and the next one of the same instant drops is never started."""
    ran = []

    async def ready(n: int) -> int:
        await trio.sleep(1)
        return n

    async def then(ready: int) -> int:
        ran.append(ready)
        return ready

    for _ in range(20):  # the order of two outcomes of one instant is trio's to choose
        ran.clear()
        _, report = await grow([SEED, sb.Column("ready", ready), FAILING, sb.Column("then", then)], 3)
        assert report.written == 2
        assert sorted(ran) == [1, 2]


async def test_a_dropped_row_passes_a_stateful_generator_on(autojump_clock: trio.testing.MockClock) -> None:
    """A stateful cell whose row is dropped while it runs lets the next rows and row groups have the generator."""

    async def slow(n: int) -> int:
        await trio.sleep(5)
        return n

    groups, report = await grow([SEED, sb.Column("slow", slow, is_stateful=True), FAILING], 6, buffer_size=3)
    assert report.written == 5
    assert {group.row_group: group.to_polars()["slow"].to_list() for group in groups} == {0: [1, 2], 1: [3, 4, 5]}


async def test_a_rate_limited_task_of_a_group_without_rows_is_not_retried(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A whole-group task that waits out a rate limit has ended when the last row of its group is dropped."""
    asked = []

    async def refused(rows: range) -> list[int]:
        asked.append(rows.start)
        if rows.start == 0:
            raise sb.RateLimited(retry_after=5)
        return list(rows)

    async def fails(rows: range) -> list[int]:
        await trio.sleep(1)
        if rows.start == 0:
            raise sb.Permanent("no")
        return list(rows)

    async def outlasts(fails: int) -> int:
        await trio.sleep(50)
        return fails

    columns = [
        sb.Column("refused", refused, kind="from_scratch", key="k"),
        sb.Column("fails", fails, kind="from_scratch"),
        sb.Column("outlasts", outlasts),
    ]
    _, report = await grow(columns, 4, buffer_size=2)
    assert (report.written, len(report.dropped)) == (2, 2)
    assert sorted(asked) == [0, 2]


# Each await in the life of a cell, cancelled in turn.


async def sibling_of(n: int, fail: trio.Event) -> int:
    """Fail for row 0 once told to; if nobody does so for long, succeed."""
    if n == 0:
        with trio.move_on_after(1_000):
            await fail.wait()
            raise sb.Permanent("the sibling failed")
    return n


def beside(*columns: sb.Column) -> Callable[[trio.Event], list[sb.Column]]:
    """The columns under test, a seed before and a failing sibling beside them."""

    def make(fail: trio.Event) -> list[sb.Column]:
        async def sibling(n: int) -> int:
            return await sibling_of(n, fail)

        return [SEED, *columns, sb.Column("sibling", sibling)]

    return make


async def awaits(n: int) -> int:
    """Sleep twice."""
    await trio.sleep(1)
    await trio.sleep(1)
    return n


def works(n: int) -> int:
    """Fill a cell from a thread or a process."""
    return n


async def calls(n: int, context: sb.CellContext) -> int:
    """Make two calls of the column's key and one of another."""

    async def send() -> int:
        context.report_usage(input_tokens=1)
        await trio.sleep(1)
        return n

    await context.call(send)
    await context.call(send, key="second", tokens=1)
    return await context.call(send)


def calls_from_thread(n: int, context: sb.CellContext) -> int:
    """Make a call from a worker thread."""

    async def send() -> int:
        await trio.sleep(1)
        return n

    return context.run(context.call, send)


def refused_once() -> sb.Column:
    """A keyed column whose every cell is refused the first time."""
    refused: set[int] = set()

    async def refuses(n: int) -> int:
        await trio.sleep(1)
        if n not in refused:
            refused.add(n)
            raise sb.RateLimited(retry_after=3)
        return n

    return sb.Column("refuses", refuses, key="k")


def deferred_once() -> sb.Column:
    """A column whose every cell fails the first time in a way that may pass."""

    async def fails(n: int, context: sb.CellContext) -> int:
        await trio.sleep(1)
        if context.attempt == 1:
            raise sb.Retryable("not yet")
        return n

    return sb.Column("fails", fails)


class Counting:
    """A stateful generator."""

    is_stateful = True

    async def agenerate(self, n: int) -> int:
        """Count for a while."""
        await trio.sleep(1)
        return n


async def whole(frame: pl.DataFrame) -> list[int]:
    """Fill a whole column."""
    await trio.sleep(1)
    return frame["n"].to_list()


def same(frame: pl.DataFrame) -> pl.DataFrame:
    """Leave a frame as it is."""
    return frame


PROCESSORS = (sb.Processor(stage="pre_batch", apply=same), sb.Processor(stage="post_batch", apply=same))

# Fresh columns for each run, because some of them remember.
TRIALS: dict[str, Callable[[], Trial]] = {
    "async cell without a key": lambda: Trial(beside(sb.Column("x", awaits))),
    "async cell with a key": lambda: Trial(
        beside(sb.Column("x", awaits, key="k", tokens=2)), options={"max_tokens": 1_000}
    ),
    "one permit for all": lambda: Trial(
        beside(sb.Column("x", awaits, key="k")), limits={"k": sb.KeyLimits(max_parallel_requests=1)}
    ),
    "requests per minute": lambda: Trial(
        beside(sb.Column("x", calls, key="k")), limits={"k": sb.KeyLimits(requests_per_minute=20)}
    ),
    "budget of one": lambda: Trial(
        lambda fail: [SEED, sb.Column("x", awaits), sb.Column("y", awaits)], options={"max_submitted_tasks": 1}
    ),
    "calls of two keys": lambda: Trial(
        beside(sb.Column("x", calls, key="k")), limits={"second": sb.KeyLimits(max_parallel_requests=1)}
    ),
    "refused and parked": lambda: Trial(beside(refused_once())),
    "deferred and salvaged": lambda: Trial(beside(deferred_once())),
    "stateful": lambda: Trial(beside(sb.Column("x", Counting())), options={"buffer_size": 2}),
    "whole column": lambda: Trial(
        beside(sb.Column("x", whole, kind="full_column", requires="n")), options={"buffer_size": 2}
    ),
}
THREADED: dict[str, Callable[[], Trial]] = {
    "sync cell": lambda: Trial(beside(sb.Column("x", works)), options={"max_active_tasks": 1}),
    "stateful sync cell": lambda: Trial(
        beside(sb.Column("x", works, is_stateful=True)), options={"buffer_size": 2, "max_concurrent_row_groups": 2}
    ),
    "call from a thread": lambda: Trial(beside(sb.Column("x", calls_from_thread, key="k"))),
    "processors": lambda: Trial(beside(sb.Column("x", awaits)), processors=PROCESSORS, options={"buffer_size": 2}),
}


@pytest.fixture(autouse=True)
def order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let trio run the tasks of one instant in an order that is the same in every run."""
    steady_order(monkeypatch)


@pytest.mark.parametrize("name", [name for name in (*TRIALS, *THREADED) if name != "budget of one"])
def test_a_row_dropped_at_any_step_leaves_nothing_behind(name: str) -> None:
    """A sibling that fails at any step drops its row alone, and no permit, slot, budget, scope or task is left."""
    trial = (TRIALS | THREADED)[name]
    assert every_step(lambda step: trial().dropped_at(step)) > 20


@pytest.mark.parametrize("name", [*TRIALS, *THREADED])
def test_a_caller_cancelled_at_any_step_leaves_nothing_behind(name: str) -> None:
    """A cancelled caller unwinds the whole run from any step, and no permit, slot, budget, scope or task is left."""
    trial = (TRIALS | THREADED)[name]
    assert every_step(lambda step: trial().cancelled_at(step)) > 20


@pytest.mark.parametrize("how", ["cancelled_at", "dropped_at"])
def test_a_checkpoint_cancelled_at_any_step_is_complete_or_missing(how: str, tmp_path: Path) -> None:
    """Whenever a run that writes is disturbed, its finished groups are on disk and nothing half-done is."""

    def disturb(step: int) -> bool:
        trial = Trial(beside(sb.Column("x", awaits)), options={"buffer_size": 2}, out=tmp_path / str(step))
        disturbed: bool = getattr(trial, how)(step)
        return disturbed

    assert every_step(disturb) > 20


@pytest.mark.parametrize("step", [30, 40, 45, 50])
def test_a_process_cell_is_ended_with_its_run(step: int) -> None:
    """A worker process that is at work when its caller is cancelled is gone when the run is."""
    trial = Trial(beside(sb.Column("x", works, process=True)), rows=2)
    trial.cancelled_at(step)
    assert multiprocessing.active_children() == []


async def test_nothing_is_started_once_the_run_is_cancelled(autojump_clock: trio.testing.MockClock) -> None:
    """Cells that wait in their lane when the caller is cancelled are never called, though places come free."""
    started = []

    async def waits(n: int) -> int:
        started.append(n)
        await trio.sleep(10)
        return n

    with trio.move_on_after(5):
        await grow([SEED, sb.Column("waits", waits)], 50, max_submitted_tasks=3)
    assert len(started) == 3


async def test_an_abandoned_thread_does_not_affect_the_next_attempt() -> None:
    """A call that a thread makes after its cell timed out is refused it, and does not use the next attempt's permit."""
    second_runs, first_asked, answered = threading.Event(), threading.Event(), []

    def overruns(n: int, context: sb.CellContext) -> int:
        async def send() -> int:
            answered.append(context.attempt)
            return n

        if context.attempt == 1:
            second_runs.wait()
            try:
                return context.run(context.call, send)
            finally:
                first_asked.set()
        second_runs.set()
        first_asked.wait()
        return context.run(context.call, send)

    # So long that the second attempt has time enough on a busy machine, too: a thread has no virtual time.
    column = sb.Column("overruns", overruns, key="k", timeout=1.0)
    async with sb.open_build([SEED, column], rows=1, config=sb.RunConfig(backoff_base=0.02)) as build:
        groups = [group async for group in build]
        statistics = build.report.throttles["k"]
    assert groups[0].to_polars()["overruns"].to_list() == [0]
    assert 1 not in answered
    assert (statistics.in_flight, statistics.accepted) == (0, 1)
