"""Named points between two steps that change the disk, where tests stop or kill the process.

Nothing but a test sets `hook`: no option and no variable of the environment leads here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

POINTS = (
    "part written",
    "part synced",
    "part listed",
    "part renamed",
    "part directory synced",
    "manifest renamed",
    "manifest directory synced",
    "record written",
    "record synced",
    "journal made",
    "journal written",
    "journal committed",
    "journal kept",
    "journal freed",
    "journal recovered",
    "journal closed",
    "journal removed",
)

# Called with the name of each point as it is reached, in whatever thread reaches it.
hook: Callable[[str], None] | None = None


def reach(name: str) -> None:
    """Say that the process got to a point; what the hook raises, or does to the process, happens there."""
    if hook is not None:
        hook(name)
