"""Which row is which in the whole dataset."""

from __future__ import annotations

# The number of a row, and 0, or 1, 2, … for rows that were added behind the row of that number.
Identity = tuple[int, int]


def identities_by_position(source: range, count: int) -> list[Identity]:
    """The identities of `count` rows that stand in the place of the source rows of a row group.

    A processor may do anything to rows, so that only their position in its output is known for certain. Those for
    which there are no numbers left count as added behind the last one: identities are in the order of the rows.
    """
    last = len(source) - 1
    return [(source[min(at, last)], max(0, at - last)) for at in range(count)]
