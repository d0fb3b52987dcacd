"""Queries over the rows of a dataset: pages, filters, full text and order, by DuckDB over the parts.

A row has a number: its position in the dataset, counted over the parts in their order; then come the rows of open row
groups, which are only in the journal. A search yields numbers, chunk by chunk, so that its first hits can be shown
while it runs. Nothing of a query but its filter is text of the user's, and that is parsed as one expression.
"""

from __future__ import annotations

import json
import re
import threading
from bisect import bisect_right
from itertools import accumulate, count
from typing import TYPE_CHECKING, Any

import attrs
import duckdb
import numpy as np
import polars as pl

from ..errors import SeedbedError
from ..store.parts import open_part
from ..store.values import is_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from ..store.dataset import Dataset

# A cell of a table, and one on the page of its row, has at most this many characters.
SHORT, LONG = 300, 200_000
# Seconds that one statement may take.
_TIMEOUT = 20.0
# Rows of the first chunk of a search, and of each one after it at most.
_FIRST, _CHUNK = 16_000, 100_000
# Text is sorted by this many of its bytes.
_PREFIX = 16


class QueryError(SeedbedError):
    """A filter that cannot be evaluated, or a query that took too long."""


@attrs.frozen(kw_only=True)
class Query:
    """Which rows, in which order: `where` is an SQL expression over the columns, `text` what some column contains."""

    where: str = ""
    text: str = ""
    sort: str = ""
    descending: bool = False

    @property
    def is_plain(self) -> bool:
        return not (self.where or self.text or self.sort)


