"""The plan by hand: asyncio's TaskGroup for the branches, pipelines for what is asked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from .clients import open_reads
from .nodes import media, ranked, score, users, viewer
from .work import Meter, check, given_load, tell

if TYPE_CHECKING:
    from .clients import Reads
    from .work import Answer, Load, Rate


async def answer(reads: Reads, user_id: int) -> list[dict[str, Any]]:
    """Answer one request."""
    asking = await viewer(reads, user_id)

    async def branch(name: str) -> list[tuple[int, float]]:
        return score(await media(reads, await users(reads, name, asking)))

    async with asyncio.TaskGroup() as group:
        follows = group.create_task(branch("follow"))
        recommended = group.create_task(branch("recommendation"))
    return ranked(follows.result(), recommended.result())


async def measure(load: Load, answer: Answer) -> Rate:
    """Keep so many requests under way."""
    await check(answer)
    meter = Meter(load.requests)
    numbers = iter(range(load.requests))
    async with asyncio.TaskGroup() as group:
        for _ in range(load.at_once):
            group.create_task(meter.worker(numbers, answer))
    return meter.rate()


async def run(load: Load) -> Rate:
    """All of it."""
    async with open_reads(load.client, load.port) as reads:
        return await measure(load, lambda user_id: answer(reads, user_id))


if __name__ == "__main__":
    tell(asyncio.run(run(given_load())))
