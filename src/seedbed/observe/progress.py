"""The progress of a run, counted from its events, and how its figures are written."""

from __future__ import annotations

import math
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, cast

import attrs

from ..graph import Kind
from . import events

if TYPE_CHECKING:
    from collections.abc import Mapping

# Rates are measured over this number of seconds, and at least over so many times what a call takes: with calls of half
# a minute most windows of ten seconds see none that ends.
WINDOW = 10.0
_CALLS_IN_WINDOW = 3
_KINDS = frozenset(kind.value for kind in Kind)

# The percentiles of a key's latency are those of this number of its last tasks.
_LATENCIES = 500
# The most points of a timeline; at that number every second one is discarded and the interval doubled.
_POINTS = 400


class Meter:
    """The rate of a count over the last `WINDOW` seconds, sampled by the display, so that counting costs nothing.

    `rich.progress` estimates speed only from samples that advanced: during a stall its rate does not fall.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()

    def sample(self, now: float, count: float, window: float = WINDOW) -> float:
        """Take the count at this instant; returns the rate per second over the window."""
        samples = self._samples
        if not samples or now - samples[-1][0] >= window / 40:
            samples.append((now, count))
        while len(samples) > 2 and samples[1][0] <= now - window:
            samples.popleft()
        then, before = samples[0]
        return (count - before) / (now - then) if now > then else 0.0


class Timeline:
    """A number over the whole run, sampled by the display: with as many points however long it takes."""

    def __init__(self) -> None:
        self.points: list[float] = []
        self._interval = 0.1
        self._next = -math.inf

    def sample(self, now: float, value: float) -> None:
        """Take the number at this instant, unless the last one was taken just before."""
        if now < self._next:
            return
        self.points.append(value)
        if len(self.points) >= _POINTS:
            del self.points[::2]
            self._interval *= 2
        self._next = now + self._interval


@attrs.define(eq=False)
class StageProgress:
    """The rows of one stage; a recipe without stages has one, without a name. Changed by `ProgressState` only."""

    name: str = ""
    rows: int = 0
    written: int = 0
    # Where not every row counts: how many were finished or started and how many it will take, else None; and how many
    # of them were not accepted in this run.
    candidates: int | None = None
    predicted: int = 0
    rejected: int = 0
    rate: float | None = None  # the share of decided candidates that were accepted
    before: int = 0  # rows that earlier runs of the dataset finished
    written_before: int = 0

    @property
    def total(self) -> int:
        """How many rows each of its columns will have."""
        return self.rows if self.candidates is None else max(self.predicted, self.candidates)


@attrs.define(eq=False)
class ColumnProgress:
    """One column. Changed by `ProgressState` only; `rate` and `eta` (seconds, None if unknown) by its `update`."""

    name: str
    stage: StageProgress = attrs.field(factory=StageProgress)
    key: KeyProgress | None = None
    is_sampled: bool = False  # generated from scratch, for a whole row group at once
    generated: int = 0  # rows that tasks of this run filled
    cost: float = 0.0
    done: int = 0  # rows that are filled, skipped or dropped
    total: int = 0
    running: int = 0
    failed: int = 0  # rows dropped because of this column
    retried: int = 0
    rate: float = 0.0
    eta: float | None = None
    first: float | None = None  # when its first task started, and when its last one ended
    last: float = 0.0
    meter: Meter = attrs.field(factory=Meter)

    @property
    def percent(self) -> int:
        """The percentage of its rows that are done; 100 only if all are."""
        return min(100, 100 * self.done // self.total) if self.total else 100


@attrs.define(eq=False)
class KeyProgress:
    """One throttle key; `limit` is None until it is known. Changed by `ProgressState` only.

    `name` has the aliases of the models that share it, or is the key itself if it has none.
    """

    key: str
    name: str
    limit: int | None = None
    in_flight: int = 0
    rate_limited: int = 0
    calls: int = 0  # tasks that succeeded
    tokens: int = 0
    cached_tokens: int = 0
    tokens_per_second: float = 0.0  # as of the last `update`
    cost: float = 0.0
    window: float = WINDOW  # over which rates are measured, as of the last `update`
    meter: Meter = attrs.field(factory=Meter)
    calls_over_time: Timeline = attrs.field(factory=Timeline)  # calls in flight, as of each `update`
    _latencies: deque[float] = attrs.field(factory=lambda: deque(maxlen=_LATENCIES))

    def answered(self, seconds: float) -> None:
        """A task of this key succeeded after that time."""
        self.calls += 1
        self._latencies.append(seconds)

    def latency(self, share: float) -> float | None:
        """The seconds within which that share of the last tasks succeeded; None before the first one."""
        ordered = sorted(self._latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


class ProgressState:
    """A reader of events that counts them. `update` refreshes rates and times before the counts are displayed."""

    # `RowFinished` is emitted for readers that want it.
    wants_rows = True

    def __init__(self) -> None:
        self.stages: dict[str, StageProgress] = {"": StageProgress()}
        self.dropped = 0
        self.durable = 0  # finished cells that survive a crash
        self.salvage_rounds = 0
        self.elapsed = 0.0
        self.stopping: str | None = None
        self.error: str | None = None
        self.drop_reasons: Counter[str] = Counter()
        self.latest: Mapping[str, Any] | None = None  # the values of the row that was finished last
        self.columns: dict[str, ColumnProgress] = {}
        self.keys: dict[str, KeyProgress] = {}
        self._names: Mapping[str, str] = {}
        self._started = 0.0
        self._finished: float | None = None
        # Of each open row group, by stage and number: its rows, and how many of them are done in each column.
        self._groups: dict[tuple[str, int], tuple[int, dict[str, int]]] = {}

    @property
    def rows(self) -> int:
        return sum(stage.rows for stage in self.stages.values())

    @property
    def written(self) -> int:
        return sum(stage.written for stage in self.stages.values())

    @property
    def rejected(self) -> int:
        return sum(stage.rejected for stage in self.stages.values())

    @property
    def candidates(self) -> int | None:
        """Candidates of stages where not every row counts; None without any."""
        found = [stage.candidates for stage in self.stages.values() if stage.candidates is not None]
        return sum(found) if found else None

    @property
    def finished(self) -> bool:
        return self._finished is not None

    @property
    def eta(self) -> float | None:
        """Seconds until the slowest of the columns that have started is done; None if no unfinished column has."""
        unfinished = [column for column in self.columns.values() if column.done < column.total]
        known = [column.eta for column in unfinished if column.eta is not None]
        return max(known) if known else None if unfinished else 0.0

    @property
    def open_groups(self) -> dict[tuple[str, int], float]:
        """The share of its cells that is done, of each open row group, by stage and number."""
        columns = Counter(column.stage.name for column in self.columns.values())
        return {
            key: sum(done.values()) / (max(1, columns[key[0]]) * max(1, rows))
            for key, (rows, done) in self._groups.items()
        }

    @property
    def tokens(self) -> int:
        return sum(key.tokens for key in self.keys.values())

    @property
    def cached_tokens(self) -> int:
        return sum(key.cached_tokens for key in self.keys.values())

    @property
    def cost(self) -> float:
        return sum(column.cost for column in self.columns.values())

    @property
    def acceptance_rate(self) -> float | None:
        """The share of decided candidates that were accepted; None if every row counts or none is decided."""
        rates = [stage.rate for stage in self.stages.values() if stage.candidates is not None]
        return rates[0] if len(rates) == 1 else None

    @property
    def cost_per_row(self) -> float | None:
        """The cost of this run for each row that it wrote; None without any."""
        new = sum(stage.written - stage.written_before for stage in self.stages.values())
        return self.cost / new if new > 0 else None

    @property
    def predicted_cost(self) -> float | None:
        """The cost of the whole run, if the rows that are left cost what those so far did; None if that is unknown."""
        cost = self.cost
        for column in self.columns.values():
            left = max(0, column.total - column.done)
            # Of candidates that were not accepted some columns are not generated.
            done = column.generated if column.stage.candidates is None else column.done - column.stage.before
            if left and column.key is not None:
                if done <= 0:
                    return None
                cost += column.cost / done * left
        return cost

    def update(self, now: float) -> None:
        """Compute times, rates and ETAs as of `now`, an instant of the events' clock."""
        now = now if self._finished is None else self._finished
        self.elapsed = max(0.0, now - self._started)
        for key in self.keys.values():
            key.window = max(WINDOW, _CALLS_IN_WINDOW * (key.latency(0.5) or 0.0))
            key.tokens_per_second = key.meter.sample(now, key.tokens, key.window)
            key.calls_over_time.sample(now, key.in_flight)
            if self.finished and self.elapsed:
                key.tokens_per_second = key.tokens / self.elapsed
        for column in self.columns.values():
            column.total = column.stage.total
            column.rate = column.meter.sample(now, column.done, WINDOW if column.key is None else column.key.window)
            left = max(0, column.total - column.done)
            if column.first is not None and (not left or self.finished):
                # Done: the rate over its whole time says more than that of the last seconds.
                took = column.last - column.first
                column.rate = (column.done - column.stage.before) / took if took > 0 else 0.0
            column.eta = left / column.rate if left and column.rate > 0 and not self.finished else None
            if not left:
                column.eta = 0.0

    def __call__(self, event: events.Event) -> None:  # noqa: PLR0912  one branch per kind of event
        match event:
            case events.TaskEvent():
                self._on_task(event)
            case events.BuildStarted():
                self._on_started(event)
            case events.RowGroupAdmitted():
                self._groups[event.stage, event.row_group] = (event.rows, {})
                stage = self.stages[event.stage]
                if stage.candidates is not None:
                    stage.candidates += event.rows
            case events.RowsTaken():
                self.stages[event.stage].rows += event.rows
            case events.RowRejected():
                self.stages[event.stage].rejected += 1
            case events.RowsDecided():
                self._on_decided(event)
            case events.CellsCommitted():
                self.durable = event.total
            case events.CellsRestored():
                if event.column in self.columns:  # else it is one that stands for the rows of another stage
                    self._complete(self.columns[event.column], event.row_group, event.cells)
            case events.RowFinished():
                self.latest = event.values
            case events.RowDropped():
                self.dropped += 1
                self.drop_reasons[f"{event.column}: {event.error}"] += 1
                if event.column in self.columns:  # else a processor dropped it
                    self.columns[event.column].failed += 1
            case events.RowsRebuilt():
                self._on_rebuilt(event)
            case events.RowGroupSkipped():
                rows = self._groups.get((event.stage, event.row_group), (0, {}))[0]
                self.dropped += rows
                self.drop_reasons[event.error] += rows
            case events.RowGroupFinished():
                self._on_group_finished(event)
            case events.SalvageStarted():
                self.salvage_rounds += 1
            case events.ThrottleChanged():
                self._key(event.key).limit = event.limit
            case events.StopRequested():
                self.stopping = event.reason
            case events.BuildFinished():
                self._finished = event.time
                self.error = event.error
                if len(self.stages) == 1:
                    self.dropped = event.dropped
                    next(iter(self.stages.values())).written = event.rows
                for key in self.keys.values():
                    key.in_flight = 0
                for column in self.columns.values():
                    column.running = 0

    def _key(self, key: str) -> KeyProgress:
        found = self.keys.get(key)
        if found is None:
            found = self.keys[key] = KeyProgress(key, self._names.get(key, key))
        return found

    def _on_started(self, event: events.BuildStarted) -> None:
        self._started, self._names = event.time, event.models
        whole = events.StageStarted(
            rows=event.rows, finished_rows=event.finished_rows, candidates=event.candidates, columns=(*event.keys,)
        )
        stage_of: dict[str, StageProgress] = {}
        self.stages = {}
        for name, begun in (event.stages or {"": whole}).items():
            stage = self.stages[name] = StageProgress(
                name,
                rows=begun.rows,
                written=begun.finished_rows,
                candidates=begun.candidates,
                predicted=begun.rows,
                before=begun.finished_rows if begun.candidates is None else begun.candidates,
                written_before=begun.finished_rows,
            )
            stage_of |= dict.fromkeys(begun.columns, stage)
        for name, used in event.keys.items():
            stage = stage_of[name]
            column = self.columns.setdefault(name, ColumnProgress(name, stage, done=stage.before))
            column.key = None if used is None else self._key(used)
            column.is_sampled = name in event.sampled
        for limited, limit in event.limits.items():
            self._key(limited).limit = limit

    def _on_task(self, event: events.TaskEvent) -> None:
        if event.kind not in _KINDS:  # a processor, which may have the name of a column
            return
        column = self.columns[event.column]
        # By their types, not by `match`: that an event is no instance of a class takes longer than all of the rest.
        kind: type[events.Event] = type(event)
        if kind is events.TaskStarted:
            column.running += 1
            column.first = event.time if column.first is None else column.first
            if column.key is not None:
                column.key.in_flight += 1
        elif kind is events.TaskFinished:
            self._on_task_finished(column, cast("events.TaskFinished", event))
        elif kind is events.TaskDeferred:
            column.retried += 1
        elif isinstance(event, events.TaskRateLimited) and event.key is not None:
            column.key = column.key or self._key(event.key)
            self._key(event.key).rate_limited += 1

    def _on_task_finished(self, column: ColumnProgress, event: events.TaskFinished) -> None:
        key = column.key
        column.running = max(0, column.running - 1)
        column.cost += event.cost
        if key is not None:
            key.in_flight = max(0, key.in_flight - 1)
            key.tokens += event.tokens
            key.cached_tokens += event.cached_tokens
            key.cost += event.cost
        if event.status == "success":
            column.last = event.time
            group = event.stage, event.row_group
            column.generated += self._groups.get(group, (0,))[0] if event.row is None else 1
            if key is not None:
                key.answered(event.seconds)
            self._complete(column, event.row_group, None if event.row is None else 1)

    def _complete(self, column: ColumnProgress, row_group: int, rows: int | None) -> None:
        """Count rows of a group as done in a column; all of its remaining rows if None."""
        key = column.stage.name, row_group
        if key not in self._groups:
            return
        size, done = self._groups[key]
        before = done.get(column.name, 0)
        done[column.name] = size if rows is None else min(size, before + rows)
        column.done += done[column.name] - before

    def _on_decided(self, event: events.RowsDecided) -> None:
        stage = self.stages[event.stage]
        stage.written = min(stage.rows, event.accepted)
        stage.candidates, stage.predicted, stage.rate = event.candidates, event.predicted, event.rate

    def _on_rebuilt(self, event: events.RowsRebuilt) -> None:
        key = event.stage, event.row_group
        size, done = self._groups.get(key, (event.before, {}))
        for name, count in done.items():
            self.columns[name].done += event.after - count
            done[name] = event.after
        self._groups[key] = (event.after, done)
        self.stages[event.stage].rows += event.after - size

    def _on_group_finished(self, event: events.RowGroupFinished) -> None:
        key, stage = (event.stage, event.row_group), self.stages[event.stage]
        if stage.candidates is None:  # else it is still to be decided
            stage.written += event.rows
        # No task reports cells that were skipped or whose rows were dropped: they are done with their row group.
        self._groups.setdefault(key, (event.rows + event.dropped, {}))
        for column in self.columns.values():
            if column.stage is stage:
                self._complete(column, event.row_group, None)
                column.last = column.last or event.time
        del self._groups[key]


