"""The kinds of columns, one file each with its spec (what a user writes) and its implementation.

Imports errors, graph, runtime, models and store; recipe, engine, simulation and cli import it.
"""

from .base import Call, CellContext, Column, Model, SyncModel, bind_call
from .custom import Bridged, bridge
from .templates import SkipRule

__all__ = ["Bridged", "Call", "CellContext", "Column", "Model", "SkipRule", "SyncModel", "bind_call", "bridge"]
