"""Progress for pipes and log files: one line now and then that says everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .show import duration, money, per_second, would_wait

if TYPE_CHECKING:
    from typing import TextIO

    from .progress import ColumnView, KeyView, Progress


class Lines:
    """Writes one line every `interval` seconds, and one at the end."""

    def __init__(self, stream: TextIO, *, interval: float = 10.0) -> None:
        self._stream = stream
        self.interval = interval
        self._begun = False

    def show(self, progress: Progress) -> None:
        if not self._begun:  # there is nothing to tell yet
            self._begun = True
            return
        if not would_wait(self._stream):
            self._write(progress)

    def close(self, progress: Progress) -> None:
        self._write(progress)

    def _write(self, progress: Progress) -> None:
        self._stream.write(progress_line(progress) + "\n")
        self._stream.flush()


def progress_line(progress: Progress) -> str:
    """All columns and keys of a run on one line."""
    head = f"[{duration(progress.elapsed)}] rows {progress.written}/{progress.rows} written"
    if progress.dropped:
        head += f", {progress.dropped} dropped"
    if progress.durable:
        head += f", {progress.durable} cells durable"
    if progress.stopping is not None:
        head += f", stopping: {progress.stopping}"
    parts = [head, *map(_column, progress.columns), *map(_key, progress.keys)]
    return " | ".join(" ".join(part.split()) for part in parts)


def _column(column: ColumnView) -> str:
    text = f"{column.name} {column.done}/{column.total} {column.percent}% {per_second(column.rate)}"
    if column.done < column.total:
        text += f" eta {duration(column.eta)}"
    text += f" {column.failed} failed"
    return text if not column.retried else f"{text} {column.retried} retried"


def _key(key: KeyView) -> str:
    limit = "–" if key.limit is None else key.limit
    text = f"{key.key}: {key.in_flight}/{limit} in flight, {key.refused} × 429, {key.tokens_per_second:,.0f} tokens/s"
    return text + f", cost {money(key.cost)}" if key.cost else text
