"""The one writer of a dataset directory."""

from __future__ import annotations

import io
import os
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from ..errors import OutputDirectoryError, StoreError
from .manifest import MANIFEST_NAME, Manifest, append, read
from .parts import is_temporary, no_step, part_name, present, read_table, sync_directory, write_part, write_table
from .records import Drop, Finished, GroupRecord, Header, PartRecord, Processed, Record, Rewritten, Spending
from .schema import Conflict, arrow_table, conform, distinct_conflicts, unify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import polars as pl

PROCESSED_NAME = "processed.parquet"


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
    # What a process that died before its first line left behind is no reason to refuse.
    found = sorted(path.name for path in directory.iterdir() if not is_temporary(path))
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise OutputDirectoryError(
            f"the output directory {str(directory)!r} is not empty, it holds {found[0]!r}{more}: "
            "pass a new directory or an empty one"
        )


def _probe(existing: Path, directory: Path) -> None:
    # Permission bits do not tell (root, read-only mounts, quotas): only a file that was really made does.
    if not existing.is_dir():
        raise OutputDirectoryError(f"the output {str(directory)!r} cannot be made: {str(existing)!r} is a file")
    with tempfile.NamedTemporaryFile(dir=existing, prefix=".", suffix=".tmp"):
        pass


def _unwritable(directory: Path, error: OSError) -> OutputDirectoryError:
    return OutputDirectoryError(f"the output directory {str(directory)!r} is not writable: {error}")


