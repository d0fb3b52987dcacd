"""What the scheduler notifies readers of: events are built only while somebody reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ..observe import events
from .failures import error_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .tasks import Outcome, Task


class DroppedRow(Protocol):
    """A row that is dropped, as the report has it."""

    @property
    def row(self) -> int: ...
    @property
    def column(self) -> str: ...
    @property
    def attempts(self) -> int: ...
    @property
    def error(self) -> str: ...
    @property
    def reason(self) -> str: ...


class Notices:
    """Emits the events of one run."""

    def __init__(self, emitter: events.Events, now: Callable[[], float]) -> None:
        self.events = emitter
        self._now = now

    def emit(self, kind: type[events.Event], **fields: Any) -> None:
        """Emit an event that is not about one task."""
        if self.events.active:
            self.events.emit(kind(time=self._now(), **fields))

    def _task(self, kind: type[events.TaskEvent], task: Task, **fields: Any) -> None:
        step = task.step
        self.events.emit(
            kind(
                time=self._now(),
                kind=step.kind.value,
                column=step.name,
                row_group=task.group,
                row=task.row_or_none,
                attempt=task.attempt,
                **fields,
            )
        )

    def ready(self, task: Task) -> None:
        if self.events.active:
            self._task(events.TaskReady, task)

    def started(self, task: Task) -> None:
        if self.events.active:
            self._task(events.TaskStarted, task)

    def finished(self, outcome: Outcome) -> None:
        if self.events.active:
            usage = outcome.usage
            self._task(
                events.TaskFinished,
                outcome.task,
                status=outcome.status.value,
                error=None if outcome.error is None else error_text(outcome.error),
                seconds=outcome.seconds,
                tokens=0 if usage is None else usage.tokens,
                cost=0.0 if usage is None else usage.cost,
            )

    def rate_limited(self, task: Task, eligible_at: float) -> None:
        if self.events.active:
            self._task(events.TaskRefused, task, key=task.step.key, eligible_at=eligible_at)

    def deferred(self, task: Task, eligible_at: float) -> None:
        if self.events.active:
            self._task(events.TaskDeferred, task, eligible_at=eligible_at)

    def dropped(self, row_group: int, drop: DroppedRow) -> None:
        self.emit(
            events.RowDropped,
            row_group=row_group,
            row=drop.row,
            column=drop.column,
            attempts=drop.attempts,
            error=drop.error,
        )

    def salvage_started(self, row_group: int, salvage_round: int, cells: int) -> None:
        self.emit(events.SalvageStarted, row_group=row_group, round=salvage_round, cells=cells)

    def rebuilt(self, row_group: int, before: int, after: int) -> None:
        self.emit(events.RowsRebuilt, row_group=row_group, before=before, after=after)

    def skipped(self, row_group: int, error: str) -> None:
        self.emit(events.RowGroupSkipped, row_group=row_group, error=error)

    def stopping(self, reason: object) -> None:
        self.emit(events.StopRequested, reason=str(reason))

    def restored(self, row_group: int, cells: Mapping[str, int]) -> None:
        for column, count in cells.items():
            self.emit(events.CellsRestored, row_group=row_group, column=column, cells=count)
