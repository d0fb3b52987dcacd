"""How calls went in real runs: profiles of columns, from task traces and from what was reported as used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import polars as pl

from ..errors import ConfigError
from ..observe.profile import traces_frame
from ..store.manifest import is_dataset
from ..store.manifest import read as read_manifest
from ..store.traces import load_traces
from .profiles import CallProfile, Measured
from .result import Probed

if TYPE_CHECKING:
    from pathlib import Path

    from ..observe.report import BuildReport

# Latencies that are kept of a column; more would not be told apart.
_KEPT = 2_000
# By column: calls, input tokens, output tokens.
Usage = Mapping[str, tuple[int, int, int]]


def measure_report(report: BuildReport) -> tuple[dict[str, CallProfile], Probed]:
    """The profiles of a run that has just been made with `trace=True`, and what it took."""
    usage = {name: (spent.calls, spent.input_tokens, spent.output_tokens) for name, spent in report.usage.items()}
    profiles = measure(traces_frame(report.traces), usage)
    probed = Probed(
        rows=report.rows,
        calls=sum(spent.calls for spent in report.usage.values()),
        tokens=sum(spent.tokens for spent in report.usage.values()),
        cost=sum(spent.cost for spent in report.usage.values()),
        seconds=report.seconds,
    )
    return profiles, probed


def measure_path(path: Path) -> Measured:
    """The profiles of an earlier run: a dataset's directory, or a file that `--trace` wrote."""
    if path.is_dir():
        if not is_dataset(path):
            raise ConfigError(f"{str(path)!r} holds no dataset whose run could be measured")
        usage, models = _spending(path)
        return Measured(profiles=measure(load_traces(path), usage), models=models)
    try:
        frame = _chrome(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{str(path)!r} is no timeline that --trace wrote, and no dataset") from None
    return Measured(profiles=measure(frame, {}))


def _spending(path: Path) -> tuple[dict[str, tuple[int, int, int]], dict[str, tuple[str, ...]]]:
    """What each column used, and of which models."""
    found: dict[str, tuple[int, int, int]] = {}
    models: dict[str, tuple[str, ...]] = {}
    spending = read_manifest(path).manifest.spending
    for column, model, calls, asked, answered, _ in spending.entries if spending is not None else ():
        before = found.get(column, (0, 0, 0))
        found[column] = (before[0] + calls, before[1] + asked, before[2] + answered)
        models[column] = (*models.get(column, ()), model)
    return found, models


def _chrome(document: Any) -> pl.DataFrame:
    """The bars of a timeline; it does not say how long calls took within a task, so all of it counts."""
    rows = [
        {
            "column": bar["args"]["column"],
            "status": bar["args"]["status"],
            "row_group": bar["args"]["row_group"],
            "row": bar["args"]["row"],
            "started": bar["ts"] / 1e6,
            "finished": (bar["ts"] + bar["dur"]) / 1e6,
            "called": 0.0,
        }
        for bar in document["traceEvents"]
        if bar["ph"] == "X" and bar["cat"] != "waiting"
    ]
    if not rows:
        raise ValueError("there are no bars")
    return pl.DataFrame(rows)


def measure(frame: pl.DataFrame | None, usage: Usage) -> dict[str, CallProfile]:
    """Profiles by column, of what is known: latencies and shares of traces, tokens and calls of usage."""
    found: dict[str, CallProfile] = {}
    if frame is not None:
        rows = frame.filter(pl.col("row").is_not_null()).select("row_group", "row").n_unique()
        for (column,), tasks in frame.group_by("column", maintain_order=True):
            found[str(column)] = _of_tasks(tasks, usage.get(str(column), (0, 0, 0))[0], rows)
    for column, (calls, asked, answered) in usage.items():
        if calls:
            tokens = CallProfile(input_tokens=asked / calls, output_tokens=answered / calls)
            found[column] = tokens.over(found.get(column, CallProfile()))
    return found


def _of_tasks(tasks: pl.DataFrame, calls: int, rows: int) -> CallProfile:
    running = pl.col("finished") - pl.col("started")
    done = tasks.filter(pl.col("status") == "success")
    if not done.height:
        return CallProfile()
    # A cell may have made several calls, of which only the sum is known.
    each = max(1.0, calls / done.height)
    seconds = done.select(pl.when(pl.col("called") > 0).then("called").otherwise(running) / each).to_series()
    if seconds.len() > _KEPT:
        seconds = seconds.sort().gather_every(seconds.len() // _KEPT)
    refusals = tasks.filter(pl.col("status") == "rate_limited")
    failed = tasks.filter(pl.col("status") == "retryable").height
    is_cell = tasks["row"].is_not_null().all()
    return CallProfile(
        latency={"choice": [round(value, 6) for value in seconds]},
        calls=each if calls else None,
        refused=refusals.height / tasks.height,
        failed=failed / tasks.height,
        refusal_latency=refusals.select(running.median()).item() if refusals.height else None,
        # Of a column without skip_when nobody asks.
        skipped=max(0.0, 1.0 - done.height / rows) if is_cell and rows else None,
    )
