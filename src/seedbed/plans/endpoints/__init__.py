"""The servers that ops ask: Redis over one pipelined connection each, or an embedded stand-in with the same answers.

`open_endpoints` gives an engine all that its registries name; ops see `Endpoints.get(id)` and the four reading methods.
"""

from .endpoints import Endpoints, RedisEndpoint, open_endpoints
from .memory import read_seed
from .statistics import EndpointStatistics

__all__ = ["EndpointStatistics", "Endpoints", "RedisEndpoint", "open_endpoints", "read_seed"]
