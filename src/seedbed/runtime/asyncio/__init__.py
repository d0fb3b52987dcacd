"""Trio code under asyncio hosts, and asyncio code called from trio.

Async functions of the packages above are written for trio and decorated with `anywhere` or `anywhere_context`, which
make them work under any host: natively under trio, otherwise in a guest run of trio on asyncio's thread and loop.
`for_runtime` adapts users' functions that are written for asyncio. asyncio is slow to import and most trio programs
never need it, so `guest` and `crossing` are imported when they are first used.
"""

from __future__ import annotations

import functools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import trio

from ...errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from contextlib import AbstractAsyncContextManager

    from .crossing import Crossing

T = TypeVar("T")
P = ParamSpec("P")

RUNTIMES = ("asyncio", "trio")
_ADAPTED = "_seedbed_adapted"  # marks the functions that `for_runtime` returned


def anywhere(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Let an async function that is written for trio be awaited under asyncio as well.

    Cancelling its caller cancels it and waits until it has unwound; its exceptions are raised unchanged. Under asyncio
    a caller that is cancelled never gets a result, even if one exists: store elsewhere results that must not be lost.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        # No coroutine around it, which every step would pass through.
        if trio.lowlevel.in_trio_task():
            return function(*args, **kwargs)
        return _await_anywhere(functools.partial(function, *args, **kwargs))

    return call


async def _await_anywhere(function: Callable[[], Coroutine[Any, Any, T]]) -> T:
    # Called outside of a trio task, it may still be awaited in one: `trio.run(build_async, ...)`.
    if trio.lowlevel.in_trio_task():
        return await function()
    from .guest import run_in_trio  # noqa: PLC0415  asyncio, see above

    return await run_in_trio(function)


def anywhere_context(
    function: Callable[P, AbstractAsyncContextManager[T]],
) -> Callable[P, AbstractAsyncContextManager[T]]:
    """Let an async context manager that is written for trio be entered under asyncio as well."""

    @functools.wraps(function)
    @asynccontextmanager
    async def call(*args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        manager = function(*args, **kwargs)
        if not trio.lowlevel.in_trio_task():
            from .guest import host_block  # noqa: PLC0415  asyncio, see above

            manager = host_block(manager)
        async with manager as value:
            yield value

    return call


async def aclose() -> None:
    """End every build and engine of this thread's asyncio loop, and the guest run that they share.

    `asyncio.run` and anyio do so by themselves, as does every host that cancels all tasks at the end. A program that
    runs a loop by hand calls this before closing it, unless nothing of seedbed is open. Under trio it does nothing.
    """
    if not trio.lowlevel.in_trio_task():
        from .guest import close_guest  # noqa: PLC0415  asyncio, see above

        await close_guest()


def for_runtime(
    function: Callable[..., Any],
    *,
    is_async: bool,
    runtime: str | None,
    adapt: Callable[[Any, Crossing], Any] | None = None,
) -> Callable[..., Any]:
    """The function as the engine calls it: with `runtime="asyncio"` in an asyncio task, any other unchanged.

    `adapt` is as for `on_asyncio`. The message of the `ConfigError` for a wrong `runtime` is the rest of a sentence
    about the function's owner.
    """
    if runtime not in (None, *RUNTIMES):
        raise ConfigError(f"has runtime={runtime!r}; allowed are {', '.join(map(repr, RUNTIMES))}")
    if runtime is not None and not is_async:
        raise ConfigError(f"has runtime={runtime!r}, which is for async functions, and its function is not one")
    if runtime != "asyncio" or hasattr(function, _ADAPTED):
        return function
    from .guest import on_asyncio  # noqa: PLC0415  asyncio, see above

    adapted = on_asyncio(function, adapt)
    adapted.__dict__[_ADAPTED] = True
    return adapted


def looks_like_asyncio(error: BaseException) -> bool:
    """True if code that is written for asyncio raises this error when trio runs it."""
    text = str(error)
    if isinstance(error, TypeError):
        return text.startswith("trio.run received unrecognized yield message")
    if isinstance(error, AttributeError):  # of asyncio's locks and events, which do not check that there is a loop
        return text == "'NoneType' object has no attribute 'create_future'"
    return isinstance(error, RuntimeError) and (
        text.startswith(("no running event loop", "There is no current event loop"))
        or text.endswith(("should be used inside a task", "cannot determine the parent task"))
    )
