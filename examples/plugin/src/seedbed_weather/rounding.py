"""A processor that rounds numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import attrs
import polars.selectors as cs

from seedbed.columns.spec import ProcessorSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl

    from seedbed.columns.spec import Environment


@attrs.frozen(kw_only=True)
class RoundNumbers(ProcessorSpec):
    """Round every column of fractions."""

    type: ClassVar[str] = "round_numbers"

    digits: int = 0

    def to_function(self, environment: Environment) -> Callable[[pl.DataFrame], pl.DataFrame]:
        """A function from frame to frame; after generation it would be given a lazy one."""
        return lambda frame: frame.with_columns(cs.float().round(self.digits))
