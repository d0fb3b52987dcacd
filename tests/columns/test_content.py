"""The digest of the content of files."""

from __future__ import annotations

import io

import pytest

from seedbed.columns.seed import PIECES, content_digest


def digest(*files: bytes, whole: int = 1 << 20) -> str:
    """The digest of files with these bytes."""
    return content_digest(
        [str(index) for index in range(len(files))], lambda name: io.BytesIO(files[int(name)]), limit=whole
    )


def test_the_digest_depends_on_the_content() -> None:
    """Other bytes, another order and another split into files give another digest."""
    assert digest(b"ab").startswith("1 file, 2 bytes, hash ")
    assert digest(b"ab") == digest(b"ab")
    assert (
        len({digest(b"ab"), digest(b"ba"), digest(b"a", b"b"), digest(b"b", b"a"), digest(b"", b"ab"), digest(b"")})
        == 6
    )


@pytest.mark.parametrize("at", [0, 9_999])
def test_of_a_large_file_only_pieces_are_hashed(at: int) -> None:
    """Its size, first and last bytes are always included, bytes between the pieces are not."""
    data = bytearray(10_000)
    before = digest(bytes(data), whole=PIECES)
    data[at] = 1
    assert digest(bytes(data), whole=PIECES) != before
    assert digest(bytes(10_001), whole=PIECES) != before
    between = bytearray(10_000)
    between[80] = 1  # pieces of one byte begin at every 158th
    assert digest(bytes(between), whole=PIECES) == before
    assert digest(bytes(between)) != digest(bytes(10_000))