class DatasetWriter:
    """Writes row groups into a directory, each as a part and then a line of the manifest: without it no part exists.

    Row groups may come in any order and from several threads at once: parts are written side by side, only the manifest
    is written under a lock. No other process may write the directory as long as this one does (`close`, or the end of
    the process, lets go). `step` is called with a name between any two steps that change the disk.
    """

    def __init__(self, directory: Path, file: io.FileIO, header: Header, step: Callable[[str], None]) -> None:
        self.path = directory
        self.header = header
        self.declared: dict[str, pa.DataType] = {field.name: field.type for field in header.declared}
        self._file = file
        self._step = step
        # Guards the manifest file and the two fields below it, which grow by one entry a row group.
        self._lock = threading.Lock()
        self._closing = False
        self._parts: dict[int, PartRecord | None] = {}
        self._conflicts: list[Conflict] = []

    @classmethod
    def create(
        cls, out: str | os.PathLike[str], header: Header, *, step: Callable[[str], None] = no_step
    ) -> DatasetWriter:
        """Make the directory, parents too, and start its manifest; `OutputDirectoryError` as in `check_output`."""
        directory = check_output(out)
        temporary = directory / f".{MANIFEST_NAME}.tmp"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            file = io.FileIO(os.open(temporary, os.O_RDWR | os.O_CREAT, 0o666), "r+")
        except OSError as error:
            raise _unwritable(directory, error) from error
        try:
            # Whoever holds the lock has this directory; a second one either finds it taken or finds the manifest.
            _lock_file(file, directory)
            _refuse_used(directory)
            file.truncate(0)
            append(file, header, step=step)
            append(file, header, step=step)
            temporary.replace(directory / MANIFEST_NAME)
            step("renamed")
            sync_directory(directory)
            step("directory-synced")
        except OSError as error:
            file.close()
            raise _unwritable(directory, error) from error
        except BaseException:
            file.close()
            raise
        return cls(directory, file, header, step)

    @classmethod
    def open(
        cls, out: str | os.PathLike[str], *, step: Callable[[str], None] = no_step
    ) -> tuple[DatasetWriter, Manifest]:
        """Go on with an existing directory; return the writer and what is there.

        Temporary files, parts that the manifest does not list and a half-written last line are removed.
        `ManifestError` if there is no manifest, `OutputDirectoryError` if another process writes it.
        """
        directory = Path(out)
        read(directory)  # a missing or foreign directory must be refused before anything is opened for writing
        try:
            file = io.FileIO(os.open(directory / MANIFEST_NAME, os.O_RDWR), "r+")
        except OSError as error:
            raise _unwritable(directory, error) from error
        try:
            _lock_file(file, directory)
            content = read(directory)
            file.truncate(content.length)
            manifest = content.manifest
            assert manifest.header is not None, "read() refuses a manifest without a header"
            writer = cls(directory, file, manifest.header, step)
            for index, group in manifest.groups.items():
                writer._parts[index] = present(directory, manifest.contents(index))
                writer._conflicts.extend(group.conflicts)
            writer._remove_leftovers(processed=manifest.processed is not None)
        except BaseException:
            file.close()
            raise
        return writer, manifest

    def grow(self, header: Header) -> None:
        """Let another header count from now on: that of a dataset with more rows, or of code that changed.

        What was made of the whole dataset no longer counts and goes; `finish` is due again.
        """
        with self._alone():
            # Twice, as the first one: without a header the rest means nothing.
            self._append(header)
            self._append(header)
            self.header = header
            (self.path / PROCESSED_NAME).unlink(missing_ok=True)

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
        abandoned: Callable[[], bool] = lambda: False,
    ) -> GroupRecord | None:
        """Write a finished row group: its part, if it has rows, then its line.

        None if `abandoned()` turned true before the group counted: then it is as if it had not been written.
        """
        with self._alone():
            if index in self._parts:
                raise StoreError(f"row group {index} is already in {str(self.path)!r}")
        part = None
        table, conflicts = arrow_table({} if rows is None else rows, self.declared, part=part_name(index))
        if table.num_rows:
            part = write_part(self.path, index, table, abandoned=abandoned, step=self._step)
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
        )
        with self._alone():
            if abandoned():
                if part is not None:
                    (self.path / part.name).unlink(missing_ok=True)
                return None
            self._append(group)
            self._parts[index] = part
            self._conflicts.extend(conflicts)
        return group

    def write_spending(self, entries: Iterable[tuple[str, str, int, int, int, float]]) -> None:
        """Note what all runs of this dataset have used so far."""
        with self._lock:
            self._append(Spending(entries=tuple(entries)))

    def finish(self, *, abandoned: Callable[[], bool] = lambda: False) -> tuple[Conflict, ...]:
        """Give every part one schema and say that the build finished; return the columns that could not have one.

        Parts are rewritten one at a time and only where they differ. If `abandoned()` turns true in between, the rest
        is left as it is and the directory stays readable but unfinished.
        """
        with self._alone():
            parts = [part for _, part in sorted(self._parts.items()) if part is not None]
            schema, found = unify(
                ((part.name, part.schema) for part in parts), declared=self.declared, order=self.header.columns
            )
            conflicts = [*self._conflicts, *found]
            for index, part in sorted(self._parts.items()):
                if abandoned():
                    return distinct_conflicts(conflicts)
                if part is not None and part.schema != schema:
                    conflicts += self._rewrite(index, part, schema, {conflict.column for conflict in conflicts})
            finished = Finished(schema=schema, conflicts=distinct_conflicts(conflicts))
            self._append(finished)
            self._remove_leftovers(processed=True)
            return finished.conflicts

    def _rewrite(self, index: int, part: PartRecord, schema: pa.Schema, kept: set[str]) -> Sequence[Conflict]:
        """Rewrite a part in the unified schema; columns in conflict (`kept`, or found so now) stay as they are."""
        own = set(part.schema.names) & kept
        target = pa.schema([part.schema.field(field.name) if field.name in own else field for field in schema])
        if target == part.schema:
            return ()
        table, conflicts = conform(read_table(self.path / part.name), target, part=part.name)

        def list_first(record: PartRecord) -> bool:
            # Listed before the rename, so that at every instant the file is one that the manifest knows.
            self._append(Rewritten(index=index, part=record))
            return True

        self._parts[index] = write_table(self.path / part.name, table, commit=list_first, step=self._step)
        return conflicts

    def write_processed(
        self, frame: pl.DataFrame, *, abandoned: Callable[[], bool] = lambda: False
    ) -> PartRecord | None:
        """Write what a processor made of the whole dataset beside the parts, which stay as they are."""
        table, conflicts = arrow_table(frame, {}, part=PROCESSED_NAME)
        part = write_table(self.path / PROCESSED_NAME, table, commit=lambda _: not abandoned(), step=self._step)
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
            finally:
                self._lock.release()

    def _append(self, record: Record) -> None:
        append(self._file, record, step=self._step)

    def _remove_leftovers(self, *, processed: bool) -> None:
        listed = {part.name for part in self._parts.values() if part is not None}
        if processed:
            listed.add(PROCESSED_NAME)
        for path in self.path.iterdir():
            ours = path.name == PROCESSED_NAME or (path.name.startswith("batch_") and path.suffix == ".parquet")
            if is_temporary(path) or (ours and path.name not in listed):
                path.unlink(missing_ok=True)


def _lock_file(file: io.FileIO, directory: Path) -> None:
    if sys.platform == "win32":
        return
    import fcntl  # noqa: PLC0415 - not there on Windows

    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise OutputDirectoryError(
            f"another process is writing {str(directory)!r}: wait until it is over or stop it; nothing was changed here"
        ) from error
