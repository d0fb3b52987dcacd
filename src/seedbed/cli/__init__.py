"""The command `seedbed`: `main` runs one command and turns every exception into a message and a status.

It may import every package; no package imports it.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

from .exit_codes import ExitCode, exit_code

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cyclopts import App

# The function of each command and its sentence in the overview; a module is imported when its command is used.
_COMMANDS = (
    ("run", "run:run", "Build a dataset from a recipe."),
    ("preview", "run:preview", "Generate a few rows and show them; nothing is written."),
    ("simulate", "simulate:simulate", "Predict the duration, calls, tokens and cost of a run."),
    ("check", "recipes:check", "Report every problem of a recipe; nothing is run."),
    ("graph", "recipes:graph", "Show the dependencies between columns, as mermaid text or an SVG drawing."),
    ("resume", "run:resume", "Resume a build that ended early, or grow a dataset."),
    ("redo", "redo:redo", "Generate columns of a finished dataset again, in place."),
    ("inspect", "inspect:inspect", "Show the rows, drops, cost, schema and a sample of a dataset directory."),
    ("view", "view:view", "Show datasets as a web page: live runs, rows, columns, drops, cost."),
    ("report", "view:report", "Write one self-contained page about a dataset."),
    ("export", "export:export", "Write the rows to jsonl, csv, parquet, arrow or a chat format for fine-tuning."),
    ("card", "card:card", "Write the card of a dataset, for the Hugging Face hub and as Croissant."),
    ("push", "card:push", "Publish a dataset on the Hugging Face hub."),
    ("models", "models:models", "Check the models of a recipe, or fetch the local one."),
    ("init", "init:init", "Write a commented recipe: a starter, or one of the cookbook."),
    ("plan", "plan:plan", "Run plans: request-scoped graphs of ops under a deadline."),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = _run(given)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output closed it; what is still buffered is discarded.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.CLOSED_OUTPUT
    return status


def _run(given: list[str]) -> int:
    try:
        # Inside the block, which also reports Ctrl-C during a slow import.
        from cyclopts import CycloptsError

        try:
            result = _app()(given, exit_on_error=False, print_error=False, result_action="return_value")
        except CycloptsError as error:
            message = str(error).strip()
            if given[0] == "resume" and ("--model-override" in message or "--seed" in message):
                message += " Resume uses the recipe that is stored: to change it, use seedbed run RECIPE … --resume."
            return _fail(message, ExitCode.BAD_INPUT, "usage", given)
        return int(result) if isinstance(result, int) else ExitCode.OK
    except BrokenPipeError:
        raise
    except BaseException as error:  # every error becomes a message
        if isinstance(error.__cause__, BrokenPipeError):  # raised by a reader of events that prints rows
            raise error.__cause__ from None
        # A panic in Rust code, such as polars, is neither.
        if not isinstance(error, Exception | KeyboardInterrupt) and type(error).__name__ != "PanicException":
            raise
        if "--debug" in given:
            traceback.print_exc()
        return _fail(_message(error), exit_code(error), type(error).__name__, given, _details(error))


def _app() -> App:
    from importlib.metadata import version

    from cyclopts import App

    app = App(
        name="seedbed",
        help="Build synthetic datasets from recipes, and run plans.",
        version=lambda: f"seedbed {version('seedbed')}",
        help_format="plaintext",
        suppress_keyboard_interrupt=False,  # `_run` reports it like every other exception
    )
    for name, place, sentence in _COMMANDS:
        app.command(f"seedbed.cli.{place}", name=name, help=sentence)
    return app


def _message(error: BaseException) -> str:
    from ..errors import PlanError, SeedbedError, is_out_of_memory

    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if is_out_of_memory(error):
        found = f" ({error})" if str(error) else ""
        return f"memory ran out{found}; what was finished is stored; run it again with more memory"
    notes = getattr(error, "__notes__", ())
    if isinstance(error, PlanError):
        lines = str(error).splitlines()
        # A listing of one problem is a sentence.
        text = " ".join(line.removeprefix("  - ") for line in lines) if len(lines) <= 2 else "\n".join(lines)
        return "\n".join([f"{error.code}: {text}", *notes])
    if isinstance(error, SeedbedError):
        return "\n".join([str(error), *notes])
    kind = type(error).__name__
    return "\n".join([f"{kind}: {error}" if str(error) else kind, *notes, "(--debug shows the traceback)"])


def _details(error: BaseException) -> dict[str, Any]:
    """What --json adds to the kind and message of an error of a plan or a request."""
    from ..errors import InvalidPlan, PlanError

    if isinstance(error, InvalidPlan):
        from .plan_work import problems_data

        return {"code": error.code, "node": error.node, "problems": problems_data(error)}
    return {"code": error.code, "node": error.node} if isinstance(error, PlanError) else {}


def _fail(message: str, code: ExitCode, kind: str, given: list[str], details: Mapping[str, Any] | None = None) -> int:
    if "--json" in given:
        import json

        error = {"kind": kind, "message": message, "exit_code": int(code), **(details or {})}
        print(json.dumps({"error": error}))  # noqa: T201
    print(f"seedbed: {message}", file=sys.stderr)  # noqa: T201
    return code
