"""Load the implementations of columns and processors: the modules of this package, then plug-ins by entry points."""

from __future__ import annotations

import importlib
import pkgutil
import threading
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType

from ..errors import ConfigError

# A plug-in names a module, which registers its specs when it is imported, or a function, which does so when called.
GROUPS = ("seedbed.generators", "seedbed.processors")

_lock = threading.RLock()
# None until plug-ins were loaded; then what to say about those that could not be. Changed under the lock.
_broken: list[str] | None = None


def load_own() -> None:
    """Import the modules beside this one: each registers what it makes."""
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")


def load_plugins() -> None:
    """Load every plug-in, once. Raises one `ConfigError` that names all that cannot be loaded."""
    global _broken  # noqa: PLW0603  loading is once for the whole process, as imports are
    with _lock:
        if _broken is None:
            load_own()  # first, so that a plug-in cannot take the name of a type of ours
            _broken = [problem for entry in _entry_points() if (problem := _load(entry)) is not None]
        if _broken:
            raise ConfigError("; ".join(_broken))


def forget_plugins() -> None:
    """Look for plug-ins again on the next need, as after installing one in a notebook."""
    global _broken  # noqa: PLW0603
    with _lock:
        _broken = None


def _entry_points() -> list[EntryPoint]:
    """All plug-ins, each once: one that is on the path twice, or in both groups, is still one."""
    found = [entry for group in GROUPS for entry in entry_points(group=group)]
    return list({entry.value: entry for entry in found}.values())


def _load(entry: EntryPoint) -> str | None:
    """Load a plug-in; returns what is wrong with it."""
    try:
        plugin = entry.load()
        if isinstance(plugin, ModuleType):
            return None
        if not callable(plugin):
            return f"{_described(entry)} is neither a module nor a function but {plugin!r}"
        plugin()
    except Exception as error:  # noqa: BLE001  a plug-in is anybody's code
        return f"{_described(entry)} cannot be loaded: {type(error).__name__}: {error}; repair or uninstall it"
    return None


def _described(entry: EntryPoint) -> str:
    distribution = entry.dist
    of = f" of {distribution.name} {distribution.version}" if distribution is not None else ""
    return f"plug-in {entry.name!r}{of} ({entry.group}: {entry.value})"
