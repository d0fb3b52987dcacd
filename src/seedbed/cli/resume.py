"""`seedbed resume`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  cyclopts reads the annotations
from typing import Annotated

from cyclopts import Parameter

from .options import Knobs, Machine, Watching


def resume(
    directory: Path,
    /,
    *,
    allow_code: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    knobs: Knobs | None = None,
    watching: Watching | None = None,
    machine: Machine | None = None,
) -> int:
    """Go on with a build that ended early, with the recipe that is stored in its directory.

    Row groups that are complete are kept; cost and tokens count on. A recipe written in Python is resumed from Python.

    Parameters
    ----------
    directory
        The directory of the dataset.
    allow_code
        Let the recipe import the code that it names as module:name.

    """
    from ..build import api
    from ..build.source import stored_recipe
    from .recipes import compile_recipe, make_config
    from .running import resume_command, rows_settled, run_watched

    watching = watching or Watching()
    recipe = stored_recipe(directory, allow_code=allow_code)
    config = make_config(recipe, knobs or Knobs(), watching)
    return run_watched(
        lambda readers: api.resume(directory, recipe, config=config, readers=readers),
        out=directory,
        title=recipe.name or directory.name,
        watching=watching,
        machine=machine or Machine(),
        source=compile_recipe(recipe, allow_code=allow_code),
        rows_before=rows_settled(directory),
        resume=resume_command(directory, *(["--allow-code"] if allow_code else [])),
    )
