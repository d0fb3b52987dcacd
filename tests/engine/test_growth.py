"""A dataset that is there grows: its rows stay, more follow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import seedbed as sb
from seedbed.store.manifest import read

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def recipe(tmp_path: Path, **options: Any) -> sb.Recipe:
    """Samplers, a seed file, an expression and a model."""
    (tmp_path / "products.csv").write_text("product\nkettle\ntoaster\nlamp\n")
    return sb.Recipe(
        columns=[
            sb.Seed("seeds", path=tmp_path / "products.csv"),
            sb.Category("tone", values=["kind", "cross"]),
            sb.Uniform("price", low=1, high=9),
            sb.Expression("line", "{{ product }}: {{ tone }}"),
            sb.LLMText("text", model="m", prompt="write about {{ line }} for {{ price }}"),
        ],
        models={"m": sb.Scripted()},
        seed=3,
        run={"buffer_size": 10},
        **options,
    )


def parts(dataset: sb.Dataset) -> list[int]:
    """The rows of each part."""
    return [part.rows for part in dataset.parts]


def numbers(rows: range) -> list[int]:
    """Row numbers."""
    return list(rows)


@pytest.mark.parametrize("steps", [(12, 35), (7, 8, 30), (10, 20, 31), (0, 9), (25, 25)])
def test_it_is_as_if_built_at_once(steps: Sequence[int], tmp_path: Path) -> None:
    """Rows and their order are those of a build of so many; what is there is not made again."""
    given = recipe(tmp_path)
    whole = sb.build(given, rows=steps[-1], out=tmp_path / "whole").to_polars()
    dataset = sb.build(given, rows=steps[0], out=tmp_path / "grown")
    made = dataset.report.usage["text"].calls if dataset.report and steps[0] else 0
    assert made == steps[0]
    for rows in steps[1:]:
        dataset = sb.build(given, rows=rows, out=tmp_path / "grown", resume=True)
        assert dataset.complete
        assert dataset.report is not None
        assert dataset.report.requested == dataset.report.written == rows
    assert dataset.to_polars().equals(whole)
    assert sb.Dataset.open(tmp_path / "grown").verify() == sb.Dataset.open(tmp_path / "whole").verify()
    assert dataset.report is not None
    assert dataset.report.usage["text"].calls == steps[-1]


def test_groups_keep_their_rows(tmp_path: Path) -> None:
    """The last group of what was asked for first stays short; others follow it, also when it grows again."""
    given = recipe(tmp_path)
    out = tmp_path / "d"
    sb.build(given, rows=12, out=out)
    before = sb.Dataset.open(out).parts
    assert parts(sb.resume(out, rows=25, allow_paths=[tmp_path])) == [10, 2, 10, 3]
    dataset = sb.resume(out, rows=40, allow_paths=[tmp_path])
    assert parts(dataset) == [10, 2, 10, 3, 10, 5]
    assert dataset.parts[:2] == before
    header = read(out).header
    assert header is not None
    assert (header.rows, header.segments) == (40, (12, 25))


async def test_growing_what_was_left_unfinished(tmp_path: Path) -> None:
    """The missing groups are made and more besides."""
    given, out = recipe(tmp_path), tmp_path / "d"
    with pytest.raises(sb.Interrupted):
        async with sb.open_build(given, rows=34, out=out, config=sb.RunConfig(buffer_size=10, grace=0)) as running:
            async for _ in running:
                running.stop()
    dataset = await sb.build_async(given, rows=47, out=out, resume=True)
    assert dataset.complete
    whole = await sb.build_async(given, rows=47, out=tmp_path / "whole")
    assert dataset.to_polars().equals(whole.to_polars())
    assert parts(dataset) == [10, 10, 10, 4, 10, 3]


async def test_an_interrupted_growth_is_gone_on_with(tmp_path: Path) -> None:
    """The directory remembers how many rows there are to be."""
    given, out = recipe(tmp_path), tmp_path / "d"
    await sb.build_async(given, rows=15, out=out)
    config = sb.RunConfig(buffer_size=10, grace=0)
    with pytest.raises(sb.Interrupted) as raised:
        async with sb.open_build(given, rows=50, out=out, config=config, resume=True) as running:
            running.stop()
            await running.wait()
    assert raised.value.report is not None
    assert sum(map(len, raised.value.report.unfinished)) == 35
    assert not sb.Dataset.open(out).complete
    assert sb.Dataset.open(out).rows == 15
    dataset = await sb.build_async(given, rows=50, out=out, resume=True)
    assert dataset.complete
    assert dataset.rows == 50


def test_processors_after_generation_run_again(tmp_path: Path) -> None:
    """Over the whole dataset, which is then what a reader gets."""
    given = recipe(tmp_path, processors=[sb.Deduplicate(subset=["product"])])
    out = tmp_path / "d"
    assert sb.build(given, rows=2, out=out).to_polars()["product"].to_list() == ["kettle", "toaster"]
    dataset = sb.resume(out, rows=20, allow_paths=[tmp_path])
    assert dataset.to_polars()["product"].to_list() == ["kettle", "toaster", "lamp"]
    assert dataset.complete


def test_other_types_of_later_rows(tmp_path: Path) -> None:
    """Parts that were given one schema are given another one where rows that came later need it."""

    def late(rows: range) -> list[Any]:
        return [None if row < 5 else row for row in rows]

    columns = [sb.Column("n", late, kind="from_scratch")]
    sb.build(columns, rows=5, out=tmp_path / "d", config=sb.RunConfig(buffer_size=5))
    dataset = sb.resume(tmp_path / "d", columns, rows=8)
    assert dataset.to_polars()["n"].to_list() == [None] * 5 + [5, 6, 7]
    assert {str(part.schema.field("n").type) for part in dataset.parts} == {"int64"}
    assert not dataset.verify()


class Counter:
    """Counts its cells, whatever they are; `remembers` reports its state, else it has to be called again."""

    is_stateful = True

    def __init__(self) -> None:
        self.count = 0

    def generate(self, n: int) -> int:
        self.count += 1
        return self.count * 1000 + n


class Remembers(Counter):
    """The same, which can tell its state."""

    def get_state(self) -> int:
        return self.count

    def set_state(self, state: int) -> None:
        self.count = state


@pytest.mark.parametrize("kind", [Counter, Remembers])
def test_stateful_generators_continue_in_a_growing_dataset(kind: type[Counter], tmp_path: Path) -> None:
    """They give the rows that they would have given to a build of so many at once."""

    def columns() -> list[sb.Column]:
        return [sb.Column("n", numbers, kind="from_scratch"), sb.Column("c", kind())]

    config = sb.RunConfig(buffer_size=3)
    sb.build(columns(), rows=4, out=tmp_path / "d", config=config)
    grown = sb.resume(tmp_path / "d", columns(), rows=9)
    assert grown.to_polars().rows() == [(n, (n + 1) * 1000 + n) for n in range(9)]


def test_changed_code_is_accepted_once(tmp_path: Path) -> None:
    """An edited function is refused; accepted, it makes the rest, and the directory knows it from then on."""
    out = tmp_path / "d"

    def columns(k: int) -> list[sb.Column]:
        edited = (lambda n: n * 2) if k == 2 else (lambda n: n * 3)
        return [sb.Column("n", numbers, kind="from_scratch"), sb.Column("v", edited)]

    sb.build(columns(2), rows=3, out=out, config=sb.RunConfig(buffer_size=2))
    with pytest.raises(sb.ManifestError, match=r"columns\.v\.generator: its code was edited"):
        sb.resume(out, columns(3), rows=5)
    assert sb.Dataset.open(out).complete
    dataset = sb.resume(out, columns(3), rows=5, accept_changes=True)
    assert dataset.to_polars()["v"].to_list() == [0, 2, 4, 9, 12]
    assert sb.resume(out, columns(3), rows=6).to_polars()["v"].to_list() == [0, 2, 4, 9, 12, 15]
    with pytest.raises(sb.ManifestError, match="its code was edited"):
        sb.resume(out, columns(2))


def test_a_seed_file_that_grew(tmp_path: Path) -> None:
    """Rows were added to it: accepted, they are used for what comes on top."""
    path = tmp_path / "s.csv"
    path.write_text("x\n1\n2\n")
    given = sb.Recipe(columns=[sb.Seed("s", path=path, cycle=False)])
    sb.build(given, rows=2, out=tmp_path / "d")
    path.write_text("x\n1\n2\n3\n")
    with pytest.raises(
        sb.ManifestError, match=r"columns\.s\.path: '1 file, 6 bytes, hash \w+' before, '1 file, 8 bytes"
    ):
        sb.resume(tmp_path / "d", rows=3, allow_paths=[tmp_path])
    dataset = sb.resume(tmp_path / "d", rows=3, allow_paths=[tmp_path], accept_changes=True)
    assert dataset.to_polars()["x"].to_list() == [1, 2, 3]
