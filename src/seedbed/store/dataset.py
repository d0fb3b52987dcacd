"""A dataset directory, read back as one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
from polars.io.plugins import register_io_source

from ..errors import PartError
from .dtypes import stored
from .files import open_file
from .journal import inspect_journal
from .manifest import Manifest, ManifestFile, read
from .parts import damage, locate, read_table
from .schema import Conflict, conflict_error, conform, distinct_conflicts, unify

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from ..observe.report import BuildReport
    from .records import Drop, PartRecord


class Dataset:
    """The finished rows of a directory, in declared row order and in one schema, as they were when it was opened.

    A directory whose build is still running, was stopped or was killed opens too and holds every finished row group.
    Where a processor after generation made something of the whole, that is what is read, and `raw()` has the rows
    before it.
    """

    # What the build did that has just made this; there is none in a directory that is only opened.
    report: BuildReport | None = None

    def __init__(self, path: Path, content: ManifestFile, *, raw: bool = False) -> None:
        self.path = path
        self._content = content
        processed = None if raw else content.manifest.processed
        self._parts = _parts(content.manifest) if processed is None else (processed.part,)
        self._schema, self._conflicts = (
            self._unified() if processed is None else (processed.part.schema, processed.conflicts)
        )

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Dataset:
        """Open a directory; `ManifestError` if it holds no dataset."""
        return cls(Path(path), read(Path(path)))

    def raw(self) -> Dataset:
        """Return the dataset as generated, before the processor over the whole of it."""
        return Dataset(self.path, self._content, raw=True)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(part.rows for part in self._parts)

    def __len__(self) -> int:
        return self.rows

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self._schema.names)

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of all rows; a column in conflict has the type of the parts before the conflict."""
        return self._schema

    @property
    def schema(self) -> pl.Schema:
        """The schema of all rows as polars has it."""
        return _frame(self._schema.empty_table()).schema

    @property
    def parts(self) -> tuple[PartRecord, ...]:
        """The files that hold the rows, in row order."""
        return self._parts

    @property
    def drops(self) -> tuple[Drop, ...]:
        """The rows that are not in the dataset and why, in row-group order."""
        return tuple(drop for _, group in sorted(self._content.manifest.groups.items()) for drop in group.drops)

    @property
    def conflicts(self) -> tuple[Conflict, ...]:
        """The columns whose values have no one type, and where."""
        return self._conflicts

    @property
    def damaged_ranges(self) -> tuple[tuple[int, int], ...]:
        """The ranges of bytes of the manifest that cannot be read; what they said is not in the dataset."""
        return self._content.damaged

    @property
    def complete(self) -> bool:
        """Whether the build finished and every row group is here."""
        return self._content.manifest.complete

    def __repr__(self) -> str:
        state = "complete" if self.complete else "incomplete"
        drops = f", {len(self.drops)} dropped" if self.drops else ""
        names = ", ".join(self.columns)
        return f"<Dataset {str(self.path)!r}: {self.rows} rows{drops}, {state}, columns {names}>"

    def scan(self, columns: Sequence[str] | None = None) -> pl.LazyFrame:
        """Return the rows as a lazy frame; `SchemaConflict` if a column asked for has no one type."""
        schema = self._selected(columns)
        paths = [locate(self.path, part) for part in self._parts]
        for path, part in zip(paths, self._parts, strict=True):
            try:
                # Polars opens it later and would follow a link.
                open_file(self.path, path.name).close()
            except FileNotFoundError as error:
                raise PartError(f"part {part.name!r} is missing in {str(self.path)!r}") from error
            except OSError as error:
                raise PartError(f"part {part.name!r} in {str(self.path)!r} cannot be read: {error}") from error
        dtypes = _frame(schema.empty_table()).schema
        if not paths or not schema.names:
            return pl.LazyFrame(schema=dtypes)
        if all(_as_stored(part, schema) for part in self._parts):
            return pl.scan_parquet(paths, schema=dtypes, extra_columns="ignore", glob=False)
        return register_io_source(
            lambda names, predicate, limit, _: self._batches(schema, names, predicate, limit), schema=dtypes
        )

    def to_polars(self, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Return the rows as a frame; `SchemaConflict` if a column asked for has no one type."""
        return self.scan(columns).collect()

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows as an arrow table; `SchemaConflict` if a column asked for has no one type."""
        schema = self._selected(columns)
        return pa.concat_tables([schema.empty_table(), *(self._read(part, schema) for part in self._parts)])

    def verify(self) -> None:
        """Read every file and compare it with its checksum; `PartError` names those that differ."""
        found = [wrong for part in self._parts if (wrong := self._wrong(part)) is not None]
        if found:
            raise PartError(f"in {str(self.path)!r}: {'; '.join(found)}")

    def damage(self) -> tuple[str, ...]:
        """Read every file, the manifest and the journal too, and say what is damaged and what that costs.

        One sentence each; nothing is changed. `seedbed resume` makes again what is lost.
        """
        manifest = self._content.manifest
        found = list(self._content.damage)
        for _, group in sorted(manifest.groups.items()):
            wrong = self._wrong(group.part)
            if wrong is not None:
                found.append(f"{wrong}; rows {group.start:,} to {group.stop - 1:,} are lost")
        wrong = self._wrong(manifest.processed.part if manifest.processed else None)
        if wrong is not None:
            found.append(f"{wrong}; the rows as generated are still there")
        journal = inspect_journal(self.path, commits=manifest.commits)
        if journal is not None:
            lost = None if self._content.damage else journal.missing_groups(len(manifest.groups))
            found += [*journal.damage, *([] if lost is None else [lost])]
        return tuple(found)

    def _wrong(self, part: PartRecord | None) -> str | None:
        try:
            return damage(self.path, part) if part is not None else None
        except OSError as error:
            return f"part {part.name!r} cannot be read: {error}" if part is not None else None

    def _unified(self) -> tuple[pa.Schema, tuple[Conflict, ...]]:
        manifest = self._content.manifest
        if manifest.finished is not None:
            return manifest.finished.schema, manifest.finished.conflicts
        header = manifest.header
        declared = {field.name: field.type for field in header.declared} if header else {}
        schemas = ((part.name, part.schema) for part in self._parts)
        schema, conflicts = unify(schemas, declared=declared, order=header.columns if header else ())
        written = (conflict for _, group in sorted(manifest.groups.items()) for conflict in group.conflicts)
        return schema, distinct_conflicts((*written, *conflicts))

    def _selected(self, columns: Sequence[str] | None) -> pa.Schema:
        names = self._schema.names if columns is None else list(columns)
        for name in names:
            if name not in self._schema.names:
                known = ", ".join(map(repr, self._schema.names))
                raise KeyError(f"the dataset has no column {name!r}; it has {known}")
        conflicts = [conflict for conflict in self._conflicts if conflict.column in names]
        if conflicts:
            raise conflict_error(conflicts)
        return pa.schema([self._schema.field(name) for name in names])

    def _read(self, part: PartRecord, schema: pa.Schema) -> pa.Table:
        table, conflicts = conform(read_table(locate(self.path, part), schema.names), schema, part=part.name)
        if conflicts:
            raise conflict_error(conflicts)
        return table

    def _batches(
        self, schema: pa.Schema, names: list[str] | None, predicate: pl.Expr | None, limit: int | None
    ) -> Iterator[pl.DataFrame]:
        """Yield part after part, cast, for polars, which leaves it to the source to select, limit and filter."""
        wanted = schema if names is None else pa.schema([schema.field(name) for name in names])
        for part in self._parts:
            if limit is not None and limit <= 0:
                return
            frame = _frame(self._read(part, wanted))
            if limit is not None:
                frame = frame.head(limit)
                limit -= frame.height
            yield frame if predicate is None else frame.filter(predicate)


def _parts(manifest: Manifest) -> tuple[PartRecord, ...]:
    parts = (group.part for _, group in sorted(manifest.groups.items()))
    return tuple(part for part in parts if part is not None)


def _as_stored(part: PartRecord, schema: pa.Schema) -> bool:
    """Whether the file's own columns are exactly those asked for, so that nothing need be cast."""
    return all(
        field.name in part.schema.names
        and part.schema.field(field.name).type == field.type
        and stored(field.type) == field.type
        for field in schema
    )


def _frame(table: pa.Table) -> pl.DataFrame:
    frame: Any = pl.from_arrow(table)
    return frame  # type: ignore[no-any-return]
