"""Every state change of a run, as one typed record each.

Records are made only while somebody reads: the engine asks `Events.active` before it builds one, so a run without
readers pays a test of a bool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


@attrs.frozen(kw_only=True)
class Event:
    """Something changed at `time`, an instant of trio's clock."""

    time: float


@attrs.frozen(kw_only=True)
class BuildStarted(Event):
    rows: int
    row_groups: int
    columns: tuple[str, ...]


@attrs.frozen(kw_only=True)
class RowGroupAdmitted(Event):
    row_group: int
    rows: int


@attrs.frozen(kw_only=True)
class TaskEvent(Event):
    """Something about one task; `row` is None where the task is for the whole row group."""

    kind: str
    column: str
    row_group: int
    row: int | None
    attempt: int


@attrs.frozen(kw_only=True)
class TaskReady(TaskEvent):
    """Its inputs are there; it waits in its lane."""


@attrs.frozen(kw_only=True)
class TaskStarted(TaskEvent):
    """It has its permit and slot and runs."""


@attrs.frozen(kw_only=True)
class TaskFinished(TaskEvent):
    """It ended, with `status` success, retryable, permanent, rate_limited or cancelled."""

    status: str
    error: str | None
    seconds: float
    tokens: int
    cost: float


@attrs.frozen(kw_only=True)
class TaskDeferred(TaskEvent):
    """A retryable failure will be tried again in a salvage round, not before `eligible_at`."""

    eligible_at: float


@attrs.frozen(kw_only=True)
class TaskRefused(TaskEvent):
    """A rate limit: back in its lane, not before `eligible_at`."""

    key: str | None
    eligible_at: float


@attrs.frozen(kw_only=True)
class SalvageStarted(Event):
    row_group: int
    round: int
    cells: int


@attrs.frozen(kw_only=True)
class RowDropped(Event):
    """A row is given up, and why. `row` is the row's number in the whole dataset."""

    row_group: int
    row: int
    column: str
    attempts: int
    error: str


@attrs.frozen(kw_only=True)
class RowsRebuilt(Event):
    """Pre-batch processors ran and left that many rows."""

    row_group: int
    before: int
    after: int


@attrs.frozen(kw_only=True)
class RowGroupSkipped(Event):
    row_group: int
    error: str


@attrs.frozen(kw_only=True)
class RowGroupFinished(Event):
    """A row group is on disk (or, in a preview, complete)."""

    row_group: int
    rows: int
    dropped: int


@attrs.frozen(kw_only=True)
class DamageFound(Event):
    """Something in the directory that is gone on with is damaged; what it held is made again."""

    message: str


@attrs.frozen(kw_only=True)
class CellsCommitted(Event):
    """More finished cells are durable; `total` is how many of the run are now."""

    cells: int
    total: int


@attrs.frozen(kw_only=True)
class ColumnNotKept(Event):
    """A column has values that cannot be written to the journal; they are made again if the run dies."""

    column: str


@attrs.frozen(kw_only=True)
class CellsRestored(Event):
    """Finished cells of a column were taken over from what earlier runs have recorded of a row group."""

    row_group: int
    column: str
    cells: int


@attrs.frozen(kw_only=True)
class ThrottleChanged(Event):
    """The limit of a key moved."""

    key: str
    limit: int


@attrs.frozen(kw_only=True)
class LateThread(Event):
    """A thread whose task had been given up ended after all; its result was dropped."""

    column: str
    seconds: float


@attrs.frozen(kw_only=True)
class SchemaConflictFound(Event):
    row_group: int
    message: str


@attrs.frozen(kw_only=True)
class StopRequested(Event):
    """The run ends early: nothing new is started."""

    reason: str


@attrs.frozen(kw_only=True)
class BuildFinished(Event):
    rows: int
    dropped: int
    error: str | None


Reader = "Callable[[Event], None]"


class Events:
    """Hands each record to every reader, in order, at once. A reader must be quick.

    One that raises is handed nothing more and cannot harm whoever emits; the first exception is kept in `failure`.
    """

    def __init__(self, readers: Iterable[Callable[[Event], None]] = ()) -> None:
        self._readers: tuple[Callable[[Event], None], ...] = tuple(readers)
        # Read on the hot path, so a plain attribute and not a property.
        self.active: bool = bool(self._readers)
        self.failure: Exception | None = None
        # Told of every reader that raised; set by the run, which stops.
        self.on_failure: Callable[[Event, Exception], None] = lambda _event, _error: None

    def emit(self, event: Event) -> None:
        """Give the record to all readers."""
        for reader in self._readers:
            try:
                reader(event)
            except Exception as error:  # noqa: BLE001  a reader is anybody's code
                self._readers = tuple(each for each in self._readers if each is not reader)
                self.active = bool(self._readers)
                self.failure = self.failure or error
                self.on_failure(event, error)
