"""The report of a build, the ledger in which the engine counts while it runs, and traces of its tasks.

`profile_frame` sums traces up by column; `write_chrome_trace` writes them in the format of Perfetto and chrome://tracing.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import attrs
import msgspec
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path


# Directories may come from someone else: msgspec checks the types and ranges of what is read from them. `len` of a
# range of rows allows no more.
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]

# The number of a row that something is stored of, and which of those that processors added to its row group. Pairs of
# them are keys: in these ranges only a few have the same hash, however they are chosen.
Row: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**40 - 1)]
Copy: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]

# Per processor, in their order: its name, and how many rows it removed and added.
Resized: TypeAlias = tuple[tuple[str, Count, Count], ...]


# The kind of a `Drop` whose row was not accepted, or is a duplicate.
REJECTED = "rejected"


class Drop(msgspec.Struct, frozen=True, kw_only=True):
    """A row that is not in the dataset, and why.

    After pre-batch processors, rows are numbered by their position in what these returned. The manifest stores drops
    and may come from someone else, so fields are checked.
    """

    row: Row
    """Its number."""
    copy: Copy = 0
    """0, or 1, 2, … for rows that a pre-batch processor added after the last number of the row group."""
    column: str
    """The column that failed."""
    attempts: Count
    """How often its cell was tried."""
    error: str
    """The last error."""
    kind: str
    """`failed`: a cell failed for good; `skipped`: the pre-batch processor of its row group failed; `rejected`: it was
    not accepted, or is a duplicate."""
    code: str = ""
    """A stable word for the kind of failure, such as `timeout` or `bad_output`."""
    seed_row: Row | None = None
    """The number of its row in the seed file; None without one, or if pre-batch processors made it untraceable."""
    cost: float = 0.0
    """The cost of all its calls."""

    @property
    def reason(self) -> str:
        """Column and error, as reports group them."""
        return f"{self.column}: {self.error}"


def drop_reasons(by_reason: Mapping[str, int], *, most: int = 3) -> str:
    """The most frequent reasons on one line, each with its number of rows."""
    parts = [f"{count:,} × {reason}" for reason, count in list(by_reason.items())[:most]]
    more = len(by_reason) - most
    return "; ".join([*parts, *([f"and {more:,} other reason{'s' * (more > 1)}"] if more > 0 else [])])


@attrs.frozen(kw_only=True)
class Wasted:
    """Work of one column whose result is not in the dataset."""

    calls: int = 0
    """Calls."""
    tokens: int = 0
    """Tokens."""
    seconds: float = 0.0
    """Seconds in these calls."""


class Usage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The usage that calls reported."""

    # A struct, because every call creates some of them: that takes a tenth of the time (overhead benchmark).
    calls: Count = 0
    """Calls."""
    input_tokens: Count = 0
    """Tokens of prompts, cached ones included."""
    output_tokens: Count = 0
    """Tokens of answers."""
    cached_tokens: Count = 0
    """Tokens of prompts that the provider read from its cache."""
    cache_write_tokens: Count = 0
    """Tokens of prompts that the provider stored in its cache."""
    cost: float = 0.0
    """The cost, in the unit of the prices."""

    @property
    def tokens(self) -> int:
        """Tokens of prompts and answers."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            calls=self.calls + other.calls,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            cost=self.cost + other.cost,
        )


class Origin(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How the value of one cell was generated; the journal stores it with the value."""

    # Positional and an array on disk, because every cell of a model has one (overhead and durability benchmarks).
    model: str
    """The alias of the model whose answer it is; empty if no call named its model."""
    attempts: Count
    """How often the cell was tried."""
    calls: Count
    """Calls of all attempts."""
    input_tokens: Count
    """Tokens of prompts, cached ones included."""
    output_tokens: Count
    """Tokens of answers."""
    cached_tokens: Count
    """Tokens of prompts that the provider read from its cache."""
    cost: float
    """The cost of all attempts."""
    seconds: float
    """How long the attempt took that succeeded."""
    shared: bool = False
    """The answer is that of `once_per`: it was paid for once, by whichever row was first."""

    @property
    def tokens(self) -> int:
        """Tokens of prompts and answers."""
        return self.input_tokens + self.output_tokens

    def split(self, count: int) -> list[Origin]:
        """The shares of `count` rows that were generated together: each has the attempts and the seconds of all."""
        return [
            Origin(
                self.model,
                self.attempts,
                (self.calls + at) // count,
                (self.input_tokens + at) // count,
                (self.output_tokens + at) // count,
                (self.cached_tokens + at) // count,
                self.cost / count,
                self.seconds,
            )
            for at in range(count)
        ]


