"""The one writer of a dataset directory."""

from __future__ import annotations

import os
import tempfile
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import attrs
import pyarrow as pa

from ..errors import OutputDirectoryError, StoreError
from ..runtime import faults
from .files import PRIVATE, create, is_temporary, open_file, refuse_links, remove, rename, sync_directory
from .manifest import MANIFEST_NAME, Manifest, append, lock, read, write
from .parts import PROCESSED_NAME, damage, discard, part_name, place, read_table, stage
from .records import Drop, Finished, GroupRecord, Header, PartRecord, Processed, Record, Spending, States
from .schema import Conflict, arrow_table, conform, distinct_conflicts, unify

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import polars as pl


_TEMPORARY = f"{PRIVATE}/.manifest.log.tmp"


def check_output(out: str | os.PathLike[str]) -> Path:
    """Return the output directory if a dataset can be written there, and leave nothing behind.

    `OutputDirectoryError` if it is not empty, not a directory or not writable; one that is not there yet is fine if it
    could be made.
    """
    directory = Path(out)
    try:
        if not directory.exists():
            _probe(next(parent for parent in directory.absolute().parents if parent.exists()), directory)
        elif not directory.is_dir():
            raise OutputDirectoryError(f"the output {str(directory)!r} is a file: pass a new directory")
        else:
            _refuse_used(directory)
            _probe(directory, directory)
    except OSError as error:
        raise _unwritable(directory, error) from error
    return directory


def _refuse_used(directory: Path) -> None:
    # What a process that died before its first record left behind is no reason to refuse.
    found = sorted(path.name for path in directory.iterdir() if not is_temporary(path) and not _is_leftover(path))
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise OutputDirectoryError(
            f"the output directory {str(directory)!r} is not empty, it holds {found[0]!r}{more}: "
            "pass a new directory or an empty one"
        )


def _is_leftover(path: Path) -> bool:
    """True for a private folder in which nothing was ever finished."""
    return path.name == PRIVATE and path.is_dir() and not path.is_symlink() and all(map(is_temporary, path.iterdir()))


def _probe(existing: Path, directory: Path) -> None:
    # Permission bits do not tell (root, read-only mounts, quotas): only a file that was really made does.
    if not existing.is_dir():
        raise OutputDirectoryError(f"the output {str(directory)!r} cannot be made: {str(existing)!r} is a file")
    with tempfile.NamedTemporaryFile(dir=existing, prefix=".", suffix=".tmp"):
        pass


def _unwritable(directory: Path, error: OSError) -> OutputDirectoryError:
    return OutputDirectoryError(f"the output directory {str(directory)!r} is not writable: {error}")


