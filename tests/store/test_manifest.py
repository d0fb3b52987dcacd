"""The append-only manifest: what its records add up to, and what damage costs."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from seedbed.errors import ManifestError
from seedbed.store.manifest import MANIFEST_NAME, Manifest, append, decode, encode, parse, read
from seedbed.store.parts import no_step
from seedbed.store.records import Drop, Finished, GroupRecord, Header, PartRecord, Processed, Rewritten
from seedbed.store.schema import Conflict

if TYPE_CHECKING:
    from pathlib import Path

    from seedbed.store.records import Record

HEADER = Header(
    rows=25,
    buffer_size=10,
    columns=("a", "b"),
    declared=pa.schema({"a": pa.large_string()}),
    fingerprint={"columns": "abc"},
    created=1_700_000_000.5,
    version="1.2.3",
)
SCHEMA = pa.schema({"a": pa.large_string(), "b": pa.large_list(pa.struct([("x", pa.int64())]))})

texts = st.text(st.characters(), max_size=8)
part_records = st.builds(
    PartRecord,
    name=texts,
    rows=st.integers(1, 10),
    size=st.integers(0, 2**40),
    checksum=texts,
    schema=st.sampled_from([SCHEMA, pa.schema({"a": pa.null()}), pa.schema([])]),
)
drop_records = st.builds(
    Drop, row=st.integers(0), copy=st.integers(0, 3), column=texts, attempts=st.integers(0), error=texts, kind=texts
)
conflict_records = st.builds(Conflict, column=texts, part=texts, found=texts, expected=texts)


def group_records(indices: st.SearchStrategy[int]) -> st.SearchStrategy[GroupRecord]:
    """Group records of any content."""
    return st.builds(
        GroupRecord,
        index=indices,
        start=st.integers(0),
        stop=st.integers(0),
        part=st.none() | part_records,
        drops=st.lists(drop_records, max_size=3).map(tuple),
        removed=st.integers(0),
        added=st.integers(0),
        conflicts=st.lists(conflict_records, max_size=2).map(tuple),
        skipped=st.none() | texts,
    )


finished_records = st.builds(
    Finished, schema=st.just(SCHEMA), conflicts=st.lists(conflict_records, max_size=2).map(tuple)
)
records = (
    group_records(st.integers(0, 5))
    | st.builds(Rewritten, index=st.integers(0, 5), part=part_records)
    | finished_records
    | st.builds(Processed, part=part_records)
    | st.just(HEADER)
)


def group(index: int, **changes: Any) -> GroupRecord:
    """A plain group record with some fields changed."""
    part = PartRecord(name=f"p{index}", rows=10, size=1, checksum="old", schema=SCHEMA)
    return attrs.evolve(GroupRecord(index=index, start=index * 10, stop=index * 10 + 10, part=part), **changes)


@given(records)
def test_every_record_is_a_line_and_back(record: Record) -> None:
    """A record is one line of JSON, whatever its texts hold, and reads back equal."""
    line = encode(record)
    assert line.endswith(b"}\n\n")
    assert line.count(b"\n") == 2
    assert decode(line[:-2]) == record


@given(records, st.data())
def test_no_flipped_byte_goes_unseen(record: Record, data: st.DataObject) -> None:
    """A line with any one byte changed is not taken for a record."""
    line = bytearray(encode(record)[:-2])
    line[data.draw(st.integers(0, len(line) - 1))] ^= data.draw(st.integers(1, 255))
    assert decode(bytes(line)) is None


def test_complete_needs_every_group_and_the_finished_line() -> None:
    """The dataset is complete when each expected group is there and the build said so; later news undoes that."""
    manifest = Manifest()
    assert not manifest.complete
    manifest.apply(HEADER)
    assert manifest.expected_groups == 3
    manifest.apply(group(0))
    manifest.apply(group(2))
    manifest.apply(Finished(schema=SCHEMA))
    assert not manifest.complete
    manifest.apply(group(1))
    assert not manifest.complete
    manifest.apply(Finished(schema=SCHEMA))
    assert manifest.complete


def test_no_rows_are_complete_once_finished() -> None:
    """A build of zero rows expects no group."""
    manifest = Manifest(header=attrs.evolve(HEADER, rows=0))
    assert not manifest.complete
    manifest.apply(Finished(schema=SCHEMA))
    assert manifest.complete


def test_what_a_part_may_hold() -> None:
    """A rewritten part may hold either content until the build finished, then the last; a new group starts anew."""
    manifest = Manifest(header=HEADER)
    manifest.apply(group(0))
    old = manifest.groups[0].part
    assert old is not None
    new = attrs.evolve(old, checksum="new")
    manifest.apply(Rewritten(index=0, part=new))
    assert manifest.contents(0) == (new, old)
    manifest.apply(Finished(schema=SCHEMA))
    assert manifest.contents(0) == (new,)
    manifest.apply(group(0))
    assert manifest.contents(0) == (old,)
    manifest.apply(group(1, part=None))
    assert manifest.contents(1) == manifest.contents(2) == ()


def test_read_says_what_is_wrong(tmp_path: Path) -> None:
    """A missing directory, a foreign one, a damaged header and a later format each get their own sentence."""
    with pytest.raises(ManifestError, match="there is no such directory"):
        read(tmp_path / "nothing")
    with pytest.raises(ManifestError, match=r"it has no manifest\.jsonl"):
        read(tmp_path)
    path = tmp_path / MANIFEST_NAME
    path.write_text('{"some": "other file"}\n')
    with pytest.raises(ManifestError, match="no header that can be read"):
        read(tmp_path)
    path.write_bytes(encode(attrs.evolve(HEADER, format=2)))
    with pytest.raises(ManifestError, match="has format 2, this version reads format 1"):
        read(tmp_path)


def test_a_failed_append_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk refuses a line, the file ends where it ended before and goes on with the next line."""
    path = tmp_path / MANIFEST_NAME
    with io.FileIO(path, "w") as file:
        append(file, HEADER, step=no_step)
        before = path.read_bytes()

        def full(descriptor: int) -> None:
            raise OSError(28, "no space left on device")

        with monkeypatch.context() as patch, pytest.raises(OSError, match="no space"):
            patch.setattr(os, "fsync", full)
            append(file, group(0), step=no_step)
        assert path.read_bytes() == before
        append(file, group(1), step=no_step)
    content = read(tmp_path)
    assert (content.damaged, set(content.manifest.groups)) == ((), {1})


