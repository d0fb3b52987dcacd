"""The counts of a report add up, say which processor did what, and can be read from the directory afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest
from engine_helpers import config, seed

from seedbed import (
    BuildReport,
    BuildStopped,
    Column,
    Dataset,
    Permanent,
    Processor,
    build_async,
    open_build,
    preview,
)

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

STAGES = ("pre_batch", "post_batch", "after_generation")


def keep_even(frame: pl.DataFrame | pl.LazyFrame) -> pl.DataFrame | pl.LazyFrame:
    """Remove the rows with an odd number."""
    return frame.filter(pl.col("n") % 2 == 0)


def explode(frame: pl.DataFrame | pl.LazyFrame) -> pl.DataFrame | pl.LazyFrame:
    """Three rows in place of each."""
    return pl.concat([frame, frame, frame])


async def v(n: int) -> int:
    """The column of a model that fails for two rows."""
    if n in {2, 9}:
        raise Permanent("no such number")
    return n


def is_sum(report: BuildReport) -> bool:
    """The equation that every report satisfies."""
    unfinished = sum(map(len, report.unfinished))
    return report.candidates + report.added == report.written + report.removed + len(report.dropped) + unfinished


@pytest.mark.parametrize("stage", STAGES)
async def test_counts_add_up(stage: str, autojump_clock: MockClock, tmp_path: Path) -> None:
    """With processors of each stage that remove and add rows; the stored report is that of the run."""
    processors = [Processor(stage=stage, apply=keep_even), Processor(stage=stage, apply=explode)]
    dataset = await build_async(
        [seed(), Column("v", v)], rows=12, out=tmp_path / "out", config=config(buffer_size=5), processors=processors
    )
    report, stored = dataset.report, Dataset.open(tmp_path / "out").report
    for each in (report, stored):
        assert is_sum(each)
        assert (each.requested, each.candidates, each.written) == (12, 12, len(dataset))
        assert {name for name, *_ in each.resized} == {"keep_even", "explode"}
    assert str(report).startswith(f"{len(dataset)} rows, 12 requested, {report.removed} removed by 'keep_even', ")
    assert stored.counts == report.counts
    assert str(stored) == stored.counts
    assert (stored.resized, stored.dropped) == (report.resized, report.dropped)
    assert stored.drops_by_reason == report.drops_by_reason


async def test_a_dataset_is_not_larger_than_it_is(autojump_clock: MockClock, tmp_path: Path) -> None:
    """After-generation processors that return fewer rows: the report counts what was published."""
    processors = [Processor(stage="after_generation", apply=lambda rows: rows.head(3), name="first")]
    for resume in (False, True):
        dataset = await build_async(
            [seed()], rows=50, out=tmp_path / "out", config=config(), processors=processors, resume=resume
        )
        assert dataset.report.counts == "3 rows, 50 requested, 47 removed by 'first'"
        assert is_sum(dataset.report)
    assert dataset.raw().report.counts == "50 of 50 rows"


async def test_an_unfinished_directory_has_a_report(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Rows of row groups that are not complete are unfinished, in the report of the error and in the directory's."""

    async def stopping(n: int) -> int:
        if n == 7:
            running.stop()
        return n

    columns = [seed(), Column("v", v), Column("w", stopping)]
    with pytest.raises(BuildStopped) as caught:
        async with open_build(
            columns, rows=12, out=tmp_path / "out", config=config(buffer_size=3, max_concurrent_row_groups=1)
        ) as running:
            await running.wait()
    report, stored = caught.value.report, Dataset.open(tmp_path / "out").report
    assert report is not None
    assert is_sum(report)
    assert is_sum(stored)
    assert (stored.unfinished, stored.written, stored.dropped) == (report.unfinished, report.written, report.dropped)
    assert stored.unfinished
    assert "unfinished" in stored.counts


def test_counts_without_processors() -> None:
    """The line names what there is and nothing else."""
    report = preview([seed(), Column("v", v)], rows=4).report
    assert report.counts == "3 of 4 rows, 1 dropped"
