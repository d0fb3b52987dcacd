"""Runs a recipe's columns and processors through the real engine, as a build does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import seedbed
from seedbed.columns.spec import Environment, make_processor

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

    from seedbed.recipe.recipe import Recipe


def made(recipe: Recipe, **environment: Any) -> list[seedbed.Column]:
    """The engine's columns of a recipe."""
    models: Any = recipe.models
    here = Environment(seed=recipe.seed, models=models, base=recipe.base, **environment)
    return list(recipe.resolve(here))


def grown(
    recipe: Recipe, rows: int, *, out: Path | None = None, buffer_size: int = 1000, **environment: Any
) -> pl.DataFrame:
    """Build every row of the dataset, in memory or on disk."""
    processors = [
        seedbed.Processor(stage=stage, name=label, apply=function)
        for stage, label, function in (make_processor(spec, Environment()) for spec in recipe.processors)
    ]
    columns = made(recipe, **environment)
    if out is None:
        return seedbed.preview(columns, rows=rows, processors=processors).to_polars()
    config = seedbed.RunConfig(buffer_size=buffer_size)
    return seedbed.build(columns, rows=rows, out=out, processors=processors, config=config).to_polars()
