"""Trio as a guest of asyncio's loop, and users' asyncio functions called from trio.

Trio allows one run per thread, so all builds and engines of a loop share one guest run, started by the first and ended
with the last. It must not outlive its loop, or the thread could never run trio again. So an asyncio task owns it, and a
host that ends a loop properly cancels all tasks: the cancelled owner cancels trio and waits until it has ended.

Users' asyncio functions run on the loop that trio is a guest of. Where trio is not a guest they run on one asyncio loop
in a thread, which the first of them starts and which ends with the trio run.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections import deque
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import outcome
import trio

from ...errors import SeedbedError
from ..tasks import open_hidden_nursery
from .crossing import Crossing, current_crossing, wait_shielded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from .crossing import Call

T = TypeVar("T")
P = ParamSpec("P")

_own_loop: trio.lowlevel.RunVar[asyncio.AbstractEventLoop | None] = trio.lowlevel.RunVar(
    "seedbed.own_loop", default=None
)


class _Thread(threading.local):
    guest: Guest | None = None


_thread = _Thread()


class Guest:
    """One guest run: starting until it has a crossing, then running, then closing until `finished` is set.

    Everything here happens on the loop's thread except `_soon_threadsafe`, which trio's own thread calls.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.users = 0  # changed by `open_crossing` only
        self.crossing: Crossing | None = None
        self.is_closing = False
        # Steps that trio requested and the loop has not executed yet; each has a `_step` in the loop.
        self._steps: deque[Callable[[], object]] = deque()
        self._scope = trio.CancelScope()
        self._interrupted = False  # by a Ctrl-C that no caller can raise
        self._is_started = False
        self._attach(loop)

    def _attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.running = asyncio.Event()  # set when it can be used, and when it never will
        self._ended = asyncio.Event()
        self.finished = asyncio.Event()  # its owner has ended too, so nothing of it is left in the loop
        # Not in the context of the first caller.
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
                    # Trio could not raise it where it arrived. The callers that wait raise it.
                    self.crossing.ended_by = interrupt
                    self._interrupted = not self.crossing.calls
                    self.close()

    async def _own(self) -> None:
        # Started here: a task that is cancelled before its first step never runs, and must own nothing.
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
            await wait_shielded(self._ended)
            raise
        if self._interrupted:
            raise KeyboardInterrupt

    def _disowned(self, _owner: asyncio.Task[None]) -> None:
        if not self._is_started:
            self._done(outcome.Value(None))
        self.finished.set()

    def close(self) -> None:
        """Cancel all of it; `finished` is set when it has ended."""
        self.is_closing = True
        self._scope.cancel(reason="the guest run ends")

    def rescue(self, loop: asyncio.AbstractEventLoop) -> None:
        """Continue in another loop, to end there: the previous one was closed under it."""
        self._attach(loop)
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
        except RuntimeError:  # the loop is closed; `rescue` executes the step
            if not self.loop.is_closed():
                raise

    @trio.lowlevel.enable_ki_protection  # between tasks trio cannot raise a Ctrl-C; it passes it to `_main`
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
    """The crossing from the current asyncio task to trio, while the block is open.

    For code of a column that runs on asyncio it leads to its build, for all others to the guest of this thread. The end
    of the last block waits until the guest has ended.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise SeedbedError("neither trio nor asyncio runs here: await it under trio, anyio or asyncio") from None
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
            await wait_shielded(guest.finished)


async def _usable_guest(loop: asyncio.AbstractEventLoop) -> Guest:
    """The guest of this thread, with one more user; waits for one that is about to end."""
    while (guest := _thread.guest) is not None and (guest.is_closing or guest.loop is not loop):
        if guest.loop is not loop:
            if not guest.loop.is_closed():
                raise SeedbedError(
                    "another asyncio loop of this thread has builds or engines open: close them, "
                    "or await seedbed.runtime.asyncio.aclose() there"
                )
            guest.rescue(loop)
        await guest.finished.wait()
    if guest is None:
        if trio.lowlevel.in_trio_run():
            raise SeedbedError("trio already runs in this thread as a guest of other code: await it in a trio task")
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
    await wait_shielded(guest.finished)


@asynccontextmanager
async def host_block(manager: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Let one trio task enter the manager, keep it open and exit it, on behalf of a block of the current asyncio task.

    What the block raises is raised there, so that the manager sees it; a cancelled block cancels that task. If the
    manager cancels the task, because something that it runs has failed, the block is cancelled.
    """
    host = asyncio.current_task()
    assert host is not None
    entered = asyncio.Event()  # also set if it failed to enter
    left = trio.Event()
    values: list[T] = []
    error: BaseException | None = None
    in_block = is_interrupted = False  # interrupted: the block was cancelled from here

    async def live() -> None:
        async with manager as value:
            values.append(value)
            crossing.into_asyncio(entered.set)
            await left.wait()
            if error is not None:
                raise error

    def finished() -> None:
        nonlocal is_interrupted
        entered.set()
        if in_block:
            is_interrupted = True
            host.cancel()

    async with open_crossing() as crossing:
        call = crossing.call(live, finished)
        try:
            await entered.wait()
        except asyncio.CancelledError:
            call.cancel()
            await call.wait()
            raise
        if not values:
            await call.wait()
        in_block = True
        try:
            yield values[0]
        except BaseException as raised:  # noqa: BLE001  it is raised below, unless the manager swallows it
            error = raised
        in_block = False
        if is_interrupted:
            await _raise_failure(call, host, error)
        elif error is None or isinstance(error, Exception):
            crossing.into_trio(left.set)
            await call.wait()
            return
        else:  # a cancellation or an exit of the program: what is open is cancelled too
            call.cancel()
            with suppress(asyncio.CancelledError):
                await call.wait()
        if error is not None:
            raise error


