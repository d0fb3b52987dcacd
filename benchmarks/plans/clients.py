"""redis-py and coredis behind the four reads that a plan makes; each list of keys is one pipeline."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence


class Reads(Protocol):
    """What the contestants ask a server."""

    async def hgetall(self, key: str) -> dict[str, str]: ...
    async def lrange(self, key: str, start: int, stop: int) -> list[str]: ...
    async def hgetall_many(self, keys: Sequence[str]) -> list[dict[str, str]]: ...
    async def lrange_many(self, keys: Sequence[str], start: int, stop: int) -> list[list[str]]: ...


class RedisPy:
    """redis-py, asyncio only."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def hgetall(self, key: str) -> dict[str, str]:
        return await self._client.hgetall(key)

    async def lrange(self, key: str, start: int, stop: int) -> list[str]:
        return await self._client.lrange(key, start, stop)

    async def hgetall_many(self, keys: Sequence[str]) -> list[dict[str, str]]:
        async with self._client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.hgetall(key)
            return await pipe.execute()

    async def lrange_many(self, keys: Sequence[str], start: int, stop: int) -> list[list[str]]:
        async with self._client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.lrange(key, start, stop)
            return await pipe.execute()


class Coredis(RedisPy):
    """coredis, on asyncio and on trio; its pipelines are sent when they are left."""

    async def hgetall_many(self, keys: Sequence[str]) -> list[dict[str, str]]:
        async with self._client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.hgetall(key)
        return list(pipe.results)

    async def lrange_many(self, keys: Sequence[str], start: int, stop: int) -> list[list[str]]:
        async with self._client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.lrange(key, start, stop)
        return list(pipe.results)


@asynccontextmanager
async def open_reads(kind: str, port: int) -> AsyncIterator[Reads]:
    """A client that answers with text; `kind` is redis-py or coredis."""
    if kind == "redis-py":
        import redis.asyncio  # noqa: PLC0415  only whoever is asked to use it has it installed

        async with redis.asyncio.Redis(port=port, decode_responses=True) as client:
            yield RedisPy(client)
    else:
        import coredis  # noqa: PLC0415  as above

        async with coredis.Redis(port=port, decode_responses=True) as other:
            yield Coredis(other)