def rows_text(progress: ProgressState, form: str) -> str:
    """How many rows are written, of how many, in the `form` of a pair: those of each stage, if there are several."""
    stages = progress.stages.values()
    return ", ".join(
        f"{stage.name} {pair}" if stage.name else pair
        for stage in stages
        for pair in [form.format(stage.written, stage.rows)]
    )


def candidates_text(progress: ProgressState) -> str:
    """The candidates, and what an accepted row costs; empty if every row counts."""
    if progress.candidates is None:
        return ""
    rate, cost = progress.acceptance_rate, progress.cost_per_row
    text = f"{progress.candidates:,} candidates"
    text += "" if rate is None else f", {rate:.1%} accepted"
    return text + (f", {money(cost)} a row" if cost else "")


def duration(seconds: float | None) -> str:
    """Format a duration: 4s, 1m05s, 2h03m, 3d04h; a dash if it is unknown."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 48 * 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def per_second(rate: float) -> str:
    """Format a rate: 34.9/s, 1,234/s."""
    return f"{rate:.1f}/s" if rate < 100 else f"{rate:,.0f}/s"


def money(cost: float) -> str:
    """Format a cost in the unit of the prices, small ones with four decimals."""
    return f"{cost:,.2f}" if cost >= 100 or not cost else f"{cost:.4f}"


def shorten(text: str, width: int) -> str:
    """Shorten a name in the middle, where names that begin and end alike differ the least: "reviews_of…in_german"."""
    if len(text) <= width:
        return text
    if width <= 1:
        return text[:width]
    head = width // 2
    return f"{text[:head]}…{text[len(text) - (width - head - 1) :]}"


def shorten_end(text: str, width: int) -> str:
    """One line of a text, without line breaks, cut at its end."""
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: max(0, width - 1)]}…"
