from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import attrs
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from seedbed.observe.report import TaskTrace, chrome_events, profile_frame, traces_frame, write_chrome_trace
from seedbed.store.dataset import TRACES, load_traces, save_traces

if TYPE_CHECKING:
    from pathlib import Path


def trace(**fields: Any) -> TaskTrace:
    """A cell that waited two seconds for its permit and ran for two and a half."""
    given = {
        "kind": "cell",
        "column": "b",
        "row_group": 0,
        "row": 1,
        "attempt": 1,
        "status": "success",
        "ready": 10.0,
        "submitted": 12.0,
        "slot": None,
        "permit": 12.0,
        "started": 12.5,
        "finished": 15.0,
    }
    return TaskTrace(**{**given, **fields})


def test_waits_are_counted_by_their_reason() -> None:
    """Waiting counts as permit, slot or queue by what the task needed, and what follows as call."""
    found = {
        each.column: each
        for each in profile_frame(
            traces_frame(
                [
                    trace(column="with permit"),
                    trace(column="with slot", permit=None, slot=12.0),
                    trace(column="with neither", permit=None, status="permanent"),
                ]
            )
        )
    }
    assert list(found) == ["with permit", "with slot", "with neither"]
    parts = {name: (each.queue, each.slot, each.permit, each.call, each.parse) for name, each in found.items()}
    assert parts == {
        "with permit": (0.5, 0.0, 2.0, 2.5, 0.0),
        "with slot": (0.5, 2.0, 0.0, 2.5, 0.0),
        "with neither": (2.5, 0.0, 0.0, 2.5, 0.0),
    }
    assert [each.failed for each in found.values()] == [0, 0, 1]
    assert all(each.total == 5.0 for each in found.values())


def test_traces_of_all_runs_are_stored_with_the_dataset(tmp_path: Path) -> None:
    """Each run stores its traces in its own file, and the profile covers all of them."""
    assert profile_frame(load_traces(tmp_path)) == []
    save_traces([trace(), trace(row=None, finished=20.0)], tmp_path)
    save_traces([trace(row_group=7)], tmp_path)
    assert sorted(path.name for path in (tmp_path / TRACES).iterdir()) == ["run_0001.arrow", "run_0002.arrow"]
    (found,) = profile_frame(load_traces(tmp_path))
    assert (found.tasks, found.call, found.longest) == (3, 2.5 + 7.5 + 2.5, 7.5)


def test_calls_are_separated_from_parsing_if_the_trace_has_them(tmp_path: Path) -> None:
    """Seconds inside calls count as call, waits between them as permit, and the rest as parse."""
    path = save_traces([trace()], tmp_path)
    pl.read_ipc(path).with_columns(called=pl.lit(1.0), waited=pl.lit(0.5)).write_ipc(path)
    (found,) = profile_frame(load_traces(tmp_path))
    assert (found.permit, found.call, found.parse) == (2.5, 1.0, 1.0)


def test_a_run_without_tasks_has_a_profile(tmp_path: Path) -> None:
    """Without traces the profile is empty."""
    save_traces([], tmp_path)
    assert profile_frame(load_traces(tmp_path)) == []


spans = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10), st.integers(0, 10)), max_size=40)


@given(spans)
def test_bars_of_one_track_do_not_overlap(found: list[tuple[int, int, int]]) -> None:
    """Every task is one bar of its true length, and no two bars of a track overlap."""
    traces = [
        trace(
            row=row,
            ready=float(at),
            submitted=float(at + wait),
            started=float(at + wait),
            finished=float(at + wait + run),
        )
        for row, (at, wait, run) in enumerate(found)
    ]
    bars = [event for event in chrome_events(traces) if event["ph"] == "X"]
    running = [event for event in bars if event["cat"] == "success"]
    assert sorted(event["args"]["row"] for event in running) == list(range(len(traces)))
    tracks = defaultdict(list)
    for event in bars:
        tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for track in tracks.values():
        track.sort()
        assert all(before[1] <= after[0] for before, after in pairwise(track))


def test_the_file_is_what_perfetto_reads(tmp_path: Path) -> None:
    """The file is JSON with microseconds from the first instant and a named process for each column."""
    write_chrome_trace([trace(), attrs.evolve(trace(), column="c", attempt=2)], tmp_path / "trace.json")
    content = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))
    names = [event["args"]["name"] for event in content["traceEvents"] if event["name"] == "process_name"]
    assert names == ["b", "c"]
    bars = [event for event in content["traceEvents"] if event["ph"] == "X"]
    assert [(bar["name"], bar["cat"], bar["ts"], bar["dur"]) for bar in bars] == [
        ("group 0, row 1", "success", 2e6, 3e6),
        ("group 0, row 1", "waiting", 0.0, 2e6),
        ("group 0, row 1, attempt 2", "success", 2e6, 3e6),
        ("group 0, row 1, attempt 2", "waiting", 0.0, 2e6),
    ]


def test_no_traces_are_a_trace(tmp_path: Path) -> None:
    """A run that did nothing has an empty timeline."""
    write_chrome_trace([], tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"] == []
