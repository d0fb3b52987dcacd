"""The manifest: an append-only log that says what the dataset directory holds.

A line is one JSON record with a checksum as its last key, followed by two newlines. A checkpoint appends one line
whatever came before it, so it costs the same for the first row group and the millionth. Damage costs only the line it
hits: even a lost newline joins no two lines, because the other one still parts them. The header, without which the rest
means nothing, is written twice.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING

import attrs

from ..errors import ManifestError
from .records import (
    FORMAT,
    Finished,
    GroupRecord,
    Header,
    PartRecord,
    Processed,
    Record,
    Rewritten,
    Spending,
    record_from_dict,
    record_to_dict,
)

if TYPE_CHECKING:
    import io
    from collections.abc import Callable
    from pathlib import Path

MANIFEST_NAME = "manifest.jsonl"

_SUM_KEY = b',"sum":"'
_SUM_BYTES = 16
_SUM_LENGTH = len(_SUM_KEY) + 2 * _SUM_BYTES + len(b'"}')


@attrs.define(eq=False)
class Manifest:
    """What the records so far add up to: pure, changed by `apply` alone."""

    header: Header | None = None
    groups: dict[int, GroupRecord] = attrs.field(factory=dict)
    # What the part of a group may hold besides what its group record says, oldest first.
    rewritten: dict[int, list[PartRecord]] = attrs.field(factory=dict)
    finished: Finished | None = None
    processed: Processed | None = None
    spending: Spending | None = None

    def apply(self, record: Record) -> None:
        """Take in the next record; of two that say the same thing the last one counts."""
        match record:
            case Header():
                # Of a dataset that was grown, the unified schema and what was made of the whole know only a part.
                self.header = record
                self.finished = self.processed = None
            case GroupRecord():
                self.groups[record.index] = record
                # The unified schema and what was made of the whole know nothing of this group.
                self.rewritten.pop(record.index, None)
                self.finished = self.processed = None
            case Rewritten():
                self.rewritten.setdefault(record.index, []).append(record.part)
            case Finished():
                self.finished = record
            case Processed():
                self.processed = record
            case Spending():
                self.spending = record

    @property
    def expected_groups(self) -> int:
        """How many row groups the whole dataset has."""
        return self.header.layout.count if self.header else 0

    @property
    def complete(self) -> bool:
        """Whether the build said that it finished and every row group is there."""
        return self.finished is not None and all(index in self.groups for index in range(self.expected_groups))

    def contents(self, index: int) -> tuple[PartRecord, ...]:
        """Return what the part of this group may hold, the likeliest first; empty if it has none.

        Once the build finished, the last rewriting is what the file holds.
        """
        group = self.groups.get(index)
        if group is None or group.part is None:
            return ()
        newest_first = (*reversed(self.rewritten.get(index, [])), group.part)
        return newest_first[:1] if self.finished else newest_first


@attrs.frozen(kw_only=True)
class ManifestFile:
    """A manifest as it was read.

    `damaged` are the numbers of lines that cannot be trusted; `length` is how many bytes count: what follows is a line
    that was being written when the process died.
    """

    manifest: Manifest
    damaged: tuple[int, ...]
    length: int


def encode(record: Record) -> bytes:
    """Return the record as a line with its checksum, newlines included."""
    body = json.dumps(record_to_dict(record), separators=(",", ":")).encode()
    return body[:-1] + _SUM_KEY + _checksum(body) + b'"}\n\n'


def decode(line: bytes) -> Record | None:
    """Return the record of a line without its newlines, or None if the line is not what was written."""
    body = line[:-_SUM_LENGTH] + b"}"
    if line[-_SUM_LENGTH:] != _SUM_KEY + _checksum(body) + b'"}':
        return None
    try:
        return record_from_dict(json.loads(body))
    except (ValueError, KeyError, TypeError):
        # Whole but unknown: written by a later version of the format, which the header is asked about.
        return None


def parse(data: bytes) -> ManifestFile:
    """Read the bytes of a manifest, whatever happened to them."""
    manifest = Manifest()
    damaged = []
    *lines, tail = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        record = decode(line) if line else None
        if record is not None:
            manifest.apply(record)
        elif line:
            damaged.append(number)
    last = decode(tail)
    if last is not None:
        manifest.apply(last)
    torn = 0 if last is not None else len(tail)
    return ManifestFile(manifest=manifest, damaged=tuple(damaged), length=len(data) - torn)


def is_dataset(directory: Path) -> bool:
    """Whether there is a manifest in this directory."""
    return (directory / MANIFEST_NAME).is_file()


def read(directory: Path) -> ManifestFile:
    """Read the manifest of a dataset directory; `ManifestError` if there is none that can be used."""
    path = directory / MANIFEST_NAME
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        found = "it has no " + MANIFEST_NAME if directory.is_dir() else "there is no such directory"
        raise ManifestError(f"{str(directory)!r} is not a dataset: {found}") from error
    content = parse(data)
    header = content.manifest.header
    if header is None:
        raise ManifestError(f"{str(path)!r} has no header that can be read: it is damaged or not a manifest")
    if header.format != FORMAT:
        raise ManifestError(f"{str(path)!r} has format {header.format}, this version reads format {FORMAT}")
    return content


def append(file: io.FileIO, record: Record, *, step: Callable[[str], None]) -> None:
    """Append a record and wait until it is on disk; after an error the file ends where it ended before."""
    end = file.seek(0, os.SEEK_END)
    try:
        rest = memoryview(encode(record))
        while rest:
            rest = rest[file.write(rest) :]
        step("line-written")
        os.fsync(file.fileno())
    except OSError:
        file.truncate(end)
        raise
    step("line-synced")


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_SUM_BYTES).hexdigest().encode()