class DatasetWriter:
    """Writes row groups into a directory, each as a part and then a record of the manifest: without it no part exists.

    Row groups may come in any order and from several threads at once: parts are written side by side, only the manifest
    is written under a lock. No other process may write the directory as long as this one does (`close`, or the end of
    the process, lets go).
    """

    def __init__(self, directory: Path, file: io.FileIO, header: Header) -> None:
        self.path = directory
        self.header = header
        self.declared: dict[str, pa.DataType] = {field.name: field.type for field in header.declared}
        self._file = file
        self._replaced: io.FileIO | None = None
        # Guards the manifest file and what it lists, which grows by one entry a row group.
        self._lock = threading.Lock()
        self._closing = False
        self._groups: dict[int, GroupRecord] = {}

    @classmethod
    def create(cls, out: str | os.PathLike[str], header: Header) -> DatasetWriter:
        """Make the directory, parents too, and start its manifest; `OutputDirectoryError` as in `check_output`."""
        directory = check_output(out)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            refuse_links(directory)
            file = _claim(directory)
        except OSError as error:
            raise _unwritable(directory, error) from error
        try:
            _refuse_used(directory)
            append(file, header)
            rename(directory, _TEMPORARY, MANIFEST_NAME)
            faults.reach("manifest renamed")
            sync_directory(directory / PRIVATE)
            sync_directory(directory)
            faults.reach("manifest directory synced")
        except OSError as error:
            file.close()
            raise _unwritable(directory, error) from error
        except BaseException:
            file.close()
            raise
        return cls(directory, file, header)

    @classmethod
    def open(
        cls, out: str | os.PathLike[str], *, on_damage: Callable[[], None] = lambda: None
    ) -> tuple[DatasetWriter, Manifest, tuple[str, ...]]:
        """Go on with an existing directory; return the writer, what is there, and what of it was damaged.

        Temporary files, parts that the manifest does not list and a half-written last record are removed. Every part is
        read: a row group whose part is damaged is not there any more, and damaged records are cleared away, so that a
        second time nothing is found damaged; `on_damage` is called before that. `ManifestError` if there is no
        manifest, `OutputDirectoryError` if another process writes it.
        """
        directory = Path(out)
        read(directory)  # a missing or foreign directory must be refused before anything is opened for writing
        try:
            refuse_links(directory)
            file = open_file(directory, MANIFEST_NAME, writable=True)
        except OSError as error:
            raise _unwritable(directory, error) from error
        writer = None
        try:
            _lock_file(file, directory)
            if not _is_named(file, directory / MANIFEST_NAME):
                # Another process has put a new one in its place since, and has let go of both.
                raise OutputDirectoryError(f"another process was writing {str(directory)!r} just now: try again")
            content = read(directory)
            file.truncate(content.length)
            manifest = content.manifest
            assert manifest.header is not None, "read() refuses a manifest without a header"
            writer = cls(directory, file, manifest.header)
            found = (*content.damage, *writer._take(manifest))
            if found:
                # States of stateful generators know of calls whose values are lost.
                manifest.states = None
                on_damage()
                writer._renew(manifest)
            writer._remove_leftovers(processed=manifest.processed is not None)
        except OSError as error:
            (writer or file).close()
            raise _unwritable(directory, error) from error
        except BaseException:
            (writer or file).close()
            raise
        return writer, manifest, found

    def _take(self, manifest: Manifest) -> Iterator[str]:
        """Take over what is listed and whole; take the rest out of the manifest and say what it was."""
        for index, group in list(manifest.groups.items()):
            part = group.part
            if part is not None:
                wrong = damage(self.path, part)
                if wrong is not None:
                    del manifest.groups[index]
                    yield f"{wrong}; rows {group.start:,} to {group.stop - 1:,} are made again"
                    continue
                if part.staged is not None:
                    # The process died before the rename, or after it.
                    with suppress(FileNotFoundError):
                        place(self.path, part)
                    manifest.groups[index] = attrs.evolve(group, part=attrs.evolve(part, staged=None))
            self._groups[index] = manifest.groups[index]
        if manifest.processed is not None:
            wrong = damage(self.path, manifest.processed.part)
            if wrong is not None:
                manifest.processed = manifest.finished = None
                yield f"{wrong}; the processors over the whole dataset run again"

    def _renew(self, manifest: Manifest) -> None:
        """Put a manifest that says what this one says in the place of the damaged one."""
        # The old one stays open, and with it locked: a process that has it open already must not take it for free.
        self._replaced = self._file
        self._file = create(self.path, _TEMPORARY)
        _lock_file(self._file, self.path)
        write(self._file, manifest.records())
        rename(self.path, _TEMPORARY, MANIFEST_NAME)
        faults.reach("manifest renamed")
        sync_directory(self.path / PRIVATE)
        faults.reach("manifest directory synced")

    def grow(self, header: Header) -> None:
        """Let another header count from now on: that of a dataset with more rows, or of code that changed.

        What was made of the whole dataset no longer counts and goes; `finish` is due again.
        """
        with self._alone():
            self._append(header)
            self.header = header
            remove(self.path, PROCESSED_NAME)

    def write_group(
        self,
        index: int,
        rows: Mapping[str, Sequence[Any]] | pl.DataFrame | None,
        *,
        start: int,
        stop: int,
        drops: Iterable[Drop] = (),
        removed: int = 0,
        added: int = 0,
        skipped: str | None = None,
        commits: int = 0,
        abandoned: Callable[[], bool] = lambda: False,
    ) -> GroupRecord | None:
        """Write a finished row group: its part, if it has rows, then its record.

        None if `abandoned()` turned true before the group counted: then it is as if it had not been written.
        """
        with self._alone():
            # A group that was skipped as a whole has no rows: it may be made after all.
            if index in self._groups and self._groups[index].skipped is None:
                raise StoreError(f"row group {index} is already in {str(self.path)!r}")
        part = None
        table, conflicts = arrow_table({} if rows is None else rows, self.declared, part=part_name(index))
        if table.num_rows:
            part = self._write(self.path / part_name(index), table, abandoned)
            if part is None:
                return None
        group = GroupRecord(
            index=index,
            start=start,
            stop=stop,
            part=part,
            drops=tuple(drops),
            removed=removed,
            added=added,
            conflicts=conflicts,
            skipped=skipped,
            commits=commits,
        )
        with self._alone():
            if abandoned():
                if part is not None:
                    remove(self.path, part.name)
                return None
            self._append(group)
            self._groups[index] = group
        return group

    def add_rows(
        self,
        index: int,
        rows: Mapping[str, Sequence[Any]] | pl.DataFrame | None,
        *,
        order: Sequence[int],
        drops: Iterable[Drop],
        removed: int | None = None,
        added: int | None = None,
        skipped: str | None = None,
        commits: int = 0,
        abandoned: Callable[[], bool] = lambda: False,
    ) -> GroupRecord | None:
        """Add rows to a row group that is written: its part is replaced as a whole, and its record by a newer one.

        `order` holds positions in what the part held before followed by the new rows; `drops` are all that are left;
        `removed` and `added` stay as they are unless given.
        None if `abandoned()` turned true before the new content counted: then the old one still does.
        """
        with self._alone():
            before = self._groups[index]
        new, conflicts = arrow_table({} if rows is None else rows, self.declared, part=part_name(index))
        table = new
        if before.part is not None:
            old = read_table(self.path / before.part.name)
            table, more = _joined([old, new], self.declared, self.header.columns, part_name(index))
            conflicts = distinct_conflicts((*before.conflicts, *conflicts, *more))
        table = table.take(pa.array(order, pa.int64()))
        after = attrs.evolve(
            before,
            part=None,
            drops=tuple(drops),
            removed=before.removed if removed is None else removed,
            added=before.added if added is None else added,
            conflicts=conflicts,
            skipped=skipped,
            revision=before.revision + 1,
            commits=commits,
        )
        staged = stage(self.path / part_name(index), table) if table.num_rows else None
        with self._alone():
            if abandoned():
                if staged is not None:
                    discard(self.path, staged)
                return None
            return self._replace(attrs.evolve(after, part=staged))

    def _replace(self, group: GroupRecord) -> GroupRecord:
        """List a group in place of what is listed, and rename its staged part.

        Listed before the rename: at every instant the manifest names a file that is there and whole.
        """
        try:
            self._append(group)
        except BaseException:
            if group.part is not None:
                discard(self.path, group.part)
            raise
        faults.reach("part listed")
        if group.part is None:
            remove(self.path, part_name(group.index))
        else:
            group = attrs.evolve(group, part=place(self.path, group.part))
        self._groups[group.index] = group
        return group

    def _write(self, path: Path, table: pa.Table, abandoned: Callable[[], bool]) -> PartRecord | None:
        """Write a file that nothing lists yet; None, and no file, if it was given up directly before the rename."""
        staged = stage(path, table)
        try:
            return None if abandoned() else place(self.path, staged)
        finally:
            discard(self.path, staged)

    def write_spending(self, entries: Iterable[tuple[str, str, int, int, int, float]]) -> None:
        """Note what all runs of this dataset have used so far."""
        with self._lock:
            self._append(Spending(entries=tuple(entries)))

    def write_states(self, states: Mapping[str, bytes]) -> None:
        """Note the states of stateful generators now that everything is made."""
        with self._lock:
            self._append(States.of(states))

    def finish(self, *, abandoned: Callable[[], bool] = lambda: False) -> tuple[Conflict, ...]:
        """Give every part one schema and say that the build finished; return the columns that could not have one.

        Parts are rewritten one at a time and only where they differ. If `abandoned()` turns true in between, the rest
        is left as it is and the directory stays readable but unfinished.
        """
        with self._alone():
            groups = [group for _, group in sorted(self._groups.items())]
            schema, found = unify(
                ((group.part.name, group.part.schema) for group in groups if group.part is not None),
                declared=self.declared,
                order=self.header.columns,
            )
            conflicts = [*(conflict for group in groups for conflict in group.conflicts), *found]
            for group in groups:
                if abandoned():
                    return distinct_conflicts(conflicts)
                if group.part is not None and group.part.schema != schema:
                    conflicts += self._rewrite(group, group.part, schema, {conflict.column for conflict in conflicts})
            finished = Finished(schema=schema, conflicts=distinct_conflicts(conflicts))
            self._append(finished)
            self._remove_leftovers(processed=True)
            return finished.conflicts

    def _rewrite(self, group: GroupRecord, part: PartRecord, schema: pa.Schema, kept: set[str]) -> Sequence[Conflict]:
        """Rewrite a part in the unified schema; columns in conflict (`kept`, or found so now) stay as they are."""
        own = set(part.schema.names) & kept
        target = pa.schema([part.schema.field(field.name) if field.name in own else field for field in schema])
        if target == part.schema:
            return ()
        path = self.path / part.name
        table, conflicts = conform(read_table(path), target, part=part.name)
        self._replace(attrs.evolve(group, part=stage(path, table)))
        return conflicts

    def write_processed(
        self, frame: pl.DataFrame, *, abandoned: Callable[[], bool] = lambda: False
    ) -> PartRecord | None:
        """Write what a processor made of the whole dataset beside the parts, which stay as they are."""
        table, conflicts = arrow_table(frame, {}, part=PROCESSED_NAME)
        part = self._write(self.path / PROCESSED_NAME, table, abandoned)
        if part is not None:
            with self._alone():
                self._append(Processed(part=part, conflicts=conflicts))
        return part

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the directory; nothing can be written any more. Never waits: a thread that writes does it after."""
        self._closing = True
        self._close_if_free()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        finally:
            if self._closing:
                self._close_if_free()

    def _close_if_free(self) -> None:
        # Whoever has the lock looks at `_closing` once it has let go, so the file is closed by one of the two.
        if self._lock.acquire(blocking=False):
            try:
                self._file.close()
                if self._replaced is not None:
                    self._replaced.close()
            finally:
                self._lock.release()

    def _append(self, record: Record) -> None:
        try:
            append(self._file, record)
        except OSError as error:
            raise StoreError(f"the manifest in {str(self.path)!r} cannot be written: {error}") from error

    def _remove_leftovers(self, *, processed: bool) -> None:
        listed = {group.part.name for group in self._groups.values() if group.part is not None}
        if processed:
            listed.add(PROCESSED_NAME)
        for path in (self.path / PRIVATE).iterdir():
            if is_temporary(path):
                remove(self.path, f"{PRIVATE}/{path.name}")
        for path in self.path.iterdir():
            ours = path.name == PROCESSED_NAME or (path.name.startswith("batch_") and path.suffix == ".parquet")
            if is_temporary(path) or (ours and path.name not in listed):
                remove(self.path, path.name)


def _claim(directory: Path) -> io.FileIO:
    """Create the file that becomes the manifest, and lock it: of several processes, one gets the directory.

    Only the process that has the lock of the file of that name removes or renames it.
    """
    while True:
        try:
            file = create(directory, _TEMPORARY, replace=False)
            is_new = True
        except FileExistsError:
            try:
                file = open_file(directory, _TEMPORARY, writable=True)
            except FileNotFoundError:
                continue
            is_new = False
        try:
            _lock_file(file, directory)
            if _is_named(file, directory / _TEMPORARY):
                if is_new:
                    return file
                remove(directory, _TEMPORARY)  # its process died
        except BaseException:
            file.close()
            raise
        file.close()


def _is_named(file: io.FileIO, path: Path) -> bool:
    """Whether a name is still that of an open file: another process may have put a new one in its place."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.lstat())
    except FileNotFoundError:
        return False