class Database:
    """One DuckDB in memory for all datasets below some folders, which it reads and nothing else."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._connection = duckdb.connect(":memory:")
        for setting in (
            "memory_limit = '120MB'",
            "threads = 2",
            "temp_directory = ''",
            "python_enable_replacements = false",
            "autoload_known_extensions = false",
            "autoinstall_known_extensions = false",
        ):
            self._connection.execute(f"SET {setting}")
        allowed = ", ".join(_quoted(f"{folder.resolve()}/", "'") for folder in folders)
        self._connection.execute(f"SET allowed_directories = [{allowed}]")
        # From here on a statement reaches no other file, no network and no extension.
        self._connection.execute("SET enable_external_access = false")
        self._connection.execute("SET lock_configuration = true")

    def run(self, sql: str, parameters: Sequence[Any], where: str = "", wanted: str = "") -> pl.DataFrame:
        """Run a statement of ours, over its rows a filter, and `wanted` of those; it is interrupted after a while."""
        cursor = self._connection.cursor()
        timer = threading.Timer(_TIMEOUT, cursor.interrupt)
        timer.start()
        try:
            relation = cursor.sql(sql, params=list(parameters))
            if where:
                # Parsed by itself: it cannot end a statement of ours or add another one.
                relation = relation.filter(duckdb.SQLExpression(where))
            if wanted:
                relation = relation.project(wanted)
            found = relation.to_arrow_table()
        except duckdb.InterruptException as error:
            raise QueryError(f"the query took longer than {_TIMEOUT:g} s and was stopped") from error
        except (duckdb.Error, RuntimeError, UnicodeError) as error:
            raise QueryError(str(error).partition("\n")[0]) from error
        finally:
            timer.cancel()
            cursor.close()
        frame = pl.from_arrow(found)
        assert isinstance(frame, pl.DataFrame)
        return frame


class Table:
    """The rows of a dataset as it was when it was opened, and those of its open row groups."""

    def __init__(
        self,
        database: Database,
        dataset: Dataset,
        open_rows: Sequence[Mapping[str, Any]] = (),
        types: Mapping[str, str] | None = None,
    ) -> None:
        """Open the parts; `open_rows` are numbered after them, and `types` are the types of columns in the recipe."""
        self._database = database
        self.dataset = dataset
        self.open_rows = open_rows
        for part in dataset.parts:
            open_part(dataset.path, part).close()  # a link is an error here, before DuckDB would follow it
        # Absolute, and free of links above the dataset: DuckDB compares it with the folders that it may read.
        root = dataset.path.resolve()
        self._files = [str(root / part.name) for part in dataset.parts]
        self._ends = list(accumulate(part.rows for part in dataset.parts))
        self.rows = self._ends[-1] if self._ends else 0
        taken = {name.lower() for name in dataset.schema}
        # Columns of the dataset may have the names by which DuckDB numbers files and rows: then its rows are counted.
        self._is_counted = not taken.isdisjoint(("file_index", "file_row_number"))
        # The beginning of names of ours, which no column of the dataset has.
        self._own = next(
            mark for mark in map("_".__mul__, count(2)) if not any(name.startswith(mark) for name in taken)
        )
        conflicting = {conflict.column for conflict in dataset.conflicts}
        self.kinds = {
            name: "conflict" if name in conflicting else display_kind(dtype, (types or {}).get(name, ""))
            for name, dtype in dataset.schema.items()
        }

    @property
    def total(self) -> int:
        return self.rows + len(self.open_rows)

    def place(self, number: int) -> tuple[int, int]:
        """The part that holds a row, and the position in it."""
        part = bisect_right(self._ends, number)
        return part, number - (self._ends[part - 1] if part else 0)

    def page(self, numbers: Sequence[int], *, longest: int = SHORT) -> list[list[Any]]:
        """The cells of rows, in the order of `kinds`, as JSON values that are no longer than that."""
        stored = [number for number in numbers if number < self.rows]
        places = {number: self.place(number) for number in stored}
        files = sorted({part for part, _ in places.values()})
        cells: dict[int, list[Any]] = {}
        if stored:
            if self._is_counted:
                at = dict(
                    zip(files, accumulate((self.dataset.parts[part].rows for part in files), initial=0), strict=False)
                )
            else:
                at = {part: position << 32 for position, part in enumerate(files)}
            keys = {at[part] + position: number for number, (part, position) in places.items()}
            columns = ", ".join(self._projected(name, longest) for name in self.kinds)
            listed = ", ".join(map(str, keys))
            found = self._database.run(
                f"SELECT ({self._own}file << 32) + {self._own}row AS {self._own}key, {columns} FROM ({self._source}) "
                f"WHERE ({self._own}file << 32) + {self._own}row IN ({listed})",
                [[self._files[part] for part in files]],
            )
            for key, *values in found.iter_rows():
                cells[keys[key]] = [
                    shown(value, kind, longest) for value, kind in zip(values, self.kinds.values(), strict=True)
                ]
        missing = [None] * len(self.kinds)
        for number in numbers:
            if self.rows <= number < self.total:
                row = self.open_rows[number - self.rows]
                cells[number] = [shown(_plain(row.get(name)), kind, longest) for name, kind in self.kinds.items()]
        return [cells.get(number, missing) for number in numbers]

    def cell(self, number: int, column: str) -> Any:
        """The whole value of a cell, as text or bytes."""
        if number >= self.rows:
            value = self.open_rows[number - self.rows].get(column)
        else:
            part, position = self.place(number)
            name = _quoted(column)
            column_sql = name if self.kinds[column] in ("binary", "image") else f"{name}::VARCHAR"
            found = self._database.run(
                f"SELECT {column_sql} AS value FROM ({self._source}) WHERE {self._own}row = {position}",
                [[self._files[part]]],
            )
            value = found["value"][0] if found.height else None
        return value if isinstance(value, str | bytes) or value is None else _json(value)

    def check(self, query: Query) -> None:
        """Raise `QueryError` if a query cannot be run."""
        names = [*([query.sort] if query.sort else [])]
        if unknown := [name for name in names if name not in self.kinds]:
            raise QueryError(f"the dataset has no column {unknown[0]!r}")
        if query.where:
            self._database.run(f"{self._source} LIMIT 0", [self._files[:1]], query.where) if self._files else None

    @property
    def _source(self) -> str:
        place = (
            f"0 AS {self._own}file, row_number() OVER () - 1 AS {self._own}row"
            if self._is_counted
            else f"file_index AS {self._own}file, file_row_number AS {self._own}row"
        )
        # A condition that is added applies to rows that are numbered already.
        return f"SELECT * FROM (SELECT *, {place} FROM read_parquet(?, union_by_name=true))"

    def hits(self, query: Query) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any] | None]]:
        """Yield the numbers of the rows that a query selects, chunk by chunk, with the values to sort them by."""
        kind = np.int32 if self.total < 2**31 else np.int64
        for start, stop in self._chunks():
            parameters: list[Any] = [self._files[start:stop]]
            conditions = []
            if query.text:
                searched = [name for name, kind in self.kinds.items() if kind in _SEARCHED]
                conditions = [f"regexp_matches({self._text(name)}, ?, 'i')" for name in searched] or ["false"]
                parameters += [re.escape(query.text)] * len(searched)
            sql = self._source + (f" WHERE {' OR '.join(conditions)}" if conditions else "")
            key = f", {self._sort_key(query.sort)} AS {self._own}sort" if query.sort else ""
            wanted = f"{self._own}file, {self._own}row{key}"
            found = self._database.run(sql, parameters, query.where, wanted)
            starts = np.array([0, *self._ends], np.int64)[start + found[f"{self._own}file"].to_numpy().astype(np.int64)]
            numbers = (starts + found[f"{self._own}row"].to_numpy()).astype(kind)
            yield numbers, sort_keys(found[f"{self._own}sort"], descending=query.descending) if query.sort else None
        # Rows of open row groups have no types yet: text is searched in them, expressions are not evaluated.
        if self.open_rows and not query.where:
            text = query.text.lower()
            values = list(map(_json, self.open_rows)) if text else []
            chosen = [at for at in range(len(self.open_rows)) if not text or text in values[at].lower()]
            yield (self.rows + np.array(chosen, np.int64)).astype(kind), None

    def _chunks(self) -> Iterator[tuple[int, int]]:
        """Ranges of parts: small ones first, so that the first hits are there soon."""
        start, size, rows = 0, _FIRST, 0
        for stop, part in enumerate(self.dataset.parts, 1):
            rows += part.rows
            if rows >= size or stop == len(self.dataset.parts):
                yield start, stop
                start, rows, size = stop, 0, min(_CHUNK, size * 4)

    def _text(self, name: str) -> str:
        """A column as text, in SQL."""
        quoted = _quoted(name)
        return quoted if self.kinds[name] in _TEXTS else f"to_json({quoted})::VARCHAR"

    def _sort_key(self, name: str) -> str:
        quoted, kind = _quoted(name), self.kinds[name]
        if kind in ("number", "boolean", "time"):
            return quoted
        if kind == "binary":
            return f"octet_length({quoted})"
        return f"left({self._text(name)}, {_PREFIX})"

    def _projected(self, name: str, longest: int) -> str:
        quoted, kind = _quoted(name), self.kinds[name]
        if kind in ("number", "boolean"):
            return quoted
        if kind == "binary":
            return f"octet_length({quoted})"
        if kind == "vector":
            return f"to_json([len({quoted}), {quoted}[:8]]::JSON[])::VARCHAR"
        if kind == "conflict":
            return "NULL"
        text = f"{quoted}::VARCHAR" if kind == "time" else self._text(name)
        return f"left({text}, {longest + 1})"


class Search:
    """A query that runs in a thread; its hits may be read while it does."""

    def __init__(self, table: Table, query: Query) -> None:
        self._table, self._query = table, query
        self._changed = threading.Condition()
        # Guarded by the condition.
        self._numbers: list[np.ndarray[Any, Any]] = []
        self.found = 0
        self.done = False
        self.error: str | None = None
        self._stopped = False

    def run(self) -> None:
        # Arrays for all rows, filled chunk by chunk: lists of arrays would be there twice when they are joined.
        keys = unsorted = np.empty(0)
        count = 0
        try:
            for numbers, key in self._table.hits(self._query):
                if self._stopped:
                    return
                if key is None:
                    self._add(numbers)
                    continue
                if not count:
                    keys, unsorted = (np.empty(self._table.rows, each.dtype) for each in (key, numbers))
                keys[count : count + key.size], unsorted[count : count + key.size] = key, numbers
                count += key.size
            if count:
                order = np.argsort(keys[:count], kind="stable")
                if self._query.descending and keys.dtype.kind == "S":
                    order = order[::-1]
                ordered = unsorted[:count][order]
                # Rows of open row groups, which were added already, come last.
                with self._changed:
                    self._numbers.insert(0, ordered)
                    self.found += ordered.size
        except Exception as error:  # noqa: BLE001  it is shown where the search is
            self.error = str(error) if isinstance(error, SeedbedError) else f"{type(error).__name__}: {error}"
        finally:
            with self._changed:
                self.done = True
                self._changed.notify_all()

    def _add(self, numbers: np.ndarray[Any, Any]) -> None:
        with self._changed:
            self._numbers.append(numbers)
            self.found += numbers.size
            self._changed.notify_all()

    def stop(self) -> None:
        """End the search after its chunk: nothing reads it any more."""
        self._stopped = True

    def wait(self, count: int, timeout: float) -> None:
        """Wait until there are so many hits, or all."""
        with self._changed:
            self._changed.wait_for(lambda: self.done or (self.found >= count and not self._query.sort), timeout)

    def numbers(self, offset: int, limit: int) -> list[int]:
        """The numbers of hits."""
        with self._changed:
            if len(self._numbers) > 1:
                self._numbers = [np.concatenate(self._numbers)]
            ready = self._numbers and (self.done or not self._query.sort)
            return self._numbers[0][offset : offset + limit].tolist() if ready else []

    def position(self, number: int) -> int | None:
        """Where a row is among the hits so far."""
        found = np.flatnonzero(np.concatenate(self._numbers) == number) if self._numbers else np.empty(0)
        return int(found[0]) if found.size else None


def sort_keys(values: pl.Series, *, descending: bool) -> np.ndarray[Any, Any]:
    """Values as an array that numpy sorts, nulls last: numbers, negated if descending, or the first bytes of texts.

    Texts that are sorted in descending order are to be reversed. A million of them take 16 MB; as strings they would
    take several times that (benchmarks/view).
    """
    if values.dtype == pl.String:
        empty = b"" if descending else b"\xff" * _PREFIX
        found = [empty if value is None else value for value in values.cast(pl.Binary).to_list()]
        return np.array(found, f"S{_PREFIX}")
    numbers = values.to_physical().cast(pl.Float64, strict=False).fill_null(float("nan")).to_numpy()
    return -numbers if descending else numbers


_TEXTS = frozenset({"text", "code", "image"})
_SEARCHED = frozenset({*_TEXTS, "document", "scores", "chat", "list"})


def display_kind(dtype: Any, recipe_type: str = "") -> str:
    """How the values of a column are shown."""
    kinds: dict[Any, str] = {pl.String: "text", pl.Boolean: "boolean", pl.Binary: "binary", pl.Null: "text"}
    if dtype == pl.String and recipe_type in ("image", "llm-code"):
        return "image" if recipe_type == "image" else "code"
    if dtype in kinds:
        return kinds[dtype]
    if is_json(dtype):
        return "document"
    if isinstance(dtype, pl.Struct):
        return "scores" if any(_is_score(field.dtype) for field in dtype.fields) else "document"
    if isinstance(dtype, pl.List | pl.Array):
        inner = dtype.inner
        if isinstance(inner, pl.Struct) and {"role", "content"} <= {field.name for field in inner.fields}:
            return "chat"
        return "vector" if inner.is_float() else "list"
    if dtype.is_numeric():
        return "number"
    return "time" if dtype.is_temporal() else "text"


def _is_score(dtype: Any) -> bool:
    if isinstance(dtype, pl.Struct):
        return any(_is_score(field.dtype) for field in dtype.fields)
    return bool(dtype.is_numeric())


def shown(value: Any, kind: str, longest: int) -> Any:
    """A cell as a JSON value: a scalar, or an object that names what it is."""
    if value is None or isinstance(value, bool):
        return value
    if kind == "conflict":
        return None
    if isinstance(value, int) and kind != "binary":
        return value if abs(value) < 2**53 else str(value)
    if isinstance(value, float):
        return value if np.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return {"bytes": len(value)}
    if kind == "binary":
        return {"bytes": value}
    text = value if isinstance(value, str) else str(value)
    if len(text) > longest:
        return {"cut": text[:longest]} if kind in _TEXTS or kind == "time" else {"json": text[:longest], "cut": True}
    return text if kind in _TEXTS or kind in ("time", "number") else {"json": text}


def _plain(value: Any) -> Any:
    """A value of the journal as a scalar or text."""
    return value if value is None or isinstance(value, str | int | float | bytes) else _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _quoted(text: str, mark: str = '"') -> str:
    return mark + text.replace(mark, mark * 2) + mark
