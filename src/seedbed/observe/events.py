"""Every state change of a run as a typed record.

`Notices` of the engine checks `Events.active` before it creates a record: a run without readers tests one bool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import polars as pl


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A state change at `time`, an instant of trio's clock, in a `stage`, empty in a recipe without stages.

    A struct, because every cell creates several: that takes a tenth of the time (overhead benchmark).
    """

    time: float
    stage: str = ""


class StageStarted(msgspec.Struct, frozen=True, kw_only=True):
    """A stage of a run that begins: its rows so far, how many earlier runs finished, and its columns.

    A stage with a `parent` has more rows with each `RowsTaken`.
    """

    rows: int
    finished_rows: int
    columns: tuple[str, ...]
    candidates: int | None = None
    parent: str | None = None


class BuildStarted(Event, frozen=True, kw_only=True):
    """The run begins. `keys` has the throttle key of each column, `limits` the highest concurrency of each key.

    `models` has the aliases of the models that share a key, as one text; `sampled` are the columns from scratch.
    `finished_rows` were written or dropped by earlier runs of the dataset. Where not every row counts, `candidates` is
    how many of them earlier runs finished, else None. Numbers of rows are those of all `stages`, which is empty for a
    recipe without stages; `output` is the one at the root of the dataset.
    """

    rows: int
    row_groups: int
    columns: tuple[str, ...]
    keys: Mapping[str, str | None] = {}
    limits: Mapping[str, int] = {}
    models: Mapping[str, str] = {}
    sampled: frozenset[str] = frozenset()
    finished_rows: int = 0
    candidates: int | None = None
    stages: Mapping[str, StageStarted] = {}
    output: str = ""


class RowsTaken(Event, frozen=True, kw_only=True):
    """A stage took rows of its parent stage: it has so many more rows in so many more row groups."""

    rows: int
    row_groups: int


class RowGroupAdmitted(Event, frozen=True, kw_only=True):
    row_group: int
    rows: int


class TaskEvent(Event, frozen=True, kw_only=True):
    """Something about one task; `row` is None where the task is for the whole row group."""

    kind: str
    column: str
    row_group: int
    row: int | None
    attempt: int


class TaskReady(TaskEvent, frozen=True, kw_only=True):
    """Its inputs are available; it waits in its lane. Not emitted if every reader has a false `wants_ready`."""


class TaskStarted(TaskEvent, frozen=True, kw_only=True):
    """It has its permit and slot and runs."""


class TaskFinished(TaskEvent, frozen=True, kw_only=True):
    """It ended, with `status` success, retryable, permanent, rate_limited or cancelled."""

    status: str
    error: str | None
    seconds: float
    tokens: int
    cached_tokens: int = 0  # of `tokens`, those of prompts that were read from the provider's cache
    cost: float


class TaskDeferred(TaskEvent, frozen=True, kw_only=True):
    """A retryable failure: retried in a salvage round, not before `eligible_at`."""

    eligible_at: float


class TaskRateLimited(TaskEvent, frozen=True, kw_only=True):
    """The server rate-limited the call: the task is back in its lane and starts not before `eligible_at`."""

    key: str | None
    eligible_at: float


class SalvageStarted(Event, frozen=True, kw_only=True):
    row_group: int
    round: int
    cells: int


class RowDropped(Event, frozen=True, kw_only=True):
    """A row failed for good. `row` is its number in the whole dataset.

    Its `values` so far are given if a reader has `wants_rows`.
    """

    row_group: int
    row: int
    column: str
    attempts: int
    error: str
    values: Mapping[str, object] = {}


class RowRejected(Event, frozen=True, kw_only=True):
    """A candidate was not accepted. `row` is its number; `values` so far are given if a reader has `wants_rows`."""

    row_group: int
    row: int
    by: str
    values: Mapping[str, object] = {}


class RowsDecided(Event, frozen=True, kw_only=True):
    """More row groups of the decided prefix: where not every row counts.

    `accepted` rows count so far, requested or not. `candidates` were started; so many are `predicted` in all. `rate` is
    the share of finished candidates that were accepted.
    """

    accepted: int
    candidates: int
    predicted: int
    rate: float


class RowFinished(Event, frozen=True, kw_only=True):
    """Every cell of a row is done; processors may still change or remove it. Emitted if a reader has `wants_rows`."""

    row_group: int
    row: int
    values: Mapping[str, object]


class RowsProcessed(Event, frozen=True, kw_only=True):
    """A processor ran on the rows of a group, `before` it and `after` it. Emitted if a reader has `wants_rows`."""

    row_group: int
    processor: str
    before: pl.DataFrame
    after: pl.DataFrame


class ModelCalled(Event, frozen=True, kw_only=True):
    """A cell is about to call a model with these messages (role, content). Emitted if a reader has `wants_prompts`.

    `row` is its number in the whole dataset, None for a column that is filled for a whole row group.
    """

    column: str
    row: int | None
    model: str
    messages: tuple[tuple[str, str], ...]


class CallFinished(Event, frozen=True, kw_only=True):
    """A call of a model was answered or failed. Emitted if a reader has `wants_calls`.

    `error` is the type of the failure. The texts are there for readers with `wants_prompts`.
    """

    column: str
    row: int | None
    alias: str
    model: str
    provider: str  # the type of the model in recipes
    address: str | None  # host and port of its server
    operation: str  # chat, embedding or image
    seconds: float
    error: str | None = None
    input_tokens: int = 0
    cached_tokens: int = 0  # of the input
    output_tokens: int = 0
    cost: float = 0.0
    messages: tuple[tuple[str, str], ...] = ()
    answer: str = ""


class RowsRebuilt(Event, frozen=True, kw_only=True):
    """Pre-batch processors changed the rows of a group."""

    row_group: int
    before: int
    after: int


class RowGroupSkipped(Event, frozen=True, kw_only=True):
    row_group: int
    error: str


class RowGroupFinished(Event, frozen=True, kw_only=True):
    """A row group is on disk (or, in a preview, complete)."""

    row_group: int
    rows: int
    dropped: int


class DamageFound(Event, frozen=True, kw_only=True):
    """Something in the directory that is resumed is damaged; what it held is generated again."""

    message: str


class CellsCommitted(Event, frozen=True, kw_only=True):
    """More finished cells are durable; `total` counts those of the run."""

    cells: int
    total: int


class UnjournaledColumn(Event, frozen=True, kw_only=True):
    """A column has values that cannot be written to the journal; after a crash they are generated again."""

    column: str


class CellsRestored(Event, frozen=True, kw_only=True):
    """Finished cells of a column were restored from the journal of earlier runs."""

    row_group: int
    column: str
    cells: int


class ThrottleChanged(Event, frozen=True, kw_only=True):
    """The concurrency limit of a key changed."""

    key: str
    limit: int


class LateThread(Event, frozen=True, kw_only=True):
    """An abandoned thread ended; its result was ignored."""

    column: str
    seconds: float


class SchemaConflictFound(Event, frozen=True, kw_only=True):
    row_group: int
    message: str


class StopRequested(Event, frozen=True, kw_only=True):
    """The run ends early: nothing new is started."""

    reason: str


class BuildFinished(Event, frozen=True, kw_only=True):
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
        # Readers that want an event for each call of a model, likewise.
        self.wants_calls = any(getattr(reader, "wants_calls", False) for reader in self._readers)
        # Every cell has a `TaskReady`, which displays do not need (overhead benchmark).
        self.wants_ready = any(getattr(reader, "wants_ready", True) for reader in self._readers)
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
