"""Where the command begins and ends: parses, runs one command, and turns whatever is raised into a message."""

from __future__ import annotations

import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

from .exit_codes import ExitCode, exit_code

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cyclopts import App

# The module of each command and the sentence that the overview shows; a command is imported when it is used.
_COMMANDS = (
    ("run", "run:run", "Build a dataset from a recipe."),
    ("preview", "preview:preview", "Make a few rows and show them; nothing is written."),
    ("simulate", "simulate:simulate", "Say what a run will take, before anything is spent."),
    ("check", "check:check", "Tell everything that is wrong with a recipe; nothing is run."),
    ("graph", "graph:graph", "Show which column needs which, as mermaid text or an SVG drawing."),
    ("resume", "resume:resume", "Go on with a build that ended early."),
    ("inspect", "inspect:inspect", "Say what a dataset directory holds: rows, drops, cost, schema, a sample."),
    ("models", "models:models", "Look after the models of a recipe."),
    ("init", "init:init", "Write a commented starter recipe."),
    ("plan", "plan:plan", "Run plans: request-scoped graphs of ops under a deadline."),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = _run(given)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has enough; what is still buffered has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.CLOSED_OUTPUT
    return status


def _run(given: list[str]) -> int:
    try:
        return _run_command(given)
    except BrokenPipeError:
        raise
    except BaseException as error:  # whatever it is, it is told in a sentence
        # A panic of Rust code, polars for example, is neither.
        if not isinstance(error, Exception | KeyboardInterrupt) and type(error).__name__ != "PanicException":
            raise
        if "--debug" in given:
            traceback.print_exc()
        return _fail(_message(error), exit_code(error), type(error).__name__, given, _details(error))


def _run_command(given: list[str]) -> int:
    from cyclopts import CycloptsError

    try:
        result = _app()(given, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        return _fail(str(error).strip(), ExitCode.BAD_INPUT, "usage", given)
    return int(result) if isinstance(result, int) else ExitCode.OK


def _app() -> App:
    from cyclopts import App

    app = App(
        name="seedbed",
        help="Grow synthetic datasets from recipes, and run plans.",
        version=_version,
        help_format="plaintext",
        suppress_keyboard_interrupt=False,  # it is told like everything else
    )
    for name, place, sentence in _COMMANDS:
        app.command(f"seedbed.cli.{place}", name=name, help=sentence)
    return app


def _version() -> str:
    from importlib.metadata import version

    return f"seedbed {version('seedbed')}"


def _message(error: BaseException) -> str:
    from ..errors import PlanError, SeedbedError

    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    notes = getattr(error, "__notes__", ())
    if isinstance(error, PlanError):
        lines = str(error).splitlines()
        # A listing of one problem is a sentence.
        told = " ".join(line.removeprefix("  - ") for line in lines) if len(lines) <= 2 else "\n".join(lines)
        return "\n".join([f"{error.code}: {told}", *notes])
    if isinstance(error, SeedbedError):
        return "\n".join([str(error), *notes])
    kind = type(error).__name__
    return "\n".join([f"{kind}: {error}" if str(error) else kind, *notes, "(--debug shows where)"])


def _details(error: BaseException) -> dict[str, Any]:
    """What machines are told of an error of a plan or a request, besides its kind and message."""
    from ..errors import InvalidPlan, PlanError

    if not isinstance(error, PlanError):
        return {}
    details: dict[str, Any] = {"code": error.code, "node": error.node}
    if isinstance(error, InvalidPlan):
        from .plan_files import problems_data

        details["problems"] = problems_data(error)
    return details


def _fail(message: str, code: ExitCode, kind: str, given: list[str], details: Mapping[str, Any] | None = None) -> int:
    if "--json" in given:
        import json

        told = {"kind": kind, "message": message, "exit_code": int(code), **(details or {})}
        print(json.dumps({"error": told}))  # noqa: T201
    print(f"seedbed: {message}", file=sys.stderr)  # noqa: T201
    return code
