"""Dropped rows that are retried: which, from where, and to which place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

import seedbed as sb
from seedbed import Column, RunConfig
from seedbed.engine.resume import RetriedRows, plan_retry
from seedbed.errors import Permanent
from seedbed.observe.report import Drop
from seedbed.store.entries import DroppedRows
from seedbed.store.journal import has_journal
from seedbed.store.manifest import GroupRecord

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = RunConfig(buffer_size=5, max_concurrent_row_groups=2, shutdown_error_rate=1)

IDENTITIES = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 2)), unique=True)


@given(rows=IDENTITIES, data=st.data())
def test_rows_go_where_they_would_have_been(rows: list[tuple[int, int]], data: st.DataObject) -> None:
    """Rows that are added to a sorted part leave it sorted, and every row is in it once."""
    added = data.draw(st.lists(st.sampled_from(rows), unique=True)) if rows else []
    before = sorted(set(rows) - set(added))
    there = DroppedRows(order=before, identities=added, resized=(), count=0)
    order, identities = RetriedRows(revision=0, rows=there, drops=()).merged(added, appended=False)
    assert [[*before, *added][at] for at in order] == identities == sorted(rows)


def drop(row: int, column: str = "v") -> Drop:
    """A dropped row."""
    return Drop(row=row, column=column, attempts=1, error="no", kind="failed")


def test_without_stored_cells_only_unprocessed_rows_can_be_retried() -> None:
    """Where the kept cells are lost, rows are made from the start; not those that a processor has seen."""
    record = GroupRecord(index=0, start=0, stop=4, drops=(drop(1),))
    assert plan_retry(record, (), seeds=(), processed=False) is None  # the part does not hold the rows that it should
    record = GroupRecord(index=0, start=0, stop=2, drops=(drop(0), drop(1)))
    found = plan_retry(record, (), seeds=(), processed=False)
    assert found is not None
    assert found[0].rows.identities == [(0, 0), (1, 0)]
    assert found[0].drops == ()
    assert plan_retry(record, (), seeds=["n"], processed=True) is None
    record = GroupRecord(index=0, start=0, stop=2, drops=(drop(0, "n"), drop(1, "n")))
    found = plan_retry(record, (), seeds=["n"], processed=True)
    assert found is not None
    assert found[0].rows.resized is None  # the processors have yet to see them


def numbers(rows: range) -> list[int]:
    """Row numbers."""
    return list(rows)


class Flaky:
    """Fails for some rows, stops the build at one on request, and counts its calls."""

    def __init__(self, bad: set[int]) -> None:
        self.bad = bad
        self.seen: list[int] = []
        self.stop_at: int | None = None
        self.build: sb.Build | None = None

    async def agenerate(self, n: int, first: str, upper: str) -> str:
        assert upper == first.upper()
        if n == self.stop_at:
            assert self.build is not None
            self.build.stop()
            self.build.stop()
            await trio.sleep_forever()
        self.seen.append(n)
        if n in self.bad:
            raise Permanent("bad luck")
        return f"{first}!"


class First:
    """Counts its calls."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    async def agenerate(self, n: int) -> str:
        self.seen.append(n)
        return f"first {n}"


class Columns:
    """Numbers, two columns of cells of which the second may fail, and a whole column before and after that one."""

    def __init__(self, bad: set[int]) -> None:
        self.first, self.flaky = First(), Flaky(bad)
        self.before: list[int] = []
        self.after: list[int] = []

    def _upper(self, frame: Any) -> list[str]:
        self.before += frame["n"].to_list()
        return [text.upper() for text in frame["first"]]

    def _length(self, frame: Any) -> list[int]:
        self.after += frame["n"].to_list()
        return [len(text) for text in frame["second"]]

    @property
    def columns(self) -> list[Column]:
        return [
            Column("n", numbers, kind="from_scratch"),
            Column("first", self.first),
            Column("upper", self._upper, kind="full_column", requires=("n", "first")),
            Column("second", self.flaky, key="k"),
            Column("length", self._length, kind="full_column", requires=("n", "second")),
        ]


WHOLE = [(n, f"first {n}", f"FIRST {n}", f"first {n}!", len(f"first {n}!")) for n in range(12)]


