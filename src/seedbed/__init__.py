"""seedbed builds synthetic datasets: columns that depend on each other, each cell run as soon as its inputs are done.

The public names are in `__init__.pyi`, as type checkers read them. Each is imported when it is first used, so that the
command can print its usage, and be interrupted, without waiting for polars.
"""

from __future__ import annotations

import ast
import importlib
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
    """Import a public name, or a subpackage, when it is first used."""
    if name in _PLACES:
        found = getattr(importlib.import_module(_PLACES[name]), name)
        globals()[name] = found
        return found
    module = f"{__name__}.{name}"
    if not name.startswith("_"):
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
