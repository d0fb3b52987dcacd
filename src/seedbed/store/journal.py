"""The journal: what became of every task of the row groups that are not finished yet.

It is an append-only log in segments, `.seedbed/journal-NNNNNNN.log`. A commit appends one record with all that it makes
durable, so that either all of it counts or nothing, and waits once for the disk. A process never appends to a segment
of another: it starts a new one. A segment is removed when little of it is still needed, above all because its row
groups are in the dataset; the rest is first copied to the newest segment. Entries are stored with the number of the
commit that stored them first, which gives their order.

The journal may be read while a build writes it.
"""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs
import msgspec

from ..errors import StoreError
from ..observe.report import Count  # noqa: TC001 - msgspec reads the annotations
from ..runtime import faults
from .entries import Entry, Key, UsageEntries, count_cells, decode, encode
from .files import PRIVATE, create, open_file, read_file, remove, sync_directory
from .log import HEADER_SIZE, append, frame, scan

if TYPE_CHECKING:
    import io
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

_NAME = re.compile(r"journal-([0-9]{7,12})\.log", re.ASCII)
_COMMIT = 1
# A segment that has grown to this size is followed by another.
SEGMENT_SIZE = 4 << 20
# A segment is removed when no more than this share of it is still needed.
_WORTH_COPYING = 0.25


class _Stored(msgspec.Struct, array_like=True, frozen=True):
    """Entries of one key that were committed together; `number` is that of the commit."""

    key: Key
    number: Count
    count: Count
    data: bytes


class _Commit(msgspec.Struct, array_like=True, frozen=True):
    """The payload of a record.

    A state that is None does not count any more, nor do entries of `freed` keys, each with the number of the first
    commit that still counts. `lengths` are the lengths of the other segments when this one was started, `finished` is
    the number of row groups in the manifest: if it has fewer later, records of it are lost.
    """

    number: Count
    stored: list[_Stored] = []
    states: dict[str, bytes | None] = {}
    usage: UsageEntries | None = None
    freed: list[tuple[Key, Count]] = []
    lengths: list[tuple[Count, Count]] = []
    finished: Count = 0


_DECODER = msgspec.msgpack.Decoder(_Commit)


@attrs.frozen(kw_only=True)
class Recovered:
    """What a journal holds: how many entries under each key, the usage of all runs, the states of generators.

    `long_lived` are the keys of long-lived entries; `damage` is one sentence for each thing that was found damaged.
    """

    groups: Mapping[Key, int] = attrs.field(factory=dict)
    long_lived: frozenset[Key] = frozenset()
    usage: UsageEntries = ()
    states: Mapping[str, bytes] = attrs.field(factory=dict)
    finished: int = 0  # row groups that were in the manifest at the last commit
    damage: tuple[str, ...] = ()

    def missing_groups(self, groups: int) -> str | None:
        """Return what is wrong with a manifest of `groups` row groups, if it had more of them before."""
        lost = self.finished - groups
        if lost <= 0:
            return None
        return f"the manifest ends before its last {lost:,} row group{'s' * (lost > 1)}; their rows are lost"


@attrs.frozen
class _Place:
    """Where entries are: the segment, the record in it, and which of its entries."""

    segment: int
    start: int
    end: int
    position: int
    size: int
    count: int


@attrs.define(eq=False)
class _Segment:
    size: int = 0
    needed: int = 0  # bytes of entries that still count
    keys: set[Key] = attrs.field(factory=set)  # of all its entries


