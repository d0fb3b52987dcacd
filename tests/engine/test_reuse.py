"""A new dataset takes over from another one what has not changed; it is that of a build of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from changing_recipes import Calls, Echo, Total, chain, keep, numbers, root, steps

import seedbed as sb

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

CONFIG = sb.RunConfig(buffer_size=3, shutdown_error_rate=1.0, salvage_max_rounds=0)


async def build(out: Path, columns: list[sb.Column], *processors: sb.Processor, rows: int = 8, **options: Any) -> Any:
    """Build a dataset, or take one over."""
    return await sb.build_async(columns, rows=rows, out=out, config=CONFIG, processors=processors, **options)


def seen(columns: list[sb.Column]) -> dict[str, list[int]]:
    """The rows that each model column was called for."""
    return {each.name: sorted(each.generator.seen) for each in columns if isinstance(each.generator, Calls)}


@pytest.mark.parametrize(
    "stages",
    [{}, {"post_batch": keep(odd=True)}, {"after_generation": keep(odd=True)}, {"pre_batch": keep(odd=True)}],
    ids=["none", "post-batch", "after generation", "pre-batch"],
)
@pytest.mark.parametrize("rows", [5, 8, 11])
async def test_what_has_not_changed_is_taken_over(
    stages: dict[str, Any], rows: int, autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Only the changed column, what depends on it and rows that are new are paid for; the other dataset stays."""
    await build(tmp_path / "old", chain(), *steps(**stages))
    before = {path: path.read_bytes() for path in (tmp_path / "old").rglob("*") if path.is_file()}
    late = sb.Column("late", lambda b: f"{b}!")
    new = chain(None, Renamed("b"), late)
    dataset = await build(tmp_path / "new", new, *steps(**stages), rows=rows, reuse=tmp_path / "old")
    fresh = await build(tmp_path / "fresh", chain(None, Renamed("b"), late), *steps(**stages), rows=rows)
    assert dataset.to_polars().equals(fresh.to_polars())
    assert root(tmp_path / "new").equals(fresh.to_polars())
    assert dataset.complete
    made = {n for n in range(rows) if "pre_batch" not in stages or n % 2}
    lost = {3} if "pre_batch" in stages and rows == 5 else set[int]()  # in a row group that has fewer rows now
    calls = seen(new)
    assert set(calls["b"]) == made
    assert set(calls["a"]) == {n for n in made if n >= 8} | lost
    assert calls["other"] == calls["a"]
    assert dataset.report.reused == 3 * len(made - {n for n in made if n >= 8} - lost)
    files = [{each.relative_to(out.path) for each in out.path.rglob("*")} for out in (dataset, fresh)]
    assert files[0] == files[1]
    assert {path: path.read_bytes() for path in (tmp_path / "old").rglob("*") if path.is_file()} == before


