"""Which rows belong to which row group."""

from __future__ import annotations

from typing import Self

import attrs


@attrs.frozen(kw_only=True)
class Layout:
    """`rows` rows in groups of `size`; a dataset that was grown begins anew at each row of `segments`.

    Groups that were there before keep their rows: the last one of what was asked for first may be short, and the rows
    that were asked for later are in groups of their own.
    """

    rows: int
    size: int
    segments: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """How many groups there are."""
        return sum(self._groups(start, stop) for start, stop in self._runs())

    def group_rows(self, index: int) -> range:
        """The rows of a group."""
        first = 0
        for start, stop in self._runs():
            groups = self._groups(start, stop)
            if index < first + groups:
                begin = start + (index - first) * self.size
                return range(begin, min(begin + self.size, stop))
            first += groups
        raise IndexError(f"there is no row group {index}, only {first}")

    def grown(self, rows: int) -> Self:
        """The same groups, and others for the rows that come on top."""
        last = self.segments[-1] if self.segments else 0
        is_short = (self.rows - last) % self.size > 0
        return attrs.evolve(self, rows=rows, segments=(*self.segments, self.rows) if is_short else self.segments)

    def _runs(self) -> list[tuple[int, int]]:
        return list(zip((0, *self.segments), (*self.segments, self.rows), strict=True))

    def _groups(self, start: int, stop: int) -> int:
        return -(-(stop - start) // self.size)
