"""Which row is which behind processors."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from seedbed.engine.rows import identities_by_position


def test_rows_are_numbered_by_their_position() -> None:
    """Whatever a processor did, its first row has the first number of the row group."""
    assert identities_by_position(range(10, 13), 2) == [(10, 0), (11, 0)]


def test_rows_beyond_the_last_number_are_added_behind_it() -> None:
    """The numbers of the next row group are not taken."""
    assert identities_by_position(range(10, 12), 4) == [(10, 0), (11, 0), (11, 1), (11, 2)]


@given(st.integers(0, 100), st.integers(1, 10), st.integers(0, 30))
def test_identities_are_unique_and_in_row_order(start: int, size: int, count: int) -> None:
    """Sorting by identity is sorting by position."""
    found = identities_by_position(range(start, start + size), count)
    assert len(found) == count
    assert found == sorted(set(found))
