"""Log lines about what goes wrong in a run, through `logging`, each with its place: `(column=…, row_group=…)`.

`LogReader` is a reader of events. `watch_blocking` finds code that blocks the event loop: while one task computes or
sleeps without awaiting, every other column waits.
"""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import trio

from . import events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = logging.getLogger("seedbed")

BLOCKING = 0.1
"""Seconds in one step of a task that are worth a warning."""


class LogReader:
    """Logs drops, skips, conflicts, damage and stops as warnings, salvage rounds and checkpoints as info.

    Of rows dropped by one column for one reason in one row group, the first `drops_each` are logged and the rest
    counted when the row group ends: a server that is down must not fill a disk with lines.
    """

    def __init__(self, log: logging.Logger = logger, *, drops_each: int = 3) -> None:
        self._log = log
        self._drops_each = drops_each
        # By row group, then by column and reason: how many rows were dropped.
        self._drops: dict[int, dict[tuple[str, str], int]] = {}

    def __call__(self, event: events.Event) -> None:
        warning = self._log.warning
        match event:
            case events.RowDropped():
                self._log_drop(event)
            case events.RowGroupFinished(row_group=group):
                self._log_further_drops(group)
                self._log.info("%d rows finished, %d dropped (row_group=%d)", event.rows, event.dropped, group)
            case events.RowGroupSkipped():
                warning("row group skipped: %s (row_group=%d)", event.error, event.row_group)
            case events.SalvageStarted():
                self._log.info("salvage round %d: %d cells (row_group=%d)", event.round, event.cells, event.row_group)
            case events.SchemaConflictFound():
                warning("%s (row_group=%d)", event.message, event.row_group)
            case events.StopRequested():
                warning("stopping: %s", event.reason)
            case events.DamageFound():
                warning("%s", event.message)
            case events.UnjournaledColumn():
                warning(
                    "values that cannot be pickled are not in the journal: after a crash they are generated again "
                    "(column=%s)",
                    event.column,
                )
            case events.LateThread():
                warning(
                    "an abandoned thread ended %.1f s after its start; its result was ignored (column=%s)",
                    event.seconds,
                    event.column,
                )

    def _log_drop(self, event: events.RowDropped) -> None:
        drops = self._drops.setdefault(event.row_group, {})
        reason = (event.column, event.error)
        drops[reason] = drops.get(reason, 0) + 1
        if drops[reason] <= self._drops_each:
            self._log.warning(
                "row %d dropped after %s: %s (column=%s, row_group=%d)",
                event.row,
                "1 attempt" if event.attempts == 1 else f"{event.attempts} attempts",
                event.error,
                event.column,
                event.row_group,
            )

    def _log_further_drops(self, row_group: int) -> None:
        for (column, error), count in self._drops.pop(row_group, {}).items():
            if (more := count - self._drops_each) > 0:
                self._log.warning("%d more rows dropped: %s (column=%s, row_group=%d)", more, error, column, row_group)


class _StepTimer(trio.abc.Instrument):
    """Times each step of each task."""

    def __init__(self, threshold: float, on_block: Callable[[str, float], None], clock: Callable[[], float]) -> None:
        self._threshold = threshold
        self._on_block = on_block
        self._clock = clock
        self._began = 0.0

    def before_task_step(self, _task: trio.lowlevel.Task) -> None:
        self._began = self._clock()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        took = self._clock() - self._began
        if took >= self._threshold:
            self._on_block(task.name, took)


@contextmanager
def watch_blocking(
    on_block: Callable[[str, float], None],
    *,
    threshold: float = BLOCKING,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[None]:
    """Call `on_block(name, seconds)` for every step of a task that takes `threshold` or longer; inside a trio run.

    `name` is the name of the task; that of a cell is its column. `on_block` runs on the loop, between two steps. This
    costs two clock readings per step, so it is switched on only for builds with async functions of users.
    """
    timer = _StepTimer(threshold, on_block, clock)
    trio.lowlevel.add_instrument(timer)
    try:
        yield
    finally:
        with suppress(KeyError):  # trio removes an instrument that raises
            trio.lowlevel.remove_instrument(timer)


class BlockWarning:
    """Logs a warning the first time that a column blocks the loop, and again when it blocks ten times as long."""

    def __init__(self, columns: frozenset[str], log: logging.Logger = logger) -> None:
        self._columns = columns
        self._log = log
        self._longest: dict[str, float] = {}

    def __call__(self, name: str, seconds: float) -> None:
        """Report a step of the task `name`; tasks that are no columns belong to the engine and are not reported."""
        if name not in self._columns or seconds < 10 * self._longest.get(name, 0.0):
            return
        self._longest[name] = seconds
        self._log.warning(
            "async code of column %r blocked the event loop for %.0f ms: use await for what waits, and a plain def, "
            "which runs in a thread, for what computes (column=%s)",
            name,
            seconds * 1000,
            name,
        )