@attrs.frozen(kw_only=True)
class BuildReport:
    """The result of a build in numbers, of all runs of its dataset.

    The counts add up: candidates + added = written + surplus + rejected + removed + dropped + unfinished. A report
    that was read from a directory (`Dataset.open(...).report`) has the counts, drops, usage and conflicts; what only a
    run itself knows (attempts, errors, wasted work, threads, throttles, seconds, durable and restored cells, damage,
    tracebacks, traces) is empty or zero there.
    """

    requested: int
    """How many rows were requested."""
    candidates: int
    """How many rows were or will be started; with `accept`, `unique` or `near_duplicates` those that were."""
    written: int
    """How many rows are in the dataset."""
    surplus: int = 0
    """How many more rows were accepted than requested; they are used when the dataset grows."""
    rejected: int = 0
    """How many candidates were not accepted, or are duplicates."""
    accepts: bool = False
    """Whether rows are candidates first: the recipe has `accept`, `unique` or `near_duplicates`."""
    exhausted: str | None = None
    """Why there are fewer rows than were requested, with `on_exhausted: partial`; known to the run that ended so."""
    resized: Resized = ()
    """Per processor, in their order: its name, and how many rows it removed and added."""
    dropped: tuple[Drop, ...]
    """The rows that failed for good."""
    unfinished: tuple[range, ...]
    """The rows that were not finished."""
    skipped_row_groups: tuple[int, ...]
    """Row groups whose pre-batch processor failed."""
    attempts: Mapping[str, int]
    """Attempts by column."""
    errors: Mapping[str, int]
    """Failed attempts by column."""
    usage: Mapping[str, Usage]  # by column
    """Calls, tokens and cost by column, of all runs."""
    model_usage: Mapping[str, Usage]  # by model, for calls that named theirs
    """The same by model, for calls that named theirs."""
    wasted: Mapping[str, Wasted]
    """By column, work whose result is not in the dataset."""
    late_threads: Mapping[str, int]
    """By column, threads that exceeded their timeout."""
    running_threads: Mapping[str, int]
    """Those of them that have not ended yet."""
    throttles: Mapping[str, Any]
    """The state of each throttle key at the end."""
    conflicts: tuple[str, ...]
    """Columns whose parts hold types that cannot be unified."""
    seconds: float
    """How long the run took."""
    durable: int = 0
    """Finished cells that survive a crash: committed to the journal, or in a part if there is none."""
    restored: int = 0
    """How many of them were restored from the journal of earlier runs."""
    reused: int = 0
    """How many finished cells were taken over from another dataset, or from row groups that were written anew."""
    damage: tuple[str, ...] = ()
    """Damage found in the resumed directory, whose values were generated again."""
    tracebacks: Mapping[str, str] = attrs.field(factory=dict)
    """By drop reason, the traceback of the first failure in code of the user's."""
    traces: tuple[TaskTrace, ...] = ()
    """The traces of its tasks, with the option `trace`."""
    stages: Mapping[str, BuildReport] = attrs.field(factory=dict)
    """Of a recipe with stages: the report of each, whose rows these are; those here are of the stage at the root."""

    @property
    def removed(self) -> int:
        """How many rows the processors removed."""
        return sum(removed for _, removed, _ in self.resized)

    @property
    def added(self) -> int:
        """How many rows the processors added."""
        return sum(added for _, _, added in self.resized)

    @property
    def acceptance_rate(self) -> float | None:
        """The share of finished candidates that were accepted, requested or not; None if there are none."""
        finished = self.candidates - sum(len(each) for each in self.unfinished)
        if not self.accepts or finished <= 0:
            return None
        return max(0, finished - self.rejected - len(self.dropped)) / finished

    @property
    def cost_per_row(self) -> float | None:
        """The cost of all runs for each row of the dataset, that of rejected candidates included; None without rows."""
        return sum(used.cost for used in self.usage.values()) / self.written if self.written else None

    @property
    def counts(self) -> str:
        """What became of the requested rows, in one line: "48 of 50 rows, 2 dropped"."""
        unfinished = sum(len(each) for each in self.unfinished)
        changed = [(name, removed, added) for name, removed, added in self.resized if removed or added]
        if changed:  # "6 of 3 rows" would explain nothing
            parts = [f"{self.written:,} rows", f"{self.requested:,} requested"]
        else:
            parts = [f"{self.written:,} of {self.requested:,} rows"]
        for name, removed, added in changed:
            parts += [f"{removed:,} removed by {name!r}"] if removed else []
            parts += [f"{added:,} added by {name!r}"] if added else []
        if self.accepts:
            rate = self.acceptance_rate
            share = "" if rate is None else f" ({rate:.1%} accepted)"
            parts += [f"{self.candidates:,} candidates{share}"]
            parts += [f"{self.rejected:,} rejected"] if self.rejected else []
            parts += [f"{self.surplus:,} surplus"] if self.surplus else []
        parts += [f"{len(self.dropped):,} dropped"] if self.dropped else []
        parts += [f"{unfinished:,} unfinished"] if unfinished else []
        return ", ".join(parts)

    @property
    def summary(self) -> str:
        """What became of the requested rows, of each stage if there are several: "docs: 10 of 10 rows; …"."""
        if not self.stages:
            return self.counts
        return "; ".join(f"{name}: {report.counts}" for name, report in self.stages.items())

    @property
    def drops_by_reason(self) -> dict[str, int]:
        """The number of dropped rows by reason, most frequent first."""
        return dict(Counter(drop.reason for drop in self.dropped).most_common())

    @property
    def dropped_because(self) -> str:
        """The most frequent drop reasons on one line: "2 × v: ValueError: no (mine.py, line 12)"."""
        return drop_reasons(self.drops_by_reason)

    def __str__(self) -> str:
        parts = [self.summary]
        if self.running_threads:
            names = ", ".join(f"{name} ({count})" for name, count in self.running_threads.items())
            parts.append(f"threads still running: {names}")
        if self.seconds:
            parts.append(f"{self.seconds:.1f} s")
        return ", ".join(parts)


