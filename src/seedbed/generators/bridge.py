"""One of `generate` and `agenerate` is enough: the other one is made here."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import trio

from ..runtime.offload import Lease
from ..runtime.portal import run_sync
from .call import generator_function

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Bridged:
    """A generator with both `generate` and `agenerate`, whichever it was written with."""

    def __init__(self, generator: object) -> None:
        self.generator = generator
        function, is_async = generator_function(generator)
        self._agenerate: Callable[..., Awaitable[Any]] | None = function if is_async else None
        self._generate: Callable[..., Any] | None = getattr(generator, "generate", None) if is_async else function

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Call it from synchronous code, also inside a running event loop or in a worker thread."""
        if self._generate is not None:
            return self._generate(*args, **kwargs)
        assert self._agenerate is not None
        return run_sync(functools.partial(self._agenerate, *args, **kwargs))

    async def agenerate(self, *args: Any, **kwargs: Any) -> Any:
        """Await it; synchronous code runs in a worker thread."""
        if self._agenerate is not None:
            return await self._agenerate(*args, **kwargs)
        assert self._generate is not None
        limiter = trio.to_thread.current_default_thread_limiter()
        holder = object()
        await limiter.acquire_on_behalf_of(holder)
        lease = Lease(lambda: limiter.release_on_behalf_of(holder))
        return await lease.run(functools.partial(self._generate, *args, **kwargs))


def bridge(generator: object) -> Bridged:
    """Give a generator the method that it lacks."""
    return generator if isinstance(generator, Bridged) else Bridged(generator)
