"""Adapt a user's coroutine function, which targets trio unless the user says asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..embed.crossing import Crossing

RUNTIMES = ("asyncio", "trio")
# The attribute of what `on_asyncio` returns.
MADE_FOR_TRIO = "_seedbed_made_for_trio"


def for_runtime(
    function: Callable[..., Any],
    *,
    is_async: bool,
    runtime: str | None,
    adapt: Callable[[Any, Crossing], Any] | None = None,
) -> Callable[..., Any]:
    """The function as the engine calls it: with `runtime="asyncio"` in a task there, any other as it is.

    `adapt` is as for `on_asyncio`. The message of the `ConfigError` for a wrong `runtime` is the rest of a sentence
    about the function's owner.
    """
    if runtime not in (None, *RUNTIMES):
        raise ConfigError(f"has runtime={runtime!r}; allowed are {', '.join(map(repr, RUNTIMES))}")
    if runtime is not None and not is_async:
        raise ConfigError(f"has runtime={runtime!r}, which is for async functions, and its function is not one")
    if runtime != "asyncio" or hasattr(function, MADE_FOR_TRIO):
        return function
    from .on_asyncio import on_asyncio  # noqa: PLC0415  asyncio takes long to import, and few need it

    return on_asyncio(function, adapt)


def looks_like_asyncio(error: BaseException) -> bool:
    """Whether an error is what code that is written for asyncio gets from being run by trio."""
    text = str(error)
    if isinstance(error, TypeError):
        return text.startswith("trio.run received unrecognized yield message")
    if isinstance(error, AttributeError):  # of asyncio's locks and events, which do not check that there is a loop
        return text == "'NoneType' object has no attribute 'create_future'"
    return isinstance(error, RuntimeError) and (
        text.startswith(("no running event loop", "There is no current event loop"))
        or text.endswith(("should be used inside a task", "cannot determine the parent task"))
    )
