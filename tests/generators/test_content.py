"""What stands for the content of files."""

from __future__ import annotations

import io

import pytest

from seedbed.generators.content import PIECES, tell_content


def told(*files: bytes, whole: int = 1 << 20) -> str:
    """What is told of files with these bytes."""
    return tell_content(
        [str(index) for index in range(len(files))], lambda name: io.BytesIO(files[int(name)]), whole=whole
    )


def test_the_content_counts() -> None:
    """Other bytes, another order and another split into files are other contents."""
    assert told(b"ab").startswith("1 file, 2 bytes, hash ")
    assert told(b"ab") == told(b"ab")
    assert len({told(b"ab"), told(b"ba"), told(b"a", b"b"), told(b"b", b"a"), told(b"", b"ab"), told(b"")}) == 6


@pytest.mark.parametrize("at", [0, 9_999])
def test_of_a_large_file_pieces_count(at: int) -> None:
    """Its ends and its size always count; what lies between the pieces does not."""
    data = bytearray(10_000)
    before = told(bytes(data), whole=PIECES)
    data[at] = 1
    assert told(bytes(data), whole=PIECES) != before
    assert told(bytes(10_001), whole=PIECES) != before
    between = bytearray(10_000)
    between[80] = 1  # pieces of one byte begin at every 158th
    assert told(bytes(between), whole=PIECES) == before
    assert told(bytes(between)) != told(bytes(10_000))
