"""A column of temperatures."""

from __future__ import annotations

import random
from typing import ClassVar

import attrs

from seedbed.errors import ConfigError
from seedbed.generators import CellContext, Column
from seedbed.generators.registry import Environment, maker
from seedbed.recipe.spec import ColumnSpec


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


@maker(Temperature)
def make_temperature(spec: Temperature, environment: Environment) -> Column:
    """The engine's column: one call for each row."""

    async def temperature(context: CellContext, **row: str) -> float:
        # Seeded by the recipe, the column and the row, so that the value is the same in every run.
        draw = random.Random(f"{environment.seed}/{spec.name}/{context.row}")
        return draw.gauss(spec.means[row[spec.city]], spec.spread)

    return Column(spec.name, temperature, requires=[spec.city], dtype=float)
