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
"""A live panel, a line every ten seconds, or neither; auto: the panel if standard error is a terminal."""

# What `auto` means, instead of a choice by the kind of standard error.
VARIABLE = "SEEDBED_PROGRESS"


def open_display(progress: Progress, *, title: str) -> Display | None:
    """The display that an option selects, on standard error; None for "none"."""
    where, choice = "progress", progress
    if progress == "auto" and (value := os.environ.get(VARIABLE)):
        where, choice = VARIABLE, value  # type: ignore[assignment]  # checked below
    known = get_args(Progress)
    if choice not in known:
        raise ConfigError(f"{where} is one of {', '.join(known)}, not {choice!r}{nearest(str(choice), known)}")
    stream = sys.stderr
    if choice == "none" or stream is None:  # pythonw and the like have no standard error
        return None
    if choice == "panel" or (choice == "auto" and stream.isatty()):
        # Loaded only where there is a terminal: rich takes a tenth of a second.
        from .panel import Panel  # noqa: PLC0415

        return Panel(ProgressState(), stream, title=title)
    from .lines import Lines  # noqa: PLC0415

    return Lines(ProgressState(), stream)
