"""Calls from asyncio to trio and from trio to asyncio, with their results, errors and cancellations."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import outcome
import sniffio
import trio

from ...errors import Permanent, Retryable
from ..threads import clock_held, hold_clock, release_clock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

# Set for asyncio tasks that a trio task waits for: what they await of trio runs in that trio run, under the scopes of
# the task that waits for them.
current_crossing: contextvars.ContextVar[Crossing | None] = contextvars.ContextVar("seedbed_crossing", default=None)


class Crossing:
    """Connects a nursery of a trio run with an asyncio loop, in one thread or in two. Created on trio's side.

    With `holds_clock`, a virtual clock does not jump while a function works on asyncio's side; while that waits for
    calls into trio, time may pass.
    """

    def __init__(self, nursery: trio.Nursery, loop: asyncio.AbstractEventLoop, *, holds_clock: bool = False) -> None:
        self.nursery = nursery
        self.loop = loop
        self._token = trio.lowlevel.current_trio_token()
        # Unfinished calls; each adds itself, and removes itself on asyncio's side.
        self.calls: set[Call[Any]] = set()
        # Raised by calls that the end of the run interrupts, if it was not a cancellation; set on trio's side.
        self.ended_by: BaseException | None = None
        self.one_thread = asyncio._get_running_loop() is loop  # noqa: SLF001  documented, and never raises
        self._holds_clock = holds_clock
        self._serving = 0  # calls that run on trio's side

    def call(self, function: Callable[[], Awaitable[T]], on_finished: Callable[[], None] | None = None) -> Call[T]:
        """Start a function in the nursery, from asyncio's side; it has the caller's context variables."""
        return Call(self, function, on_finished)

    def into_trio(self, callback: Callable[[], object]) -> None:
        """Run a callback on trio's side, from asyncio's; it sees the caller's context variables."""
        if self.one_thread:
            callback()
        else:
            context = contextvars.copy_context()
            self._token.run_sync_soon(context.run, callback)

    def into_asyncio(self, callback: Callable[[], object]) -> None:
        """Run a callback on asyncio's side, from trio's; after that loop was closed nothing waits for it."""
        if self.loop.is_closed():
            return
        if self.one_thread:
            callback()
        else:
            with suppress(RuntimeError):  # it was closed just now
                self.loop.call_soon_threadsafe(callback)

    def call_began(self) -> None:
        """A call from asyncio's side has begun, and its caller waits; on trio's side."""
        self._serving += 1
        if self._holds_clock and self._serving == 1:
            release_clock()

    def call_ended(self) -> None:
        self._serving -= 1
        if self._holds_clock and self._serving == 0:
            hold_clock()

    async def run(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run a function in a task of the asyncio loop, from trio's side.

        A cancellation cancels that task and waits until it has ended.
        """
        with clock_held() if self._holds_clock else nullcontext():
            return await _run_on_asyncio(self, function)


class Call(Generic[T]):
    """A function that runs on trio's side while its caller waits on asyncio's."""

    def __init__(
        self, crossing: Crossing, function: Callable[[], Awaitable[T]], on_finished: Callable[[], None] | None
    ) -> None:
        self._crossing = crossing
        self._function = function
        self._on_finished = on_finished
        self._scope = trio.CancelScope()
        self._finished = asyncio.Event()
        # The result, set on trio's side before `_finished` is; None if it was cancelled.
        self.outcome: outcome.Outcome[T] | None = None
        crossing.calls.add(self)
        try:
            crossing.into_trio(self._start)
        except (RuntimeError, trio.RunFinishedError):
            self._reject()

    def _start(self) -> None:
        try:
            self._crossing.nursery.start_soon(self._serve)
        except RuntimeError:  # the nursery is closed
            self._reject()

    def _reject(self) -> None:
        self.end(outcome.Error(Permanent("the cell that this call belongs to has ended")))

    async def _serve(self) -> None:
        self._crossing.call_began()
        try:
            with self._scope:
                self.outcome = outcome.Value(await self._function())
        except BaseException as error:
            failure = _without_cancellation(error)
            raised = failure or self._crossing.ended_by
            if raised is not None:  # on the other side
                self.outcome = outcome.Error(raised)
            if failure is None:  # cancelled from outside: the whole run ends, or what the nursery belongs to
                raise
        finally:
            self._crossing.call_ended()
            self.end(self.outcome)

    def end(self, result: outcome.Outcome[T] | None) -> None:
        """Return the result to the caller; on trio's side."""
        self.outcome = result
        self._crossing.into_asyncio(self._ended)

    def _ended(self) -> None:
        self._crossing.calls.discard(self)
        self._finished.set()
        if self._on_finished is not None:
            self._on_finished()

    def cancel(self) -> None:
        """Cancel it, from asyncio's side; `wait` returns when it has ended."""
        with suppress(trio.RunFinishedError):
            self._crossing.into_trio(partial(self._scope.cancel, reason="the task that waits for it was cancelled"))

    async def wait(self) -> T:
        """Wait for the result, on asyncio's side. Cancelled, it cancels the function and waits until it has unwound."""
        try:
            await self._finished.wait()
        except asyncio.CancelledError:
            self.cancel()
            with suppress(asyncio.CancelledError):
                await wait_shielded(self._finished)
            if isinstance(self.outcome, outcome.Error):  # something went wrong beside the cancellation
                self.outcome.unwrap()
            raise
        if self.outcome is None:
            raise asyncio.CancelledError("the trio run that this was part of has ended")
        return self.outcome.unwrap()


def _without_cancellation(error: BaseException) -> BaseException | None:
    """The error without cancellations, which a nursery raises in groups; None if nothing else is left."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(trio.Cancelled)[1]
    return None if isinstance(error, trio.Cancelled) else error


async def _run_on_asyncio(crossing: Crossing, function: Callable[[], Awaitable[T]]) -> T:
    """Run a function on asyncio's side while its caller, this task, waits on trio's."""
    waiting = trio.lowlevel.current_task()
    context = contextvars.copy_context()
    context.run(current_crossing.set, crossing)
    # The caller runs under trio, the function does not.
    context.run(sniffio.current_async_library_cvar.set, "asyncio")
    # These two are changed on asyncio's side only.
    task: asyncio.Task[outcome.Outcome[T]] | None = None
    is_cancelled = False
    # How trio wants the caller's cancellation raised, once there is one; changed on trio's side only.
    raise_cancel: Callable[[], Any] | None = None

    def start() -> None:
        nonlocal task
        if is_cancelled:
            resume_caller(None)
            return
        task = crossing.loop.create_task(_capture(function), context=context)
        task.add_done_callback(lambda done: resume_caller(None if done.cancelled() else done.result()))

    def resume_caller(result: outcome.Outcome[T] | None) -> None:
        with suppress(trio.RunFinishedError):
            crossing.into_trio(partial(trio.lowlevel.reschedule, waiting, outcome.Value(result)))

    def abort(raise_it: Callable[[], Any]) -> trio.lowlevel.Abort:
        nonlocal raise_cancel
        if crossing.loop.is_closed():  # its task will never end
            return trio.lowlevel.Abort.SUCCEEDED
        raise_cancel = raise_it
        crossing.into_asyncio(cancel)
        return trio.lowlevel.Abort.FAILED

    def cancel() -> None:
        nonlocal is_cancelled
        is_cancelled = True
        if task is not None:
            task.cancel()

    # Not at once, even in one thread: a loop with eager tasks would run the function inside of trio's.
    soon = crossing.loop.call_soon if crossing.one_thread else crossing.loop.call_soon_threadsafe
    soon(start)
    result: outcome.Outcome[T] | None = await trio.lowlevel.wait_task_rescheduled(abort)
    if result is None:
        if raise_cancel is not None:
            raise_cancel()
        # Not cancelled from here. A loop that cancels all its tasks has cancelled this run too by now.
        await trio.lowlevel.checkpoint()
        raise Retryable("its asyncio task was cancelled, and not by seedbed")
    return result.unwrap()


async def _capture(function: Callable[[], Awaitable[T]]) -> outcome.Outcome[T]:
    """Everything the function raises goes to its caller: a `SystemExit` that leaves a task would end the loop."""
    try:
        return outcome.Value(await function())
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001
        return outcome.Error(error)


async def wait_shielded(event: asyncio.Event) -> None:
    """Wait for an event even if cancelled; the cancellation is raised afterwards."""
    cancelled: asyncio.CancelledError | None = None
    anyio: Any = sys.modules.get("anyio")
    # anyio, if it is imported, would cancel the task again in every iteration of its loop.
    with nullcontext() if anyio is None else anyio.CancelScope(shield=True):
        while not event.is_set():
            try:
                await event.wait()
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        raise cancelled
