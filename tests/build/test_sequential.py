"""The sequential engine: the same results, one thing after the other, and columns that may resize."""

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
    knobs = {"buffer_size": 10, "salvage_error_threshold": 1.0, "shutdown_error_rate": 1.0}
    one = await grow(mixed(), rows=37, config=config(engine="sequential", **knobs))
    other = await grow(mixed(), rows=37, config=config(**knobs))
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
    """It sees its rows in order, so a failed one is tried again before the next."""
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


async def test_refusals_are_waited_out(autojump_clock: MockClock) -> None:
    """A rate limit costs time and nothing else."""
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
    assert trio.current_time() - start >= 40


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


class TestResize:
    async def test_a_cell_may_become_several_rows_or_none(self, autojump_clock: MockClock) -> None:
        """A list makes a row of each item, an empty one removes the row, and later columns see the new rows."""
        seen = []

        async def split(n: int) -> list[str]:
            return [f"{n}{letter}" for letter in "abc"[:n]]

        async def after(part: str, n: int, context: CellContext) -> str:
            seen.append((part, context.row))
            return f"{part}/{n}"

        grown = await grow(
            [seed(), Column("part", split, allow_resize=True), Column("after", after)],
            rows=4,
            config=config(engine="sequential", buffer_size=2),
        )
        assert grown.frame.rows() == [
            (1, "1a", "1a/1"),
            (2, "2a", "2a/2"),
            (2, "2b", "2b/2"),
            (3, "3a", "3a/3"),
            (3, "3b", "3b/3"),
            (3, "3c", "3c/3"),
        ]
        assert seen == [("1a", 1), ("2a", 2), ("2b", 2), ("3a", 3), ("3b", 3), ("3c", 3)]
        assert (grown.report.dropped, grown.report.removed, grown.report.added) == ((), 1, 3)

    async def test_copies_have_their_own_identity(self, autojump_clock: MockClock) -> None:
        """A row made of another is dropped by itself, and said to be a copy."""

        async def split(n: int) -> list[int]:
            return [n, n + 10, n + 20]

        async def after(part: int) -> int:
            if part in {11, 20}:
                raise Permanent("no")
            return part

        grown = await grow(
            [seed(), Column("part", split, allow_resize=True), Column("after", after)], rows=2, config=ALONE
        )
        assert grown.column("part") == [0, 10, 1, 21]
        assert [(drop.row, drop.copy) for drop in grown.report.dropped] == [(0, 2), (1, 1)]

    async def test_several_outputs(self, autojump_clock: MockClock) -> None:
        """Each item is a mapping then."""

        async def split(n: int) -> list[dict[str, int]]:
            return [{"low": n, "high": n + 1}] * n

        grown = await grow(
            [seed(), Column("pair", split, outputs=["low", "high"], allow_resize=True)], rows=3, config=ALONE
        )
        assert grown.frame.rows() == [(1, 1, 2), (2, 2, 3), (2, 2, 3)]

    async def test_a_whole_column_may_change_the_rows(self, autojump_clock: MockClock) -> None:
        """It gets all columns made so far and returns them with its own, in other rows."""

        def expand(frame: pl.DataFrame) -> pl.DataFrame:
            assert frame.columns == ["n", "v"]
            kept = frame.filter(pl.col("n") != 1)
            return pl.concat([kept, kept.tail(2)]).with_columns(rank=pl.int_range(pl.len()))

        grown = await grow(
            [
                seed(),
                Column("v", twice),
                Column("rank", expand, kind="full_column", requires=["v"], allow_resize=True),
                Column("late", lambda rank: rank * 100),
            ],
            rows=4,
            config=ALONE,
        )
        assert grown.frame.rows() == [
            (0, 0, 0, 0),
            (2, 4, 1, 100),
            (3, 6, 2, 200),
            (2, 4, 3, 300),
            (3, 6, 4, 400),
        ]
        assert (grown.report.dropped, grown.report.added) == ((), 1)

    async def test_failed_rows_stay_dropped(self, autojump_clock: MockClock) -> None:
        """A row that failed before or in the resize is not brought back by it."""

        async def split(n: int) -> list[int]:
            if n == 1:
                raise Permanent("no")
            return [n, n]

        grown = await grow([seed(), Column("part", split, allow_resize=True)], rows=3, config=ALONE)
        assert grown.column("part") == [0, 0, 2, 2]
        assert [(drop.row, drop.kind, drop.error) for drop in grown.report.dropped] == [(1, "failed", "no")]

    async def test_one_column_may_resize_after_another(self, autojump_clock: MockClock) -> None:
        """Identities stay apart through both."""

        async def double(n: int) -> list[int]:
            return [n, n + 10]

        async def again(first: int) -> list[int]:
            return [first, first + 100]

        async def fail(second: int) -> int:
            raise Permanent(f"{second}")

        grown = await grow(
            [
                seed(),
                Column("first", double, allow_resize=True),
                Column("second", again, allow_resize=True),
                Column("fail", fail),
            ],
            rows=1,
            config=ALONE,
        )
        assert len({(drop.row, drop.copy) for drop in grown.report.dropped}) == 4

    def test_the_concurrent_engine_names_them_and_says_where_they_run(self) -> None:
        """The start-up error names every such column and points to the engine that can run it."""

        async def split(n: int) -> list[int]:
            return [n]

        with pytest.raises(
            DatasetGenerationError,
            match=r"allow_resize=True on 'one', 'two': .*run these columns with engine='sequential'",
        ):
            trio.run(
                lambda: grow(
                    [
                        seed(),
                        Column("one", split, allow_resize=True),
                        Column("keep", split),
                        Column("two", split, allow_resize=True),
                    ],
                    rows=1,
                )
            )

    def test_what_is_made_from_scratch_cannot_resize(self) -> None:
        """It is asked for a number of rows and makes them."""
        with pytest.raises(DatasetGenerationError, match=r"column 'n' is made from scratch, .* and cannot resize"):
            trio.run(lambda: grow([seed("n", allow_resize=True)], rows=1, config=ALONE))
