"""Builds with stages that are killed at any point, and resumed: the same rows in every stage, nothing paid twice."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
import trio
from snapshots import hooked
from staged import World, build, recipe, rows_of, same
from trio.testing import MockClock

import seedbed as sb
from seedbed.runtime import faults

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = Path(__file__).parent
INTERVAL = 0.05  # the default of `commit_interval`
# Of the first stage.
ROWS = 7


@attrs.frozen
class Snapshot:
    """What a kill would have left, and which cells had been answered when."""

    point: str
    directory: Path
    time: float
    delivered: dict[tuple[str, object], float]


def take_snapshots(out: Path, into: Path, wanted: Sequence[int] | None = None) -> list[Snapshot]:
    """Build and copy the directory at its fault points."""
    world, clock = World(), MockClock(autojump_threshold=0)
    found: list[Snapshot] = []
    count = 0

    def copy(point: str) -> None:
        nonlocal count
        count += 1
        if wanted is not None and count not in wanted:
            return
        target = into / str(count)
        if out.exists():
            shutil.copytree(out, target)
        found.append(Snapshot(point, target, clock.current_time(), dict(world.delivered)))

    async def main() -> None:
        async with sb.open_build(recipe(world), rows=ROWS, out=out) as running:
            await running.wait()

    with hooked(copy):
        trio.run(main, clock=clock)
    return found


def test_a_run_killed_at_its_fault_points_can_be_resumed(tmp_path: Path) -> None:
    """Every stage is as if nothing had happened, and no durable answer is paid for again."""
    build(recipe(World()), tmp_path / "whole", rows=ROWS)
    whole = rows_of(tmp_path / "whole")
    snapshots = take_snapshots(tmp_path / "run", tmp_path / "killed")
    points = {each.point for each in snapshots}
    assert "rows taken" in points
    assert len(snapshots) > 100
    chosen = [each for each in snapshots if each.point in ("rows taken", "manifest renamed")] + snapshots[::25]
    for snapshot in chosen:
        world = World(salt=3)
        build(recipe(world), snapshot.directory, rows=ROWS, resume=True)
        same(rows_of(snapshot.directory), whole)
        durable = {cell for cell, when in snapshot.delivered.items() if when < snapshot.time - INTERVAL - 1e-6}
        assert not durable & world.calls.keys(), snapshot.point
        assert sb.Dataset.open(snapshot.directory).damage() == ()


def test_killed_again_and_again(tmp_path: Path) -> None:
    """A process that is killed at named points and at random, in one directory, ends with the same rows."""
    whole, out = tmp_path / "whole", tmp_path / "out"
    run(whole, "none", 1)
    chance = random.Random(5)
    named = ["manifest renamed", "rows taken", "part listed", "journal committed", "rows taken", "record synced"]
    for point in named:
        assert run(out, point, chance.randint(1, 6)) in (-signal.SIGKILL, 0)
    for _ in range(3):
        process = start(out, "none", 1)
        time.sleep(chance.uniform(0.9, 1.6))
        process.kill()
        process.wait(60)
    assert run(out, "none", 1) == 0
    same(rows_of(out), rows_of(whole))


def start(out: Path, point: str, nth: int) -> subprocess.Popen[bytes]:
    """Start a build in a process of its own."""
    path = os.pathsep.join([str(Path(sb.__file__).parents[1]), str(HERE), str(HERE.parent)])
    command = [sys.executable, str(HERE / "staged_build.py"), str(out), point, str(nth)]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path})


def run(out: Path, point: str, nth: int) -> int:
    """The exit status of a build, negative if a signal ended it."""
    return start(out, point, nth).wait(60)


@pytest.mark.parametrize("point", ["rows taken", "part listed"])
def test_dropped_rows_that_are_retried_and_killed(point: str, tmp_path: Path) -> None:
    """Rows of a parent that succeed later are followed by their own, whenever the retry was killed."""
    lost = rows_of_whole(tmp_path / "whole")
    world = World(failing={("text", lost)})
    build(recipe(world), tmp_path / "out", rows=ROWS)
    world.failing.clear()
    build(
        recipe(World()), copied(tmp_path / "out", tmp_path / "undisturbed"), rows=ROWS, resume=True, retry_dropped=True
    )
    killed = copied(tmp_path / "out", tmp_path / "killed")
    with pytest.raises(BaseException), faults_at(point):  # noqa: B017, PT011  the fault, alone or in a group
        build(recipe(World()), killed, rows=ROWS, resume=True, retry_dropped=True)
    build(recipe(World(salt=2)), killed, rows=ROWS, resume=True, retry_dropped=True)
    same(rows_of(killed), rows_of(tmp_path / "undisturbed"))


def rows_of_whole(out: Path) -> int:
    """What the text of the second document is made from."""
    build(recipe(World()), out, rows=ROWS)
    found: int = rows_of(out)["docs"]["n"][1]
    return found


def copied(directory: Path, to: Path) -> Path:
    """A copy of a directory."""
    shutil.copytree(directory, to)
    return to


class Killed(BaseException):
    """Nothing after this point happens."""


class faults_at:  # noqa: N801  used as a function
    """Raise at a fault point during the block."""

    def __init__(self, point: str) -> None:
        self._point = point

    def __enter__(self) -> None:
        def hook(name: str) -> None:
            if name == self._point:
                raise Killed

        faults.hook = hook

    def __exit__(self, *_: object) -> None:
        faults.hook = None