# Exceptions that a ledger remembers: each has its own frames, with whatever these refer to.
_MAX_CAUSES = 20


# What a ledger counts by column, or by reason of a drop, which begins with the column: a column is in one stage.
_BY_COLUMN = (
    *("attempts", "errors", "late_threads", "running_threads", "causes", "tracebacks", "traces", "usage", "wasted"),
)


class Ledger:
    """Counts what happens in one run. Written by the engine on its own thread only."""

    def __init__(self) -> None:
        self.attempts: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.late_threads: Counter[str] = Counter()
        # Abandoned threads that have not ended yet.
        self.running_threads: Counter[str] = Counter()
        self.dropped: list[Drop] = []
        self.written = 0
        # Where not every row counts: rows that count and were requested, candidates that do not count, and why there
        # are fewer rows than were requested.
        self.placed = 0
        self.rejected = 0
        self.exhausted: str | None = None
        self._resized: dict[str, tuple[int, int]] = {}  # by processor: rows that it removed and added
        self.causes: dict[str, BaseException] = {}  # by drop reason
        self.tracebacks: dict[str, str] = {}  # by drop reason
        self.skipped: list[int] = []
        self.conflicts: list[str] = []
        self.durable = 0
        self.restored = 0
        self.reused = 0
        self.damage: tuple[str, ...] = ()
        self.traces: list[TaskTrace] = []
        # By column and model; of earlier runs of this dataset too.
        self.usage: defaultdict[tuple[str, str], Usage] = defaultdict(Usage)
        self.wasted: defaultdict[str, Wasted] = defaultdict(Wasted)

    def for_stage(self) -> Ledger:
        """A ledger of another stage of the same run: it shares what is counted by column, and counts its own rows."""
        own = Ledger()
        for name in _BY_COLUMN:
            setattr(own, name, getattr(self, name))
        return own

    def note_cause(self, reason: str, error: BaseException, trace: Callable[[BaseException], str]) -> None:
        """Remember the exception that dropped the first row for this reason, and its `trace`."""
        if reason not in self.causes and len(self.causes) < _MAX_CAUSES:
            self.causes[reason] = error
            if text := trace(error):
                self.tracebacks[reason] = text

    def resize(self, resized: Resized, *, before: Resized = ()) -> None:
        """Count rows that processors removed and added; `before` is what was counted of them already."""
        for sign, counts in ((1, resized), (-1, before)):
            for name, removed, added in counts:
                known = self._resized.get(name, (0, 0))
                self._resized[name] = (known[0] + sign * removed, known[1] + sign * added)

    def drop(self, drops: Iterable[Drop]) -> None:
        """Count rows that are not in the dataset."""
        for drop in drops:
            if drop.kind == REJECTED:
                self.rejected += 1
            else:
                self.dropped.append(drop)

    def spend(self, column: str, usage: Iterable[tuple[str, Usage]]) -> None:
        """Add the usage that a column reported, with the model of each."""
        for model, each in usage:
            self.usage[column, model] += each

    def take_over(self, entries: Iterable[tuple[str, str, Usage]]) -> None:
        """Continue from the usage of earlier runs: of several entries for a column and model the latest counts."""
        for column, model, used in entries:
            if used.calls >= self.usage[column, model].calls:
                self.usage[column, model] = used

    def _usage_by(self, part: int) -> dict[str, Usage]:
        """Usage by column (part 0 of the key) or by model (part 1)."""
        found: defaultdict[str, Usage] = defaultdict(Usage)
        for key, usage in self.usage.items():
            if key[part]:
                found[key[part]] += usage
        return dict(found)

    def waste(self, column: str, calls: int, tokens: int, seconds: float) -> None:
        known = self.wasted[column]
        self.wasted[column] = Wasted(
            calls=known.calls + calls, tokens=known.tokens + tokens, seconds=known.seconds + seconds
        )

    def report(
        self,
        *,
        rows: int,
        candidates: int | None = None,
        surplus: int = 0,
        unfinished: Sequence[range],
        untried: Iterable[Drop] = (),
        throttles: Mapping[str, Any] | None = None,
        seconds: float = 0.0,
    ) -> BuildReport:
        """The counts so far, frozen. `untried` are dropped rows whose retry has not started yet.

        `candidates` are given where not every row counts.
        """
        return BuildReport(
            requested=rows,
            candidates=rows if candidates is None else candidates,
            written=self.written,
            surplus=surplus,
            rejected=self.rejected,
            accepts=candidates is not None,
            exhausted=self.exhausted,
            resized=tuple((name, *counts) for name, counts in self._resized.items()),
            dropped=tuple(sorted((*self.dropped, *untried), key=lambda drop: (drop.row, drop.copy))),
            unfinished=tuple(unfinished),
            skipped_row_groups=tuple(sorted(self.skipped)),
            attempts=dict(self.attempts),
            errors=dict(self.errors),
            usage=self._usage_by(0),
            model_usage=self._usage_by(1),
            wasted=dict(self.wasted),
            late_threads=dict(self.late_threads),
            running_threads={name: count for name, count in self.running_threads.items() if count},
            throttles=dict(throttles or {}),
            conflicts=tuple(self.conflicts),
            seconds=seconds,
            durable=self.durable,
            restored=self.restored,
            reused=self.reused,
            damage=self.damage,
            tracebacks=dict(self.tracebacks),
            traces=tuple(self.traces),
        )


