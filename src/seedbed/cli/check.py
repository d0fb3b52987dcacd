"""`seedbed check`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  cyclopts reads the annotations

from .exit_codes import ExitCode
from .options import Machine, RecipeChanges


def check(recipe: Path, /, *, changes: RecipeChanges | None = None, machine: Machine | None = None) -> int:
    """Tell everything that is wrong with a recipe, at once; nothing is run and no model is called.

    Parameters
    ----------
    recipe
        A recipe file: YAML, TOML or JSON.

    """
    from . import output
    from .recipes import find_problems

    source, problems = find_problems(recipe, changes or RecipeChanges())
    columns = [] if source is None else [column.name for column in source.columns]
    if machine is not None and machine.json:
        output.print_json({"ok": not problems, "problems": problems, "columns": columns})
    elif source is None:
        out = output.console()
        for problem in problems:
            out.print(problem, markup=False, soft_wrap=True)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        output.console(error=True).print(f"{recipe}: {count}", markup=False)
    else:
        names = ", ".join(columns)
        output.console().print(f"{recipe}: no problems; {len(columns)} columns: {names}", markup=False)
    return ExitCode.BAD_INPUT if problems else ExitCode.OK
