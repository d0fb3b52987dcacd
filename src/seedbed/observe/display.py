"""A display of a running build: when it is refreshed."""

from __future__ import annotations

import select
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from . import events

if TYPE_CHECKING:
    from typing import TextIO

    from .progress import ProgressState

# The display may take this share of the loop's time; on a slow terminal it is refreshed less often instead.
_SHARE = 0.04


class Display:
    """A reader of events that counts them in `state` and shows it from a system task of the run itself.

    The caller that starts the run calls `close` afterwards, because a run that is cancelled emits no last event. An
    exception of a subclass, such as that of a closed terminal, ends the display and never the run.
    """

    # The least number of seconds between two refreshes.
    interval = 1.0
    # False where another display of the same state, which is called before, counts the events.
    counts = True
    # As of `ProgressState`.
    wants_rows = False
    wants_ready = False

    def __init__(self, state: ProgressState) -> None:
        self.state = state
        self._open = True
        self._now = 0.0

    def show(self) -> None:
        """Show the run as it is now; must not wait for a slow reader."""
        raise NotImplementedError

    def show_end(self) -> None:
        """Show the run as it ended, and restore the terminal."""
        raise NotImplementedError

    def __call__(self, event: events.Event) -> None:
        if self.counts:
            self.state(event)
        # Not `isinstance`, which takes as long as counting the event (overhead benchmark).
        kind = type(event)
        if kind is events.BuildStarted:
            self._now = event.time
            self._refresh()
            trio.lowlevel.spawn_system_task(self._keep_refreshing)
        elif kind is events.BuildFinished:
            self._now = event.time
            self.close()

    def close(self) -> None:
        if self._open:
            self._open = False
            with suppress(Exception):
                self.state.update(self._now)
                self.show_end()

    async def _keep_refreshing(self) -> None:
        pause = self.interval
        while self._open:
            await trio.sleep(pause)
            self._now = trio.current_time()
            pause = max(self.interval, self._refresh() / _SHARE)

    def _refresh(self) -> float:
        """Show the state once; returns how long it took."""
        began = time.perf_counter()
        if self._open:
            try:
                self.state.update(self._now)
                self.show()
            except Exception:  # noqa: BLE001  the run matters more
                self._open = False
        return time.perf_counter() - began


def would_wait(stream: TextIO) -> bool:
    """True if writing could block the caller now: a full pipe, or a terminal that was stopped with Ctrl-S."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLOUT)
    except (OSError, ValueError, AttributeError):
        return False  # no file behind it
    return not poll.poll(0)