@attrs.frozen(kw_only=True)
class TaskTrace:
    """The life of one attempt of a task; instants of trio's clock, None where that step did not happen."""

    kind: str
    """The kind of the column, or the stage of the processor."""
    column: str
    """The column."""
    row_group: int
    """The row group."""
    row: int | None
    """The row; None for a task of a whole row group."""
    attempt: int
    """Counts from 1."""
    status: str
    """How it ended."""
    ready: float
    """Its inputs were available."""
    submitted: float
    """The scheduler started it."""
    slot: float | None
    """It was granted a slot; None if it needs none."""
    permit: float | None
    """It was granted a permit; None if it needs none."""
    started: float
    """Its generator was called."""
    finished: float
    """Its outcome was known."""
    called: float = 0.0
    """Seconds inside the model calls that it made through its context."""
    waited: float = 0.0
    """Seconds of waiting for permits to send them."""


@attrs.frozen(kw_only=True)
class ColumnProfile:
    """Seconds of all tasks of a column together.

    `queue`: ready, and waiting to be started. `slot`, `permit`: the same for tasks that need a thread or process, or a
    permit (waits for the permits of further calls included). `call`: inside model calls, or inside the generator if it
    makes none through its context. `parse`: the rest of the generator: rendering, parsing, repairing. `longest` is the
    longest single task from its start to its end.
    """

    column: str
    tasks: int
    failed: int
    queue: float
    slot: float
    permit: float
    call: float
    parse: float
    longest: float

    @property
    def total(self) -> float:
        return self.queue + self.slot + self.permit + self.call + self.parse


_TEXTS, _COUNTS = ("kind", "column", "status"), ("row_group", "row", "attempt")
# The columns of a table of traces, in the order of the fields of `TaskTrace`.
TRACE_SCHEMA = {
    field.name: pl.String() if field.name in _TEXTS else pl.Int64() if field.name in _COUNTS else pl.Float64()
    for field in attrs.fields(TaskTrace)
}


