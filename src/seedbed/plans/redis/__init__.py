"""Endpoints of kind redis: one pipelined connection each, or an in-memory server with the same answers.

`open_endpoints` opens all endpoints of the registries; ops call the methods of `RedisReads` on `Endpoints.get(id)`.
"""

from .endpoints import Endpoints, open_endpoints
from .memory import read_seed
from .reads import EndpointSource, EndpointStatistics, OnceEndpoint, RedisEndpoint, RedisReads

__all__ = [
    "EndpointSource",
    "EndpointStatistics",
    "Endpoints",
    "OnceEndpoint",
    "RedisEndpoint",
    "RedisReads",
    "open_endpoints",
    "read_seed",
]
