"""Which rows belong to which row group, also of datasets that were grown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedbed.store.manifest import Layout


def ranges(layout: Layout) -> list[range]:
    """The rows of every group."""
    return [layout.group_rows(index) for index in range(layout.count)]


@given(st.integers(1, 7), st.lists(st.integers(0, 40), min_size=1, max_size=5).map(sorted))
def test_every_row_is_in_one_group(size: int, rows: list[int]) -> None:
    """Groups follow without a gap, none is empty or too long, and growing leaves those before as they are."""
    layout = Layout(rows=rows[0], size=size)
    for more in rows[1:]:
        before = ranges(layout)
        layout = layout.grown(more)
        assert ranges(layout)[: len(before)] == before
    found = ranges(layout)
    assert [row for group in found for row in group] == list(range(rows[-1]))
    assert all(1 <= len(group) <= size for group in found)


def test_whole_groups_need_no_segment() -> None:
    """A dataset whose last group is full is grown as if it had been planned so."""
    assert Layout(rows=20, size=10).grown(35) == Layout(rows=35, size=10)
    assert Layout(rows=0, size=10).grown(35) == Layout(rows=35, size=10)
    assert Layout(rows=15, size=10).grown(35) == Layout(rows=35, size=10, segments=(15,))
    assert ranges(Layout(rows=35, size=10, segments=(15,))) == [range(10), range(10, 15), range(15, 25), range(25, 35)]
    assert Layout(rows=15, size=10).grown(25).grown(27).segments == (15,)


def test_a_group_that_does_not_exist() -> None:
    """It is an error, not an empty range."""
    with pytest.raises(IndexError, match="no row group 2, only 2"):
        Layout(rows=15, size=10).group_rows(2)
