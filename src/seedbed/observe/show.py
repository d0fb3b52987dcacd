"""Shows a run while it goes on: counts its events and looks at the counts now and then, in a task of the run itself."""

from __future__ import annotations

import math
import select
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import trio

from .events import BuildFinished, BuildStarted

if TYPE_CHECKING:
    from typing import TextIO

    from .events import Event
    from .progress import Progress, ProgressState

# Showing may take this share of the loop's time; a slow terminal is shown less often instead.
_SHARE = 0.04


class View(Protocol):
    """Something that shows progress. What it raises ends the showing and never the run."""

    @property
    def interval(self) -> float:
        """Seconds between two looks, at least."""
        ...

    def show(self, progress: Progress) -> None:
        """Show the run as it is now; must not wait for a slow reader."""

    def close(self, progress: Progress) -> None:
        """Show the run as it ended, and give the terminal back."""


class Show:
    """A reader of events that keeps `state` and has it shown by `view`.

    It needs no thread: a system task of the run that emits the events wakes up now and then. Whoever starts the run
    calls `close` afterwards, since a run that is killed tells nobody that it ended.
    """

    def __init__(self, state: ProgressState, view: View) -> None:
        self._state = state
        self._view: View | None = view
        self._now = 0.0

    def __call__(self, event: Event) -> None:
        self._state(event)
        kind = type(event)
        if kind is BuildStarted:
            self._now = event.time
            self._look()
            trio.lowlevel.spawn_system_task(self._keep_looking)
        elif kind is BuildFinished:
            self._now = event.time
            self.close()

    def close(self) -> None:
        """Show the end, once."""
        view, self._view = self._view, None
        if view is not None:
            with suppress(Exception):  # the terminal may be gone
                view.close(self._state.view(self._now))

    async def _keep_looking(self) -> None:
        pause = self._view.interval if self._view is not None else 0.0
        while self._view is not None:
            await trio.sleep(pause)
            if self._view is not None:
                self._now = trio.current_time()
                pause = max(self._view.interval, self._look() / _SHARE)

    def _look(self) -> float:
        """Show the state once; returns how long it took."""
        began = time.perf_counter()
        if self._view is not None:
            try:
                self._view.show(self._state.view(self._now))
            except Exception:  # noqa: BLE001  the terminal is gone, or cannot show it: the run matters more
                self._view = None
        return time.perf_counter() - began


def would_wait(stream: TextIO) -> bool:
    """Whether writing to it could hold up the caller now: a full pipe, or a terminal that was stopped with Ctrl-S."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLOUT)
    except (OSError, ValueError, AttributeError):
        return False  # no file behind it
    found = poll.poll(0)
    return not found


def duration(seconds: float | None) -> str:
    """A time for people: 4s, 1m05s, 2h03m; a dash where it is not known."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"


def per_second(rate: float) -> str:
    """A rate for people."""
    return f"{rate:.1f}/s" if rate < 100 else f"{rate:,.0f}/s"


def money(cost: float) -> str:
    """A cost for people, in whatever unit the prices are."""
    return f"{cost:,.2f}" if cost >= 100 or not cost else f"{cost:.4f}"
