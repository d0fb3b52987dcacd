"""Points where tests stop the process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import seedbed
from seedbed.runtime import faults

if TYPE_CHECKING:
    import pytest


def test_nothing_happens_without_a_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    """A point is reached silently; with a hook the hook receives its name."""
    faults.reach("part written")
    reached: list[str] = []
    monkeypatch.setattr(faults, "hook", reached.append)
    faults.reach("part written")
    assert reached == ["part written"]


def test_every_point_is_listed() -> None:
    """The list names each point that the source has, and no other."""
    source = "".join(path.read_text() for path in Path(seedbed.__file__).parent.rglob("*.py"))
    named = set(re.findall(r'(?:faults\.reach\(\s*|written=)"([^"]+)"', source))
    assert named == set(faults.POINTS)
    assert len(faults.POINTS) == len(named)
