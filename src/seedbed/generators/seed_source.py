"""The rows that a seed means, as SQL, with everything checked that can be before a build runs."""

from __future__ import annotations

import datetime
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import duckdb
import pyarrow as pa

from ..errors import ConfigError
from ..graph import nearest
from ..recipe.access import fixed_part
from ..recipe.seed import is_local_url
from .content import tell_content
from .extras import import_extra

if TYPE_CHECKING:
    from ..recipe.seed import Seed
    from .registry import Environment

_READERS: dict[str, tuple[str, dict[str, Any]]] = {
    "csv": ("read_csv", {"header": True}),
    "jsonl": ("read_json", {"format": "auto"}),
    "parquet": ("read_parquet", {}),
}
_FRAME = "seedbed_frame"
# Of a file far away less is read to tell whether it changed.
_WHOLE_REMOTE = 4 * 1024 * 1024


class SeedSource:
    """A seed's file or frame: its columns, their types, and queries for its rows.

    The file is opened and its first rows are looked at when this is made; its rows are counted only where the answer is
    needed, because of a text file that reads all of it.
    """

    def __init__(self, spec: Seed, environment: Environment) -> None:
        self.spec = spec
        self._environment = environment
        # Where a local file or pattern is; of a URL None, unless the file had to be copied.
        self._local: str | None = None
        self._remote: Any = None  # the filesystem of a URL
        self.label = "the frame" if spec.path is None else repr(spec.path)
        # One database for each seed; DuckDB fetches nothing for it, and URLs are fsspec's.
        self._database = duckdb.connect(
            config={"autoinstall_known_extensions": False, "autoload_known_extensions": False, "threads": 2}
        )
        self._frame = None if spec.frame is None else spec.frame.to_arrow()
        self._table = _FRAME if spec.path is None else self._open_file(spec.path)
        self._rows: range | None = None
        schema = self._schema(f"SELECT * FROM {self._table}")
        chosen = self._chosen(schema.names)
        self._select = ", ".join(
            f"{_expression(old, schema.field(old).type)} AS {_name(new)}" for new, old in chosen.items()
        )
        made = self._schema(f"SELECT {self._select} FROM {self._table}")
        self.outputs: tuple[str, ...] = tuple(made.names)
        self.dtypes = {field.name: _declared(field.type) for field in made if not pa.types.is_null(field.type)}
        if spec.partition is not None or not spec.cycle:
            _ = self.rows
        elif not self._fetch(f"SELECT 1 FROM {self._table} OFFSET {spec.start} LIMIT 1"):
            raise self._no_rows(self._count())

    def content(self) -> str | None:
        """What the files hold, in one line that is another one once they hold something else; None of a frame."""
        path = self.spec.path
        if path is None:
            return None
        try:
            if self._local is None:
                names = sorted(self._remote.glob(path)) if _is_pattern(path) else [path]
                return tell_content(names, lambda name: self._remote.open(name, "rb"), whole=_WHOLE_REMOTE)
            return tell_content(self._matches(self._local), lambda name: Path(name).open("rb"))
        except OSError as error:
            raise ConfigError(
                f"column {self.spec.name!r}: {self.label} cannot be read: {first_lines(error)}"
            ) from error

    def connect(self) -> duckdb.DuckDBPyConnection:
        """A connection to the same database: each holds one open result at most."""
        connection = self._database.cursor()
        if self._frame is not None:
            connection.register(_FRAME, self._frame)
        return connection

    def query(self, start: int) -> str:
        """SQL for the rows that are used, in the order of the file, beginning with this one of them."""
        if self._rows is not None:
            rows = self._rows[start:]
            limit = f" LIMIT {len(rows)}"
        else:
            rows = range(self.spec.start + start, self.spec.start + start)
            limit = "" if self.spec.stop is None else f" LIMIT {max(0, self.spec.stop - rows.start)}"
        return f"SELECT {self._select} FROM {self._table} OFFSET {rows.start}{limit}"

    @property
    def rows(self) -> range:
        """The rows that are used, by their numbers in the file; the first look at this counts them."""
        if self._rows is None:
            count = self._count()
            rows = used_rows(self.spec, count)
            if not rows:
                raise self._no_rows(count)
            self._rows = rows
        return self._rows

    def _count(self) -> int:
        return int(self._fetch(f"SELECT count(*) FROM {self._table}")[0][0])

    def _fetch(self, sql: str) -> list[tuple[Any, ...]]:
        try:
            with self.connect() as connection:
                return connection.sql(sql).fetchall()
        except duckdb.Error as error:
            raise self._unreadable(error) from error

    def _schema(self, sql: str) -> pa.Schema:
        try:
            with self.connect() as connection:
                schema: pa.Schema = connection.sql(f"{sql} LIMIT 0").to_arrow_table().schema
                return schema
        except duckdb.Error as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: duckdb.Error | OSError) -> ConfigError:
        found = first_lines(error)
        if "No files found" in found:
            return ConfigError(f"column {self.spec.name!r}: there is no file {self.spec.path!r}")
        return ConfigError(f"column {self.spec.name!r}: {self.label} cannot be read: {found}")

    def _no_rows(self, count: int) -> ConfigError:
        spec = self.spec
        if not count:
            return ConfigError(f"column {spec.name!r}: {self.label} is empty")
        narrowed = {"start": spec.start or None, "stop": spec.stop, "partition": spec.partition}
        by = ", ".join(f"{name}={value}" for name, value in narrowed.items() if value is not None)
        return ConfigError(f"column {spec.name!r}: {self.label} has {count} rows, and {by} leaves none of them")

    def _open_file(self, path: str) -> str:
        if self.spec.urls():
            self._open_remote(path)
        else:
            self._local = self._find_local(path.partition("://")[2] if is_local_url(path) else path)
        path = self._local or path
        kind = self.spec.file_format
        assert kind is not None
        function, defaults = _READERS[kind]
        given = "".join(f", {name} = {literal(value)}" for name, value in {**defaults, **self.spec.options}.items())
        return f"{function}({literal(path)}{given})"

    def _find_local(self, given: str) -> str:
        where = f"column {self.spec.name!r}, path"
        # Also before anything is listed: a pattern must not walk through folders that the recipe may not read.
        path = self._environment.base / Path(given).expanduser()
        self._environment.path(fixed_part(path), where)
        if not _is_pattern(str(path)) and not path.is_file():
            raise ConfigError(f"column {self.spec.name!r}: there is no file {str(path)!r}")
        for name in self._matches(str(path)):
            self._environment.path(name, where)
        return str(path)

    def _matches(self, local: str) -> list[str]:
        found = self._fetch(f"SELECT file FROM glob({literal(local)})") if _is_pattern(local) else [(local,)]
        return sorted(name for (name,) in found)

    def _open_remote(self, path: str) -> None:
        protocol = path.partition("://")[0]
        if self._environment.access is not None:
            self._environment.access.check_protocol(protocol, f"column {self.spec.name!r}, path")
        fsspec: Any = import_extra("fsspec", extra="remote", column=self.spec.name)
        try:
            # Not the instance that everyone else in this process gets: it is changed here.
            self._remote = fsspec.filesystem(protocol, skip_instance_cache=True)
            if protocol in ("http", "https"):
                # DuckDB asks when a file was modified, to know whether what it holds is old; fsspec does not know.
                self._remote.modified = lambda _: datetime.datetime.fromtimestamp(0, datetime.UTC)
                if not _is_pattern(path.partition("?")[0]) and not _can_seek(self._remote, path):
                    self._local = self._copy(path)
                    return
            self._database.register_filesystem(self._remote)
        except Exception as error:  # each filesystem has errors of its own
            cause = error.__cause__ if isinstance(error, FileNotFoundError) and error.__cause__ is not None else error
            problem = f"column {self.spec.name!r}: {path!r} cannot be opened: {first_lines(cause)}"
            raise ConfigError(problem) from error

    def _copy(self, path: str) -> str:
        """A temporary copy of a file whose server sends it only from the beginning to the end."""
        folder = tempfile.mkdtemp(prefix="seedbed-seed-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        # DuckDB knows by the name how a file is compressed.
        copy = str(Path(folder, f"copy{''.join(Path(urlsplit(path).path).suffixes[-2:])}"))
        self._remote.get_file(path, copy)
        return copy

    def _chosen(self, known: list[str]) -> dict[str, str]:
        """The names of the columns here and in the file."""
        chosen = self.spec.columns
        wanted = chosen if isinstance(chosen, dict) else {name: name for name in (known if chosen is None else chosen)}
        for name in wanted.values():
            if name not in known:
                hint = nearest(name, known)
                raise ConfigError(f"column {self.spec.name!r}: {self.label} has no column {name!r}{hint}")
        return wanted


def _can_seek(remote: Any, path: str) -> bool:
    try:
        with remote.open(path, "rb") as file:
            file.seek(1)
            file.read(1)
    except ValueError:  # what fsspec raises where a server does not answer requests for ranges
        return False
    return True


def _is_pattern(path: str) -> bool:
    return any(sign in path for sign in "*?[")


def used_rows(spec: Seed, count: int) -> range:
    """The rows of a file of so many that the slice and the partition leave."""
    rows = range(count)[spec.start : spec.stop]
    if spec.partition is None:
        return rows
    part, parts = spec.partition
    return rows[len(rows) * part // parts : len(rows) * (part + 1) // parts]


def first_lines(error: BaseException) -> str:
    """What a reader says is wrong, without the advice on its own options that follows."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = " ".join(lines[:3])[:400]
    if "onver" in said and "sample_size" not in said:  # conversion, converting, convert
        said += ' (options={"sample_size": -1} looks at every row before it decides on types)'
    return said


def _expression(name: str, dtype: Any) -> str:
    # A dataset has no maps, no intervals of months and no dictionaries: these come as text.
    return _name(name) if _is_storable(dtype) else f"CAST({_name(name)} AS VARCHAR)"


def _is_storable(dtype: Any) -> bool:
    is_ = pa.types
    if is_.is_map(dtype) or is_.is_dictionary(dtype) or is_.is_interval(dtype) or is_.is_union(dtype):
        return False
    return all(_is_storable(dtype.field(index).type) for index in range(dtype.num_fields))


def _declared(dtype: Any) -> Any:
    # The zone that DuckDB says is that of the machine; the instants are the same in UTC.
    return pa.timestamp(dtype.unit, "UTC") if pa.types.is_timestamp(dtype) and dtype.tz is not None else dtype


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(value: Any) -> str:
    """A reader option as SQL."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "NULL"}[value]
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{literal(str(key))}: {literal(each)}" for key, each in value.items()) + "}"
    return "'" + str(value).replace("'", "''") + "'"
