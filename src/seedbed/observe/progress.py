"""The progress of a run, counted from its events, and its displays: a live panel in a terminal, lines in a pipe."""

from __future__ import annotations

import math
import select
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

import attrs
import trio
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..graph import Kind
from . import events

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TextIO

# Rates are measured over this number of seconds.
WINDOW = 10.0
_KINDS = frozenset(kind.value for kind in Kind)

# The display may take this share of the loop's time; on a slow terminal it is refreshed less often instead.
_SHARE = 0.04
# Lines of the panel that are not columns: head, foot, and the prompt of the shell.
_SPARE = 6


class Meter:
    """The rate of a count over the last `WINDOW` seconds, sampled by the display, so that counting costs nothing.

    `rich.progress` estimates speed only from samples that advanced: during a stall its rate does not fall.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()

    def sample(self, now: float, count: float) -> float:
        """Take the count at this instant; returns the rate per second."""
        samples = self._samples
        if not samples or now - samples[-1][0] >= WINDOW / 40:
            samples.append((now, count))
        while len(samples) > 2 and samples[1][0] <= now - WINDOW:
            samples.popleft()
        then, before = samples[0]
        return (count - before) / (now - then) if now > then else 0.0


@attrs.define(eq=False)
class ColumnProgress:
    """One column. Changed by `ProgressState` only; `rate` and `eta` (seconds, None if unknown) by its `update`."""

    name: str
    key: KeyProgress | None = None
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
    """One throttle key; `limit` is None until it is known. Changed by `ProgressState` only."""

    key: str
    limit: int | None = None
    in_flight: int = 0
    rate_limited: int = 0
    tokens: int = 0
    tokens_per_second: float = 0.0  # as of the last `update`
    cost: float = 0.0
    meter: Meter = attrs.field(factory=Meter)


class ProgressState:
    """A reader of events that counts them. `update` refreshes rates and times before the counts are displayed.

    `rows_before` is the number of rows that earlier runs of the dataset finished.
    """

    def __init__(self, *, rows_before: int = 0) -> None:
        self.rows = 0
        self.written = rows_before
        self.dropped = 0
        self.durable = 0  # finished cells that survive a crash
        self.salvage_rounds = 0
        self.elapsed = 0.0
        self.stopping: str | None = None
        self.error: str | None = None
        self.columns: dict[str, ColumnProgress] = {}
        self.keys: dict[str, KeyProgress] = {}
        self._before = rows_before
        self._started = 0.0
        self._finished: float | None = None
        # Of each open row group: its rows, and how many of them are done in each column.
        self._groups: dict[int, tuple[int, dict[str, int]]] = {}

    @property
    def finished(self) -> bool:
        return self._finished is not None

    @property
    def eta(self) -> float | None:
        """Seconds until the slowest of the columns that have started is done; None if no unfinished column has."""
        unfinished = [column for column in self.columns.values() if column.done < column.total]
        known = [column.eta for column in unfinished if column.eta is not None]
        return max(known) if known else None if unfinished else 0.0

    def update(self, now: float) -> None:
        """Compute times, rates and ETAs as of `now`, an instant of the events' clock."""
        now = now if self._finished is None else self._finished
        self.elapsed = max(0.0, now - self._started)
        for key in self.keys.values():
            key.tokens_per_second = key.meter.sample(now, key.tokens)
        for column in self.columns.values():
            column.total = self.rows
            column.rate = column.meter.sample(now, column.done)
            left = max(0, column.total - column.done)
            if column.first is not None and (not left or self.finished):
                # Done: the rate over its whole time says more than that of the last seconds.
                took = column.last - column.first
                column.rate = (column.done - self._before) / took if took > 0 else 0.0
            column.eta = left / column.rate if left and column.rate > 0 and not self.finished else None
            if not left:
                column.eta = 0.0

    def __call__(self, event: events.Event) -> None:  # noqa: PLR0912  one branch per kind of event
        match event:
            case events.TaskEvent():
                self._on_task(event)
            case events.BuildStarted():
                self.rows, self._started = event.rows, event.time
                for name, used in event.keys.items():
                    column = self.columns.setdefault(name, ColumnProgress(name, done=self._before))
                    column.key = None if used is None else self._key(used)
                for limited, limit in event.limits.items():
                    self._key(limited).limit = limit
            case events.RowGroupAdmitted():
                self._groups[event.row_group] = (event.rows, {})
            case events.CellsCommitted():
                self.durable = event.total
            case events.CellsRestored():
                self._complete(self.columns[event.column], event.row_group, event.cells)
            case events.RowDropped():
                self.dropped += 1
                if event.column in self.columns:  # else a processor dropped it
                    self.columns[event.column].failed += 1
            case events.RowsRebuilt():
                self._on_rebuilt(event)
            case events.RowGroupSkipped():
                self.dropped += self._groups.get(event.row_group, (0, {}))[0]
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
                self.written, self.dropped, self.error = event.rows, event.dropped, event.error
                for key in self.keys.values():
                    key.in_flight = 0
                for column in self.columns.values():
                    column.running = 0

    def _key(self, key: str) -> KeyProgress:
        found = self.keys.get(key)
        if found is None:
            found = self.keys[key] = KeyProgress(key)
        return found

    def _on_task(self, event: events.TaskEvent) -> None:
        if event.kind not in _KINDS:  # a processor, which may have the name of a column
            return
        column = self.columns[event.column]
        match event:
            case events.TaskStarted():
                column.running += 1
                column.first = event.time if column.first is None else column.first
                if column.key is not None:
                    column.key.in_flight += 1
            case events.TaskFinished():
                column.running = max(0, column.running - 1)
                if column.key is not None:
                    column.key.in_flight = max(0, column.key.in_flight - 1)
                    column.key.tokens += event.tokens
                    column.key.cost += event.cost
                if event.status == "success":
                    column.last = event.time
                    self._complete(column, event.row_group, None if event.row is None else 1)
            case events.TaskDeferred():
                column.retried += 1
            case events.TaskRateLimited(key=str(key)):
                column.key = column.key or self._key(key)
                self._key(key).rate_limited += 1

    def _complete(self, column: ColumnProgress, row_group: int, rows: int | None) -> None:
        """Count rows of a group as done in a column; all of its remaining rows if None."""
        if row_group not in self._groups:
            return
        size, done = self._groups[row_group]
        before = done.get(column.name, 0)
        done[column.name] = size if rows is None else min(size, before + rows)
        column.done += done[column.name] - before

    def _on_rebuilt(self, event: events.RowsRebuilt) -> None:
        size, done = self._groups.get(event.row_group, (event.before, {}))
        for name, count in done.items():
            self.columns[name].done += event.after - count
            done[name] = event.after
        self._groups[event.row_group] = (event.after, done)
        self.rows += event.after - size

    def _on_group_finished(self, event: events.RowGroupFinished) -> None:
        self.written += event.rows
        # No task reports cells that were skipped or whose rows were dropped: they are done with their row group.
        self._groups.setdefault(event.row_group, (event.rows + event.dropped, {}))
        for column in self.columns.values():
            self._complete(column, event.row_group, None)
            column.last = column.last or event.time
        del self._groups[event.row_group]


