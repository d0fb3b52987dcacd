"""How far a run is: counted from events, cheaply, and read whenever somebody wants to look.

`ProgressState` is a reader of events and nothing else; `panel.py` and `lines.py` show it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import attrs

from .events import (
    BuildFinished,
    BuildStarted,
    CellsCommitted,
    CellsRestored,
    RowDropped,
    RowGroupAdmitted,
    RowGroupFinished,
    RowGroupSkipped,
    RowsRebuilt,
    SalvageStarted,
    StopRequested,
    TaskDeferred,
    TaskFinished,
    TaskRefused,
    TaskStarted,
    ThrottleChanged,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .events import Event

# Rates are those of the last so many seconds.
WINDOW = 10.0
_KINDS = frozenset({"cell", "full_column", "from_scratch"})


class Meter:
    """A count's rate over the last `WINDOW` seconds. Fed by whoever looks, so counting itself costs nothing."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()

    def sample(self, now: float, count: float) -> float:
        """Take the count of this instant; returns the rate per second."""
        samples = self._samples
        if not samples or now - samples[-1][0] >= WINDOW / 40:
            samples.append((now, count))
        while len(samples) > 2 and samples[1][0] <= now - WINDOW:
            samples.popleft()
        then, before = samples[0]
        return (count - before) / (now - then) if now > then else 0.0


@attrs.define(eq=False)
class ColumnCount:
    """What became of one column's rows so far. Changed by `ProgressState` only."""

    name: str
    key: KeyCount | None = None
    # Rows that are settled: filled, skipped, or given up.
    done: int = 0
    running: int = 0
    failed: int = 0  # rows dropped because of this column
    retried: int = 0
    refused: int = 0
    first: float | None = None  # when its first task started, and when its last one ended
    last: float = 0.0
    meter: Meter = attrs.field(factory=Meter)


@attrs.define(eq=False)
class KeyCount:
    """What one throttle key was asked for so far. Changed by `ProgressState` only."""

    key: str
    ceiling: int | None = None
    limit: int | None = None
    in_flight: int = 0
    refused: int = 0
    tokens: int = 0
    cost: float = 0.0
    meter: Meter = attrs.field(factory=Meter)


