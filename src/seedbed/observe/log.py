"""Log lines of what goes wrong in a run, through `logging`, each with its place: `(column=…, row_group=…)`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from .events import (
    ColumnNotKept,
    DamageFound,
    LateThread,
    RowDropped,
    RowGroupFinished,
    RowGroupSkipped,
    SalvageStarted,
    SchemaConflictFound,
    StopRequested,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from .events import Event

logger = logging.getLogger("seedbed")


class LogReader:
    """A reader of events: logs drops, skips, conflicts, damage and stops as warnings, salvage and checkpoints as info.

    Of rows dropped by one column for one reason in one row group, the first few are logged and the rest counted when
    the row group ends: a server that is gone must not fill a disk with lines.
    """

    def __init__(self, log: logging.Logger = logger, *, drops_each: int = 3) -> None:
        self._log = log
        self._drops_each = drops_each
        # By row group, then by column and reason: how many rows were dropped.
        self._drops: dict[int, dict[tuple[str, str], int]] = {}
        self._handlers: dict[type[Event], Callable[..., None]] = {
            RowDropped: self._on_dropped,
            RowGroupSkipped: self._on_skipped,
            RowGroupFinished: self._on_group_finished,
            SalvageStarted: self._on_salvage,
            SchemaConflictFound: self._on_conflict,
            StopRequested: self._on_stop,
            LateThread: self._on_late_thread,
            DamageFound: self._on_damage,
            ColumnNotKept: self._on_not_kept,
        }

    def __call__(self, event: Event) -> None:
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)

    def _on_dropped(self, event: RowDropped) -> None:
        drops = self._drops.setdefault(event.row_group, {})
        reason = (event.column, event.error)
        drops[reason] = drops.get(reason, 0) + 1
        if drops[reason] <= self._drops_each:
            attempts = "1 attempt" if event.attempts == 1 else f"{event.attempts} attempts"
            self._log.warning(
                "row %d dropped after %s: %s (column=%s, row_group=%d)",
                event.row,
                attempts,
                event.error,
                event.column,
                event.row_group,
            )

    def _on_group_finished(self, event: RowGroupFinished) -> None:
        for (column, error), count in self._drops.pop(event.row_group, {}).items():
            if count > self._drops_each:
                self._log.warning(
                    "%d more rows dropped: %s (column=%s, row_group=%d)",
                    count - self._drops_each,
                    error,
                    column,
                    event.row_group,
                )
        self._log.info("%d rows finished, %d dropped (row_group=%d)", event.rows, event.dropped, event.row_group)

    def _on_skipped(self, event: RowGroupSkipped) -> None:
        self._log.warning("row group skipped: %s (row_group=%d)", event.error, event.row_group)

    def _on_salvage(self, event: SalvageStarted) -> None:
        self._log.info("salvage round %d: %d cells (row_group=%d)", event.round, event.cells, event.row_group)

    def _on_conflict(self, event: SchemaConflictFound) -> None:
        self._log.warning("%s (row_group=%d)", event.message, event.row_group)

    def _on_stop(self, event: StopRequested) -> None:
        self._log.warning("stopping: %s", event.reason)

    def _on_damage(self, event: DamageFound) -> None:
        self._log.warning("%s", event.message)

    def _on_not_kept(self, event: ColumnNotKept) -> None:
        self._log.warning(
            "values that cannot be pickled are not in the journal: a run that dies makes them again (column=%s)",
            event.column,
        )

    def _on_late_thread(self, event: LateThread) -> None:
        self._log.warning(
            "a thread ended %.1f s after it was started, when nobody waited any more (column=%s)",
            event.seconds,
            event.column,
        )
