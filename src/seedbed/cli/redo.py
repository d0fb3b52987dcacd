"""`seedbed redo`: generate part of a finished dataset again, in place."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from .exit_codes import ExitCode
from .options import Flag, Machine, Permissions, RecipeChanges, RunOptions, Several, Watching
from .run import RETRY_DROPPED, confirmation, resume_command, run_watched

if TYPE_CHECKING:
    from ..recipe.recipe import Recipe


def redo(
    directory: Path,
    /,
    *,
    column: Several = (),
    where: str | None = None,
    recipe: Annotated[Path | None, Parameter(show_default=False)] = None,
    abandon: Flag = False,
    yes: Annotated[Flag, Parameter(name=["--yes", "-y"])] = False,
    retry_dropped: Flag = False,
    accept_changes: Flag = False,
    no_model_check: Flag = False,
    permissions: Permissions = Permissions(),
    options: RunOptions = RunOptions(),
    watching: Watching = Watching(),
    machine: Machine = Machine(),
) -> int:
    """Generate columns of a finished dataset again, and all that depends on them, in place.

    Lists the cells and their estimated cost first and, on a terminal, asks. Until everything is generated the directory
    holds the dataset as it was. A redo that ended early is continued by the same command or by `seedbed resume`, or
    taken back with --abandon.

    Parameters
    ----------
    directory
        The directory of the dataset.
    column
        A column to generate again. May be repeated.
    where
        Only in the rows for which this expression is true, such as "score < 3"; with --column.
    recipe
        Use this recipe file in place of the one that is stored in the directory; what it changes is generated again.
    abandon
        Take back a redo that is not finished.
    yes
        Do not ask.
    retry_dropped
        Also retry the rows that were dropped because a cell failed.
    accept_changes
        Keep the cells of columns of which only the code of functions or the rows of seed files changed.
    no_model_check
        Do not check each model with one small call before the build begins.

    """
    import attrs

    from ..engine import api
    from .recipes import make_config, needed_options, read_recipe

    if abandon:
        return _abandon(directory, bool(column or where or recipe))
    grants = permissions.grants()
    given: Recipe
    if recipe is None:
        from ..engine.source import stored_recipe

        given, needed = stored_recipe(directory, grants), grants.options()
    else:
        allowed = attrs.asdict(permissions, recurse=False)
        given = read_recipe(recipe, RecipeChanges(**allowed))
        needed = needed_options(given, permissions)
    modes: Any = {"retry_dropped": retry_dropped, "accept_changes": accept_changes}
    modes |= {"check_models": not no_model_check, "confirm": confirmation(yes=yes)}
    modes["config"] = make_config(given, options, watching)
    return run_watched(
        partial(api.redo, directory, column, where=where, recipe=given, **modes),
        given,
        directory,
        watching=watching,
        machine=machine,
        resume=resume_command(directory, *([RETRY_DROPPED] if retry_dropped else []), *needed),
    )


def _abandon(directory: Path, has_others: bool) -> int:
    from ..engine.api import abandon_redo
    from ..errors import ConfigError
    from . import output

    if has_others:
        raise ConfigError("--abandon takes back what was begun: leave out --column, --where and --recipe")
    found = abandon_redo(directory)
    output.print_line(f"{directory} holds the dataset as it was" if found else f"{directory} has no unfinished redo")
    return ExitCode.OK
