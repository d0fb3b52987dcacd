"""Going on with a directory that a build left unfinished, cell by cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

import seedbed as sb
from seedbed import Column, Dataset, ManifestError, OutputDirectoryError, RunConfig
from seedbed.store.entries import Failed, FinishedRows, Key
from seedbed.store.journal import Journal
from seedbed.store.log import scan
from seedbed.store.manifest import MANIFEST_NAME

if TYPE_CHECKING:
    from pathlib import Path

    from seedbed.store.entries import Entry

CONFIG = RunConfig(buffer_size=10, max_concurrent_row_groups=1, grace=0)


def numbers(rows: range) -> list[int]:
    """Row numbers."""
    return list(rows)


class Calls:
    """Doubles numbers, counts its calls, and stops the build at one of them."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.seen: list[int] = []
        self.done: list[int] = []
        self.stop_at = stop_at
        self.build: sb.Build | None = None

    async def agenerate(self, n: int, context: sb.CellContext) -> int:
        self.seen.append(n)
        if n == self.stop_at:
            assert self.build is not None
            self.build.stop()
            await trio.sleep_forever()
        self.done.append(n)
        context.report_usage(input_tokens=3, output_tokens=4, cost=0.5, model="m")
        return n * 2


def columns(calls: Calls) -> list[Column]:
    """Numbers and their doubles."""
    return [Column("n", numbers, kind="from_scratch"), Column("v", calls, key="k")]


async def stopped(out: Path, at: int = 25) -> Calls:
    """A build of 50 rows that was stopped in its third row group."""
    calls = Calls(at)
    with pytest.raises(sb.Interrupted):
        async with sb.open_build(columns(calls), rows=50, out=out, config=CONFIG) as calls.build:
            await calls.build.wait()
    return calls


async def test_a_resumed_build_makes_only_what_is_missing(tmp_path: Path) -> None:
    """The dataset is that of a run without a stop, nothing that was answered is asked again, usage adds up."""
    out = tmp_path / "d"
    before = await stopped(out)
    assert Dataset.open(out).rows == 20
    again = Calls()
    dataset = await sb.build_async(columns(again), rows=50, out=out, config=CONFIG, resume=True)
    assert dataset.complete
    assert dataset.to_polars().rows() == [(n, n * 2) for n in range(50)]
    assert not set(again.seen) & set(before.done)
    assert sorted([*again.seen, *before.done]) == list(range(50))
    report = dataset.report
    assert report is not None
    assert (report.written, report.requested, report.unfinished) == (50, 50, ())
    usage = report.usage["v"]
    assert usage.calls == len(before.done) + len(again.done)
    assert len(before.done) > 20
    assert usage.cost == usage.calls * 0.5
    assert report.model_usage["m"] == usage


async def test_a_finished_directory_is_left_as_it_is(tmp_path: Path) -> None:
    """Resuming what is complete calls nothing."""
    out = tmp_path / "d"
    await sb.build_async(columns(Calls()), rows=20, out=out, config=CONFIG)
    again = Calls()
    dataset = await sb.build_async(columns(again), rows=20, out=out, config=CONFIG, resume=True)
    assert again.seen == []
    assert dataset.rows == 20


async def test_resume_starts_a_new_dataset_in_an_empty_directory(tmp_path: Path) -> None:
    """With `resume` a directory that is not there is made."""
    dataset = await sb.build_async(columns(Calls()), rows=5, out=tmp_path / "new", config=CONFIG, resume=True)
    assert dataset.rows == 5


async def test_another_build_is_rejected_with_the_differences(tmp_path: Path) -> None:
    """Finished columns that differ and fewer rows are all named."""
    out = tmp_path / "d"
    await stopped(out)
    other = [Column("n", numbers, kind="from_scratch"), Column("v", Calls(), dtype=float), Column("w", Calls())]
    with pytest.raises(ManifestError) as raised:
        await sb.build_async(other, rows=40, out=out, config=CONFIG, resume=True)
    assert "columns.v.dtype.v" in str(raised.value)
    assert "column 'v' has " in str(raised.value)
    assert "columns.w" not in str(raised.value)  # a column that was added is generated
    assert "the dataset has 50 rows, 40 were requested" in str(raised.value)


