"""Counts of a plan server, as Prometheus reads them, summed over the processes behind one port."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from ...observe.metrics import exposition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from ...observe.metrics import Label, Samples

BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

HELP: Final[Mapping[str, tuple[str, str]]] = {
    "seedbed_plan_requests_total": ("counter", "Answered requests by plan and code; OK or the code of the error."),
    "seedbed_plan_request_seconds": ("histogram", "Seconds from the head of a request to its answer, by plan."),
    "seedbed_plan_partial_total": ("counter", "Answers without some nodes, by plan."),
    "seedbed_plan_reloads_total": ("counter", "Versions of plans that replaced an earlier one."),
    "seedbed_plan_reload_failures_total": ("counter", "Files that were not taken over because of a problem."),
    "seedbed_requests_running": ("gauge", "Requests that run."),
    "seedbed_requests_queued": ("gauge", "Requests that wait for a slot."),
    "seedbed_threads_busy": ("gauge", "Threads that work on CPU nodes."),
    "seedbed_processes": ("gauge", "Processes that answer requests."),
    "seedbed_endpoint_commands_total": ("counter", "Commands sent to an endpoint."),
    "seedbed_endpoint_sends_total": ("counter", "Writes to connections of an endpoint; many commands share one."),
    "seedbed_endpoint_errors_total": ("counter", "Calls that ended in an error of the endpoint."),
    "seedbed_endpoint_connections": ("gauge", "Open connections of an endpoint."),
    "seedbed_endpoint_in_flight": ("gauge", "Commands of an endpoint without a reply yet."),
}

_STALE: Final = 5.0  # seconds after which the gauges of another process do not count any more


def _kind(name: str) -> str:
    found = HELP.get(name) or HELP.get(name.rpartition("_")[0])
    return "counter" if found is None else found[0]


def write_samples(folder: Path, samples: Samples) -> None:
    """Store the samples of this process for the others; the next call replaces them."""
    file = folder / f"{os.getpid()}.json"
    staged = file.with_suffix(".tmp")
    with contextlib.suppress(OSError):
        staged.write_text(json.dumps([[name, labels, value] for (name, labels), value in samples.items()]))
        staged.replace(file)


def read_samples(folder: Path) -> list[Samples]:
    """What the other processes stored. Of one that has ended only counters are left, so that no counter falls."""
    found: list[Samples] = []
    for file in folder.glob("*.json"):
        if file.stem == str(os.getpid()):
            continue
        try:
            is_stale = time.time() - file.stat().st_mtime > _STALE
            stored = json.loads(file.read_bytes())
        except (OSError, ValueError):
            continue
        samples = {(name, tuple((key, text) for key, text in labels)): value for name, labels, value in stored}
        found.append({key: value for key, value in samples.items() if not (is_stale and _kind(key[0]) == "gauge")})
    return found


def exposition_of(all_samples: Iterable[Samples]) -> str:
    """The sums of samples in Prometheus' text format."""
    total: Counter[tuple[str, tuple[Label, ...]]] = Counter()
    for samples in all_samples:
        total.update(samples)
    return exposition(HELP, total)
