"""A column as the graph sees it."""

from __future__ import annotations

import attrs

from seedbed.graph import Kind


@attrs.frozen
class Plain:
    """A column without a function; its only output is its name unless others are given."""

    name: str
    requires: tuple[str, ...] = ()
    kind: Kind = Kind.CELL
    outputs: tuple[str, ...] = attrs.Factory(lambda self: (self.name,), takes_self=True)
    side_effects: tuple[str, ...] = ()
    allow_resize: bool = False
    repaired_by: str | None = None
