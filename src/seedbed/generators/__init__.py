"""What fills a column: the column itself, how its generator is called, and the bridge between sync and async.

May import graph, runtime, observe and errors; build imports it.
"""

from .bridge import Bridged, bridge
from .call import Call, bind_call
from .column import Column, SkipRule
from .context import CellContext, Usage

__all__ = ["Bridged", "Call", "CellContext", "Column", "SkipRule", "Usage", "bind_call", "bridge"]
