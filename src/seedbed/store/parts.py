"""Parquet files that are either whole or not there."""

from __future__ import annotations

import hashlib
import os
import sys
import uuid
from typing import TYPE_CHECKING

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import PartError
from ..runtime import faults
from .records import PartRecord
from .schema import stored_table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_SUFFIX = ".tmp"


def part_name(index: int) -> str:
    """Return the file name of a row group's part."""
    return f"batch_{index:07d}.parquet"


def stage(path: Path, table: pa.Table) -> PartRecord:
    """Write a compressed parquet file under a temporary name, the record's `staged`, and wait until it is on disk.

    If anything raises the temporary file is removed and nothing has changed.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}{_SUFFIX}")
    try:
        pq.write_table(stored_table(table), temporary, compression="zstd")
        faults.reach("part written")
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        # Its name too: a manifest that lists what is staged must never be ahead of it.
        sync_directory(path.parent)
        faults.reach("part synced")
        return PartRecord(
            name=path.name,
            rows=table.num_rows,
            size=temporary.stat().st_size,
            checksum=checksum(temporary),
            schema=table.schema.remove_metadata(),
            staged=temporary.name,
        )
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def place(directory: Path, part: PartRecord) -> PartRecord:
    """Give a staged file the name of its part, in place of what had it before; the record no longer says `staged`."""
    if part.staged is not None:
        (directory / part.staged).replace(directory / part.name)
        faults.reach("part renamed")
        sync_directory(directory)
        faults.reach("part directory synced")
    return attrs.evolve(part, staged=None)


def discard(directory: Path, part: PartRecord) -> None:
    """Remove a staged file that is not to count."""
    if part.staged is not None:
        (directory / part.staged).unlink(missing_ok=True)


def locate(directory: Path, part: PartRecord) -> Path:
    """Return where the content of a part is: still staged if the process died, or has not come, before the rename."""
    if part.staged is not None and (directory / part.staged).exists():
        return directory / part.staged
    return directory / part.name


def damage(directory: Path, part: PartRecord) -> str | None:
    """Read a whole part and say what is wrong with it, if anything is; `PermissionError` if that may not be known."""
    path = locate(directory, part)
    try:
        size = path.stat().st_size
        if size != part.size:
            return f"part {part.name!r} is damaged: it has {size:,} bytes and should have {part.size:,}"
        return None if checksum(path) == part.checksum else f"part {part.name!r} is damaged: its checksum differs"
    except FileNotFoundError:
        return f"part {part.name!r} is missing"
    except PermissionError:
        raise
    except OSError as error:
        return f"part {part.name!r} cannot be read: {error}"


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a parquet file, or only some of its columns (those it lacks are left out); `PartError` if it cannot be."""
    try:
        with pq.ParquetFile(path) as file:
            there = file.schema_arrow.names
            names = there if columns is None else [name for name in columns if name in there]
            # A dotted name also matches a field inside a struct, so that more may come than was asked for.
            return file.read(columns=names).select(names)
    except FileNotFoundError as error:
        raise PartError(f"part {path.name!r} is missing in {str(path.parent)!r}") from error
    except (OSError, pa.ArrowException) as error:
        raise PartError(f"part {path.name!r} in {str(path.parent)!r} cannot be read: {error}") from error


def checksum(path: Path) -> str:
    """Return the BLAKE2b hash of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()


def sync_directory(directory: Path) -> None:
    """Wait until the names in a directory are on disk; on Windows a directory cannot be opened for that."""
    if sys.platform == "win32":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_temporary(path: Path) -> bool:
    """Whether a file is one that a writer left behind when it died."""
    return path.name.startswith(".") and path.name.endswith(_SUFFIX)
