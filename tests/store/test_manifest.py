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
from msgspec.structs import replace

from seedbed.errors import ManifestError
from seedbed.observe.report import Drop
from seedbed.store.log import scan
from seedbed.store.manifest import (
    MANIFEST_NAME,
    Finished,
    GroupRecord,
    Header,
    Manifest,
    Published,
    append,
    decode_record,
    encode,
    parse,
    read,
)
from seedbed.store.parts import PartRecord, internal_name, part_name, staged_name
from seedbed.store.schema import Conflict

if TYPE_CHECKING:
    from pathlib import Path

    from seedbed.store.manifest import Record

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

counts = st.integers(0, 2**63 - 1)
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
    Drop, row=st.integers(0, 2**40 - 1), copy=st.integers(0, 3), column=texts, attempts=counts, error=texts, kind=texts
)
conflict_records = st.builds(Conflict, column=texts, part=texts, found=texts, expected=texts)


def group_records(indices: st.SearchStrategy[int]) -> st.SearchStrategy[GroupRecord]:
    """Group records of any content."""
    return indices.flatmap(_group_records)


def _group_records(index: int) -> st.SearchStrategy[GroupRecord]:
    return st.builds(
        GroupRecord,
        index=st.just(index),
        start=counts,
        stop=counts,
        part=st.none() | part_records(part_name(index)) | part_records(internal_name(index)),
        drops=st.lists(drop_records, max_size=3).map(tuple),
        resized=st.lists(st.tuples(texts, counts, counts), max_size=2).map(tuple),
        conflicts=st.lists(conflict_records, max_size=2).map(tuple),
        skipped=st.none() | texts,
    )


finished_records = st.builds(
    Finished, schema=st.just(SCHEMA), conflicts=st.lists(conflict_records, max_size=2).map(tuple)
)
records = (
    group_records(st.integers(0, 5))
    | finished_records
    | st.builds(
        Published,
        schema=st.just(SCHEMA),
        parts=st.integers(0, 3).map(
            lambda count: tuple(
                PartRecord(name=name, rows=1, size=2, checksum="sum", schema=SCHEMA, staged=staged_name(name))
                for name in map(part_name, range(count))
            )
        ),
    )
    | st.just(HEADER)
)


def group(index: int, **changes: Any) -> GroupRecord:
    """A plain group record with some fields changed."""
    part = PartRecord(name=part_name(index), rows=10, size=1, checksum="old", schema=SCHEMA)
    return replace(GroupRecord(index=index, start=index * 10, stop=index * 10 + 10, part=part), **changes)


@given(records)
def test_every_record_is_read_back(record: Record) -> None:
    """A record is JSON, whatever its texts hold, and reads back equal; a header is written twice."""
    found = scan(encode(record)).records
    assert [decode_record(each.payload) for each in found] == [record] * (2 if isinstance(record, Header) else 1)


def test_complete_needs_every_group_and_the_finished_record() -> None:
    """The dataset is complete when each expected group is listed and the build finished, until a later record."""
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
    manifest = Manifest(header=replace(HEADER, rows=0))
    assert not manifest.complete
    manifest.apply(Finished(schema=SCHEMA))
    assert manifest.complete


def test_read_names_the_problem(tmp_path: Path) -> None:
    """A missing directory, one of another program, a damaged header and a later format each have their own message."""
    with pytest.raises(ManifestError, match="there is no such directory"):
        read(tmp_path / "nothing")
    with pytest.raises(ManifestError, match=r"it has no \.seedbed/manifest\.log"):
        read(tmp_path)
    (tmp_path / "manifest.jsonl").write_text("{}")
    with pytest.raises(ManifestError, match=r"was written by seedbed 0\.1 \(format 1\)"):
        read(tmp_path)
    path = tmp_path / MANIFEST_NAME
    path.parent.mkdir()
    path.write_text('{"some": "other file"}\n')
    with pytest.raises(ManifestError, match="no header that can be read"):
        read(tmp_path)
    path.write_bytes(encode(replace(HEADER, format=3)))
    with pytest.raises(ManifestError, match="has format 3, this version reads format 2"):
        read(tmp_path)


def test_a_failed_append_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a write fails, the file ends where it ended before, and the next record can be appended."""
    path = tmp_path / MANIFEST_NAME
    path.parent.mkdir()
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
    assert (content.damaged, set(content.groups)) == ((), {1})


@given(st.lists(records, min_size=1, max_size=6), st.data())
def test_one_damaged_byte_costs_one_record(written: list[Record], data: st.DataObject) -> None:
    """One changed byte costs only the record that it hits, never a header, and is reported."""
    pieces = [encode(record) for record in (HEADER, *written)]
    whole = b"".join(pieces)
    place = data.draw(st.integers(0, len(whole) - 1))
    damaged = bytearray(whole)
    damaged[place] ^= data.draw(st.integers(1, 255))
    expected, position = Manifest(), 0
    for record, piece in zip((HEADER, *written), pieces, strict=True):
        if isinstance(record, Header) or not position <= place < position + len(piece):
            expected.apply(record)
        position += len(piece)
    found = parse(bytes(damaged))
    for field in attrs.fields(Manifest):
        if field.name not in ("damaged", "length"):
            assert getattr(found, field.name) == getattr(expected, field.name)
    assert parse(whole).damage == ()
    assert "'.seedbed/manifest.log' is damaged (bytes " in found.damage[0]
