"""The command `seedbed`: `main` dispatches to the commands in run, recipes, simulate, inspect, models and plan.

It may import every package; no package imports it.
"""

from .main import main

__all__ = ["main"]
