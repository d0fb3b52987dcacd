"""The manifest: an append-only log that says what the dataset directory holds.

A line is one JSON record with a checksum as its last key, followed by two newlines. A checkpoint appends one record
whatever came before it, so it costs the same for the first row group and the millionth. Damage costs only the line it
hits: even a lost newline joins no two lines, because the other one still parts them. Every line is written twice, so
that damage in one place costs nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from itertools import pairwise
from typing import TYPE_CHECKING

import attrs
import pyarrow as pa

from ..errors import ManifestError
from ..runtime import faults
from .files import open_file, read_file
from .parts import PROCESSED_NAME, is_staged_name, part_name
from .records import (
    FORMAT,
    Finished,
    GroupRecord,
    Header,
    PartRecord,
    Processed,
    Record,
    Spending,
    States,
    record_from_dict,
    record_to_dict,
)

if TYPE_CHECKING:
    import io
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

MANIFEST_NAME = "manifest.jsonl"

_END = b"\n\n"
_SUM_KEY = b',"sum":"'
_SUM_BYTES = 16
_SUM_LENGTH = len(_SUM_KEY) + 2 * _SUM_BYTES + len(b'"}')


@attrs.define(eq=False)
class Manifest:
    """What the records so far add up to: pure, changed by `apply` alone."""

    header: Header | None = None
    groups: dict[int, GroupRecord] = attrs.field(factory=dict)
    finished: Finished | None = None
    processed: Processed | None = None
    spending: Spending | None = None
    states: States | None = None

    def apply(self, record: Record) -> None:
        """Take in the next record; of two that say the same thing the last one counts."""
        match record:
            case Header():
                # Of a dataset that was grown, the unified schema and what was made of the whole know only a part.
                self.header = record
                self.finished = self.processed = None
            case GroupRecord():
                self.groups[record.index] = record
                # The unified schema, what was made of the whole and the states know nothing of this group.
                self.finished = self.processed = self.states = None
            case Finished():
                self.finished = record
            case Processed():
                self.processed = record
            case Spending():
                self.spending = record
            case States():
                self.states = record

    def records(self) -> Iterator[Record]:
        """Yield records that add up to this."""
        found = (self.header, *self.groups.values(), self.spending, self.finished, self.processed, self.states)
        yield from (record for record in found if record is not None)

    @property
    def expected_groups(self) -> int:
        """How many row groups the whole dataset has."""
        return self.header.layout.count if self.header else 0

    @property
    def complete(self) -> bool:
        """Whether the build said that it finished and every row group is there."""
        return self.finished is not None and all(index in self.groups for index in range(self.expected_groups))


@attrs.frozen(kw_only=True)
class ManifestFile:
    """A manifest as it was read.

    `damaged` are the numbers of lines that cannot be trusted, `lost` those among them of which no other copy is left;
    `length` is how many bytes count: what follows is a line that was being written when the process died.
    """

    manifest: Manifest
    damaged: tuple[int, ...]
    lost: tuple[int, ...]
    length: int

    @property
    def damage(self) -> tuple[str, ...]:
        """One sentence for what is damaged and what that costs."""
        sentences = []
        if spared := [number for number in self.damaged if number not in self.lost]:
            sentences.append(f"{_lines(spared)} damaged; nothing is lost, there is a copy of what it said")
        if self.lost:
            sentences.append(
                f"{_lines(self.lost)} damaged and without a copy; a row group that was listed there is lost"
            )
        return tuple(sentences)


def _lines(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"line {numbers[0]} of {MANIFEST_NAME!r} is"
    return f"lines {', '.join(map(str, numbers))} of {MANIFEST_NAME!r} are"


def encode(record: Record) -> bytes:
    """Return the record as a line with its checksum, newlines included."""
    body = json.dumps(record_to_dict(record), separators=(",", ":")).encode()
    return body[:-1] + _SUM_KEY + _checksum(body) + b'"}' + _END


def decode(line: bytes) -> Record | None:
    """Return the record of a line without its newlines, or None if the line is not what was written.

    `ManifestError` if it names a file that no writer generates.
    """
    body = line[:-_SUM_LENGTH] + b"}"
    if line[-_SUM_LENGTH:] != _SUM_KEY + _checksum(body) + b'"}':
        return None
    try:
        record = record_from_dict(json.loads(body))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError, pa.ArrowException):
        # Whole but unknown: written by a later version of the format, which the header is asked about.
        return None
    _check_names(record)
    return record


def _check_names(record: Record) -> None:
    """Raise `ManifestError` if a record names a file that no writer generates: it could be anywhere."""
    match record:
        case GroupRecord(part=PartRecord() as part):
            name = part_name(record.index)
            is_ours = part.name == name and (part.staged is None or is_staged_name(part.staged, name))
        case Processed(part=part):
            is_ours = part.name == PROCESSED_NAME and part.staged is None
        case _:
            return
    if not is_ours:
        raise ManifestError(f"{MANIFEST_NAME!r} names a file that no writer generates: {(part.staged, part.name)!r}")


def parse(data: bytes) -> ManifestFile:
    """Read the bytes of a manifest, whatever happened to them."""
    manifest = Manifest()
    *lines, tail = data.split(b"\n")
    found = [(number, line, decode(line)) for number, line in enumerate(lines, start=1) if line]
    last = decode(tail)
    if last is not None:
        found.append((len(lines) + 1, tail, last))
    damaged = [number for number, _, record in found if record is None]
    lost: list[int] = []
    # A run of damaged lines cost nothing if it is no longer than the copies that the records beside it lack.
    run: list[int] = []
    lacking = position = 0
    while position < len(found):
        number, line, record = found[position]
        position += 1
        if record is None:
            run.append(number)
            continue
        manifest.apply(record)
        copies = 1
        while position < len(found) and found[position][1] == line:
            position += 1
            copies += 1
        if len(run) > lacking + copies % 2:
            lost += run
        run, lacking = [], copies % 2
    if len(run) > lacking:
        lost += run
    length = len(data) - (len(tail) if last is None else 0)
    return ManifestFile(manifest=manifest, damaged=tuple(damaged), lost=tuple(lost), length=length)


def is_dataset(directory: Path) -> bool:
    """Whether there is a manifest in this directory."""
    return (directory / MANIFEST_NAME).is_file()


def read(directory: Path) -> ManifestFile:
    """Read the manifest of a dataset directory; `ManifestError` if there is none that can be used."""
    path = directory / MANIFEST_NAME
    try:
        data = read_file(directory, MANIFEST_NAME)
    except (FileNotFoundError, NotADirectoryError) as error:
        found = "it has no " + MANIFEST_NAME if directory.is_dir() else "there is no such directory"
        raise ManifestError(f"{str(directory)!r} is not a dataset: {found}") from error
    except OSError as error:
        raise ManifestError(f"{str(path)!r} cannot be read: {error}") from error
    content = parse(data)
    header = content.manifest.header
    if header is None:
        raise ManifestError(f"{str(path)!r} has no header that can be read: it is damaged or not a manifest")
    if header.format != FORMAT:
        raise ManifestError(f"{str(path)!r} has format {header.format}, this version reads format {FORMAT}")
    _check_layout(path, header, content.manifest)
    return content


def _check_layout(path: Path, header: Header, manifest: Manifest) -> None:
    """Raise `ManifestError` if a row group has other rows than its number says."""
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
    """Take the lock of an open manifest, which dies with its owner; false if another has it."""
    if sys.platform == "win32":
        return True
    import fcntl  # noqa: PLC0415 - not there on Windows

    try:
        fcntl.flock(file.fileno(), (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_being_written(directory: Path) -> bool:
    """Whether a process is writing the dataset in this directory now."""
    try:
        with open_file(directory, MANIFEST_NAME) as file:
            return not lock(file, exclusive=False)
    except OSError:
        return False


def append(file: io.FileIO, record: Record) -> None:
    """Append a record, twice, and wait until it is on disk; after an error the file ends where it ended before."""
    write(file, [record])


def write(file: io.FileIO, records: Iterable[Record]) -> None:
    """Append several records as one."""
    end = file.seek(0, os.SEEK_END)
    try:
        rest = memoryview(b"".join(encode(record) * 2 for record in records))
        while rest:
            rest = rest[file.write(rest) :]
        faults.reach("line written")
        os.fsync(file.fileno())
    except OSError:
        file.truncate(end)
        raise
    faults.reach("line synced")


def end_last_line(file: io.FileIO, length: int) -> None:
    """Remove a half-written line behind `length`, and give the whole one before it the newlines that it lacks.

    Without them the next record would continue that line and damage both.
    """
    file.truncate(length)
    start = file.seek(max(0, length - len(_END)))
    ended = file.read(length - start)
    file.write(_END[: len(_END) - (len(ended) - len(ended.rstrip(_END)))])


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_SUM_BYTES).hexdigest().encode()