class Display:
    """A reader of events that counts them in `state` and shows it from a system task of the run itself.

    The caller that starts the run calls `close` afterwards, because a run that is cancelled emits no last event. An
    exception of a subclass, such as that of a closed terminal, ends the display and never the run.
    """

    interval = 1.0  # the least number of seconds between two refreshes

    def __init__(self, state: ProgressState) -> None:
        self.state = state
        self._open = True
        self._now = 0.0

    def show(self) -> None:
        """Show the run as it is now; must not wait for a slow reader."""
        raise NotImplementedError

    def show_end(self) -> None:
        """Show the run as it ended, and restore the terminal."""
        raise NotImplementedError

    def __call__(self, event: events.Event) -> None:
        self.state(event)
        if isinstance(event, events.BuildStarted):
            self._now = event.time
            self._refresh()
            trio.lowlevel.spawn_system_task(self._keep_refreshing)
        elif isinstance(event, events.BuildFinished):
            self._now = event.time
            self.close()

    def close(self) -> None:
        if self._open:
            self._open = False
            with suppress(Exception):
                self.state.update(self._now)
                self.show_end()

    async def _keep_refreshing(self) -> None:
        pause = self.interval
        while self._open:
            await trio.sleep(pause)
            self._now = trio.current_time()
            pause = max(self.interval, self._refresh() / _SHARE)

    def _refresh(self) -> float:
        """Show the state once; returns how long it took."""
        began = time.perf_counter()
        if self._open:
            try:
                self.state.update(self._now)
                self.show()
            except Exception:  # noqa: BLE001  the run matters more
                self._open = False
        return time.perf_counter() - began