@attrs.frozen(kw_only=True)
class ColumnView:
    """A column at one instant. `eta` is in seconds, None where it cannot be said."""

    name: str
    done: int
    total: int
    running: int
    rate: float
    eta: float | None
    failed: int
    retried: int

    @property
    def percent(self) -> int:
        """How much of it is done; 100 only when all is."""
        return min(100, 100 * self.done // self.total) if self.total else 100


@attrs.frozen(kw_only=True)
class KeyView:
    """A throttle key at one instant; `limit` is None as long as nobody has said it."""

    key: str
    in_flight: int
    limit: int | None
    refused: int
    tokens: int
    tokens_per_second: float
    cost: float


@attrs.frozen(kw_only=True)
class Progress:
    """A run at one instant."""

    elapsed: float
    rows: int
    written: int
    dropped: int
    columns: tuple[ColumnView, ...]
    keys: tuple[KeyView, ...]
    durable: int  # finished cells that no crash can take
    salvage_rounds: int
    stopping: str | None
    finished: bool
    error: str | None

    @property
    def eta(self) -> float | None:
        """Seconds until the slowest of the columns that have begun is done; None while none has that is not over."""
        left = [column for column in self.columns if column.done < column.total]
        known = [column.eta for column in left if column.eta is not None]
        return max(known) if known else None if left else 0.0

    @property
    def cost(self) -> float:
        """What all keys together cost so far."""
        return sum(key.cost for key in self.keys)


class ProgressState:
    """Counts events. Calling it takes an event in; `view` says how far the run is.

    `keys` names the columns in the order in which they are to be shown, each with its throttle key or None, and
    `ceilings` what each key allows at most. Columns that are not named appear when their first task starts.
    `rows_before` is how many rows of the dataset earlier runs have settled.
    """

    def __init__(
        self,
        keys: Mapping[str, str | None] | None = None,
        *,
        ceilings: Mapping[str, int] | None = None,
        rows_before: int = 0,
    ) -> None:
        self._ceilings = dict(ceilings or {})
        self._keys: dict[str, KeyCount] = {}
        self._columns: dict[str, ColumnCount] = {}
        self._before = rows_before
        for name, key in (keys or {}).items():
            self._columns[name] = ColumnCount(name, key=None if key is None else self._key(key), done=rows_before)
        self._total = 0
        self._started = 0.0
        self._written = rows_before
        self._dropped = 0
        self._durable = 0
        self._rounds = 0
        self._stopping: str | None = None
        self._finished: BuildFinished | None = None
        # Of each row group that is not over: its rows, and how many of them each column has settled.
        self._groups: dict[int, tuple[int, dict[str, int]]] = {}
        self._handlers: dict[type[Event], Callable[..., None]] = {
            BuildStarted: self._on_build_started,
            RowGroupAdmitted: self._on_admitted,
            CellsCommitted: self._on_committed,
            CellsRestored: self._on_restored,
            TaskStarted: self._on_started,
            TaskFinished: self._on_finished,
            TaskDeferred: self._on_deferred,
            TaskRefused: self._on_refused,
            RowDropped: self._on_dropped,
            RowsRebuilt: self._on_rebuilt,
            RowGroupSkipped: self._on_skipped,
            RowGroupFinished: self._on_group_finished,
            SalvageStarted: self._on_salvage,
            ThrottleChanged: self._on_throttle,
            StopRequested: self._on_stop,
            BuildFinished: self._on_build_finished,
        }

    def __call__(self, event: Event) -> None:
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)

    @property
    def finished(self) -> bool:
        """Whether the run is over."""
        return self._finished is not None

    def view(self, now: float) -> Progress:
        """The run as it is at `now`, an instant of the events' clock."""
        finished = self._finished
        if finished is not None:
            now = finished.time
        return Progress(
            elapsed=max(0.0, now - self._started),
            rows=self._total,
            written=self._written if finished is None else finished.rows,
            dropped=self._dropped if finished is None else finished.dropped,
            columns=tuple(self._column_view(column, now) for column in self._columns.values()),
            keys=tuple(_key_view(key, now) for key in self._keys.values()),
            durable=self._durable,
            salvage_rounds=self._rounds,
            stopping=self._stopping,
            finished=finished is not None,
            error=None if finished is None else finished.error,
        )

    def _column_view(self, column: ColumnCount, now: float) -> ColumnView:
        rate = column.meter.sample(now, column.done)
        left = max(0, self._total - column.done)
        if column.first is not None and (not left or self._finished is not None):
            # Over: what counts is how fast it was as a whole.
            made = column.done - self._before
            rate = made / (column.last - column.first) if column.last > column.first else 0.0
        return ColumnView(
            name=column.name,
            done=column.done,
            total=self._total,
            running=column.running,
            rate=rate,
            eta=self._eta(left, rate),
            failed=column.failed,
            retried=column.retried,
        )

    def _eta(self, left: int, rate: float) -> float | None:
        if not left:
            return 0.0
        return left / rate if rate > 0 and self._finished is None else None

    def _key(self, key: str) -> KeyCount:
        found = self._keys.get(key)
        if found is None:
            found = self._keys[key] = KeyCount(key, ceiling=self._ceilings.get(key))
        return found

    def _column(self, name: str) -> ColumnCount:
        found = self._columns.get(name)
        if found is None:
            found = self._columns[name] = ColumnCount(name, done=self._before)
        return found

    # What each event does.

    def _on_build_started(self, event: BuildStarted) -> None:
        self._total = event.rows
        self._started = event.time

    def _on_admitted(self, event: RowGroupAdmitted) -> None:
        self._groups[event.row_group] = (event.rows, {})

    def _on_committed(self, event: CellsCommitted) -> None:
        self._durable = event.total

    def _on_restored(self, event: CellsRestored) -> None:
        self._settle(self._column(event.column), event.row_group, event.cells)

    def _on_started(self, event: TaskStarted) -> None:
        if event.kind not in _KINDS:
            return
        column = self._columns.get(event.column) or self._column(event.column)
        column.running += 1
        if column.first is None:
            column.first = event.time
        if column.key is not None:
            column.key.in_flight += 1

    def _on_finished(self, event: TaskFinished) -> None:
        column = self._columns.get(event.column)
        if column is None or event.kind not in _KINDS:
            return
        if column.running:
            column.running -= 1
        key = column.key
        if key is not None:
            if key.in_flight:
                key.in_flight -= 1
            key.tokens += event.tokens
            key.cost += event.cost
        if event.status == "success":
            column.last = event.time
            self._settle(column, event.row_group, None if event.row is None else 1)

    def _settle(self, column: ColumnCount, row_group: int, rows: int | None) -> None:
        """So many rows of a group are settled in a column; all that are left if None."""
        group = self._groups.get(row_group)
        if group is None:
            return
        size, settled = group
        before = settled.get(column.name, 0)
        after = size if rows is None else min(size, before + rows)
        settled[column.name] = after
        column.done += after - before

    def _on_deferred(self, event: TaskDeferred) -> None:
        self._column(event.column).retried += 1

    def _on_refused(self, event: TaskRefused) -> None:
        column = self._column(event.column)
        column.refused += 1
        if event.key is not None:
            if column.key is None:
                column.key = self._key(event.key)
            self._key(event.key).refused += 1

    def _on_dropped(self, event: RowDropped) -> None:
        self._dropped += 1
        # A processor may be to blame, which is no column.
        column = self._columns.get(event.column)
        if column is not None:
            column.failed += 1

    def _on_rebuilt(self, event: RowsRebuilt) -> None:
        size, settled = self._groups.get(event.row_group, (event.before, {}))
        for name, count in settled.items():
            self._columns[name].done += event.after - count
            settled[name] = event.after
        self._groups[event.row_group] = (event.after, settled)
        self._total += event.after - size

    def _on_skipped(self, event: RowGroupSkipped) -> None:
        size, _ = self._groups.get(event.row_group, (0, {}))
        self._dropped += size

    def _on_group_finished(self, event: RowGroupFinished) -> None:
        self._written += event.rows
        # Where cells were skipped or rows given up no task told of them: whatever is over is settled.
        self._groups.setdefault(event.row_group, (event.rows + event.dropped, {}))
        for column in self._columns.values():
            self._settle(column, event.row_group, None)
            column.last = column.last or event.time
        del self._groups[event.row_group]

    def _on_salvage(self, _event: SalvageStarted) -> None:
        self._rounds += 1

    def _on_throttle(self, event: ThrottleChanged) -> None:
        self._key(event.key).limit = event.limit

    def _on_stop(self, event: StopRequested) -> None:
        self._stopping = event.reason

    def _on_build_finished(self, event: BuildFinished) -> None:
        self._finished = event
        for key in self._keys.values():
            key.in_flight = 0
        for column in self._columns.values():
            column.running = 0


def _key_view(key: KeyCount, now: float) -> KeyView:
    return KeyView(
        key=key.key,
        in_flight=key.in_flight,
        limit=key.ceiling if key.limit is None else key.limit,
        refused=key.refused,
        tokens=key.tokens,
        tokens_per_second=key.meter.sample(now, key.tokens),
        cost=key.cost,
    )
