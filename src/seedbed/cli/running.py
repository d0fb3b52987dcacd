"""What `run` and `resume` have in common: a build that is watched, its traces kept, and its end told."""

from __future__ import annotations

import logging
import shlex
import sys
from typing import TYPE_CHECKING, Any

from ..errors import BuildStopped, ProcessorFailed, StoreError
from ..observe.chrome import write_chrome_trace
from ..observe.lines import Lines
from ..observe.log import LogReader
from ..observe.progress import ProgressState
from ..observe.show import Show, duration, money
from ..store.manifest import is_dataset, read
from ..store.traces import save_traces
from . import output
from .exit_codes import ExitCode, report_code

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ..engine.source import Source
    from ..observe.events import Event
    from ..observe.report import BuildReport
    from ..store.dataset import Dataset
    from .options import Machine, Watching

# What tries dropped rows again, and the kinds of drops that it is for.
RETRY_DROPPED = "--retry-dropped"
RETRIED = frozenset({"failed", "skipped"})


def run_watched(
    build: Callable[[list[Callable[[Event], None]]], Dataset],
    *,
    out: Path,
    title: str,
    watching: Watching,
    machine: Machine,
    source: Source,
    rows_before: int = 0,
    resume: str,
) -> int:
    """Call `build` with the readers that the options ask for, and tell how it ended.

    `resume` is the command that goes on with the build if it stops early.
    """
    state = ProgressState(
        {column.name: column.key for column in source.columns},
        ceilings={key: limits.max_parallel_requests for key, limits in source.limits.items()},
        rows_before=rows_before,
    )
    shows = _shows(state, title, watching)
    _log_to_stderr(logging.INFO if watching.verbose else logging.WARNING)
    try:
        try:
            dataset = build([*shows, LogReader()])
        finally:
            for show in shows:
                show.close()
    except Exception as error:
        report: BuildReport | None = getattr(error, "report", None)
        if report is not None:
            _keep_traces(report, out, watching)
        # Of the errors of the store only the plain one, of a disk that failed; the others are about the directory.
        is_resumable = isinstance(error, BuildStopped | ProcessorFailed) or type(error) is StoreError
        if is_resumable and is_dataset(out):
            error.add_note(f"to go on: {resume}")
        raise
    assert dataset.report is not None  # it has just been built
    _keep_traces(dataset.report, out, watching)
    if machine.json:
        output.print_json({"path": str(out), **output.report_data(dataset.report)})
    else:
        _tell(dataset, dataset.report, watching)
    code = report_code(dataset.report)
    if code is not ExitCode.OK:
        again = any(drop.kind in RETRIED for drop in dataset.report.dropped)
        retry = resume if RETRY_DROPPED in resume else f"{resume} {RETRY_DROPPED}"
        output.print_nothing_made(dataset.report, f"to try them again: {retry}" if again else None)
    return code


def resume_command(out: Path, *flags: str) -> str:
    """What to type to go on with a build."""
    return " ".join(["seedbed resume", shlex.quote(str(out)), *flags])


def rows_settled(directory: Path, *, retry_dropped: bool = False) -> int:
    """How many rows earlier runs have written or given up for good; 0 where there is no dataset yet."""
    if not is_dataset(directory):
        return 0
    groups = read(directory).manifest.groups.values()
    settled = sum(group.stop - group.start for group in groups)
    if retry_dropped:
        settled -= sum(drop.kind in RETRIED for group in groups for drop in group.drops)
    return settled


def _shows(state: ProgressState, title: str, watching: Watching) -> list[Show]:
    kind = watching.progress
    if kind == "auto":
        kind = "panel" if sys.stderr.isatty() else "lines"
    if kind == "panel":
        from ..observe.panel import Panel

        return [Show(state, Panel(sys.stderr, title=title))]
    return [Show(state, Lines(sys.stderr))] if kind == "lines" else []


class _CurrentStderr(logging.StreamHandler[Any]):
    """Writes to whatever standard error is at the moment: the panel puts itself in its place to stay below."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        return sys.stderr

    @stream.setter
    def stream(self, value: Any) -> None:
        """Nobody sets it."""


def _log_to_stderr(level: int) -> None:
    logger = logging.getLogger("seedbed")
    logger.setLevel(level)
    if not logger.handlers:
        handler = _CurrentStderr()
        handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        logger.addHandler(handler)


def _keep_traces(report: BuildReport, out: Path, watching: Watching) -> None:
    if not report.traces:
        return
    if is_dataset(out):
        save_traces(report.traces, out)
    if watching.trace is not None:
        write_chrome_trace(report.traces, watching.trace)


def _tell(dataset: Dataset, report: BuildReport, watching: Watching) -> None:
    print = output.console().print  # noqa: A001
    if watching.head > 0 and not dataset.conflicts:
        output.print_records(dataset.scan().head(watching.head).collect().iter_rows(named=True))
    if report.dropped:
        output.print_drops(report.drops_by_reason)
    for conflict in report.conflicts:
        print(f"[yellow]conflict:[/yellow] {conflict}", markup=True)
    spent = list(report.model_usage.items()) or list(report.usage.items())
    for name, used in spent:
        tokens = f"{used.input_tokens:,} + {used.output_tokens:,} tokens"
        print(f"{name}: {used.calls:,} calls, {tokens}, cost {money(used.cost)}", markup=False)
    print(
        f"{report.written:,} of {report.rows:,} rows in {dataset.path} after {duration(report.seconds)}", markup=False
    )
    if watching.trace is not None:
        print(f"timeline: {watching.trace} (open it at https://ui.perfetto.dev)", markup=False)
