"""Part of a dataset is generated again and the process killed at any point: readers see the old or the new dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import polars as pl
import pyarrow.dataset
import pytest
from harness import Made, check_frame, check_same
from shapes import ColumnShape, Shape
from snapshots import Snapshot, World, check_paid_once, grow
from test_changed_recipes import OLD, STATEFUL, changed, finished
from test_kill_points import INTERVAL, whole

import seedbed as sb
from seedbed.store.manifest import read

if TYPE_CHECKING:
    from pathlib import Path

A, B = OLD.columns[1], ColumnShape(name="b", type="model", requires=("a",), bad={7: (400, None)})
OTHER_A = attrs.evolve(A, requires=())
DEEP = attrs.evolve(OLD, columns=(*OLD.columns[:2], B, *STATEFUL))


def with_a(shape: Shape) -> Shape:
    """The same with another prompt in column `a`."""
    return attrs.evolve(shape, columns=tuple(OTHER_A if each == A else each for each in shape.columns))


def both(shape: Shape) -> tuple[Shape, Shape]:
    """A recipe, and the same with a changed column."""
    return shape, with_a(shape)


# The recipe before and after, and the cells that are generated again.
CHANGES: dict[str, tuple[Shape, Shape]] = {
    "plain": both(OLD),
    "with what depends on it": both(DEEP),
    "post-batch": both(attrs.evolve(OLD, post=True)),
    "after generation": both(attrs.evolve(OLD, after=True)),
    "pre-batch": both(attrs.evolve(DEEP, pre="both", post=True)),
    "pre-batch processors": (OLD, attrs.evolve(OLD, pre="more")),
    "after generation begins": (OLD, attrs.evolve(with_a(OLD), after=True)),
    "after generation ends": (attrs.evolve(OLD, after=True), with_a(OLD)),
}


def check_readers(snapshot: Snapshot, before: Made, after: Made) -> None:
    """Readers by the manifest see one dataset, whole; other tools see rows of one, and all but while files move."""
    manifest, dataset = read(snapshot.directory), sb.Dataset.open(snapshot.directory)
    dataset.verify()
    assert manifest.header is not None
    is_old = manifest.header.edition == 0
    expected = before if is_old else after
    check_frame(dataset.to_polars(), expected.frame)
    assert dataset.complete
    names = sorted(path.name for path in snapshot.directory.glob("*.parquet"))
    assert {path.name for path in snapshot.directory.iterdir()} <= {".seedbed", *names}
    if not is_old and any(part.staged is not None for part in manifest.parts()):
        if names:
            found = pl.read_parquet(f"{snapshot.directory}/*.parquet")
            assert found.columns == after.frame.columns
            old, new = ({*map(repr, made.frame.rows())} for made in (before, after))
            rows = {*map(repr, found.rows())}
            assert rows <= old or rows <= new
        return
    check_frame(pl.read_parquet(f"{snapshot.directory}/*.parquet"), expected.frame)
    assert pyarrow.dataset.dataset(snapshot.directory).count_rows() == expected.frame.height


def redo(world: World, out: Path, **options: Any) -> list[Snapshot]:
    """Generate again what the recipe changed, or what `options` say."""
    return grow(world, out, **{"redo": [], **options})[1]


@pytest.mark.parametrize("name", CHANGES)
def test_a_redo_killed_at_any_point(name: str, tmp_path: Path) -> None:
    """It is continued by the same call and by a resume; the result is that of a run with the new recipe."""
    old, new = CHANGES[name]
    expected = whole(new, tmp_path / "whole")
    world = finished(old, tmp_path / "run")
    before = Made.read(tmp_path / "run")
    world = changed(new, world)
    snapshots = redo(world, tmp_path / "run", into=tmp_path / "killed")
    check_same(tmp_path / "run", new, expected)
    paid = {*world.asked}
    assert len(world.asked) == len(paid)
    for number, snapshot in enumerate(snapshots):
        check_readers(snapshot, before, expected)
        if number % 7 and number + 1 < len(snapshots):
            continue  # neighbours differ little
        after = world.since(snapshot)
        is_switched = read(snapshot.directory).header.fingerprint == read(tmp_path / "run").header.fingerprint
        if is_switched or (number % 14 and read(snapshot.directory).pending is not None):
            grow(after, snapshot.directory)
        else:
            redo(after, snapshot.directory)
        assert {*after.asked} <= paid, snapshot
        check_paid_once(snapshot, after, INTERVAL)
        check_same(snapshot.directory, new, expected)


@pytest.mark.parametrize("name", ["with what depends on it", "after generation begins"])
def test_a_redo_that_is_taken_back(name: str, tmp_path: Path) -> None:
    """From any point before its end the dataset is again what it was, to its files, and can be redone."""
    old, new = CHANGES[name]
    world = finished(old, tmp_path / "run")
    before = Made.read(tmp_path / "run")
    world = changed(new, world)
    snapshots = redo(world, tmp_path / "run", into=tmp_path / "killed")
    expected = Made.read(tmp_path / "run")
    for number, snapshot in enumerate(snapshots):
        if read(snapshot.directory).pending is None or number % 4:
            continue
        assert sb.abandon_redo(snapshot.directory)
        check_same(snapshot.directory, old, before)
        assert not sb.abandon_redo(snapshot.directory)
        if number % 12 == 0:
            back = changed(old, world)
            grow(back, snapshot.directory)
            assert not back.asked
            check_same(snapshot.directory, old, before)
            redo(changed(new, world), snapshot.directory)
            check_same(snapshot.directory, new, expected)


def test_selected_rows_killed_at_any_point(tmp_path: Path) -> None:
    """Only their cells are paid for, once."""
    world = finished(OLD, tmp_path / "run")
    expected = Made.read(tmp_path / "run")
    options: Any = {"redo": ["a"], "redo_where": "n in [1, 2, 8]"}
    world = changed(OLD, world)
    snapshots = redo(world, tmp_path / "run", into=tmp_path / "killed", **options)
    assert sorted(world.asked) == [("a", 1), ("a", 2), ("a", 8)]
    check_same(tmp_path / "run", OLD, expected)
    for number, snapshot in enumerate(snapshots[::2]):
        check_readers(snapshot, expected, expected)
        after = world.since(snapshot)
        is_pending = read(snapshot.directory).pending is not None
        grow(after, snapshot.directory, **(options if number % 2 and is_pending else {}))
        check_paid_once(snapshot, after, INTERVAL)
        check_same(snapshot.directory, OLD, expected)


@pytest.mark.parametrize("name", ["with what depends on it", "post-batch", "pre-batch", "after generation begins"])
@pytest.mark.parametrize("rows", [7, 11])
def test_a_takeover_killed_at_any_point(name: str, rows: int, tmp_path: Path) -> None:
    """It is continued by the same call; the result is that of a run, and what was taken over is not paid for."""
    old, new = CHANGES[name]
    new = attrs.evolve(new, rows=rows)
    expected = whole(new, tmp_path / "whole")
    before = finished(old, tmp_path / "old")
    untouched = Made.read(tmp_path / "old")
    world = changed(new, before)
    options: Any = {"reuse": tmp_path / "old"}
    every: Any = {"into": tmp_path / "killed", "wanted": lambda point: point % 9 == rows % 4}
    _, snapshots = grow(world, tmp_path / "run", **every, **options)
    check_same(tmp_path / "run", new, expected)
    paid = {*world.asked}
    for snapshot in snapshots:
        after = world.since(snapshot)
        grow(after, snapshot.directory, **options)
        assert {*after.asked} <= paid, snapshot
        check_paid_once(snapshot, after, INTERVAL)
        check_same(snapshot.directory, new, expected)
    check_same(tmp_path / "old", old, untouched)


def test_a_takeover_of_an_unfinished_dataset(tmp_path: Path) -> None:
    """At any point of the other build: what its journal has is not paid for again."""
    old, new = CHANGES["with what depends on it"]
    expected = whole(new, tmp_path / "whole")
    world = World(old)
    _, begun = grow(world, tmp_path / "old", into=tmp_path / "begun", wanted=lambda point: point % 19 == 3)
    for number, snapshot in enumerate(begun):
        after = World(new)
        after.trouble.seen.update(snapshot.seen)
        grow(after, tmp_path / f"new{number}", reuse=snapshot.directory)
        check_same(tmp_path / f"new{number}", new, expected)
