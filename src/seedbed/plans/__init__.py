"""Plans, executed for one request under a deadline: format, registries, row sets, ops, compile, execute, endpoints.

An engine of its own beside that of builds: imports embed, errors, graph and runtime, never engine; cli imports it.
"""

from .builder import EP, Expr, Key, P, Pred, plan
from .engine import PlanEngine
from .format import parse_plan
from .model import Plan, Registries
from .opspec import OpSpec, op, register_op
from .registries import default_registries, load_registries
from .request import Request, parse_request
from .response import Response

__all__ = [
    "EP",
    "Expr",
    "Key",
    "OpSpec",
    "P",
    "Plan",
    "PlanEngine",
    "Pred",
    "Registries",
    "Request",
    "Response",
    "default_registries",
    "load_registries",
    "op",
    "parse_plan",
    "parse_request",
    "plan",
    "register_op",
]
