"""Columns that come from data that is already there."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import attrs
import polars as pl
import pyarrow as pa

from ..errors import ConfigError
from .spec import HOW, ColumnSpec

FORMATS: Mapping[str, tuple[str, ...]] = {
    "csv": (".csv", ".tsv"),
    "jsonl": (".jsonl", ".ndjson", ".json"),
    "parquet": (".parquet", ".pq"),
}
"""Formats of seed files, and how their names end (.gz and .zst may follow, except for parquet)."""


def is_local_url(path: str) -> bool:
    """True for the URL of a local file, `file:///…`."""
    return path.partition("://")[0] in ("file", "local")


def _path(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _columns(value: Any) -> Any:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Mapping):
        return dict(value)
    return tuple(value) if isinstance(value, Sequence) else value


def _frame(value: Any) -> Any:
    """Whatever holds rows as a polars frame; anything else stays as it is, to be refused."""
    if isinstance(value, pl.LazyFrame):
        return value.collect()
    return pl.from_arrow(value) if isinstance(value, pa.Table) else value


def _partition(value: Any) -> Any:
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@attrs.frozen
class Seed(ColumnSpec):
    """Rows of a CSV, JSONL or parquet file (or several, by a pattern with `*`), or of a frame; read in batches.

    It makes one column for each of the file's, or for those of `columns`: a list of names, or a mapping from the names
    here to those in the file. `name` only stands for all of them in messages and in progress. `path` may be relative to
    the recipe file, or a URL of any filesystem that fsspec knows; credentials are that filesystem's own affair.

    Rows come in the order of the file, or with `order="shuffled"` in one that the recipe's seed says (the data is first
    sorted into a temporary file). `start` and `stop` take a slice of the file's rows and `partition=(i, n)` part i,
    counted from 0, of that slice in n parts; both before any shuffling. Where more rows are asked for, they begin
    again, in the same order, unless `cycle=False`. `options` go to DuckDB's reader, for instance {"delim": ";"}.
    """

    type: ClassVar[str] = "seed"

    # Its rows count, wherever they are: the guard of a resume looks at the content.
    path: str | None = attrs.field(default=None, kw_only=True, converter=_path, metadata=HOW)
    frame: Any = attrs.field(default=None, kw_only=True, converter=_frame, eq=False, repr=False)
    format: str | None = attrs.field(default=None, kw_only=True)
    columns: tuple[str, ...] | dict[str, str] | None = attrs.field(default=None, kw_only=True, converter=_columns)
    order: str = attrs.field(default="ordered", kw_only=True)
    start: int = attrs.field(default=0, kw_only=True)
    stop: int | None = attrs.field(default=None, kw_only=True)
    partition: tuple[int, int] | None = attrs.field(default=None, kw_only=True, converter=_partition)
    cycle: bool = attrs.field(default=True, kw_only=True)
    options: Mapping[str, Any] = attrs.field(factory=dict, kw_only=True)

    def __attrs_post_init__(self) -> None:
        self._check_source()
        self._check_columns()
        if self.order not in ("ordered", "shuffled"):
            raise self._wrong("order", self.order, '"ordered" or "shuffled"')
        if not isinstance(self.cycle, bool):
            raise self._wrong("cycle", self.cycle, "true or false")
        if not _is_whole(self.start) or self.start < 0:
            raise self._wrong("start", self.start, "a whole number, 0 or more")
        if self.stop is not None and (not _is_whole(self.stop) or self.stop <= self.start):
            raise self._wrong("stop", self.stop, f"a whole number above start ({self.start})")
        if self.partition is not None:
            parts: Any = self.partition
            whole = isinstance(parts, tuple) and len(parts) == 2 and all(map(_is_whole, parts))
            if not whole or not 0 <= parts[0] < parts[1]:
                raise self._wrong("partition", parts, "(i, n) with i from 0 to n - 1")

    def _check_source(self) -> None:
        if (self.path is None) == (self.frame is None):
            raise ConfigError(f"column {self.name!r}: a seed has either a path or a frame")
        if self.frame is not None and not isinstance(self.frame, pl.DataFrame):
            raise self._wrong("frame", type(self.frame).__name__, "a polars frame or an arrow table")
        if self.frame is not None and not self.frame.width:
            raise ConfigError(f"column {self.name!r}: the frame has no columns")
        if self.path is not None and (not isinstance(self.path, str) or not self.path):
            raise self._wrong("path", self.path, "the path or URL of a file")
        if self.format is not None and self.format not in FORMATS:
            raise self._wrong("format", self.format, f"one of {', '.join(FORMATS)}")
        if self.path is not None and self.file_format is None:
            endings = ", ".join(ending for endings in FORMATS.values() for ending in endings)
            raise ConfigError(
                f"column {self.name!r}: the format of {self.path!r} is not known by its name ({endings}); "
                f"say format: one of {', '.join(FORMATS)}"
            )
        if not isinstance(self.options, Mapping) or not all(
            isinstance(key, str) and key.isidentifier() for key in self.options
        ):
            raise self._wrong("options", self.options, "a mapping from the names of reader options to values")
        if self.frame is not None and (self.options or self.format):
            raise ConfigError(f"column {self.name!r}: format and options are for files, not for a frame")

    def _check_columns(self) -> None:
        chosen: Any = self.columns
        if chosen is None:
            return
        names = [*chosen, *(chosen.values() if isinstance(chosen, dict) else ())] if chosen else []
        if not isinstance(chosen, tuple | dict) or not names or not all(isinstance(one, str) and one for one in names):
            raise self._wrong("columns", chosen, "a list of names or a mapping from new names to those in the file")
        twice = next((one for one in chosen if list(chosen).count(one) > 1), None)
        if twice is not None:
            raise ConfigError(f"column {self.name!r}: columns has {twice!r} twice")

    def paths(self) -> tuple[str, ...]:
        """Its file, where that is local."""
        return (self.path,) if self.path is not None and not self.urls() else ()

    def urls(self) -> tuple[str, ...]:
        """Its file, where that is remote."""
        return (self.path,) if self.path is not None and "://" in self.path and not is_local_url(self.path) else ()

    @property
    def file_format(self) -> str | None:
        """The format that is given, or the one that the path's ending says."""
        if self.format is not None or self.path is None:
            return self.format
        path = self.path.lower().removesuffix(".gz").removesuffix(".zst")
        return next((name for name, endings in FORMATS.items() if path.endswith(endings)), None)

    def _wrong(self, field: str, value: object, wanted: str) -> ConfigError:
        return ConfigError(f"column {self.name!r}: {field} must be {wanted}, not {value!r}")
