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


def reference_to(value: Any) -> str:
    """The `module:name` of a function or class."""
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}:{named.__qualname__}"
