"""A processor that rounds numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import attrs
import polars.selectors as cs

from seedbed.generators.registry import Environment, processor_maker
from seedbed.recipe.processors import ProcessorSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl


@attrs.frozen(kw_only=True)
class RoundNumbers(ProcessorSpec):
    """Round every column of fractions."""

    type: ClassVar[str] = "round_numbers"

    digits: int = 0


@processor_maker(RoundNumbers)
def make_round_numbers(spec: RoundNumbers, _: Environment) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """A function from frame to frame; after generation it would be given a lazy one."""
    return lambda frame: frame.with_columns(cs.float().round(spec.digits))
