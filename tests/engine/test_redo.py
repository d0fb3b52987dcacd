"""Part of a finished dataset is generated again in place, as a revision that readers see only when it is complete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from changing_recipes import Calls, Echo, Total, chain, keep, numbers, root, steps

import seedbed as sb
from seedbed.store.manifest import read

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

CONFIG = sb.RunConfig(buffer_size=3, shutdown_error_rate=1.0, salvage_max_rounds=0)


async def build(out: Path, columns: list[sb.Column], *processors: sb.Processor, rows: int = 8, **options: Any) -> Any:
    """Begin, resume or redo a dataset."""
    options = {"resume": True, **options}
    return await sb.build_async(columns, rows=rows, out=out, config=CONFIG, processors=processors, **options)


@pytest.mark.parametrize(
    "stages",
    [{}, {"post_batch": keep(odd=True)}, {"after_generation": keep(odd=True)}, {"pre_batch": keep(odd=True)}],
    ids=["none", "post-batch", "after generation", "pre-batch"],
)
async def test_a_column_is_redone(stages: dict[str, Any], autojump_clock: MockClock, tmp_path: Path) -> None:
    """Its cells and those of columns that depend on it are generated again, and no others."""
    out = tmp_path / "out"
    await build(out, chain(), *steps(**stages))
    a, b, other = Calls("A"), Echo("b"), Calls("never")
    columns = chain(a, b)
    columns[3] = sb.Column("other", other, key="k", dtype=str)
    dataset = await build(out, columns, *steps(**stages), redo=["a"])
    kept = [1, 3, 5, 7] if stages else [*range(8)]
    generated = [1, 3, 5, 7] if "pre_batch" in stages else [*range(8)]
    assert (sorted(a.seen), sorted(b.seen), other.seen) == (generated, generated, [])
    assert dataset.complete
    assert dataset.to_polars().rows() == [(n, f"A{n}", f"b(A{n})", f"o{n}") for n in kept]
    assert root(out).equals(dataset.to_polars())
    dataset.verify()
    assert dataset.report.written == len(kept)
    # It is a dataset like any other: the same recipe finds nothing to do, and it can grow.
    assert (await build(out, columns, *steps(**stages))).complete
    assert len(a.seen) == len(generated)
    grown = await build(out, columns, *steps(**stages), rows=10)
    assert grown.to_polars()["a"].to_list() == [f"A{n}" for n in range(10) if n % 2 or not stages]


async def test_rows_are_selected(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Only selected rows are generated again; row groups without one keep their files."""
    out = tmp_path / "out"
    before = await build(out, chain())
    files = {path.name: path.stat().st_ino for path in out.glob("*.parquet")}
    a, b = Calls("A"), Echo("b")
    dataset = await build(out, chain(a, b), redo=["a"], redo_where="n in [4, 5] or other == 'o4'")
    assert (sorted(a.seen), sorted(b.seen)) == ([4, 5], [4, 5])
    expected = [(n, f"{'A' if n in (4, 5) else 'a'}{n}") for n in range(8)]
    assert dataset.to_polars().rows() == [(n, a, f"b({a})", f"o{n}") for n, a in expected]
    assert dataset.columns == before.columns
    now = {path.name: path.stat().st_ino for path in out.glob("*.parquet")}
    assert [name for name in sorted(now) if now[name] != files[name]] == ["batch_0000001.parquet"]


