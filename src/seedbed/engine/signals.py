"""Ctrl-C and SIGTERM while synchronous code waits for a build."""

from __future__ import annotations

import os
import signal
import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NUMBERS = (signal.SIGINT, signal.SIGTERM)
_ENDED = b"\0"  # no signal has this number


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


def run_in_thread(work: Callable[[], None]) -> None:
    """Run `work` in a thread and wait for it; signals are handled meanwhile if this is the main thread.

    A lock would not do: whoever waits for one sleeps on when the system gives a signal to another thread.
    """
    here, there = socket.socketpair()
    with here, there:
        there.setblocking(False)

        def tell() -> None:
            try:
                work()
            finally:
                there.send(_ENDED)

        thread = threading.Thread(target=tell, name="seedbed-build")
        with _woken_by_signals(there) as others:
            thread.start()
            while (byte := here.recv(1)) != _ENDED:
                others(byte)
        thread.join()


@contextmanager
def _woken_by_signals(there: socket.socket) -> Iterator[Callable[[bytes], None]]:
    """Have the number of every signal written to `there`; yields what passes one on to whoever had them before."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda _byte: None
        return
    before = signal.set_wakeup_fd(there.fileno(), warn_on_full_buffer=False)

    def pass_on(byte: bytes) -> None:
        if before != -1 and byte[0] not in _NUMBERS:
            with suppress(OSError):
                os.write(before, byte)

    try:
        yield pass_on
    finally:
        signal.set_wakeup_fd(before)
