"""Parquet files that are either whole or not there."""

from __future__ import annotations

import hashlib
import io
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import PartError
from ..runtime import faults
from .files import create, exists, open_file, remove, rename, sync_directory, temporary_name
from .records import PartRecord
from .schema import stored_table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PROCESSED_NAME = "processed.parquet"


def part_name(index: int) -> str:
    """Return the file name of a row group's part."""
    return f"batch_{index:07d}.parquet"


def is_staged_name(staged: str, name: str) -> bool:
    """Whether a name is one that `stage` gives to what is to become the file `name`."""
    return re.fullmatch(rf"\.{re.escape(name)}\.[0-9a-f]{{12}}\.tmp", staged, re.ASCII) is not None


def stage(path: Path, table: pa.Table) -> PartRecord:
    """Write a compressed parquet file under a temporary name, the record's `staged`, and wait until it is on disk.

    If anything raises the temporary file is removed and nothing has changed.
    """
    directory, temporary = path.parent, temporary_name(path.name)
    try:
        with create(directory, temporary) as file, io.BufferedWriter(file) as buffered:
            pq.write_table(stored_table(table), buffered, compression="zstd")
            buffered.flush()
            faults.reach("part written")
            os.fsync(file.fileno())
            # Its name too: a manifest that lists what is staged must never be ahead of it.
            sync_directory(directory)
            faults.reach("part synced")
            size = file.seek(0, os.SEEK_END)
            return PartRecord(
                name=path.name,
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
    """Give a staged file the name of its part, in place of what had it before; the record no longer says `staged`."""
    if part.staged is not None:
        rename(directory, part.staged, part.name)
        faults.reach("part renamed")
        sync_directory(directory)
        faults.reach("part directory synced")
    return attrs.evolve(part, staged=None)


def discard(directory: Path, part: PartRecord) -> None:
    """Remove a staged file that is not to count."""
    if part.staged is not None:
        remove(directory, part.staged)


def locate(directory: Path, part: PartRecord) -> Path:
    """Return where the content of a part is: still staged if the process died, or has not come, before the rename."""
    if part.staged is not None and exists(directory, part.staged):
        return directory / part.staged
    return directory / part.name


def damage(directory: Path, part: PartRecord) -> str | None:
    """Read a whole part and say what is wrong with it, if anything is; `PermissionError` if that may not be known."""
    try:
        with open_file(directory, locate(directory, part).name) as file:
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


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a parquet file, or only some of its columns (those it lacks are left out); `PartError` if it cannot be."""
    try:
        with open_file(path.parent, path.name) as opened, pq.ParquetFile(opened) as file:
            there = file.schema_arrow.names
            names = there if columns is None else [name for name in columns if name in there]
            # A dotted name also matches a field inside a struct, so that more may come than was asked for.
            return file.read(columns=names).select(names)
    except FileNotFoundError as error:
        raise PartError(f"part {path.name!r} is missing in {str(path.parent)!r}") from error
    except (OSError, pa.ArrowException) as error:
        raise PartError(f"part {path.name!r} in {str(path.parent)!r} cannot be read: {error}") from error


def checksum(file: io.FileIO) -> str:
    """Return the BLAKE2b hash of an open file."""
    file.seek(0)
    return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()
