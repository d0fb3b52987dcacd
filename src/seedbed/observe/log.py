"""Log lines about what goes wrong in a run, through `logging`, each with its place: `(column=…, row_group=…)`.

`LogReader` is a reader of events. `BlockingWatch` finds code that blocks the event loop: while one task computes or
sleeps without awaiting, every other column waits.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import msgspec
import trio

from . import events

if TYPE_CHECKING:
    from collections.abc import Callable

    from .report import BuildReport

logger = logging.getLogger("seedbed")

# What `build` and `preview` warn of once they are done; the command shows the same in its own form.
missing_rows_logger = logging.getLogger("seedbed.missing_rows")

BLOCKING = 0.1
"""Seconds in one step of a task that are worth a warning."""
_DROPS_EACH = 1

# The level and text of each kind of event that has one line of its own.
_LINES: dict[type[events.Event], tuple[int, str]] = {
    events.RowGroupFinished: (logging.INFO, "{rows} rows finished, {dropped} dropped (row_group={row_group})"),
    events.RowGroupSkipped: (logging.WARNING, "row group skipped: {error} (row_group={row_group})"),
    events.SalvageStarted: (logging.INFO, "salvage round {round}: {cells} cells (row_group={row_group})"),
    events.SchemaConflictFound: (logging.WARNING, "{message} (row_group={row_group})"),
    # The error that ends the run says the same.
    events.StopRequested: (logging.INFO, "stopping: {reason}"),
    events.DamageFound: (logging.WARNING, "{message}"),
    events.UnjournaledColumn: (
        logging.WARNING,
        "values that cannot be pickled are not in the journal; a crash loses them (column={column})",
    ),
    events.LateThread: (
        logging.WARNING,
        "an abandoned thread ended {seconds:.1f} s after its start; its result was ignored (column={column})",
    ),
}


class LogReader:
    """Logs drops, skips, conflicts, damage and stops as warnings, salvage rounds and checkpoints as info.

    Of rows dropped by one column for one reason in one row group, the first is logged and the rest counted when
    the row group ends: a server that is down must not fill a disk with lines.
    """

    wants_ready = False

    def __init__(self) -> None:
        # By row group: how many rows were dropped by each column for each reason.
        self._drops: defaultdict[int, Counter[tuple[str, str]]] = defaultdict(Counter)

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.RowDropped):
            self._log_drop(event)
        elif isinstance(event, events.RowGroupFinished):
            self._log_further_drops(event.row_group)
        if type(event) in _LINES:
            level, text = _LINES[type(event)]
            logger.log(level, "%s", text.format_map(msgspec.structs.asdict(event)))

    def _log_drop(self, event: events.RowDropped) -> None:
        drops, reason = self._drops[event.row_group], (event.column, event.error)
        drops[reason] += 1
        if drops[reason] <= _DROPS_EACH:
            logger.warning(
                "row %d dropped after %s: %s (column=%s, row_group=%d)",
                event.row,
                "1 attempt" if event.attempts == 1 else f"{event.attempts} attempts",
                event.error,
                event.column,
                event.row_group,
            )

    def _log_further_drops(self, row_group: int) -> None:
        for (column, error), count in self._drops.pop(row_group, {}).items():
            if (more := count - _DROPS_EACH) > 0:
                logger.warning("%d more rows dropped: %s (column=%s, row_group=%d)", more, error, column, row_group)


def warn_of_missing_rows(report: BuildReport) -> None:
    """Warn of dropped rows, with their reasons and the tracebacks of the user's code, and of a dataset without rows."""
    log = missing_rows_logger
    if report.dropped:
        traced = "".join(
            f"\n{report.tracebacks[reason]}" for reason in report.drops_by_reason if reason in report.tracebacks
        )
        rows = "1 row was" if len(report.dropped) == 1 else f"{len(report.dropped):,} rows were"
        log.warning("%s dropped: %s%s", rows, report.dropped_because, traced.rstrip())
    if report.removed and not report.written:
        log.warning("no row is left: %s", report.counts)


class BlockingWatch(trio.abc.Instrument):
    """Warns in its block when async code of one of these columns blocks the loop of the current run.

    A column is warned about once, and again when it blocks ten times as long. The name of a task is that of its column;
    other tasks belong to the engine. It costs two clock readings per step of a task.
    """

    def __init__(self, columns: frozenset[str], *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._columns = columns
        self._clock = clock
        self._began = 0.0
        self._longest: dict[str, float] = {}

    def __enter__(self) -> Self:
        trio.lowlevel.add_instrument(self)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(KeyError):  # trio removes an instrument that raises
            trio.lowlevel.remove_instrument(self)

    def before_task_step(self, _task: trio.lowlevel.Task) -> None:
        self._began = self._clock()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        seconds = self._clock() - self._began
        if seconds < BLOCKING or task.name not in self._columns or seconds < 10 * self._longest.get(task.name, 0.0):
            return
        self._longest[task.name] = seconds
        logger.warning(
            "async code of column %r blocked the event loop for %.0f ms: use await for what waits, and a plain def, "
            "which runs in a thread, for what computes (column=%s)",
            task.name,
            seconds * 1000,
            task.name,
        )