async def _raise_failure(call: Call[None], host: asyncio.Task[Any], error: BaseException | None) -> None:
    """The manager of a block ended before it, and the block was cancelled because of that: raise the failure."""
    if not isinstance(call.outcome, outcome.Error):
        return  # it ended with the whole run, which is being shut down
    if not isinstance(error, asyncio.CancelledError):
        with suppress(asyncio.CancelledError):  # it has not been raised yet
            await asyncio.sleep(0)
    host.uncancel()
    call.outcome.unwrap()


def on_asyncio(
    function: Callable[P, Awaitable[T]], adapt: Callable[[Any, Crossing], Any] | None = None
) -> Callable[P, Awaitable[T]]:
    """Adapt a function that is written for asyncio to trio; it runs in an asyncio task.

    When the caller is cancelled or out of time, that task is cancelled and waited for. What the function awaits
    through `anywhere` runs under the caller's scopes. `adapt` returns, for each argument, what the function receives in
    its place.
    """

    @functools.wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        loop = _own_asyncio_loop() if _thread.guest is None else _thread.guest.loop
        # Calls of tasks that outlive the function have no caller left.
        async with open_hidden_nursery("the function that made these calls has returned") as nursery:
            crossing = Crossing(nursery, loop, holds_clock=True)
            if adapt is None:
                return await crossing.run(functools.partial(function, *args, **kwargs))
            values = [adapt(value, crossing) for value in args]
            named = {name: adapt(value, crossing) for name, value in kwargs.items()}
            return await crossing.run(functools.partial(function, *values, **named))

    return call


def _own_asyncio_loop() -> asyncio.AbstractEventLoop:
    """The asyncio loop of this trio run, started when it is first needed."""
    loop = _own_loop.get()
    if loop is None:
        loop = asyncio.new_event_loop()
        _own_loop.set(loop)
        trio.lowlevel.spawn_system_task(_run_in_thread, loop, name="seedbed-asyncio")
    return loop


async def _run_in_thread(loop: asyncio.AbstractEventLoop) -> None:
    """Run an asyncio loop in its own thread until the trio run ends."""

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:  # it cancels the tasks that are left
            runner.get_loop().run_forever()

    async def work() -> None:
        # Shielded without a deadline: it ends when the tasks of the loop have been cancelled, as a nursery does.
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(run, limiter=trio.CapacityLimiter(1))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        try:
            await trio.sleep_forever()
        finally:
            loop.call_soon_threadsafe(loop.stop)