@attrs.define(eq=False)
class _Index:
    """What counts of all segments: changed by `take`, once for each commit, and by `free`."""

    segments: dict[int, _Segment] = attrs.field(factory=dict)
    # By key and number of the commit: a copy of entries takes the place of the original.
    entries: dict[Key, dict[int, _Place]] = attrs.field(factory=dict)
    # The states of generators and the usage, each with the segment that holds it.
    states: dict[str, tuple[bytes | None, int]] = attrs.field(factory=dict)
    usage: UsageEntries = ()
    number: int = 0
    finished: int = 0
    # Keys that were freed, and before which commit, as long as a segment holds such entries.
    freed: dict[Key, int] = attrs.field(factory=dict)

    def take(self, segment: int, start: int, end: int, commit: _Commit) -> None:
        if commit.number >= self.number:
            self.number, self.finished = commit.number, commit.finished
        found = self.segments[segment]
        found.size = end
        for key, before in commit.freed:
            self.free(key, before=before)
        for position, stored in enumerate(commit.stored):
            key, size = stored.key, len(stored.data)
            found.keys.add(key)
            found.needed += size
            if key.is_replaced:
                self.free(key, before=stored.number)
            places = self.entries.setdefault(key, {})
            self._release(places.get(stored.number))
            places[stored.number] = _Place(segment, start, end, position, size, stored.count)
        self.states.update((name, (state, segment)) for name, state in commit.states.items())
        self.usage = self.usage if commit.usage is None else commit.usage

    def free(self, key: Key, *, before: int) -> None:
        self.freed[key] = before
        places = self.entries.get(key, {})
        for number in [number for number in places if number < before]:
            self._release(places.pop(number))
        if not places:
            self.entries.pop(key, None)

    def _release(self, place: _Place | None) -> None:
        if place is not None and place.segment in self.segments:
            self.segments[place.segment].needed -= place.size

    def recovered(self, damage: Iterable[str]) -> Recovered:
        counts = {key: sum(place.count for place in places.values()) for key, places in self.entries.items()}
        return Recovered(
            groups={key: count for key, count in counts.items() if not key.is_long_lived},
            long_lived=frozenset(key for key in counts if key.is_long_lived),
            usage=self.usage,
            states={name: state for name, (state, _) in self.states.items() if state is not None},
            finished=self.finished,
            damage=tuple(damage),
        )


def has_journal(directory: Path) -> bool:
    """True if there is a journal in this directory."""
    return bool(_segments(directory))


def inspect_journal(directory: Path, *, commits: int = 0) -> Recovered | None:
    """Read the journal of a directory without changing anything; None if there is none and need not be one.

    `commits` is the number of the last commit that the manifest mentions.
    """
    with _errors_named(directory):
        if not has_journal(directory) and not commits:
            return None
        index, damaged = _read(directory, commits)
    return index.recovered(damaged.values())


def stored_cells(directory: Path) -> Iterator[tuple[Key, str, int]]:
    """Yield how many finished cells of which column a journal has under each key; nothing is changed."""
    with _errors_named(directory):
        index, _ = _read(directory, 0)
        for key in list(index.entries):
            for _, stored in _entries(directory, index, key):
                yield from ((key, column, cells) for column, cells in count_cells(stored.data))


def read_journal(directory: Path, *, trusted: bool) -> Iterator[tuple[Key, list[Entry]]]:
    """Yield the entries of every key of a journal; nothing is changed. Values of users' types only if `trusted`."""
    with _errors_named(directory):
        index, _ = _read(directory, 0)
        for key in list(index.entries):
            try:
                stored = [each.data for _, each in _entries(directory, index, key)]
            except (FileNotFoundError, IndexError):
                continue  # the build that writes it has freed them meanwhile
            yield key, [entry for data in stored for entry in decode(data, trusted=trusted)]


def open_entries(directory: Path) -> Iterator[tuple[Key, list[Entry]]]:
    """Yield the entries of row groups that are not finished; nothing is changed, and no code of values is run."""
    return (found for found in read_journal(directory, trusted=False) if not found[0].is_long_lived)


