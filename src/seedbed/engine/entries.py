"""Entries of the journal, and the keys that they are stored under.

What an outcome was is kept as an entry, a plain tuple whose first two items are what it is and whose column it is of:

- `(OK, column, row, attempt, salvage round, value, paid)`: a finished task, `row` GROUP for one of the whole group;
- `(FAILED, column, row, attempt, salvage round, error, fate)`: a failed attempt and what that meant for the task;
- `(ANSWER, column, row, attempt, asked, answer)`: one call of several that a cell makes was answered;
- `(REBUILT, None, columns, resized, drops)`: the rows that pre-batch processors left, how many rows they took out and
  added;
- `(ROWS, column, rows, columns)`: finished rows of a column, of rows that are tried again;
- `(KEPT, None, order, identities, resized, count)`: first of what is kept of a row group with dropped rows, with the
  number of entries behind it. `order` names the rows of the part, `identities` those of the entries. `order` is None
  where post-batch processors made the part: then the entries are of all rows. `resized` is that of REBUILT, None if
  the rows did not come to the pre-batch processors;
- `(CALL, column, identities, inputs)`: a call of a stateful generator, where the part does not show its rows.

`replay` reads them, `past` those of calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph import GROUP

if TYPE_CHECKING:
    from ..store.codec import Entry

OK = "ok"
ANSWER = "answer"
FAILED = "failed"
REBUILT = "rebuilt"
ROWS = "rows"
KEPT = "kept"
CALL = "call"

_REVISION_BITS = 40
# Stands for the revision where calls are kept: a part never has so many.
_CALLS = (1 << 22) - 1


def kept_key(index: int, revision: int) -> int:
    """Under which key the journal keeps the dropped rows of a row group, as its part is in that revision."""
    return index | revision << _REVISION_BITS


def calls_key(index: int) -> int:
    """Under which key the journal keeps what stateful generators were called with for a row group."""
    return kept_key(index, _CALLS)


def is_calls_key(key: int) -> bool:
    """Whether `calls_key` made a key."""
    return key >= 0 and key_parts(key)[1] == _CALLS


def retry_key(index: int, revision: int) -> int:
    """Under which key the entries go of a row group whose dropped rows are tried again."""
    return ~kept_key(index, revision)


def key_parts(key: int) -> tuple[int, int]:
    """Row group and revision of a key that `kept_key` or `retry_key` made."""
    if key < 0:
        key = ~key
    return key & (1 << _REVISION_BITS) - 1, key >> _REVISION_BITS


def cells_of(entry: Entry) -> int:
    """How many finished cells an entry holds."""
    if entry[0] != OK:
        return 0
    return len(entry[5][0]) if entry[2] == GROUP else 1
