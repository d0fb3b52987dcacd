"""An `async with` block of asyncio's around a context manager of trio's."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from typing import TYPE_CHECKING, Generic, TypeVar

import outcome
import trio

from .guest import open_crossing

if TYPE_CHECKING:
    from types import TracebackType

    from .crossing import Call

T = TypeVar("T")


class HostedBlock(AbstractAsyncContextManager[T], Generic[T]):
    """The manager is entered, kept open and left by one trio task, which stands for the block.

    What the block raises is raised there, so that the manager sees it; a cancelled block cancels that task. If the
    manager cancels the task by itself, because something that it runs has failed, the block is cancelled.
    """

    def __init__(self, manager: AbstractAsyncContextManager[T]) -> None:
        self._manager = manager
        self._stack = AsyncExitStack()
        self._host: asyncio.Task[object] | None = None
        self._call: Call[None]
        self._entered = asyncio.Event()  # or over before it was
        self._values: list[T] = []
        self._left = trio.Event()
        self._raised: Exception | None = None
        self._in_block = False
        self._interrupted = False  # the block was cancelled from here

    async def __aenter__(self) -> T:
        self._host = asyncio.current_task()
        async with AsyncExitStack() as stack:
            self._crossing = await stack.enter_async_context(open_crossing())
            self._call = self._crossing.call(self._live, self._over)
            try:
                await self._entered.wait()
            except asyncio.CancelledError:
                self._call.cancel()
                await self._call.wait()
                raise
            if not self._values:
                await self._call.wait()
            self._in_block = True
            self._stack = stack.pop_all()
        return self._values[0]

    async def _live(self) -> None:
        """The trio task."""
        async with self._manager as value:
            self._values.append(value)
            self._crossing.into_asyncio(self._entered.set)
            await self._left.wait()
            if self._raised is not None:
                raise self._raised

    def _over(self) -> None:
        self._entered.set()
        if self._in_block and self._host is not None:
            self._interrupted = True
            self._host.cancel()

    async def __aexit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        self._in_block = False
        async with self._stack:
            if self._interrupted:
                await self._give_way(error)
                return False
            if error is None or isinstance(error, Exception):
                return await self._leave(error)
            # A cancellation, or an exit of the program: either way the block has no time for what is open.
            self._call.cancel()
            with suppress(asyncio.CancelledError):
                await self._call.wait()
            return False

    async def _leave(self, error: Exception | None) -> bool:
        trace = None if error is None else error.__traceback__
        self._raised = error
        self._crossing.into_trio(self._left.set)
        try:
            await self._call.wait()
        except Exception as found:
            if found is not error:
                raise
            # It leaves the block as it came, without the way it went meanwhile.
            error.__traceback__ = trace
            return False
        return error is not None  # the manager swallowed it

    async def _give_way(self, error: BaseException | None) -> None:
        """The manager has ended before the block did, which was cancelled for it."""
        if not isinstance(self._call.outcome, outcome.Error):
            return  # with the whole run, which is being shut down
        assert self._host is not None
        if not isinstance(error, asyncio.CancelledError):
            with suppress(asyncio.CancelledError):  # it has not been raised yet
                await asyncio.sleep(0)
        self._host.uncancel()
        self._call.outcome.unwrap()