class Journal:
    """The open journal of a dataset directory; its methods may be called from any thread, one at a time gets through.

    Its caller holds the writer of the directory, which locks out other processes.
    """

    def __init__(self, directory: Path, index: _Index, *, trusted: bool) -> None:
        self.directory = directory
        # Entries that could not be stored, by column; changed by `commit`.
        self.unpicklable: Counter[str] = Counter()
        self._trusted = trusted
        self._lock = threading.Lock()  # guards all that follows
        self._index = index
        self._freed: set[Key] = set()  # not on disk yet: the manifest implies it
        self._file: io.FileIO | None = None
        self._active = max(index.segments, default=0)
        self._closed = False

    @classmethod
    def create(cls, directory: Path) -> Journal:
        return cls.open(directory, trusted=True)[0]

    @classmethod
    def open(
        cls, directory: Path, *, trusted: bool, commits: int = 0, numbered_from: int = 0
    ) -> tuple[Journal, Recovered]:
        """Continue the journal of a dataset directory; one that is missing is started.

        All of it is read; what is left of damaged segments is copied. Values of user-defined types are read only if the
        directory is `trusted`, that is, may run code as the caller's own does; other entries are left out. `commits` is
        the number of the last commit that the manifest mentions: a journal that ends before it has lost something. The
        next commits are numbered after `numbered_from`.
        """
        with _errors_named(directory):
            index, damaged = _read(directory, commits)
        index.number = max(index.number, numbered_from)
        journal = cls(directory, index, trusted=trusted)
        try:
            if damaged:
                index.number = max(index.number, commits)
                journal._copy([number for number in damaged if number in index.segments])
                faults.reach("journal recovered")
            elif not index.segments:
                journal._append([])
                faults.reach("journal created")
        except BaseException:
            journal._end_segment()
            raise
        return journal, index.recovered(damaged.values())

    @property
    def commits(self) -> int:
        return self._index.number

    def commit(
        self,
        groups: Mapping[Key, Sequence[Entry]],
        *,
        states: Mapping[str, bytes] | None = None,
        usage: UsageEntries | None = None,
        finished: int | None = None,
    ) -> int:
        """Make entries, in order by key, and states durable; return how many entries are: all that can be stored.

        Entries of a long-lived key replace those that are stored there. `usage` is that of all runs and `finished` the
        number of row groups in the manifest, each if it changed. `StoreError` if the commit cannot be written or the
        directory is gone; then nothing of it is durable.
        """
        stored, unpicklable = [], Counter[str]()
        for key, entries in groups.items():
            data, lost = encode(entries)
            unpicklable.update(getattr(entry, "column", "") for entry in lost)
            if count := len(entries) - len(lost):
                stored.append(_Stored(key, 0, count, data))
        with self._lock:
            for key in groups:
                if key.is_replaced:
                    self._free(key)
            self._append(stored, states=states, usage=usage, finished=finished)
            faults.reach("journal committed")
            self.unpicklable.update(unpicklable)
        return sum(each.count for each in stored)

    def read(self, key: Key) -> list[Entry]:
        with self._lock:
            self._check_open()
            with _errors_named(self.directory):
                return [
                    entry for _, stored in self._stored(key) for entry in decode(stored.data, trusted=self._trusted)
                ]

    def free(self, key: Key, *, finished: int | None = None) -> None:
        """Forget the entries of a key: its row group is finished on disk, or they are of no use any more.

        `finished` is the number of row groups in the manifest, if that changed; it is stored with the next commit.
        """
        with self._lock:
            if finished is not None:
                self._index.finished = finished
            if self._free(key):
                self._tidy()
                faults.reach("journal freed")

    def forget_states(self, finished: int | None = None) -> None:
        """Forget the states of stateful generators: some of what they have generated is lost.

        `finished` is the number of row groups that are left in the manifest, if that is known.
        """
        with self._lock:
            states = dict.fromkeys(self._index.states)
            if states or finished is not None:
                self._append([], states=states, finished=finished)
                faults.reach("journal freed")

    def finish(self, *, left: bool = False) -> None:
        """Close the journal of a finished build: it is removed, or shrinks to its long-lived entries.

        With `left` it also has those of row groups that are not finished.
        """
        with self._lock:
            for key in [key for key in self._index.entries if not (left or key.is_long_lived)]:
                self._free(key)
            self._index.states.clear()
            old = list(self._index.segments)
            if self._index.entries:
                self._end_segment()
                self._copy(old)
            else:
                self._remove(old)
                faults.reach("journal removed")
        self.close()

    def close(self) -> None:
        """Close the files; a second time does nothing."""
        with self._lock:
            if self._closed:
                return
            try:
                if self._freed and self._index.segments:
                    self._append([])
            finally:
                self._closed = True
                self._end_segment()
        faults.reach("journal closed")

    def _free(self, key: Key) -> bool:
        if key not in self._index.entries:
            return False
        self._index.free(key, before=self._index.number + 1)
        self._freed.add(key)
        return True

    def _stored(self, key: Key) -> Iterator[tuple[_Place, _Stored]]:
        return _entries(self.directory, self._index, key)

    def _append(
        self,
        stored: Sequence[_Stored],
        *,
        states: Mapping[str, bytes | None] | None = None,
        usage: UsageEntries | None = None,
        finished: int | None = None,
    ) -> None:
        """Append one commit to the newest segment and wait for the disk; the index follows only then."""
        self._check_open()
        index, number = self._index, self._index.number + 1
        with _errors_named(self.directory):
            file, lengths = self._segment()
            commit = _Commit(
                number,
                [msgspec.structs.replace(each, number=each.number or number) for each in stored],
                dict(states or {}),
                usage,
                [(key, index.freed[key]) for key in self._freed],
                lengths,
                index.finished if finished is None else finished,
            )
            start = file.seek(0, os.SEEK_END)
            append(file, frame(_COMMIT, msgspec.msgpack.encode(commit)), written="journal written")
        self._freed.clear()
        index.take(self._active, start, file.tell(), commit)

    def _segment(self) -> tuple[io.FileIO, list[tuple[int, int]]]:
        """Return the newest segment of this process, and for a new one the lengths of the others."""
        file = self._file
        if file is not None:
            named = (self.directory / _name(self._active)).lstat()
            if not os.path.samestat(named, os.fstat(file.fileno())):
                raise FileNotFoundError("it was removed or replaced while it was in use")
            if file.tell() < SEGMENT_SIZE:
                return file, []
            self._end_segment()
        self._active += 1
        lengths = [(number, segment.size) for number, segment in self._index.segments.items()]
        self._file = create(self.directory, _name(self._active), replace=False)
        sync_directory(self.directory / PRIVATE)
        self._index.segments[self._active] = _Segment()
        return self._file, lengths

    def _end_segment(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _tidy(self) -> None:
        """Copy what is still needed out of segments that hold little of it, and remove them."""
        old = [
            number
            for number, segment in self._index.segments.items()
            if number != self._active and segment.needed <= _WORTH_COPYING * segment.size
        ]
        if old:
            self._copy(old)

    def _copy(self, numbers: Sequence[int]) -> None:
        """Copy what is needed of segments to the newest one, then remove them."""
        index = self._index
        with _errors_named(self.directory):
            stored = [
                each
                for key, places in index.entries.items()
                if any(place.segment in numbers for place in places.values())
                for place, each in self._stored(key)
                if place.segment in numbers
            ]
        left = set[Key]().union(*(each.keys for number, each in index.segments.items() if number not in numbers))
        index.freed = {key: before for key, before in index.freed.items() if key in left}
        self._freed = set(index.freed)
        states = {name: state for name, (state, segment) in index.states.items() if segment in (0, *numbers)}
        self._append(stored, states=states, usage=index.usage or None)
        self._remove(numbers)

    def _remove(self, numbers: Iterable[int]) -> None:
        with _errors_named(self.directory):
            for number in numbers:
                if number == self._active:
                    self._end_segment()
                remove(self.directory, _name(number))
                del self._index.segments[number]
            sync_directory(self.directory / PRIVATE)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"the journal in {str(self.directory)!r} is closed")


