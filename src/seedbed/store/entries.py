"""What the journal stores of a row group: one frozen class for each kind of entry, and each as a tuple and back."""

from __future__ import annotations

import enum
import operator
from contextlib import suppress
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from ..observe.report import Drop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ..observe.report import Resized


class Purpose(enum.IntEnum):
    """Why entries are stored under a key. The numbers are those on disk."""

    BUILD = 0  # a row group that is not finished
    RETRY = 1  # dropped rows of a finished row group, in a revision of its part, that are retried
    KEPT = 2  # what is finished of the dropped rows of a finished row group, in a revision of its part
    CALLS = 3  # what stateful generators were called with for a finished row group


@attrs.frozen(kw_only=True, cache_hash=True)
class Key:
    """What entries of the journal belong to."""

    group: int
    revision: int = 0
    purpose: Purpose = Purpose.BUILD

    @property
    def is_long_lived(self) -> bool:
        """True if the entries outlive the checkpoint of their row group; new ones replace them."""
        return self.purpose in {Purpose.KEPT, Purpose.CALLS}


@attrs.frozen(kw_only=True)
class Finished:
    """A finished task; `row` is `GROUP` (-1) for one of the whole row group, whose value is (rows, columns)."""

    column: str
    row: int
    attempt: int
    salvage_round: int
    value: Any
    cost: tuple[int, int, float] | None

    @property
    def cells(self) -> int:
        """How many cells it finishes."""
        return len(self.value[0]) if self.row < 0 else 1


@attrs.frozen(kw_only=True)
class Failed:
    """A failed attempt of a task, and what it means for the task: "dropped", "retry" or "retry_with_answers"."""

    column: str
    row: int
    attempt: int
    salvage_round: int
    error: str
    consequence: str


@attrs.frozen(kw_only=True)
class Answer:
    """One call of several that a cell makes was answered; `key` is its idempotency key."""

    column: str
    row: int
    attempt: int
    key: bytes
    answer: Any


@attrs.frozen(kw_only=True)
class Rebuilt:
    """The rows that pre-batch processors returned; `resized` is how many rows each removed and added."""

    columns: dict[str, list[Any]]
    resized: Resized
    drops: Sequence[Mapping[str, Any]]


@attrs.frozen(kw_only=True)
class FinishedRows:
    """Finished rows of a column, of rows that are retried."""

    column: str
    rows: Sequence[int]
    columns: Sequence[Sequence[Any]]


@attrs.frozen(kw_only=True)
class KeptRows:
    """First of what is kept of a row group with dropped rows; `count` entries follow it.

    `order` identifies the rows of the part and `identities` those of the entries. `order` is None where post-batch
    processors returned the part: then the entries are of all rows. `resized` is that of `Rebuilt`, None if the rows did
    not reach the pre-batch processors.
    """

    order: Sequence[tuple[int, int]] | None
    identities: Sequence[tuple[int, int]]
    resized: Resized | None
    count: int


@attrs.frozen(kw_only=True)
class GeneratorCall:
    """A call of a stateful generator, where the part does not show its rows."""

    column: str
    identities: Sequence[tuple[int, int]]
    inputs: dict[str, list[Any]]


Entry: TypeAlias = Finished | Failed | Answer | Rebuilt | FinishedRows | KeptRows | GeneratorCall

# The number of each kind on disk, and what its fields must be: a journal may come from someone else.
_KINDS: dict[int, tuple[type[Any], tuple[type | tuple[type, ...], ...]]] = {
    2: (Failed, (str, int, int, int, str, str)),
    3: (Answer, (str, int, int, bytes, object)),
    4: (Rebuilt, (dict, tuple, list)),
    5: (FinishedRows, (str, list, list)),
    6: (KeptRows, ((list, NoneType), list, (tuple, NoneType), int)),
    7: (GeneratorCall, (str, list, dict)),
}
_NAMES = {kind: [field.name for field in attrs.fields(kind)] for kind, _ in _KINDS.values()}
_FIELDS: dict[type[Any], tuple[int, Callable[[Any], tuple[Any, ...]]]] = {
    kind: (number, operator.attrgetter(*_NAMES[kind])) for number, (kind, _) in _KINDS.items()
}


_FINISHED = 1
_NO_COST = (None, None, None)


def to_tuple(entry: Entry) -> tuple[Any, ...]:
    """Return an entry as plain values."""
    if type(entry) is Finished:
        # Nearly all are: flat, since `benchmarks/durability` pays for each.
        cost = entry.cost or _NO_COST
        return _FINISHED, entry.column, entry.row, entry.attempt, entry.salvage_round, entry.value, *cost
    number, fields = _FIELDS[type(entry)]
    return number, *fields(entry)


def from_tuples(found: Iterable[tuple[Any, ...]]) -> list[Entry]:
    """Return the entries that `to_tuple` made; whatever else there is is left out."""
    entries: list[Entry] = []
    for values in found:
        with suppress(TypeError, ValueError):  # too few values, or what has no length or cannot be iterated
            if values[:1] == (_FINISHED,):
                _, column, row, attempt, salvage_round, value, used, made, cost = values
                if (
                    type(column) is str
                    and type(row) is type(attempt) is type(salvage_round) is int
                    and (cost is None or (type(used) is type(made) is int and type(cost) in {int, float}))
                    and (row >= 0 or _are_columns(*value))
                ):
                    entries.append(
                        Finished(
                            column=column,
                            row=row,
                            attempt=attempt,
                            salvage_round=salvage_round,
                            value=value,
                            cost=None if cost is None else (used, made, cost),
                        )
                    )
                continue
            number, *fields = values
            kind, types = _KINDS.get(number, (None, ()))
            if kind is not None and len(fields) == len(types) and all(map(isinstance, fields, types)):
                entry = kind(**dict(zip(_NAMES[kind], fields, strict=True)))
                if _is_sound(entry):
                    entries.append(entry)
    return entries


def _is_sound(entry: Entry) -> bool:
    match entry:
        case FinishedRows(rows=rows, columns=columns):
            return _are_columns(rows, columns)
        case Rebuilt(columns=columns, resized=resized, drops=drops):
            count = len(next(iter(columns.values()), ()))
            return (
                _are_columns(range(count), [*columns.values()]) and _is_resized(resized) and all(map(_is_drop, drops))
            )
        case KeptRows(order=order, identities=identities, resized=resized):
            return _are_identities([*(order or ()), *identities]) and _is_resized(resized or ())
        case GeneratorCall(identities=identities, inputs=inputs):
            return _are_identities(identities) and _are_columns(range(len(identities)), [*inputs.values()])
    return True


def _are_columns(rows: Any, columns: Any) -> bool:
    return all(type(row) is int and row >= 0 for row in rows) and all(len(column) == len(rows) for column in columns)


def _are_identities(values: Sequence[Any]) -> bool:
    return all(isinstance(each, tuple) and [*map(type, each)] == [int, int] for each in values)


def _is_resized(values: Sequence[Any]) -> bool:
    return all(isinstance(each, tuple) and [*map(type, each)] == [str, int, int] for each in values)


def _is_drop(fields: Any) -> bool:
    try:
        Drop(**fields)
    except (TypeError, ValueError):
        return False
    return True


def column_of(entry: Entry) -> str:
    """Return the column that an entry is about, or an empty text."""
    return getattr(entry, "column", "")


def cells_in(entries: Iterable[Entry]) -> int:
    """Return how many finished cells entries hold."""
    return sum(entry.cells for entry in entries if type(entry) is Finished)
