"""Ctrl-C and SIGTERM to the real command: what was answered is stored, whatever the commit interval."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from harness import Made, open_trial
from shapes import ColumnShape, Shape, make_recipe

from seedbed.recipe.file import recipe_text

if TYPE_CHECKING:
    from pathlib import Path

    from harness import Builds, Cell, Running, Trial

pytestmark = pytest.mark.skipif(not hasattr(os, "fork") or sys.platform != "linux", reason="needs fork and /proc")

SHAPE = Shape(
    rows=12,
    buffer_size=4,
    columns=(
        ColumnShape(name="topic", type="category"),
        ColumnShape(name="a", type="model", requires=("topic",)),
        ColumnShape(name="b", type="model", requires=("a",), bad={5: (400, None)}),
    ),
)
HANGING: set[Cell] = {("a", 2), ("b", 7), ("b", 8)}
# Nothing is committed by time or count: only an orderly stop does it.
NEVER = ["--option", "commit_interval=3600", "--option", "commit_count=1000000"]
BOTH = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


@pytest.fixture(scope="module")
def whole(builds: Builds, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """What the shape gives."""
    with open_trial(builds, tmp_path_factory.mktemp("whole"), SHAPE, latency=0) as trial:
        trial.run().through  # noqa: B018
        return Made.read(trial.out)


def command(trial: Trial, *options: str) -> list[str]:
    """`seedbed run` of the shape."""
    path = trial.out.parent / "recipe.yaml"
    path.write_text(recipe_text(make_recipe(trial.shape, url=trial.server.url)), encoding="utf-8")
    return [
        "run", str(path), "--rows", str(SHAPE.rows), "--out", str(trial.out), "--allow-code",
        "--buffer-size", str(SHAPE.buffer_size), *options,
    ]  # fmt: skip


def wait_until_idle(trial: Trial) -> None:
    """Wait until everything that is answered has been answered, and only the hanging calls are there."""
    asked = {("a", n) for n in range(SHAPE.rows)} | {("b", n) for n in range(SHAPE.rows) if n != 2}
    trial.wait_for(lambda: set(trial.requests(0)) == asked and trial.server.statistics.in_flight == len(HANGING))
    # An answer that was sent is not yet one that has arrived: the calls in flight are known by both sides.
    trial.wait_for(lambda: trial.finished_calls() == len(asked) - len(HANGING))


def go_on(trial: Trial, log: str, whole: Made) -> list[Cell]:
    """Run the command of the message; returns the cells that it sends."""
    found = re.search(r"seedbed (resume .*)", log)
    assert found is not None, log
    assert shlex.split(found[1])[1] == str(trial.out)
    before = len(trial.server.requests)
    trial.let_go()
    ended = trial.run(arguments=shlex.split(found[1]))
    assert ended.status == 0, ended.log
    trial.check_dataset(whole)
    return trial.cells_since(before)


@BOTH
def test_one_signal_lets_calls_end_and_saves_their_answers(
    number: int, builds: Builds, whole: Made, tmp_path: Path
) -> None:
    """What is answered within `grace` is stored; the message says how to continue, and nothing is sent twice."""
    with open_trial(builds, tmp_path, SHAPE, hang=HANGING) as trial:

        def stop(running: Running) -> None:
            wait_until_idle(trial)
            running.signal(number)
            trial.wait_for(lambda: trial.said_event("StopRequested"))
            trial.release(HANGING)

        ended = trial.run(stop, arguments=command(trial, "--option", "grace=60", *NEVER), whole_exit=True)
        assert ended.status == 130, ended.log
        assert ended.log.count("to resume:") == 1
        assert "Traceback" not in ended.log
        again = go_on(trial, ended.log, whole)
    assert again == [("b", 2)]  # nothing new was begun


@BOTH
def test_the_second_signal_still_loses_only_the_wire(number: int, builds: Builds, whole: Made, tmp_path: Path) -> None:
    """Two signals end it at once: what had been answered is stored, and exactly what was on the wire is sent again."""
    with open_trial(builds, tmp_path, SHAPE, hang=HANGING) as trial:

        def stop(running: Running) -> None:
            wait_until_idle(trial)
            running.signal(number)
            trial.wait_for(lambda: trial.said_event("StopRequested"))
            running.signal(number)

        ended = trial.run(stop, arguments=command(trial, "--option", "grace=3600", *NEVER), whole_exit=True)
        assert ended.status == 130, ended.log
        again = go_on(trial, ended.log, whole)
    assert sorted(again) == sorted([*HANGING, ("b", 2)])


def test_grace_that_runs_out(builds: Builds, whole: Made, tmp_path: Path) -> None:
    """Calls that do not end in time are abandoned; the rest is stored."""
    with open_trial(builds, tmp_path, SHAPE, hang=HANGING) as trial:

        def stop(running: Running) -> None:
            wait_until_idle(trial)
            running.signal(signal.SIGTERM)

        ended = trial.run(stop, arguments=command(trial, "--option", "grace=0.05", *NEVER), whole_exit=True)
        assert ended.status == 130, ended.log
        again = go_on(trial, ended.log, whole)
    assert sorted(again) == sorted([*HANGING, ("b", 2)])


def test_usage_is_counted_across_runs(builds: Builds, tmp_path: Path) -> None:
    """After a stop and a resume the report has every call that was answered, once."""
    with open_trial(builds, tmp_path, SHAPE, hang=HANGING, grace=0) as trial:

        def stop(running: Running) -> None:
            wait_until_idle(trial)
            running.signal(signal.SIGTERM)

        assert trial.run(stop).status == 130
        trial.let_go()
        said = trial.run().through
        assert said["calls"] == trial.answered().total()
        assert trial.answered().most_common(1)[0][1] == 1
        assert said["lost"] == [[5, "b", 1]]


def test_attempts_are_counted_across_runs(builds: Builds, tmp_path: Path) -> None:
    """A cell that had failed twice before a stop has one attempt left after it."""
    shape = Shape(
        rows=4,
        buffer_size=2,
        columns=(ColumnShape(name="a", type="model", bad={1: (500, None)}), ColumnShape(name="b", type="model")),
    )
    with open_trial(builds, tmp_path, shape, hang={("a", 1): 3}, grace=0) as trial:

        def stop(running: Running) -> None:
            trial.wait_for(lambda: trial.requests(0)["a", 1] == 3 and trial.finished_calls() == 9)
            running.signal(signal.SIGTERM)

        assert trial.run(stop).status == 130
        trial.let_go()
        assert trial.run().through["lost"] == [[1, "a", 3]]
        assert (trial.requests(0)["a", 1], trial.requests(1)["a", 1]) == (3, 1)
        assert trial.requests(1).total() == 1
