"""`seedbed check`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  cyclopts reads the annotations
from typing import TYPE_CHECKING, Any

from .exit_codes import ExitCode
from .options import Machine, RecipeChanges

if TYPE_CHECKING:
    from ..recipe.recipe import Recipe


def check(recipe: Path, /, *, changes: RecipeChanges | None = None, machine: Machine | None = None) -> int:
    """Tell everything that is wrong with a recipe, at once, and list the URLs that it contacts; no model is called.

    Parameters
    ----------
    recipe
        A recipe file: YAML, TOML or JSON.

    """
    import attrs

    from . import output
    from .recipes import find_problems

    is_json = machine is not None and machine.json
    contacts: list[dict[str, Any]] = []

    def list_contacts(given: Recipe) -> None:
        for contact in given.contacts():
            contacts.append(attrs.asdict(contact))
            if not is_json:
                output.console().print(f"contacts {contact}", markup=False, soft_wrap=True)

    source, problems = find_problems(recipe, changes or RecipeChanges(), list_contacts)
    columns = [] if source is None else [column.name for column in source.columns]
    if is_json:
        output.print_json({"ok": not problems, "problems": problems, "columns": columns, "contacts": contacts})
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
