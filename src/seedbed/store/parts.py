"""Parquet files that are either whole or not there."""

from __future__ import annotations

import hashlib
import io
import os
import re
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import PartError
from ..observe.report import Count  # noqa: TC001 - msgspec reads the annotations
from ..runtime import faults
from .files import PRIVATE, create, open_file, remove, rename, sync_directory, sync_file, temporary_name
from .schema import stored_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

# The folder of rows that are not, or not yet, in the root. Loaders skip it, and the names do not end in ".parquet".
PARTS = f"{PRIVATE}/parts"
# The dropped rows of a finished dataset: what was generated of them, and why they were dropped.
DROPPED = f"{PRIVATE}/dropped.part"


class PartRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A parquet file of the dataset: how many rows, how many bytes, what they must hash to, and their types.

    `staged` is the name that the file has until it takes the place of one that was listed before under `name`.
    """

    name: str
    rows: Count
    size: Count
    checksum: str
    schema: pa.Schema
    staged: str | None = None


def part_name(index: int) -> str:
    """Return the file name of a part in the root, which holds exactly the dataset."""
    return f"batch_{index:07d}.parquet"


def internal_name(index: int) -> str:
    """Return the file name of a row group's part where the root is published from all parts at the end."""
    return f"{PARTS}/batch_{index:07d}.part"


def generated_name(index: int) -> str:
    """Return the file name of a row group's rows before its post-batch processors."""
    return f"{PARTS}/generated_{index:07d}.part"


def accepted_name(number: int) -> str:
    """Return the file name of rows that count where processors of the whole dataset come after them."""
    return f"{PARTS}/accepted_{number:07d}.part"


def staged_name(name: str) -> str:
    """Return a new name, never in the root, for what is to become the file `name` once it is whole."""
    return temporary_name(f"{PARTS}/{name.rpartition('/')[2]}")


def is_staged_name(staged: str, name: str) -> bool:
    """True if a name is one that `staged_name` returns for the file `name`."""
    pattern = rf"{re.escape(PARTS)}/\.{re.escape(name.rpartition('/')[2])}\.[0-9a-f]{{12}}\.tmp"
    return re.fullmatch(pattern, staged, re.ASCII) is not None


def stage(directory: Path, name: str, table: pa.Table) -> PartRecord:
    """Write a compressed parquet file under a temporary name, the record's `staged`, and wait until it is on disk.

    If anything raises the temporary file is removed and nothing has changed.
    """
    temporary = staged_name(name)
    try:
        with create(directory, temporary) as file, io.BufferedWriter(file) as buffered:
            pq.write_table(stored_table(table), buffered, compression="zstd")
            buffered.flush()
            faults.reach("part written")
            sync_file(file.fileno())
            # Its name too: a manifest that lists what is staged must never be ahead of it.
            sync_directory((directory / temporary).parent)
            faults.reach("part synced")
            size = file.seek(0, os.SEEK_END)
            return PartRecord(
                name=name,
                rows=table.num_rows,
                size=size,
                checksum=checksum(file),
                schema=table.schema.remove_metadata(),
                staged=temporary,
            )
    except BaseException:
        with suppress(OSError):
            remove(directory, temporary)
        raise


def place(directory: Path, part: PartRecord) -> PartRecord:
    """Rename a staged file to the name of its part, replacing what has that name; return the part without `staged`."""
    if part.staged is not None:
        with suppress(FileNotFoundError):  # renamed already, by a process that died after that
            rename(directory, part.staged, part.name)
            faults.reach("part renamed")
            sync_directory((directory / part.name).parent)
            faults.reach("part directory synced")
    return msgspec.structs.replace(part, staged=None)


