"""All endpoints of an engine, opened together and shared by its requests."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from ...errors import ConfigError, EndpointUnavailable
from ...runtime.exceptions import open_hidden_nursery
from .memory import MemoryEndpoint, check_seed, read_seed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from ..model import Endpoint, Registries
    from .client import RedisClient
    from .statistics import EndpointStatistics


class RedisEndpoint(Protocol):
    """What ops may ask of an endpoint of kind redis.

    Raises EndpointUnavailable if there is no answer, and NodeFailed for an answer that is an error; neither names a
    node. A key that does not exist is an empty hash and an empty list.
    """

    async def ping(self) -> None: ...

    async def hgetall(self, key: str) -> dict[str, str]: ...

    async def lrange(self, key: str, start: int, stop: int) -> list[str]: ...

    async def hgetall_many(self, keys: Sequence[str]) -> list[dict[str, str]]: ...

    async def lrange_many(self, keys: Sequence[str], start: int, stop: int) -> list[list[str]]: ...

    def statistics(self) -> EndpointStatistics: ...


@attrs.frozen
class Endpoints:
    """The endpoints by their ids."""

    _redis: Mapping[str, RedisEndpoint]
    _described: Mapping[str, Endpoint] = attrs.field(factory=dict)

    def get(self, endpoint_id: str) -> Any:
        """The endpoint with this id: a `RedisEndpoint`.

        No op of the format asks servers of kind http. An op of one's own gets the `Endpoint` of the registries, which
        says where it is and how it may be used.
        """
        found = self._redis.get(endpoint_id) or self._described.get(endpoint_id)
        if found is None:
            known = ", ".join(sorted([*self._redis, *self._described])) or "none"
            raise EndpointUnavailable(f"there is no endpoint {endpoint_id!r}; there are: {known}")
        return found

    def statistics(self) -> dict[str, EndpointStatistics]:
        """A snapshot of each."""
        return {name: each.statistics() for name, each in self._redis.items()}


@asynccontextmanager
async def open_endpoints(
    registries: Registries, *, seeds: Mapping[str, Mapping[str, object]] | None = None, memory_latency: float = 0.0
) -> AsyncIterator[Endpoints]:
    """Open what the registries name; nothing is connected before it is asked.

    `seeds` holds what in-memory endpoints (host `memory`) are to hold, by endpoint id, and goes before their seed file;
    they answer after `memory_latency` seconds. Leaving closes all; calls that are still waiting then fail.
    """
    redis: dict[str, RedisClient | MemoryEndpoint] = {
        name: _open_redis(endpoint, seeds or {}, memory_latency)
        for name, endpoint in registries.endpoints.items()
        if endpoint.kind == "redis"
    }
    described = {name: endpoint for name, endpoint in registries.endpoints.items() if name not in redis}
    async with open_hidden_nursery("the endpoints are closed") as nursery:
        for each in redis.values():
            nursery.start_soon(each.run)
        yield Endpoints(redis, described)


def _open_redis(
    endpoint: Endpoint, seeds: Mapping[str, Mapping[str, object]], memory_latency: float
) -> RedisClient | MemoryEndpoint:
    if endpoint.host != "memory":
        return _redis_client(endpoint)
    if endpoint.id in seeds:
        stored = check_seed(seeds[endpoint.id], f"the seed of endpoint {endpoint.id!r}")
    else:
        stored = read_seed(endpoint.seed_file) if endpoint.seed_file is not None else {}
    return MemoryEndpoint(endpoint, stored, latency=memory_latency)


def _redis_client(endpoint: Endpoint) -> RedisClient:
    # Its parser comes with an extra, which who has only endpoints in memory does not need.
    try:
        from .client import RedisClient  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            f"endpoint {endpoint.id!r} needs hiredis, which is not installed ({error}): install seedbed[redis]"
        ) from error
    return RedisClient(endpoint)