async def test_a_used_directory_needs_resume(tmp_path: Path) -> None:
    """Without it nothing is overwritten."""
    out = tmp_path / "d"
    await stopped(out)
    with pytest.raises(OutputDirectoryError, match=r"the dataset of this recipe in .* is not finished; nothing was"):
        await sb.build_async(columns(Calls()), rows=50, out=out, config=CONFIG)


async def test_the_row_group_size_is_the_directory_s(tmp_path: Path) -> None:
    """A buffer_size that changed in the meantime does not tear row groups apart."""
    out = tmp_path / "d"
    await stopped(out)
    config = RunConfig(buffer_size=7)
    dataset = await sb.build_async(columns(Calls()), rows=50, out=out, config=config, resume=True)
    assert dataset.to_polars()["v"].to_list() == [n * 2 for n in range(50)]
    assert len(dataset.parts) == 5


def test_resume_takes_the_rows_from_the_directory(tmp_path: Path) -> None:
    """`seedbed.resume` needs the directory and, for columns written in Python, the columns."""
    out = tmp_path / "d"
    trio.run(stopped, out)
    dataset = sb.resume(out, columns(Calls()), config=CONFIG)
    assert dataset.complete
    with pytest.raises(ManifestError, match="holds no recipe"):
        sb.resume(out)


class Sum:
    """A stateful column: the sum of all numbers so far."""

    is_stateful = True

    def __init__(self) -> None:
        self.total = 0

    async def agenerate(self, v: int) -> int:
        self.total += v
        return self.total

    def get_state(self) -> int:
        return self.total

    def set_state(self, state: int) -> None:
        self.total = state


async def test_a_manifest_that_lost_its_last_records_is_noticed(tmp_path: Path) -> None:
    """Row groups that the manifest forgot are generated again, with stateful generators as they were before them."""
    out, calls = tmp_path / "d", Calls(35)
    given = [*columns(calls), Column("sum", Sum())]
    with pytest.raises(sb.Interrupted):
        async with sb.open_build(given, rows=50, out=out, config=CONFIG) as calls.build:
            await calls.build.wait()
    manifest = out / MANIFEST_NAME
    data = manifest.read_bytes()
    groups = [record.start for record in scan(data).records if b"batch_" in record.payload]
    assert len(groups) == 3
    manifest.write_bytes(data[: groups[1]])
    (damage,) = Dataset.open(out).damage()
    assert "ends before its last 2 row groups" in damage
    again = [*columns(Calls()), Column("sum", Sum())]
    dataset = await sb.build_async(again, rows=50, out=out, config=CONFIG, resume=True)
    assert dataset.report is not None
    assert dataset.report.damage == (damage,)
    assert dataset.to_polars()["sum"].to_list() == [n * (n + 1) for n in range(50)]
    assert Dataset.open(out).damage() == ()


@pytest.mark.parametrize(
    "entry",
    [
        Failed(column="v", row=9, attempt=1, salvage_round=0, error="no", consequence="whatever"),
        FinishedRows(column="n", rows=[10**6], columns=[[1]]),
        FinishedRows(column="pair", rows=[1], columns=[[1]]),
    ],
    ids=["an unknown consequence", "a row far away", "one column for two outputs"],
)
async def test_a_journal_that_no_run_wrote_is_rejected(tmp_path: Path, entry: Entry) -> None:
    """Entries with sound checksums that do not fit the recipe end in a `StoreError` that names their row group."""
    out, calls = tmp_path / "d", Calls(25)
    given = [*columns(calls), Column("pair", lambda n: {"a": n, "b": n}, requires=["n"], outputs=["a", "b"])]
    with pytest.raises(sb.Interrupted):
        async with sb.open_build(given, rows=50, out=out, config=CONFIG) as calls.build:
            await calls.build.wait()
    journal, _ = Journal.open(out, trusted=False)
    journal.commit({Key(group=2): [entry]})
    journal.close()
    given[1] = Column("v", Calls(), key="k")
    with pytest.raises(
        sb.StoreError, match="the journal of row group 2 holds an entry that no run of this recipe wrote"
    ):
        await sb.build_async(given, rows=50, out=out, config=CONFIG, resume=True)
