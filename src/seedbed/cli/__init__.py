"""The command `seedbed`: one file a command, what they share in options, recipes, output and exit_codes.

Imports whatever it needs; nothing imports it.
"""

from .main import main

__all__ = ["main"]
