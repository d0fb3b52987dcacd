"""Builds in virtual time that are killed at every point where the disk changes, and resumed from there."""

from __future__ import annotations

import tempfile
from pathlib import Path

import attrs
import pytest
from harness import POINTS, Made, check_frame, check_same
from hypothesis import given, note, settings
from hypothesis import strategies as st
from shape_strategies import shapes
from shapes import PLAIN, ColumnShape, Shape
from snapshots import Snapshot, World, check_paid_once, grow, hooked

import seedbed as sb
from seedbed.store.dataset import Dataset
from seedbed.store.manifest import is_dataset, read

COSTLY = settings(max_examples=settings.default.max_examples // 8)
# Points of stages and of accepted rows: test_stages_killed.py and test_accepted_kills.py reach them.
ELSEWHERE = {"rows taken", "rows decided", "rows listed"}
INTERVAL = 0.05  # the default of `commit_interval`

SMALL = attrs.evolve(PLAIN, rows=10, buffer_size=3)
LOSING = attrs.evolve(SMALL, columns=(*SMALL.columns, ColumnShape(name="last", type="model", bad={3: (400, None)})))
SAVED = attrs.evolve(LOSING, columns=(*SMALL.columns, ColumnShape(name="last", type="model")))
STATEFUL = Shape(
    rows=9,
    buffer_size=3,
    pre="both",
    post=True,
    after=True,
    columns=(
        ColumnShape(name="seed", type="seeded"),
        ColumnShape(name="a", type="model", bad={2: (500, 1), 5: (400, None)}),
        ColumnShape(name="count", type="counted", requires=("a",)),
        ColumnShape(name="kept", type="kept", requires=("a", "count")),
        ColumnShape(name="all", type="whole", requires=("kept",)),
        ColumnShape(name="b", type="model", requires=("all",), bad={7: (500, None)}),
    ),
)
# Nothing is left to do for a row group once its last stateful cell is made, so that it is written right then.
LATE = Shape(
    rows=12,
    buffer_size=2,
    pre="more",
    columns=(
        ColumnShape(name="a", type="model", bad={8: (400, None)}, skips=True),
        ColumnShape(name="kept", type="kept", requires=("a",)),
        ColumnShape(name="all", type="whole", requires=("kept",)),
    ),
)


def whole(shape: Shape, directory: Path) -> Made:
    """The dataset of a run that nothing happens to."""
    grow(World(shape), directory)
    return Made.read(directory)


def go_on(world: World, snapshot: Snapshot, expected: Made) -> None:
    """Resume from a snapshot, and look at everything."""
    after = world.since(snapshot)
    grow(after, snapshot.directory)
    check_paid_once(snapshot, after, INTERVAL)
    check_same(snapshot.directory, world.shape, expected)


@pytest.mark.parametrize("shape", [SMALL, STATEFUL, LATE], ids=["plain", "stateful", "stateful-last"])
def test_a_run_killed_at_its_fault_points_can_be_resumed(shape: Shape, tmp_path: Path) -> None:
    """At the points of a whole run: the same dataset, every row accounted for, and nothing durable paid for twice."""
    world, expected = World(shape), whole(shape, tmp_path / "whole")
    _, snapshots = grow(world, tmp_path / "run", into=tmp_path / "killed")
    assert len(snapshots) > 40
    # Neighbours differ little; which ones are tried differs from shape to shape, and hypothesis tries the rest.
    for snapshot in snapshots[world.shape.rows % 3 :: 3]:
        go_on(world, snapshot, expected)


def test_a_complete_directory_has_the_processed_rows(tmp_path: Path) -> None:
    """A directory killed at any point says that it is complete only if it reads as the processors returned it."""
    expected = whole(STATEFUL, tmp_path / "whole")
    _, snapshots = grow(World(STATEFUL), tmp_path / "run", into=tmp_path / "killed")
    seen = set()
    for snapshot in snapshots:
        if not is_dataset(snapshot.directory):
            continue
        dataset = Dataset.open(snapshot.directory)
        dataset.verify()
        seen.add(dataset.complete)
        if dataset.complete:
            check_frame(dataset.to_polars(), expected.frame)
    assert seen == {True, False}


def test_every_named_point_is_reached(tmp_path: Path) -> None:
    """There is no fault point that these tests pass by: those of a run, of a resume, of another try and of recovery."""
    world = World(SMALL)
    _, first = grow(world, tmp_path / "run", into=tmp_path / "first")
    _, recovered = recover(world, first[len(first) // 2], tmp_path / "recovered")
    grow(World(LOSING), tmp_path / "losing")
    _, retried = grow(World(LOSING), tmp_path / "losing", into=tmp_path / "retried", retry_dropped=True)
    _, regained = grow(World(SAVED), tmp_path / "losing", into=tmp_path / "regained", retry_dropped=True)
    _, published = grow(World(attrs.evolve(SMALL, after=True)), tmp_path / "after", into=tmp_path / "published")
    more = attrs.evolve(SMALL, columns=(*SMALL.columns, ColumnShape(name="more", type="expression")))
    _, changed = grow(World(more), tmp_path / "run", into=tmp_path / "changed")
    _, replaced = grow(World(SMALL), tmp_path / "run", into=tmp_path / "replaced", resume=False, overwrite=True)
    _, redone = grow(World(SMALL), tmp_path / "run", into=tmp_path / "redone", redo=["topic"])
    _, open_changed = grow(World(more), first[len(first) // 2 - 1].directory, into=tmp_path / "open")
    abandoned: list[str] = []
    with hooked(abandoned.append):
        assert sb.abandon_redo(next(each.directory for each in redone if each.point == "revision begun"))
    _, taken = grow(World(SMALL), tmp_path / "taken", into=tmp_path / "taking", reuse=tmp_path / "run")
    found = (*first, *recovered, *retried, *regained, *published, *changed, *replaced, *redone, *open_changed, *taken)
    assert {*abandoned, *(each.point for each in found)} == set(POINTS) - ELSEWHERE


def test_killed_while_a_dataset_is_replaced(tmp_path: Path) -> None:
    """The directory holds the old dataset, or one that the same command replaces or finishes."""
    old, new = SMALL, attrs.evolve(SMALL, rows=7)
    grow(World(old), tmp_path / "run")
    before, expected = Made.read(tmp_path / "run"), whole(new, tmp_path / "whole")
    _, snapshots = grow(World(new), tmp_path / "run", into=tmp_path / "killed", resume=False, overwrite=True)
    for number, snapshot in enumerate(snapshots):
        if is_dataset(snapshot.directory) and read(snapshot.directory).header.rows == old.rows:
            check_same(snapshot.directory, old, before)
        elif number > 8 and number % 4:
            continue
        grow(World(new), snapshot.directory, resume=False, overwrite=True)
        check_same(snapshot.directory, new, expected)


def recover(world: World, snapshot: Snapshot, into: Path) -> tuple[World, list[Snapshot]]:
    """Go on with a journal that has lost its first record, and keep what there is at every point of that."""
    for journal in snapshot.directory.glob(".seedbed/journal-*.log"):
        content = journal.read_bytes()
        journal.write_bytes(content[:10] + b"?" + content[11:])
    after = world.since(snapshot)
    _, found = grow(after, snapshot.directory, into=into)
    return after, found


def test_killed_while_a_damaged_journal_is_put_in_order(tmp_path: Path) -> None:
    """A resume that recovers what is left of a journal may be killed as any other."""
    world, expected = World(SMALL), whole(SMALL, tmp_path / "whole")
    _, snapshots = grow(world, tmp_path / "run", into=tmp_path / "killed")
    after, recovered = recover(world, snapshots[len(snapshots) // 2], tmp_path / "recovered")
    assert {"journal recovered"} <= {snapshot.point for snapshot in recovered}
    for snapshot in recovered[: len(recovered) // 4]:
        go_on(after, snapshot, expected)


@COSTLY
@given(shape=shapes(), kills=st.lists(st.integers(1, 80), min_size=1, max_size=4))
def test_any_recipe_killed_again_and_again(shape: Shape, kills: list[int]) -> None:
    """Whatever the recipe: a run that is killed, resumed and killed again gives the dataset that it would have."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        expected = whole(shape, directory / "whole")
        world, out = World(shape), directory / "run"
        earlier: list[Snapshot] = []
        for index, kill in enumerate(kills):
            _, snapshots = grow(world, out, into=directory / f"killed {index}", wanted=lambda n, k=kill: n == k)
            for before in earlier:
                check_paid_once(before, world, INTERVAL)
            if not snapshots:
                break  # the run was through before
            note(f"killed at {snapshots[0].point!r}")
            # What an earlier run was answered is as durable as it was then.
            earlier.append(snapshots[0])
            world, out = world.since(snapshots[0]), snapshots[0].directory
        grow(world, out)
        for before in earlier:
            check_paid_once(before, world, INTERVAL)
        check_same(out, shape, expected)
