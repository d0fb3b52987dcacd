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
from seedbed.store.parts import PROCESSED_NAME, part_name
from seedbed.store.records import Drop, Finished, GroupRecord, Header, PartRecord, Processed
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


def part_records(name: str) -> st.SearchStrategy[PartRecord]:
    """Records of a part of that name, of any content."""
    return st.builds(
        PartRecord,
        name=st.just(name),
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
    return indices.flatmap(_group_records)


def _group_records(index: int) -> st.SearchStrategy[GroupRecord]:
    return st.builds(
        GroupRecord,
        index=st.just(index),
        start=st.integers(0),
        stop=st.integers(0),
        part=st.none() | part_records(part_name(index)),
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
    | finished_records
    | st.builds(Processed, part=part_records(PROCESSED_NAME))
    | st.just(HEADER)
)


def group(index: int, **changes: Any) -> GroupRecord:
    """A plain group record with some fields changed."""
    part = PartRecord(name=part_name(index), rows=10, size=1, checksum="old", schema=SCHEMA)
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
        append(file, HEADER)
        before = path.read_bytes()

        def full(descriptor: int) -> None:
            raise OSError(28, "no space left on device")

        with monkeypatch.context() as patch, pytest.raises(OSError, match="no space"):
            patch.setattr(os, "fsync", full)
            append(file, group(0))
        assert path.read_bytes() == before
        append(file, group(1))
    content = read(tmp_path)
    assert (content.damaged, set(content.manifest.groups)) == ((), {1})


@given(st.lists(records, min_size=1, max_size=6), st.data())
def test_one_damaged_place_costs_nothing(written: list[Record], data: st.DataObject) -> None:
    """Whatever byte of a manifest is changed, its copy says what the line said, and that is what is told."""
    whole = b"".join(encode(record) * 2 for record in (HEADER, *written))
    damaged = bytearray(whole)
    damaged[data.draw(st.integers(0, len(whole) - 3))] ^= data.draw(st.integers(1, 255))
    expected, found = parse(whole), parse(bytes(damaged))
    assert (expected.damaged, expected.damage) == ((), ())
    for field in attrs.fields(Manifest):
        assert getattr(found.manifest, field.name) == getattr(expected.manifest, field.name)
    # A byte that becomes a newline may make two lines of one, and then it is not known that both were the same one.
    if len(found.damaged) == 1:
        assert found.lost == ()
        assert "nothing is lost" in found.damage[0]


@given(st.lists(records, min_size=1, max_size=6, unique_by=encode), st.data())
def test_a_record_that_is_gone_is_told(written: list[Record], data: st.DataObject) -> None:
    """When both copies of a record are damaged it is lost, and the numbers of its lines are told."""
    place = data.draw(st.integers(0, len(written) - 1))
    pieces = [encode(record) for record in (HEADER, *written) for _ in range(2)]
    pieces[2 * place + 2 : 2 * place + 4] = [piece.replace(b'"sum"', b'"mus"') for piece in pieces[2 * place + 2 :][:2]]
    found = parse(b"".join(pieces))
    assert found.lost == found.damaged == (4 * place + 5, 4 * place + 7)
    assert "without a copy" in found.damage[0]


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
        assert found.groups == model.groups
        assert (found.finished, found.processed) == (model.finished, model.processed)


TestManifest = ManifestMachine.TestCase
