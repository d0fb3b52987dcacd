"""A column of temperatures."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, ClassVar

import attrs

from seedbed.columns.base import Column
from seedbed.columns.spec import ColumnSpec
from seedbed.errors import ConfigError

if TYPE_CHECKING:
    from seedbed.columns.base import CellContext
    from seedbed.columns.spec import Environment


@attrs.frozen
class Temperature(ColumnSpec):
    """A temperature for the city that another column names."""

    type: ClassVar[str] = "temperature"

    city: str
    means: dict[str, float]
    spread: float = attrs.field(default=4.0, kw_only=True)

    def __attrs_post_init__(self) -> None:
        """Say what is wrong in words that name the column."""
        if self.spread < 0:
            raise ConfigError(f"column {self.name!r}: spread must be 0 or more, not {self.spread!r}")

    def to_column(self, environment: Environment) -> Column:
        """The engine's column: one call for each row."""

        async def temperature(context: CellContext, **row: str) -> float:
            # Seeded by the recipe, the column and the row, so that the value is the same in every run.
            draw = random.Random(f"{environment.seed}/{self.name}/{context.row}")
            return draw.gauss(self.means[row[self.city]], self.spread)

        return Column(self.name, temperature, requires=[self.city], dtype=float)
