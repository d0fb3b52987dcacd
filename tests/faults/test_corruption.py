"""Bytes that were flipped or cut off in whatever a killed run left: found, named, and made again at the least cost."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import attrs
import pytest
from harness import Made, check_accounted, check_same
from hypothesis import assume, given, note, settings
from hypothesis import strategies as st
from shape_strategies import shapes
from shapes import ColumnShape, Shape
from snapshots import Cell, Snapshot, World, check_paid_once, grow
from test_kill_points import INTERVAL, SMALL, STATEFUL, whole

import seedbed as sb
from seedbed.store.manifest import MANIFEST_NAME
from seedbed.store.manifest import read as read_manifest

COSTLY = settings(max_examples=settings.default.max_examples // 16)


@attrs.frozen
class Harm:
    """What is done to a file: a byte is changed, a stretch is zeroed, or the end is cut off; `place` is a share."""

    how: str
    place: float
    bits: int

    def do(self, path: Path) -> None:
        """Do it."""
        content = bytearray(path.read_bytes())
        at = int(self.place * (len(content) - 1))
        if self.how == "flip":
            content[at] ^= self.bits
        elif self.how == "zero":
            stretch = content[at : at + 512]
            assume(any(stretch))
            content[at : at + 512] = bytes(len(stretch))
        else:
            del content[at:]
        path.write_bytes(content)


# A row group that is made again comes before others with a stateful generator: what they had from it goes too.
SERIAL = ("counted", "kept", "seeded")
# The beginning of the sentence about what only a lost journal had.
LOST_CALLS = "calls of the stateful column"
HARMS = st.builds(Harm, st.sampled_from(["flip", "flip", "zero", "cut"]), st.floats(0, 1), st.integers(1, 255))


def files_of(directory: Path) -> list[str]:
    """What can be damaged: the journal with what belongs to it, the parts and the manifest."""
    found = (path for path in directory.rglob("*") if path.is_file() and path.stat().st_size)
    return sorted(
        path.relative_to(directory).as_posix()
        for path in found
        if path.name != "recipe.yaml" and not path.name.endswith(".tmp")
    )


def cells_of_groups(shape: Shape, groups: Any) -> set[Cell]:
    """The model cells of whole row groups."""
    return {(column.name, n) for column in shape.models for group in groups for n in shape.group_rows(group)}


def check_damage(world: World, snapshot: Snapshot, name: str, harm: Harm, expected: Made) -> None:
    """Damage a file of a killed run, and continue: everything is made again that was hit, and nothing else."""
    directory, shape = snapshot.directory, world.shape
    listed = read_manifest(directory).groups
    parts = {
        group.part.name: index
        for index, group in listed.items()
        # A file that is to be replaced by a staged one is no part any more.
        if group.part is not None and not (group.part.staged and (directory / group.part.staged).exists())
    }
    harm.do(directory / name)
    after = world.since(snapshot)
    try:
        told = sb.Dataset.open(directory).damage()
    except sb.ManifestError:
        assert name == MANIFEST_NAME  # both copies of the header are gone: this is no dataset any more
        assert harm.how != "flip"
        with pytest.raises(sb.ManifestError):
            grow(after, directory)
        return
    if name in parts:
        assert any(name in sentence for sentence in told), told
    unlisted = listed.keys() - read_manifest(directory).groups.keys()
    if name == MANIFEST_NAME and unlisted and harm.how != "cut":
        assert any(name in sentence for sentence in told), told
    dataset, _ = grow(after, directory)
    assert dataset.report is not None
    if any(sentence.startswith(LOST_CALLS) for sentence in dataset.report.damage):
        check_accounted(directory, shape)
    else:
        check_same(directory, shape, expected, journal=name in parts, damaged=name)
    if name in parts:
        assert any(name in sentence for sentence in dataset.report.damage)
        hit = cells_of_groups(shape, [parts[name]])
        after.asked[:] = [cell for cell in after.asked if cell not in hit]
        if not any(column.type in SERIAL for column in shape.columns):
            check_paid_once(snapshot, after, INTERVAL)
    elif name == MANIFEST_NAME and harm.how == "flip":
        hit = cells_of_groups(shape, unlisted)
        assert len(unlisted) <= 1
        after.asked[:] = [cell for cell in after.asked if cell not in hit]
        if not any(column.type in SERIAL for column in shape.columns):
            check_paid_once(snapshot, after, INTERVAL)
    elif name != MANIFEST_NAME:
        assert not cells_of_groups(shape, listed) & set(after.asked), "what is in a part is not the journal's to lose"
    assert sb.Dataset.open(directory).damage() == ()
    again = world.since(snapshot)
    grow(again, directory)
    assert again.asked == []


@COSTLY
@given(shape=st.sampled_from([SMALL, STATEFUL]) | shapes(), kill=st.integers(5, 80), harm=HARMS, data=st.data())
def test_a_killed_run_whose_files_are_damaged(shape: Shape, kill: int, harm: Harm, data: Any) -> None:
    """Whatever was left by a kill and whichever byte of it is lost, the dataset is the one that it would have been."""
    with tempfile.TemporaryDirectory() as directory:
        here = Path(directory)
        expected = whole(shape, here / "whole")
        world = World(shape)
        _, snapshots = grow(world, here / "run", into=here / "killed", wanted=lambda number: number == kill)
        assume(snapshots)
        snapshot = snapshots[0]
        name = data.draw(st.sampled_from(files_of(snapshot.directory)))
        note(f"killed at {snapshot.point!r}, {name}: {harm}")
        check_damage(world, snapshot, name, harm, expected)


@COSTLY
@given(shape=st.sampled_from([SMALL, STATEFUL]), harm=HARMS, data=st.data())
def test_a_finished_dataset_that_is_damaged(shape: Shape, harm: Harm, data: Any) -> None:
    """A resume of a complete dataset makes what was hit again."""
    with tempfile.TemporaryDirectory() as directory:
        here = Path(directory)
        world = World(shape)
        grow(world, here / "whole")
        expected = Made.read(here / "whole")
        snapshot = Snapshot(0, "the end", here / "whole", float("inf"), dict(world.delivered), dict(world.trouble.seen))
        name = data.draw(st.sampled_from(files_of(snapshot.directory)))
        note(f"killed at {snapshot.point!r}, {name}: {harm}")
        check_damage(world, snapshot, name, harm, expected)


def test_lost_calls_of_a_stateful_generator_for_dropped_rows_are_named() -> None:
    """Only the journal has them where the generator has no `get_state`; without them later values may differ."""
    columns = (ColumnShape(name="c0", type="counted"), ColumnShape(name="c2", type="model", bad={1: (500, None)}))
    shape = Shape(columns=columns, rows=12, buffer_size=1)
    with tempfile.TemporaryDirectory() as directory:
        here = Path(directory)
        world = World(shape)
        _, snapshots = grow(world, here / "run", into=here / "killed")
        found = (snapshot.directory for snapshot in snapshots if (snapshot.directory / MANIFEST_NAME).is_file())
        killed = next(each for each in found if 1 in read_manifest(each).groups)
        for path in killed.glob(".seedbed/journal-*.log"):
            path.write_bytes(b"")
        dataset, _ = grow(World(shape), killed)
        assert dataset.report is not None
        (lost,) = [sentence for sentence in dataset.report.damage if sentence.startswith(LOST_CALLS)]
        assert "'c0' for dropped rows of row group 1 are lost" in lost
        check_accounted(killed, shape)


def test_a_part_that_is_about_to_be_replaced_may_be_damaged() -> None:
    """Killed between the record of a new file for a part and its rename, the old file does not count any more."""
    columns = (ColumnShape(name="c0", type="model"), ColumnShape(name="c1", type="rich"))
    # Parts of few rows have decimals of different precision, so that they are written again with one schema.
    shape = Shape(columns=columns, rows=7, buffer_size=2, post=True, after=True)
    flip = Harm(how="flip", place=0.0, bits=1)
    with tempfile.TemporaryDirectory() as directory:
        here = Path(directory)
        expected = whole(shape, here / "whole")
        world = World(shape)
        _, snapshots = grow(world, here / "run", into=here / "killed")
        replaced = [
            (snapshot, group.part.name)
            for snapshot in snapshots
            if snapshot.point == "record written" and (snapshot.directory / MANIFEST_NAME).is_file()
            for group in read_manifest(snapshot.directory).groups.values()
            if group.part is not None and group.part.staged and (snapshot.directory / group.part.staged).exists()
            if (snapshot.directory / group.part.name).exists()
        ]
        snapshot, name = replaced[0]
        check_damage(world, snapshot, name, flip, expected)
