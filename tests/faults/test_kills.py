"""Real builds killed with SIGKILL, at named points and at any instant, resumed, and killed again."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
from harness import POINTS, Made, check_frame, open_trial, processes_of
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st
from shape_strategies import shapes
from shapes import PLAIN, ColumnShape, Shape

import seedbed as sb
from seedbed.store.manifest import read

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness import Builds, Cell, Running, Trial

pytestmark = pytest.mark.skipif(not hasattr(os, "fork") or sys.platform != "linux", reason="needs fork and /proc")

# Dozens of processes in the usual run, hundreds in the thorough one. They are not shrunk: the instants would be others.
KILLS = settings(
    max_examples=settings.default.max_examples // 8,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    deadline=None,
)
SHAPED = settings(KILLS, max_examples=settings.default.max_examples // 16)

# With drops the journal stays, without it goes.
CLEAN = attrs.evolve(PLAIN, columns=tuple(attrs.evolve(column, bad={2: (500, 1)}) for column in PLAIN.columns))


def uninterrupted(builds: Builds, directory: Path, shape: Shape) -> Made:
    """The dataset of a run that nothing happens to."""
    with open_trial(builds, directory, shape, latency=0) as trial:
        assert trial.run().through["written"] == sb.Dataset.open(trial.out).raw().rows
        return Made.read(trial.out)


@pytest.fixture(scope="module")
def plain(builds: Builds, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """What `PLAIN` gives."""
    return uninterrupted(builds, tmp_path_factory.mktemp("plain"), PLAIN)


@pytest.fixture(scope="module")
def points(builds: Builds, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Every point that a run of `PLAIN` reaches, in order and as often as it does."""
    with open_trial(builds, tmp_path_factory.mktemp("points"), PLAIN, commit_interval=0.005) as trial:
        return [each["point"] for each in trial.run(tell_points=True).said if "point" in each]


