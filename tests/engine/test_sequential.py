"""engine="sequential": the same results, one task after the other, column by column."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
import trio
from engine_helpers import Watched, config, grow, seed

from seedbed import (
    CellContext,
    Column,
    DatasetGenerationError,
    EarlyShutdown,
    KeyLimits,
    Permanent,
    RateLimited,
    Retryable,
    build_async,
)
from seedbed.engine.plan import plan_build
from seedbed.engine.source import make_source

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

ALONE = config(engine="sequential")


def twice(n: int) -> int:
    """The cell column that most tests have."""
    return 2 * n


async def test_nothing_runs_at_once(autojump_clock: MockClock) -> None:
    """Columns in topological order, rows in order, one at a time, whatever the limits."""
    order: list[tuple[str, int]] = []
    running = 0

    def column(name: str, *requires: str) -> Column:
        async def fill(**values: int) -> int:
            nonlocal running
            running += 1
            assert running == 1
            order.append((name, values["n"]))
            await trio.sleep(1)
            running -= 1
            return values["n"]

        return Column(name, fill, requires=["n", *requires])

    start = trio.current_time()
    await grow([column("b", "a"), column("a"), seed()], rows=4, config=config(engine="sequential", buffer_size=2))
    assert order == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("a", 2), ("a", 3), ("b", 2), ("b", 3)]
    assert trio.current_time() - start == 8


def mixed() -> list[Column]:
    """Every kind of column, failures that pass and failures that do not."""

    def total(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.with_columns(total=pl.col("flaky").sum())

    async def flaky(n: int, context: CellContext) -> int:
        if n % 5 == 1 and context.attempt == 1:
            raise Retryable("once")
        if n % 7 == 3:
            raise Permanent("never")
        if n % 11 == 4:
            raise Retryable("always")
        return n

    def pair(n: int, total: int) -> dict[str, Any]:
        return {"low": n, "high": [n, total]}

    return [
        seed(),
        Column("flaky", flaky),
        Column("total", total, kind="full_column", requires=["flaky"]),
        Column("pair", pair, outputs=["low", "high"], side_effects=["trace"]),
    ]


async def test_the_results_are_those_of_the_concurrent_engine(autojump_clock: MockClock) -> None:
    """Values, drops, attempts and errors are the same."""
    options = {"buffer_size": 10, "salvage_error_threshold": 1.0, "shutdown_error_rate": 1.0}
    one = await grow(mixed(), rows=37, config=config(engine="sequential", **options))
    other = await grow(mixed(), rows=37, config=config(**options))
    assert one.frame.rows() == other.frame.rows()
    assert one.report.dropped == other.report.dropped
    assert one.report.attempts == other.report.attempts
    assert one.report.errors == other.report.errors
    assert one.report.written == 37 - len(one.report.dropped)


async def test_retries_come_after_the_pass_over_the_column(autojump_clock: MockClock) -> None:
    """A failed cell waits until its column was tried for every row."""
    seen = []

    async def v(n: int, context: CellContext) -> int:
        seen.append(n)
        if n == 1 and context.attempt == 1:
            raise Retryable("x")
        return n

    await grow([seed(), Column("v", v)], rows=4, config=ALONE)
    assert seen == [0, 1, 2, 3, 1]


async def test_a_stateful_column_retries_in_place(autojump_clock: MockClock) -> None:
    """It sees its rows in order, so a failed one is retried before the next."""
    seen = []

    class Chain:
        is_stateful = True

        async def agenerate(self, n: int, context: CellContext) -> int:
            seen.append(n)
            if n in {1, 2} and context.attempt < 3:
                raise Retryable("x")
            return n

    grown = await grow([seed(), Column("v", Chain())], rows=4, config=ALONE)
    assert seen == [0, 1, 1, 1, 2, 2, 2, 3]
    assert grown.report.written == 4


async def test_a_sequential_run_waits_after_rate_limits(autojump_clock: MockClock) -> None:
    """A rate limit costs time and nothing else: a cell waits each time for as long as it was asked to."""
    refusals = {0: 3, 2: 1}
    start = trio.current_time()

    async def v(n: int) -> int:
        if refusals.get(n, 0):
            refusals[n] -= 1
            raise RateLimited("wait", retry_after=10)
        return n

    grown = await grow([seed(), Column("v", v, key="k")], rows=3, config=ALONE)
    assert grown.column("v") == [0, 1, 2]
    assert grown.report.attempts["v"] == 3
    assert trio.current_time() - start == 30  # row 2 waits while row 0 does


async def test_rates_are_respected(autojump_clock: MockClock) -> None:
    """A key's requests per minute hold here too."""
    start = trio.current_time()
    await grow(
        [seed(), Column("v", Watched(0.0), key="k")],
        rows=26,
        config=ALONE,
        limits={"k": KeyLimits(requests_per_minute=60)},
    )
    assert trio.current_time() - start == pytest.approx(20)


async def test_too_many_errors_stop_it(autojump_clock: MockClock) -> None:
    """The error window is the same."""

    async def v(n: int) -> int:
        raise Permanent("all")

    with pytest.raises(EarlyShutdown, match="9 of the last 10 attempts failed") as raised:
        await grow([seed(), Column("v", v)], rows=100, config=config(engine="sequential", shutdown_error_window=10))
    assert raised.value.report is not None
    assert raised.value.report.unfinished == (range(100),)


async def test_parts_and_schema_are_the_same_on_disk(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Checkpoints of either engine are named and typed alike."""
    datasets = [
        await build_async(
            [seed(), Column("v", twice, dtype=pl.Int16)],
            rows=5,
            out=tmp_path / engine,
            config=config(buffer_size=2, engine=engine),
        )
        for engine in ("sequential", "concurrent")
    ]
    assert [part.name for part in datasets[0].parts] == [part.name for part in datasets[1].parts]
    assert datasets[0].schema == datasets[1].schema == pl.Schema({"n": pl.Int64, "v": pl.Int16})
    assert datasets[0].to_polars().equals(datasets[1].to_polars())


def test_columns_that_resize_are_rejected_by_name() -> None:
    """The start-up error names every such column and points to stages and processors."""

    async def split(n: int) -> list[int]:
        return [n]

    columns = [seed(), Column("one", split, allow_resize=True), Column("two", split, allow_resize=True)]
    with pytest.raises(DatasetGenerationError, match=r"column 'one' has allow_resize=True.*use a stage") as raised:
        plan_build(make_source(columns), rows=1)
    assert len(raised.value.problems) == 2
