"""Code that a recipe names as `module:name`."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..graph import nearest

if TYPE_CHECKING:
    from pathlib import Path


def import_object(reference: str, *, base: Path, where: str) -> Any:
    """What `module:name` is; modules beside the recipe, in `base`, are found too. Raises `ConfigError`."""
    module_name, colon, name = reference.partition(":")
    if not (module_name and colon and name):
        raise ConfigError(f"{where}: {reference!r} must be 'module:name'")
    beside = str(base.resolve())
    sys.path.insert(0, beside)
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError(f"{where}: {module_name!r} cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(beside)
    for part in name.split("."):
        if not hasattr(found, part):
            public = [other for other in vars(found) if not other.startswith("_")]
            raise ConfigError(f"{where}: {module_name!r} has no {name!r}{nearest(part, public)}")
        found = getattr(found, part)
    return found


def find_name(module: Any, name: str) -> Any:
    """What stands under a qualified name in a module; None if nothing does."""
    for part in name.split("."):
        module = getattr(module, part, None)
    return module


def reference_to(value: Any) -> str:
    """The `module:name` of a function or class; of any other object its name in the module of its class, or that class.

    What is found by the name of a class is no such object: one that only a local variable holds has no name.
    """
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}:{value.__qualname__}"
    kind = type(value)
    beside = vars(sys.modules[kind.__module__]) if kind.__module__ in sys.modules else {}
    return f"{kind.__module__}:{next((name for name, each in beside.items() if each is value), kind.__qualname__)}"


def is_generator_object(value: object) -> bool:
    """Whether it has `generate` or `agenerate`; then it fills a column and need not be callable itself."""
    return any(callable(getattr(value, name, None)) for name in ("generate", "agenerate"))
