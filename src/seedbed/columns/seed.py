"""Columns from existing data: files and frames, read by DuckDB one batch at a time."""

from __future__ import annotations

import datetime
import functools
import hashlib
import itertools
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar
from urllib.parse import urlsplit

import attrs
import duckdb
import polars as pl
import pyarrow as pa

from .. import checks
from ..errors import ConfigError, Permanent
from ..graph import Kind, nearest
from ..models.base import NOT_IN_FINGERPRINT
from ..store.values import JSON, is_json, json_series
from .base import Column
from .code import import_extra
from .spec import ColumnSpec, Environment

# Formats of seed files: the suffixes of their names (.gz and .zst may follow, except for parquet), DuckDB's reader and
# its options.
_FORMATS: dict[str, tuple[tuple[str, ...], str, dict[str, Any]]] = {
    "csv": ((".csv", ".tsv"), "read_csv", {"header": True}),
    "jsonl": ((".jsonl", ".ndjson", ".json"), "read_json", {"format": "auto"}),
    "parquet": ((".parquet", ".pq"), "read_parquet", {}),
}


def _as_path(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _as_columns(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else checks.as_names(value)


def _as_frame(value: Any) -> Any:
    if isinstance(value, pl.LazyFrame):
        return value.collect()
    return pl.from_arrow(value) if isinstance(value, pa.Table) else value


def _are_columns(value: Any) -> bool:
    names = [*value, *(value.values() if isinstance(value, dict) else ())] if isinstance(value, tuple | dict) else []
    return bool(names) and all(isinstance(name, str) and name for name in names)


def _is_partition(value: Any) -> bool:
    is_pair = isinstance(value, tuple) and len(value) == 2 and all(map(checks.is_whole, value))
    return is_pair and 0 <= value[0] < value[1]


def _are_options(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) and key.isidentifier() for key in value)


_check_path = checks.expect("the path or URL of a file", lambda value: isinstance(value, str) and bool(value))
_check_frame = checks.expect("a polars frame or an arrow table", lambda value: isinstance(value, pl.DataFrame))
_check_columns = checks.expect("a list of names or a mapping from new names to those in the file", _are_columns)
_check_partition = checks.expect("(i, n) with i from 0 to n - 1", _is_partition)
_check_options = checks.expect("a mapping from names of reader options to values", _are_options)


@attrs.frozen(kw_only=True)
class Seed(ColumnSpec):
    """Rows of a CSV, JSONL or parquet file, or of a frame, read in batches.

    It has an output for each column that it uses; messages and progress use `name` for all of them. `start`, `stop` and
    `partition` select rows before any shuffling, which sorts them into a temporary file.
    """

    type: ClassVar[str] = "seed"

    # Not in the fingerprint: a resume compares the content of the file, wherever it is.
    path: str | None = attrs.field(
        default=None, converter=_as_path, validator=checks.optional(_check_path), metadata=NOT_IN_FINGERPRINT
    )
    """The file, relative to the recipe file, or a URL of any filesystem that fsspec supports (`seedbed[remote]`); `*`
    in a name matches several files."""
    frame: Any = attrs.field(
        default=None, converter=_as_frame, validator=checks.optional(_check_frame), eq=False, repr=False
    )
    """In Python: the rows themselves, in place of `path`."""
    format: str | None = attrs.field(default=None, validator=checks.optional(checks.one_of(*_FORMATS)))
    """The format, if the name of the file does not end in it."""
    columns: tuple[str, ...] | dict[str, str] | None = attrs.field(
        default=None, converter=_as_columns, validator=checks.optional(_check_columns)
    )
    """The columns to use, by default all: a list of names, or a mapping from new names to those in the file."""
    order: str = attrs.field(default="ordered", validator=checks.one_of("ordered", "shuffled"))
    """`ordered` as in the file, or `shuffled` by the seed of the recipe."""
    start: int = attrs.field(default=0, validator=checks.whole(0))
    """The first row to use, counted from 0."""
    stop: int | None = attrs.field(default=None, validator=checks.optional(checks.whole(1)))
    """The row before which to stop."""
    partition: tuple[int, int] | None = attrs.field(
        default=None, converter=checks.as_tuple, validator=checks.optional(_check_partition)
    )
    """Only part i of these rows, counted from 0, in n equal parts."""
    cycle: bool = attrs.field(default=True, validator=checks.flag)
    """Start over when more rows are requested than there are; otherwise that is an error."""
    options: Mapping[str, Any] = attrs.field(factory=dict, validator=_check_options)
    """Options of DuckDB's reader for the format."""

    def __attrs_post_init__(self) -> None:
        if (self.path is None) == (self.frame is None):
            raise ConfigError(f"{self.error_prefix}a seed has either a path or a frame")
        if self.frame is not None and not self.frame.width:
            raise ConfigError(f"{self.error_prefix}the frame has no columns")
        if self.frame is not None and (self.options or self.format):
            raise ConfigError(f"{self.error_prefix}format and options are for files, not for a frame")
        if self.path is not None and self.file_format is None:
            suffixes = ", ".join(suffix for each, _, _ in _FORMATS.values() for suffix in each)
            raise ConfigError(
                f"{self.error_prefix}the format of {self.path!r} cannot be inferred from its name ({suffixes}); "
                f"set format to one of {', '.join(_FORMATS)}"
            )
        if self.stop is not None and self.stop <= self.start:
            raise ConfigError(f"{self.error_prefix}stop must be above start ({self.start}), not {self.stop}")
        chosen = list(self.columns or ())
        if duplicate := next((name for name in chosen if chosen.count(name) > 1), None):
            raise ConfigError(f"{self.error_prefix}columns has a duplicate {duplicate!r}")

    @property
    def file_format(self) -> str | None:
        """The format that is given, or else the one that the name of the file implies."""
        if self.format is not None or self.path is None:
            return self.format
        path = self.path.lower().removesuffix(".gz").removesuffix(".zst")
        return next((name for name, (suffixes, _, _) in _FORMATS.items() if path.endswith(suffixes)), None)

    @property
    def local_path(self) -> str | None:
        """The path of a local file; None for a remote URL and for a frame."""
        protocol, separator, rest = (self.path or "").partition("://")
        if not separator:
            return self.path
        return rest if protocol in ("file", "local") else None

    def paths(self) -> tuple[str, ...]:
        return (self.path,) if self.path is not None and self.local_path is not None else ()

    def urls(self) -> tuple[str, ...]:
        return (self.path,) if self.path is not None and self.local_path is None else ()

    def select(self, count: int) -> range:
        """The rows of a file of `count` rows that the slice and the partition select."""
        rows = range(count)[self.start : self.stop]
        if self.partition is None:
            return rows
        part, parts = self.partition
        return rows[len(rows) * part // parts : len(rows) * (part + 1) // parts]

    def to_column(self, environment: Environment) -> Column:
        reader = SeedReader(self, environment)
        if len(reader.outputs) > 1 and not (self.dtype is None or isinstance(self.dtype, Mapping)):
            raise ConfigError(f"{self.error_prefix}dtype must be a mapping from columns to types, not {self.dtype!r}")
        return Column(self.name, reader, kind=Kind.FROM_SCRATCH, outputs=reader.outputs, dtype=reader.dtypes)


# The most bytes of a file that are hashed; of a larger one only pieces, evenly spread, the first and last bytes too.
_HASHED = 64 * 1024 * 1024
_HASHED_REMOTE = 4 * 1024 * 1024
PIECES = 64


def content_digest(names: Sequence[str], opened: Callable[[str], BinaryIO], *, limit: int = _HASHED) -> str:
    """Number, size and hash of files in this order, whatever their names; `opened` opens one for reading.

    Of a file of more than `limit` bytes the size and pieces of that many bytes in total are hashed.
    """
    digest = hashlib.blake2b(digest_size=10)
    total = 0
    for name in names:
        with opened(name) as file:
            size = file.seek(0, 2)
            total += size
            digest.update(f"{size};".encode())
            if size <= limit:
                file.seek(0)
                while piece := file.read(1024 * 1024):
                    digest.update(piece)
            else:
                length = limit // PIECES
                for number in range(PIECES):
                    file.seek((size - length) * number // (PIECES - 1))
                    digest.update(file.read(length))
    files = "1 file" if len(names) == 1 else f"{len(names)} files"
    return f"{files}, {total:,} bytes, hash {digest.hexdigest()}"


# Rows that are read from DuckDB at once, which works in vectors of 2,048.
_BATCH = 8_192
# Sorting spills to disk above this, so that a shuffle needs no more memory for a larger file.
_SORT_MEMORY = "512MB"
_FRAME = "seedbed_frame"
_NUMBER = '"seedbed row number"'
# More rows than any file has, and few enough for DuckDB to add an offset.
_ENDLESS = 2**60


class SeedReader:
    """A cursor over the rows of a seed. The engine calls it in the order of row groups, one call at a time.

    A call for other rows than the next ones moves the cursor, so that a resume gets exactly the rows that an
    uninterrupted build would have got. The first rows are read at once, to find types and problems; rows are counted
    only if their number is needed, because counting reads all of a text file.
    """

    is_stateful = True
    replays = False

    def __init__(self, spec: Seed, environment: Environment) -> None:
        self._spec = spec
        self._environment = environment
        self._label = "the frame" if spec.path is None else repr(spec.path)
        # One database for each seed. It loads no extensions: fsspec opens URLs.
        self._database = duckdb.connect(
            config={"autoinstall_known_extensions": False, "autoload_known_extensions": False, "threads": 2}
        )
        self._frame = None if spec.frame is None else spec.frame.to_arrow()
        # A local file, pattern or copy; None if a remote filesystem reads the file.
        self._local: str | None = None
        self._remote: Any = None
        self._table = _FRAME if spec.path is None else self._open_file(spec.path)
        self._columns = self._select_columns(self._fetch(f"SELECT * FROM {self._table} LIMIT 0").schema)
        schema = self._fetch(f"SELECT {self._columns} FROM {self._table} LIMIT 0").schema
        self.outputs: tuple[str, ...] = tuple(schema.names)
        self.dtypes = {field.name: _declared(field.type) for field in schema if not pa.types.is_null(field.type)}
        # DuckDB returns JSON as text; so is text that is declared as JSON.
        described = self._fetch(f"DESCRIBE SELECT {self._columns} FROM {self._table}").to_pylist()
        self.dtypes |= {each["column_name"]: JSON for each in described if each["column_type"] == "JSON"}
        declared = spec.dtype if isinstance(spec.dtype, Mapping) else {self.outputs[0]: spec.dtype}
        types = self.dtypes | {name: dtype for name, dtype in declared.items() if dtype is not None}
        self._documents = [name for name in self.outputs if is_json(types.get(name))]
        self._check_not_empty()
        # Changed by `generate` only: the cursor, the rest of its last batch, and the next row of the dataset (None
        # before the first call and after an error).
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._rest: pa.RecordBatch | None = None
        self._next: int | None = None

    @property
    def available(self) -> int | None:
        """The number of rows that it can generate; None if they start over."""
        return None if self._spec.cycle else self._count

    def content_digest(self) -> str | None:
        """Represents the files in the fingerprint of a build; None for a frame, which the recipe holds."""
        path = self._spec.path
        if path is None:
            return None
        try:
            if self._local is None:
                names = sorted(self._remote.glob(path)) if _is_pattern(path) else [path]
                return content_digest(names, lambda name: self._remote.open(name, "rb"), limit=_HASHED_REMOTE)
            return content_digest(self._matches(self._local), lambda name: Path(name).open("rb"))
        except OSError as error:
            raise self._unreadable(error) from error

    def seed_rows(self, rows: range) -> list[int]:
        """The numbers that these rows of the dataset have in the file, from 0. Safe in any thread."""
        count = rows.stop
        if self._spec.cycle and rows:
            # The first rows need no count of the others.
            with self._connect() as connection:
                one = connection.sql(f"SELECT 1 FROM {self._table} OFFSET {self._spec.start + rows.stop - 1} LIMIT 1")
                is_beyond = self._spec.partition is not None or self._spec.stop is not None or not one.fetchall()
            count = self._count if is_beyond else count
        positions = [row % count for row in rows]
        if self._spec.order == "shuffled" and positions:
            low, high = min(positions), max(positions) + 1
            source = f"read_parquet({_literal(self._shuffled)})"
            with self._connect() as connection:
                found = connection.sql(f"SELECT {_NUMBER} FROM {source} OFFSET {low} LIMIT {high - low}").fetchall()
            positions = [int(found[at - low][0]) - 1 for at in positions]
        selected = self._spec.select(_ENDLESS if self._spec.partition is None else self._row_count)
        return [selected[at] for at in positions]

    def generate(self, rows: range) -> pl.DataFrame:
        """The values for these rows of the dataset."""
        try:
            if rows.start != self._next:
                # The first row needs no count of the others.
                first = rows.start % self._count if rows.start and self._spec.cycle else rows.start
                self._batches, self._rest = self._read(first), None
            self._next = None
            table = pa.Table.from_batches(list(self._take(rows)))
        except (duckdb.Error, pa.ArrowException, OSError) as error:  # Arrow passes on errors of DuckDB as its own
            raise Permanent(f"{self._spec.error_prefix}{self._label} cannot be read: {_message(error)}") from error
        self._next = rows.stop
        frame = pl.from_arrow(table)
        assert isinstance(frame, pl.DataFrame)
        try:
            return frame.with_columns(json_series(frame[name]) for name in self._documents)
        except ValueError as error:
            raise Permanent(f"{self._spec.error_prefix}{self._label} has text that is not JSON: {error}") from error

    def _take(self, rows: range) -> Iterator[pa.RecordBatch]:
        missing = len(rows)
        while missing:
            batch = self._rest if self._rest is not None else next(self._batches, None)
            if batch is None:
                raise Permanent(
                    f"{self._spec.error_prefix}{self._label} has {self._count} rows for this column, and row "
                    f"{rows.stop - 1} is requested: request fewer rows, or set cycle to true"
                )
            taken = batch.slice(0, missing)
            self._rest = batch.slice(taken.num_rows) if taken.num_rows < batch.num_rows else None
            missing -= taken.num_rows
            yield taken

    def _read(self, row: int) -> Iterator[pa.RecordBatch]:
        """All selected rows from this one on; with `cycle` they start over."""
        while True:
            count, small = 0, list[pa.RecordBatch]()
            with self._connect() as connection:
                for batch in connection.sql(self._query(row)).to_arrow_reader(_BATCH):
                    count += batch.num_rows
                    # Data of one batch or less is read once, however often it starts over.
                    small = [*small, batch] if count <= _BATCH else []
                    yield batch
            if not self._spec.cycle or not (row or count):
                return
            while small and not row:
                yield from small
            row = 0

    def _query(self, row: int) -> str:
        """SQL for the selected rows from this one on."""
        if self._spec.order == "shuffled":
            return f"SELECT * EXCLUDE ({_NUMBER}) FROM read_parquet({_literal(self._shuffled)}) OFFSET {row}"
        return self._ordered_query(row)

    def _ordered_query(self, row: int = 0) -> str:
        # A slice needs no count of the rows, a part of it does.
        rows = self._spec.select(_ENDLESS if self._spec.partition is None else self._row_count)[row:]
        return f"SELECT {self._columns} FROM {self._table} OFFSET {rows.start} LIMIT {len(rows)}"

    @functools.cached_property
    def _row_count(self) -> int:
        """The number of rows in the file."""
        return int(self._fetch(f"SELECT count(*) FROM {self._table}")[0][0].as_py())

    @property
    def _count(self) -> int:
        """The number of rows that are selected."""
        return len(self._spec.select(self._row_count))

    @functools.cached_property
    def _shuffled(self) -> Path:
        """A temporary file of the rows in another order.

        They are sorted by a hash of the seed and the number of each row: md5, because DuckDB's own hash may change with
        its version.
        """
        folder = self._temporary_folder()
        path = folder / "rows.parquet"
        key = f"md5_number_lower('{self._environment.seed}:' || {_NUMBER})"
        numbered = f"SELECT *, row_number() OVER () AS {_NUMBER} FROM ({self._ordered_query()})"
        ordered = f"SELECT * FROM ({numbered}) ORDER BY {key}, {_NUMBER}"
        with self._connect() as connection:
            connection.execute(f"SET memory_limit = '{_SORT_MEMORY}'")
            connection.execute(f"SET temp_directory = {_literal(folder / 'spill')}")
            connection.execute(f"COPY ({ordered}) TO {_literal(path)} (FORMAT parquet, ROW_GROUP_SIZE 10240)")
            connection.execute("RESET memory_limit")
        return path

    def _temporary_folder(self) -> Path:
        """A new folder that is removed with the reader."""
        folder = tempfile.mkdtemp(prefix="seedbed-seed-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return Path(folder)

    def _connect(self) -> duckdb.DuckDBPyConnection:
        """A connection to the same database: each has at most one open result."""
        connection = self._database.cursor()
        if self._frame is not None:
            connection.register(_FRAME, self._frame)
        return connection

    def _fetch(self, sql: str) -> pa.Table:
        try:
            with self._connect() as connection:
                table: pa.Table = connection.sql(sql).to_arrow_table()
                return table
        except duckdb.Error as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> ConfigError:
        found = _message(error)
        if "No files found" in found:
            return ConfigError(f"{self._spec.error_prefix}file not found: {self._spec.path!r}")
        return ConfigError(f"{self._spec.error_prefix}{self._label} cannot be read: {found}")

    def _check_not_empty(self) -> None:
        spec = self._spec
        if spec.partition is not None or not spec.cycle:
            is_empty = not self._count
        else:  # without counting the rows
            is_empty = not self._fetch(f"SELECT 1 FROM {self._table} OFFSET {spec.start} LIMIT 1").num_rows
        if is_empty and not self._row_count:
            raise ConfigError(f"{spec.error_prefix}{self._label} is empty")
        if is_empty:
            options = {"start": spec.start or None, "stop": spec.stop, "partition": spec.partition}
            given = ", ".join(f"{name}={value}" for name, value in options.items() if value is not None)
            raise ConfigError(
                f"{spec.error_prefix}{self._label} has {self._row_count} rows, and {given} selects none of them"
            )

    def _open_file(self, path: str) -> str:
        """The call of DuckDB's reader for the file."""
        if (given := self._spec.local_path) is not None:
            self._local = self._find_local(given)
        else:
            self._open_remote(path)
        assert self._spec.file_format is not None
        _, function, defaults = _FORMATS[self._spec.file_format]
        options = "".join(f", {name} = {_literal(value)}" for name, value in {**defaults, **self._spec.options}.items())
        return f"{function}({_literal(self._local or path)}{options})"

    def _find_local(self, given: str) -> str:
        where = f"column {self._spec.name!r}, path"
        # Also before anything is listed: a pattern must not walk through folders that the recipe may not read.
        path = self._environment.base / Path(given).expanduser()
        self._environment.path(Path(*itertools.takewhile(lambda part: not _is_pattern(part), path.parts)), where)
        if not _is_pattern(str(path)) and not path.is_file():
            raise ConfigError(f"{self._spec.error_prefix}file not found: {str(path)!r}")
        for name in self._matches(str(path)):
            self._environment.path(name, where)
        return str(path)

    def _matches(self, local: str) -> list[str]:
        if not _is_pattern(local):
            return [local]
        return sorted(map(str, self._fetch(f"SELECT file FROM glob({_literal(local)})")["file"].to_pylist()))

    def _open_remote(self, path: str) -> None:
        protocol = path.partition("://")[0]
        if self._environment.access is not None:
            self._environment.access.check_protocol(protocol, f"column {self._spec.name!r}, path")
        fsspec: Any = import_extra("fsspec", extra="remote", column=self._spec.name)
        try:
            # Not the instance that the process shares: it is changed here.
            self._remote = fsspec.filesystem(protocol, skip_instance_cache=True)
            if protocol in ("http", "https"):
                # DuckDB queries the time of the last change for its cache; fsspec does not have it.
                self._remote.modified = lambda _: datetime.datetime.fromtimestamp(0, datetime.UTC)
                if not _is_pattern(path.partition("?")[0]) and not _can_seek(self._remote, path):
                    self._local = self._copy(path)
                    return
            self._database.register_filesystem(self._remote)
        except Exception as error:  # each filesystem has its own errors
            cause = error.__cause__ if isinstance(error, FileNotFoundError) and error.__cause__ is not None else error
            problem = f"{self._spec.error_prefix}{path!r} cannot be opened: {_message(cause)}"
            raise ConfigError(problem) from error

    def _copy(self, path: str) -> str:
        """A temporary copy of a file whose server does not support range requests."""
        # DuckDB infers the compression of a file from its name.
        copy = str(self._temporary_folder() / f"copy{''.join(Path(urlsplit(path).path).suffixes[-2:])}")
        self._remote.get_file(path, copy)
        return copy

    def _select_columns(self, schema: pa.Schema) -> str:
        """The SELECT list of the chosen columns."""
        chosen = self._spec.columns if self._spec.columns is not None else tuple(schema.names)
        sources = chosen if isinstance(chosen, dict) else dict(zip(chosen, chosen, strict=True))
        expressions = []
        for name, source in sources.items():
            if source not in schema.names:
                hint = nearest(source, schema.names)
                raise ConfigError(f"{self._spec.error_prefix}{self._label} has no column {source!r}{hint}")
            # A dataset has no maps, no intervals of months and no dictionaries: these come as text.
            quoted = _quote(source)
            value = quoted if _is_storable(schema.field(source).type) else f"CAST({quoted} AS VARCHAR)"
            expressions.append(f"{value} AS {_quote(name)}")
        return ", ".join(expressions)


def _can_seek(remote: Any, path: str) -> bool:
    try:
        with remote.open(path, "rb") as file:
            file.seek(1)
            file.read(1)
    except ValueError:  # raised by fsspec if a server does not support range requests
        return False
    return True


def _is_pattern(path: str) -> bool:
    return any(sign in path for sign in "*?[")


def _message(error: BaseException) -> str:
    """The first lines of an error of a reader, without the advice on its own options that follows."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    found = " ".join(lines[:3])[:400]
    if "onver" in found and "sample_size" not in found:  # conversion, converting, convert
        found += ' (options={"sample_size": -1} reads every row before it decides on types)'
    return found


def _is_storable(dtype: Any) -> bool:
    is_ = pa.types
    if is_.is_map(dtype) or is_.is_dictionary(dtype) or is_.is_interval(dtype) or is_.is_union(dtype):
        return False
    return all(_is_storable(dtype.field(index).type) for index in range(dtype.num_fields))


def _declared(dtype: Any) -> Any:
    # DuckDB reports the zone of the machine; the instants are the same in UTC.
    return pa.timestamp(dtype.unit, "UTC") if pa.types.is_timestamp(dtype) and dtype.tz is not None else dtype


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(value: Any) -> str:
    """A reader option as SQL."""
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).lower()
        case int() | float():
            return repr(value)
        case list() | tuple():
            return f"[{', '.join(map(_literal, value))}]"
        case dict():
            return "{" + ", ".join(f"{_literal(str(key))}: {_literal(each)}" for key, each in value.items()) + "}"
    return "'" + str(value).replace("'", "''") + "'"
