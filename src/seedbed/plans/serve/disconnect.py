"""Work for a caller of an ASGI application, which is cancelled when the caller goes away; under asyncio and trio."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import trio

from ...runtime.tasks import open_hidden_nursery

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, MutableMapping

    Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

T = TypeVar("T")


@attrs.frozen
class Disconnected(Exception):
    """The caller went away before it was answered."""


async def while_connected(receive: Receive, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of `work`, or `Disconnected`; the whole body of the request must have been received."""
    if trio.lowlevel.in_trio_task():
        return await _under_trio(receive, work)
    return await _under_asyncio(receive, work)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _under_trio(receive: Receive, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    with trio.CancelScope() as scope:

        async def watch() -> None:
            await _disconnect(receive)
            scope.cancel(reason="the caller of the request disconnected")

        async with open_hidden_nursery("the request is answered") as nursery:
            nursery.start_soon(watch)
            return await work()
    raise Disconnected


async def _under_asyncio(receive: Receive, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    loop = asyncio.get_running_loop()
    # A timeout is how asyncio cancels a block of the current task and tells that from other cancellations.
    limit = asyncio.timeout(None)

    async def watch() -> None:
        await _disconnect(receive)
        limit.reschedule(loop.time())

    try:
        async with limit:
            watcher = loop.create_task(watch())
            try:
                return await work()
            finally:
                watcher.cancel()
    except TimeoutError:
        if limit.expired():
            raise Disconnected from None
        raise
