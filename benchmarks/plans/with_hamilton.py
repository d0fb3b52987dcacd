"""The plan with Hamilton's async driver: a function for each node, one execution of the graph for each request."""

from __future__ import annotations

import asyncio
import sys
from types import ModuleType
from typing import Any

from hamilton import async_driver

from . import nodes
from .clients import Reads, open_reads
from .with_asyncio import measure
from .work import Rate, given_load, tell


async def asking(reads: Reads, user_id: int) -> tuple:
    """The viewer."""
    return await nodes.viewer(reads, user_id)


async def follows(reads: Reads, asking: tuple) -> list:
    """Whom they follow."""
    return await nodes.users(reads, "follow", asking)


async def follows_media(reads: Reads, follows: list) -> list:
    """Their media."""
    return await nodes.media(reads, follows)


def follows_scored(follows_media: list) -> list:
    """With scores."""
    return nodes.score(follows_media)


async def recommended(reads: Reads, asking: tuple) -> list:
    """Who is recommended."""
    return await nodes.users(reads, "recommendation", asking)


async def recommended_media(reads: Reads, recommended: list) -> list:
    """Their media."""
    return await nodes.media(reads, recommended)


def recommended_scored(recommended_media: list) -> list:
    """With scores."""
    return nodes.score(recommended_media)


def best(follows_scored: list, recommended_scored: list) -> list:
    """Merged, sorted and cut."""
    return nodes.ranked(follows_scored, recommended_scored)


_FUNCTIONS = (
    *(asking, follows, follows_media, follows_scored),
    *(recommended, recommended_media, recommended_scored, best),
)


def make_graph() -> ModuleType:
    """The functions above as a module of their own: Hamilton takes every function of a module for a node."""
    graph = ModuleType("graph")
    for function in _FUNCTIONS:
        function.__module__ = graph.__name__
        setattr(graph, function.__name__, function)
    sys.modules[graph.__name__] = graph
    graph.__dict__.update(Reads=Reads)  # what the annotations name
    return graph


async def run() -> Rate:
    """All of it."""
    load = given_load()
    driver = await async_driver.Builder().with_modules(make_graph()).build()
    async with open_reads(load.client, load.port) as reads:

        async def answer(user_id: int) -> list[dict[str, Any]]:
            found = await driver.execute(["best"], inputs={"user_id": user_id, "reads": reads})
            return found["best"]

        return await measure(load, answer)


if __name__ == "__main__":
    tell(asyncio.run(run()))
