"""Progress as a live panel, for a terminal: numbers first, then bars and what else its size has room for."""

from __future__ import annotations

from itertools import pairwise
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from .display import Display, would_wait
from .progress import candidates_text, duration, money, per_second, rows_text, shorten, shorten_end

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from .progress import ColumnProgress, KeyProgress, ProgressState

# The narrowest bar and timeline that are worth showing.
_NARROWEST = 10
# The most lines of one value of the latest row.
_VALUE_LINES = 4
_BLOCKS = "▁▂▃▄▅▆▇█"
_GAP = "  "


class PipeConsole(Console):
    """A console that raises when its reader closed the pipe, where rich would end the process."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


class Panel(Display):
    """Draws the run in place, at most ten times a second. What is printed meanwhile goes above it."""

    interval = 0.1
    wants_rows = True

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
        self._live.update(self._draw(), refresh=True)

    def show_end(self) -> None:
        if self._live is not None:
            try:
                self._live.update(self._draw())
            finally:
                self._live.stop()

    def _draw(self) -> Group:
        size = self._console.size
        # The last line is that of the cursor.
        return draw(self.state, title=self._title, width=size.width, height=size.height - 1)


def draw(progress: ProgressState, *, title: str, width: int, height: int) -> Group:
    """The panel for a terminal of that size: what matters least is left out where it does not fit."""
    head, keys, foot = _head(progress, title, width), _key_lines(progress, width), _foot(progress, width)
    room = height - len(head) - len(foot) - len(keys)
    columns = _column_lines(progress, width, room)
    room -= len(columns)
    reasons = _drop_lines(progress, width)[: max(0, room)]
    latest = _latest_lines(progress, width, room - len(reasons))
    return Group(*head, *columns, *keys, *foot, *reasons, *latest)


def _head(progress: ProgressState, title: str, width: int) -> list[Text]:
    head = Text(shorten(title, max(10, width // 2)), style="bold", no_wrap=True, overflow="ellipsis")
    head.append(f"  {duration(progress.elapsed)}", style="not bold")
    if not progress.finished:
        head.append(f"  about {duration(progress.eta)} left", style="not bold dim")
    return [head]


# Columns.


def _column_lines(progress: ProgressState, width: int, room: int) -> list[Text]:
    """A line for all sampled columns together, and one for each other column, as many as fit."""
    sampled = [column for column in progress.columns.values() if column.is_sampled]
    if len(sampled) < 2:
        sampled = []
    others = [column for column in progress.columns.values() if column not in sampled]
    chosen = _chosen(others, room - bool(sampled))
    rows = [_column_cells(column, finished=progress.finished) for column in chosen]
    if sampled:
        rows.insert(0, _sampled_cells(sampled))
    lines = _aligned(rows, width)
    used = max((line.cell_len for line in lines), default=0)
    bar = min(_widest(width), width - used - len(_GAP))
    for column, line in zip(chosen, lines[bool(sampled) :], strict=True):
        if bar >= _NARROWEST:
            line.pad_right(used + len(_GAP) - line.cell_len)
            line.append_text(_bar(column, bar))
    if sampled:
        names = ", ".join(column.name for column in sampled)
        lines[0].rstrip()
        lines[0].append(_GAP + shorten_end(names, max(0, width - lines[0].cell_len - len(_GAP))), style="dim")
    if hidden := len(others) - len(chosen):
        lines.append(Text(f"  … and {hidden} more columns", style="dim"))
    return lines


def _chosen(columns: list[ColumnProgress], lines: int) -> list[ColumnProgress]:
    """As many columns as fit, unfinished ones first, among these running ones first; in their order."""
    if len(columns) <= max(lines, 3):
        return columns
    by_need = sorted(columns, key=lambda column: (column.done >= column.total, not column.running))
    fitting = {column.name for column in by_need[: max(lines - 1, 3)]}
    return [column for column in columns if column.name in fitting]


def _column_cells(column: ColumnProgress, *, finished: bool) -> list[Text]:
    is_done = column.done >= column.total
    state = "done" if is_done else "unfinished" if finished else f"eta {duration(column.eta)}"
    return [
        Text(column.name, style="" if column.running or not is_done else "dim"),
        Text(f"{column.done:,}/{column.total:,}"),
        Text(f"{column.percent}%"),
        Text(per_second(column.rate)),
        Text(state, style="dim"),
        Text(f"{column.failed:,} failed" if column.failed else "", style="red"),
        Text(f"{column.retried:,} retried" if column.retried else "", style="yellow"),
    ]


def _sampled_cells(columns: Sequence[ColumnProgress]) -> list[Text]:
    """All columns that are generated from scratch; they are as far as the last of them."""
    last = min(columns, key=lambda column: column.done)
    name = Text(f"{len(columns)} sampled", style="dim")
    return [name, Text(f"{last.done:,}/{last.total:,}"), Text(f"{last.percent}%")]


def _bar(column: ColumnProgress, width: int) -> Text:
    filled = width * column.done // column.total if column.total else width
    bar = Text("━" * filled, style="green" if column.done >= column.total else "cyan")
    return bar.append("─" * (width - filled), style="dim")


def _widest(width: int) -> int:
    """The widest bar or timeline: numbers are read first."""
    return max(40, width // 3)


def _aligned(rows: Sequence[Sequence[Text]], width: int) -> list[Text]:
    """Cells below each other: names on the left and shortened in the middle, everything else on the right."""
    columns = max(map(len, rows), default=0)
    cells = [[*row, *(Text() for _ in range(columns - len(row)))] for row in rows]
    widths = [max(row[at].cell_len for row in cells) for at in range(columns)]
    if widths:
        # Names give way to numbers, and the last numbers to the first.
        widths[0] = min(widths[0], max(8, width // 4))
    while len(widths) > 2 and _total(widths) > width:
        widths.pop()
    if widths:
        widths[0] = max(1, min(widths[0], width - _total([0, *widths[1:]]) - len(_GAP)))
    lines = []
    for name, *others in cells:
        line = Text("  ", no_wrap=True, overflow="ellipsis")
        line.append(shorten(name.plain, widths[0]), style=name.style)
        line.pad_right(2 + widths[0] - line.cell_len)
        for each, size in zip(others, widths[1:], strict=False):
            if size:
                line.append(_GAP + " " * (size - each.cell_len)).append_text(each)
        lines.append(line)
    return lines


def _total(widths: Sequence[int]) -> int:
    """The width of a line of cells; empty ones take none."""
    return sum(len(_GAP) + size for size in widths if size)


# Models.


def _key_lines(progress: ProgressState, width: int) -> list[Text]:
    """A line for each throttle key, with calls in flight over time if there is room."""
    keys = list(progress.keys.values())
    lines = _aligned([_key_cells(key) for key in keys], width)
    used = max((line.cell_len for line in lines), default=0)
    room = width - used - len(_GAP)
    for key, line in zip(keys, lines, strict=True):
        points = key.calls_over_time.points
        if room >= _NARROWEST and len(points) > 1:
            line.pad_right(used + len(_GAP) - line.cell_len)
            line.append(_timeline(points, min(room, _widest(width))), style="cyan")
    return lines


def _key_cells(key: KeyProgress) -> list[Text]:
    middle, slow = key.latency(0.5), key.latency(0.95)
    return [
        Text(key.name, style="cyan"),
        Text(f"{key.in_flight}/{'–' if key.limit is None else key.limit} in flight"),
        Text(f"{key.rate_limited:,} × 429", style="yellow" if key.rate_limited else "dim"),
        Text(f"{key.tokens_per_second:,.0f} tokens/s"),
        Text(f"cost {money(key.cost)}"),
        Text("" if middle is None or slow is None else f"p50 {_seconds(middle)} p95 {_seconds(slow)}", style="dim"),
    ]


def _seconds(seconds: float) -> str:
    return f"{seconds:.2g}s" if seconds < 10 else duration(seconds)


def _timeline(points: Sequence[float], width: int) -> str:
    """A number over the whole run, one block for each part of it, as high as its maximum."""
    width = min(width, len(points))
    bounds = [at * len(points) // width for at in range(width + 1)]
    means = [sum(points[a:b]) / (b - a) for a, b in pairwise(bounds)]
    highest = max(means) or 1.0
    return "".join(_BLOCKS[min(7, int(8 * mean / highest))] for mean in means)


# The rest.


def _foot(progress: ProgressState, width: int) -> list[Text]:
    foot = Text(f"  {rows_text(progress, '{:,} of {:,}')} rows written", no_wrap=True, overflow="ellipsis")
    if accepted := candidates_text(progress):
        foot.append(f", {accepted}")
    if progress.dropped:
        foot.append(f", {progress.dropped:,} dropped", style="red")
    if progress.durable:
        foot.append(f", {progress.durable:,} cells durable", style="dim")
    if progress.salvage_rounds:
        foot.append(f", {progress.salvage_rounds:,} salvage rounds", style="dim")
    lines = [foot]
    if progress.tokens or progress.cost:
        cached = f" ({progress.cached_tokens:,} cached)" if progress.cached_tokens else ""
        text = f"  {progress.tokens:,} tokens{cached}, cost {money(progress.cost)}"
        used = Text(text, no_wrap=True, overflow="ellipsis")
        if not progress.finished and (predicted := progress.predicted_cost):
            used.append(f", about {money(predicted)} in total", style="dim")
        lines.append(used)
    if progress.stopping is not None and not progress.finished:
        reason = shorten_end(progress.stopping, max(10, width - 13))
        lines.append(Text("  stopping: ", style="bold yellow").append(reason, style="not bold"))
    return lines


def _drop_lines(progress: ProgressState, width: int) -> list[Text]:
    """The most frequent reasons of drops."""
    return [
        Text(
            f"    {count:,} × {shorten_end(reason, max(10, width - 10))}",
            style="red",
            no_wrap=True,
            overflow="ellipsis",
        )
        for reason, count in progress.drop_reasons.most_common(3)
    ]


def _latest_lines(progress: ProgressState, width: int, room: int) -> list[Text]:
    """The row that was finished last, with as many of its columns as fit; nothing where only few would."""
    if progress.latest is None or room < 4 or progress.finished:
        return []
    lines = [Text(), Text("  latest row", style="dim")]
    name_width = min(24, max(map(len, progress.latest), default=0))
    lines_each = min(_VALUE_LINES, max(1, (room - 2) // max(1, len(progress.latest))))
    # Columns of models usually come last, and say the most.
    for name, value in list(progress.latest.items())[-(room - 2) :]:
        margin = name_width + 2 * len(_GAP)
        texts = _value_lines(value, max(10, width - margin), lines_each)
        lines.append(
            Text(f"  {shorten(name, name_width):<{name_width}}  ", style="cyan").append(texts[0], style="default")
        )
        lines += [Text(" " * margin + text) for text in texts[1:]]
    return lines


def _value_lines(value: object, width: int, most: int) -> list[str]:
    """A value on a few lines; of a long text only its beginning is looked at."""
    text = str(value[: 2 * most * width] if isinstance(value, str | bytes) else value)
    return wrap(" ".join(text.split()), width, max_lines=most, placeholder="…") or [""]
