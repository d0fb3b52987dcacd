"""Trying dropped rows again: exactly their missing cells are paid for, wherever the run that does it is killed."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import attrs
import pytest
from harness import Made, check_same, open_trial
from shapes import PLAIN, ColumnShape, Shape
from snapshots import World, check_paid_once, grow
from test_kill_points import INTERVAL, whole

import seedbed as sb

if TYPE_CHECKING:
    from pathlib import Path

    from harness import Builds

LOSING = Shape(
    rows=13,
    buffer_size=4,
    columns=(
        ColumnShape(name="topic", type="category"),
        ColumnShape(name="a", type="model", requires=("topic",), bad={3: (400, None)}),
        ColumnShape(name="f", type="function", requires=("a",)),
        ColumnShape(name="w", type="whole", requires=("f",)),
        ColumnShape(name="b", type="model", requires=("w",), bad={0: (500, None), 9: (400, None)}),
        ColumnShape(name="side", type="model", requires=("topic",)),
        ColumnShape(name="c", type="model", requires=("b",), bad={12: (400, None)}),
    ),
)
# What is missing of the rows that are lost: the cell that failed and those that need it.
MISSING = {("a", 3), ("b", 3), ("c", 3), ("b", 0), ("c", 0), ("b", 9), ("c", 9), ("c", 12)}


def healthy(shape: Shape) -> Shape:
    """The same where nothing fails any more."""
    return attrs.evolve(shape, columns=tuple(attrs.evolve(column, bad={}) for column in shape.columns))


def losing_run(out: Path) -> set[tuple[str, int]]:
    """Build a dataset that loses rows; what was answered in the meantime."""
    world = World(LOSING, latency=0)
    grow(world, out)
    assert {drop.row for drop in sb.Dataset.open(out).drops} == {0, 3, 9, 12}
    return set(world.delivered)


@pytest.mark.parametrize("post", [False, True])
def test_exactly_the_missing_cells_are_paid_for(post: bool, tmp_path: Path) -> None:
    """What was finished of a dropped row is not sent again, and the dataset is that of a run without drops."""
    shape = attrs.evolve(LOSING, post=post)
    world = World(shape)
    grow(world, tmp_path / "d")
    answered = set(world.delivered)
    again = World(healthy(shape))
    dataset, _ = grow(again, tmp_path / "d", retry_dropped=True)
    assert len(again.asked) == len(set(again.asked))
    assert not set(again.asked) & answered
    assert set(again.asked) >= MISSING
    check_same(tmp_path / "d", healthy(shape), whole(healthy(shape), tmp_path / "whole"))
    assert dataset.report is not None
    assert dataset.report.written == len(healthy(shape).written())


def test_rows_that_fail_again_are_dropped_again(tmp_path: Path) -> None:
    """Trying in vain changes nothing, can be done again, and still pays only for what is missing."""
    out = tmp_path / "d"
    answered = losing_run(out)
    before = Made.read(out)
    for _ in range(2):
        world = World(LOSING)
        grow(world, out, retry_dropped=True)
        assert not set(world.asked) & answered
        check_same(out, LOSING, before)
    again = World(healthy(LOSING))
    grow(again, out, retry_dropped=True)
    assert not set(again.asked) & answered
    check_same(out, healthy(LOSING), whole(healthy(LOSING), tmp_path / "whole"))


def test_drops_stay_dropped_without_the_option(tmp_path: Path) -> None:
    """Going on with a finished dataset asks for nothing."""
    losing_run(tmp_path / "d")
    world = World(healthy(LOSING))
    grow(world, tmp_path / "d")
    assert world.asked == []


def test_killed_at_every_point_of_another_try(tmp_path: Path) -> None:
    """A run that tries dropped rows again can be killed anywhere; another pays only for what is missing."""
    out = tmp_path / "d"
    answered = losing_run(out)
    expected = whole(healthy(LOSING), tmp_path / "whole")
    world = World(healthy(LOSING))
    _, snapshots = grow(world, out, into=tmp_path / "killed", retry_dropped=True)
    assert len(snapshots) > 10
    for snapshot in snapshots:
        after = world.since(snapshot)
        sb.Dataset.open(snapshot.directory).verify()  # a reader finds the old part or the new one
        grow(after, snapshot.directory, retry_dropped=True)
        assert not set(after.asked) & answered, snapshot
        check_paid_once(snapshot, after, INTERVAL)
        check_same(snapshot.directory, healthy(LOSING), expected)


@pytest.mark.skipif(not hasattr(os, "fork") or sys.platform != "linux", reason="needs fork and /proc")
def test_in_real_processes(builds: Builds, tmp_path: Path) -> None:
    """The same over HTTP: the server is sent exactly what is missing, although the try is killed once."""
    with open_trial(builds, tmp_path / "whole", healthy(PLAIN)) as trial:
        trial.run().through  # noqa: B018
        expected = Made.read(trial.out)
    with open_trial(builds, tmp_path / "lost", PLAIN, commit_interval=0.001) as trial:
        trial.run().through  # noqa: B018
        answered = set(trial.answered())
        trial.heal()
        trial.run(kill={"point": "journal committed", "nth": 2}, retry_dropped=True)
        trial.run(retry_dropped=True).through  # noqa: B018
        for run in (1, 2):
            assert not set(trial.requests(run)) & answered
        assert set(trial.requests(1)) | set(trial.requests(2)) == {("a", 11), ("b", 11), ("a", 17), ("b", 17)}
        trial.shape = healthy(PLAIN)
        trial.check_dataset(expected)