async def test_a_retry_of_dropped_rows_generates_missing_cells_only(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Rows that failed come back in their places; what was finished of them is not made again."""
    out = tmp_path / "out"
    once = Columns({1, 2, 6, 11})
    dataset = await sb.build_async(once.columns, rows=12, out=out, config=CONFIG)
    assert dataset.to_polars()["n"].to_list() == [0, 3, 4, 5, 7, 8, 9, 10]
    again = Columns({2})
    dataset = await sb.build_async(again.columns, rows=12, out=out, config=CONFIG, resume=True, retry_dropped=True)
    assert again.first.seen == []
    assert sorted(again.flaky.seen) == [1, 2, 6, 11]
    assert again.before == []
    assert sorted(again.after) == [1, 6, 11]
    assert dataset.to_polars().rows() == [row for row in WHOLE if row[0] != 2]
    report = dataset.report
    assert report is not None
    assert (report.written, [each.row for each in report.dropped]) == (11, [2])
    dataset.verify()
    last = Columns(set())
    dataset = await sb.build_async(last.columns, rows=12, out=out, config=CONFIG, resume=True, retry_dropped=True)
    assert last.flaky.seen == [2]
    assert last.first.seen == []
    assert dataset.to_polars().rows() == WHOLE
    assert dataset.report is not None
    assert (dataset.report.written, dataset.report.dropped) == (12, ())
    # Nothing is left that could be retried, so nothing is stored for it.
    assert not has_journal(out)


async def test_dropped_rows_stay_dropped_unless_they_are_asked_for(tmp_path: Path) -> None:
    """A resume that is not told to leaves them alone, and they can still be retried after it."""
    out = tmp_path / "out"
    await sb.build_async(Columns({1, 6}).columns, rows=12, out=out, config=CONFIG)
    again = Columns(set())
    dataset = await sb.build_async(again.columns, rows=12, out=out, config=CONFIG, resume=True)
    assert again.flaky.seen == []
    assert dataset.report is not None
    assert [each.row for each in dataset.report.dropped] == [1, 6]
    third = Columns(set())
    dataset = await sb.build_async(third.columns, rows=12, out=out, config=CONFIG, resume=True, retry_dropped=True)
    assert sorted(third.flaky.seen) == [1, 6]
    assert third.first.seen == []
    assert dataset.to_polars().rows() == WHOLE


async def test_a_stopped_retry_is_resumed(tmp_path: Path) -> None:
    """What a retry has finished before it ended early is not made again by the next one."""
    out = tmp_path / "out"
    bad = {5, 6, 7}
    await sb.build_async(Columns(bad).columns, rows=12, out=out, config=CONFIG)

    stopped = Columns(set())
    stopped.flaky.stop_at = 7
    with pytest.raises(sb.Interrupted) as interrupted:
        async with sb.open_build(
            stopped.columns, rows=12, out=out, config=CONFIG, resume=True, retry_dropped=True
        ) as stopped.flaky.build:
            await stopped.flaky.build.wait()
    assert interrupted.value.report is not None
    assert [each.row for each in interrupted.value.report.dropped] == [5, 6, 7]
    done = list(stopped.flaky.seen)
    last = Columns(set())
    dataset = await sb.build_async(last.columns, rows=12, out=out, config=CONFIG, resume=True, retry_dropped=True)
    assert sorted([*done, *last.flaky.seen]) == [5, 6, 7]
    assert dataset.to_polars().rows() == WHOLE


async def test_a_skipped_row_group_is_retried_as_a_whole(tmp_path: Path) -> None:
    """A group that its pre-batch processor failed for is made with `retry_dropped`."""
    fail = True

    def processor(frame: Any) -> Any:
        if fail and 6 in frame["n"]:
            raise ValueError("not now")
        return frame

    out = tmp_path / "out"
    processors = [sb.Processor(stage="pre_batch", apply=processor)]
    dataset = await sb.build_async(Columns(set()).columns, rows=12, out=out, config=CONFIG, processors=processors)
    assert dataset.to_polars().height == 7
    fail = False
    dataset = await sb.build_async(
        Columns(set()).columns,
        rows=12,
        out=out,
        config=CONFIG,
        processors=processors,
        resume=True,
        retry_dropped=True,
    )
    assert dataset.to_polars().rows() == WHOLE
    assert dataset.report is not None
    assert (dataset.report.written, dataset.report.dropped, dataset.report.skipped_row_groups) == (12, (), ())
