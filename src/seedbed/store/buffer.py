"""The rows of one row group while they are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from .values import arrow_array

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class Buffer:
    """One row group, column by column; a cell nobody wrote is None.

    Its row group is the only one to write it, cell by cell; `free` gives the memory back after the checkpoint.
    """

    __slots__ = ("_columns", "rows")

    def __init__(self, columns: Iterable[str], rows: int) -> None:
        self.rows = rows
        self._columns: dict[str, list[Any]] = {column: [None] * rows for column in columns}

    @classmethod
    def from_frame(cls, frame: pl.DataFrame, columns: Sequence[str]) -> Buffer:
        """Return a buffer of the frame's rows: columns in the frame are filled, the others are empty.

        Columns that only the frame has are left out.
        """
        buffer = cls(columns, frame.height)
        for column in columns:
            if column in frame.columns:
                buffer._columns[column] = frame[column].to_list()
        return buffer

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, in declared order."""
        return tuple(self._columns)

    def update_cell(self, row: int, column: str, value: object) -> None:
        """Set one cell."""
        self._columns[column][row] = value

    def values(self, column: str) -> list[Any]:
        """Return the column itself, not a copy: to be read only."""
        return self._columns[column]

    def take(self, columns: Iterable[str], rows: Sequence[int] | None = None) -> dict[str, list[Any]]:
        """Return the columns, or only the given local rows of them."""
        if rows is None:
            return {column: self._columns[column] for column in columns}
        return {column: list(map(self._columns[column].__getitem__, rows)) for column in columns}

    def frame(self, columns: Iterable[str], rows: Sequence[int] | None = None) -> pl.DataFrame:
        """Return the columns, or only the given local rows of them, as polars.

        A struct has every key that any row has. A column whose values have no one type is of dtype Object.
        """
        return make_frame(self.take(columns, rows), self.rows if rows is None else len(rows))

    def free(self) -> None:
        """Let go of every value; the buffer has no columns from then on."""
        self._columns.clear()


def make_frame(columns: Mapping[str, list[Any]], height: int) -> pl.DataFrame:
    """Return the columns as polars, also where there is none; see `Buffer.frame`."""
    if not columns:
        return pl.DataFrame(height=height)
    return pl.DataFrame([_series(name, values) for name, values in columns.items()])


def _series(name: str, values: list[Any]) -> pl.Series:
    try:
        # Not by polars' own inference: it forgets struct keys that first appear after row 100.
        return pl.Series(name, arrow_array(values))
    except Exception:  # noqa: BLE001 - a user's object may raise anything when it is looked at
        return pl.Series(name, values, dtype=pl.Object)
