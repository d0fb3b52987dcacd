"""Cells that are not made, rows of a whole column that fail alone, and which rows a whole column is for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import polars as pl
import pytest
from engine_helpers import config, grow, seed

from seedbed import CellContext, Column, DatasetGenerationError, Permanent, Processor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trio.testing import MockClock

ENGINES = pytest.mark.parametrize("engine", ["concurrent", "sequential"])


@attrs.frozen
class Rule:
    """Skip where `decide` says so."""

    requires: tuple[str, ...]
    decide: Callable[[Mapping[str, Any]], bool]


ODD = Rule(("n",), lambda values: values["n"] % 2 == 1)


async def double(n: int) -> int:
    """Twice the number."""
    return n * 2


@ENGINES
@pytest.mark.parametrize("policy", ["run", "skip"])
async def test_a_skipped_cell_is_null_and_what_needs_it_follows_its_policy(
    engine: str, policy: str, autojump_clock: MockClock
) -> None:
    """With `run` the generator is called with a null, with `skip` it is not called at all."""
    seen: list[int | None] = []

    async def negate(double: int | None) -> int | None:
        seen.append(double)
        return None if double is None else -double

    grown = await grow(
        [seed(), Column("double", double, skip=ODD), Column("negate", negate, skip_policy=policy)],
        rows=4,
        config=config(engine=engine),
    )
    assert grown.frame["double"].to_list() == [0, None, 4, None]
    assert grown.frame["negate"].to_list() == [0, None, -4, None]
    assert sorted(seen, key=str) == ([0, 4] if policy == "skip" else [0, 4, None, None])


@ENGINES
async def test_a_whole_column_is_not_given_the_rows_that_it_skips(engine: str, autojump_clock: MockClock) -> None:
    """Its frame holds the others only, `context.rows` says which they are, and it is not called for none."""
    frames: list[tuple[list[int], list[tuple[int, int]]]] = []

    async def whole(frame: pl.DataFrame, context: CellContext) -> list[int]:
        frames.append((frame["n"].to_list(), list(context.rows)))
        return [value + 100 for value in frame["n"]]

    def column(name: str, rule: Rule) -> Column:
        return Column(name, whole, kind="full_column", requires=["n"], skip=rule)

    grown = await grow(
        [seed(), column("some", ODD), column("none", Rule((), lambda _: True))], rows=4, config=config(engine=engine)
    )
    assert grown.frame["some"].to_list() == [100, None, 102, None]
    assert grown.frame["none"].to_list() == [None] * 4
    assert frames == [([0, 2], [(0, 0), (2, 0)])]


@ENGINES
async def test_rows_are_known_by_their_position_behind_a_processor(engine: str, autojump_clock: MockClock) -> None:
    """`context.rows` numbers the rows that a pre-batch processor left from the first number of their row group on."""
    seen: list[tuple[int, int]] = []

    async def whole(frame: pl.DataFrame, context: CellContext) -> list[int]:
        seen.extend(context.rows)
        return [0] * frame.height

    await grow(
        [seed(), Column("v", whole, kind="full_column", requires=["n"])],
        rows=6,
        processors=[Processor(stage="pre_batch", apply=lambda frame: frame.filter(pl.col("n") % 2 == 0))],
        config=config(engine=engine, buffer_size=3),
    )
    assert sorted(seen) == [(0, 0), (1, 0), (3, 0)]


@ENGINES
async def test_a_rule_that_raises_costs_its_row(engine: str, autojump_clock: MockClock) -> None:
    """The drop says that it was the rule."""

    def decide(values: Mapping[str, Any]) -> bool:
        return bool(1 // (values["n"] - 2) > 5)

    grown = await grow(
        [seed(), Column("double", double, skip=Rule(("n",), decide))], rows=4, config=config(engine=engine)
    )
    assert [(drop.row, drop.column) for drop in grown.report.dropped] == [(2, "double")]
    assert "skip_when: ZeroDivisionError" in grown.report.dropped[0].error
    assert grown.report.written == 3


@ENGINES
async def test_skipped_stateful_cells_do_not_hold_up_the_others(engine: str, autojump_clock: MockClock) -> None:
    """Row order is stored over rows that are skipped, also across row groups."""

    class Counter:
        is_stateful = True

        def __init__(self) -> None:
            self.seen: list[int] = []

        async def agenerate(self, n: int) -> int:
            self.seen.append(n)
            return len(self.seen)

    counter = Counter()
    grown = await grow(
        [seed(), Column("count", counter, skip=ODD)], rows=9, config=config(engine=engine, buffer_size=3)
    )
    assert counter.seen == [0, 2, 4, 6, 8]
    assert grown.frame["count"].to_list() == [1, None, 2, None, 3, None, 4, None, 5]


@ENGINES
async def test_a_value_that_is_an_error_fails_its_row_alone(engine: str, autojump_clock: MockClock) -> None:
    """A whole column may fail for one row and not for the others, and what needs it continues without that row."""

    async def whole(frame: pl.DataFrame) -> list[Any]:
        return [Permanent("no three") if value == 3 else value for value in frame["n"]]

    async def total(frame: pl.DataFrame) -> list[int]:
        return [int(frame["v"].sum())] * frame.height

    grown = await grow(
        [
            seed(),
            Column("v", whole, kind="full_column", requires=["n"]),
            Column("sum", total, kind="full_column", requires=["v"]),
        ],
        rows=5,
        config=config(engine=engine),
    )
    assert grown.frame["v"].to_list() == [0, 1, 2, 4]
    assert grown.frame["sum"].to_list() == [7] * 4
    assert [(drop.row, drop.reason) for drop in grown.report.dropped] == [(3, "v: no three")]


async def test_a_column_from_scratch_cannot_be_skipped(autojump_clock: MockClock) -> None:
    """There is nothing yet that a rule could read."""
    with pytest.raises(DatasetGenerationError, match="a column from scratch has no inputs to decide by"):
        await grow([Column("n", list, kind="from_scratch", skip=Rule((), lambda _: True))], rows=1)
