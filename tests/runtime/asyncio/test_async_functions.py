"""Async functions of a user's run under trio unless the user says asyncio."""
# ruff: noqa: D103  the functions that are called have names that say it

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import trio

from seedbed.errors import ConfigError
from seedbed.runtime.asyncio import for_runtime, looks_like_asyncio

if TYPE_CHECKING:
    from collections.abc import Callable


async def awaits_nothing() -> None:
    pass


async def yields() -> None:
    await asyncio.sleep(0)


async def sleeps() -> None:
    await asyncio.sleep(0.001)


async def enters_aiohttp() -> None:
    async with aiohttp.ClientSession():
        pass


async def enters_a_timeout() -> None:
    async with asyncio.timeout(1):
        await awaits_nothing()


async def enters_a_task_group() -> None:
    async with asyncio.TaskGroup():
        pass


async def waits_for_an_event() -> None:
    await asyncio.Event().wait()


async def calls_in_a_thread() -> None:
    await asyncio.to_thread(int)


@pytest.mark.parametrize(
    "function",
    [
        yields,
        sleeps,
        enters_aiohttp,
        enters_a_timeout,
        enters_a_task_group,
        waits_for_an_event,
        calls_in_a_thread,
    ],
)
def test_errors_of_asyncio_code_under_trio_are_recognized(function: Callable[..., Any]) -> None:
    """However code uses asyncio first, what it gets under trio is known for what it is."""
    with pytest.raises((TypeError, RuntimeError, AttributeError)) as caught:
        trio.run(function)
    assert looks_like_asyncio(caught.value)


def test_other_errors_are_not_taken_for_those_of_asyncio() -> None:
    """A TypeError or RuntimeError of the user's own code is reported as it is."""
    assert not looks_like_asyncio(TypeError("unsupported operand"))
    assert not looks_like_asyncio(RuntimeError("no luck"))


def test_only_the_user_says_that_a_function_is_of_asyncio() -> None:
    """Without a word, and with `runtime="trio"`, a function stays as it is; what was made for trio is so once."""
    for runtime in (None, "trio"):
        assert for_runtime(sleeps, is_async=True, runtime=runtime) is sleeps
    made = for_runtime(awaits_nothing, is_async=True, runtime="asyncio")
    assert made is not awaits_nothing
    assert made.__name__ == "awaits_nothing"
    assert for_runtime(made, is_async=True, runtime="asyncio") is made


def test_an_unknown_runtime_is_rejected() -> None:
    """The message continues a sentence about the owner of the function."""
    with pytest.raises(ConfigError, match=r"^has runtime='curio'; allowed are 'asyncio', 'trio'$"):
        for_runtime(awaits_nothing, is_async=True, runtime="curio")
