"""seedbed grows datasets: columns that depend on each other, each cell run as soon as its inputs are there.

The public names are in `__init__.pyi`, as type checkers read them. Each is imported when it is first asked for, so that
the command can say its usage, and be interrupted, without waiting for polars.
"""

from __future__ import annotations

import ast
import importlib
import sys
import types
from pathlib import Path
from typing import Any


def _read_places() -> dict[str, str]:
    """The module of each public name."""
    stub = ast.parse(Path(__file__).with_name("__init__.pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {each.name: f"{__name__}.{node.module}" for node in imports for each in node.names}


_PLACES = _read_places()
__all__ = list(_PLACES)


def __getattr__(name: str) -> Any:
    """Find a public name, or a room of the package, where it is first asked for."""
    if name in _PLACES:
        found = getattr(importlib.import_module(_PLACES[name]), name)
        globals()[name] = found
        return found
    room = f"{__name__}.{name}"
    if not name.startswith("_"):
        try:
            return importlib.import_module(room)
        except ModuleNotFoundError as error:
            if error.name != room:
                raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})


class _Package(types.ModuleType):
    """This package as a module in which `build` is the function, although a package has that name too."""

    def __setattr__(self, name: str, value: object) -> None:
        # Importing `seedbed.engine.api` for the first time would put the package `seedbed.build` here.
        if not (name in _PLACES and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
