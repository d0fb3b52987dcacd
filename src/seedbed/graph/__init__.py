"""Which column requires which, and which cell is ready: pure, synchronous, no input or output.

Imports errors only; every package but errors may import it.
"""

from .frontier import GROUP, Frontier
from .graph import (
    Graph,
    Kind,
    Node,
    build_graph,
    check_columns,
    closest,
    find_cycles,
    name_problem,
    nearest,
    topological_order,
)

__all__ = [
    "GROUP",
    "Frontier",
    "Graph",
    "Kind",
    "Node",
    "build_graph",
    "check_columns",
    "closest",
    "find_cycles",
    "name_problem",
    "nearest",
    "topological_order",
]
