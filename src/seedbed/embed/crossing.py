"""From asyncio to trio and back: a call each way, with its result, its error and its cancellation."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import outcome
import sniffio
import trio

from ..errors import Permanent, Retryable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

# Set for asyncio tasks that a trio task waits for: what they await of trio's goes back to that very run, and is part of
# what waits for them.
current_crossing: contextvars.ContextVar[Crossing | None] = contextvars.ContextVar("seedbed_crossing", default=None)


class Crossing:
    """The ways between a nursery of a trio run and an asyncio loop, in one thread or in two. Made on trio's side."""

    def __init__(self, nursery: trio.Nursery, loop: asyncio.AbstractEventLoop) -> None:
        self.nursery = nursery
        self.loop = loop
        self._token = trio.lowlevel.current_trio_token()
        # Under way; each adds itself, and takes itself out on asyncio's side when it is over.
        self.calls: set[Call[Any]] = set()
        # What calls that the end of the run cuts off raise, if it is more than a cancellation; set on trio's side.
        self.ended_by: BaseException | None = None
        self.one_thread = asyncio._get_running_loop() is loop  # noqa: SLF001  it is documented, and raises nothing

    def call(self, function: Callable[[], Awaitable[T]], on_over: Callable[[], None] | None = None) -> Call[T]:
        """Start a function in the nursery, from asyncio's side; it has the context variables of who calls this."""
        return Call(self, function, on_over)

    def into_trio(self, callback: Callable[[], object]) -> None:
        """Run a callback on trio's side, from asyncio's; it sees the context variables of who calls this."""
        if self.one_thread:
            callback()
        else:
            context = contextvars.copy_context()
            self._token.run_sync_soon(context.run, callback)

    def into_asyncio(self, callback: Callable[[], object]) -> None:
        """Run a callback on asyncio's side, from trio's; where that loop is no more, nobody waits for it either."""
        if self.loop.is_closed():
            return
        if self.one_thread:
            callback()
        else:
            with suppress(RuntimeError):  # it was closed just now
                self.loop.call_soon_threadsafe(callback)

    def call_began(self) -> None:
        """A call from asyncio's side has begun, and its caller waits; on trio's side."""

    def call_ended(self) -> None:
        """It is over."""

    async def run(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run a function in a task of the asyncio loop, from trio's side.

        A cancellation cancels that task and waits until it is over.
        """
        return await _Errand(self, function).run()


class Call(Generic[T]):
    """A function that runs on trio's side while its caller waits on asyncio's."""

    def __init__(
        self, crossing: Crossing, function: Callable[[], Awaitable[T]], on_over: Callable[[], None] | None
    ) -> None:
        self._crossing = crossing
        self._function = function
        self._on_over = on_over
        self._scope = trio.CancelScope()
        self._over = asyncio.Event()
        # How it ended, set on trio's side before `_over` is; None if it was cancelled.
        self.outcome: outcome.Outcome[T] | None = None
        crossing.calls.add(self)
        try:
            crossing.into_trio(self._start)
        except (RuntimeError, trio.RunFinishedError):
            self._refuse()

    def _start(self) -> None:
        try:
            self._crossing.nursery.start_soon(self._serve)
        except RuntimeError:  # the nursery is closed
            self._refuse()

    def _refuse(self) -> None:
        self.end(outcome.Error(Permanent("the cell that this call belongs to is over")))

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
        """Let the caller go on; on trio's side."""
        self.outcome = result
        self._crossing.into_asyncio(self._ended)

    def _ended(self) -> None:
        self._crossing.calls.discard(self)
        self._over.set()
        if self._on_over is not None:
            self._on_over()

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def cancel(self) -> None:
        """Cancel it, from asyncio's side; `wait` says when it is over."""
        with suppress(trio.RunFinishedError):
            self._crossing.into_trio(partial(self._scope.cancel, reason="the task that waits for it was cancelled"))

    async def wait(self) -> T:
        """Wait for the result, on asyncio's side. Cancelled, it cancels the function and waits until it has unwound."""
        try:
            await self._over.wait()
        except asyncio.CancelledError:
            self.cancel()
            with suppress(asyncio.CancelledError):
                await outlast(self._over)
            if isinstance(self.outcome, outcome.Error):  # something went wrong beside the cancellation
                self.outcome.unwrap()
            raise
        if self.outcome is None:
            raise asyncio.CancelledError("the trio run that this was part of has ended")
        return self.outcome.unwrap()


def _without_cancellation(error: BaseException) -> BaseException | None:
    """What is left of an error where a cancellation is none; a cancelled nursery raises them in groups."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(trio.Cancelled)[1]
    return None if isinstance(error, trio.Cancelled) else error


class _Errand(Generic[T]):
    """A function that runs on asyncio's side while its caller waits on trio's."""

    def __init__(self, crossing: Crossing, function: Callable[[], Awaitable[T]]) -> None:
        self._crossing = crossing
        self._function = function
        self._waiting = trio.lowlevel.current_task()
        self._context = contextvars.copy_context()
        self._context.run(current_crossing.set, crossing)
        # What the caller's library said of itself is not so where the function runs.
        self._context.run(sniffio.current_async_library_cvar.set, "asyncio")
        # These two are changed on asyncio's side only.
        self._task: asyncio.Task[outcome.Outcome[T]] | None = None
        self._cancelled = False
        # How trio wants the caller's cancellation raised, once there is one; changed on trio's side only.
        self._raise_cancel: Callable[[], Any] | None = None

    async def run(self) -> T:
        # Not at once, even in one thread: a loop with eager tasks would run the function inside of trio's.
        loop = self._crossing.loop
        soon = loop.call_soon if self._crossing.one_thread else loop.call_soon_threadsafe
        soon(self._start)
        result: outcome.Outcome[T] | None = await trio.lowlevel.wait_task_rescheduled(self._abort)
        if result is None:
            if self._raise_cancel is not None:
                self._raise_cancel()
            # Somebody else cancelled it. If that is a loop that cancels all it has, this run is cancelled by now.
            await trio.lowlevel.checkpoint()
            raise Retryable("its asyncio task was cancelled, and not by seedbed")
        return result.unwrap()

    def _start(self) -> None:
        if self._cancelled:
            self._tell_trio(None)
            return
        self._task = self._crossing.loop.create_task(self._guarded(), context=self._context)
        self._task.add_done_callback(self._done)

    async def _guarded(self) -> outcome.Outcome[T]:
        """Whatever the function raises is its caller's: an exit that leaves a task would end the loop."""
        try:
            return outcome.Value(await self._function())
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001
            return outcome.Error(error)

    def _done(self, task: asyncio.Task[outcome.Outcome[T]]) -> None:
        self._tell_trio(None if task.cancelled() else task.result())

    def _tell_trio(self, result: outcome.Outcome[T] | None) -> None:
        with suppress(trio.RunFinishedError):
            self._crossing.into_trio(partial(trio.lowlevel.reschedule, self._waiting, outcome.Value(result)))

    def _abort(self, raise_cancel: Callable[[], Any]) -> trio.lowlevel.Abort:
        if self._crossing.loop.is_closed():  # it will never tell
            return trio.lowlevel.Abort.SUCCEEDED
        self._raise_cancel = raise_cancel
        self._crossing.into_asyncio(self._cancel)
        return trio.lowlevel.Abort.FAILED

    def _cancel(self) -> None:
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()


async def outlast(event: asyncio.Event) -> None:
    """Wait for an event that must be waited for, cancelled or not; a cancellation meanwhile is raised afterwards."""
    cancelled: asyncio.CancelledError | None = None
    with _shielded():
        while not event.is_set():
            try:
                await event.wait()
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        raise cancelled


def _shielded() -> AbstractContextManager[object]:
    """Keep anyio from cancelling the task again at every turn of its loop; nobody uses it who has not imported it."""
    anyio: Any = sys.modules.get("anyio")
    if anyio is None:
        return nullcontext()
    shield: AbstractContextManager[object] = anyio.CancelScope(shield=True)
    return shield
