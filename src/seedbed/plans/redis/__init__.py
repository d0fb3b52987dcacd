"""Endpoints of kind redis: pipelined connections to its servers, or an in-memory server with the same answers.

`open_endpoints` opens all endpoints of the registries; ops call the methods of `RedisReads` on `Endpoints.get(id)`.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from ...errors import ConfigError, EndpointUnavailable
from ...runtime.tasks import open_hidden_nursery
from .memory import MemoryEndpoint, read_seed
from .reads import EndpointSource, EndpointStatistics, OnceEndpoint, RedisEndpoint, RedisReads

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from ..endpoint import Endpoint
    from ..registries import Registries

__all__ = [
    "EndpointSource",
    "EndpointStatistics",
    "Endpoints",
    "OnceEndpoint",
    "RedisEndpoint",
    "RedisReads",
    "check_endpoints",
    "open_endpoints",
]


@attrs.frozen
class Endpoints:
    """The endpoints of an engine, shared by its requests."""

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
    redis, others = _made(registries, seeds, memory_latency)
    async with open_hidden_nursery("the endpoints are closed") as nursery:
        for each in redis.values():
            nursery.start_soon(each.run)
        yield Endpoints(redis, others)


def check_endpoints(registries: Registries) -> None:
    """Raise the ConfigError that opening these endpoints would raise: for passwords, certificates, seed files."""
    _made(registries, None, 0.0)


def _made(
    registries: Registries, seeds: Mapping[str, Mapping[str, object]] | None, memory_latency: float
) -> tuple[dict[str, RedisEndpoint], dict[str, Endpoint]]:
    """The endpoints of kind redis, not connected yet, and all others."""
    redis: dict[str, RedisEndpoint] = {}
    others: dict[str, Endpoint] = {}
    for name, endpoint in registries.endpoints.items():
        if endpoint.kind != "redis":
            others[name] = endpoint
        elif endpoint.host == "memory":
            stored = {}
            if seeds is not None and name in seeds:
                stored = read_seed(seeds[name], f"the seed of endpoint {name!r}")
            elif endpoint.seed_file is not None:
                stored = read_seed(Path(endpoint.seed_file), f"the seed file {endpoint.seed_file!r}")
            redis[name] = MemoryEndpoint(endpoint, stored, latency=memory_latency)
        else:
            redis[name] = _open_redis(endpoint)
    return redis, others


def _open_redis(endpoint: Endpoint) -> RedisEndpoint:
    # Its parser comes with an extra, which endpoints in memory do not need.
    try:
        from .client import RedisClient  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            f"endpoint {endpoint.id!r} needs hiredis, which is not installed ({error}): install seedbed[redis]"
        ) from error
    return RedisClient(endpoint)
