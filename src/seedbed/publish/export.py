"""Write the rows of a dataset to files elsewhere: streamed in constant memory, and resumed after an early end.

The rows are cut into files. A file is written under a temporary name and appears as a whole; `.NAME.export`, beside the
target, lists those that are finished until all of them are. The same export begun again continues behind them. A single
file of lines on a local disk continues within the file.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import importlib
import json
import math
import os
import re
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as arrow_fs

from ..errors import ConfigError
from ..graph import nearest
from ..store.dataset import Dataset
from ..store.schema import stored_table
from ..store.values import is_json, python_rows
from .chat import CHAT_FORMATS, ChatFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import BinaryIO

_BY_ENDING = {
    "jsonl": "jsonl",
    "ndjson": "jsonl",
    "csv": "csv",
    "parquet": "parquet",
    "arrow": "arrow",
    "feather": "arrow",
}
_ENDINGS = {
    "jsonl": "jsonl",
    "csv": "csv",
    "parquet": "parquet",
    "arrow": "arrow",
    **dict.fromkeys(CHAT_FORMATS, "jsonl"),
}
FORMATS = tuple(_ENDINGS)
_LINES = frozenset({"jsonl", "csv", *CHAT_FORMATS})  # files to which rows can be appended
# A file of lines is continued behind the last of these steps.
_STEP_BYTES = 16 << 20
_PARTITION_ROWS = 1_000_000


@attrs.frozen(kw_only=True)
class Exported:
    """What an export wrote, in this run and in those that it continued."""

    rows: int
    """Rows that were written."""
    left_out: int
    """Rows without a value that the chat format needs."""
    files: tuple[str, ...]
    """The files, or the folder of a partitioned export."""


class _Rows(Protocol):
    """Rows that are read in ranges: a dataset, or its dropped rows."""

    @property
    def rows(self) -> int: ...
    @property
    def arrow_schema(self) -> pa.Schema: ...
    def tables(
        self, columns: Sequence[str] | None = None, *, start: int = 0, stop: int | None = None
    ) -> Iterator[pa.Table]: ...


@attrs.frozen
class _Table:
    """Rows in memory."""

    table: pa.Table

    @property
    def rows(self) -> int:
        return int(self.table.num_rows)

    @property
    def arrow_schema(self) -> pa.Schema:
        return self.table.schema

    def tables(
        self, columns: Sequence[str] | None = None, *, start: int = 0, stop: int | None = None
    ) -> Iterator[pa.Table]:
        chosen = self.table if columns is None else self.table.select(list(columns))
        yield chosen.slice(start, None if stop is None else stop - start)


def export(
    dataset: Dataset | str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002 - the word of the command line
    columns: Sequence[str] | None = None,
    mapping: Mapping[str, str] | None = None,
    rows_per_file: int | None = None,
    partition_by: Sequence[str] = (),
    dropped: bool = False,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Exported:
    """Write the rows of a dataset to a file, a folder of files, or any URL of fsspec.

    The format follows from the ending of `target` unless it is given: jsonl, csv, parquet, arrow, or one of the chat
    formats, whose fields `mapping` reads from columns. With `rows_per_file` or `partition_by` the target is a folder.
    `dropped` exports the dropped rows. An export that ended early continues when it is begun again; anything else that
    is there already is an error unless `overwrite`. `on_progress` is called with the rows so far, and those in all.
    """
    opened = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
    is_folder = rows_per_file is not None or bool(partition_by)
    kind = _format(format, os.fspath(target), "parquet" if partition_by else None)
    if rows_per_file is not None and (isinstance(rows_per_file, bool) or rows_per_file < 1):
        raise ConfigError(f"rows_per_file must be a whole number, 1 or more, not {rows_per_file!r}")
    if partition_by and kind != "parquet":
        raise ConfigError(f"partition_by writes parquet, not {kind}")
    source: _Rows = _Table(opened.dropped().to_arrow()) if dropped else opened
    names = tuple(source.arrow_schema.names)
    for name in (*(columns or ()), *partition_by):
        if name not in names:
            raise ConfigError(f"unknown column {name!r}{nearest(name, names)}")
    chosen = tuple(columns) if columns is not None else names
    chat = CHAT_FORMATS.get(kind)
    if mapping and chat is None:
        raise ConfigError(f"fields are mapped for chat formats ({', '.join(CHAT_FORMATS)}), not for {kind}")
    fields = {} if chat is None else chat.mapping(chosen, mapping or {})
    if chat is not None:
        chosen = tuple(dict.fromkeys(fields.values()))
    if missing := [name for name in partition_by if name not in chosen]:
        raise ConfigError(f"partition_by: column {missing[0]!r} is not among the exported columns")
    disk = _open_disk(os.fspath(target), storage_options or {}, is_folder=is_folder)
    what = [kind, chosen, fields, rows_per_file, tuple(partition_by), dropped, _state_of(opened, dropped)]
    return _Export(
        source=source,
        disk=disk,
        kind=kind,
        columns=chosen,
        chat=chat,
        fields=fields,
        partition_by=tuple(partition_by),
        step=rows_per_file or (_PARTITION_ROWS if partition_by else max(source.rows, 1)),
        is_folder=is_folder,
        progress=_Progress.open(disk, hashlib.blake2b(repr(what).encode()).hexdigest(), overwrite=overwrite),
        on_progress=on_progress or (lambda _done, _all: None),
    ).run()


def _format(given: str | None, target: str, default: str | None) -> str:
    if given is not None:
        if given not in FORMATS:
            raise ConfigError(f"unknown format {given!r}{nearest(given, FORMATS)}")
        return given
    ending = target.rpartition("/")[2].rpartition(".")[2].lower() if "." in target.rpartition("/")[2] else ""
    found = _BY_ENDING.get(ending, default)
    if found is None:
        raise ConfigError(f"the format of {target!r} does not follow from its ending: pass one of {', '.join(FORMATS)}")
    return found


def _state_of(dataset: Dataset, dropped: bool) -> object:
    """What determines the rows: a dataset that has changed since is another export."""
    return [part.checksum for part in dataset.parts] if not dropped else [repr(drop) for drop in dataset.drops]


@attrs.define(eq=False, kw_only=True)
class _Export:
    """One export. `_done` and `_left_out` are counted while it runs."""

    _source: _Rows
    _disk: _Disk
    _kind: str
    _columns: tuple[str, ...]
    _chat: ChatFormat | None
    _fields: Mapping[str, str]
    _partition_by: tuple[str, ...]
    _step: int
    _is_folder: bool
    _progress: _Progress
    _on_progress: Callable[[int, int], None]
    _done: int = 0
    _left_out: int = 0

    def run(self) -> Exported:
        rows, files = self._source.rows, []
        count = max(1, math.ceil(rows / self._step))
        for index in range(count):
            start, stop = index * self._step, min((index + 1) * self._step, rows)
            name = f"data-{index:05d}-of-{count:05d}.{_ENDINGS[self._kind]}" if self._is_folder else self._disk.name
            if not self._partition_by:
                files.append(self._disk.shown(name))
            if name in self._progress.files:
                self._left_out += self._progress.files[name]
                self._done = stop
                self._on_progress(self._done, rows)
                continue
            before = self._left_out
            if self._partition_by:
                self._write_partitions(index, start, stop)
            elif self._kind in _LINES and not self._is_folder and isinstance(self._disk, _LocalDisk):
                self._append_lines(self._disk, name, rows)
            else:
                with self._disk.create(name) as file:
                    self._write(file, start, stop)
            self._progress.finished(name, self._left_out - before)
        self._progress.end()
        return Exported(
            rows=rows - self._left_out,
            left_out=self._left_out,
            files=tuple(files or [self._disk.shown("")]),
        )

    def _tables(self, start: int, stop: int) -> Iterator[pa.Table]:
        for table in self._source.tables(self._columns, start=start, stop=stop):
            yield table
            self._done += table.num_rows
            self._on_progress(self._done, self._source.rows)

    def _schema(self) -> pa.Schema:
        empty = pa.schema([self._source.arrow_schema.field(name) for name in self._columns]).empty_table()
        return stored_table(empty).schema

    def _write(self, file: BinaryIO, start: int, stop: int) -> None:
        if self._kind == "parquet":
            with pq.ParquetWriter(file, self._schema(), compression="zstd") as parquet:
                for table in self._tables(start, stop):
                    parquet.write_table(stored_table(table))
        elif self._kind == "arrow":
            with pa.ipc.new_file(file, self._schema()) as stream:  # type: ignore[arg-type]
                for table in self._tables(start, stop):
                    stream.write_table(stored_table(table))
        else:
            for number, table in enumerate(self._tables(start, stop)):
                file.write(self._lines(table, with_head=number == 0))

    def _append_lines(self, disk: _LocalDisk, name: str, rows: int) -> None:
        """Write a file of lines, continued behind what an earlier run has finished of it."""
        # Not if a kill came between the last rename and its record: then the file is whole, and is written anew.
        done, size, left_out = self._progress.step if disk.has_partial(name, self._progress.step[1]) else (0, 0, 0)
        with disk.append(name, size) as file:
            self._done, self._left_out = done, left_out
            position = size
            for table in self._tables(done, rows):
                file.write(self._lines(table, with_head=file.tell() == 0))
                done += table.num_rows
                if file.tell() - position >= _STEP_BYTES:
                    disk.sync(file)
                    position = file.tell()
                    self._progress.reached(done, position, self._left_out)

    def _lines(self, table: pa.Table, *, with_head: bool) -> bytes:
        frame: Any = pl.from_arrow(table)
        if self._kind == "csv":
            return _flat(frame).write_csv(include_header=with_head).encode()
        found: Iterable[Any] = python_rows(frame)
        if self._chat is not None:
            converted = [self._chat.convert(row, self._fields) for row in found]
            found = [each for each in converted if each is not None]
            self._left_out += len(converted) - len(found)
        return b"".join(_json_line(each) for each in found)

    def _write_partitions(self, index: int, start: int, stop: int) -> None:
        from pyarrow import dataset as arrow_dataset  # noqa: PLC0415 - slow to import

        schema = self._schema()
        batches = (batch for table in self._tables(start, stop) for batch in stored_table(table).to_batches())
        write: Any = arrow_dataset.write_dataset  # the stubs lack preserve_order
        write(
            batches,
            base_dir=self._disk.base,
            filesystem=self._disk.arrow_filesystem(),
            schema=schema,
            format="parquet",
            partitioning=list(self._partition_by),
            partitioning_flavor="hive",
            # The names of a step that is written again are the same.
            basename_template=f"part-{index:05d}-{{i}}.parquet",
            existing_data_behavior="overwrite_or_ignore",
            preserve_order=True,
        )


def _json_line(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value, enc_hook=str) + b"\n"
    except (UnicodeEncodeError, OverflowError):  # lone surrogates, which JSON can escape
        return json.dumps(value, default=_plain).encode() + b"\n"


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, datetime.date | datetime.time) else str(value)


def _flat(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame for CSV: nested values and documents as JSON text, bytes as base64."""
    columns = []
    for series in frame:
        nested = series.dtype.is_nested() or is_json(series.dtype) or series.dtype == pl.Binary
        if nested:
            values = [row[series.name] for row in python_rows(series.to_frame())]
            texts = [None if each is None else _cell(each) for each in values]
            columns.append(pl.Series(series.name, texts, dtype=pl.String))
        else:
            columns.append(series)
    return pl.DataFrame(columns)


