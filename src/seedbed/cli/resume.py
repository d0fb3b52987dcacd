"""`seedbed resume`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  cyclopts reads the annotations
from typing import Annotated

from cyclopts import Parameter

from .options import Knobs, Machine, Permissions, Watching


def resume(
    directory: Path,
    /,
    *,
    rows: Annotated[int | None, Parameter(name=["--rows", "-n"])] = None,
    retry_dropped: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    accept_changes: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    permissions: Permissions | None = None,
    knobs: Knobs | None = None,
    watching: Watching | None = None,
    machine: Machine | None = None,
) -> int:
    """Go on with a build that ended early, or let a dataset grow, with the recipe that is stored in its directory.

    What was paid for is kept; cost and tokens count on. A recipe written in Python is resumed from Python.

    Parameters
    ----------
    directory
        The directory of the dataset.
    rows
        Let the dataset grow to so many rows; those that are there stay.
    retry_dropped
        Try the rows again that were dropped because a cell failed; only cells that are missing are made.
    accept_changes
        Go on although the code of functions or the rows of seed files changed; what is there stays.

    """
    from ..engine import api
    from ..engine.source import stored_recipe
    from .recipes import announce_contacts, compile_recipe, make_config
    from .running import RETRY_DROPPED, resume_command, rows_settled, run_watched

    watching, permissions = watching or Watching(), permissions or Permissions()
    recipe = stored_recipe(directory, permissions.grants())
    config = make_config(recipe, knobs or Knobs(), watching)
    announce_contacts(recipe)
    return run_watched(
        lambda readers: api.resume(
            directory,
            recipe,
            rows=rows,
            config=config,
            readers=readers,
            retry_dropped=retry_dropped,
            accept_changes=accept_changes,
        ),
        out=directory,
        title=recipe.name or directory.name,
        watching=watching,
        machine=machine or Machine(),
        source=compile_recipe(recipe, allow_code=permissions.allow_code),
        rows_before=rows_settled(directory, retry_dropped=retry_dropped),
        # The directory knows by then how many rows there are to be, and what was accepted.
        resume=resume_command(
            directory,
            *([RETRY_DROPPED] if retry_dropped else []),
            *permissions.grants().options(),
        ),
    )
