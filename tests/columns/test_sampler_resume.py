from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest

import seedbed
from seedbed.columns.distributions import Gaussian, Poisson, Uniform
from seedbed.columns.person import Person
from seedbed.columns.sampler import UUID, Category, Datetime, Subcategory, Timedelta
from seedbed.columns.seed import Seed
from seedbed.columns.validation import Validation
from seedbed.engine.api import resume
from seedbed.recipe.recipe import Recipe

if TYPE_CHECKING:
    from pathlib import Path


def mixed_recipe(folder: Path, order: str) -> Recipe:
    """A recipe with one column of each sampler, a seed and a validation."""
    path = folder / "rows.csv"
    pl.DataFrame({"id": range(23), "code": [f"x{row} = {row}" for row in range(23)]}).write_csv(path)
    return Recipe(
        seed=11,
        base=folder,
        columns=[
            Seed("source", path="rows.csv", order=order),
            UUID("key"),
            Category("topic", values=["tea", "bread"], weights=[1, 3]),
            Subcategory("kind", category="topic", values={"tea": ["green", "black"], "bread": ["rye", "corn"]}),
            Uniform("price", low=1, high={"column": "id"}, decimals=2, skip_when="id < 1"),
            Gaussian("weight", mean={"column": "id"}, std=2),
            Poisson("sold", mean={"column": "id"}),
            Datetime("day", start="2024-01-01", end="2024-12-31", as_date=True),
            Timedelta("later", high=30, of="day"),
            Person("buyer", age=[30, 40]),
            Category("title", given="buyer.sex", values={"female": ["Ms"], "male": ["Mr"]}),
            Validation("sound", of="code", kind="python"),
        ],
    )


@pytest.mark.parametrize("order", ["ordered", "shuffled"])
async def test_a_resumed_build_has_the_rows_of_an_uninterrupted_one(order: str, tmp_path: Path) -> None:
    """A build that is interrupted and resumed from its directory alone has the rows of a build in one run."""
    recipe = mixed_recipe(tmp_path, order)
    config = seedbed.RunConfig(buffer_size=8, max_concurrent_row_groups=2)
    async with seedbed.open_build(recipe, rows=100, out=tmp_path / "left", config=config) as running:
        seen = 0
        async for _ in running:
            seen += 1
            if seen == 3:
                break
    resumed = resume(tmp_path / "left", allow_paths=[tmp_path]).to_polars()
    whole = seedbed.build(
        recipe, rows=100, out=tmp_path / "whole", config=seedbed.RunConfig(buffer_size=33)
    ).to_polars()
    assert resumed.height == 100
    assert resumed.equals(whole)
    assert whole["id"].to_list()[:23] == whole["id"].to_list()[23:46]
    assert all(verdict["is_valid"] for verdict in whole["sound"].to_list())