async def test_dropped_rows(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Rows that were dropped because of what changed are generated; those of an unchanged column stay dropped."""
    await build(tmp_path / "old", chain(Calls("a", fails=[1]), Echo("b", fails=[3, 4])))
    new = chain(Calls("a"), Renamed("B", fails=[6]))
    dataset = await build(tmp_path / "new", new, reuse=tmp_path / "old")
    assert seen(new) == {"a": [], "b": [0, 2, 3, 4, 5, 6, 7], "other": []}
    assert [(drop.row, drop.column) for drop in dataset.drops] == [(1, "a"), (6, "b")]
    assert dataset.to_polars()["n"].to_list() == [0, 2, 3, 4, 5, 7]
    new = chain(Calls("a"), Echo("b"))
    dataset = await build(tmp_path / "again", new, rows=4, reuse=tmp_path / "old")
    assert [(drop.row, drop.column) for drop in dataset.drops] == [(1, "a"), (3, "b")]
    assert seen(new) == {"a": [], "b": [], "other": []}


class Renamed(Echo):
    """The same with other code."""

    async def agenerate(self, n: int, a: str) -> str:  # type: ignore[override]
        return await super().agenerate(n, a) + "."


async def test_an_unfinished_dataset(autojump_clock: MockClock, tmp_path: Path) -> None:
    """The cells of its open row groups are taken over too."""
    a = Calls("a")
    old = chain(a)
    async with sb.open_build(old, rows=8, out=tmp_path / "old", config=CONFIG) as running:
        a.on_call = lambda n: running.stop() if n == 7 else None
        with pytest.raises(sb.Interrupted):
            await running.wait()
    new = chain(None, Renamed("b"))
    dataset = await build(tmp_path / "new", new, reuse=tmp_path / "old")
    paid = seen(old), seen(new)
    assert paid[1]["b"] == list(range(8))
    assert paid[0]["a"]
    assert sorted(paid[0]["a"] + paid[1]["a"]) == list(range(8))
    assert dataset.to_polars()["a"].to_list() == [f"a{n}" for n in range(8)]


@pytest.mark.parametrize("rows", [5, 8, 10])
async def test_stateful_columns(rows: int, autojump_clock: MockClock, tmp_path: Path) -> None:
    """They continue where the other dataset ended; one that depends on a change starts anew."""

    def columns(text: str, *totals: Total) -> list[sb.Column]:
        filled = Echo(text) if text == "b" else Renamed(text)
        return [*chain(None, filled), *(sb.Column(f"total{at}", each) for at, each in enumerate(totals))]

    await build(tmp_path / "old", columns("b", Total(), Total()))
    first, second = Total(), Total()
    new = columns("B", first, second)
    dataset = await build(tmp_path / "new", new, rows=rows, reuse=tmp_path / "old")
    totals = [sum(range(n + 1)) for n in range(rows)]
    assert dataset.to_polars()["total0"].to_list() == dataset.to_polars()["total1"].to_list() == totals
    dataset = await build(tmp_path / "new", columns("B", Total(), Total()), rows=rows + 3, resume=True)
    assert dataset.to_polars()["total0"].to_list() == [sum(range(n + 1)) for n in range(rows + 3)]


async def test_whole_columns_of_fewer_rows(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Where a row group has fewer rows now, a whole column is generated from these."""
    whole = sb.Column("count", lambda frame: [frame.height] * frame.height, kind="full_column", requires=("a",))
    await build(tmp_path / "old", chain(None, None, whole))
    new = chain(None, None, whole)
    dataset = await build(tmp_path / "new", new, rows=5, reuse=tmp_path / "old")
    assert dataset.to_polars()["count"].to_list() == [3, 3, 3, 2, 2]
    assert not any(seen(new).values())


async def test_pre_batch_processors(autojump_clock: MockClock, tmp_path: Path) -> None:
    """With other processors, or another column that they see, nothing is taken over."""
    await build(tmp_path / "old", chain(), *steps(pre_batch=keep(odd=True)))
    for name, columns, odd in (
        ("other", chain(), False),
        ("more", [*chain(), sb.Column("m", numbers, kind="from_scratch")], True),
    ):
        dataset = await build(tmp_path / name, columns, *steps(pre_batch=keep(odd=odd)), reuse=tmp_path / "old")
        assert dataset.report.reused == 0
        assert seen(columns)["a"] == [n for n in range(8) if n % 2 == odd]


async def test_errors(autojump_clock: MockClock, tmp_path: Path) -> None:
    """What cannot be taken over is an error before anything is written."""
    old = tmp_path / "old"
    await build(old, chain())
    with pytest.raises(sb.ConfigError, match="is the directory to be written; to change it in place, use redo"):
        await build(old, chain(), overwrite=True, reuse=old)
    with pytest.raises(sb.ManifestError, match="is not a dataset"):
        await build(tmp_path / "new", chain(), reuse=tmp_path / "nothing")
    with pytest.raises(sb.ConfigError, match="reuse applies to a dataset that is written"):
        async with sb.open_build(chain(), rows=1, reuse=old):
            pass
    (old / "batch_0000001.parquet").write_bytes(b"damaged")
    with pytest.raises(sb.StoreError, match=r"damaged.*: repair it first with seedbed resume"):
        await build(tmp_path / "new", chain(), reuse=old)
    await build(old, chain(), resume=True)
    dataset = await build(tmp_path / "new", chain(), reuse=old)
    assert dataset.complete
    assert not [path for path in dataset.path.iterdir() if path.name.endswith(".tmp")]


async def test_pictures_and_draws(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Pictures are copied with their cells; a column that was redone goes on drawing as it did."""
    recipe = sb.Recipe(
        models={"p": sb.Scripted()},
        columns=[sb.Uniform("x", low=0, high=1), sb.Image("picture", model="p", prompt="{{ x }}")],
    )
    old = await sb.build_async(recipe, rows=4, out=tmp_path / "old")
    old = await sb.build_async(recipe, rows=4, out=tmp_path / "old", resume=True, redo=["x"])
    for path in old.to_polars()["picture"]:
        assert (old.path / path).is_file()
    more = sb.Recipe(models=recipe.models, columns=[*recipe.columns, sb.Expression("y", "x * 2")])
    new = await sb.build_async(more, rows=3, out=tmp_path / "new", reuse=tmp_path / "old")
    assert new.to_polars()["picture"].to_list() == old.to_polars()["picture"].to_list()[:3]
    for path in new.to_polars()["picture"]:
        assert (new.path / path).read_bytes() == (old.path / path).read_bytes()
    grown = await sb.build_async(more, rows=4, out=tmp_path / "new", resume=True)
    assert grown.to_polars()["x"].to_list() == old.to_polars()["x"].to_list()