class PipeConsole(Console):
    """A console that raises when its reader closed the pipe, where rich would end the process."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


class Panel(Display):
    """Draws the run in place, at most ten times a second. What is printed meanwhile goes above it."""

    interval = 0.1

    def __init__(self, state: ProgressState, stream: TextIO, *, title: str = "seedbed", **console: Any) -> None:
        super().__init__(state)
        self._stream = stream
        self._title = title
        self._console = PipeConsole(file=stream, highlight=False, **console)
        self._live: Live | None = None

    def show(self) -> None:
        if would_wait(self._stream):
            return
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
            self._live.start()
        self._live.update(self._draw(self.state), refresh=True)

    def show_end(self) -> None:
        if self._live is not None:
            try:
                self._live.update(self._draw(self.state))
            finally:
                self._live.stop()

    def _draw(self, progress: ProgressState) -> Group:
        columns = list(progress.columns.values())
        chosen = _chosen(columns, self._console.size.height - _SPARE - len(progress.keys))
        left = "" if progress.finished else f"  about {duration(progress.eta)} left"
        parts: list[Any] = [Text.assemble((self._title, "bold"), f"  {duration(progress.elapsed)}", (left, "dim"))]
        parts.append(_table(28, (_column_cells(each, finished=progress.finished) for each in chosen)))
        if hidden := len(columns) - len(chosen):
            parts.append(Text(f"  … and {hidden} more columns", style="dim"))
        parts += [_table(48, map(_key_cells, progress.keys.values())), _foot(progress)]
        return Group(*parts)


def _chosen(columns: list[ColumnProgress], lines: int) -> list[ColumnProgress]:
    """As many columns as fit, unfinished ones first, among these running ones first; in their order."""
    if len(columns) <= max(lines, 3):
        return columns
    by_need = sorted(columns, key=lambda column: (column.done >= column.total, not column.running))
    fitting = {column.name for column in by_need[: max(lines - 1, 3)]}
    return [column for column in columns if column.name in fitting]


def _table(name_width: int, rows: Iterable[Sequence[RenderableType]]) -> Table:
    """A table without lines whose first column has names and is cut if they are long."""
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=name_width)
    for row in rows:
        while len(table.columns) < len(row):
            table.add_column(justify="right", no_wrap=True)
        table.add_row(*row)
    return table


def _column_cells(column: ColumnProgress, *, finished: bool) -> list[RenderableType]:
    is_done = column.done >= column.total
    return [
        Text(f"  {column.name}", style="" if column.running or not is_done else "dim"),
        ProgressBar(total=max(column.total, 1), completed=column.done if column.total else 1, width=24),
        f"{column.done:,}/{column.total:,}",
        f"{column.percent}%",
        per_second(column.rate),
        Text("done" if is_done else "unfinished" if finished else f"eta {duration(column.eta)}", style="dim"),
        Text(f"{column.failed} failed" if column.failed else "", style="red"),
        Text(f"{column.retried} retried" if column.retried else "", style="yellow"),
    ]


def _key_cells(key: KeyProgress) -> list[RenderableType]:
    return [
        Text(f"  {key.key}", style="cyan"),
        _in_flight(key),
        Text(f"{key.rate_limited:,} × 429", style="yellow" if key.rate_limited else "dim"),
        f"{key.tokens_per_second:,.0f} tokens/s",
        f"cost {money(key.cost)}",
    ]


def _foot(progress: ProgressState) -> Text:
    foot = Text(f"  {progress.written:,} of {progress.rows:,} rows written")
    if progress.dropped:
        foot.append(f", {progress.dropped:,} dropped", style="red")
    if progress.durable:
        foot.append(f", {progress.durable:,} cells durable", style="dim")
    if progress.salvage_rounds:
        foot.append(f", {progress.salvage_rounds:,} salvage rounds", style="dim")
    if progress.stopping is not None and not progress.finished:
        foot.append("\n  stopping: ", style="bold yellow").append(progress.stopping, style="not bold")
    return foot


class Lines(Display):
    """Writes one line with everything every ten seconds, and one at the end: for pipes and log files."""

    interval = 10.0

    def __init__(self, state: ProgressState, stream: TextIO) -> None:
        super().__init__(state)
        self._stream = stream
        self._begun = False

    def show(self) -> None:
        if not self._begun:  # there is nothing to report yet
            self._begun = True
        elif not would_wait(self._stream):
            self.show_end()

    def show_end(self) -> None:
        if self._begun:  # else the run ended before its first event, and the error has the reason
            self._stream.write(progress_line(self.state) + "\n")
            self._stream.flush()


def progress_line(progress: ProgressState) -> str:
    """All columns and keys of a run on one line."""
    head = f"[{duration(progress.elapsed)}] rows {progress.written}/{progress.rows} written"
    if progress.dropped:
        head += f", {progress.dropped} dropped"
    if progress.durable:
        head += f", {progress.durable} cells durable"
    if progress.stopping is not None:
        head += f", stopping: {progress.stopping}"
    parts = [head]
    for column in progress.columns.values():
        text = f"{column.name} {column.done}/{column.total} {column.percent}% {per_second(column.rate)}"
        if column.done < column.total:
            text += f" eta {duration(column.eta)}"
        text += f" {column.failed} failed"
        parts.append(f"{text} {column.retried} retried" if column.retried else text)
    for key in progress.keys.values():
        text = f"{key.key}: {_in_flight(key)}, {key.rate_limited} × 429, {key.tokens_per_second:,.0f} tokens/s"
        parts.append(f"{text}, cost {money(key.cost)}" if key.cost else text)
    return " | ".join(" ".join(part.split()) for part in parts)


def _in_flight(key: KeyProgress) -> str:
    return f"{key.in_flight}/{'–' if key.limit is None else key.limit} in flight"


def would_wait(stream: TextIO) -> bool:
    """True if writing could block the caller now: a full pipe, or a terminal that was stopped with Ctrl-S."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLOUT)
    except (OSError, ValueError, AttributeError):
        return False  # no file behind it
    return not poll.poll(0)


def duration(seconds: float | None) -> str:
    """Format a duration: 4s, 1m05s, 2h03m; a dash if it is unknown."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"


def per_second(rate: float) -> str:
    """Format a rate: 34.9/s, 1,234/s."""
    return f"{rate:.1f}/s" if rate < 100 else f"{rate:,.0f}/s"


def money(cost: float) -> str:
    """Format a cost in the unit of the prices, small ones with four decimals."""
    return f"{cost:,.2f}" if cost >= 100 or not cost else f"{cost:.4f}"
