"""Row sets: an index over immutable columns, which many row sets share.

Filtering, ordering and taking create a new index; adding a column does not copy the others. So branches of a plan share
their columns, and an abandoned thread can still read its own safely.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from .registries import ID, KeyType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from .registries import Key

# What a column reads as: its values, and where they are null (False: nowhere, True: everywhere). A key that nothing
# wrote reads as one value for all rows.
Read = tuple[Any, "NDArray[np.bool_] | bool"]

_DTYPES: Final[Mapping[KeyType, Any]] = {KeyType.INT: np.int64, KeyType.FLOAT: np.float64, KeyType.STRING: object}
# The value of a null. It is never read as a value, but can be compared and computed with.
_FILLERS: Final[Mapping[KeyType, Any]] = {KeyType.INT: 0, KeyType.FLOAT: 0.0, KeyType.STRING: ""}


class Column:
    """The values of one key; `nulls` is true where there is none, and None where there always is one."""

    __slots__ = ("nulls", "values")

    def __init__(self, values: NDArray[Any], nulls: NDArray[np.bool_] | None = None) -> None:
        values.setflags(write=False)
        if nulls is not None:
            nulls.setflags(write=False)
        self.values = values
        self.nulls = nulls


def make_column(key: Key, values: Iterable[Any]) -> Column:
    """A column of plain Python values, None where null; a value that does not fit the key raises ValueError."""
    given = list(values)
    nulls = np.fromiter((value is None for value in given), np.bool_, len(given))
    if nulls.any() and not key.nullable:
        raise ValueError(f"key {key.name!r} is not nullable, but a row has no value for it")
    listed = [_FILLERS[key.type] if value is None else value for value in given]
    column = np.empty(len(listed), _DTYPES[key.type])
    try:
        column[:] = listed
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"key {key.name!r} is of type {key.type.value}: {error}") from error
    if key.type is KeyType.FLOAT and not np.isfinite(column).all():
        raise ValueError(f"key {key.name!r} has a value that is not finite")
    if key.type is KeyType.STRING and not all(isinstance(value, str) for value in listed):
        raise ValueError(f"key {key.name!r} is of type string, but a row has another value")
    return Column(column, nulls if nulls.any() else None)


def string_column(values: Sequence[str | None]) -> Column:
    """A column of strings, None where null."""
    column = np.empty(len(values), object)
    if None not in values:
        column[:] = values
        return Column(column)
    column[:] = ["" if value is None else value for value in values]
    return Column(column, np.fromiter((value is None for value in values), np.bool_, len(values)))


def _unwritten(key: Key) -> Read:
    """The result of reading a key that no op has written."""
    if key.nullable or key.default is None:
        return _FILLERS[key.type], True
    return (float(key.default) if key.type is KeyType.FLOAT else key.default), False


def unwritten_column(key: Key, size: int) -> Column:
    """A column of a key that no op has written."""
    value, null = _unwritten(key)
    return Column(np.full(size, value, _DTYPES[key.type]), np.full(size, fill_value=True) if null else None)


class RowSet:
    """Some rows of some columns, in an order.

    All columns have the same number of values; `index` says which of them are rows here (each at most once), None that
    all are, as they come. Every row set has the column `id`.
    """

    __slots__ = ("_length", "columns", "index")

    def __init__(self, columns: Mapping[int, Column], index: NDArray[np.intp] | None = None) -> None:
        self.columns = columns
        self.index = index
        self._length = len(columns[ID].values) if index is None else len(index)

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"<RowSet of {self._length} rows with keys {sorted(self.columns)}>"

    def read(self, key: Key) -> Read:
        """The values of a key for these rows, in their order."""
        column = self.columns.get(key.id)
        if column is None:
            return _unwritten(key)
        if self.index is None:
            return column.values, (False if column.nulls is None else column.nulls)
        return column.values[self.index], (False if column.nulls is None else column.nulls[self.index])

    def ids(self) -> NDArray[np.int64]:
        values: NDArray[np.int64] = self.columns[ID].values
        return values if self.index is None else values[self.index]

    def where(self, mask: NDArray[np.bool_]) -> RowSet:
        return RowSet(self.columns, np.flatnonzero(mask) if self.index is None else self.index[mask])

    def at(self, positions: NDArray[np.intp]) -> RowSet:
        """The rows at these positions, each of which may be named once, in their order."""
        return RowSet(self.columns, positions if self.index is None else self.index[positions])

    def head(self, count: int) -> RowSet:
        return self if count >= self._length else self[:count]

    def __getitem__(self, part: slice) -> RowSet:
        return RowSet(self.columns, np.arange(*part.indices(self._length)) if self.index is None else self.index[part])

    def with_column(self, key_id: int, column: Column) -> RowSet:
        """The same rows with one more column, or another in its place; its values are for these rows in their order."""
        if len(column.values) != self._length:
            raise ValueError(f"a column of {len(column.values)} values does not fit {self._length} rows")
        if self.index is not None:
            # The values of rows that are not in this set are never read, so they are not even initialised.
            size = len(self.columns[ID].values)
            values, nulls = np.empty(size, column.values.dtype), None
            values[self.index] = column.values
            if column.nulls is not None:
                nulls = np.zeros(size, np.bool_)
                nulls[self.index] = column.nulls
            column = Column(values, nulls)
        return RowSet({**self.columns, key_id: column}, self.index)

    def to_list(self, key: Key) -> list[Any]:
        """The values of a key for these rows as plain Python values, None where null."""
        values, nulls = self.read(key)
        if nulls is True:
            return [None] * self._length
        if not isinstance(values, np.ndarray):
            return [values] * self._length
        listed: list[Any] = values.tolist()
        if isinstance(nulls, np.ndarray):
            return [None if null else value for value, null in zip(listed, nulls.tolist(), strict=True)]
        return listed


def new_rows(ids: Sequence[int] | NDArray[np.int64], columns: Mapping[int, Column] | None = None) -> RowSet:
    """Rows of their own: ids and further columns of the same length."""
    return RowSet({ID: Column(np.array(ids, dtype=np.int64)), **(columns or {})})


NO_ROWS: Final = new_rows([])


def concat(sets: Sequence[RowSet], keys: Mapping[int, Key]) -> RowSet:
    """The rows of all, one set after the other; where a set has no column it reads as if nothing had written it."""
    if len(sets) == 1:
        return sets[0]
    total = sum(map(len, sets))
    columns: dict[int, Column] = {}
    for key_id in dict.fromkeys(key_id for rows in sets for key_id in rows.columns):
        key = keys[key_id]
        values = np.empty(total, _DTYPES[key.type])
        nulls: NDArray[np.bool_] | None = None
        start = 0
        for rows in sets:
            end = start + len(rows)
            values[start:end], part_nulls = rows.read(key)
            if part_nulls is not False:
                nulls = np.zeros(total, np.bool_) if nulls is None else nulls
                nulls[start:end] = part_nulls
            start = end
        columns[key_id] = Column(values, nulls)
    return RowSet(columns)


def order_of(rows: RowSet, key: Key, *, descending: bool) -> NDArray[np.intp] | None:
    """The positions of the rows in the order of a key, equal ones as they come and nulls last; None: as they are."""
    values, nulls = rows.read(key)
    if nulls is True or not isinstance(values, np.ndarray):
        return None
    if nulls is False:
        return _stable(values, descending=descending)
    valued = np.flatnonzero(~nulls)
    order = _stable(values[valued], descending=descending)
    return np.concatenate([valued[order], np.flatnonzero(nulls)])


def _stable(values: NDArray[Any], *, descending: bool) -> NDArray[np.intp]:
    if not descending:
        return np.argsort(values, kind="stable")
    # Backwards twice: equal values keep the order they came in.
    return len(values) - 1 - np.argsort(values[::-1], kind="stable")[::-1]


def unique_positions(rows: RowSet, key: Key, best: NDArray[np.intp] | None = None) -> NDArray[np.intp] | None:
    """The positions of one row for each value of a key, in their order; None if that is all of them.

    It is the first row with the value, in the order `best` if one is given. Null is no value: rows without one stay.
    """
    values, nulls = rows.read(key)
    size = len(rows)
    if nulls is True or not size:
        return None
    if not isinstance(values, np.ndarray):  # a default
        return np.array([0 if best is None else best[0]])
    order = np.arange(size) if best is None else best
    if isinstance(nulls, np.ndarray):
        order = order[~nulls[order]]
    ordered = values[order]
    if values.dtype == object:
        seen: dict[Any, int] = {}
        for at, value in enumerate(ordered.tolist()):
            seen.setdefault(value, at)
        first = np.fromiter(seen.values(), np.intp, len(seen))
    else:
        first = np.unique(ordered, return_index=True)[1]
    kept = order[first]
    if isinstance(nulls, np.ndarray):
        kept = np.concatenate([kept, np.flatnonzero(nulls)])
    return None if len(kept) == size else np.sort(kept)


def left_join(left: RowSet, right: RowSet, keys: Mapping[int, Key]) -> RowSet:
    """The left rows with the columns of the right row of the same id; without one they keep what they have.

    Raises ValueError if two right rows have the same id.
    """
    ids = right.ids()
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    if (same := ordered[1:] == ordered[:-1]).any():
        raise ValueError(f"two rows of the right side have the id {ordered[int(np.argmax(same))]}")
    wanted = left.ids()
    at = np.searchsorted(ordered, wanted)
    matched = np.zeros(len(wanted), np.bool_)
    inside = at < len(ordered)
    matched[inside] = ordered[at[inside]] == wanted[inside]
    source = right.at(order[at[matched]]) if matched.any() else right.head(0)
    for key_id in right.columns:
        if key_id == ID:
            continue
        key = keys[key_id]
        column, nulls = np.empty(len(left), _DTYPES[key.type]), np.zeros(len(left), np.bool_)
        for rows, where in ((left, slice(None)), (source, matched)):
            column[where], missing = rows.read(key)
            nulls[where] = missing
        left = left.with_column(key_id, Column(column, nulls if nulls.any() else None))
    return left


Items = TypeVar("Items", bound="Sequence[Any] | NDArray[Any]")

SLICE_ROWS: Final = 1024
"""Rows that are worked on between two checkpoints. `python -m benchmarks.plans` measures how long that takes."""


def slices(items: Items) -> Iterator[Items]:
    """The items, at most SLICE_ROWS at a time; between two of them the caller passes a checkpoint."""
    for start in range(0, len(items), SLICE_ROWS):
        yield items[start : start + SLICE_ROWS]  # type: ignore[misc]
