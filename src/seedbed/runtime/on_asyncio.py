"""Users' async functions that are written for asyncio, called from trio.

They run on the loop that trio is a guest of. Where it is nobody's guest they run on one asyncio loop of our own, in a
thread that the first of them starts and that ends with the trio run.
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import trio

from ..embed.crossing import Crossing
from ..embed.guest import host_loop
from .async_functions import MADE_FOR_TRIO
from .offload import hold_clock, release_clock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")
P = ParamSpec("P")

_own_loop: trio.lowlevel.RunVar[_LoopThread | None] = trio.lowlevel.RunVar("seedbed.own_loop", default=None)


def on_asyncio(
    function: Callable[P, Awaitable[T]], adapt: Callable[[Any, Crossing], Any] | None = None
) -> Callable[P, Awaitable[T]]:
    """Make a function for trio of one that is written for asyncio; it runs in an asyncio task.

    When the caller is cancelled or out of time, that task is cancelled and waited for. What the function awaits of
    trio's through `seedbed.embed.anywhere` runs under the caller's scopes. `adapt` is asked for each argument what the
    function gets in its place.
    """

    @functools.wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        loop = host_loop() or await _loop_of_ours()
        error: Exception | None = None
        async with trio.open_nursery() as nursery:
            crossing = _HeldCrossing(nursery, loop)
            bound = functools.partial(function, *args, **kwargs)
            if adapt is not None:
                values = [adapt(value, crossing) for value in args]
                named = {name: adapt(value, crossing) for name, value in kwargs.items()}
                bound = functools.partial(function, *values, **named)
            try:
                result = await crossing.run(bound)
            except Exception as raised:  # noqa: BLE001  it leaves as itself, below, and not in the nursery's group
                error = raised
            # Calls of tasks that the function left behind have no one to answer to.
            nursery.cancel_scope.cancel(reason="the function that made these calls is over")
        if error is not None:
            raise error
        return result

    # Whoever is handed this must not take it for what it was made of.
    call.__dict__[MADE_FOR_TRIO] = True
    return call


class _HeldCrossing(Crossing):
    """Keeps a virtual clock from jumping while the function works in another thread.

    While it waits for something of trio's, nothing but trio can go on, and time may.
    """

    _calls = 0

    async def run(self, function: Callable[[], Awaitable[T]]) -> T:
        hold_clock()
        try:
            return await super().run(function)
        finally:
            release_clock()

    def call_began(self) -> None:
        self._calls += 1
        if self._calls == 1:
            release_clock()

    def call_ended(self) -> None:
        self._calls -= 1
        if self._calls == 0:
            hold_clock()


class _LoopThread:
    """An asyncio loop in a thread of its own. `run` is a system task: it ends when the trio run does."""

    def __init__(self) -> None:
        self.started = trio.Event()
        self.loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event

    async def run(self) -> None:
        token = trio.lowlevel.current_trio_token()

        async def main() -> None:
            self.loop = asyncio.get_running_loop()
            self._stop = asyncio.Event()
            token.run_sync_soon(self.started.set)
            await self._stop.wait()

        async def work() -> None:
            # Shielded without a deadline: it ends when what runs on the loop has been cancelled, as a nursery would.
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(asyncio.run, main(), limiter=trio.CapacityLimiter(1))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await self.started.wait()
                self.loop.call_soon_threadsafe(self._stop.set)


async def _loop_of_ours() -> asyncio.AbstractEventLoop:
    own = _own_loop.get()
    if own is None:
        own = _LoopThread()
        _own_loop.set(own)
        trio.lowlevel.spawn_system_task(own.run, name="seedbed-asyncio")
    hold_clock()
    try:
        await own.started.wait()
    finally:
        release_clock()
    return own.loop
