"""Plans, executed for one request under a deadline: format, registries, row sets, ops, compile, execute, endpoints.

Separate from builds: imports `errors`, `checks`, `graph` and `runtime`, never `engine`; `cli` imports it.
"""

from .builder import EP, Expr, Key, P, Pred, plan
from .engine import PlanEngine
from .format import Plan, parse_plan
from .ops import register_op
from .opspec import OpSpec, op
from .registries import Registries, default_registries, load_registries
from .request import Request, Response, parse_request

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
