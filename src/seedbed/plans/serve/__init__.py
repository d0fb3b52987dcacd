"""A server of plans: an ASGI application, and the processes that run it behind one port (`seedbed plan serve`)."""

from .asgi import PlanApp, app
from .catalog import rollback
from .service import PlanService, ServeConfig

__all__ = ["PlanApp", "PlanService", "ServeConfig", "app", "rollback"]
