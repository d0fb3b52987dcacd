"""`seedbed preview`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  cyclopts reads the annotations
from typing import Annotated

from cyclopts import Parameter

from .options import Knobs, Machine, RecipeChanges


def preview(
    recipe: Path,
    /,
    *,
    rows: Annotated[int, Parameter(name=["--rows", "-n"])] = 5,
    changes: RecipeChanges | None = None,
    knobs: Knobs | None = None,
    machine: Machine | None = None,
) -> int:
    """Make a few rows and show them as records; nothing is written.

    Parameters
    ----------
    recipe
        A recipe file: YAML, TOML or JSON.
    rows
        How many rows to make.

    """
    from ..engine import api
    from . import output
    from .exit_codes import ExitCode, report_code
    from .recipes import announce_contacts, make_config, read_recipe

    given = read_recipe(recipe, changes or RecipeChanges())
    announce_contacts(given)
    shown = api.preview(given, rows=rows, config=make_config(given, knobs or Knobs()))
    records = list(shown.to_polars().iter_rows(named=True))
    if machine is not None and machine.json:
        output.print_json({"records": output.finite(records), **output.report_data(shown.report)})
    else:
        output.print_records(records)
        if shown.report.dropped:
            output.print_drops(shown.report.drops_by_reason)
        output.console(error=True).print(str(shown.report), markup=False)
    code = report_code(shown.report)
    if code is not ExitCode.OK:
        output.print_nothing_made(shown.report)
    return code
