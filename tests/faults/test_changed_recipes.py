"""A recipe is changed and the resume that writes the dataset anew is killed at any point: the result is the same."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import attrs
import polars as pl
import pytest
from harness import Made, check_same
from shapes import ColumnShape, Shape
from snapshots import Snapshot, World, check_paid_once, grow
from test_kill_points import INTERVAL, whole

import seedbed as sb
from seedbed.store.manifest import read

if TYPE_CHECKING:
    from pathlib import Path

# Both lose rows: one in each of the model columns.
OLD = Shape(
    rows=9,
    buffer_size=3,
    columns=(
        ColumnShape(name="topic", type="category"),
        ColumnShape(name="a", type="model", requires=("topic",), bad={4: (400, None)}),
        ColumnShape(name="gone", type="function", requires=("a",)),
    ),
)
NEW_COLUMN = ColumnShape(name="b", type="model", requires=("a",), bad={7: (400, None)})
STATEFUL = (ColumnShape(name="count", type="counted"), ColumnShape(name="kept", type="kept", requires=("a",)))
CHANGES: dict[str, tuple[Shape, Shape]] = {
    "a column more": (OLD, attrs.evolve(OLD, columns=(*OLD.columns, NEW_COLUMN))),
    "one column for another": (OLD, attrs.evolve(OLD, columns=(*OLD.columns[:2], NEW_COLUMN))),
    "a column more beside stateful ones": (
        attrs.evolve(OLD, columns=(*OLD.columns[:2], *STATEFUL)),
        attrs.evolve(OLD, columns=(*OLD.columns[:2], *STATEFUL, NEW_COLUMN)),
    ),
    "post-batch processors begin": (OLD, attrs.evolve(OLD, post=True)),
    "post-batch processors end": (attrs.evolve(OLD, post=True), OLD),
    "after-generation processors begin": (OLD, attrs.evolve(OLD, after=True)),
    "after-generation processors end": (attrs.evolve(OLD, after=True), OLD),
    "everything": (
        attrs.evolve(OLD, pre="both", after=True),
        attrs.evolve(OLD, pre="both", post=True, columns=(*OLD.columns[:2], NEW_COLUMN)),
    ),
    "everything, the other way": (
        attrs.evolve(OLD, pre="both", post=True),
        attrs.evolve(OLD, pre="both", after=True, columns=(*OLD.columns[:2], NEW_COLUMN)),
    ),
}


def finished(shape: Shape, out: Path) -> World:
    """Build a dataset; the world after it, where all of its cells were answered."""
    world = World(shape, latency=0)
    grow(world, out)
    return world


def changed(shape: Shape, before: World) -> World:
    """The world of another recipe after a run of the one before."""
    world = World(shape, latency=0.2)
    world.trouble.seen.update(before.trouble.seen)
    return world


def check_root(snapshot: Snapshot, before: Made, after: Made) -> None:
    """What other tools read has rows of one of the two datasets, and the columns of one."""
    names = sorted(path.name for path in snapshot.directory.glob("*.parquet"))
    if names:
        found = pl.read_parquet(f"{snapshot.directory}/*.parquet")
        assert any(
            found.columns == made.frame.columns and set(found.rows()) <= set(made.frame.rows())
            for made in (before, after)
        ), snapshot
    assert {path.name for path in snapshot.directory.iterdir()} <= {".seedbed", *names}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_killed_at_any_point(name: str, tmp_path: Path) -> None:
    """The dataset is that of a run with the new recipe; nothing that was finished is generated again."""
    old, new = CHANGES[name]
    expected = whole(new, tmp_path / "whole")
    world = finished(old, tmp_path / "run")
    before = Made.read(tmp_path / "run")
    world = changed(new, world)
    answered = set(world.trouble.seen)
    _, snapshots = grow(world, tmp_path / "run", into=tmp_path / "killed")
    check_same(tmp_path / "run", new, expected)
    assert not answered & set(world.asked)
    assert len(snapshots) > 5
    for number, snapshot in enumerate(snapshots):
        check_root(snapshot, before, expected)
        sb.Dataset.open(snapshot.directory).verify()
        if number % 2 == 0 and number + 1 < len(snapshots):
            continue  # neighbours differ little
        after = world.since(snapshot)
        grow(after, snapshot.directory)
        assert not answered & set(after.asked), snapshot
        check_paid_once(snapshot, after, INTERVAL)
        check_same(snapshot.directory, new, expected)


def test_back_to_the_recipe_before(tmp_path: Path) -> None:
    """A change that was killed can be taken back: the dataset is again what it was."""
    old, new = OLD, attrs.evolve(OLD, post=True, after=True)
    world = changed(new, finished(old, tmp_path / "run"))
    expected = Made.read(tmp_path / "run")
    _, snapshots = grow(world, tmp_path / "run", into=tmp_path / "killed")
    for snapshot in snapshots[1::3]:
        back = changed(old, world)
        grow(back, snapshot.directory)
        assert not back.asked
        check_same(snapshot.directory, old, expected)


def test_a_recipe_changed_while_row_groups_are_open(tmp_path: Path) -> None:
    """What the journal has of unfinished row groups counts as much as finished ones."""
    old, new = CHANGES["a column more"]
    expected = whole(new, tmp_path / "whole")
    world = World(old)
    _, snapshots = grow(world, tmp_path / "run", into=tmp_path / "killed")
    shutil.rmtree(tmp_path / "run")
    for snapshot in snapshots[2::7]:
        after = World(new)
        after.trouble.seen.update(snapshot.seen)
        grow(after, snapshot.directory)
        check_paid_once(snapshot, after, INTERVAL)
        check_same(snapshot.directory, new, expected)


@pytest.mark.parametrize("shape", [attrs.evolve(OLD, post=True), attrs.evolve(OLD, post=True, after=True)])
def test_what_other_tools_read_of_a_growth_that_was_killed(shape: Shape, tmp_path: Path) -> None:
    """Rows of the dataset before or after it, never of both where processors changed the whole, and each row once."""
    grown = attrs.evolve(shape, rows=14)
    expected = whole(grown, tmp_path / "whole")
    world = changed(grown, finished(shape, tmp_path / "run"))
    before = Made.read(tmp_path / "run")
    _, snapshots = grow(world, tmp_path / "run", into=tmp_path / "killed")
    for snapshot in snapshots:
        check_root(snapshot, before, expected)
        if list(snapshot.directory.glob("*.parquet")):
            rows = pl.read_parquet(f"{snapshot.directory}/*.parquet").rows()
            assert len(set(rows)) == len(rows)


def test_a_late_column_from_scratch_killed_at_any_point(tmp_path: Path) -> None:
    """Added when rows have passed the pre-batch processors, it has the same values wherever a kill comes between."""
    old = attrs.evolve(OLD, pre="both", post=True)
    new = attrs.evolve(old, columns=(*old.columns, ColumnShape(name="late", type="gauss"), NEW_COLUMN))
    world = finished(old, tmp_path / "run")
    world = changed(new, world)
    _, snapshots = grow(world, tmp_path / "run", into=tmp_path / "killed")
    expected = Made.read(tmp_path / "run")
    assert expected.frame["late"].null_count() == 0
    for snapshot in snapshots[::5]:
        after = world.since(snapshot)
        grow(after, snapshot.directory)
        check_paid_once(snapshot, after, INTERVAL)
        check_same(snapshot.directory, new, expected)
    # While row groups are open, some of them before the processors.
    _, begun = grow(World(old), tmp_path / "new", into=tmp_path / "open")
    for snapshot in begun[len(begun) // 4 :: 11]:
        grow(changed(new, World(old)), snapshot.directory)
        if read(snapshot.directory).header.late:
            check_same(snapshot.directory, new, expected)


def test_a_column_that_comes_back_while_row_groups_are_open(tmp_path: Path) -> None:
    """It is generated by the new recipe, whatever the journal has of it, and wherever a kill comes between."""
    without = attrs.evolve(OLD, columns=OLD.columns[:2])
    back = attrs.evolve(OLD, columns=(*OLD.columns[:2], ColumnShape(name="gone", type="kept", requires=("a",))))
    expected = whole(back, tmp_path / "whole")
    _, begun = grow(World(OLD), tmp_path / "run", into=tmp_path / "begun", wanted=lambda point: point % 25 == 5)
    for number, snapshot in enumerate(begun):
        world = World(without)
        world.trouble.seen.update(snapshot.seen)
        options: Any = {"into": tmp_path / f"without{number}", "wanted": lambda point: point % 8 == 7}
        _, more = grow(world, snapshot.directory, **options)
        for between in more:
            if "gone" in read(between.directory).header.columns:
                continue  # killed before the change
            world = World(back)
            world.trouble.seen.update(between.seen)
            options = {"into": tmp_path / f"last{number}{between.number}", "wanted": lambda point: point in {2, 5}}
            _, last = grow(world, between.directory, **options)
            check_same(between.directory, back, expected)
            for killed in last:
                grow(world.since(killed), killed.directory)
                check_same(killed.directory, back, expected)
