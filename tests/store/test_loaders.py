"""A dataset directory read with polars, DuckDB, pyarrow, Hugging Face datasets and `Dataset`: all see the same rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow.dataset
import pytest

import seedbed as sb
from seedbed.observe.events import RowGroupFinished
from seedbed.store.manifest import read

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trio.testing import MockClock

PROCESSORS: dict[str, list[tuple[str, Callable[..., pl.DataFrame | pl.LazyFrame]]]] = {
    "none": [],
    "pre-batch": [("pre_batch", lambda frame: frame.filter(pl.col("n") % 3 != 1))],
    "post-batch": [("post_batch", lambda frame: frame.filter(pl.col("n") % 3 != 1).with_columns(m=pl.col("n") * 2))],
    "filter": [("after_generation", lambda frame: frame.filter(pl.col("n") > 4))],
    "explode": [("after_generation", lambda frame: frame.with_columns(x=pl.lit([1, 2, 3])).explode("x"))],
    "nothing left but one": [("after_generation", lambda frame: frame.select(pl.col("n").sum()))],
    "all": [
        ("pre_batch", lambda frame: frame.filter(pl.col("n") != 2)),
        ("post_batch", lambda frame: frame.filter(pl.col("n") != 5)),
        ("after_generation", lambda frame: frame.sort("n", descending=True)),
    ],
}


def _numbers(rows: range) -> list[int]:
    return list(rows)


@pytest.mark.parametrize("name", PROCESSORS)
async def test_every_loader_reads_exactly_the_dataset(name: str, autojump_clock: MockClock, tmp_path: Path) -> None:
    """Only `batch_*.parquet` is in the root, and every loader gives the rows of `Dataset.open`, in order."""
    duckdb = pytest.importorskip("duckdb")
    out = tmp_path / "out"
    await sb.build_async(
        columns(), rows=11, out=out, config=sb.RunConfig(buffer_size=3), processors=make_processors(name)
    )
    dataset = sb.Dataset.open(out)
    assert dataset.complete
    expected = dataset.to_polars()
    assert expected.height
    files = {path.name for path in out.iterdir()} - {".seedbed"}
    assert files == {part.name for part in dataset.parts}
    assert all(file.startswith("batch_") and file.endswith(".parquet") for file in files)
    assert not list((out / ".seedbed").rglob("*.parquet"))
    assert pl.read_parquet(f"{out}/*.parquet").equals(expected)
    assert pl.DataFrame(pyarrow.dataset.dataset(out).to_table()).equals(expected)
    rows = duckdb.sql(f"select * from read_parquet('{out}/*.parquet', file_row_number = false)").fetchall()
    assert rows == expected.rows()
    # What was requested and what processors added is written, removed or dropped; each processor is named.
    manifest = read(out)
    resized = [each for group in manifest.groups.values() for each in group.resized]
    resized += manifest.published.resized if manifest.published is not None else ()
    assert 11 + sum(added for _, _, added in resized) == expected.height + sum(removed for _, removed, _ in resized)
    assert {name for name, _, _ in resized} == {f"{stage} step" for stage, _ in PROCESSORS[name]}
    generated = sorted((out / ".seedbed" / "parts").glob("generated_*.part"))
    assert bool(generated) == any(stage == "post_batch" for stage, _ in PROCESSORS[name])
    for file in generated:  # as they were before the post-batch processors, which may change
        assert pl.read_parquet(file).columns == ["n", "text"]
    if generated:
        numbers = pl.concat([pl.read_parquet(file) for file in generated])["n"].to_list()
        assert numbers == [n for n in range(11) if name != "all" or n != 2]


def columns() -> list[sb.Column]:
    """Numbers and a text of each."""
    return [sb.Column("n", _numbers, kind="from_scratch"), sb.Column("text", lambda n: f"row {n}")]


def make_processors(name: str) -> list[sb.Processor]:
    """The processors of that name."""
    return [sb.Processor(stage=stage, apply=apply, name=f"{stage} step") for stage, apply in PROCESSORS[name]]


def read_with_others(out: Path) -> list[tuple[Any, ...]]:
    """The rows that polars, DuckDB and pyarrow read, which are the same; none if there are no files."""
    duckdb = pytest.importorskip("duckdb")
    if not list(out.glob("*.parquet")):
        return []
    found = pl.read_parquet(f"{out}/*.parquet").rows()
    assert pl.DataFrame(pyarrow.dataset.dataset(out).to_table()).rows() == found
    assert duckdb.sql(f"select * from read_parquet('{out}/*.parquet', file_row_number = false)").fetchall() == found
    return found


@pytest.mark.parametrize("name", ["none", "post-batch", "filter", "all"])
async def test_while_a_build_runs_and_grows(name: str, autojump_clock: MockClock, tmp_path: Path) -> None:
    """Whenever a row group is finished, loaders see the rows of `Dataset.open`.

    With processors of the whole dataset they see what was published last, which is nothing at first.
    """
    out, config = tmp_path / "out", sb.RunConfig(buffer_size=3, max_concurrent_row_groups=1)
    is_published = any(stage == "after_generation" for stage, _ in PROCESSORS[name])
    published: list[tuple[Any, ...]] = []
    checked = 0

    def check(event: object) -> None:
        nonlocal checked
        if isinstance(event, RowGroupFinished):
            checked += 1
            expected = published if is_published else sb.Dataset.open(out).to_polars().rows()
            assert read_with_others(out) == expected

    processors = make_processors(name)
    for rows in (7, 13):
        dataset = await sb.build_async(
            columns(), rows=rows, out=out, config=config, processors=processors, readers=[check], resume=True
        )
        published = dataset.to_polars().rows()
        assert read_with_others(out) == published
    assert checked == 5


@pytest.mark.parametrize("name", ["none", "all"])
async def test_hugging_face_datasets(
    name: str, autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`load_dataset(directory)` finds the rows and nothing else, also after a growth and with another recipe."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    out, config = tmp_path / "out", sb.RunConfig(buffer_size=3)
    more = sb.Column("more", lambda n: n * 2)
    for number, (rows, added) in enumerate([(7, []), (13, []), (13, [more])]):
        dataset = await sb.build_async(
            [*columns(), *added], rows=rows, out=out, config=config, processors=make_processors(name), resume=True
        )
        loaded = datasets.load_dataset(str(out), cache_dir=str(tmp_path / f"cache {number}"))
        assert list(loaded) == ["train"]
        assert loaded["train"].to_list() == dataset.to_polars().to_dicts()


def _fails_on_odd(n: int, text: str) -> str:
    if n % 2:
        raise ValueError(f"{n} is odd")
    return "even"


@pytest.mark.parametrize("durability", ["cell", "row_group"])
async def test_dropped_rows_are_beside_the_dataset(durability: str, autojump_clock: MockClock, tmp_path: Path) -> None:
    """`Dataset.dropped` has every dropped row with its reason, and with the cells that the journal stored of it."""
    out = tmp_path / "out"
    columns = [
        sb.Column("n", _numbers, kind="from_scratch"),
        sb.Column("text", lambda n: f"row {n}"),
        sb.Column("parity", _fails_on_odd),
    ]
    config = sb.RunConfig(buffer_size=3, durability=durability)
    await sb.build_async(columns, rows=6, out=out, config=config)
    dataset = sb.Dataset.open(out)
    assert dataset.complete
    dropped = dataset.dropped()
    assert dropped["_row"].to_list() == [1, 3, 5]
    assert dropped["_column"].to_list() == ["parity"] * 3
    assert "3 is odd" in dropped["_reason"][1]
    if durability == "cell":
        assert dropped["n"].to_list() == [1, 3, 5]
        assert dropped["text"].to_list() == ["row 1", "row 3", "row 5"]
    assert dropped["parity"].null_count() == 3
    assert (out / ".seedbed" / "dropped.part").is_file()
    assert pl.read_parquet(f"{out}/*.parquet").height == 3
    # A file that is damaged is found, and written again by a resume.
    (out / ".seedbed" / "dropped.part").write_bytes(b"damaged")
    (sentence,) = dataset.damage()
    assert "dropped.part" in sentence
    await sb.build_async(columns, rows=6, out=out, config=config, resume=True)
    assert sb.Dataset.open(out).dropped().equals(dropped)


async def test_no_dropped_rows(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A dataset without drops has no file of them, and `dropped` is empty."""
    dataset = await sb.build_async([sb.Column("n", _numbers, kind="from_scratch")], rows=3, out=tmp_path / "out")
    assert not (tmp_path / "out" / ".seedbed" / "dropped.part").exists()
    assert dataset.dropped().height == 0