def _cell(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else _json_line(value).decode().rstrip("\n")


# Where files go.


def _open_disk(target: str, options: Mapping[str, Any], *, is_folder: bool) -> _Disk:
    if "://" not in target or target.startswith("file://"):
        if options:
            raise ConfigError("storage options are for URLs such as s3://bucket/file, not for a local path")
        path = Path(target.removeprefix("file://"))
        return _LocalDisk(path if is_folder else path.parent, "" if is_folder else path.name)
    try:
        fsspec: Any = importlib.import_module("fsspec")  # an extra
    except ImportError as error:
        raise ConfigError(f"a URL needs fsspec ({error}): install seedbed[remote]") from error
    scheme = target.partition("://")[0]
    try:
        # An instance of its own: a cached one may have been opened by another thread, or with other credentials.
        filesystem, path = fsspec.core.url_to_fs(target, skip_instance_cache=True, **options)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{scheme}:// cannot be opened: {error}") from error
    path = path.rstrip("/")
    folder, _, name = ("", "", "") if is_folder else path.rpartition("/")
    return _RemoteDisk(path if is_folder else folder, name, filesystem, scheme)


class _Disk(Protocol):
    """A folder, local or behind a URL. `name` is the single file of the export, empty for a folder of files."""

    base: str
    name: str

    def shown(self, name: str) -> str: ...
    def create(self, name: str) -> Any:
        """A context that yields a new file, which appears as a whole when the context ends without an exception."""
        ...

    def read(self, name: str) -> bytes | None: ...
    def remove(self, name: str) -> None: ...
    def listed(self) -> list[str]:
        """What exists of the target: its name, or the names of all files below it if it is a folder."""
        ...

    def arrow_filesystem(self) -> Any: ...


class _LocalDisk:
    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self.base = os.fspath(folder)
        self.name = name

    def shown(self, name: str) -> str:
        return os.fspath(self._folder / name)

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        with self.append(name, 0) as file:
            yield file

    def has_partial(self, name: str, size: int) -> bool:
        """True if an unfinished file has at least `size` bytes."""
        partial = self._partial(name)
        return partial.is_file() and partial.stat().st_size >= size

    def _partial(self, name: str) -> Path:
        return self._folder / f".{name}.partial"

    @contextmanager
    def append(self, name: str, size: int) -> Iterator[BinaryIO]:
        """Continue an unfinished file behind its first `size` bytes; it gets its name at the end."""
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = self._partial(name)
        with partial.open("r+b" if size else "wb") as file:
            file.truncate(size)
            file.seek(size)
            yield file
            self.sync(file)
        partial.replace(self._folder / name)

    def sync(self, file: BinaryIO) -> None:
        file.flush()
        os.fsync(file.fileno())

    def read(self, name: str) -> bytes | None:
        path = self._folder / name
        return path.read_bytes() if path.is_file() else None

    def remove(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)

    def listed(self) -> list[str]:
        if self.name:
            return [self.name] if (self._folder / self.name).exists() else []
        return [path.relative_to(self._folder).as_posix() for path in self._folder.rglob("*") if not path.is_dir()]

    def arrow_filesystem(self) -> Any:
        return arrow_fs.LocalFileSystem()


class _RemoteDisk:
    def __init__(self, folder: str, name: str, filesystem: Any, scheme: str) -> None:
        self.base = folder
        self.name = name
        self._filesystem = filesystem
        self._scheme = scheme

    def _path(self, name: str) -> str:
        return f"{self.base}/{name}" if name and self.base else name or self.base

    def shown(self, name: str) -> str:
        return f"{self._scheme}://{self._path(name)}"

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        with self._errors():
            file = self._open(name)
        try:
            yield file
            with self._errors():
                file.close()
                file.commit()
        except BaseException:
            file.discard()
            with suppress(AttributeError):  # else its finalizer would store it
                file.closed = True
            raise

    def _open(self, name: str) -> Any:
        # Closing a file stores it, also when an exception closes it: only the commit makes it appear.
        try:
            return self._filesystem.open(self._path(name), "wb", autocommit=False)
        except FileNotFoundError:  # a file system with real folders
            self._filesystem.makedirs(self.base, exist_ok=True)
            return self._filesystem.open(self._path(name), "wb", autocommit=False)

    def read(self, name: str) -> bytes | None:
        with self._errors():
            path = self._path(name)
            return self._filesystem.cat_file(path) if self._filesystem.exists(path) else None

    def remove(self, name: str) -> None:
        with self._errors():
            if self._filesystem.exists(self._path(name)):
                self._filesystem.rm_file(self._path(name))

    def listed(self) -> list[str]:
        with self._errors():
            if self.name:
                return [self.name] if self._filesystem.exists(self._path(self.name)) else []
            found = self._filesystem.find(self.base) if self._filesystem.exists(self.base) else []
        return [path.removeprefix(f"{self.base}/") for path in found]

    def arrow_filesystem(self) -> Any:
        handler: Any = arrow_fs.FSSpecHandler  # abstract for the stubs
        return arrow_fs.PyFileSystem(handler(self._filesystem))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigError(f"{self.shown(self.name)}: {error}") from error


_OWN = re.compile(
    r"(.*/)?(data-\d{5,}-of-\d{5,}\.[a-z]+|part-\d{5,}-\d+\.parquet|\.data.*\.(partial|export))", re.DOTALL
)


def _clear(disk: _Disk, names: Iterable[str]) -> None:
    """Remove the files of another export from a folder, which must hold nothing else."""
    if others := sorted(name for name in names if not _OWN.fullmatch(name)):
        raise ConfigError(
            f"{disk.shown('')} holds {others[0]!r}, which no export has written: nothing is overwritten there; "
            "name another folder"
        )
    for name in names:
        disk.remove(name)


@attrs.define(eq=False)
class _Progress:
    """What is finished of an export, stored beside its files until all of it is.

    `files` are the finished files, each with the rows that were left out of it; `step` is how far the single file is:
    rows of the dataset, bytes, rows left out.
    """

    _disk: _Disk
    _name: str
    _export: str  # what is exported, and how
    files: dict[str, int] = attrs.field(factory=dict)
    step: tuple[int, int, int] = (0, 0, 0)

    @classmethod
    def open(cls, disk: _Disk, export: str, *, overwrite: bool) -> _Progress:
        progress = cls(disk, f".{disk.name or 'data'}.export", export)
        stored = disk.read(progress._name)
        where = disk.shown(disk.name)
        if stored is not None and not overwrite:
            found = _read_stored(stored)
            if found is None or found.export != export:
                raise ConfigError(
                    f"{where} is an unfinished export of other rows or with other options; pass --overwrite "
                    "(overwrite=True) to replace it"
                )
            progress.files, progress.step = found.files, found.step
        elif found_files := disk.listed():
            if not overwrite:
                raise ConfigError(
                    f"{where} exists already; pass --overwrite (overwrite=True) to replace it, or name another target"
                )
            if not disk.name:
                _clear(disk, found_files)
        progress._store()
        return progress

    def reached(self, rows: int, size: int, left_out: int) -> None:
        self.step = rows, size, left_out
        self._store()

    def finished(self, name: str, left_out: int) -> None:
        self.files[name] = left_out
        self._store()

    def end(self) -> None:
        self._disk.remove(self._name)

    def _store(self) -> None:
        stored = _Stored(export=self._export, files=self.files, step=self.step)
        with self._disk.create(self._name) as file:
            file.write(msgspec.json.encode(stored))


class _Stored(msgspec.Struct, kw_only=True):
    export: str
    files: dict[str, int]
    step: tuple[int, int, int]


def _read_stored(content: bytes) -> _Stored | None:
    try:
        return msgspec.json.decode(content, type=_Stored)
    except msgspec.MsgspecError:
        return None
