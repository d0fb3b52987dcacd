"""The event log of a run on disk: what a viewer in another process shows of it, while it runs and afterwards.

A log is lines of JSON: the header first, then snapshots of the run's progress, a few each second. They are appended
without waiting for the disk, so a process that dies loses nothing of them and the log costs next to nothing; a last
line that is cut off is ignored. Now and then the log is written anew with fewer of its old snapshots, so its size does
not grow with the length of the run.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import msgspec

from .display import Display

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .progress import ProgressState
    from .report import BuildReport

# The time between two snapshots of this age is at least its hundredth part: 460 snapshots of an hour, 800 of a day.
_SHARE = 100
# The log is written anew when this many lines were appended.
_REWRITE = 400
_REASONS = 20
_LONGEST = 500
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(dict[str, Any])


class LogFile(Protocol):
    """Where a log is written; its methods do not wait for the disk and may raise `OSError`."""

    def append(self, data: bytes) -> None: ...
    def replace(self, data: bytes) -> None: ...


class History(Display):
    """Writes the log of a run. An error, such as that of a full disk, ends the log and never the run."""

    interval = 0.25

    def __init__(self, state: ProgressState, file: LogFile, header: Mapping[str, Any], *, counts: bool) -> None:
        """Create the log; `counts` unless an earlier reader of the events counts them in `state`."""
        super().__init__(state)
        self.counts = counts
        self._file = file
        self._header = _ENCODER.encode({"started": time.time(), **header}) + b"\n"
        self._points: list[tuple[float, bytes]] = []
        self._appended = 0

    def show(self) -> None:
        self._add(snapshot(self.state))

    def show_end(self) -> None:
        if self._points:  # else the run ended before its first event
            self._add({**snapshot(self.state), "ended": time.time()})

    def add_report(self, report: BuildReport) -> None:
        """Append what only the run knows at its end."""
        if self._points:
            wasted = {name: attrs.asdict(each) for name, each in report.wasted.items()}
            line = {"wasted": wasted, "attempts": dict(report.attempts), "errors": dict(report.errors)}
            with suppress(OSError):
                self._file.append(_ENCODER.encode({"report": line}) + b"\n")

    def _add(self, point: Mapping[str, Any]) -> None:
        now, line = self.state.elapsed, _ENCODER.encode(point) + b"\n"
        self._points.append((now, line))
        self._appended += 1
        if len(self._points) == 1 or self._appended >= _REWRITE:
            self._points = thin(self._points, now)
            self._appended = 0
            self._file.replace(b"".join([self._header, *(each for _, each in self._points)]))
        else:
            self._file.append(line)


def thin(points: Sequence[tuple[float, bytes]], now: float) -> list[tuple[float, bytes]]:
    """Leave out points, the more the older they are; the first and the last one stay."""
    left = list(points[:1])
    for at, (instant, line) in enumerate(points[1:], 1):
        if at == len(points) - 1 or instant - left[-1][0] >= (now - instant) / _SHARE:
            left.append((instant, line))
    return left


def snapshot(state: ProgressState) -> dict[str, Any]:
    """The figures of a run at this instant; `state` is up to date."""
    reasons = state.drop_reasons.most_common(_REASONS)
    return {
        "t": round(state.elapsed, 3),
        "rows": state.rows,
        "written": state.written,
        "dropped": state.dropped,
        "durable": state.durable,
        "salvage_rounds": state.salvage_rounds,
        "tokens": state.tokens,
        "cost": state.cost,
        "predicted_cost": state.predicted_cost,
        "eta": state.eta,
        "stopping": state.stopping,
        "error": state.error,
        "finished": state.finished,
        "reasons": {reason[:_LONGEST]: count for reason, count in reasons},
        "groups": {f"{stage} {index}".lstrip(): round(share, 4) for (stage, index), share in state.open_groups.items()},
        "columns": {
            each.name: {
                "done": each.done,
                "total": each.total,
                "running": each.running,
                "failed": each.failed,
                "retried": each.retried,
                "rate": round(each.rate, 3),
                "eta": each.eta,
                "cost": each.cost,
            }
            for each in state.columns.values()
        },
        "keys": {
            each.key: {
                "name": each.name,
                "limit": each.limit,
                "in_flight": each.in_flight,
                "rate_limited": each.rate_limited,
                "calls": each.calls,
                "tokens": each.tokens,
                "tokens_per_second": round(each.tokens_per_second, 1),
                "cost": each.cost,
                "p50": each.latency(0.5),
                "p95": each.latency(0.95),
            }
            for each in state.keys.values()
        },
    }


def parse_history(data: bytes) -> list[dict[str, Any]]:
    """Return the lines of a log that are whole: the header, snapshots, and the report of a run that has ended.

    A log may come from someone else: what is not an object of the form that a writer writes is left out.
    """
    found: list[dict[str, Any]] = []
    for line in data.split(b"\n")[:-1]:
        with suppress(msgspec.MsgspecError, RecursionError):
            found.append(_DECODER.decode(line))
    return found
