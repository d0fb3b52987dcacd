"""Progress as short lines, for pipes and log files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .display import Display, would_wait
from .progress import candidates_text, duration, money, per_second, rows_text, shorten, shorten_end

if TYPE_CHECKING:
    from typing import TextIO

    from .progress import KeyProgress, ProgressState

# A line is shorter than this, whatever the names, reasons and numbers are.
WIDTH = 120
_SEPARATOR = " | "


class Lines(Display):
    """Writes one line every ten seconds, and one at the end."""

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
    """The run on one line: its rows, then as many of its columns and models as fit, unfinished columns first."""
    head = f"[{duration(progress.elapsed)}] rows {rows_text(progress, '{}/{}')} written"
    if accepted := candidates_text(progress):
        head += f", {accepted}"
    if progress.dropped:
        head += f", {progress.dropped} dropped"
    if progress.finished:
        return _joined([head, *_totals(progress)])
    if progress.stopping is not None:
        return shorten_end(f"{head}, stopping: {progress.stopping}", WIDTH - 1)
    columns = [column for column in progress.columns.values() if column.done < column.total]
    parts = []
    for column in sorted(columns, key=lambda column: column.done):
        text = f"{shorten(column.name, 24)} {column.percent}% {per_second(column.rate)} eta {duration(column.eta)}"
        text += f" {column.failed} failed" if column.failed else ""
        parts.append(f"{text} {column.retried} retried" if column.retried else text)
    keys = [_key_text(key) for key in progress.keys.values()]
    # The slowest column and the first model say the most.
    return _joined([head, *parts[:1], *keys[:1], *parts[1:], *keys[1:]])


def _totals(progress: ProgressState) -> list[str]:
    parts = [f"{progress.durable} cells durable"] if progress.durable else []
    if retried := sum(column.retried for column in progress.columns.values()):
        parts.append(f"{retried} retried")
    if progress.tokens:
        cached = f" ({progress.cached_tokens:,} cached)" if progress.cached_tokens else ""
        parts.append(f"{progress.tokens:,} tokens{cached}")
    if progress.cost:
        parts.append(f"cost {money(progress.cost)}")
    return parts


def _key_text(key: KeyProgress) -> str:
    text = f"{shorten(key.name, 24)}: {key.in_flight}/{'–' if key.limit is None else key.limit} in flight"
    if key.rate_limited:
        text += f", {key.rate_limited} × 429"
    if key.tokens:
        text += f", {key.tokens_per_second:,.0f} tokens/s"
    return f"{text}, cost {money(key.cost)}" if key.cost else text


def _joined(parts: list[str]) -> str:
    """As many of the parts as fit on a line, always the first."""
    line = shorten_end(parts[0], WIDTH - 1)
    for part in parts[1:]:
        if len(line) + len(_SEPARATOR) + len(part) < WIDTH:
            line += _SEPARATOR + part
    return line
