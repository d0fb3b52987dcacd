"""The trio run of a thread whose loop is asyncio's.

Trio allows one run per thread, so all builds and engines of a loop share one, started by the first and ended with the
last. It must not outlive its loop: it would keep the thread from ever running trio again. So an asyncio task owns it,
and whoever ends a loop properly cancels all tasks: cancelled, the owner cancels trio and waits until it is done.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import outcome
import trio

from ..errors import SeedbedError
from .crossing import Crossing, current_crossing, outlast

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

T = TypeVar("T")


class _Thread(threading.local):
    guest: Guest | None = None


_thread = _Thread()


class Guest:
    """One guest run: starting until it has a crossing, then running, then closing until it is over.

    Everything here happens on the loop's thread but for `_soon_threadsafe`, which trio's own thread calls.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.users = 0  # changed by `open_crossing` only
        self.crossing: Crossing | None = None
        self.is_closing = False
        # Steps that trio has asked for and that the loop has not made yet; each has a `_step` in the loop.
        self._steps: deque[Callable[[], object]] = deque()
        self._scope = trio.CancelScope()
        self._interrupted = False  # by a Ctrl-C that nobody else can raise
        self._is_started = False
        self._settle_on(loop)

    def _settle_on(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.running = asyncio.Event()  # set when it can be used, and when it never will
        self._ended = asyncio.Event()
        self.over = asyncio.Event()  # its owner has ended too, so that nothing of it is left in the loop
        # Not in the context of whoever happens to come first.
        self._owner = loop.create_task(self._own(), name="seedbed-guest", context=contextvars.Context())
        self._owner.add_done_callback(self._disowned)

    async def _main(self) -> None:
        with self._scope:
            async with trio.open_nursery() as nursery:
                self.crossing = Crossing(nursery, self.loop)
                self.running.set()
                try:
                    await trio.sleep_forever()
                except KeyboardInterrupt as interrupt:
                    # It came where trio could not raise it. Whoever waits for something raises it.
                    self.crossing.ended_by = interrupt
                    self._interrupted = not self.crossing.calls
                    self.close()

    async def _own(self) -> None:
        # Started here and not before: a task that is cancelled before its first step has no step, and owns nothing.
        if not self._is_started:
            self._is_started = True
            trio.lowlevel.start_guest_run(
                self._main,
                run_sync_soon_threadsafe=self._soon_threadsafe,
                run_sync_soon_not_threadsafe=self._soon,
                done_callback=self._done,
                host_uses_signal_set_wakeup_fd=True,
            )
        try:
            await self._ended.wait()
        except asyncio.CancelledError:
            self.close()
            await outlast(self._ended)
            raise
        if self._interrupted:
            raise KeyboardInterrupt

    def _disowned(self, _owner: asyncio.Task[None]) -> None:
        if not self._is_started:
            self._done(outcome.Value(None))
        self.over.set()

    def close(self) -> None:
        """Cancel all of it; it is over when `over` is set."""
        self.is_closing = True
        self._scope.cancel(reason="the guest run ends")

    def rescue(self, loop: asyncio.AbstractEventLoop) -> None:
        """Go on in another loop, to end there: the one before was closed under it."""
        self._settle_on(loop)
        for _ in self._steps:
            loop.call_soon(self._step)
        self.close()

    def _soon(self, step: Callable[[], object]) -> None:
        self._steps.append(step)
        self.loop.call_soon(self._step)

    def _soon_threadsafe(self, step: Callable[[], object]) -> None:
        self._steps.append(step)
        try:
            self.loop.call_soon_threadsafe(self._step)
        except RuntimeError:  # the loop is closed; whoever uses this thread next makes the step
            if not self.loop.is_closed():
                raise

    @trio.lowlevel.enable_ki_protection  # between its tasks trio cannot take a Ctrl-C; it hands it to `_main`
    def _step(self) -> None:
        try:
            self._steps.popleft()()
        except BaseException as error:
            self._done(outcome.Error(error))  # there will be no further step
            raise

    def _done(self, result: outcome.Outcome[None]) -> None:
        self.is_closing = True
        _thread.guest = None
        self.running.set()
        self._ended.set()
        if isinstance(result, outcome.Error) and self.crossing is not None:
            for call in list(self.crossing.calls):  # trio broke and did not end them
                call.end(result)


@asynccontextmanager
async def open_crossing() -> AsyncIterator[Crossing]:
    """The way to trio from the asyncio task that asks, for as long as the block is open.

    For code of a column that runs on asyncio it is the way back to its build, for all others that to the guest of this
    thread. Who leaves the last block waits until the guest has ended.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise SeedbedError("there is neither trio nor asyncio here: await it under trio, anyio or asyncio") from None
    own = current_crossing.get()
    if own is not None and own.loop is loop:
        yield own
        return
    guest = await _usable_guest(loop)
    try:
        await guest.running.wait()
        if guest.crossing is None:
            raise asyncio.CancelledError("the loop is being shut down")
        yield guest.crossing
    finally:
        guest.users -= 1
        if not guest.users:
            guest.close()
            await outlast(guest.over)


async def _usable_guest(loop: asyncio.AbstractEventLoop) -> Guest:
    """The guest of this thread, with one user more; one that is about to end is waited for."""
    while (guest := _thread.guest) is not None and (guest.is_closing or guest.loop is not loop):
        if guest.loop is not loop:
            if not guest.loop.is_closed():
                raise SeedbedError(
                    "another asyncio loop of this thread has builds or engines open: close them, "
                    "or await seedbed.embed.aclose() there"
                )
            guest.rescue(loop)
        await guest.over.wait()
    if guest is None:
        if trio.lowlevel.in_trio_run():
            raise SeedbedError("trio already runs in this thread as somebody else's guest: await it in a task of trio")
        guest = _thread.guest = Guest(loop)
    guest.users += 1
    return guest


async def run_in_trio(function: Callable[[], Awaitable[T]]) -> T:
    """Await a function that is written for trio, in an asyncio task."""
    async with open_crossing() as crossing:
        return await crossing.call(function).wait()


async def close_guest() -> None:
    """End the guest run of this thread, with all that is open in it."""
    loop = asyncio.get_running_loop()
    guest = _thread.guest
    if guest is None:
        return
    if guest.loop is loop:
        guest.close()
    elif guest.loop.is_closed():
        guest.rescue(loop)
    else:
        raise SeedbedError("the builds and engines of this thread belong to another asyncio loop: await aclose() there")
    await outlast(guest.over)


def host_loop() -> asyncio.AbstractEventLoop | None:
    """The loop that the current trio run is a guest of; None if it is nobody's, or not ours."""
    return None if _thread.guest is None else _thread.guest.loop
