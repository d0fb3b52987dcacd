"""`seedbed run`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  cyclopts reads the annotations
from typing import Annotated

from cyclopts import Parameter

from .options import Knobs, Machine, RecipeChanges, Watching


def run(
    recipe: Path,
    /,
    *,
    rows: Annotated[int, Parameter(name=["--rows", "-n"])],
    out: Annotated[Path, Parameter(name=["--out", "-o"])],
    resume: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    accept_changes: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    changes: RecipeChanges | None = None,
    knobs: Knobs | None = None,
    watching: Watching | None = None,
    machine: Machine | None = None,
) -> int:
    """Build a dataset from a recipe.

    Parameters
    ----------
    recipe
        A recipe file: YAML, TOML or JSON.
    rows
        How many rows to make.
    out
        The directory of the dataset; it must be new or empty.
    resume
        Go on if the directory holds a dataset of this recipe; with more rows than it has it grows.
    accept_changes
        With --resume: go on although the code of functions or the rows of seed files changed; what is there stays.

    """
    from ..engine.api import build
    from .recipes import announce_contacts, compile_recipe, make_config, needed_options, read_recipe
    from .running import resume_command, rows_settled, run_watched

    changes, watching = changes or RecipeChanges(), watching or Watching()
    given = read_recipe(recipe, changes)
    config = make_config(given, knobs or Knobs(), watching)
    announce_contacts(given)
    return run_watched(
        lambda readers: build(
            given, rows=rows, out=out, config=config, readers=readers, resume=resume, accept_changes=accept_changes
        ),
        out=out,
        title=given.name or recipe.stem,
        watching=watching,
        machine=machine or Machine(),
        source=compile_recipe(given, allow_code=changes.allow_code),
        rows_before=rows_settled(out) if resume else 0,
        resume=resume_command(out, *needed_options(given, changes)),
    )
