"""docs/reference/simulation.md documents every argument and field."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import attrs

import seedbed as sb
from seedbed.simulation.result import Estimate, Probed, Simulation

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "simulation.md").read_text(encoding="utf-8")
NAMES = set(re.findall(r"`(\w+)`", PAGE))


def test_every_argument_is_documented() -> None:
    """The table of arguments has those of `simulate`."""
    assert set(inspect.signature(sb.simulate).parameters) - {"recipe"} <= NAMES


def test_every_field_is_documented() -> None:
    """The tables have every field of a profile, of a result and of an estimate."""
    fields = {field.name for kind in (sb.CallProfile, Simulation, Estimate, Probed) for field in attrs.fields(kind)}
    assert fields <= NAMES
