"""Points at which tests stop the process."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
