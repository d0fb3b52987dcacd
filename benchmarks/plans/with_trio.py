"""The plan by hand on trio, with the engine's own client: what the engine itself costs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from seedbed.plans.redis import open_endpoints

from .nodes import media, ranked, score, users, viewer
from .with_seedbed import measure, registries_at
from .work import given_load, tell

if TYPE_CHECKING:
    from .clients import Reads
    from .work import Load, Rate


async def answer(reads: Reads, user_id: int) -> list[dict[str, Any]]:
    """Answer one request."""
    asking = await viewer(reads, user_id)
    scored: dict[str, list[tuple[int, float]]] = {}

    async def branch(name: str) -> None:
        scored[name] = score(await media(reads, await users(reads, name, asking)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(branch, "follow")
        nursery.start_soon(branch, "recommendation")
    return ranked(scored["follow"], scored["recommendation"])


async def run(load: Load) -> Rate:
    """All of it."""
    async with open_endpoints(registries_at(load.port)) as endpoints:
        return await measure(load, partial(answer, endpoints.get("ep_0001")))


if __name__ == "__main__":
    tell(trio.run(partial(run, given_load())))
