"""Work that is cancelled on its way, wherever it is, leaves nothing behind and holds nobody up."""

from __future__ import annotations

from typing import Any

import trio

import seedbed as sb

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


async def grow(columns: list[sb.Column], rows: int, **knobs: Any) -> tuple[list[sb.FinishedGroup], sb.BuildReport]:
    """Build in memory; a build that hangs is cut off."""
    with trio.fail_after(10_000):
        async with sb.open_build(columns, rows=rows, config=sb.RunConfig(**CONFIG, **knobs)) as build:
            groups = [group async for group in build]
            assert build._run is not None
            statistics = build._run.dispatcher.statistics()
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


async def test_a_refused_task_for_a_group_without_rows_is_not_sent_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A whole-group task that waits out a refusal is over when the last row of its group is dropped."""
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
