"""Work runs as soon as its inputs are there, and never more of it than the limits allow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest
import trio
from engine_helpers import Watched, config, grow, seed

from seedbed import Column, KeyLimits, open_build

if TYPE_CHECKING:
    from trio.testing import MockClock


async def test_independent_columns_run_at_once(autojump_clock: MockClock) -> None:
    """Two columns of one seed overlap, and what needs both starts when the later one is done."""
    first, second, last = Watched(3.0), Watched(5.0), []

    async def both(first: int, second: int) -> int:
        last.append(trio.current_time() - start)
        return first + second

    start = trio.current_time()
    grown = await grow([seed(), Column("first", first), Column("second", second), Column("both", both)], rows=3)
    assert {when - start for when, _ in first.started + second.started} == {0.0}
    assert last == [5.0] * 3
    assert grown.column("both") == [0, 2, 4]
    assert trio.current_time() - start == 5.0


async def test_rows_do_not_wait_for_each_other(autojump_clock: MockClock) -> None:
    """A row continues to its next column while another row is still in the one before."""
    seen = []

    async def slow(n: int) -> int:
        await trio.sleep(1.0 + 9 * n)
        return n

    async def after(slow: int) -> int:
        seen.append((slow, trio.current_time() - start))
        return slow

    start = trio.current_time()
    await grow([seed(), Column("slow", slow), Column("after", after)], rows=2)
    assert seen == [(0, 1.0), (1, 10.0)]


async def test_cell_and_whole_columns_mix(autojump_clock: MockClock) -> None:
    """A whole column waits for all its rows and feeds cells again; several row groups stay apart."""

    async def squared(n: int) -> int:
        await trio.sleep(n)
        return n * n

    def total(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.with_columns(total=pl.col("squared").sum())

    async def share(squared: int, total: int) -> float:
        return squared / total if total else 0.0

    grown = await grow(
        [
            seed(),
            Column("squared", squared),
            Column("total", total, kind="full_column", requires=["squared"]),
            Column("share", share),
        ],
        rows=6,
        config=config(buffer_size=3),
    )
    assert grown.column("total") == [5, 5, 5, 50, 50, 50]
    assert grown.column("share") == [0.0, 1 / 5, 4 / 5, 9 / 50, 16 / 50, 25 / 50]


async def test_a_generator_with_several_outputs_runs_once(autojump_clock: MockClock) -> None:
    """One call fills all outputs and side effects of a row; a side effect may be missing."""
    calls = []

    async def pair(n: int) -> dict[str, int]:
        calls.append(n)
        return {"low": n, "high": n + 10} | ({"pair__trace": n} if n else {})

    async def audit(pair__trace: int | None, high: int) -> str:
        return f"{pair__trace}/{high}"

    grown = await grow(
        [
            seed(),
            Column("pair", pair, outputs=["low", "high"], side_effects=["pair__trace"]),
            Column("audit", audit),
        ],
        rows=2,
    )
    assert sorted(calls) == [0, 1]
    assert grown.frame.columns == ["n", "low", "high", "pair__trace", "audit"]
    assert grown.column("audit") == ["None/10", "1/11"]


async def test_submission_is_bounded(autojump_clock: MockClock) -> None:
    """With many ready tasks and a tight key, tasks that exist never pass `max_submitted_tasks`."""
    all_tasks, tight = Watched(1.0), Watched(1.0)

    async def tightly(n: int) -> int:
        await trio.lowlevel.checkpoint()
        tight.running += 1
        tight.peak = max(tight.peak, tight.running)
        try:
            return await all_tasks.agenerate(n)
        finally:
            tight.running -= 1

    async with open_build(
        [seed(), Column("tight", tightly, key="k"), Column("free", all_tasks)],
        rows=60,
        config=config(max_submitted_tasks=5),
        limits={"k": KeyLimits(max_parallel_requests=2)},
    ) as build:
        report = await build.wait()
        assert build._run is not None
        statistics = build._run.scheduler.statistics()
    assert report.written == 60
    assert (statistics.submitted, statistics.active, statistics.queued, statistics.parked) == (0, 0, 0, 0)
    assert all_tasks.peak == 5
    assert tight.peak == 2


async def test_a_budget_of_one_still_finishes(autojump_clock: MockClock) -> None:
    """The smallest limits make a slow run and not a stuck one."""
    one, two = Watched(1.0), Watched(1.0)
    start = trio.current_time()
    grown = await grow(
        [seed(), Column("one", one, key="a"), Column("two", two, key="b")],
        rows=4,
        config=config(max_submitted_tasks=1, max_active_tasks=1, max_concurrent_row_groups=1, buffer_size=2),
    )
    assert grown.report.written == 4
    assert one.peak == two.peak == 1
    assert trio.current_time() - start == 8.0


async def test_a_key_never_passes_its_ceiling(autojump_clock: MockClock) -> None:
    """Two columns of one key share its permits; another key has its own."""
    server = Watched(1.0)
    other = Watched(1.0)

    async def again(n: int) -> int:
        return await server.agenerate(n + 100)

    await grow(
        [seed(), Column("one", server, key="k"), Column("two", again, key="k"), Column("three", other, key="o")],
        rows=20,
        limits={"k": KeyLimits(max_parallel_requests=3), "o": KeyLimits(max_parallel_requests=7)},
    )
    assert server.peak == 3
    assert other.peak == 7


async def test_threads_never_pass_the_slots() -> None:
    """Sync cells run in threads, at most `max_active_tasks` at once; an async column takes no slot."""
    counts = {"now": 0, "peak": 0}
    entered = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def work(n: int) -> int:
        # Threads of one run are counted on trio's thread, so the count needs no lock.
        def change(by: int) -> None:
            counts["now"] += by
            counts["peak"] = max(counts["peak"], counts["now"])
            if counts["now"] == 2:
                entered.set()

        trio.from_thread.run_sync(change, 1, trio_token=token)
        # The first two leave only when both are in.
        trio.from_thread.run(entered.wait, trio_token=token)
        trio.from_thread.run_sync(change, -1, trio_token=token)
        return n

    many = Watched(0.0)
    grown = await grow([seed(), Column("work", work), Column("many", many)], rows=12, config=config(max_active_tasks=2))
    assert counts == {"now": 0, "peak": 2}
    assert many.peak > 2
    assert grown.column("work") == list(range(12))


async def test_wide_and_deep_graphs_give_the_same_rows(autojump_clock: MockClock) -> None:
    """Forty columns in a chain and forty side by side are all filled, row by row."""

    def add(name: str) -> Column:
        async def plus(**values: int) -> int:
            await trio.sleep(0.1)
            return values[name] + 1

        return Column(f"{name}+", plus, requires=[name])

    chain = [seed("a")]
    for _ in range(40):
        chain.append(add(chain[-1].name))
    grown = await grow(chain, rows=3)
    assert grown.column("a" + "+" * 40) == [40, 41, 42]


@pytest.mark.parametrize("engine", ["concurrent", "sequential"])
async def test_columns_may_be_declared_in_any_order(autojump_clock: MockClock, engine: str) -> None:
    """The dataset has its columns in declared order; work follows the requirements."""

    async def twice(n: int) -> int:
        return 2 * n

    async def more(twice: int) -> int:
        return twice + 1

    grown = await grow([Column("more", more), Column("twice", twice), seed()], rows=2, config=config(engine=engine))
    assert grown.frame.columns == ["more", "twice", "n"]
    assert grown.column("more") == [1, 3]
