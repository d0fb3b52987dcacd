"""Whose an async function is: asyncio's only where nothing else is possible."""
# ruff: noqa: D103  the functions that are looked at have names that say it

from __future__ import annotations

import asyncio
import asyncio as renamed
import functools
from asyncio import sleep
from typing import TYPE_CHECKING, Any

import aiohttp
import anyio
import anyio.lowlevel
import pytest
import sniffio
import trio
import trio.lowlevel

from seedbed.errors import ConfigError
from seedbed.runtime.async_functions import detect_runtime, for_runtime

if TYPE_CHECKING:
    from collections.abc import Callable


async def awaits_asyncio(x: int) -> int:
    await asyncio.sleep(0)
    return x


async def awaits_it_renamed(x: int) -> int:
    return await renamed.sleep(0, x)


async def awaits_an_imported_function(x: int) -> int:
    return await sleep(0, x)


async def enters_aiohttp(x: int) -> int:
    async with aiohttp.ClientSession() as session, session.get("http://127.0.0.1") as response:
        return response.status


async def enters_a_timeout(x: int) -> int:
    async with asyncio.timeout(1):
        return await awaits_nothing(x)


async def waits_for_an_event(x: int) -> bool:
    return await asyncio.Event().wait()


async def loops_over_asyncio(x: int) -> int:
    async for each in asyncio.as_completed([]):  # type: ignore[attr-defined]
        x += each
    return x


async def deep_inside(x: int) -> list[int]:
    return [await asyncio.sleep(0, each) for each in range(x) if each]


def enclosing() -> Callable[..., Any]:
    """Make a function that finds asyncio in what is around it."""
    library = asyncio

    async def enclosed(x: int) -> int:
        return await library.sleep(0, x)

    return enclosed


class Method:
    async def agenerate(self, x: int) -> int:
        return await asyncio.sleep(0, x)


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function as decorators do."""

    @functools.wraps(function)
    async def wrapper(*args: Any) -> Any:
        return await function(*args)

    return wrapper


@pytest.mark.parametrize(
    "function",
    [
        awaits_asyncio,
        awaits_it_renamed,
        awaits_an_imported_function,
        enters_aiohttp,
        enters_a_timeout,
        waits_for_an_event,
        loops_over_asyncio,
        deep_inside,
        enclosing(),
        Method().agenerate,
        decorated(awaits_asyncio),
    ],
    ids=lambda function: function.__name__,
)
def test_what_can_only_be_of_asyncio_is_known(function: Callable[..., Any]) -> None:
    """A function that awaits, enters or loops over what it calls from asyncio or the like by name is asyncio's."""
    assert detect_runtime(function) == "asyncio"


async def awaits_nothing(x: int) -> int:
    return x


async def awaits_trio(x: int) -> int:
    await trio.lowlevel.checkpoint()
    return x


async def awaits_anyio(x: int) -> int:
    await anyio.lowlevel.checkpoint()
    return x


async def awaits_either(x: int) -> int:
    if sniffio.current_async_library() == "trio":
        await trio.lowlevel.checkpoint()
    else:
        await asyncio.sleep(0)
    return x


async def uses_asyncio_without_awaiting_it(x: int) -> int:
    try:
        return await awaits_nothing(x)
    except asyncio.CancelledError:
        return 0


async def has_a_function_inside(x: int) -> Callable[..., Any]:
    async def inner() -> None:
        await asyncio.sleep(0)

    await awaits_nothing(x)
    return inner


async def has_a_parameter_of_that_name(asyncio: Any) -> Any:
    return await asyncio.sleep(0)


async def has_a_variable_of_that_name(x: int) -> Any:
    asyncio = trio_like
    return await asyncio.sleep(0)


async def awaits_what_it_was_given(x: Any) -> Any:
    return await x.asyncio.sleep(0)


trio_like: Any = trio
from_text: dict[str, Any] = {"asyncio": asyncio}
exec("async def without_source(x):\n    await asyncio.sleep(0)", from_text)


class CallableObject:
    async def __call__(self, x: int) -> int:
        return await asyncio.sleep(0, x)


@pytest.mark.parametrize(
    "function",
    [
        awaits_nothing,
        awaits_trio,
        awaits_anyio,
        awaits_either,
        uses_asyncio_without_awaiting_it,
        has_a_function_inside,
        has_a_parameter_of_that_name,
        has_a_variable_of_that_name,
        awaits_what_it_was_given,
        from_text["without_source"],
        functools.partial(awaits_asyncio, 1),
        CallableObject(),
        lambda: asyncio.sleep(0),
    ],
    ids=lambda function: getattr(function, "__name__", type(function).__name__),
)
def test_what_may_be_anything_else_is_not_guessed(function: Callable[..., Any]) -> None:
    """Where there is any doubt a function is trio's, and the user says what it is."""
    assert detect_runtime(function) == "trio"


def test_a_word_of_the_user_goes_before_what_is_known() -> None:
    """`runtime="trio"` leaves a function alone; what was made for trio once is not made so again."""
    assert for_runtime(awaits_asyncio, is_async=True, runtime="trio") is awaits_asyncio
    assert for_runtime(awaits_nothing, is_async=True, runtime=None) is awaits_nothing
    made = for_runtime(awaits_nothing, is_async=True, runtime="asyncio")
    assert made is not awaits_nothing
    assert made.__name__ == "awaits_nothing"
    assert for_runtime(made, is_async=True, runtime="asyncio") is made


def test_a_runtime_that_there_is_not_is_refused() -> None:
    """The message is the rest of a sentence about whose function it is."""
    with pytest.raises(ConfigError, match=r"^has runtime='curio'; allowed are 'asyncio', 'trio'$"):
        for_runtime(awaits_nothing, is_async=True, runtime="curio")
