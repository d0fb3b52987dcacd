"""Pictures that a model makes, in files beside the dataset."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import polars as pl

from ..recipe.media import Image
from ..recipe.templates import compile_template
from ..runtime.offload import finish_in_thread
from ..store.files import write_file
from .binding import bind_model, model_options
from .column import Column
from .registry import Environment, maker

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..models.base import Image as Picture
    from ..recipe.templates import Template
    from .context import CellContext

_SUFFIXES = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp"}


@maker(Image)
def make_image(spec: Image, environment: Environment) -> Column:
    """A column of pictures: paths where there is a directory for them, bytes where there is none."""
    prompt = compile_template(spec.prompt, where=f"column {spec.name!r}, prompt")
    dtype = pl.Binary if environment.artifacts is None else pl.String
    return Column(
        spec.name,
        _filler(spec, environment, prompt),
        requires=prompt.requires,
        dtype=dtype if spec.dtype is None else spec.dtype,
        **model_options(spec, environment, "image"),
    )


def _filler(spec: Image, environment: Environment, prompt: Template) -> Callable[..., Any]:
    artifacts = environment.artifacts
    # Relative to the dataset, which may be moved; a column may be called what no directory can be.
    folder = f"images/{quote(spec.name, safe='').replace('.', '%2E')}"

    async def fill(context_: CellContext, /, **values: Any) -> bytes | str:
        picture = await bind_model(spec, environment, context_).image(prompt.render(values), **spec.parameters)
        if artifacts is None:
            return picture.data
        path = f"{folder}/{_file_name(picture, context_.row)}"
        await finish_in_thread(partial(write_file, artifacts, path, picture.data))
        return path

    return fill


def _file_name(picture: Picture, row: int | None) -> str:
    """The row, and what the picture is: rows that a processor copied have one number and perhaps two pictures."""
    content = hashlib.blake2b(picture.data, digest_size=6).hexdigest()
    return f"{row or 0:07d}_{content}.{_SUFFIXES.get(picture.media_type, 'img')}"
