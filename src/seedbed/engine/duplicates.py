"""Whether a row is a duplicate, or almost, of one before it: an index of the rows that count, in memory.

It is a function of these rows and their order, and built again from their files when a run resumes or a dataset grows.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..errors import ConfigError

if TYPE_CHECKING:
    from ..recipe.acceptance import NearDuplicates, RowRules

# Characters of the sequences that texts are compared by.
_SEQUENCE = 5
_PERMUTATIONS = 128
# The share of similar texts that are compared.
_RECALL = 0.999
# Longer texts are stored as a hash.
_LONG = 32


class Duplicates:
    """The rows that count so far. Not for several threads at once."""

    def __init__(self, rules: RowRules) -> None:
        self._unique = rules.unique
        self._seen: set[Any] = set()
        self._near = rules.near_duplicates
        self._texts: Similar | None = None
        self._vectors: Similar | None = None

    def add(self, columns: Mapping[str, Sequence[Any]], count: int, *, known: bool = False) -> list[tuple[int, str]]:
        """Take in the next `count` rows; return those that are duplicates: their position and the rule.

        Rows that are `known` to count are not compared.
        """
        found: list[tuple[int, str]] = []
        for at in range(count):
            rule = self._add({name: values[at] for name, values in columns.items()}, known=known)
            if rule is not None:
                found.append((at, rule))
        return found

    def _add(self, row: Mapping[str, Any], *, known: bool) -> str | None:
        key = tuple(_comparable(row.get(name)) for name in self._unique)
        if self._unique and not known and key in self._seen:
            return "unique"
        near = None if self._near is None else self._prepared(self._near, row.get(self._near.of))
        if near is not None and not known and near[0].has(near[1]):
            return "near_duplicates"
        self._seen.add(key)
        if near is not None:
            near[0].add(near[1])
        return None

    def _prepared(self, rule: NearDuplicates, value: Any) -> tuple[Similar, Any] | None:
        """The index for a value, and the value as that takes it; None if there is nothing to compare."""
        if value is None:
            return None
        if isinstance(value, str):
            if self._texts is None:
                self._texts = Texts(rule.threshold)
            return self._texts, value
        if isinstance(value, Sequence | np.ndarray) and not isinstance(value, bytes):
            vector = np.asarray(value, dtype=np.float32)
            length = float(np.linalg.norm(vector)) if vector.ndim == 1 else 0.0
            if not length or not math.isfinite(length):
                return None
            if self._vectors is None:
                self._vectors = Vectors(rule.threshold)
            return self._vectors, vector / length
        kind = type(value).__name__
        raise ConfigError(f"near_duplicates compares texts and vectors; column {rule.of!r} has a value of type {kind}")


class Similar(Protocol):
    """An index of values that finds one that is similar."""

    def has(self, value: Any) -> bool: ...
    def add(self, value: Any) -> None: ...


class Texts:
    """MinHash signatures of texts, and an index of them that finds the few worth comparing."""

    def __init__(self, threshold: float) -> None:
        try:
            from datasketch import MinHash, MinHashLSH  # noqa: PLC0415  an extra, which takes half a second to import
        except ImportError as error:
            raise ConfigError(
                "near_duplicates of texts needs the extra 'duplicates': pip install 'seedbed[duplicates]'"
            ) from error
        self._threshold = threshold
        self._index: Any = MinHashLSH(num_perm=_PERMUTATIONS, params=_bands(threshold))
        self._empty: Any = MinHash(num_perm=_PERMUTATIONS, seed=1, hashfunc=zlib.crc32)
        self._signatures: list[Any] = []
        self._last: tuple[str, Any] | None = None  # a value is looked up and then added

    def has(self, value: str) -> bool:
        signature = self._signature(value)
        found = self._index.query(signature)
        return any(signature.jaccard(self._signatures[at]) >= self._threshold for at in found)

    def add(self, value: str) -> None:
        signature = self._signature(value)
        self._index.insert(len(self._signatures), signature, check_duplication=False)
        self._signatures.append(signature)

    def _signature(self, value: str) -> Any:
        if self._last is None or self._last[0] != value:
            text = " ".join(value.casefold().split())
            parts = {text[at : at + _SEQUENCE] for at in range(max(1, len(text) - _SEQUENCE + 1))}
            signature = self._empty.copy()
            signature.update_batch([part.encode("utf-8", "surrogatepass") for part in parts])
            self._last = (value, signature)
        return self._last[1]


def _bands(threshold: float) -> tuple[int, int]:
    """How many bands a signature has in the index, and of how many numbers each.

    Two texts are compared if a band is the same in both. Of those that are as similar as the threshold all but one in a
    thousand are; with as long bands as that allows, few others. (datasketch's own choice takes both errors for equal,
    and misses more.)
    """

    def found(size: int) -> float:
        return 1 - (1 - threshold**size) ** (_PERMUTATIONS // size)

    size = max((size for size in range(1, _PERMUTATIONS // 2 + 1) if found(size) >= _RECALL), default=1)
    return _PERMUTATIONS // size, size


class Vectors:
    """Vectors of length one, in one matrix for each number of dimensions."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._rows: dict[int, tuple[Any, int]] = {}  # by dimensions: the matrix and how many of its rows are used

    def has(self, value: Any) -> bool:
        matrix, count = self._rows.get(len(value), (None, 0))
        return bool(count and float((matrix[:count] @ value).max()) >= self._threshold)

    def add(self, value: Any) -> None:
        matrix, count = self._rows.get(len(value), (np.empty((16, len(value)), dtype=np.float32), 0))
        if count == len(matrix):
            matrix = np.concatenate([matrix, np.empty_like(matrix)])
        matrix[count] = value
        self._rows[len(value)] = matrix, count + 1


def _comparable(value: Any) -> Any:
    """A value that can be compared: 1 and 1.0 are the same, nan is nan, a long text is its hash."""
    if isinstance(value, str):
        if len(value) <= _LONG:
            return value
        return hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    if isinstance(value, float) and math.isnan(value):
        return ("nan",)
    if isinstance(value, Mapping):
        return tuple(sorted((name, _comparable(each)) for name, each in value.items()))
    if isinstance(value, list | tuple | np.ndarray):
        return tuple(map(_comparable, value))
    return value