def traces_frame(traces: Sequence[TaskTrace]) -> pl.DataFrame:
    """Traces as a table: a column for each field, a row for each task."""
    columns: dict[str, list[Any]] = {name: [getattr(trace, name) for trace in traces] for name in TRACE_SCHEMA}
    return pl.DataFrame(columns, schema=TRACE_SCHEMA, strict=False)


def profile_frame(frame: pl.DataFrame) -> list[ColumnProfile]:
    """Sum up a table of traces by column, in the order of their first tasks."""
    wait = pl.col("submitted") - pl.col("ready")
    has_permit, has_slot = pl.col("permit").is_not_null(), pl.col("slot").is_not_null()
    running = pl.col("finished") - pl.col("started")
    calls = pl.col("called") > 0
    rows = (
        frame.select(
            "column",
            failed=~pl.col("status").is_in(["success", "rate_limited", "cancelled"]),
            queue=pl.when(has_permit | has_slot).then(0.0).otherwise(wait) + pl.col("started") - pl.col("submitted"),
            slot=pl.when(has_slot & ~has_permit).then(wait).otherwise(0.0),
            permit=pl.when(has_permit).then(wait).otherwise(0.0) + pl.col("waited"),
            call=pl.when(calls).then(pl.col("called")).otherwise(running),
            parse=pl.when(calls).then(running - pl.col("called") - pl.col("waited")).otherwise(0.0),
            running=running,
        )
        .group_by("column", maintain_order=True)
        .agg(
            pl.len().alias("tasks"),
            pl.col("failed", "queue", "slot", "permit", "call", "parse").sum(),
            pl.col("running").max().alias("longest"),
        )
    )
    return [ColumnProfile(**row) for row in rows.iter_rows(named=True)]


def write_chrome_trace(traces: Sequence[TaskTrace], path: Path) -> None:
    """Write the traces of a build (`BuildReport.traces`) to a file, one event per line."""
    with path.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [')
        for index, event in enumerate(chrome_events(traces)):
            file.write(("," if index else "") + "\n" + json.dumps(event, ensure_ascii=False))
        file.write("\n]}\n")


def chrome_events(traces: Sequence[TaskTrace]) -> Iterator[dict[str, Any]]:
    """Convert traces to events: a process per column with as many tracks as tasks of it ran at once.

    A task is a bar from its submission to its end. Its wait before that is a bar on a second set of tracks, which makes
    queues visible. Times are microseconds since the first instant.
    """
    if not traces:
        return
    origin = min(trace.ready for trace in traces)
    columns = list(dict.fromkeys(trace.column for trace in traces))
    for process, column in enumerate(columns, start=1):
        yield _named("process_name", process, 0, column)
        of_column = [trace for trace in traces if trace.column == column]
        waits = [(trace.ready, trace.submitted, trace) for trace in of_column if trace.submitted > trace.ready]
        last = 0
        for track, begin, end, trace in _tracks((trace.submitted, trace.finished, trace) for trace in of_column):
            last = max(last, track)
            yield _bar(trace, (process, track), begin - origin, end - origin, trace.status)
        for track, begin, end, trace in _tracks(waits):
            yield _bar(trace, (process, last + track), begin - origin, end - origin, "waiting")
        yield from (_named("thread_name", process, track, "running") for track in range(1, last + 1))


def _tracks(spans: Iterable[tuple[float, float, TaskTrace]]) -> Iterator[tuple[int, float, float, TaskTrace]]:
    """Assign each span to the lowest track, counted from 1, that is free when it begins."""
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    count = 0
    for begin, end, trace in sorted(spans, key=lambda span: span[:2]):
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            count += 1
            free.append(count)
        track = heapq.heappop(free)
        heapq.heappush(busy, (end, track))
        yield track, begin, end, trace


def _bar(trace: TaskTrace, place: tuple[int, int], begin: float, end: float, category: str) -> dict[str, Any]:
    row = "rows" if trace.row is None else f"row {trace.row}"
    name = f"group {trace.row_group}, {row}"
    return {
        "name": name if trace.attempt == 1 else f"{name}, attempt {trace.attempt}",
        "cat": category,
        "ph": "X",
        "pid": place[0],
        "tid": place[1],
        "ts": round(begin * 1e6, 3),
        "dur": round((end - begin) * 1e6, 3),
        "args": {name: getattr(trace, name) for name in ("column", "kind", "row_group", "row", "attempt", "status")},
    }


def _named(what: str, process: int, track: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": track, "args": {"name": name}}
