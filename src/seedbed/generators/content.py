"""What stands for the content of files, so that a change of it is noticed."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MEBIBYTE = 1024 * 1024
# Up to so many bytes a file is read whole; of a larger one only pieces, evenly spread, first and last bytes included.
WHOLE = 64 * _MEBIBYTE
PIECES = 64


def tell_content(names: Sequence[str], opened: Callable[[str], BinaryIO], *, whole: int = WHOLE) -> str:
    """Size and hash of some files in this order, whatever their names are; `opened` opens one for reading.

    A file of more than `whole` bytes counts by its size and by pieces that add up to so much.
    """
    digest = hashlib.blake2b(digest_size=10)
    total = 0
    for name in names:
        with opened(name) as file:
            size = file.seek(0, 2)
            total += size
            digest.update(f"{size};".encode())
            _read_pieces(file, size, digest.update, whole)
    files = "1 file" if len(names) == 1 else f"{len(names)} files"
    return f"{files}, {total:,} bytes, hash {digest.hexdigest()}"


def _read_pieces(file: BinaryIO, size: int, update: Callable[[bytes], object], whole: int) -> None:
    if size <= whole:
        file.seek(0)
        while piece := file.read(_MEBIBYTE):
            update(piece)
        return
    length = whole // PIECES
    for number in range(PIECES):
        file.seek((size - length) * number // (PIECES - 1))
        update(file.read(length))
