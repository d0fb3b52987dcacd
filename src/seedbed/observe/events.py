"""Every state change of a run as a typed record.

`Notices` of the engine checks `Events.active` before it creates a record: a run without readers tests one bool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import polars as pl


@attrs.frozen(kw_only=True)
class Event:
    """A state change at `time`, an instant of trio's clock."""

    time: float


@attrs.frozen(kw_only=True)
class BuildStarted(Event):
    """The run begins. `keys` has the throttle key of each column, `limits` the highest concurrency of each key.

    `models` has the aliases of the models that share a key, as one text; `sampled` are the columns from scratch.
    `finished_rows` were written or dropped by earlier runs of the dataset.
    """

    rows: int
    row_groups: int
    columns: tuple[str, ...]
    keys: Mapping[str, str | None] = attrs.field(factory=dict)
    limits: Mapping[str, int] = attrs.field(factory=dict)
    models: Mapping[str, str] = attrs.field(factory=dict)
    sampled: frozenset[str] = frozenset()
    finished_rows: int = 0


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
    """Its inputs are available; it waits in its lane."""


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
    """A retryable failure: retried in a salvage round, not before `eligible_at`."""

    eligible_at: float


@attrs.frozen(kw_only=True)
class TaskRateLimited(TaskEvent):
    """The server rate-limited the call: the task is back in its lane and starts not before `eligible_at`."""

    key: str | None
    eligible_at: float


@attrs.frozen(kw_only=True)
class SalvageStarted(Event):
    row_group: int
    round: int
    cells: int


@attrs.frozen(kw_only=True)
class RowDropped(Event):
    """A row failed for good. `row` is its number in the whole dataset.

    Its `values` so far are given if a reader has `wants_rows`.
    """

    row_group: int
    row: int
    column: str
    attempts: int
    error: str
    values: Mapping[str, object] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class RowFinished(Event):
    """Every cell of a row is done; processors may still change or remove it. Emitted if a reader has `wants_rows`."""

    row_group: int
    row: int
    values: Mapping[str, object]


@attrs.frozen(kw_only=True)
class RowsProcessed(Event):
    """A processor ran on the rows of a group, `before` it and `after` it. Emitted if a reader has `wants_rows`."""

    row_group: int
    processor: str
    before: pl.DataFrame
    after: pl.DataFrame


@attrs.frozen(kw_only=True)
class ModelCalled(Event):
    """A cell is about to call a model with these messages (role, content). Emitted if a reader has `wants_prompts`.

    `row` is its number in the whole dataset, None for a column that is filled for a whole row group.
    """

    column: str
    row: int | None
    model: str
    messages: tuple[tuple[str, str], ...]


@attrs.frozen(kw_only=True)
class RowsRebuilt(Event):
    """Pre-batch processors changed the rows of a group."""

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
    """Something in the directory that is resumed is damaged; what it held is generated again."""

    message: str


@attrs.frozen(kw_only=True)
class CellsCommitted(Event):
    """More finished cells are durable; `total` counts those of the run."""

    cells: int
    total: int


@attrs.frozen(kw_only=True)
class UnjournaledColumn(Event):
    """A column has values that cannot be written to the journal; after a crash they are generated again."""

    column: str


@attrs.frozen(kw_only=True)
class CellsRestored(Event):
    """Finished cells of a column were restored from the journal of earlier runs."""

    row_group: int
    column: str
    cells: int


@attrs.frozen(kw_only=True)
class ThrottleChanged(Event):
    """The concurrency limit of a key changed."""

    key: str
    limit: int


@attrs.frozen(kw_only=True)
class LateThread(Event):
    """An abandoned thread ended; its result was ignored."""

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


class Events:
    """Passes each record to every reader, in order, synchronously: a reader must be quick.

    A reader that raises receives nothing more; its exception does not reach the emitter. The first one is in `failure`.
    """

    def __init__(self, readers: Iterable[Callable[[Event], None]] = ()) -> None:
        self._readers: tuple[Callable[[Event], None], ...] = tuple(readers)
        # Read on the hot path, so a plain attribute and not a property.
        self.active: bool = bool(self._readers)
        # Readers that want the values of rows, or the messages of calls, have a true attribute of the same name.
        self.wants_rows = any(getattr(reader, "wants_rows", False) for reader in self._readers)
        self.wants_prompts = any(getattr(reader, "wants_prompts", False) for reader in self._readers)
        self.failure: Exception | None = None
        # Called for every reader that raised; set by the run, which stops.
        self.on_failure: Callable[[Event, Exception], None] = lambda _event, _error: None

    def emit(self, event: Event) -> None:
        for reader in self._readers:
            try:
                reader(event)
            except Exception as error:  # noqa: BLE001  a reader is user code
                self._readers = tuple(each for each in self._readers if each is not reader)
                self.active = bool(self._readers)
                self.failure = self.failure or error
                self.on_failure(event, error)
