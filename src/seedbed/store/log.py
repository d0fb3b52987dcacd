"""An append-only log of framed records: the form of the manifest and of the segments of the journal.

A record is a header and a payload. The header begins with a marker and has a checksum of its own, so that its length
can be believed before anything of that length is read. Damage costs the records that it hits: a reader continues at the
next marker. A record that is cut off at the end of the log is not damage; its writer died, or is still writing it.
"""

from __future__ import annotations

import os
import struct
import zlib
from typing import TYPE_CHECKING

import attrs

from ..runtime import faults
from .files import sync_file

if TYPE_CHECKING:
    import io

MARKER = b"\x9esbLOG\r\n"

# Marker, length, kind and checksum of the payload; then the checksum of these.
_FIELDS = struct.Struct("<8sIBI")
_SUM = struct.Struct("<I")
HEADER_SIZE = _FIELDS.size + _SUM.size


@attrs.frozen(kw_only=True)
class LogRecord:
    """A record that is whole: its kind, its payload, and where in the log it starts and ends."""

    kind: int
    payload: bytes
    start: int
    end: int


@attrs.frozen(kw_only=True)
class Scan:
    """What was found in the bytes of a log.

    `damaged` are ranges of bytes that belong to no whole record; `end` is where the last record ends, or the last
    damage: what follows is the beginning of a record.
    """

    records: tuple[LogRecord, ...]
    damaged: tuple[tuple[int, int], ...]
    end: int


def frame(kind: int, payload: bytes) -> bytes:
    """Return a record as the bytes that are appended to a log."""
    fields = _FIELDS.pack(MARKER, len(payload), kind, zlib.crc32(payload))
    return fields + _SUM.pack(zlib.crc32(fields)) + payload


def scan(data: bytes) -> Scan:
    """Find every whole record in the bytes of a log, whatever happened to them, in time linear in their number."""
    records: list[LogRecord] = []
    damaged: list[tuple[int, int]] = []
    position = sound = 0  # up to `sound` every byte belongs to a record or to damage
    while (position := data.find(MARKER, position)) >= 0:
        start, stop = position, position + HEADER_SIZE
        fields = data[start : start + _FIELDS.size]
        if data[start + _FIELDS.size : stop] != _SUM.pack(zlib.crc32(fields)):
            position += 1
            continue
        _, length, kind, checksum = _FIELDS.unpack(fields)
        if stop + length > len(data):
            position += 1
            continue
        # The length is what was written: whatever the payload holds, the next record begins behind it.
        position = stop + length
        payload = data[stop:position]
        if zlib.crc32(payload) == checksum:
            if sound < start:
                damaged.append((sound, start))
            records.append(LogRecord(kind=kind, payload=payload, start=start, end=position))
            sound = position
    if sound < len(data) and not _is_beginning(data[sound:]):
        damaged.append((sound, len(data)))
        sound = len(data)
    return Scan(records=tuple(records), damaged=tuple(damaged), end=sound)


def _is_beginning(tail: bytes) -> bool:
    """True if a tail is a record that was cut off and nothing else."""
    if len(tail) < HEADER_SIZE:
        return tail.startswith(MARKER) or MARKER.startswith(tail)
    fields = tail[: _FIELDS.size]
    is_header = fields.startswith(MARKER) and tail[_FIELDS.size : HEADER_SIZE] == _SUM.pack(zlib.crc32(fields))
    return is_header and HEADER_SIZE + _FIELDS.unpack(fields)[1] > len(tail)


def append(file: io.FileIO, data: bytes, *, written: str) -> None:
    """Append framed records and wait until they are on disk; after an error the log ends where it ended before.

    `written` is the fault point between the two.
    """
    end = file.seek(0, os.SEEK_END)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]
        faults.reach(written)
        sync_file(file.fileno())
    except OSError:
        file.truncate(end)
        raise
