"""Progress for terminals: a live panel with a bar for each column and a line for each throttle key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .show import duration, money, per_second, would_wait

if TYPE_CHECKING:
    from typing import TextIO

    from .progress import ColumnView, KeyView, Progress

# Lines of the panel that are no column: head, foot, the heading of the keys and what the shell needs.
_SPARE = 6


class PipeConsole(Console):
    """A console that says when nobody reads any more, where rich would end the process."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


class Panel:
    """Draws the run in place, at most ten times a second. What is printed meanwhile goes above it."""

    interval = 0.1

    def __init__(self, stream: TextIO, *, title: str = "seedbed", **console: Any) -> None:
        self._stream = stream
        self._title = title
        self._console = PipeConsole(file=stream, highlight=False, **console)
        self._live: Live | None = None

    def show(self, progress: Progress) -> None:
        if would_wait(self._stream):
            return
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
            self._live.start()
        self._live.update(self._draw(progress), refresh=True)

    def close(self, progress: Progress) -> None:
        live, self._live = self._live, None
        if live is None:
            return
        try:
            live.update(self._draw(progress))
        finally:
            live.stop()

    def _draw(self, progress: Progress) -> Group:
        height = self._console.size.height
        columns = _chosen(progress.columns, height - _SPARE - len(progress.keys))
        parts: list[Any] = [self._head(progress), _column_table(columns, over=progress.finished)]
        hidden = len(progress.columns) - len(columns)
        if hidden:
            parts.append(Text(f"  … and {hidden} more columns", style="dim"))
        if progress.keys:
            parts.append(_key_table(progress.keys))
        parts.append(_foot(progress))
        return Group(*parts)

    def _head(self, progress: Progress) -> Text:
        head = Text(self._title, style="bold")
        head.append(f"  {duration(progress.elapsed)}", style="not bold")
        if not progress.finished:
            head.append(f"  about {duration(progress.eta)} left", style="not bold dim")
        return head


def _chosen(columns: tuple[ColumnView, ...], room: int) -> tuple[ColumnView, ...]:
    """As many columns as there is room for, those under way rather than those that are over or have not begun."""
    if len(columns) <= max(room, 3):
        return columns
    rank = [(column.done >= column.total, not column.running) for column in columns]
    by_need = sorted(range(len(columns)), key=rank.__getitem__)
    return tuple(columns[at] for at in sorted(by_need[: max(room - 1, 3)]))


def _column_table(columns: tuple[ColumnView, ...], *, over: bool) -> Table:
    table = Table.grid(padding=(0, 1), expand=False)
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=28)
    table.add_column(width=24)
    for _ in range(4):
        table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    for column in columns:
        finished = column.done >= column.total
        remarks = Text()
        if column.failed:
            remarks.append(f"{column.failed} failed ", style="red")
        if column.retried:
            remarks.append(f"{column.retried} retried", style="yellow")
        table.add_row(
            Text(f"  {column.name}", style="" if column.running or not finished else "dim"),
            ProgressBar(total=max(column.total, 1), completed=column.done if column.total else 1, width=24),
            f"{column.done:,}/{column.total:,}",
            f"{column.percent}%",
            per_second(column.rate),
            Text("done" if finished else "unfinished" if over else f"eta {duration(column.eta)}", style="dim"),
            remarks,
        )
    return table


def _key_table(keys: tuple[KeyView, ...]) -> Table:
    table = Table.grid(padding=(0, 2), expand=False)
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=48)
    for _ in range(4):
        table.add_column(justify="right", no_wrap=True)
    for key in keys:
        limit = "–" if key.limit is None else key.limit
        table.add_row(
            Text(f"  {key.key}", style="cyan"),
            f"{key.in_flight}/{limit} in flight",
            Text(f"{key.refused:,} × 429", style="yellow" if key.refused else "dim"),
            f"{key.tokens_per_second:,.0f} tokens/s",
            f"cost {money(key.cost)}",
        )
    return table


def _foot(progress: Progress) -> Text:
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
