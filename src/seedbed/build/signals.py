"""Ctrl-C and SIGTERM while synchronous code waits for a build."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """The first and the second signal stop the build; the third is left to the system, which ends the process.

    Signals are counted in the main thread, in their handler: so the third one works even if trio's thread hangs, and
    one that comes before there is a build is not lost.
    """

    def __init__(self) -> None:
        self._count = 0  # changed by the handler only
        self._delivered = 0  # this and the two below are changed on trio's thread only
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop: Callable[[], None] | None = None

    def watch(self, stop: Callable[[], None]) -> None:
        """Call `stop` for every signal from now on, and for those that have come already; on trio's thread."""
        self._stop = stop
        self._token = trio.lowlevel.current_trio_token()
        self._deliver()

    def _deliver(self) -> None:
        assert self._stop is not None
        while self._delivered < self._count:
            self._delivered += 1
            self._stop()

    def _handle(self, number: int, _frame: object) -> None:
        self._count += 1
        if self._count > 2:  # grace and cancellation did not end it
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._deliver)

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle the signals meanwhile, where that is ours to do: in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._handle) for number in _NUMBERS}
        try:
            yield
        finally:
            for number, handler in before.items():
                # None: it was not installed from Python, and Python cannot put it back.
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
