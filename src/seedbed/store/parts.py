"""Parquet files that are either whole or not there."""

from __future__ import annotations

import hashlib
import os
import sys
import uuid
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import PartError
from .records import PartRecord
from .schema import stored_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_SUFFIX = ".tmp"


def part_name(index: int) -> str:
    """Return the file name of a row group's part."""
    return f"batch_{index:07d}.parquet"


def no_step(name: str) -> None:
    """Do nothing between two steps; tests stop the process there instead."""


def write_part(
    directory: Path,
    index: int,
    table: pa.Table,
    *,
    abandoned: Callable[[], bool],
    step: Callable[[str], None] = no_step,
) -> PartRecord | None:
    """Write the part of a row group; None, and no file, if `abandoned()` says so directly before the rename."""
    return write_table(directory / part_name(index), table, commit=lambda _: not abandoned(), step=step)


def write_table(
    path: Path, table: pa.Table, *, commit: Callable[[PartRecord], bool], step: Callable[[str], None] = no_step
) -> PartRecord | None:
    """Write a compressed parquet file under a temporary name, wait until it is on disk, and rename it.

    `commit` is asked directly before the rename, with what the file will hold; if it says no, or anything raises, the
    temporary file is removed and nothing else has changed.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}{_SUFFIX}")
    try:
        pq.write_table(stored_table(table), temporary, compression="zstd")
        step("written")
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        step("synced")
        record = PartRecord(
            name=path.name,
            rows=table.num_rows,
            size=temporary.stat().st_size,
            checksum=checksum(temporary),
            schema=table.schema.remove_metadata(),
        )
        if not commit(record):
            return None
        step("committed")
        temporary.replace(path)
        step("renamed")
        sync_directory(path.parent)
        step("directory-synced")
        return record
    finally:
        temporary.unlink(missing_ok=True)


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a parquet file, or only some of its columns (those it lacks are left out); `PartError` if it cannot be."""
    try:
        with pq.ParquetFile(path) as file:
            present = file.schema_arrow.names
            names = present if columns is None else [name for name in columns if name in present]
            # A dotted name also matches a field inside a struct, so that more may come than was asked for.
            return file.read(columns=names).select(names)
    except FileNotFoundError as error:
        raise PartError(f"part {path.name!r} is missing in {str(path.parent)!r}") from error
    except (OSError, pa.ArrowException) as error:
        raise PartError(f"part {path.name!r} in {str(path.parent)!r} cannot be read: {error}") from error


def present(directory: Path, contents: Sequence[PartRecord]) -> PartRecord | None:
    """Return which of the contents that the manifest allows a part is what its file holds now, if any is allowed.

    More than one is allowed only where a rewriting was interrupted, so only then is the file read.
    """
    if len(contents) > 1:
        try:
            found = checksum(directory / contents[0].name)
        except OSError:
            found = ""
        return next((record for record in contents if record.checksum == found), contents[0])
    return contents[0] if contents else None


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
