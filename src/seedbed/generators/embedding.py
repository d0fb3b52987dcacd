"""Vectors of texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from ..recipe.media import Embedding
from .binding import as_text, bind_model, model_options
from .column import Column
from .registry import Environment, maker

if TYPE_CHECKING:
    from collections.abc import Callable

    from .context import CellContext


@maker(Embedding)
def make_embedding(spec: Embedding, environment: Environment) -> Column:
    """A column of vectors, one call a cell."""
    return Column(
        spec.name,
        _filler(spec, environment),
        requires=(spec.of,),
        # What models compute with; a double would keep nothing more.
        dtype=pl.List(pl.Float32) if spec.dtype is None else spec.dtype,
        **model_options(spec, environment, "embedding"),
    )


def _filler(spec: Embedding, environment: Environment) -> Callable[..., Any]:
    async def fill(context_: CellContext, /, **values: Any) -> list[float] | None:
        value = values[spec.of]
        if value is None:
            return None
        (vector,) = await bind_model(spec, environment, context_).embed([as_text(value)], **spec.parameters)
        return vector

    return fill