class Line:
    """What the model knows of a line: the bytes it has now, and whether they are still what was written."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.data = bytearray(encode(record))
        self.damaged = False


class ManifestMachine(RuleBasedStateMachine):
    """Random appends, torn tails and flipped bytes against the list of lines that are still whole."""

    @initialize()
    def start(self) -> None:
        self.lines = [Line(HEADER), Line(HEADER)]
        self.tail = b""

    @rule(record=records)
    def append(self, record: Record) -> None:
        # A writer that goes on after a crash first cuts off the torn tail.
        content = parse(self.data())
        assert content.length == len(self.data()) - len(self.tail)
        self.tail = b""
        self.lines.append(Line(record))

    @rule(record=records, data=st.data())
    def tear(self, record: Record, data: st.DataObject) -> None:
        line = encode(record)[:-2]
        self.tail = line[: data.draw(st.integers(0, len(line) - 1))]

    @precondition(lambda self: any(not line.damaged for line in self.lines[2:]))
    @rule(data=st.data())
    def flip(self, data: st.DataObject) -> None:
        line = data.draw(st.sampled_from([line for line in self.lines[2:] if not line.damaged]))
        place = data.draw(st.integers(0, len(line.data) - 3))
        line.data[place] ^= data.draw(st.integers(1, 255))
        line.damaged = True

    @rule(data=st.data())
    def lose_a_newline(self, data: st.DataObject) -> None:
        line = data.draw(st.sampled_from(self.lines))
        if line.data.endswith(b"\n\n"):
            del line.data[-1]

    def data(self) -> bytes:
        return b"".join(bytes(line.data) for line in self.lines) + self.tail

    @invariant()
    def only_damaged_lines_are_lost(self) -> None:
        model = Manifest()
        damaged = []
        number = 1
        for line in self.lines:
            pieces = bytes(line.data).split(b"\n")
            if line.damaged:
                # A byte that became a newline makes two damaged lines of one.
                damaged += [number + offset for offset, piece in enumerate(pieces) if piece]
            else:
                model.apply(line.record)
            number += len(pieces) - 1
        content = parse(self.data())
        found = content.manifest
        assert list(content.damaged) == damaged
        assert found.header == HEADER
        assert (found.groups, found.rewritten) == (model.groups, model.rewritten)
        assert (found.finished, found.processed) == (model.finished, model.processed)


TestManifest = ManifestMachine.TestCase
