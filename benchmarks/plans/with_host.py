"""The engine under asyncio: trio runs as a guest of its loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from . import with_asyncio
from .with_seedbed import open_engine
from .work import given_load, tell

if TYPE_CHECKING:
    from .work import Load, Rate


async def run(load: Load) -> Rate:
    """All of it."""
    async with open_engine(load) as (engine, plan):

        async def answer(user_id: int) -> list[dict[str, Any]]:
            return (await engine.execute(plan, {"user_id": user_id}, deadline=10)).candidates

        return await with_asyncio.measure(load, answer)


if __name__ == "__main__":
    tell(asyncio.run(run(given_load())))
