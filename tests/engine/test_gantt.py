"""The two Gantt charts that the engine was designed by, as runs in virtual time: a day is a second.

Processors and checkpoints are synchronous and take no virtual time, so their days are not in these charts: what the
first one shows behind the pre-batch processors begins a day earlier here, and no day is counted for a checkpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

import seedbed as sb
from seedbed.observe.events import RowGroupFinished

if TYPE_CHECKING:
    import polars as pl
    from trio.testing import MockClock

    from seedbed.observe.events import Event

ROWS = 3  # in a row group

Bar = tuple[float, float]  # from when to when


class Seed:
    """Column A: made from scratch, two days a row group."""

    def __init__(self, *, is_stateful: bool) -> None:
        self.is_stateful = is_stateful

    async def agenerate(self, rows: range) -> list[int]:
        await trio.sleep(2)
        return list(rows)


async def b(a: int) -> int:
    """Four days a cell."""
    await trio.sleep(4)
    return a * 2


async def c(a: int) -> int:
    """Three days a cell."""
    await trio.sleep(3)
    return a * 3


async def d(frame: pl.DataFrame) -> list[int]:
    """One day, for the whole column."""
    await trio.sleep(1)
    return [b + c for b, c in frame.rows()]


async def e(frame: pl.DataFrame) -> list[bool]:
    """One day, for the whole column."""
    await trio.sleep(1)
    return [value % 5 == 0 for value in frame["d"]]


def columns(*, is_stateful: bool) -> list[sb.Column]:
    """A to D of both charts."""
    return [
        sb.Column("a", Seed(is_stateful=is_stateful), kind="from_scratch"),
        sb.Column("b", b),
        sb.Column("c", c),
        sb.Column("d", d, kind="full_column", requires=("b", "c")),
    ]


async def run_chart(
    chart: list[sb.Column], *, rows: int, processors: list[sb.Processor], **options: Any
) -> tuple[dict[tuple[str, int], Bar], dict[int, float], list[dict[str, Any]]]:
    """Run it; returns each bar by column and row group, when each row group was finished, and the rows."""
    finished: dict[int, float] = {}
    made: list[dict[str, Any]] = []
    start = trio.current_time()

    def read(event: Event) -> None:
        if isinstance(event, RowGroupFinished):
            finished[event.row_group] = event.time - start

    config = sb.RunConfig(buffer_size=ROWS, trace=True, **options)
    async with sb.open_build(chart, rows=rows, config=config, processors=processors, readers=[read]) as build:
        async for group in build:
            made += group.to_polars().to_dicts()
        traces = build.report.traces
    bars: dict[tuple[str, int], Bar] = {}
    for trace in traces:
        assert trace.status == "success"
        key = (trace.column, trace.row_group)
        first, last = bars.get(key, (trace.started - start, trace.finished - start))
        bars[key] = (min(first, trace.started - start), max(last, trace.finished - start))
    return bars, finished, made


async def test_the_columns_of_one_row_group_run_when_the_chart_says(autojump_clock: MockClock) -> None:
    """B and C start together when A and the pre-batch processors are done; D waits for both and E for D."""
    seen: list[tuple[str, list[str]]] = []

    def processor(stage: str) -> sb.Processor:
        def apply(frame: pl.DataFrame) -> pl.DataFrame:
            seen.append((stage, frame.columns))
            return frame

        return sb.Processor(stage=stage, apply=apply, name=stage)

    chart = [*columns(is_stateful=False), sb.Column("e", e, kind="full_column", requires="d")]
    bars, finished, made = await run_chart(
        chart, rows=ROWS, processors=[processor("pre_batch"), processor("post_batch")]
    )
    assert bars == {
        ("a", 0): (0, 2),
        ("pre_batch", 0): (2, 2),
        ("b", 0): (2, 6),
        ("c", 0): (2, 5),
        ("d", 0): (6, 7),
        ("e", 0): (7, 8),
        ("post_batch", 0): (8, 8),
    }
    assert finished == {0: 8}
    assert seen == [("pre_batch", ["a"]), ("post_batch", ["a", "b", "c", "d", "e"])]
    assert made == [{"a": a, "b": 2 * a, "c": 3 * a, "d": 5 * a, "e": True} for a in range(ROWS)]


async def test_row_groups_are_staggered_by_their_stateful_seed_and_overlap_otherwise(autojump_clock: MockClock) -> None:
    """A row group's seed starts the instant the one before has its own; all other columns pipeline freely."""
    bars, finished, made = await run_chart(columns(is_stateful=True), rows=3 * ROWS, processors=[])
    assert bars == {
        ("a", 0): (0, 2),
        ("b", 0): (2, 6),
        ("c", 0): (2, 5),
        ("d", 0): (6, 7),
        ("a", 1): (2, 4),
        ("b", 1): (4, 8),
        ("c", 1): (4, 7),
        ("d", 1): (8, 9),
        ("a", 2): (4, 6),
        ("b", 2): (6, 10),
        ("c", 2): (6, 9),
        ("d", 2): (10, 11),
    }
    assert finished == {0: 7, 1: 9, 2: 11}
    # What the chart is there to show, in its own words.
    assert bars["a", 1][0] == bars["a", 0][1]
    assert bars["b", 0][0] == bars["c", 0][0]
    assert bars["b", 1][0] < bars["d", 0][1]
    assert [row["a"] for row in made] == list(range(3 * ROWS))


async def test_row_groups_with_a_stateless_seed_start_together(autojump_clock: MockClock) -> None:
    """Without state nothing staggers the row groups: all three are done when the first one is."""
    bars, finished, _ = await run_chart(columns(is_stateful=False), rows=3 * ROWS, processors=[])
    for row_group in range(3):
        assert [bars[name, row_group] for name in "abcd"] == [(0, 2), (2, 6), (2, 5), (6, 7)]
    assert finished == {0: 7, 1: 7, 2: 7}


async def test_a_row_group_that_is_not_admitted_waits_for_a_checkpoint(autojump_clock: MockClock) -> None:
    """With one place the charts stand one behind the other, whether the seed is stateful or not."""
    for is_stateful in (False, True):
        bars, finished, _ = await run_chart(
            columns(is_stateful=is_stateful), rows=3 * ROWS, processors=[], max_concurrent_row_groups=1
        )
        for row_group in range(3):
            start = 7 * row_group
            assert bars["a", row_group] == (start, start + 2)
            assert bars["d", row_group] == (start + 6, start + 7)
        assert finished == {0: 7, 1: 14, 2: 21}
