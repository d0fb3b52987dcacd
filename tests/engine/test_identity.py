"""Which row is which after a processor changed the rows."""

from __future__ import annotations

from seedbed.engine.identity import follow_rows

BEFORE = [("a",), ("b",), ("c",)]
IDS = [(10, 0), (11, 0), (12, 0)]


def follow(*after: object) -> list[tuple[int, int]]:
    """The identities of these rows, each of one value."""
    return follow_rows(BEFORE, [(value,) for value in after], IDS)


def test_as_many_rows_are_the_same_rows() -> None:
    """Where the number is the same, rows are followed by their place, whatever is in them."""
    assert follow("x", "y", "z") == IDS


def test_removed_rows_leave_the_others_theirs() -> None:
    """Rows are followed by their content."""
    assert follow("a", "c") == [(10, 0), (12, 0)]
    assert follow("c") == [(12, 0)]
    assert follow() == []


def test_a_new_row_is_a_copy_of_the_one_in_front() -> None:
    """The first of a group has none in front and belongs to the first row."""
    assert follow("a", "a2", "b", "c") == [(10, 0), (10, 1), (11, 0), (12, 0)]
    assert follow("new", "a", "b", "c") == [(10, 1), (10, 0), (11, 0), (12, 0)]


def test_a_repeated_row_is_a_copy() -> None:
    """The first of equals is the row itself, the next ones are copies with numbers of their own."""
    assert follow("a", "a", "a", "b") == [(10, 0), (10, 1), (10, 2), (11, 0)]


def test_equal_rows_are_followed_in_order() -> None:
    """First come, first served, where rows cannot be told apart."""
    assert follow_rows([("a",), ("a",), ("b",)], [("a",), ("b",)], IDS) == [(10, 0), (12, 0)]


def test_copies_of_copies_get_free_numbers() -> None:
    """A second processor does not give a number away twice."""
    identities = [(10, 0), (10, 1), (11, 0)]
    followed = follow_rows(BEFORE, [("a",), ("x",), ("b",), ("c",)], identities)
    assert followed == [(10, 0), (10, 2), (10, 1), (11, 0)]
    assert len(set(followed)) == 4


def test_nested_values_can_be_followed() -> None:
    """What cannot be hashed is followed all the same."""
    assert follow_rows([([1],), ({"k": 2},)], [({"k": 2},)], IDS[:2]) == [(11, 0)]


def test_rows_from_nothing() -> None:
    """Rows made of none have the number 0."""
    assert follow_rows([], [("x",)], []) == [(0, 1)]
