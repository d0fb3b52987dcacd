"""The journal: what became of every cell of the row groups that are not finished yet.

One SQLite file beside the manifest, in WAL mode. A commit appends one record a row group, so it costs a few
microseconds a cell; a finished row group's records are deleted once its part and its line in the manifest are on disk.
Every record has its own checksum, and the newest one of kind `TOTALS` says how many others there must be, so that
nothing goes missing unnoticed.

A commit that is damaged as a whole, for instance cut off at the end of the file, takes its totals with it. Therefore
the number of commits is also kept in a small file of its own, the mark, written after each commit. It need not be on
disk at once: it is never ahead of the journal, and one that is behind only tells less.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from ..errors import StoreError
from ..runtime import faults
from . import codec
from .files import exists, open_file, read_file, remove, sync_directory
from .journal_file import (
    JOURNAL_NAME,
    MARK_NAME,
    SALVAGED_NAME,
    WAL_NAME,
    change_rows,
    connect,
    every_row,
    finish_replacing,
    is_sound,
    make_database,
    make_mark,
    read_mark,
    replace_database,
    row_data,
    write_mark,
)
from .journal_log import Change, Log
from .journal_salvage import header_is_whole, log_is_broken, salvage
from .manifest import is_being_written

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .codec import Entry
    from .journal_log import Spent


def has_journal(directory: Path) -> bool:
    """Whether there is a journal in this directory, or was and should be."""
    return any(exists(directory, name) for name in (JOURNAL_NAME, MARK_NAME, SALVAGED_NAME))


@attrs.frozen(kw_only=True)
class Batch:
    """What one commit makes durable: entries in order by row group, and what all runs have spent if that changed."""

    groups: Mapping[int, Sequence[Entry]] = attrs.field(factory=dict)
    spending: Spent | None = None
    states: Mapping[str, bytes] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Recovered:
    """What a journal held when it was opened.

    `groups` has the number of entries that can be read of each unfinished row group, `kept` the row groups with
    finished cells of dropped rows. `damage` is one sentence for each thing that was found damaged. A journal that a
    running build writes is not looked into: then only `in_use` is said.
    """

    groups: Mapping[int, int] = attrs.field(factory=dict)
    kept: frozenset[int] = frozenset()
    spending: Spent = ()
    states: Mapping[str, bytes] = attrs.field(factory=dict)
    damage: tuple[str, ...] = ()
    in_use: bool = False


class Journal:
    """The open journal of a dataset directory; its methods may be called from any thread, one at a time gets through.

    Whoever opens it holds the writer of the directory, which keeps other processes out.
    """

    def __init__(self, directory: Path, database: sqlite3.Connection, log: Log, *, trusted: bool) -> None:
        self.directory = directory
        # Entries that could not be kept, by column; changed by `commit` and `keep`.
        self.unkept: Counter[str] = Counter()
        self._trusted = trusted
        self._path = directory / JOURNAL_NAME
        # Guards the connection and the log, which says where each record is and follows every transaction.
        self._lock = threading.Lock()
        self._log = log
        self._database: sqlite3.Connection | None = database
        self._inode = _inode(self._path)
        self._mark = make_mark(directory, log.totals)

    @classmethod
    def create(cls, directory: Path) -> Journal:
        """Start an empty journal in a dataset directory."""
        log = Log()
        change = Change(log)
        change.finish()
        try:
            make_database(directory / JOURNAL_NAME, change.inserted)
            faults.reach("journal made")
            log.apply(change)
            return cls(directory, connect(directory / JOURNAL_NAME), log, trusted=True)
        except (OSError, sqlite3.Error) as error:
            raise _failed(directory, error) from error

    @classmethod
    def open(cls, directory: Path, *, trusted: bool) -> tuple[Journal, Recovered]:
        """Go on with the journal of a dataset directory; one that is missing is made.

        All of it is read. What is left of a damaged one is put into a new file that takes its place. Values of types
        that are not known to be harmless are read only if the directory is `trusted`, that is, may run code as the
        caller's own does; otherwise the entries that hold them are left out.
        """
        if not has_journal(directory):
            return cls.create(directory), Recovered()
        try:
            finish_replacing(directory)
            database, log, damage = _open_files(directory)
            journal = cls(directory, database, log, trusted=trusted)
        except (OSError, sqlite3.Error) as error:
            raise _failed(directory, error) from error
        return journal, Recovered(
            groups={group: found.entries for group, found in log.groups.items()},
            kept=frozenset(log.kept),
            spending=log.totals.spending,
            states={name: journal._entries([at])[0][1] for name, at in log.states.items()},
            damage=damage,
        )

    def commit(self, batch: Batch) -> int:
        """Make a batch durable; return how many of its entries are, which is all but those that cannot be pickled.

        `StoreError` if it cannot be written or the directory is gone; then nothing of it is durable.
        """
        blobs = {}
        unkept: Counter[str] = Counter()
        stored = 0
        for group, entries in batch.groups.items():
            data, left_out = codec.encode(entries)
            unkept.update(str(entries[position][1]) for position in left_out)
            count = len(entries) - len(left_out)
            stored += count
            if count:
                blobs[group] = (count, data)
        with self._transaction("journal committed") as change:
            for group, (count, data) in blobs.items():
                change.append(group, count, data)
            for name, state in batch.states.items():
                change.set_state(name, state)
            if batch.spending is not None:
                change.spending = batch.spending
        self.unkept.update(unkept)
        return stored

    def read(self, group: int) -> list[Entry]:
        """Return the entries of an unfinished row group, in the order of their commits."""
        with self._lock:
            return self._entries(self._log.groups[group].identities if group in self._log.groups else ())

    def kept(self, group: int) -> list[Entry]:
        """Return what `keep` kept of a row group."""
        with self._lock:
            return self._entries([self._log.kept[group]] if group in self._log.kept else ())

    def keep(self, group: int, entries: Sequence[Entry]) -> None:
        """Keep these of a row group beyond its end: what is finished of its dropped rows."""
        data, left_out = codec.encode(entries)
        with self._transaction("journal kept") as change:
            change.keep(group, len(entries) - len(left_out), data)
        self.unkept.update(str(entries[position][1]) for position in left_out)

    def free(self, group: int) -> None:
        """Forget the entries of a row group that is finished on disk."""
        if group in self._log.groups:
            with self._transaction("journal freed") as change:
                change.forget(group)

    def drop_kept(self, group: int) -> None:
        """Forget what was kept of a row group."""
        if group in self._log.kept:
            with self._transaction("journal freed") as change:
                change.keep(group, 0, b"")

    def forget_states(self) -> None:
        """Forget the states of stateful generators: some of what they have given is lost."""
        if self._log.states:
            with self._transaction("journal freed") as change:
                for name in list(self._log.states):
                    change.set_state(name, None)

    def finish(self) -> None:
        """Close the journal of a build that is done: its files go, or shrink to the finished cells of dropped rows."""
        if not self._log.kept:
            self.close()
            # In this order: a journal without its mark is whole, a mark without its journal says that one is missing.
            try:
                remove(self.directory, MARK_NAME)
                faults.reach("journal unmarked")
                for name in (JOURNAL_NAME, WAL_NAME):
                    remove(self.directory, name)
                sync_directory(self.directory)
            except OSError as error:
                raise self._failed(error) from error
            faults.reach("journal removed")
            return
        with self._transaction("journal freed") as change:
            for group in list(self._log.groups):
                change.forget(group)
            for name in list(self._log.states):
                change.set_state(name, None)
        with self._lock, contextlib.suppress(sqlite3.Error):
            # It needs room for a copy; without it the file is only larger than it need be.
            self._connection().execute("VACUUM")
        self.close()

    def close(self) -> None:
        """Let go of the files; a second time does nothing."""
        with self._lock:
            if self._database is None:
                return
            database, self._database = self._database, None
            os.close(self._mark)
            try:
                database.close()
            except sqlite3.Error as error:
                raise self._failed(error) from error
        faults.reach("journal closed")

    def _entries(self, identities: Sequence[int]) -> list[Entry]:
        found: list[Entry] = []
        for identity in identities:
            try:
                data = row_data(self._connection(), identity)
            except sqlite3.Error as error:
                raise self._failed(error) from error
            found += codec.decode(data, trusted=self._trusted)
        return found

    @contextlib.contextmanager
    def _transaction(self, done: str) -> Iterator[Change]:
        """Yield what is to be changed and make it durable; the log follows only then."""
        with self._lock:
            database = self._connection()
            try:
                if _inode(self._path) != self._inode:
                    raise FileNotFoundError("it was removed or replaced while it was in use")
                change = Change(self._log)
                yield change
                change.finish()
                database.execute("BEGIN IMMEDIATE")
                change_rows(database, change.deleted, change.inserted)
                faults.reach("journal written")
                database.execute("COMMIT")
            except (OSError, sqlite3.Error) as error:
                _roll_back(database)
                raise self._failed(error) from error
            except BaseException:
                _roll_back(database)
                raise
            self._log.apply(change)
            faults.reach(done)
            with contextlib.suppress(OSError):
                # What the mark misses it only cannot tell; the commit itself is on disk.
                write_mark(self._mark, self._log.totals)
            faults.reach("journal marked")

    def _connection(self) -> sqlite3.Connection:
        if self._database is None:
            raise StoreError(f"the journal in {str(self.directory)!r} is closed")
        return self._database

    def _failed(self, error: Exception) -> StoreError:
        return _failed(self.directory, error)


def inspect_journal(directory: Path) -> Recovered | None:
    """Look into the journal of a directory without changing anything; None if there is none."""
    if not has_journal(directory):
        return None
    if is_being_written(directory):
        return Recovered(in_use=True)
    with tempfile.TemporaryDirectory(prefix="seedbed-") as scratch:
        try:
            for name in (JOURNAL_NAME, WAL_NAME, MARK_NAME, SALVAGED_NAME):
                with (
                    contextlib.suppress(FileNotFoundError),
                    open_file(directory, name) as file,
                    (Path(scratch) / name).open("xb") as copy,
                ):
                    shutil.copyfileobj(file, copy)
        except OSError as error:
            raise _failed(directory, error) from error
        journal, found = Journal.open(Path(scratch), trusted=False)
        journal.close()
    return found


def _open_files(directory: Path) -> tuple[sqlite3.Connection, Log, tuple[str, ...]]:
    """Open the database of a journal, or one with what is left if it is damaged, and say what was found."""
    path = directory / JOURNAL_NAME
    # Read before SQLite sees it: what it cannot use it throws away.
    wal = _read(directory / WAL_NAME)
    mark = read_mark(directory / MARK_NAME)
    database = None
    log = Log()
    is_sane = False
    try:
        with open_file(directory, JOURNAL_NAME) as file:
            is_sane = header_is_whole(file.read(100))
        if is_sane:
            database = connect(path)
            is_sane = is_sound(database) and all(log.take(row) for row in every_row(database)) and log.is_whole
    except (FileNotFoundError, sqlite3.DatabaseError):
        is_sane = False
    wal_is_whole = not log_is_broken(wal) and (mark is None or mark[0] <= log.totals.commits)
    if database is not None and is_sane and wal_is_whole:
        return database, log, ()
    left = salvage(_read(path), wal, mark)
    what = "is damaged" if path.exists() else "is missing"
    name = WAL_NAME if is_sane else JOURNAL_NAME
    replace_database(directory, left.rows)
    if database is not None:
        # Only now: it must not tidy up what was not salvaged yet. The file that it has open is in no directory now.
        database.close()
    log = Log()
    for row in left.rows:
        log.take(row)
    return connect(path), log, (f"{name!r} {what}: {left.cost()}",)


def _read(path: Path) -> bytes:
    try:
        return read_file(path.parent, path.name)
    except FileNotFoundError:
        return b""


def _failed(directory: Path, error: Exception) -> StoreError:
    return StoreError(f"the journal in {str(directory)!r} cannot be used: {error}")


def _inode(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _roll_back(database: sqlite3.Connection) -> None:
    if database.in_transaction:
        with contextlib.suppress(sqlite3.Error):
            database.execute("ROLLBACK")