def _lock_file(file: io.FileIO, directory: Path) -> None:
    if not lock(file, exclusive=True):
        raise OutputDirectoryError(
            f"another process is writing {str(directory)!r}: wait until it is over or stop it; nothing was changed here"
        )


def _joined(
    tables: Sequence[pa.Table], declared: Mapping[str, pa.DataType], order: Sequence[str], part: str
) -> tuple[pa.Table, tuple[Conflict, ...]]:
    """Return the rows of several tables as one; a column without one type for all becomes what its values are."""
    schema, conflicts = unify(((part, table.schema) for table in tables), declared=declared, order=order)
    arrays = []
    found: list[Conflict] = []
    fitting = [conform(table, schema, part=part) for table in tables]
    misfits = {conflict.column for conflict in (*conflicts, *(each for _, more in fitting for each in more))}
    for name in schema.names:
        if name not in misfits:
            columns = [table.column(name) for table, _ in fitting]
            arrays.append(pa.chunked_array([chunk for column in columns for chunk in column.chunks], columns[0].type))
            continue
        values = [
            value
            for table in tables
            for value in (table.column(name).to_pylist() if name in table.column_names else [None] * table.num_rows)
        ]
        one, more = arrow_table({name: values}, declared, part=part)
        arrays.append(one.column(name))
        found += more
    return pa.Table.from_arrays(arrays, names=schema.names), tuple(found)
