"""Builds of exactly N accepted rows that are killed, at named points and at any instant, and resumed."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import polars as pl
import pytest
from harness import POINTS, check_frame, open_trial
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st
from shapes import ColumnShape, Shape

import seedbed as sb

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness import Builds, Running, Trial

pytestmark = pytest.mark.skipif(not hasattr(os, "fork") or sys.platform != "linux", reason="needs fork and /proc")

KILLS = settings(
    max_examples=settings.default.max_examples // 20,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    deadline=None,
)

ACCEPTED = Shape(
    rows=24,
    buffer_size=6,
    columns=(
        ColumnShape(name="topic", type="category"),
        ColumnShape(name="a", type="model", requires=("topic",), bad={4: (500, 1), 12: (400, None), 18: (500, None)}),
        ColumnShape(name="b", type="model", requires=("a",)),
        ColumnShape(name="count", type="kept"),
    ),
    accept={"accept": "(a[-1] in '0123456789') and n % 3 != 1", "unique": ["topic", "count"]},
)
"""A model column that decides, one that is generated for accepted rows only, and a stateful column."""


def wanted(shape: Shape, builds: Builds, directory: Path) -> pl.DataFrame:
    """The dataset of a run that nothing happens to."""
    with open_trial(builds, directory, shape, latency=0) as trial:
        assert trial.run().through["written"] == shape.rows
        return check(trial, None)


def check(trial: Trial, expected: pl.DataFrame | None, *, is_retried: bool = False) -> pl.DataFrame:
    """All that must hold once a run got through; returns the dataset."""
    dataset = sb.Dataset.open(trial.out)
    assert dataset.complete
    dataset.verify()
    assert not dataset.damage()
    frame = dataset.to_polars()
    assert frame.height == trial.shape.rows
    assert pl.read_parquet(trial.out / "*.parquet").height == frame.height
    assert not [path.name for path in trial.out.rglob("*") if path.name.endswith(".tmp")]
    report = dataset.report
    kept = report.written + report.surplus + report.rejected + report.removed
    assert report.candidates + report.added == kept + len(report.dropped) + sum(map(len, report.unfinished))
    if not is_retried:  # else what had failed is asked for again
        trial.check_paid_once()
    # What the rule does not need is asked for accepted rows only.
    accepted = {row for row in range(1000) if row % 3 != 1}
    assert {row for column, row in trial.answered() if column == "b"} <= accepted
    if expected is not None:
        check_frame(frame, expected)
    return frame


@pytest.fixture(scope="module")
def undisturbed(builds: Builds, tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    """What `ACCEPTED` gives."""
    return wanted(ACCEPTED, builds, tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture(scope="module")
def points(builds: Builds, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Every point that a run of `ACCEPTED` reaches."""
    with open_trial(builds, tmp_path_factory.mktemp("points"), ACCEPTED, commit_interval=0.005) as trial:
        return [each["point"] for each in trial.run(tell_points=True).said if "point" in each]


def test_a_run_decides_and_lists_rows(points: list[str]) -> None:
    """The points between two writes of a decision are reached."""
    assert {"rows decided", "rows listed", "part renamed"} <= set(points) <= set(POINTS)


@pytest.mark.parametrize("point", ["rows decided", "rows listed", "part renamed", "part listed", "record written"])
def test_killed_between_two_writes(
    point: str, builds: Builds, undisturbed: pl.DataFrame, points: list[str], tmp_path: Path
) -> None:
    """Killed in the middle and at the last time, again and again: exactly N rows, the same ones."""
    reached = points.count(point)
    for nth in sorted({(reached + 1) // 2, reached} - {0}):
        with open_trial(builds, tmp_path / str(nth), ACCEPTED, commit_interval=0.005) as trial:
            trial.run(kill={"point": point, "nth": nth})
            trial.run(kill={"point": point, "nth": 1})
            trial.run().through  # noqa: B018  it asserts
            check(trial, undisturbed)


@KILLS
@given(when=st.lists(st.floats(0, 1), min_size=1, max_size=3), interval=st.sampled_from([0.0, 0.002, 0.05]))
def test_killed_at_any_instant(builds: Builds, undisturbed: pl.DataFrame, when: list[float], interval: float) -> None:
    """Killed at random instants: the dataset is the same, and nothing durable is paid for twice."""
    with (
        tempfile.TemporaryDirectory() as directory,
        open_trial(builds, Path(directory), ACCEPTED, latency=0.02, commit_interval=interval) as trial,
    ):
        for share in when:
            trial.run(after(share * 0.3))
        trial.run().through  # noqa: B018
        note(f"runs ended with {[ended.status for ended in trial.runs]}")
        check(trial, undisturbed)


def after(seconds: float) -> Callable[[Running], None]:
    """Kill a build when so much time has passed."""

    def act(running: Running) -> None:
        time.sleep(seconds)
        running.kill()

    return act


def test_a_growth_that_is_killed_continues(builds: Builds, undisturbed: pl.DataFrame, tmp_path: Path) -> None:
    """The dataset grows from its surplus and from row groups that an earlier run had begun; killed in between."""
    grown = attrs.evolve(ACCEPTED, rows=40)
    expected = wanted(grown, builds, tmp_path / "whole")
    for point in ("header replaced", "rows listed", "rows decided"):
        with open_trial(builds, tmp_path / point.replace(" ", "-"), ACCEPTED, commit_interval=0.005) as trial:
            trial.run().through  # noqa: B018
            check(trial, undisturbed)
            trial.shape = grown
            trial.run(kill={"point": point, "nth": 1})
            trial.run().through  # noqa: B018
            check(trial, expected)


def test_a_retry_that_is_killed_adds_surplus_once(builds: Builds, undisturbed: pl.DataFrame, tmp_path: Path) -> None:
    """Dropped candidates that a retry rescues are surplus; a kill between part and decision changes nothing."""
    for point in ("part listed", "rows decided"):
        with open_trial(builds, tmp_path / point.replace(" ", "-"), ACCEPTED, commit_interval=0.005) as trial:
            trial.run().through  # noqa: B018
            before = sb.Dataset.open(trial.out).report
            assert before.dropped
            trial.heal()
            trial.run(kill={"point": point, "nth": 1}, retry_dropped=True)
            trial.run(retry_dropped=True).through  # noqa: B018
            check(trial, undisturbed, is_retried=True)
            after = sb.Dataset.open(trial.out).report
            assert not after.dropped
            assert after.written == before.written
            assert after.surplus + after.rejected == before.surplus + before.rejected + len(before.dropped)
