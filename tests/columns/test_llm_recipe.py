from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
import trio

import seedbed as sb
from seedbed.testing import serve_openai_sync

if TYPE_CHECKING:
    from pathlib import Path


@sb.column
async def answer(question: str, writer: sb.Model) -> str:
    """The function of the design's first page."""
    return await writer.chat(f"Answer in two sentences: {question}")


def recipe(url: str, **options: Any) -> sb.Recipe:
    """The recipe of the design's first page, with a picture and a vector."""
    return sb.Recipe(
        seed=7,
        models={"writer": sb.OpenAICompatible(base_url=url, model="small", max_parallel_requests=64)},
        columns=[
            sb.Category("topic", values=["tea", "bread", "rain"]),
            sb.LLMText("question", model="writer", prompt="Ask one curious question about {{ topic }}.", dedupe=True),
            answer,
            sb.Judge("quality", model="writer", of="answer", scores={"clarity": "1 to 5"}, trace=True),
            sb.Expression("good", "quality.clarity >= 4"),
            sb.Image("cover", model="writer", prompt="A picture for {{ question }}"),
            sb.Embedding("vector", model="writer", of="answer"),
        ],
        run={"buffer_size": 10, **options},
    )


def test_a_recipe_of_every_model_column_on_disk(tmp_path: Path) -> None:
    """Every column has its type, pictures are in the dataset directory, and equal requests were sent once."""
    with serve_openai_sync() as server:
        dataset = sb.build(recipe(server.url), rows=40, out=tmp_path / "data")
        assert server.statistics.prompts["Ask one curious question about tea."] == 1
    frame = dataset.to_polars()
    assert frame.height == 40
    assert sum(frame.null_count().row(0)) == 0
    assert frame.schema["quality"] == pl.Struct({"clarity": pl.Int64, "clarity_reasoning": pl.String})
    assert frame["good"].to_list() == [row["clarity"] >= 4 for row in frame["quality"]]
    assert all((tmp_path / "data" / path).read_bytes().startswith(b"\x89PNG") for path in frame["cover"])
    assert frame["quality__trace"].list.len().to_list() == [2] * 40


def test_resume_reuses_the_pictures_on_disk(tmp_path: Path) -> None:
    """Pictures of the interrupted run stay, and the resumed run generates the rest."""
    out = tmp_path / "data"

    async def first_group(url: str) -> None:
        async with sb.open_build(recipe(url, max_concurrent_row_groups=1), rows=40, out=out) as build:
            await anext(build)  # leaving now cancels the rest

    with serve_openai_sync() as server:
        trio.run(first_group, server.url)
        before = set(sb.Dataset.open(out).to_polars()["cover"])
        assert 0 < len(before) < 40
        dataset = sb.resume(out, recipe(server.url))
    frame = dataset.to_polars()
    assert frame.height == 40
    assert before < set(frame["cover"])
    assert all((out / path).is_file() for path in frame["cover"])
