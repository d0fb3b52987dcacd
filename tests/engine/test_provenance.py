"""Where rows came from: stored with every row, whatever processors, retries and changed recipes do to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

import seedbed as sb
from seedbed.columns.base import CellContext  # noqa: TC001 - the engine reads the annotation
from seedbed.errors import ConfigError, DatasetGenerationError, Permanent, Retryable

if TYPE_CHECKING:
    from pathlib import Path

    import trio.testing

NAMES = [f"name {at}" for at in range(10)]


def seed(folder: Path, **fields: Any) -> sb.Seed:
    """A seed file of ten names."""
    path = folder / "names.csv"
    pl.DataFrame({"name": NAMES}).write_csv(path)
    return sb.Seed("seed", path=str(path), **fields)


def recipe(folder: Path, *processors: Any, bad: str = "nobody", **fields: Any) -> sb.Recipe:
    """A text about each name of a seed file; that about one name is refused."""

    def answer(request: Any) -> str:
        text = str(request.messages[-1].content)
        if text.endswith(bad):
            raise Permanent("no text about it", code="refused")
        return f"text of {text}"

    return sb.Recipe(
        seed=1,
        columns=[seed(folder, **fields), sb.LLMText("text", model="writer", prompt="{{ name }}")],
        models={"writer": sb.Scripted(answers=answer, input_price=1.0, output_price=2.0)},
        processors=processors,
        run={"buffer_size": 4, "backoff_base": 0.001},
    )


def check(dataset: sb.Dataset) -> pl.DataFrame:
    """Each row of the dataset has the number of the row of the seed file that has its name; returns the provenance."""
    provenance = dataset.provenance()
    names = dataset.to_polars()["name"].to_list()
    assert provenance.height == len(names)
    assert [NAMES[at] for at in provenance["_seed_row"].to_list()] == names
    return provenance


@pytest.mark.parametrize("fields", [{}, {"order": "shuffled"}, {"start": 3, "stop": 8}, {"partition": (1, 3)}])
def test_seed_rows_are_those_of_the_file(fields: dict[str, Any], tmp_path: Path) -> None:
    """In order, shuffled, of a slice or a part, and when the rows start over."""
    dataset = sb.build(recipe(tmp_path, **fields), rows=13, out=tmp_path / "out")
    provenance = check(dataset)
    assert provenance["_row"].to_list() == [*range(13)]
    origins = provenance["text__provenance"].to_list()
    assert {each["model"] for each in origins} == {"writer"}
    assert sum(each["cost"] for each in origins) == pytest.approx(dataset.report.usage["text"].cost)
    assert sum(each["input_tokens"] for each in origins) == dataset.report.usage["text"].input_tokens


def test_dropped_rows_have_a_code_their_seed_row_and_their_cost(tmp_path: Path) -> None:
    """The same while the build runs and at its end; a retried row is where it would have been."""
    out = tmp_path / "out"
    dataset = sb.build(recipe(tmp_path, bad="5"), rows=10, out=out)
    (dropped,) = dataset.dropped().to_dicts()
    assert (dropped["_row"], dropped["_seed_row"], dropped["_column"]) == (5, 5, "text")
    assert (dropped["_kind"], dropped["_code"], dropped["_reason"]) == ("failed", "refused", "no text about it")
    assert (dropped["_attempts"], dropped["_cost"], dropped["name"]) == (1, 0.0, "name 5")
    assert dropped["_stage"] is None
    assert check(dataset)["_row"].to_list() == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    again = sb.build(recipe(tmp_path), rows=10, out=out, resume=True, retry_dropped=True, accept_changes=True)
    assert check(again)["_row"].to_list() == [*range(10)]
    assert again.dropped().height == 0


def test_processors_that_filter_and_sort(tmp_path: Path) -> None:
    """Rows are recognised by their values, before the cells and after them; rows that were made have nulls."""

    def change(frame: pl.DataFrame) -> pl.DataFrame:
        kept = frame.filter(pl.col("name") != "name 2").sort("name", descending=True)
        made = kept.head(1).with_columns(pl.lit("made").alias("name"))
        return pl.concat([kept, made]).with_columns(pl.col("name").str.len_chars().alias("length"))

    early = sb.Processor(stage="pre_batch", apply=lambda frame: frame.filter(pl.col("name") != "name 1").reverse())
    late = sb.Processor(stage="post_batch", apply=change)
    dataset = sb.build(recipe(tmp_path), rows=8, out=tmp_path / "out", processors=[early, late])
    names, provenance = dataset.to_polars()["name"].to_list(), dataset.provenance()
    assert names == ["name 3", "name 0", "made", "name 7", "name 6", "name 5", "name 4", "made"]
    seeds = provenance["_seed_row"].to_list()
    assert [None if at is None else NAMES[at] for at in seeds] == [None if name == "made" else name for name in names]
    models = [each and each["model"] for each in provenance["text__provenance"].to_list()]
    assert models == [None if name == "made" else "writer" for name in names]


def test_rows_that_are_retried_behind_processors(tmp_path: Path) -> None:
    """The other rows of their group are processed again, and keep what is known of them."""
    late = sb.Processor(stage="post_batch", apply=lambda frame: frame.sort("name", descending=True), name="sort")
    early = sb.Processor(stage="pre_batch", apply=lambda frame: frame.reverse(), name="turn")
    out = tmp_path / "out"
    sb.build(recipe(tmp_path, bad="5"), rows=10, out=out, processors=[early, late])
    given = {"resume": True, "retry_dropped": True, "accept_changes": True, "processors": [early, late]}
    dataset = sb.build(recipe(tmp_path), rows=10, out=out, **given)
    provenance = check(dataset)
    assert provenance["text__provenance"].struct.field("calls").to_list() == [1] * 10


def test_a_changed_recipe_keeps_what_is_known(tmp_path: Path) -> None:
    """Row groups that are written anew have the origins of the cells that they keep."""
    out = tmp_path / "out"
    before = sb.build(recipe(tmp_path), rows=10, out=out).provenance()
    more = recipe(tmp_path)
    more = sb.Recipe(
        seed=1,
        columns=[*more.columns, sb.LLMText("more", model="writer", prompt="{{ text }}")],
        models=more.models,
        run=more.run,
    )
    after = check(sb.build(more, rows=10, out=out, resume=True))
    assert after["text__provenance"].to_list() == before["text__provenance"].to_list()
    assert after["more__provenance"].null_count() == 0


def test_the_option_adds_columns(tmp_path: Path) -> None:
    """Dataset and provenance have the same columns; a retried row has its values too; it is given at the start."""
    out, other = tmp_path / "out", tmp_path / "other"
    config = sb.RunConfig(buffer_size=4, provenance=True, backoff_base=0.001)
    sb.build(recipe(tmp_path, bad="5"), rows=10, out=out, config=config)
    dataset = sb.build(recipe(tmp_path), rows=10, out=out, resume=True, retry_dropped=True, accept_changes=True)
    provenance = check(dataset)
    assert dataset.to_polars().select(provenance.columns).equals(provenance)
    assert dataset.columns == ("name", "text", *provenance.columns)
    sb.build(recipe(tmp_path), rows=4, out=other)
    with pytest.raises(ConfigError, match="started without the option provenance"):
        sb.build(recipe(tmp_path), rows=8, out=other, resume=True, config=config)
    with pytest.raises(DatasetGenerationError, match="has the name of a column that the option provenance adds"):
        sb.build(
            [sb.Column("_seed_row", lambda rows: [*rows], kind="from_scratch")],
            rows=1,
            out=tmp_path / "x",
            config=config,
        )


def test_a_damaged_file_costs_only_what_it_says(tmp_path: Path) -> None:
    """The rows stay; a resume removes the file, and nothing is generated again."""
    out = tmp_path / "out"
    sb.build(recipe(tmp_path), rows=8, out=out)
    (out / ".seedbed/provenance/batch_0000000.part").write_bytes(b"nothing")
    dataset = sb.Dataset.open(out)
    assert any("provenance/batch_0000000.part" in sentence for sentence in dataset.damage())
    with pytest.raises(sb.StoreError):
        dataset.provenance()
    resumed = sb.build(recipe(tmp_path), rows=8, out=out, resume=True)
    assert resumed.report.attempts == {}
    assert resumed.provenance()["_seed_row"].to_list() == [None] * 4 + [4, 5, 6, 7]


async def test_attempts_and_what_they_used(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Usage of failed attempts counts for the cell, and what a dropped row used is in its cost."""
    tried: dict[int, int] = {}

    async def work(n: int, context: CellContext) -> int:
        tried[n] = tried.get(n, 0) + 1
        context.report_usage(model="m", input_tokens=5, cost=0.25)
        if n == 1 and tried[n] < 3:
            raise Retryable("later")
        if n == 2:
            raise Permanent("never")
        return n

    columns = [sb.Column("n", lambda rows: [*rows], kind="from_scratch"), sb.Column("work", work)]
    dataset = await sb.build_async(columns, rows=3, out=tmp_path / "out")
    origins = dataset.provenance()["work__provenance"].to_list()
    assert [(each["attempts"], each["calls"], each["cost"]) for each in origins] == [(1, 1, 0.25), (3, 3, 0.75)]
    (dropped,) = dataset.dropped().to_dicts()
    assert (dropped["_cost"], dropped["_code"]) == (0.25, "failed")
    assert sum(each["cost"] for each in origins) + dropped["_cost"] == dataset.report.usage["work"].cost


async def test_a_whole_column_shares_what_it_used(tmp_path: Path) -> None:
    """Each row has a part of the tokens and the cost."""

    async def work(frame: pl.DataFrame, context: CellContext) -> list[int]:
        context.report_usage(model="m", input_tokens=10, cost=1.0)
        return frame["n"].to_list()

    columns = [
        sb.Column("n", lambda rows: [*rows], kind="from_scratch"),
        sb.Column("work", work, kind="full_column", requires="n"),
    ]
    dataset = await sb.build_async(columns, rows=4, out=tmp_path / "out")
    origins = dataset.provenance()["work__provenance"].to_list()
    assert [each["input_tokens"] for each in origins] == [2, 2, 3, 3]
    assert [each["cost"] for each in origins] == [0.25] * 4
