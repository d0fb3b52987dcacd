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
import sqlite3
import threading
from collections import Counter
from typing import TYPE_CHECKING

import attrs

from ..errors import StoreError
from ..runtime import faults
from . import codec
from .journal_file import (
    JOURNAL_NAME,
    MARK_NAME,
    WAL_NAME,
    change_rows,
    connect,
    every_row,
    make_database,
    row_data,
    write_mark,
)
from .journal_log import Change, Log
from .parts import sync_directory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from .codec import Entry
    from .journal_log import Spent


def has_journal(directory: Path) -> bool:
    """Whether there is a journal in this directory, or was and should be."""
    return any((directory / name).exists() for name in (JOURNAL_NAME, MARK_NAME))


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
    finished cells of dropped rows. `damage` is one sentence for each thing that was lost.
    """

    groups: Mapping[int, int] = attrs.field(factory=dict)
    kept: frozenset[int] = frozenset()
    spending: Spent = ()
    states: Mapping[str, bytes] = attrs.field(factory=dict)
    damage: tuple[str, ...] = ()


class Journal:
    """The open journal of a dataset directory; its methods may be called from any thread, one at a time gets through.

    Whoever opens it holds the writer of the directory, which keeps other processes out.
    """

    def __init__(self, directory: Path, log: Log, *, trusted: bool) -> None:
        self.directory = directory
        # Entries that could not be kept, by column; changed by `commit` and `keep`.
        self.unkept: Counter[str] = Counter()
        self._trusted = trusted
        self._path = directory / JOURNAL_NAME
        # Guards the connection and the log, which says where each record is and follows every transaction.
        self._lock = threading.Lock()
        self._log = log
        try:
            self._database: sqlite3.Connection | None = connect(self._path)
            self._inode = _inode(self._path)
            self._mark = os.open(directory / MARK_NAME, os.O_RDWR | os.O_CREAT, 0o666)
            write_mark(self._mark, log.totals)
        except (OSError, sqlite3.Error) as error:
            raise self._failed(error) from error

    @classmethod
    def create(cls, directory: Path) -> Journal:
        """Start an empty journal in a dataset directory."""
        log = Log()
        change = Change(log)
        change.finish()
        try:
            make_database(directory / JOURNAL_NAME, change.inserted)
            faults.reach("journal made")
        except (OSError, sqlite3.Error) as error:
            raise _failed(directory, error) from error
        log.apply(change)
        return cls(directory, log, trusted=True)

    @classmethod
    def open(cls, directory: Path, *, trusted: bool) -> tuple[Journal, Recovered]:
        """Go on with the journal of a dataset directory; one that is missing is made.

        Values of types that are not known to be harmless are read only if the directory is `trusted`, that is, may run
        code as the caller's own does; otherwise the entries that hold them are left out.
        """
        if not has_journal(directory):
            return cls.create(directory), Recovered()
        journal = cls(directory, Log(), trusted=trusted)
        return journal, journal._recover()

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

    def finish(self) -> None:
        """Close the journal of a build that is done: its files go, or shrink to the finished cells of dropped rows."""
        if not self._log.kept:
            self.close()
            # In this order: a journal without its mark is whole, a mark without its journal says that one is missing.
            try:
                (self.directory / MARK_NAME).unlink(missing_ok=True)
                faults.reach("journal unmarked")
                for name in (JOURNAL_NAME, WAL_NAME):
                    (self.directory / name).unlink(missing_ok=True)
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

    def _recover(self) -> Recovered:
        states = {}
        with self._lock:
            for row in every_row(self._connection()):
                self._log.take(row)
            for name, identity in self._log.states.items():
                states[name] = self._entries([identity])[0][1]
        return Recovered(
            groups={group: found.entries for group, found in self._log.groups.items()},
            kept=frozenset(self._log.kept),
            spending=self._log.totals.spending,
            states=states,
        )

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


def _failed(directory: Path, error: Exception) -> StoreError:
    return StoreError(f"the journal in {str(directory)!r} cannot be used: {error}")


def _inode(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _roll_back(database: sqlite3.Connection) -> None:
    if database.in_transaction:
        with contextlib.suppress(sqlite3.Error):
            database.execute("ROLLBACK")
