"""The framing of manifest and journal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from seedbed.store.log import HEADER_SIZE, MARKER, LogRecord, frame, scan

# Some that hold what looks like the beginning of another record.
payloads = st.binary(max_size=60) | st.binary().map(lambda data: MARKER + data) | st.binary().map(lambda x: frame(1, x))
logs = st.lists(st.tuples(st.integers(0, 255), payloads), min_size=1, max_size=6)


def written(log: list[tuple[int, bytes]]) -> tuple[bytes, list[LogRecord]]:
    """The bytes of a log and its records."""
    data, records = b"", []
    for kind, payload in log:
        start = len(data)
        data += frame(kind, payload)
        records.append(LogRecord(kind=kind, payload=payload, start=start, end=len(data)))
    return data, records


@given(logs, st.data())
def test_a_truncated_log_is_read_up_to_its_end(log: list[tuple[int, bytes]], data: st.DataObject) -> None:
    """Wherever a log is cut off, as it is while a record is written, the records before that are read, undamaged."""
    whole, records = written(log)
    length = data.draw(st.integers(0, len(whole)))
    found = scan(whole[:length])
    left = [record for record in records if record.end <= length]
    assert found.records == tuple(left)
    # The payload of a record that is cut off may itself look like a record: then the beginning is taken for damage.
    if not any(MARKER in payload for _, payload in log):
        assert (found.damaged, found.end) == ((), left[-1].end if left else 0)


@given(logs, st.data())
def test_a_flipped_byte_costs_the_record_it_hits(log: list[tuple[int, bytes]], data: st.DataObject) -> None:
    """One changed byte is found, and every other record is read."""
    whole, records = written(log)
    place = data.draw(st.integers(0, len(whole) - 1))
    damaged = bytearray(whole)
    damaged[place] ^= data.draw(st.integers(1, 255))
    found = scan(bytes(damaged))
    assert [record for record in records if not record.start <= place < record.end] == [
        record for record in found.records if record in records
    ]
    # What is named is the record that was hit, unless its payload holds records, which are then found in it.
    (hit,) = (record for record in records if record.start <= place < record.end)
    assert found.damaged
    assert all(hit.start <= start < end <= hit.end for start, end in found.damaged)


@given(st.binary(max_size=300) | logs.map(lambda log: written(log)[0]), st.binary(max_size=40), st.data())
def test_any_bytes_are_accounted_for(before: bytes, junk: bytes, data: st.DataObject) -> None:
    """Of whatever a file holds, each byte belongs to a record, to damage or to the beginning of a record at the end."""
    place = data.draw(st.integers(0, len(before)))
    content = before[:place] + junk + before[place:]
    found = scan(content)
    ranges = sorted([*((record.start, record.end) for record in found.records), *found.damaged])
    position = 0
    for start, end in ranges:
        assert start == position
        position = end
    assert position == found.end <= len(content)


def test_headers_with_invalid_lengths_are_skipped_in_linear_time() -> None:
    """Many false headers cost no more than looking at each of them once, and the records behind them are found."""
    false = frame(1, bytes(1_000_000))[:HEADER_SIZE]
    found = scan(false * 50_000 + frame(2, b"real"))
    assert [(record.kind, record.payload) for record in found.records][-1] == (2, b"real")
