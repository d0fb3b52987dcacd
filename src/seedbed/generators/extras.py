"""Libraries that only some recipes need: imported when a column asks for them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ..errors import ConfigError

if TYPE_CHECKING:
    from types import ModuleType


def import_extra(module: str, *, extra: str, column: str) -> ModuleType:
    """Import a library that an extra of seedbed brings, or raise a `ConfigError` that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        raise ConfigError(
            f"column {column!r} needs {library}, which is not installed ({error}): install seedbed[{extra}]"
        ) from error
