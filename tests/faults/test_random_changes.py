"""Any recipe is changed into any other that no finished cell contradicts, and killed while it is."""

from __future__ import annotations

import tempfile
from pathlib import Path

import attrs
from harness import check_same
from hypothesis import given, note, settings
from hypothesis import strategies as st
from shape_strategies import shapes
from shapes import ColumnShape, Shape
from snapshots import World, check_paid_once, grow
from test_kill_points import INTERVAL, whole

COSTLY = settings(max_examples=settings.default.max_examples // 8)


@st.composite
def changes(draw: st.DrawFn) -> tuple[Shape, Shape]:
    """Two recipes: the second has other processors after the cells, and columns more or fewer."""
    # Of undeclared types: a decimal of a finished row has the precision that was inferred for its part.
    drawn = draw(shapes())
    columns = (attrs.evolve(each, type="function") if each.type == "rich" else each for each in drawn.columns)
    old = attrs.evolve(drawn, columns=tuple(columns))
    needed = {name for column in old.columns for name in column.requires}
    free = [column.name for column in old.columns if column.name not in needed]
    gone = draw(st.sets(st.sampled_from(free), max_size=2)) if free else set[str]()
    kept = tuple(column for column in old.columns if column.name not in gone)
    if not kept:
        kept = old.columns
    more = draw(st.sampled_from(["model", "function", "whole", "expression", "rich"]))
    requires = tuple(column.name for column in kept[-1:])
    added = (ColumnShape(name="added", type=more, requires=requires),) if draw(st.booleans()) else ()
    new = attrs.evolve(old, columns=(*kept, *added), post=draw(st.booleans()), after=draw(st.booleans()))
    # Rows that failed in a column that is removed stay dropped: both recipes lose the same rows.
    bad_gone = any(column.bad for column in old.columns if column.name in gone)
    return (old, attrs.evolve(new, columns=(*old.columns, *added)) if bad_gone else new)


@COSTLY
@given(change=changes(), kills=st.lists(st.integers(1, 60), min_size=1, max_size=3))
def test_any_change_killed_again_and_again(change: tuple[Shape, Shape], kills: list[int]) -> None:
    """The dataset is that of a run with the second recipe, and nothing that was finished is generated again."""
    old, new = change
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        expected = whole(new, directory / "whole")
        world, out = World(old), directory / "run"
        grow(world, out)
        answered = set(world.delivered)
        after = World(new)
        after.trouble.seen.update(world.trouble.seen)
        world = after
        for index, kill in enumerate(kills):
            _, snapshots = grow(world, out, into=directory / f"killed {index}", wanted=lambda n, k=kill: n == k)
            assert not answered & set(world.asked)
            if not snapshots:
                break
            note(f"killed at {snapshots[0].point!r}")
            world, out = world.since(snapshots[0]), snapshots[0].directory
            grow(world, out)
            check_paid_once(snapshots[0], world, INTERVAL)
        grow(world, out)
        assert not answered & set(world.asked)
        check_same(out, new, expected)
