"""What fills a column: the column itself, the implementation of each spec, and how a generator's function is called.

Imports errors, graph, models, recipe, runtime and store; engine, simulation and cli import it.
"""

from .bridge import Bridged, bridge
from .call import Call, bind_call
from .column import Column, SkipRule
from .context import CellContext, Usage

__all__ = ["Bridged", "Call", "CellContext", "Column", "SkipRule", "Usage", "bind_call", "bridge"]
