"""Named points between two steps that change the disk, where tests stop or kill the process.

Only tests set `hook`: no option and no environment variable does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# Called with the name of each point as it is reached, in the thread that reaches it.
hook: Callable[[str], None] | None = None


def reach(name: str) -> None:
    """Call the hook, which may raise or end the process here."""
    if hook is not None:
        hook(name)
