from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
from hypothesis import given
from hypothesis import strategies as st

import seedbed as sb
from seedbed.observe.history import History, parse_history, thin
from seedbed.observe.progress import ProgressState
from seedbed.store.history import HistoryFile, history_runs, read_history

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


@given(st.lists(st.floats(0.01, 60), min_size=1, max_size=300))
def test_old_points_are_fewer(gaps: list[float]) -> None:
    """The first and the last point stay, the order too; two old points are at least a hundredth of their age apart."""
    instants = [sum(gaps[: at + 1]) for at in range(len(gaps))]
    points = [(instant, b"x") for instant in instants]
    now = instants[-1]
    left = [instant for instant, _ in thin(points, now)]
    assert (left[0], left[-1]) == (instants[0], now)
    assert left == sorted(left)
    assert all(later - earlier >= (now - later) / 100 for earlier, later in pairwise(left[:-1]))


def test_a_day_has_few_points() -> None:
    """A run of a day that is thinned as it goes keeps about a thousand points."""
    points: list[tuple[float, bytes]] = []
    for second in range(86_400):
        points.append((float(second), b""))
        if len(points) > 2_000:
            points = thin(points, float(second))
    assert len(thin(points, 86_400.0)) < 1_100


def test_a_build_writes_its_log(tmp_path: Path) -> None:
    """The log of a run has what its graph needs, snapshots, and at its end the report; each run has its own."""
    out = tmp_path / "data"
    columns = [sb.Column("a", _one), sb.Column("b", _fails_sometimes)]
    config = sb.RunConfig(shutdown_error_rate=1.0)
    sb.build(columns, rows=40, out=out, config=config)
    sb.build(columns, rows=60, out=out, config=config, resume=True)
    assert history_runs(out) == [1, 2]
    header, *points, end = read_history(out, 1)
    assert [column["name"] for column in header["columns"]] == ["a", "b"]
    assert header["columns"][1]["requires"] == ["a"]
    assert points[-1]["finished"]
    assert points[-1]["written"] + points[-1]["dropped"] == 40
    assert end["report"]["attempts"]["a"] == 40
    assert read_history(out, 2)[0]["rows"] == 60


async def _one(context: sb.CellContext) -> int:
    return context.row or 0


async def _fails_sometimes(a: int) -> int:
    if a % 4 == 0:
        raise ValueError("a multiple of four")
    return a


def test_a_log_that_was_cut_off(tmp_path: Path) -> None:
    """Of a log whose writer died, or that holds anything else, the lines that are whole and objects are read."""
    data = b'{"started": 1}\n{"t": 0.5}\n[1]\nnot json\n{"t": 1.0}\n{"t": 1.'
    assert parse_history(data) == [{"started": 1}, {"t": 0.5}, {"t": 1.0}]


class FullDisk:
    """A file that takes nothing."""

    def append(self, data: bytes) -> None:
        raise OSError("no space left")

    replace = append


def test_a_disk_that_is_full_ends_the_log_and_not_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The build goes on without its log."""
    monkeypatch.setattr(HistoryFile, "replace", FullDisk.replace)
    assert sb.build([sb.Column("a", _one)], rows=10, out=tmp_path / "data").rows == 10
    assert history_runs(tmp_path / "data") == []


def test_the_log_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """A reader has the old log or the new one; what a dead process left is removed, and old runs are too many."""
    file = HistoryFile(tmp_path)
    file.replace(b'{"t": 1}\n')
    file.append(b'{"t": 2}\n')
    file.replace(b'{"t": 3}\n')
    file.append(b'{"t": 4}\n')
    file.close()
    assert read_history(tmp_path, 1) == [{"t": 3}, {"t": 4}]
    (tmp_path / ".seedbed/history/.run_0001.jsonl.0123456789ab.tmp").write_bytes(b"half")
    for _ in range(25):
        another = HistoryFile(tmp_path)
        another.replace(b"{}\n")
        another.close()
    assert history_runs(tmp_path) == list(range(7, 27))
    assert not [path for path in (tmp_path / ".seedbed/history").iterdir() if path.name.endswith(".tmp")]


def test_a_snapshot_is_json() -> None:
    """A snapshot of a run that has not begun can be written too."""
    written: list[bytes] = []

    class File:
        def append(self, data: bytes) -> None:
            written.append(data)

        replace = append

    History(ProgressState(), File(), {"title": "x"}, counts=True).show()
    (data,) = written
    header, point = map(json.loads, data.splitlines())
    assert header["title"] == "x"
    assert point["t"] == 0
    assert msgspec.json.decode(data.splitlines()[1]) == point
