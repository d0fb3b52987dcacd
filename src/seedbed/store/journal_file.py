"""The files of a journal: the database, its write-ahead log and the mark."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import struct
from typing import TYPE_CHECKING

import attrs

from ..runtime import faults
from .files import create, exists, read_file, remove, rename, sync_directory, temporary_name, write_file
from .journal_log import Row
from .journal_salvage import PAGE_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from .journal_log import Totals

JOURNAL_NAME = "journal.sqlite"
WAL_NAME = JOURNAL_NAME + "-wal"
MARK_NAME = "journal.mark"
SALVAGED_NAME = "journal.salvaged"
JOURNAL_FILES = (JOURNAL_NAME, WAL_NAME, MARK_NAME, SALVAGED_NAME)

# Pages in the write-ahead log before they are copied into the database: about a second of a busy run.
_WAL_PAGES = 256

_TABLE = "CREATE TABLE log (id INTEGER PRIMARY KEY, kind TEXT, grp INTEGER, count INTEGER, sum BLOB, data BLOB)"
_INSERT = "INSERT INTO log (id, kind, grp, count, sum, data) VALUES (?, ?, ?, ?, ?, ?)"

_MARK = struct.Struct("<8sQQ")
_MARK_MAGIC = b"seedbed1"


def make_database(path: Path, rows: Iterable[Row]) -> None:
    """Write the file of a database with these records; it is there as a whole or not at all."""
    # Made in memory: SQLite would open its file, and those beside it, by path.
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        database.execute(f"PRAGMA page_size = {PAGE_SIZE}")
        database.execute("BEGIN")
        database.execute(_TABLE)
        database.executemany(_INSERT, map(attrs.astuple, rows))
        database.execute("COMMIT")
        data = database.serialize()
    write_file(path.parent, path.name, data)


def replace_database(directory: Path, rows: Iterable[Row]) -> None:
    """Put a database with these records in the place of a damaged one and its log, at any instant all or nothing."""
    make_database(directory / SALVAGED_NAME, rows)
    faults.reach("journal salvaged")
    finish_replacing(directory)


def finish_replacing(directory: Path) -> None:
    """Finish what `replace_database` began, if the process died in between.

    A log that is left beside a database is taken for its own, so it goes first; until then the new one is not used.
    """
    if exists(directory, SALVAGED_NAME):
        remove(directory, WAL_NAME)
        sync_directory(directory)
        rename(directory, SALVAGED_NAME, JOURNAL_NAME)
        sync_directory(directory)
        faults.reach("journal replaced")


def connect(path: Path) -> sqlite3.Connection:
    """Open a database for one process, which no other may read or write as long."""
    # Nothing of ours writes a rollback journal; SQLite would obey one of a stranger, which may name files to delete.
    remove(path.parent, f"{path.name}-journal")
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
    try:
        # Before anything else is asked: so the index of the log is in memory and not in one more file.
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA trusted_schema = OFF")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("PRAGMA fullfsync = ON")
        database.execute(f"PRAGMA wal_autocheckpoint = {_WAL_PAGES}")
        # So no frame of an earlier round stays behind those of this one.
        database.execute("PRAGMA journal_size_limit = 0")
    except BaseException:
        database.close()
        raise
    return database


def change_rows(database: sqlite3.Connection, deleted: Iterable[int], inserted: Iterable[Row]) -> None:
    """Delete and insert records, within a transaction."""
    database.executemany("DELETE FROM log WHERE id = ?", ((identity,) for identity in deleted))
    database.executemany(_INSERT, map(attrs.astuple, inserted))


def every_row(database: sqlite3.Connection) -> Iterator[Row]:
    """Yield the records in the order in which they were written."""
    for values in database.execute("SELECT id, kind, grp, count, sum, data FROM log ORDER BY id"):
        yield Row(*values)


def row_data(database: sqlite3.Connection, identity: int) -> bytes:
    """Return what a record holds."""
    data: bytes
    (data,) = database.execute("SELECT data FROM log WHERE id = ?", (identity,)).fetchone()
    return data


def is_sound(database: sqlite3.Connection) -> bool:
    """Whether it has our table and nothing else, and SQLite finds nothing wrong with its pages, free ones included."""
    # A view or a trigger would be SQL of a stranger.
    if database.execute("SELECT type, name, sql FROM sqlite_schema").fetchall() != [("table", "log", _TABLE)]:
        return False
    return database.execute("PRAGMA quick_check(1)").fetchall() == [("ok",)]


def make_mark(directory: Path, totals: Totals) -> int:
    """Put a new mark in the place of what there is, and return its descriptor, which the caller closes."""
    temporary = temporary_name(MARK_NAME)
    with create(directory, temporary) as file:
        write_mark(file.fileno(), totals)
        rename(directory, temporary, MARK_NAME)
        return os.dup(file.fileno())


def write_mark(mark: int, totals: Totals) -> None:
    """Note in the file of this descriptor how much was committed."""
    body = _MARK.pack(_MARK_MAGIC, totals.commits, totals.entries)
    os.pwrite(mark, body + hashlib.blake2b(body, digest_size=8).digest(), 0)


def read_mark(path: Path) -> tuple[int, int] | None:
    """Return the commits and entries of a mark; None if there is none that can be read."""
    try:
        data = read_file(path.parent, path.name)
    except OSError:
        return None
    body = data[: _MARK.size]
    if len(body) < _MARK.size or data[_MARK.size :] != hashlib.blake2b(body, digest_size=8).digest():
        return None
    _, commits, entries = _MARK.unpack(body)
    return commits, entries
