"""All endpoints of an engine, opened together and shared by its requests."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import attrs

from ...errors import ConfigError, EndpointUnavailable
from ...runtime.tasks import open_hidden_nursery
from .memory import MemoryEndpoint, check_seed, read_seed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from ..registries import Endpoint, Registries
    from .reads import EndpointStatistics, RedisEndpoint


@attrs.frozen
class Endpoints:
    """The endpoints of an engine."""

    _redis: Mapping[str, RedisEndpoint]
    _others: Mapping[str, Endpoint]

    def get(self, endpoint_id: str) -> Any:
        """The endpoint with this id: a `RedisEndpoint`.

        No op of the format uses servers of kind http. A user-defined op gets the `Endpoint` of the registries, with its
        address and policy.
        """
        found = self._redis.get(endpoint_id) or self._others.get(endpoint_id)
        if found is None:
            known = ", ".join(sorted([*self._redis, *self._others])) or "none"
            raise EndpointUnavailable(f"unknown endpoint {endpoint_id!r} (known: {known})")
        return found

    def statistics(self) -> dict[str, EndpointStatistics]:
        """A snapshot of each of kind redis."""
        return {name: each.statistics() for name, each in self._redis.items()}


@asynccontextmanager
async def open_endpoints(
    registries: Registries, *, seeds: Mapping[str, Mapping[str, object]] | None = None, memory_latency: float = 0.0
) -> AsyncIterator[Endpoints]:
    """Open the endpoints of the registries; each connects on its first call.

    `seeds` are the contents of in-memory endpoints (host `memory`) by endpoint id, in place of their seed file;
    they answer after `memory_latency` seconds. Leaving closes all; calls that are still waiting then fail.
    """
    redis: dict[str, RedisEndpoint] = {}
    others: dict[str, Endpoint] = {}
    for name, endpoint in registries.endpoints.items():
        if endpoint.kind != "redis":
            others[name] = endpoint
        elif endpoint.host == "memory":
            redis[name] = _open_memory(endpoint, seeds or {}, memory_latency)
        else:
            redis[name] = _open_redis(endpoint)
    async with open_hidden_nursery("the endpoints are closed") as nursery:
        for each in redis.values():
            nursery.start_soon(each.run)
        yield Endpoints(redis, others)


def _open_memory(endpoint: Endpoint, seeds: Mapping[str, Mapping[str, object]], latency: float) -> MemoryEndpoint:
    if endpoint.id in seeds:
        stored = check_seed(seeds[endpoint.id], f"the seed of endpoint {endpoint.id!r}")
    else:
        stored = read_seed(endpoint.seed_file) if endpoint.seed_file is not None else {}
    return MemoryEndpoint(endpoint, stored, latency=latency)


def _open_redis(endpoint: Endpoint) -> RedisEndpoint:
    # Its parser comes with an extra, which endpoints in memory do not need.
    try:
        from .client import RedisClient  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            f"endpoint {endpoint.id!r} needs hiredis, which is not installed ({error}): install seedbed[redis]"
        ) from error
    return RedisClient(endpoint)
