"""Row groups: how many at once, in which order they end, and what is on disk then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
import trio
from engine_helpers import Watched, config, grow, seed

from seedbed import Column, Dataset, Interrupted, Permanent, SeedbedError, build, build_async, open_build, preview
from seedbed.engine.plan import plan_build
from seedbed.engine.source import make_source
from seedbed.observe import events

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock


async def test_the_last_group_may_be_undersized(autojump_clock: MockClock) -> None:
    """Seven rows in groups of three are three, three and one, and whole columns see only their own."""
    sizes = []

    def height(frame: pl.DataFrame) -> list[int]:
        sizes.append(frame.height)
        return [frame.height] * frame.height

    grown = await grow(
        [seed(), Column("height", height, kind="full_column", requires=["n"])], rows=7, config=config(buffer_size=3)
    )
    assert sorted(sizes) == [1, 3, 3]
    assert grown.column("height") == [3, 3, 3, 3, 3, 3, 1]
    assert sorted((group.row_group, group.source_rows.stop, group.rows) for group in grown.groups) == [
        (0, 3, 3),
        (1, 6, 3),
        (2, 7, 1),
    ]


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_no_more_groups_than_allowed_are_admitted(autojump_clock: MockClock, limit: int) -> None:
    """A group is let in only when one before it is complete."""
    admitted: set[int] = set()
    peak = 0

    def count(event: events.Event) -> None:
        nonlocal peak
        if isinstance(event, events.RowGroupAdmitted):
            admitted.add(event.row_group)
            peak = max(peak, len(admitted))
        elif isinstance(event, events.RowGroupFinished):
            admitted.remove(event.row_group)

    slow = Watched(1.0)
    await grow(
        [seed(), Column("slow", slow)],
        rows=12,
        config=config(buffer_size=2, max_concurrent_row_groups=limit),
        readers=[count],
    )
    assert peak == limit
    assert slow.peak == 2 * limit
    assert not admitted


async def slow_first(n: int) -> int:
    """The first group is the last to finish."""
    await trio.sleep(10.0 if n < 2 else n)
    return n * 10


async def test_groups_come_as_they_finish(autojump_clock: MockClock) -> None:
    """Iterating over a build gives a quick group before a slow one that was admitted earlier."""
    grown = await grow([seed(), Column("v", slow_first)], rows=6, config=config(buffer_size=2))
    assert [group.row_group for group in grown.groups] == [1, 2, 0]
    assert grown.groups[0].to_polars()["v"].to_list() == [20, 30]


async def test_out_of_order_groups_have_right_names_and_order(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Files are named by the group and not by when it was written, and the dataset loads in declared order."""
    finished = []
    dataset = await build_async(
        [seed(), Column("v", slow_first)],
        rows=6,
        out=tmp_path / "data",
        config=config(buffer_size=2),
        readers=[lambda e: finished.append(e.row_group) if isinstance(e, events.RowGroupFinished) else None],
    )
    assert finished == [1, 2, 0]
    assert [part.name for part in dataset.parts] == [
        "batch_0000000.parquet",
        "batch_0000001.parquet",
        "batch_0000002.parquet",
    ]
    for index in range(3):
        part = pl.read_parquet(tmp_path / "data" / f"batch_{index:07}.parquet")
        assert part["n"].to_list() == [2 * index, 2 * index + 1]
    assert dataset.to_polars()["v"].to_list() == [0, 10, 20, 30, 40, 50]


def hidden_files(directory: Path) -> list[Path]:
    """Temporary files that a checkpoint left behind."""
    return list(directory.rglob("*.tmp"))