def place_all(directory: Path, parts: Sequence[PartRecord]) -> None:
    """Rename staged files one right after the other, and then wait for the disk once for each folder."""
    for part in parts:
        if part.staged is not None:
            with suppress(FileNotFoundError):
                rename(directory, part.staged, part.name)
                faults.reach("part renamed")
    for folder in {(directory / part.name).parent for part in parts}:
        sync_directory(folder)
        faults.reach("part directory synced")


def discard(directory: Path, *parts: PartRecord | None) -> None:
    """Remove staged files that are not to count."""
    for part in parts:
        if part is not None and part.staged is not None:
            remove(directory, part.staged)


def open_part(directory: Path, part: PartRecord) -> io.FileIO:
    """Open the file with the rows of a part: still `staged` if the process died before the rename."""
    if part.staged is not None:
        with suppress(FileNotFoundError):
            return open_file(directory, part.staged)
    return open_file(directory, part.name)


def damage(directory: Path, part: PartRecord) -> str | None:
    """Read a whole part and return what is wrong with it, if anything; `PermissionError` if it may not be read."""
    try:
        with open_part(directory, part) as file:
            size = file.seek(0, os.SEEK_END)
            if size != part.size:
                return f"part {part.name!r} is damaged: it has {size:,} bytes and should have {part.size:,}"
            return None if checksum(file) == part.checksum else f"part {part.name!r} is damaged: its checksum differs"
    except FileNotFoundError:
        return f"part {part.name!r} is missing"
    except PermissionError:
        raise
    except OSError as error:
        return f"part {part.name!r} cannot be read: {error}"


@contextmanager
def part_errors(directory: Path, part: PartRecord) -> Iterator[None]:
    """Turn what reading a part raises into a `PartError`."""
    try:
        yield
    except FileNotFoundError as error:
        raise PartError(f"part {part.name!r} is missing in {str(directory)!r}") from error
    except (
        OSError,
        ValueError,
        KeyError,
        pa.ArrowException,
        pl.exceptions.PolarsError,
        pl.exceptions.PanicException,
    ) as error:
        # Names that are not UTF-8 or occur twice are no `ArrowException`; a panic is no `Exception`.
        reason = str(error).partition("\n")[0]
        raise PartError(f"part {part.name!r} in {str(directory)!r} cannot be read: {reason}") from error


def read_table(directory: Path, part: PartRecord, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a part, or only some of its columns (those it lacks are left out); `PartError` if it cannot be read.

    The file may come from someone else: its number of rows is compared with the manifest's, and its values are
    validated, because offsets that lead out of a buffer can crash what uses the table.
    """
    with part_errors(directory, part):
        with open_part(directory, part) as opened:
            contents = _contents(opened)
        if contents.size != part.size:
            found = f"it has {contents.size:,} bytes and should have {part.size:,}"
            raise pa.ArrowInvalid(f"{found}: it is damaged, or was replaced since the dataset was opened")
        file = pq.ParquetFile(pa.BufferReader(contents))
        names = file.schema_arrow.names
        if columns is not None:
            present = set(names)
            names = [each for each in columns if each in present]
        if file.metadata.num_rows != part.rows:
            raise pa.ArrowInvalid(f"it has {file.metadata.num_rows:,} rows and should have {part.rows:,}")
        # A dotted name also matches a field inside a struct, so that more columns than requested may be read.
        table = file.read(columns=names).select(names)
        table.validate(full=True)
        return table


def _contents(file: io.FileIO) -> pa.Buffer:
    """What a file holds, in memory of arrow's own.

    Given a file of Python, arrow reads it in threads of its own, which may free what they read while the interpreter
    ends: that needs the interpreter's lock, and aborts the process.
    """
    buffer = pa.allocate_buffer(file.seek(0, os.SEEK_END))
    file.seek(0)
    filled, view = 0, memoryview(buffer)
    while read := file.readinto(view[filled:]):
        filled += read
    return buffer.slice(0, filled)


def checksum(file: io.FileIO) -> str:
    """Return the BLAKE2b hash of an open file."""
    file.seek(0)
    return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()
