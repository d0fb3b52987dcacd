"""The manifest: an append-only log of what the dataset directory holds.

A record of the log holds one record of the manifest as JSON. A checkpoint appends one, so it costs the same for the
first row group and the millionth. Damage costs only the records that it hits. The header, without which a directory is
no dataset, is written twice.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import TYPE_CHECKING

import attrs

from ..errors import ManifestError
from ..runtime import faults
from . import log
from .files import PRIVATE, exists, open_file, read_file
from .parts import DROPPED, generated_name, internal_name, is_staged_name, part_name
from .records import (
    FORMAT,
    Finished,
    GroupRecord,
    Header,
    PartRecord,
    Published,
    Record,
    States,
    UsageRecord,
    decode_record,
    encode_record,
)

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator
    from pathlib import Path

    from .entries import Usage

MANIFEST_NAME = f"{PRIVATE}/manifest.log"
_VERSION_0_1 = "manifest.jsonl"

_RECORD = 1


@attrs.define(eq=False)
class Manifest:
    """What the records so far add up to: pure, changed by `apply` alone."""

    header: Header | None = None
    groups: dict[int, GroupRecord] = attrs.field(factory=dict)
    finished: Finished | None = None
    # Also of a dataset that was grown since: these files are in the root until others replace them.
    published: Published | None = None
    usage: Usage = ()
    states: States | None = None
    # Ranges of bytes of the file that cannot be read, and the length of what counts: what follows is a record that was
    # being written when the process died.
    damaged: tuple[tuple[int, int], ...] = ()
    length: int = 0

    def apply(self, record: Record) -> None:
        """Apply the next record; the last one of a kind counts."""
        match record:
            case Header():
                # The unified schema and the published files of a dataset that was grown cover only a part of it.
                self.header = record
                self.finished = None
            case GroupRecord():
                self.groups[record.index] = record
                # The unified schema, the published files and the states do not cover this row group.
                self.finished = self.states = None
            case Finished():
                self.finished = record
            case Published():
                self.published = record
                self.finished = None  # until its files are in the root
            case UsageRecord(entries=entries):
                self.usage = entries
            case States():
                self.states = record

    def records(self) -> Iterator[Record]:
        """Yield records that add up to this."""
        usage = UsageRecord(entries=self.usage) if self.usage else None
        found = (self.header, *self.groups.values(), usage, self.published, self.finished, self.states)
        yield from (record for record in found if record is not None)

    @property
    def in_order(self) -> list[GroupRecord]:
        """The row groups in the order of their rows."""
        return [group for _, group in sorted(self.groups.items())]

    @property
    def damage(self) -> tuple[str, ...]:
        """One sentence for each damaged range, with what that costs."""
        return tuple(
            f"{MANIFEST_NAME!r} is damaged (bytes {start:,} to {end - 1:,}); a row group that was listed there is lost"
            for start, end in self.damaged
        )

    @property
    def commits(self) -> int:
        """The number of the last commit to the journal that must be there; 0 if none must."""
        return 0 if self.finished is not None else max((group.commits for group in self.groups.values()), default=0)

    @property
    def expected_groups(self) -> int:
        """How many row groups the whole dataset has."""
        return self.header.layout.count if self.header else 0

    @property
    def complete(self) -> bool:
        """True if the build finished and every row group is listed."""
        return self.finished is not None and all(index in self.groups for index in range(self.expected_groups))


def encode(record: Record) -> bytes:
    """Return the record as it is appended to the log."""
    return log.frame(_RECORD, encode_record(record)) * (2 if isinstance(record, Header) else 1)


def _check_names(record: Record) -> None:
    """Raise `ManifestError` if a record names a file that no writer generates: it could be anywhere."""
    named: list[tuple[PartRecord | None, tuple[str, ...]]] = []
    match record:
        case GroupRecord(index=index, part=part, generated=generated):
            named = [(part, (part_name(index), internal_name(index))), (generated, (generated_name(index),))]
        case Published(parts=parts):
            named = [(part, (part_name(at),)) for at, part in enumerate(parts)]
        case Finished(dropped=dropped):
            named = [(dropped, (DROPPED,))]
    for found, names in named:
        if found is None or (
            found.name in names and (found.staged is None or is_staged_name(found.staged, found.name))
        ):
            continue
        wrong = found.staged if found.name in names else found.name
        raise ManifestError(f"{MANIFEST_NAME!r} names a file that no writer generates: {wrong!r}")


def parse(data: bytes) -> Manifest:
    """Read the bytes of a manifest, whatever happened to them."""
    found = log.scan(data)
    manifest = Manifest(length=found.end)
    damaged = list(found.damaged)
    for each in found.records:
        record = decode_record(each.payload)
        if record is None:
            damaged.append((each.start, each.end))
        else:
            _check_names(record)
            manifest.apply(record)
    manifest.damaged = tuple(sorted(damaged))
    return manifest


def is_dataset(directory: Path) -> bool:
    """True if there is a manifest in this directory."""
    return (directory / MANIFEST_NAME).is_file()


def read(directory: Path) -> Manifest:
    """Read the manifest of a dataset directory; `ManifestError` if it is missing or unusable."""
    path = directory / MANIFEST_NAME
    try:
        data = read_file(directory, MANIFEST_NAME)
    except (FileNotFoundError, NotADirectoryError) as error:
        if exists(directory, _VERSION_0_1):
            raise ManifestError(
                f"{str(directory)!r} was written by seedbed 0.1 (format 1), which this version does not read: "
                "use seedbed 0.1, or build the dataset again"
            ) from error
        found = "it has no " + MANIFEST_NAME if directory.is_dir() else "there is no such directory"
        raise ManifestError(f"{str(directory)!r} is not a dataset: {found}") from error
    except OSError as error:
        raise ManifestError(f"{str(path)!r} cannot be read: {error}") from error
    manifest = parse(data)
    header = manifest.header
    if header is None:
        raise ManifestError(f"{str(path)!r} has no header that can be read: it is damaged or not a manifest")
    if header.format != FORMAT:
        raise ManifestError(f"{str(path)!r} has format {header.format}, this version reads format {FORMAT}")
    _check_layout(path, header, manifest)
    return manifest


def _check_layout(path: Path, header: Header, manifest: Manifest) -> None:
    """Raise `ManifestError` if the rows of a row group are not those of its number."""
    layout = header.layout
    if any(before > after for before, after in pairwise((*header.segments, header.rows))):
        raise ManifestError(f"{str(path)!r} has a header whose segments are not in order")
    count = layout.count
    for index, group in manifest.groups.items():
        if index >= count or layout.group_rows(index) != range(group.start, group.stop):
            raise ManifestError(f"{str(path)!r} lists row group {index} with rows that are not those of that group")
        if any(drop.row not in range(group.start, group.stop) for drop in group.drops):
            raise ManifestError(f"{str(path)!r} lists a dropped row in row group {index} that is not one of its rows")


def lock(file: io.FileIO, *, exclusive: bool) -> bool:
    """Take the lock of an open manifest, which its process releases when it dies; False if another process has it."""
    if sys.platform == "win32":
        return True
    import fcntl  # noqa: PLC0415 - not there on Windows

    try:
        fcntl.flock(file.fileno(), (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_being_written(directory: Path) -> bool:
    """True if a process is writing the dataset in this directory."""
    try:
        with open_file(directory, MANIFEST_NAME) as file:
            return not lock(file, exclusive=False)
    except OSError:
        return False


def append(file: io.FileIO, *records: Record) -> None:
    """Append records as one and wait until they are on disk; after an error the file ends where it ended before."""
    log.append(file, b"".join(map(encode, records)), written="record written")
    faults.reach("record synced")
