"""Endpoints of kind redis: one pipelined connection each, or an in-memory server with the same answers.

`open_endpoints` opens all endpoints of the registries; ops use `Endpoints.get(id)` and the four reading methods.
"""

from .endpoints import (
    Endpoints,
    EndpointSource,
    OnceEndpoint,
    RedisEndpoint,
    RequestEndpoints,
    open_endpoints,
    read_seed,
)
from .pipeline import EndpointStatistics

__all__ = [
    "EndpointSource",
    "EndpointStatistics",
    "Endpoints",
    "OnceEndpoint",
    "RedisEndpoint",
    "RequestEndpoints",
    "open_endpoints",
    "read_seed",
]