async def test_whole_columns_and_skipped_cells(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A whole column is generated for the row groups in which a row is selected; skip rules decide anew."""
    out = tmp_path / "out"
    seen: list[int] = []

    def rank(frame: pl.DataFrame) -> list[int]:
        seen.extend(frame["n"].to_list())
        return frame["a"].str.len_chars().rank("ordinal").cast(int).to_list()

    more = [
        sb.Column("rank", rank, kind="full_column", requires=("n", "a")),
        sb.Column("top", lambda rank: rank * 10),
    ]
    await build(out, chain(None, None, *more))
    seen.clear()
    dataset = await build(out, chain(Calls("longer"), None, *more), redo=["a"], redo_where="n == 3")
    assert seen == [3, 4, 5]
    found = dataset.to_polars()
    assert found["rank"].to_list() == [1, 2, 3, 3, 1, 2, 1, 2]
    assert found["top"].to_list() == [10, 20, 30, 30, 10, 20, 10, 20]
    assert found["a"].to_list()[3] == "longer3"


async def test_dropped_rows(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Rows that were dropped because of a redone column get another chance; others stay dropped, with their cells."""
    out = tmp_path / "out"
    old = chain(Calls("a", fails=[1]), Echo("b", fails=[3, 4]))
    await build(out, old)
    b = Echo("B", fails=[6])
    dataset = await build(out, chain(Calls("never"), b), redo=["b"])
    assert set(b.seen) == {0, 2, 3, 4, 5, 6, 7}
    assert dataset.to_polars()["n"].to_list() == [0, 2, 3, 4, 5, 7]
    assert [(drop.row, drop.column) for drop in dataset.drops] == [(1, "a"), (6, "b")]
    assert dataset.dropped()["a"].to_list() == [None, "a6"]
    dataset = await build(out, chain(Calls("a"), Echo("B")), retry_dropped=True)
    assert dataset.to_polars()["b"].to_list() == [f"B(a{n})" for n in range(8)]


async def test_a_stateful_column_starts_anew(autojump_clock: MockClock, tmp_path: Path) -> None:
    """It sees all rows in their order again; with where it is refused by its name."""
    out = tmp_path / "out"

    def columns(total: Total) -> list[sb.Column]:
        return [*chain(), sb.Column("total", total)]

    await build(out, columns(Total()))
    total = Total()
    with pytest.raises(sb.ConfigError, match="where: column 'total' is stateful"):
        await build(out, columns(total), redo=["total"], redo_where="n == 1")
    dataset = await build(out, columns(total), redo=["total"])
    assert total.seen == list(range(8))
    assert dataset.to_polars()["total"].to_list() == [sum(range(n + 1)) for n in range(8)]
    # A redo of another column leaves it as it is, and it goes on where it ended.
    total = Total()
    await build(out, columns(total), redo=["a"])
    dataset = await build(out, columns(Total()), rows=10)
    assert dataset.to_polars()["total"].to_list() == [sum(range(n + 1)) for n in range(10)]


async def test_a_changed_recipe(autojump_clock: MockClock, tmp_path: Path) -> None:
    """What the recipe changed is generated again, added columns too; code that is accepted stays."""
    out, a = tmp_path / "out", Calls("a")
    await build(out, chain(a))
    new = chain(a, None, sb.Column("late", lambda b: f"{b}!"))
    new[3] = sb.Column("other", lambda n: f"new{n}", dtype=str)
    with pytest.raises(sb.ManifestError, match=r"(?s)columns\.other.*seedbed redo"):
        await build(out, [*new[:3], sb.Column("other", Calls("o"), dtype=bytes)])
    dataset = await build(out, new, redo=[])
    assert sorted(a.seen) == [*range(8)]
    assert dataset.to_polars()["other"].to_list() == [f"new{n}" for n in range(8)]
    assert dataset.to_polars()["late"].to_list() == [f"b(a{n})!" for n in range(8)]
    with pytest.raises(sb.ConfigError, match="nothing to redo"):
        await build(out, new, redo=[])


async def test_pre_batch_processors_change(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Then every row group is generated as a whole, also one that was skipped."""
    out = tmp_path / "out"

    def fail(frame: pl.DataFrame) -> pl.DataFrame:
        if 4 in frame["n"]:
            raise ValueError("no")
        return frame.filter(pl.col("n") % 2 == 1)

    await build(out, chain(), *steps(pre_batch=fail))
    assert root(out)["n"].to_list() == [1, 7]
    a = Calls("A")
    dataset = await build(out, chain(a), *steps(pre_batch=keep(odd=False)), redo=[])
    assert sorted(a.seen) == [0, 2, 4, 6]
    assert dataset.to_polars().rows() == [(n, f"A{n}", f"b(A{n})", f"o{n}") for n in (0, 2, 4, 6)]
    assert not dataset.drops


async def test_the_dataset_stays_until_the_revision_is_complete(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A redo that ends early can be continued or taken back; readers see the old rows until it is complete."""
    out = tmp_path / "out"
    before = (await build(out, chain(Calls("a", fails=[2])))).to_polars()

    async def stopped() -> None:
        a = Calls("A")
        async with sb.open_build(chain(a), rows=8, out=out, config=CONFIG, resume=True, redo=["a"]) as build:
            a.on_call = lambda n: build.stop() if n == 7 else None
            await build.wait()

    for _ in range(2):
        with pytest.raises(sb.Interrupted):
            await stopped()
        assert sb.Dataset.open(out).to_polars().equals(before)
        assert root(out).equals(before)
        assert sb.Dataset.open(out).complete
        assert read(out).pending is not None
        with pytest.raises(sb.ConfigError, match="unfinished redo of 'a'"):
            await build(out, chain(), redo=["b"])
        sb.abandon_redo(out)
        assert read(out).pending is None
        assert sb.Dataset.open(out).to_polars().equals(before)
        assert not list(out.rglob("*.tmp"))
    with pytest.raises(sb.Interrupted):
        await stopped()
    a = Calls("A")
    dataset = await build(out, chain(a))
    assert len(a.seen) < 8
    assert dataset.to_polars()["a"].to_list() == [f"A{n}" for n in range(8)]


async def test_a_revision_without_rows_is_no_dataset(autojump_clock: MockClock, tmp_path: Path) -> None:
    """If every row fails, the dataset stays as it is."""
    out = tmp_path / "out"
    before = (await build(out, chain())).to_polars()
    with pytest.raises(sb.AllRowsDropped, match="the dataset is unchanged"):
        await build(out, chain(Calls(fails=range(8))), redo=["a"])
    assert root(out).equals(before)
    dataset = await build(out, chain(Calls("A")), retry_dropped=True)
    assert dataset.to_polars()["a"].to_list() == [f"A{n}" for n in range(8)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"redo": ["reviw"]}, "no column named 'reviw'"),
        ({"redo": "a"}, "takes names of columns"),
        ({"redo": ["a"], "redo_where": "m == 1"}, "where: no column named 'm'"),
        ({"redo": ["a"], "redo_where": "n =="}, "where"),
        ({"redo": ["a"], "redo_where": "n > 100"}, "no row of .* is selected"),
        ({"redo": [], "redo_where": "n == 1"}, "name the columns"),
        ({"redo": ["a"], "resume": False}, "redo applies to a finished dataset"),
    ],
)
async def test_requests_that_mean_nothing(
    options: dict[str, Any], message: str, autojump_clock: MockClock, tmp_path: Path
) -> None:
    """They are errors before anything is written."""
    out = tmp_path / "out"
    await build(out, chain())
    before = (out / ".seedbed" / "manifest.log").read_bytes()
    with pytest.raises(sb.ConfigError, match=message):
        await build(out, chain(), **options)
    assert (out / ".seedbed" / "manifest.log").read_bytes() == before


