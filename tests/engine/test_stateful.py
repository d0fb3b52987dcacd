"""Stateful generators: one call at a time, row groups in order, rows in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
from engine_helpers import Watched, config, grow, seed

from seedbed import Column, Permanent, Processor, Retryable

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl
    from trio.testing import MockClock


@attrs.define(eq=False)
class Cursor:
    """A generator with a position; counts overlaps, which must not be."""

    is_stateful = True
    seconds: Callable[[int], float] = lambda _: 1.0
    fail: Callable[[int, int], Exception | None] = lambda _n, _attempt: None
    calls: list[int] = attrs.Factory(list)
    inside: int = 0
    overlaps: int = 0

    async def agenerate(self, rows: range) -> list[str]:
        """Number the rows in the order of the calls."""
        first = rows[0]
        await self.visit(first)
        return [f"{first}@{len(self.calls)}" for _ in rows]

    async def visit(self, first: int) -> None:
        """Be busy for a while; alone, if the engine keeps its word."""
        self.calls.append(first)
        attempt = self.calls.count(first)
        self.inside += 1
        self.overlaps += self.inside > 1
        try:
            await trio.sleep(self.seconds(first))
        finally:
            self.inside -= 1
        error = self.fail(first, attempt)
        if error is not None:
            raise error


GROUPS = config(buffer_size=2, max_concurrent_row_groups=3)


async def test_seeds_are_serialised_in_group_order(autojump_clock: MockClock) -> None:
    """One stateful instance never overlaps with itself and sees the groups in order, whatever each takes."""
    cursor = Cursor(seconds=lambda first: 7.0 - first)
    start = trio.current_time()
    grown = await grow([Column("s", cursor, kind="from_scratch")], rows=8, config=GROUPS)
    assert cursor.calls == [0, 2, 4, 6]
    assert cursor.overlaps == 0
    assert grown.column("s") == ["0@1", "0@1", "2@2", "2@2", "4@3", "4@3", "6@4", "6@4"]
    assert trio.current_time() - start == 7 + 5 + 3 + 1


async def test_stateless_seeds_run_at_once(autojump_clock: MockClock) -> None:
    """Without the mark all admitted groups are seeded at the same instant."""
    starts = []

    async def numbers(rows: range) -> list[int]:
        starts.append(trio.current_time())
        await trio.sleep(1)
        return list(rows)

    await grow([Column("s", numbers, kind="from_scratch")], rows=6, config=GROUPS)
    assert len(starts) == 3
    assert len(set(starts)) == 1


async def test_other_columns_pipeline_meanwhile(autojump_clock: MockClock) -> None:
    """Group 0 continues with its next column while group 1 is being seeded."""
    cursor, after = Cursor(), []

    async def then(s: str) -> str:
        after.append((s, trio.current_time() - start))
        await trio.sleep(10)
        return s

    start = trio.current_time()
    await grow([Column("s", cursor, kind="from_scratch"), Column("then", then)], rows=6, config=GROUPS)
    assert sorted(after) == [("0@1", 1.0)] * 2 + [("2@2", 2.0)] * 2 + [("4@3", 3.0)] * 2


async def test_stateful_cells_run_one_at_a_time_in_row_order(autojump_clock: MockClock) -> None:
    """Cells of a stateful column run in row order, also where their inputs come in another."""
    order: list[int] = []
    inside = 0

    class Chain:
        is_stateful = True

        async def agenerate(self, v: int) -> int:
            nonlocal inside
            inside += 1
            assert inside == 1
            await trio.sleep(0.1)
            inside -= 1
            order.append(v)
            return v

    async def backwards(n: int) -> int:
        await trio.sleep(10 - n)
        return n

    await grow([seed(), Column("v", backwards), Column("c", Chain())], rows=6, config=GROUPS)
    assert order == [0, 1, 2, 3, 4, 5]


async def test_one_instance_in_two_columns_never_overlaps(autojump_clock: MockClock) -> None:
    """It is the instance that is serialised: a group's turn has ended when both columns are."""
    cursor = Cursor()

    class Twice:
        is_stateful = True

        def __init__(self) -> None:
            self.order: list[tuple[str, int]] = []

        async def agenerate(self, frame: pl.DataFrame) -> list[int]:
            await cursor.visit(frame["n"][0])
            self.order.append((frame.columns[-1], frame["n"][0]))
            return frame["n"].to_list()

    twice = Twice()
    await grow(
        [
            seed(),
            Column("a", twice, kind="full_column", requires=["n"]),
            Column("b", twice, kind="full_column", requires=["n", "a"]),
        ],
        rows=4,
        config=GROUPS,
    )
    assert cursor.overlaps == 0
    assert twice.order == [("n", 0), ("a", 0), ("n", 2), ("a", 2)]


