"""What the journal stores of a row group: one class for each kind of entry, and a sequence of them as bytes and back.

An entry is a msgpack array of a number, which names its kind, and its fields. msgspec checks these against the types
declared here: a journal may come from someone else. `codec` stores the values of cells.
"""

from __future__ import annotations

import enum
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec

from ..observe.report import Copy, Count, Drop, Origin, Resized, Row, Usage
from . import codec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Identity: TypeAlias = tuple[Row, Copy]
# The usage of all runs by column and model.
UsageEntries: TypeAlias = tuple[tuple[str, str, Usage], ...]


class Purpose(enum.IntEnum):
    """Why entries are stored under a key. The numbers are those on disk."""

    BUILD = 0  # a row group that is not finished
    RETRY = 1  # dropped rows of a finished row group, in a revision of its part, that are retried
    DROPPED = 2  # what is finished of the dropped rows of a finished row group, in a revision of its part
    CALLS = 3  # what stateful generators were called with for a finished row group
    SHARED = 5  # what columns with `once_per` share among all row groups; each entry stays
    RENEWAL = 4  # a finished row group, in a revision of its part, that is written anew because the recipe changed


class Key(msgspec.Struct, array_like=True, frozen=True, kw_only=True, cache_hash=True):
    """What entries of the journal belong to."""

    group: Count
    revision: Count = 0
    purpose: Purpose = Purpose.BUILD
    stage: str = ""  # all stages of a dataset share the journal

    @property
    def is_long_lived(self) -> bool:
        """True if the entries outlive the checkpoint of their row group."""
        return self.purpose in {Purpose.DROPPED, Purpose.CALLS, Purpose.SHARED}

    @property
    def is_replaced(self) -> bool:
        """True if new entries replace those that are stored."""
        return self.is_long_lived and self.purpose is not Purpose.SHARED


class _Entry(msgspec.Struct, array_like=True, frozen=True):
    """The base of all entries; a subclass gives its number on disk as `tag`."""


class Finished(_Entry, frozen=True, kw_only=True, tag=1):
    """A finished task; `row` is `GROUP` (-1) for one of the whole row group, whose value is (rows, columns)."""

    column: str
    row: Annotated[int, msgspec.Meta(ge=-1)]
    attempt: int
    salvage_round: int
    value: Any
    origin: Origin | None

    @property
    def cells(self) -> int:
        return len(self.value[0]) if self.row < 0 else 1


class Failed(_Entry, frozen=True, kw_only=True, tag=2):
    """A failed attempt of a task, and what it means for the task: "dropped", "retry" or "retry_with_answers"."""

    column: str
    row: int
    attempt: int
    salvage_round: int
    error: str
    consequence: str
    code: str = ""
    spent: Usage = Usage()  # by all attempts of the task so far


class Answer(_Entry, frozen=True, kw_only=True, tag=3):
    """The answer to one of several calls of a cell; `key` is its idempotency key.

    The result of a tool is such an answer too. Before a tool that is not idempotent runs, it has an entry without one.
    """

    column: str
    row: int
    attempt: int
    key: bytes
    answer: Any
    spent: Usage = Usage()  # by all attempts of the task so far


class Rebuilt(_Entry, frozen=True, kw_only=True, tag=4):
    """The rows that pre-batch processors returned; `resized` is how many rows each removed and added."""

    columns: dict[str, list[Any]]
    resized: Resized
    drops: list[Drop]
    came_from: list[Row | None] = []  # the position of each row before the processors, where that is known


class FinishedRows(_Entry, frozen=True, kw_only=True, tag=5):
    """Finished rows of a column, of rows that are retried."""

    column: str
    rows: list[Count]
    columns: list[list[Any]]
    origins: list[Origin | None] = []  # of each row; empty for a column that makes no calls


class DroppedRows(_Entry, frozen=True, kw_only=True, tag=6):
    """The first entry of those stored for a row group with dropped rows; `count` others follow it.

    `order` identifies the rows of the part and `identities` those of the entries. `order` is None where post-batch
    processors returned the part: then the entries are of all rows. `resized` is that of `Rebuilt`, None if the rows did
    not reach the pre-batch processors.
    """

    order: list[Identity] | None
    identities: list[Identity]
    resized: Resized | None
    count: int


class GeneratorCall(_Entry, frozen=True, kw_only=True, tag=7):
    """A call of a stateful generator, where the part does not show its rows."""

    column: str
    identities: list[Identity]
    inputs: dict[str, list[Any]]


class Forgiven(_Entry, frozen=True, kw_only=True, tag=8):
    """Failures before this do not count: so much failed that the run stopped, and a resume retries them."""


class Forgotten(_Entry, frozen=True, kw_only=True, tag=9):
    """What precedes this of these columns does not count any more: they are generated anew."""

    columns: list[str]


class Shared(_Entry, frozen=True, kw_only=True, tag=12):
    """The answer of a column with `once_per` for a key, or why its cell failed for good."""

    column: str
    key: bytes
    value: Any
    origin: Origin | None
    error: str | None
    code: str
    attempts: int