def check(trial: Trial, expected: Made) -> None:
    """All that must hold once a run got through."""
    trial.check_paid_once()
    trial.check_dataset(expected)


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_every_named_point(
    point: str, builds: Builds, plain: Made, points: list[str], tmp_path: Path
) -> None:
    """Killed in the middle of its work or at the last time that it gets to a point, it can be resumed."""
    reached = points.count(point)
    for nth in sorted({(reached + 1) // 2, reached} - {0}):
        with open_trial(builds, tmp_path / str(nth), PLAIN, commit_interval=0.005) as trial:
            trial.run(kill={"point": point, "nth": nth})
            trial.run(kill={"point": point, "nth": 1})
            trial.run().through  # noqa: B018  it asserts
            check(trial, plain)


@KILLS
@given(when=st.lists(st.floats(0, 1), min_size=1, max_size=3), interval=st.sampled_from([0.0, 0.002, 0.05]))
def test_killed_at_any_instant(builds: Builds, plain: Made, when: list[float], interval: float) -> None:
    """Killed at random instants, again and again: the dataset is the same, and nothing durable is paid for twice."""
    with (
        tempfile.TemporaryDirectory() as directory,
        open_trial(builds, Path(directory), PLAIN, latency=0.02, commit_interval=interval) as trial,
    ):
        for share in when:
            trial.run(after(share * 0.25))
        trial.run().through  # noqa: B018
        note(f"runs ended with {[ended.status for ended in trial.runs]}")
        check(trial, plain)


def after(seconds: float) -> Callable[[Running], None]:
    """Kill a build when so much time has passed."""

    def act(running: Running) -> None:
        time.sleep(seconds)
        running.kill()

    return act


REDO = {"options": {"redo": ["a"]}}


@settings(KILLS, max_examples=settings.default.max_examples // 32)
@given(
    when=st.lists(st.floats(0, 1) | st.integers(1, 60), min_size=1, max_size=3),
    interval=st.sampled_from([0.0, 0.002, 0.05]),
)
def test_a_redo_killed_at_any_instant(builds: Builds, when: list[float | int], interval: float) -> None:
    """Killed at random instants and points: readers see a whole dataset, and nothing durable is paid for twice."""
    with (
        tempfile.TemporaryDirectory() as directory,
        open_trial(builds, Path(directory), CLEAN, latency=0.02, commit_interval=interval) as trial,
    ):
        trial.run().through  # noqa: B018
        expected = Made.read(trial.out)
        durable: set[Cell] = set()
        for kill in when:
            if isinstance(kill, int):
                trial.run(kill={"point": "any point", "nth": kill}, **REDO)
            else:
                trial.run(after(kill * 0.25), **REDO)
            check_frame(sb.Dataset.open(trial.out).to_polars(), expected.frame)
            assert not durable & set(trial.requests(len(trial.runs) - 1))
            is_pending = read(trial.out).pending is not None
            durable = trial.durable(len(trial.runs) - 1) if is_pending else set()
        trial.run(**({} if durable else REDO)).through  # noqa: B018
        assert not durable & set(trial.requests(len(trial.runs) - 1))
        trial.check_dataset(expected)


@SHAPED
@given(shape=shapes(), kills=st.lists(st.integers(1, 60), min_size=1, max_size=3))
def test_recipes_of_every_shape(builds: Builds, shape: Shape, kills: list[int]) -> None:
    """Whatever the recipe, the run and its resumptions can be killed at any point of the store's work."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        expected = uninterrupted(builds, directory / "whole", shape)
        with open_trial(builds, directory / "killed", shape, commit_interval=0.001) as trial:
            for nth in kills:
                trial.run(kill={"point": "any point", "nth": nth})
            trial.run().through  # noqa: B018
            note(f"runs ended with {[ended.status for ended in trial.runs]}")
            check(trial, expected)


def test_what_was_answered_is_durable_while_the_run_waits(builds: Builds, tmp_path: Path) -> None:
    """Everything that was answered becomes durable without anything else happening; only what hangs is sent again."""
    shape = Shape(rows=8, buffer_size=4, columns=(ColumnShape(name="a", type="model"),))
    hanging = {("a", 3), ("a", 6)}
    with open_trial(builds, tmp_path, shape, hang=hanging) as trial:

        def wait_and_kill(running: Running) -> None:
            trial.wait_for(lambda: trial.durable_cells() == 8 + 6)  # the column `n` too
            running.kill()

        assert trial.run(wait_and_kill).killed
        trial.let_go()
        trial.run().through  # noqa: B018
        assert set(trial.requests(0)) == {("a", n) for n in range(8)}
        assert set(trial.requests(1)) == hanging


def test_processes_of_a_killed_run_end_too(builds: Builds, tmp_path: Path) -> None:
    """Worker processes do not outlive the run that had them, whether it is killed or gets through."""
    shape = Shape(
        rows=8,
        buffer_size=4,
        columns=(ColumnShape(name="p", type="process"), ColumnShape(name="a", type="model", requires=("p",))),
    )
    with open_trial(builds, tmp_path, shape, hang={("a", 5)}, max_processes=2) as trial:

        def kill(running: Running) -> None:
            trial.wait_for(lambda: trial.finished_calls() == 7)
            assert len(processes_of(running.pid, patience=0)) > 1  # `run` looks that there are none afterwards
            running.kill()

        assert trial.run(kill).killed
        trial.let_go()
        trial.run().through  # noqa: B018
        trial.check_paid_once()


def test_a_finished_dataset_leaves_no_journal(builds: Builds, tmp_path: Path) -> None:
    """Without drops nothing but the dataset and its recipe stays behind, also after a kill."""
    with open_trial(builds, tmp_path, CLEAN, commit_interval=0.005) as trial:
        trial.run(kill={"point": "record synced", "nth": 6})
        trial.run().through  # noqa: B018
        made = Made.read(trial.out)
    parts = {part.name for part in sb.Dataset.open(trial.out).parts}
    provenance = {f"provenance/{Path(name).stem}.part" for name in parts}
    private = {"lock", "manifest.log", "parts", "recipe.yaml", "history", "provenance", *provenance}
    assert made.files == {*parts, ".seedbed", *(f".seedbed/{name}" for name in private)}
    assert made.lost == set()
