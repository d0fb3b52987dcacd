"""Which column requires which, and which cell is ready: pure, synchronous, no input or output.

Imports errors only; every package but embed and errors may import it.
"""

from .frontier import GROUP, Frontier
from .graph import Graph
from .node import ColumnLike, Kind, Node
from .validate import build_graph, check_columns, name_problem, nearest

__all__ = [
    "GROUP",
    "ColumnLike",
    "Frontier",
    "Graph",
    "Kind",
    "Node",
    "build_graph",
    "check_columns",
    "name_problem",
    "nearest",
]
