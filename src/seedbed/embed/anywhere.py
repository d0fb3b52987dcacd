"""What is written for trio, made to work wherever it is awaited.

Where a trio task runs, nothing is between the caller and the function. Everywhere else there must be an asyncio loop;
what happens then is in `guest`, which is imported when it is first needed, because asyncio takes long to import and
most who run trio never do.
"""

from __future__ import annotations

import functools
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

T = TypeVar("T")
P = ParamSpec("P")


def anywhere(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Let an async function that is written for trio be awaited under asyncio as well.

    Cancelling its caller cancels it and waits until it has unwound; what it raises is raised as itself. Under asyncio a
    caller that is cancelled never gets a result, even if there is one: what must not be lost has to be kept elsewhere.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        # Not one more coroutine around it: that would cost each time that it goes on.
        if trio.lowlevel.in_trio_task():
            return function(*args, **kwargs)
        return _await_anywhere(functools.partial(function, *args, **kwargs))

    return call


async def _await_anywhere(function: Callable[[], Coroutine[Any, Any, T]]) -> T:
    # Made outside of a trio task, it may still be awaited in one: `trio.run(build_async, ...)`.
    if trio.lowlevel.in_trio_task():
        return await function()
    from .guest import run_in_trio  # noqa: PLC0415  asyncio, see above

    return await run_in_trio(function)


def anywhere_context(
    function: Callable[P, AbstractAsyncContextManager[T]],
) -> Callable[P, AbstractAsyncContextManager[T]]:
    """Let an async context manager that is written for trio be entered under asyncio as well."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[T]:
        return _Anywhere(functools.partial(function, *args, **kwargs))

    return call


class _Anywhere(AbstractAsyncContextManager[T], Generic[T]):
    """Finds out where it is when it is entered, and is one or the other from then on."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._make = make
        self._entered: AbstractAsyncContextManager[T]

    async def __aenter__(self) -> T:
        self._entered = self._make()
        if not trio.lowlevel.in_trio_task():
            from .block import HostedBlock  # noqa: PLC0415  asyncio, see above

            self._entered = HostedBlock(self._entered)
        return await self._entered.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._entered.__aexit__(kind, error, trace)


async def aclose() -> None:
    """End every build and engine of this thread's asyncio loop, and the guest run that they share.

    `asyncio.run` does so by itself, as do anyio and whoever cancels all tasks at the end. Whoever runs a loop by hand
    calls this before closing it, unless nothing of seedbed is open any more. Under trio there is nothing to end.
    """
    if not trio.lowlevel.in_trio_task():
        from .guest import close_guest  # noqa: PLC0415  asyncio, see above

        await close_guest()
