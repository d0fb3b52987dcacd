"""Task traces as Chrome's trace format, which Perfetto and chrome://tracing show as a timeline."""

from __future__ import annotations

import heapq
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from .trace import TaskTrace


def write_chrome_trace(traces: Sequence[TaskTrace], path: Path) -> None:
    """Write the traces of a build (`BuildReport.traces`) to a file, an event a line."""
    with path.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [')
        for index, event in enumerate(chrome_events(traces)):
            file.write(("," if index else "") + "\n" + json.dumps(event, ensure_ascii=False))
        file.write("\n]}\n")


def chrome_events(traces: Sequence[TaskTrace]) -> Iterator[dict[str, Any]]:
    """The events of a trace: a process for each column, a track for as many tasks of it as ran at once.

    A task is a bar from the moment it was taken to its end; the wait from ready to taken is an event of its own on a
    second set of tracks, so that a queue is seen as what it is. Times are microseconds from the first instant.
    """
    if not traces:
        return
    origin = min(trace.ready for trace in traces)
    columns = list(dict.fromkeys(trace.column for trace in traces))
    for process, column in enumerate(columns, start=1):
        yield _named("process_name", process, 0, column)
        of_column = [trace for trace in traces if trace.column == column]
        waits = [(trace.ready, trace.submitted, trace) for trace in of_column if trace.submitted > trace.ready]
        runs = [(trace.submitted, trace.finished, trace) for trace in of_column]
        first_wait = 0
        for track, begin, end, trace in _tracks(runs):
            first_wait = max(first_wait, track)
            yield _bar(trace, (process, track), begin - origin, end - origin, trace.status)
        for track, begin, end, trace in _tracks(waits):
            yield _bar(trace, (process, first_wait + track), begin - origin, end - origin, "waiting")
        yield from (_named("thread_name", process, track, "running") for track in range(1, first_wait + 1))


def _tracks(
    spans: Iterable[tuple[float, float, TaskTrace]],
) -> Iterator[tuple[int, float, float, TaskTrace]]:
    """Put each span on the lowest track, counted from 1, that is free when it begins."""
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    count = 0
    for begin, end, trace in sorted(spans, key=lambda span: span[:2]):
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            track = heapq.heappop(free)
        else:
            count += 1
            track = count
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
        "args": {
            "column": trace.column,
            "kind": trace.kind,
            "row_group": trace.row_group,
            "row": trace.row,
            "attempt": trace.attempt,
            "status": trace.status,
        },
    }


def _named(what: str, process: int, track: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": track, "args": {"name": name}}
