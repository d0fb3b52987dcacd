"""Random words that belong to rows: the same for a row whoever asks, in whatever order and company.

Each column has a stream of its own, keyed by the recipe's seed and its name. A block of 1,024 rows, aligned on the
number of the row in the whole dataset, is one jump in that stream (Philox counts, so a jump costs nothing); rows that a
processor made of a row have blocks beside it. Only raw words of the bit generator are used, never the distributions of
numpy: their streams may change between versions and depend on how many values are asked for.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

BLOCK = 1024


class Stream:
    """The random words of one column."""

    def __init__(self, seed: int, column: str) -> None:
        digest = hashlib.blake2b(f"{seed}\0{column}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
        self._key = np.frombuffer(digest, dtype="<u8").astype(np.uint64)

    def bits(self, block: int, copy: int = 0) -> np.random.Philox:
        """The bit generator of one block of rows."""
        # The lowest two words count within the block; they never get as far as the third.
        counter = np.array([0, 0, block, copy], dtype=np.uint64)
        return np.random.Philox(key=self._key, counter=counter)

    def words(self, rows: range | Sequence[tuple[int, int]], width: int = 1) -> NDArray[np.uint64]:
        """`width` words for each row; rows are a range of numbers, or pairs of source row and copy in any order."""
        words = np.empty((len(rows), width), dtype=np.uint64)
        for (block, copy), at, inside in blocks_of(rows):
            words[at] = self.bits(block, copy).random_raw((BLOCK, width))[inside]
        return words

    def uniforms(self, rows: range | Sequence[tuple[int, int]], width: int = 1) -> NDArray[np.float64]:
        """`width` numbers for each row, above 0 and below 1."""
        # 52 bits and a half: with 53 the largest would round to 1.
        return ((self.words(rows, width) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def blocks_of(
    rows: range | Sequence[tuple[int, int]],
) -> Iterator[tuple[tuple[int, int], slice | NDArray[np.intp], slice | NDArray[np.int64]]]:
    """For each block that has some of the rows: which block and copy, where among the rows, and where in the block."""
    if isinstance(rows, range):
        start = rows.start
        while start < rows.stop:
            block, inside = divmod(start, BLOCK)
            count = min(BLOCK - inside, rows.stop - start)
            at = start - rows.start
            yield (block, 0), slice(at, at + count), slice(inside, inside + count)
            start += count
        return
    if not rows:
        return
    identities = np.array(rows, dtype=np.int64)
    numbers, copies = identities[:, 0], identities[:, 1]
    places = np.stack((numbers // BLOCK, copies), axis=1)
    found, belongs = np.unique(places, axis=0, return_inverse=True)
    for index, (block, copy) in enumerate(found.tolist()):
        at_rows = np.flatnonzero(belongs.reshape(-1) == index)
        yield (block, copy), at_rows, numbers[at_rows] % BLOCK


def permute32(numbers: NDArray[np.uint64], key: Sequence[int]) -> NDArray[np.uint64]:
    """A permutation of the 32-bit numbers that looks random: a Feistel network of one round for each key."""
    low = np.uint64(0xFFFF)
    left, right = (numbers >> np.uint64(16)) & low, numbers & low
    for each in key:
        mixed = (right + np.uint64(each & 0xFFFFFFFF)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        left, right = right, left ^ ((mixed >> np.uint64(40)) & low)
    return (left << np.uint64(16)) | right