async def test_two_instances_of_one_class_are_independent(autojump_clock: MockClock) -> None:
    """They overlap with each other, each in its own order."""
    first, second = Cursor(), Cursor()
    start = trio.current_time()
    await grow(
        [Column("a", first, kind="from_scratch"), Column("b", second, kind="from_scratch")], rows=6, config=GROUPS
    )
    assert trio.current_time() - start == 3.0
    assert first.calls == second.calls == [0, 2, 4]


async def test_a_retried_call_keeps_its_place(autojump_clock: MockClock) -> None:
    """Group 1 waits for group 0's salvage; the order of the calls is the order of the groups."""
    cursor = Cursor(fail=lambda first, attempt: Retryable("again") if first == 0 and attempt < 3 else None)
    grown = await grow([Column("s", cursor, kind="from_scratch")], rows=6, config=GROUPS)
    assert cursor.calls == [0, 0, 0, 2, 4]
    assert grown.report.written == 6


async def test_a_retried_cell_holds_the_next_rows(autojump_clock: MockClock) -> None:
    """Rows behind a cell that is deferred wait for it, in this group and in the next."""
    seen = []

    class Chain:
        is_stateful = True

        async def agenerate(self, n: int) -> int:
            seen.append(n)
            if n == 1 and seen.count(1) < 3:
                raise Retryable("again")
            return n

    grown = await grow([seed(), Column("c", Chain())], rows=4, config=GROUPS)
    assert seen == [0, 1, 1, 1, 2, 3]
    assert grown.report.written == 4


async def test_a_group_that_fails_passes_its_turn(autojump_clock: MockClock) -> None:
    """The groups behind a failed one get theirs, in order."""
    cursor = Cursor(fail=lambda first, _: Permanent("no") if first == 2 else None)
    grown = await grow([Column("s", cursor, kind="from_scratch")], rows=8, config=GROUPS)
    assert cursor.calls == [0, 2, 4, 6]
    assert [drop.row for drop in grown.report.dropped] == [2, 3]


async def test_a_group_that_is_skipped_passes_its_turn(autojump_clock: MockClock) -> None:
    """A stateful column behind the barrier is not held up by a group that never comes to it."""
    cursor = Cursor()

    def refuse_second(frame: pl.DataFrame) -> pl.DataFrame:
        if frame["n"][0] == 2:
            raise ValueError("not these")
        return frame

    async def visit(frame: pl.DataFrame) -> list[int]:
        await cursor.visit(frame["n"][0])
        return frame["n"].to_list()

    await grow(
        [seed(), Column("v", visit, kind="full_column", requires=["n"], is_stateful=True)],
        rows=8,
        config=GROUPS,
        processors=[Processor(stage="pre_batch", apply=refuse_second)],
    )
    assert cursor.calls == [0, 4, 6]
    assert cursor.overlaps == 0


async def test_rows_dropped_elsewhere_have_their_turn(autojump_clock: MockClock) -> None:
    """A row dropped by another column, before or while it waits for its turn, is seen all the same."""
    seen = []

    class Chain:
        is_stateful = True

        async def agenerate(self, n: int) -> int:
            seen.append(n)
            await trio.sleep(1)
            return n

    def act(n: int, _: int) -> int:
        if n in {0, 3}:
            raise Permanent("out")
        return n

    grown = await grow([seed(), Column("c", Chain()), Column("v", Watched(0.5, act=act))], rows=6, config=GROUPS)
    assert seen == [0, 1, 2, 3, 4, 5]
    assert [drop.row for drop in grown.report.dropped] == [0, 3]


async def test_all_rows_dropped_passes_the_turn(autojump_clock: MockClock) -> None:
    """A group that loses its last row while it waits lets the next one through."""
    cursor = Cursor()

    async def visit(frame: pl.DataFrame) -> list[int]:
        await cursor.visit(frame["n"][0])
        return frame["n"].to_list()

    def act(n: int, _: int) -> int:
        if n in {2, 3}:
            raise Permanent("out")
        return n

    grown = await grow(
        [
            seed(),
            Column("v", Watched(0.1, act=act)),
            Column("s", visit, kind="full_column", requires=["n", "v"], is_stateful=True),
        ],
        rows=6,
        config=GROUPS,
    )
    assert cursor.calls == [0, 4]
    assert grown.report.written == 4


@pytest.mark.parametrize("options", [{"max_active_tasks": 1}, {"max_submitted_tasks": 1}])
async def test_one_slot_does_not_deadlock(options: dict[str, Any]) -> None:
    """The turnstile is passed before a slot is taken, so a group that waits holds nothing."""
    calls = []

    class Reader:
        is_stateful = True

        def generate(self, rows: range) -> list[int]:
            calls.append(rows[0])
            return list(rows)

    def after(s: int) -> int:
        return s

    grown = await grow(
        [Column("s", Reader(), kind="from_scratch"), Column("after", after)],
        rows=12,
        config=attrs.evolve(GROUPS, **options),
    )
    assert calls == [0, 2, 4, 6, 8, 10]
    assert grown.column("after") == list(range(12))