async def test_samplers_draw_anew(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A sampler that is named draws other values, the same in every such redo; one that only depends on it does not."""
    recipe = sb.Recipe(
        columns=[
            sb.Uniform("x", low=0, high=1),
            sb.Category("c", values=["a", "b", "c", "d"]),
            sb.Expression("twice", "x * 2"),
        ]
    )
    frames = []
    for name in ("one", "two"):
        before = await sb.build_async(recipe, rows=20, out=tmp_path / name)
        assert before.to_polars()["x"].n_unique() == 20
        frames.append(before.to_polars())
        await sb.build_async(recipe, rows=20, out=tmp_path / name, resume=True, redo=["x"])
        after = await sb.build_async(recipe, rows=25, out=tmp_path / name, resume=True)
        frames.append(after.to_polars())
    assert frames[0].equals(frames[2])
    assert frames[1].equals(frames[3])
    assert not set(frames[0]["x"]) & set(frames[1]["x"])
    assert frames[0]["c"].to_list() == frames[1]["c"].to_list()[:20]
    assert frames[1]["twice"].to_list() == [x * 2 for x in frames[1]["x"]]
    one = await sb.build_async(recipe, rows=25, out=tmp_path / "one", resume=True, redo=["x"], redo_where="x < 0.5")
    for old, new in zip(frames[1]["x"], one.to_polars()["x"], strict=True):
        assert (old == new) == (old >= 0.5)


async def test_columns_that_run_once_per_key(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Their shared answers are generated again too, and are the old ones if the redo is taken back."""
    out = tmp_path / "out"

    def columns(shared: Calls) -> list[sb.Column]:
        return [
            sb.Column("row", numbers, kind="from_scratch"),
            sb.Column("n", lambda row: row % 2),
            sb.Column("shared", shared, key="k", dtype=str, once_per=("n",)),
        ]

    await build(out, columns(Calls("old")))
    with pytest.raises(sb.ConfigError, match="column 'shared' has once_per"):
        await build(out, columns(Calls()), redo=["shared"], redo_where="row == 1")
    stopped = Calls("stopped")
    async with sb.open_build(columns(stopped), rows=8, out=out, config=CONFIG, resume=True, redo=["shared"]) as running:
        stopped.on_call = lambda n: running.stop() if n else None
        with pytest.raises(sb.Interrupted):
            await running.wait()
    assert sb.abandon_redo(out)
    grown = await build(out, columns(again := Calls("never")), rows=10)
    assert (again.seen, grown.to_polars()["shared"].to_list()[8:]) == ([], ["old0", "old1"])
    dataset = await build(out, columns(new := Calls("new")), rows=10, redo=["shared"])
    assert sorted(new.seen) == [0, 1]
    assert dataset.to_polars()["shared"].to_list() == ["new0", "new1"] * 5
    taken = await build(tmp_path / "taken", columns(never := Calls("new")), rows=12, resume=False, reuse=out)
    assert (never.seen, taken.to_polars()["shared"].to_list()) == ([], ["new0", "new1"] * 6)


async def test_stages_are_refused(tmp_path: Path) -> None:
    """Rows of other stages depend on what would be regenerated."""
    stages = [
        sb.Stage("one", columns=[sb.Category("topic", values=["a"])]),
        sb.Stage("two", from_="one", each=2, columns=[sb.Expression("more", "topic + 'x'")]),
    ]
    recipe = sb.Recipe(stages=stages)
    await sb.build_async(recipe, rows=2, out=tmp_path / "out")
    with pytest.raises(sb.ConfigError, match="redo applies to recipes without stages"):
        await sb.build_async(recipe, rows=2, out=tmp_path / "out", resume=True, redo=["topic"])
    with pytest.raises(sb.ConfigError, match="reuse applies to recipes without stages"):
        await sb.build_async(recipe, rows=2, out=tmp_path / "new", reuse=tmp_path / "out")