class SharedCall(_Entry, frozen=True, kw_only=True, tag=13):
    """The answer to a call of such a cell, which had not ended; `call` is its idempotency key."""

    column: str
    key: bytes
    call: bytes
    answer: Any
    spent: Usage


Entry: TypeAlias = (
    Finished
    | Failed
    | Answer
    | Rebuilt
    | FinishedRows
    | DroppedRows
    | GeneratorCall
    | Forgiven
    | Forgotten
    | Shared
    | SharedCall
)

_ENCODER = msgspec.msgpack.Encoder()


def encode(entries: Sequence[Entry]) -> tuple[bytes, list[Entry]]:
    """Return entries as bytes, and those left out because their values cannot be stored."""
    # Nearly all are cells with plain values, which msgspec encodes as they are: `benchmarks/durability` pays for each.
    if all(type(entry) is Finished and type(entry.value) in codec.PLAIN for entry in entries):
        with suppress(UnicodeEncodeError, OverflowError):  # lone surrogates, large numbers
            return _ENCODER.encode(entries), []
    encoded: list[msgspec.Raw] = []
    lost: list[Entry] = []
    for entry in entries:
        try:
            encoded.append(msgspec.Raw(_ENCODER.encode(_packed(entry))))
        except codec.FAILED:
            lost.append(entry)
    return _ENCODER.encode(encoded), lost


def decode(data: bytes, *, trusted: bool) -> list[Entry]:
    """Return the entries that can be read; those with values of user-defined types only if `trusted`."""
    hook = codec.unpacker(trusted=trusted)
    entries: list[Entry] = []
    try:
        codec.check_maps(data)
        entries = msgspec.msgpack.decode(data, type=list[Entry], ext_hook=hook)
    except codec.FAILED:
        # Each by itself, so that one that cannot be read costs no other.
        with suppress(msgspec.MsgspecError, RecursionError):
            for each in msgspec.msgpack.decode(data, type=list[msgspec.Raw]):
                with suppress(*codec.FAILED):
                    codec.check_maps(memoryview(each))
                    entries.append(msgspec.msgpack.decode(each, type=Entry, ext_hook=hook))
    return [entry for entry in entries if _is_sound(entry, trusted=trusted)]


def _packed(entry: Entry) -> Entry:
    match entry:
        case Finished(value=value):
            return msgspec.structs.replace(entry, value=codec.pack(value))
        case Answer(answer=answer) | SharedCall(answer=answer):
            return msgspec.structs.replace(entry, answer=codec.pack(answer))
        case Shared(value=value):
            return msgspec.structs.replace(entry, value=codec.pack(value))
        case Rebuilt(columns=columns):
            return msgspec.structs.replace(entry, columns=_pack_columns(columns))
        case FinishedRows(columns=lists):
            return msgspec.structs.replace(entry, columns=[[*map(codec.pack, values)] for values in lists])
        case GeneratorCall(inputs=inputs):
            return msgspec.structs.replace(entry, inputs=_pack_columns(inputs))
    return entry


def _pack_columns(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: [*map(codec.pack, values)] for name, values in columns.items()}


def _is_sound(entry: Entry, *, trusted: bool) -> bool:
    """True if the values of an entry fit together and, unless `trusted`, are not nested too deep."""
    if type(entry) is Finished and type(entry.value) in codec.PLAIN:
        return entry.row >= 0
    try:
        if not trusted:
            codec.check_depth(msgspec.structs.astuple(entry))
        match entry:
            case Finished(row=-1, value=(rows, columns)):
                return all(type(row) is int and row >= 0 for row in rows) and _have_length(columns, len(rows))
            case Finished(row=row):
                return row >= 0
            case Rebuilt(columns=found):
                return _have_length(found.values(), len(next(iter(found.values()), ())))
            case GeneratorCall(identities=identities, inputs=inputs):
                return _have_length(inputs.values(), len(identities))
            case FinishedRows(rows=rows, columns=columns, origins=origins):
                return _have_length(columns, len(rows)) and len(origins) in (0, len(rows))
    except (TypeError, ValueError):  # what has no length or cannot be iterated
        return False
    return True


def _have_length(columns: Iterable[Any], length: int) -> bool:
    return all(len(column) == length for column in columns)


def count_cells(data: bytes) -> list[tuple[str, int]]:
    """Return the finished cells of encoded entries, each with its column; no value is read, whoever wrote them."""
    try:
        entries: list[Entry] = msgspec.msgpack.decode(data, type=list[Entry], ext_hook=lambda _code, _data: None)
    except codec.FAILED:
        return []
    counts: list[tuple[str, int]] = []
    for entry in entries:
        match entry:
            case Finished(row=row) if row >= 0:
                counts.append((entry.column, 1))
            case Finished(value=[list(rows), *_]):
                counts.append((entry.column, len(rows)))
            case FinishedRows(rows=rows):
                counts.append((entry.column, len(rows)))
    return counts


def cells_in(entries: Iterable[Entry]) -> int:
    """Return how many finished cells entries hold."""
    return sum([1 if entry.row >= 0 else entry.cells for entry in entries if type(entry) is Finished])
