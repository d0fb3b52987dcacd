"""`seedbed run`, `seedbed resume` and `seedbed preview`: builds, their progress and their results."""

from __future__ import annotations

import shlex
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from .exit_codes import ExitCode
from .options import (
    Flag,
    Machine,
    Permissions,
    RecipeChanges,
    RecipeFile,
    Rows,
    RunOptions,
    Watching,
    row_counts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..engine.estimate import ColumnEstimate
    from ..observe.preview import PreviewRow
    from ..observe.report import BuildReport
    from ..recipe.recipe import Recipe
    from ..store.dataset import Dataset

# The option that retries dropped rows, and the kinds of drops that it retries.
RETRY_DROPPED = "--retry-dropped"
RETRIED = frozenset({"failed", "skipped"})


def run(
    recipe: RecipeFile,
    /,
    *,
    rows: Rows = None,
    out: Annotated[Path, Parameter(name=["--out", "-o"])],
    resume: Flag = False,
    overwrite: Flag = False,
    reuse: Annotated[Path | None, Parameter(show_default=False)] = None,
    yes: Annotated[Flag, Parameter(name=["--yes", "-y"])] = False,
    retry_dropped: Flag = False,
    accept_changes: Flag = False,
    no_model_check: Flag = False,
    changes: RecipeChanges = RecipeChanges(),
    options: RunOptions = RunOptions(),
    watching: Watching = Watching(),
    machine: Machine = Machine(),
) -> int:
    """Build a dataset from a recipe.

    Parameters
    ----------
    rows
        The number of rows to generate, such as 1000, 1e6 or 100k, unless the recipe has it; of a recipe with several
        stages that have a number of rows STAGE=N. May be repeated.
    out
        The directory of the dataset; without --resume or --overwrite it must be new or empty.
    resume
        Resume the dataset in the directory if there is one; it grows if more rows are requested.
    overwrite
        Replace the dataset in the directory if there is one; on a terminal, asks first.
    reuse
        For a new dataset: take over from the dataset in this directory every column that has not changed and depends on
        none that has. Lists the cells to generate and their estimated cost first and, on a terminal, asks.
    yes
        Do not ask.
    retry_dropped
        With --resume: retry the rows that were dropped because a cell failed; only their missing cells are generated.
    accept_changes
        With --resume: resume although the code of functions or the rows of seed files changed; existing rows stay.
    no_model_check
        Do not check each model with one small call before the build begins.

    """
    from ..engine import api
    from .recipes import make_config, needed_options, read_recipe

    given = read_recipe(recipe, changes)
    config = make_config(given, options, watching)
    if overwrite and not yes and not _may_overwrite(out):
        return ExitCode.BAD_INPUT
    modes: Any = {} if reuse is None else {"reuse": reuse, "confirm": confirmation(yes=yes)}
    modes |= {"resume": resume, "overwrite": overwrite, "retry_dropped": retry_dropped}
    modes |= {"accept_changes": accept_changes, "check_models": not no_model_check}
    return run_watched(
        partial(api.build, given, rows=row_counts(rows), out=out, config=config, **modes),
        given,
        out,
        watching=watching,
        machine=machine,
        resume=resume_command(out, *needed_options(given, changes)),
    )


def resume(
    directory: Path,
    /,
    *,
    rows: Rows = None,
    retry_dropped: Flag = False,
    accept_changes: Flag = False,
    no_model_check: Flag = False,
    permissions: Permissions = Permissions(),
    options: RunOptions = RunOptions(),
    watching: Watching = Watching(),
    machine: Machine = Machine(),
) -> int:
    """Resume a build that ended early, or grow a dataset, with the recipe that is stored in its directory.

    Finished cells are not generated again; usage and cost include those of earlier runs. A recipe written in Python is
    resumed from Python.

    Parameters
    ----------
    directory
        The directory of the dataset.
    rows
        Grow the dataset to this number of rows, or STAGE=N; existing rows stay. May be repeated.
    retry_dropped
        Retry the rows that were dropped because a cell failed; only their missing cells are generated.
    accept_changes
        Resume although the code of functions or the rows of seed files changed; existing rows stay.
    no_model_check
        Do not check each model with one small call before the build begins.

    """
    from ..engine import api
    from ..engine.source import stored_recipe
    from .recipes import make_config

    grants = permissions.grants()
    recipe = stored_recipe(directory, grants)
    changes: Any = {"rows": row_counts(rows), "retry_dropped": retry_dropped, "accept_changes": accept_changes}
    changes["check_models"] = not no_model_check
    return run_watched(
        partial(api.resume, directory, recipe, config=make_config(recipe, options, watching), **changes),
        recipe,
        directory,
        watching=watching,
        machine=machine,
        # The directory stores by then the number of rows and the accepted changes.
        resume=resume_command(directory, *([RETRY_DROPPED] if retry_dropped else []), *grants.options()),
    )


def preview(
    recipe: RecipeFile,
    /,
    *,
    rows: Rows = None,
    changes: RecipeChanges = RecipeChanges(),
    show_prompts: Flag = False,
    options: RunOptions = RunOptions(),
    machine: Machine = Machine(),
) -> int:
    """Generate a few rows and show each as soon as it is finished; nothing is written.

    Rows that are dropped, or that a processor removes, are shown with the reason.

    Parameters
    ----------
    rows
        The number of rows to generate, 5 by default; for several stages STAGE=N. May be repeated.
    show_prompts
        Show the messages that the model of each cell was called with.

    """
    import attrs

    from ..engine import api
    from ..store.values import python_rows
    from . import output
    from .recipes import announce_contacts, make_config, read_recipe

    given = read_recipe(recipe, changes)
    announce_contacts(given)
    seen: set[int] = set()

    def show(row: PreviewRow) -> None:
        if row.number in seen and row.removed is not None:
            output.print_line(f"row {row.number} {row.removed}", style="yellow")
        else:
            output.print_preview_row(row)
        if row.number is not None:
            seen.add(row.number)

    shown = api.preview(
        given,
        rows=5 if rows is None else row_counts(rows),
        on_row=None if machine.json else show,
        show_prompts=show_prompts,
        config=make_config(given, options),
        # A first row may take a minute; a panel would be in the way of the rows.
        progress="none" if machine.json else "lines",
    )
    records = python_rows(shown.to_polars())
    if machine.json:
        generated = [attrs.asdict(row) for row in shown.rows]
        output.print_json({"records": records, "rows": generated, **output.report_data(shown.report)})
    else:
        if machine.debug:
            output.print_tracebacks(shown.report)
        if records and set(records[0]) != set(shown.rows[0].values):
            output.print_line("after the processors:", style="bold")
            output.print_records(records)
        output.print_drops(shown.report.drops_by_reason)
        output.print_line(str(shown.report), error=True)
    return _final_code(shown.report)


def _may_overwrite(out: Path) -> bool:
    """Ask whether a dataset may be replaced, if there is one and a user to answer."""
    import sys

    from ..store.dataset import Dataset
    from ..store.manifest import is_dataset
    from . import output

    if not (sys.stdin.isatty() and sys.stderr.isatty() and is_dataset(out)):
        return True
    dataset = Dataset.open(out)
    state = "a finished" if dataset.complete else "an unfinished"
    output.print_line(f"{out} holds {state} dataset of {dataset.rows:,} rows. Replace it? [y/N]", error=True)
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    output.print_line("seedbed: nothing was changed", error=True)
    return False


def confirmation(*, yes: bool) -> Callable[[Sequence[ColumnEstimate]], bool]:
    """A function that lists what is to be generated and asks, unless `yes` or there is no user to answer."""

    def confirm(estimates: Sequence[ColumnEstimate]) -> bool:
        import sys

        from ..observe.progress import money
        from . import output

        rows = [
            (each.column, each.cells, each.reused, "–" if each.cost is None else money(each.cost)) for each in estimates
        ]
        output.print_table(("column", "cells to generate", "taken over", "estimated cost"), rows, error=True)
        total, known = sum(each.cells for each in estimates), [each.cost for each in estimates if each.cost is not None]
        unknown = [each.column for each in estimates if each.calls_model and each.cells and each.cost is None]
        text = f"{total:,} cells, estimated cost {money(sum(known))}"
        text += f" without {', '.join(unknown)}, whose cost is not known yet" if unknown else ""
        if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
            output.print_line(text, error=True)
            return True
        output.print_line(f"{text}. Generate them? [y/N]", error=True)
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    return confirm


def resume_command(out: Path, *flags: str) -> str:
    """The command line that resumes a build."""
    return " ".join(["seedbed resume", shlex.quote(str(out)), *flags])


def run_watched(
    build: Callable[..., Dataset],
    recipe: Recipe,
    out: Path,
    *,
    watching: Watching,
    machine: Machine,
    resume: str,
) -> int:
    """Call `build` with the readers that the options select, and report how it ended.

    `resume` is the command line that resumes the build if it stops early.
    """
    from . import output
    from .recipes import announce_contacts
    from .view import open_view

    announce_contacts(recipe)
    output.log_to_stderr(verbose=watching.verbose)
    view = open_view(out) if watching.view else nullcontext()
    with view:
        return _run_and_report(build, out, watching=watching, machine=machine, resume=resume)


def _run_and_report(
    build: Callable[..., Dataset], out: Path, *, watching: Watching, machine: Machine, resume: str
) -> int:
    from ..errors import AllRowsDropped, BuildStopped, ProcessorFailed, StoreError
    from ..observe.log import LogReader
    from ..store.dataset import Dataset
    from ..store.manifest import is_dataset
    from . import output

    try:
        dataset = build(readers=[LogReader(), *watching.readers()], progress=watching.progress)
    except AllRowsDropped as error:  # a result like others, with its own status
        dataset = Dataset.open(out)
        dataset.report = error.report
    except Exception as error:
        _save_traces(getattr(error, "report", None), out, watching)
        # A plain StoreError is a disk that failed; its subclasses are about the directory, which cannot be resumed.
        is_resumable = isinstance(error, BuildStopped | ProcessorFailed) or type(error) is StoreError
        if is_resumable and is_dataset(out):
            error.add_note(f"to resume: {_with_retries(resume, error)}")
        raise
    report = dataset.report
    if machine.debug:
        output.print_tracebacks(report)
    _save_traces(report, out, watching)
    if machine.json:
        output.print_json({"path": str(out), **output.report_data(report)})
    else:
        _print_result(dataset, report, watching)
    if watching.report is not None:
        from ..view.report import write_report

        write_report(out, watching.report)
        if not machine.json:
            output.print_line(f"report: {watching.report}")
    return _final_code(report, resume)


def _with_retries(resume: str, error: Exception) -> str:
    """The command that resumes; after too many errors it also retries rows that were dropped because of them."""
    from ..errors import EarlyShutdown

    report = error.report if isinstance(error, EarlyShutdown) else None
    if report is None or not any(drop.kind in RETRIED for drop in report.dropped):
        return resume
    return resume if RETRY_DROPPED in resume else f"{resume} {RETRY_DROPPED}"


def _save_traces(report: BuildReport | None, out: Path, watching: Watching) -> None:
    from ..observe.report import write_chrome_trace
    from ..store.dataset import save_traces
    from ..store.manifest import is_dataset

    if report is None or not report.traces:
        return
    if is_dataset(out):
        save_traces(report.traces, out)
    if watching.trace is not None:
        write_chrome_trace(report.traces, watching.trace)


def _print_result(dataset: Dataset, report: BuildReport, watching: Watching) -> None:
    from ..observe.progress import duration, money
    from ..store.values import python_rows
    from . import output

    if watching.head > 0 and not dataset.conflicts:
        output.print_records(python_rows(dataset.head(watching.head)))
    output.print_drops(report.drops_by_reason)
    for conflict in report.conflicts:
        output.print_line(f"conflict: {conflict}", style="yellow")
    for name, used in (report.model_usage or report.usage).items():
        tokens = f"{used.input_tokens:,} + {used.output_tokens:,} tokens"
        if used.cached_tokens:
            tokens += f" ({used.cached_tokens:,} cached)"
        output.print_line(f"{name}: {used.calls:,} calls, {tokens}, cost {money(used.cost)}")
    if report.accepts and report.cost_per_row:
        output.print_line(f"cost of a row, rejected candidates included: {money(report.cost_per_row)}")
    if report.exhausted is not None:
        output.print_line(f"the dataset has fewer rows than were requested: {report.exhausted}", style="yellow")
    if report.reused:
        output.print_line(f"{report.reused:,} cells were taken over")
    output.print_line(f"{report.summary} in {dataset.path} after {duration(report.seconds)}")
    if watching.trace is not None:
        output.print_line(f"timeline: {watching.trace} (open it at https://ui.perfetto.dev)")


def _final_code(report: BuildReport, resume: str | None = None) -> ExitCode:
    """The exit status of a build that ran to its end: some of its rows may be dropped, but not all."""
    from . import output

    if report.written or not report.requested:
        return ExitCode.OK
    output.print_line(f"seedbed: the dataset is empty: {report.counts}", error=True)
    if resume is not None and any(drop.kind in RETRIED for drop in report.dropped):
        retry = resume if RETRY_DROPPED in resume else f"{resume} {RETRY_DROPPED}"
        output.print_line(f"to retry them: {retry}", error=True)
    elif resume is not None and report.removed:
        hint = "correct the processor and run the same command with --resume: no finished cell is generated again"
        output.print_line(hint, error=True)
    return ExitCode.TOO_MANY_ERRORS
