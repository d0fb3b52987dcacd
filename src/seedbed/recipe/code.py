"""Code that a recipe names as `module:name`."""

from __future__ import annotations

import importlib
import sys
import threading
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..graph import nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from pathlib import Path
    from types import ModuleType


_finder_lock = threading.Lock()
_folder: ContextVar[str | None] = ContextVar("folder that imports look in first", default=None)


class _FolderFinder:
    """Finds modules as if `_folder` came first in `sys.path`; where that is not set it finds nothing."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        folder = _folder.get()
        if folder is None or path is not None:  # a module of a package is found on that package's own path
            return None
        # All of the path, because a folder without `__init__.py` must not hide an installed package of its name.
        return PathFinder.find_spec(name, [folder, *sys.path], target)


@contextmanager
def imports_from(folder: Path) -> Iterator[None]:
    """Let imports of this block look in a folder first; other threads and tasks import as ever.

    The finder stays in `sys.meta_path`: an import in another thread that reads the list would miss a finder if one
    before it was removed.
    """
    with _finder_lock:
        if _FolderFinder not in sys.meta_path:
            # Built-in and frozen modules go before files, as they do for `sys.path`.
            finders: list[object] = list(sys.meta_path)
            sys.meta_path.insert(finders.index(PathFinder) if PathFinder in finders else 0, _FolderFinder)
    before = _folder.set(str(folder.resolve()))
    try:
        yield
    finally:
        _folder.reset(before)


def import_object(reference: str, *, base: Path, where: str) -> Any:
    """What `module:name` is; modules beside the recipe, in `base`, are found too. Raises `ConfigError`."""
    module_name, colon, name = reference.partition(":")
    if not (module_name and colon and name):
        raise ConfigError(f"{where}: {reference!r} must be 'module:name'")
    try:
        with imports_from(base):
            found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError(f"{where}: {module_name!r} cannot be imported: {type(error).__name__}: {error}") from error
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
