"""What a column is to the graph."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Protocol

import attrs

if TYPE_CHECKING:
    from collections.abc import Sequence


class Kind(enum.Enum):
    """What unit of work fills a column."""

    FROM_SCRATCH = "from_scratch"  # column × row group, at admission
    CELL = "cell"  # column × row, when that row's inputs are done
    FULL_COLUMN = "full_column"  # column × row group, when the inputs of all rows are done


class ColumnLike(Protocol):
    """What the graph reads of a column."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> Kind: ...
    @property
    def requires(self) -> Sequence[str]: ...
    @property
    def outputs(self) -> Sequence[str]: ...
    @property
    def side_effects(self) -> Sequence[str]: ...
    @property
    def allow_resize(self) -> bool: ...


@attrs.frozen(kw_only=True)
class Node:
    """One generator: it is run once for all of its outputs.

    `upstream` and `downstream` are indices into `Graph.nodes`, each node once however many of its outputs are used.
    """

    index: int
    name: str
    kind: Kind
    requires: tuple[str, ...]  # output names, as the column gives them
    outputs: tuple[str, ...]  # the columns that it makes, then its side effects
    upstream: tuple[int, ...]
    downstream: tuple[int, ...]
