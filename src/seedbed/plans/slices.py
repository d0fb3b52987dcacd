"""Large row sets are worked on in slices, so that one request does not hold up the loop for all others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

Items = TypeVar("Items", bound="Sequence[Any] | NDArray[Any]")

SLICE_ROWS: Final = 1024
"""Rows that are worked on between two checkpoints. `python -m benchmarks.plans` measures how long that takes."""


def slices(items: Items) -> Iterator[Items]:
    """The items, at most SLICE_ROWS at a time; between two of them the caller passes a checkpoint."""
    for start in range(0, len(items), SLICE_ROWS):
        yield items[start : start + SLICE_ROWS]  # type: ignore[misc]