def _entries(directory: Path, index: _Index, key: Key) -> Iterator[tuple[_Place, _Stored]]:
    """Yield the entries of a key in the order of their commits."""
    for _, place in sorted(index.entries.get(key, {}).items()):
        with open_file(directory, _name(place.segment)) as file:
            start = place.start + HEADER_SIZE
            payload = os.pread(file.fileno(), place.end - start, start)
        yield place, _DECODER.decode(payload).stored[place.position]


def _read(directory: Path, commits: int) -> tuple[_Index, dict[int, str]]:
    """Read every segment; return what counts, and by segment what is damaged (0 for all of them)."""
    index = _Index()
    damaged: dict[int, str] = {}
    lengths: dict[int, int] = {}
    for number in _segments(directory):
        try:
            data = read_file(directory, _name(number))
        except FileNotFoundError:
            continue  # the build that writes it has removed it
        found = scan(data)
        index.segments[number] = _Segment(size=found.end)
        ranges = list(found.damaged)
        for record in found.records:
            try:
                commit = _DECODER.decode(record.payload)
            except (msgspec.MsgspecError, RecursionError):
                ranges.append((record.start, record.end))
                continue
            lengths.update(commit.lengths)
            index.take(number, record.start, record.end, commit)
        if ranges:
            places = ", ".join(f"{start:,} to {end - 1:,}" for start, end in sorted(ranges))
            damaged[number] = f"{_name(number)!r} is damaged (bytes {places}); {_COST}"
    for number, segment in index.segments.items():
        if segment.size < lengths.get(number, 0):
            damaged.setdefault(number, f"{_name(number)!r} is cut off at byte {segment.size:,}; {_COST}")
    if index.number < commits:
        damaged[0] = f"the journal ends at commit {index.number:,} of at least {commits:,}; {_COST}"
    if damaged:
        # A state includes calls whose values are lost: a generator that had it would not generate them again.
        index.states = dict.fromkeys(index.states, (None, 0))
    return index, damaged


_COST = "cells of unfinished row groups that are lost with it are generated again"


def _name(number: int) -> str:
    return f"{PRIVATE}/journal-{number:07}.log"


def _segments(directory: Path) -> list[int]:
    try:
        names = [path.name for path in (directory / PRIVATE).iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))


@contextmanager
def _errors_named(directory: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, msgspec.MsgspecError) as error:
        raise StoreError(f"the journal in {str(directory)!r} cannot be used: {error}") from error
