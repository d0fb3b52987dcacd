"""What is left in the files of a damaged journal, read without SQLite.

SQLite gives up on a tree of pages when it finds one that is not as it should be, and on a write-ahead log at the first
frame that is not, without a word. Here every page of either file is looked at by itself, each version of it, and every
record counts whose checksum holds. So damage costs the records that it hits and no others.

The layout of both files is documented at https://www.sqlite.org/fileformat2.html.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import attrs

from .journal_log import ENTRIES, KEPT, STATE, TOTALS, Log, Row, Totals

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PAGE_SIZE = 4096

_WAL_HEADER = 32
_FRAME_HEADER = 24
_FRAME = _FRAME_HEADER + PAGE_SIZE
_WAL_MAGIC = {0x377F0682: "<", 0x377F0683: ">"}

_LEAF = 0x0D
_LEAF_HEADER = 8
# A record has at least a checksum, so a page holds no more of them than this.
_MOST_CELLS = PAGE_SIZE // 24
# How much of a record is in its leaf when not all of it is.
_LEAST_LOCAL = (PAGE_SIZE - 12) * 32 // 255 - 23
_MOST_LOCAL = PAGE_SIZE - 35
_COLUMNS = 6


def header_is_whole(database: bytes) -> bool:
    """Whether a database begins as one of ours does, so that SQLite reads it for what it is."""
    return (
        database[:16] == b"SQLite format 3\0"
        and database[16:18] == PAGE_SIZE.to_bytes(2, "big")
        and database[18:20] in {b"\1\1", b"\2\2"}
        and database[20:24] == bytes((0, 64, 32, 32))
    )


def log_is_broken(wal: bytes) -> bool:
    """Whether commits of a write-ahead log come after a place where SQLite stops reading it."""
    frames = _frames(wal)
    if not frames:
        return False
    magic, _, page_size, _, *salts = struct.unpack_from(">6I", wal)
    order = _WAL_MAGIC.get(magic)
    if order is None or page_size != PAGE_SIZE:
        return True
    sums = _add_up(wal[:24], order, (0, 0))
    if struct.unpack_from(">2I", wal, 24) != sums:
        return True
    for position, start in enumerate(frames):
        sums = _add_up(wal[start : start + 8], order, sums)
        sums = _add_up(wal[start + _FRAME_HEADER : start + _FRAME], order, sums)
        if wal[start + 8 : start + _FRAME_HEADER] != struct.pack(">4I", *salts, *sums):
            return any(_is_commit(wal, later, salts) for later in frames[position + 1 :])
    return False


def _is_commit(wal: bytes, start: int, salts: Sequence[int]) -> bool:
    _, pages, *found = struct.unpack_from(">4I", wal, start)
    return pages != 0 and found == list(salts)


def _frames(wal: bytes) -> range:
    return range(_WAL_HEADER, len(wal) - _FRAME + 1, _FRAME)


def _add_up(data: bytes, order: str, sums: tuple[int, int]) -> tuple[int, int]:
    one, two = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for first, second in zip(words[::2], words[1::2], strict=True):
        one = (one + first + two) & 0xFFFFFFFF
        two = (two + second + one) & 0xFFFFFFFF
    return one, two


@attrs.frozen(kw_only=True)
class Left:
    """The records of a damaged journal that still count, in order, and what must have been there besides.

    `entries` is how many are missing, or None if that cannot be said; `kept` and `states` what else is missing.
    """

    rows: tuple[Row, ...]
    totals: Totals
    entries: int | None
    kept: int
    states: tuple[str, ...]

    def cost(self) -> str:
        """What the damage costs, in words."""
        costs = []
        if self.entries is None:
            costs.append("how many entries of unfinished row groups are lost cannot be said; such cells are made again")
        elif self.entries:
            costs.append(f"{self.entries:,} entries of unfinished row groups are lost; their cells are made again")
        if self.kept:
            costs.append(f"the finished cells of dropped rows of {self.kept:,} row groups are lost")
        if self.states:
            costs.append(f"the state of {', '.join(map(repr, self.states))} is lost")
        return "; ".join(costs) or "nothing is lost"


def salvage(database: bytes, wal: bytes, mark: tuple[int, int] | None) -> Left:
    """Return what can be read of a journal; `mark` is how many commits and entries there were at least."""
    found = dict(sorted(_whole_rows(_Pages(database, wal)).items()))
    counted = {at: totals for at, row in found.items() if row.kind == TOTALS and (totals := Totals.decode(row.data))}
    at = max(counted, default=0)
    totals = counted.get(at, Totals())
    log = Log()
    rows = []
    for identity, row in found.items():
        if row.kind != TOTALS and (not at or identity > at or _counts(row, totals)) and log.take(row):
            rows.append(row)
    # An older record of the same thing was deleted when the newer one came.
    rows = [row for row in rows if row.kind != KEPT or log.kept[row.group] == row.identity]
    rows = [row for row in rows if row.kind != STATE or row.identity in log.states.values()]
    commits, entries = max(mark or (0, 0), (totals.commits, totals.entries))
    expected = sum(count for _, _, count in totals.groups.values()) + entries - totals.entries
    there = sum(group.entries for group in log.groups.values())
    if not at or there < expected:
        # A state knows of calls whose values are lost: a generator that had it would not give them again.
        log.states.clear()
        rows = [row for row in rows if row.kind != STATE]
    log.last = max((at, *found))
    newest = attrs.evolve(log.counted(), commits=commits + 1, entries=entries, spending=totals.spending)
    rows.append(Row.make(log.last + 1, TOTALS, 0, 0, newest.encode()))
    return Left(
        rows=tuple(rows),
        totals=newest,
        entries=max(0, expected - there) if at else None,
        kept=max(0, totals.kept - len(log.kept)),
        states=tuple(name for name in totals.states if name not in log.states),
    )


def _counts(row: Row, totals: Totals) -> bool:
    """Whether a record from before the newest totals is one that they count, not one that was deleted."""
    if row.kind == ENTRIES:
        return row.group in totals.groups and row.identity >= totals.groups[row.group][0]
    return row.kind == KEPT or row.identity in totals.states.values()


class _Pages:
    """Every version of every page: that of the database, then those of the log in order."""

    def __init__(self, database: bytes, wal: bytes) -> None:
        self._views = memoryview(database), memoryview(wal)
        # For each page number, when a version came (0 for the database, then 1, 2, …) and where it is.
        self._versions: dict[int, tuple[list[int], list[tuple[int, int]]]] = {}
        # For each frame, the last one of its transaction.
        self._ends: list[int] = [0]
        for number, start in enumerate(range(0, len(database), PAGE_SIZE), start=1):
            self._versions[number] = ([0], [(0, start)])
        frames = _frames(wal)
        for moment, start in enumerate(frames, start=1):
            number, pages = struct.unpack_from(">2I", wal, start)
            moments, places = self._versions.setdefault(number, ([], []))
            moments.append(moment)
            places.append((1, start + _FRAME_HEADER))
            self._ends.append(0)
            if pages:
                self._ends[-1] = moment
        last = len(frames)
        for moment in range(len(frames), 0, -1):
            last = self._ends[moment] or last
            self._ends[moment] = last

    def every(self) -> Iterator[tuple[int, int, memoryview]]:
        """Yield the number of each page, the end of the transaction of each version, and its bytes."""
        for number, (moments, places) in self._versions.items():
            for moment, place in zip(moments, places, strict=True):
                yield number, self._ends[moment], self._at(place)

    def page(self, number: int, moment: int | None) -> memoryview | None:
        """Return a page as it was at a moment, or the newest version of it."""
        moments, places = self._versions.get(number, ([], []))
        position = len(moments) if moment is None else bisect_right(moments, moment)
        return self._at(places[position - 1]) if position else None

    def _at(self, place: tuple[int, int]) -> memoryview:
        view, start = place
        return self._views[view][start : start + PAGE_SIZE]


def _whole_rows(pages: _Pages) -> Mapping[int, Row]:
    rows: dict[int, Row] = {}
    for number, moment, page in pages.every():
        for start in _cells(page, 100 if number == 1 else 0):
            # As of its own transaction; or, where a copy from log to database was interrupted, as of the end.
            for as_of in (moment, None):
                row = _read_cell(pages, page, start, as_of)
                if row is not None and (row.identity in rows or row.whole):
                    rows.setdefault(row.identity, row)
                    break
    return rows


def _cells(page: memoryview, offset: int) -> Iterator[int]:
    """Yield where records may begin in a page that may be a leaf; what is none is found out by its checksum."""
    if len(page) < offset + _LEAF_HEADER:
        return
    kind, _, count, content = struct.unpack_from(">BHHH", page, offset)
    first = offset + _LEAF_HEADER
    if kind != _LEAF and not (0 < count <= _MOST_CELLS and first + 2 * count <= content <= PAGE_SIZE):
        return
    for position in range(first, min(first + 2 * _MOST_CELLS, len(page) - 1), 2):
        start = int.from_bytes(page[position : position + 2], "big")
        if first < start < len(page):
            yield start


def _read_cell(pages: _Pages, page: memoryview, start: int, moment: int | None) -> Row | None:
    size, start = _varint(page, start)
    identity, start = _varint(page, start)
    local = size
    if size > _MOST_LOCAL:
        local = _LEAST_LOCAL + (size - _LEAST_LOCAL) % (PAGE_SIZE - 4)
        local = local if local <= _MOST_LOCAL else _LEAST_LOCAL
    payload = [page[start : start + local]]
    if len(payload[0]) < local:
        return None
    rest = size - local
    following = page[start + local : start + local + 4]
    while rest > 0:
        overflow = pages.page(int.from_bytes(following, "big"), moment)
        if overflow is None or len(overflow) < PAGE_SIZE:
            return None
        payload.append(overflow[4 : 4 + rest])
        rest -= PAGE_SIZE - 4
        following = overflow[:4]
    return _record(identity, b"".join(payload))


def _record(identity: int, payload: bytes) -> Row | None:
    view = memoryview(payload)
    end, start = _varint(view, 0)
    values: list[Any] = []
    place = end
    while start < end and len(values) <= _COLUMNS:
        kind, start = _varint(view, start)
        size = (kind - 12) // 2 if kind >= 12 else (0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0)[kind]
        data = payload[place : place + size]
        place += size
        if kind >= 12:
            values.append(data if kind % 2 == 0 else data.decode(errors="replace"))
        else:
            values.append(kind - 8 if kind in {8, 9} else int.from_bytes(data, "big", signed=True))
    return Row(identity, *values[1:]) if len(values) == _COLUMNS else None


def _varint(data: memoryview, start: int) -> tuple[int, int]:
    """Return an integer of one to nine bytes and where it ends; past the end of the data it is 0."""
    value = 0
    for position in range(start, min(start + 8, len(data))):
        value = value << 7 | data[position] & 0x7F
        if data[position] < 0x80:
            return value, position + 1
    if start + 8 < len(data):
        return value << 8 | data[start + 8], start + 9
    return 0, len(data)