async def test_checkpoints_are_valid_and_complete(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Every part can be read, matches its checksum, and with the drops accounts for all rows."""

    async def odd_fails(n: int) -> int:
        if n % 2:
            raise ValueError("odd")
        return n

    dataset = await build_async(
        [seed(), Column("v", odd_fails)], rows=10, out=tmp_path, config=config(buffer_size=4, shutdown_error_rate=1.0)
    )
    dataset.verify()
    assert dataset.complete
    assert [part.rows for part in dataset.parts] == [2, 2, 1]
    assert dataset.to_polars()["n"].to_list() == [0, 2, 4, 6, 8]
    assert sorted(drop.row for drop in dataset.drops) == [1, 3, 5, 7, 9]
    assert {drop.reason.partition(" (")[0] for drop in dataset.drops} == {"v: ValueError: odd"}
    assert dataset.report is not None
    assert dataset.report.written == 5
    assert not hidden_files(tmp_path)


async def test_a_group_whose_rows_are_all_dropped_has_no_part(autojump_clock: MockClock, tmp_path: Path) -> None:
    """It is complete and empty, and the others are numbered as if it were there."""

    async def low_fails(n: int) -> int:
        if n < 2:
            raise Permanent("low")
        return n

    dataset = await build_async([seed(), Column("v", low_fails)], rows=4, out=tmp_path, config=config(buffer_size=2))
    assert [part.name for part in dataset.parts] == ["batch_0000001.parquet"]
    assert dataset.complete
    assert dataset.to_polars()["n"].to_list() == [2, 3]


async def test_finished_groups_can_be_read_while_the_build_runs(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A dataset opened between two groups holds the first and is not complete."""

    async def by_group(n: int) -> int:
        await trio.sleep(n // 2)
        return n

    async with open_build(
        [seed(), Column("v", by_group)], rows=6, out=tmp_path, config=config(buffer_size=2)
    ) as running:
        async for group in running:
            assert running.dataset.to_polars()["v"].to_list() == list(range(2 * group.row_group + 2))
            assert group.path == tmp_path / f"batch_{group.row_group:07}.parquet"
            assert group.to_polars()["v"].to_list() == list(group.source_rows)
        assert running.dataset.complete


async def test_leaving_early_cancels_the_rest_and_preserves_finished_groups(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Whoever leaves the block after the first group keeps that group; nothing else is started any more."""
    slow = Watched(1.0)

    async def by_group(n: int) -> int:
        await trio.sleep(0 if n < 2 else 100)
        return await slow.agenerate(n)

    async with open_build(
        [seed(), Column("v", by_group)], rows=6, out=tmp_path, config=config(buffer_size=2)
    ) as running:
        first = await anext(running)
        assert first.row_group == 0
        with pytest.raises(SeedbedError, match="the build is still running; its report is available once"):
            _ = running.report
    assert len(slow.finished) == 2
    dataset = Dataset.open(tmp_path)
    assert not dataset.complete
    assert dataset.to_polars()["v"].to_list() == [0, 1]


async def test_an_error_of_the_block_surfaces_as_itself(autojump_clock: MockClock) -> None:
    """What the block raises is not wrapped in a group of the engine's nursery."""
    with pytest.raises(KeyError, match="mine") as raised:
        async with open_build([seed(), Column("v", Watched(5.0))], rows=2):
            raise KeyError("mine")
    assert not isinstance(raised.value, BaseExceptionGroup)


async def test_a_failed_build_surfaces_as_itself_wherever_it_is_waited_for(autojump_clock: MockClock) -> None:
    """Iterating, waiting and merely leaving the block raise the one error, which carries the report."""

    async def wait(running: Any) -> None:
        await running.wait()

    async def iterate(running: Any) -> None:
        async for _ in running:
            pass

    async def leave(running: Any) -> None:
        await trio.sleep(100)

    for how in (wait, iterate, leave):
        with pytest.raises(Interrupted, match="the build was stopped") as raised:
            async with open_build([seed(), Column("v", Watched(50.0))], rows=2, config=config(grace=1)) as running:
                await trio.sleep(1)
                running.stop()
                await how(running)
        assert raised.value.report is not None
        assert raised.value.report.unfinished == (range(2),)


async def test_a_build_in_memory_has_no_dataset(autojump_clock: MockClock) -> None:
    """Without a directory the rows are returned and nothing is written."""
    async with open_build([seed()], rows=1) as running:
        await running.wait()
        with pytest.raises(SeedbedError, match="this build writes nothing to disk"):
            _ = running.dataset
        assert running.report.written == 1


def list_rows(rows: range) -> list[int]:
    """The row numbers themselves."""
    return list(rows)


def as_text(n: int) -> str:
    """The row number as text."""
    return str(n)


class TestZeroRows:
    COLUMNS = (
        Column("n", list_rows, kind="from_scratch", dtype=int),
        Column("text", as_text, dtype=pl.String, side_effects=["text__trace"]),
        Column("score", lambda n: 0.5 * n, requires=["n"], dtype={"score": pl.Float32}),
    )
    SCHEMA = pl.Schema({"n": pl.Int64, "text": pl.String, "text__trace": pl.Null, "score": pl.Float32})

    def test_a_dataset_has_the_declared_schema(self, tmp_path: Path) -> None:
        """No rows are a valid dataset with all columns in their declared types."""
        dataset = build(self.COLUMNS, rows=0, out=tmp_path / "empty")
        assert dataset.complete
        assert len(dataset) == 0
        assert dataset.to_polars().schema == self.SCHEMA
        assert Dataset.open(tmp_path / "empty").to_arrow().num_rows == 0

    def test_a_preview_has_the_declared_schema(self) -> None:
        """A preview of no rows shows what the dataset would look like."""
        shown = preview(self.COLUMNS, rows=0)
        assert shown.to_polars().schema == self.SCHEMA
        assert shown.report.written == 0

    async def test_no_group_is_admitted(self, autojump_clock: MockClock) -> None:
        """Nothing runs for no rows."""
        grown = await grow(self.COLUMNS, rows=0)
        assert grown.groups == []
        assert grown.report.attempts == {}


class TestPreview:
    def test_it_is_one_group_whatever_the_buffer(self) -> None:
        """A preview of more rows than a group holds is still one group."""
        heights = []

        def height(frame: pl.DataFrame) -> list[int]:
            heights.append(frame.height)
            return frame["n"].to_list()

        columns = [seed(), Column("v", height, kind="full_column", requires=["n"])]
        shown = preview(columns, rows=7, config=config(buffer_size=3))
        assert heights == [7]
        assert shown.to_polars()["v"].to_list() == list(range(7))

    def test_it_shows_drops(self) -> None:
        """What would be dropped is in the report of the preview."""

        def fail(n: int) -> int:
            raise ValueError("no")

        shown = preview([seed(), Column("v", fail)], rows=2)
        assert shown.to_polars().height == 0
        line = fail.__code__.co_firstlineno + 1
        assert shown.report.drops_by_reason == {f"v: ValueError: no (test_row_groups.py, line {line})": 2}


def test_a_plan_of_a_million_groups_is_only_counted() -> None:
    """Nothing is allocated for a group before it is admitted."""
    plan = plan_build(make_source([seed()], config=config(buffer_size=10**6)), rows=10**12)
    assert plan.output.layout.count == 10**6
    assert plan.output.layout.group_rows(10**6 - 1) == range(10**12 - 10**6, 10**12)
