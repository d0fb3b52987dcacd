"""The context of a cell whose function runs on asyncio."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from .context import CellContext

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..embed.crossing import Crossing

T = TypeVar("T")


class AsyncioContext:
    """The same for the function; what it does to the engine is done on trio's side."""

    def __init__(self, context: CellContext, crossing: Crossing) -> None:
        self._context = context
        self._crossing = crossing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def call(self, send: Callable[[], Awaitable[T]], **options: Any) -> T:
        """`send` runs here, on asyncio; what leads to it and follows from it on trio."""
        sent = partial(self._crossing.run, send)
        return await self._crossing.call(partial(self._context.call, sent, **options)).wait()

    def give_back(self) -> None:
        self._crossing.into_trio(self._context.give_back)


def for_asyncio(value: Any, crossing: Crossing) -> Any:
    """What a function that runs on asyncio gets for an argument: a context that works there, all else as it is."""
    return AsyncioContext(value, crossing) if isinstance(value, CellContext) else value
