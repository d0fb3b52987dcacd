"""Which row is which after a processor changed the rows."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# A source row's number, and 0 for the row itself or 1, 2, … for rows that a processor made of it.
Identity = tuple[int, int]


def follow_rows(
    before: Sequence[Sequence[object]], after: Sequence[Sequence[object]], identities: Sequence[Identity]
) -> list[Identity]:
    """The identities of the rows `after`, given those of the rows `before`; both in the columns that they share.

    As many rows as before are taken to be the same rows in the same order. Otherwise rows are followed by their
    content, first come, first served; a row that was not there is another copy of the one in front of it.
    """
    if len(after) == len(before):
        return list(identities)
    sources: defaultdict[tuple[str, ...], deque[Identity]] = defaultdict(deque)
    copies: dict[int, int] = {}
    for identity, content in zip(identities, before, strict=True):
        sources[_content(content)].append(identity)
        source, copy = identity
        copies[source] = max(copy, copies.get(source, 0))
    followed: list[Identity] = []
    last = identities[0][0] if identities else 0
    for content in after:
        same = sources[_content(content)]
        if same:
            identity = same.popleft()
        else:
            copies[last] = copies.get(last, 0) + 1
            identity = (last, copies[last])
        last = identity[0]
        followed.append(identity)
    return followed


def _content(row: Sequence[object]) -> tuple[str, ...]:
    # Nested values are not hashable; their text is.
    return tuple(map(repr, row))
