"""What all columns of a recipe have in common."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs


@attrs.frozen
class ColumnSpec:
    """Base of the frozen specs that a recipe is written in; users write `Category("topic", values=[…])`.

    `type` is the name in a recipe file. `skip_when` is an expression over other columns: where it is true the cell is
    null and its generator is not called; what depends on a skipped cell runs or is skipped by its own `skip_policy`.
    """

    type: ClassVar[str]

    name: str
    skip_when: str | None = attrs.field(default=None, kw_only=True)
    skip_policy: str = attrs.field(default="run", kw_only=True)
    timeout: float | None = attrs.field(default=None, kw_only=True)
    dtype: Any = attrs.field(default=None, kw_only=True)
