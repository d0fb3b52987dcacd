"""Which display shows the progress of a build."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Literal, get_args

from ..errors import ConfigError
from ..graph import nearest
from .progress import ProgressState

if TYPE_CHECKING:
    from .display import Display

Progress = Literal["auto", "panel", "lines", "none"]
"""A live panel, a line every ten seconds, or neither; auto: the panel on a terminal and in a notebook."""

# What `auto` means, instead of a choice by the kind of standard error.
VARIABLE = "SEEDBED_PROGRESS"


def open_display(progress: Progress, *, title: str) -> Display | None:
    """The display that an option selects, on standard error or in a cell of a notebook; None for "none"."""
    where, choice = "progress", progress
    if progress == "auto" and (value := os.environ.get(VARIABLE)):
        where, choice = VARIABLE, value  # type: ignore[assignment]  # checked below
    known = get_args(Progress)
    if choice not in known:
        raise ConfigError(f"{where} is one of {', '.join(known)}, not {choice!r}{nearest(str(choice), known)}")
    stream = sys.stderr
    if choice == "none" or stream is None:  # pythonw and the like have no standard error
        return None
    # These are loaded only where they are shown: rich takes a tenth of a second.
    if choice != "lines" and "IPython" in sys.modules:
        from .notebook import Notebook, in_notebook  # noqa: PLC0415

        if in_notebook():
            return Notebook(ProgressState(), title=title)
    if choice == "panel" or (choice == "auto" and stream.isatty()):
        from .panel import Panel  # noqa: PLC0415

        return Panel(ProgressState(), stream, title=title)
    from .lines import Lines  # noqa: PLC0415

    return Lines(ProgressState(), stream)
