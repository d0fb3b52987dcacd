"""User-defined code: imports of `module:name`, and digests by which resume detects edits."""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import os
import pickle
import sys
import threading
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from importlib.machinery import PathFinder
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

import attrs

from ..errors import ConfigError
from ..graph import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


# Guards the state below, and is held while modules are imported from a folder: `sys.modules` is one for all threads.
_lock = threading.RLock()
_folder: ContextVar[str | None] = ContextVar("folder that imports look in first", default=None)
# The folder whose modules are in `sys.modules` now, and for each folder the top-level names that were found in it.
_current: str | None = None
_names: dict[str, set[str]] = {}
# The modules of the other folders, by their names.
_shelf: dict[str, dict[str, ModuleType]] = {}


class _FolderFinder:
    """Finds modules as if `_folder` came first in `sys.path`; finds nothing if it is not set."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        folder = _folder.get()
        if folder is None or path is not None:  # a module of a package is found on that package's own path
            return None
        # All of the path, because a folder without `__init__.py` must not hide an installed package of its name.
        spec = PathFinder.find_spec(name, [folder, *sys.path], target)
        if spec is not None and _is_in(spec, folder) and folder not in map(os.path.realpath, sys.path):
            _names.setdefault(folder, set()).add(name)
        return spec


def _is_in(spec: ModuleSpec, folder: str) -> bool:
    places = [spec.origin] if spec.has_location and spec.origin else list(spec.submodule_search_locations or ())
    return any(Path(place).is_relative_to(folder) for place in places)


@contextmanager
def imports_from(folder: Path) -> Iterator[None]:
    """Let imports of this block look in a folder first; imports of other threads and tasks are not affected.

    Folders may have modules of the same name. `sys.modules` holds those of one folder at a time, the last one imported
    from; the modules of the others are put back when their folder is imported from again.

    The finder stays in `sys.meta_path`: an import in another thread that reads the list would miss a finder if one
    before it was removed.
    """
    found = str(folder.resolve())
    with _lock:
        finders: list[Any] = sys.meta_path
        if _FolderFinder not in finders:
            # Built-in and frozen modules go before files, as they do for `sys.path`.
            finders.insert(finders.index(PathFinder) if PathFinder in finders else 0, _FolderFinder)
        before = _folder.set(found)
        _switch(found)
        try:
            yield
        finally:
            _folder.reset(before)
            if (outer := _folder.get()) is not None:  # a module that is imported imports from another folder
                _switch(outer)


def _switch(folder: str) -> None:
    """Replace the modules of the current folder in `sys.modules` by those of another one."""
    global _current  # noqa: PLW0603  as `sys.modules` is
    if folder == _current:
        return
    if _current is not None:
        mine = _names.get(_current, set())
        names = [name for name in list(sys.modules) if name.partition(".")[0] in mine]
        _shelf[_current] = {name: sys.modules.pop(name) for name in names}
    sys.modules.update(_shelf.pop(folder, {}))
    _current = folder


def _check_conflict(module_name: str, folder: str, where: str) -> None:
    """Reject a module beside the recipe whose name the program has already imported from elsewhere."""
    top = module_name.partition(".")[0]
    loaded = getattr(sys.modules.get(top), "__spec__", None)
    beside = PathFinder.find_spec(top, [folder])
    if loaded is None or beside is None or beside.origin is None or _is_in(loaded, folder):
        return
    raise ConfigError(
        f"{where}: the module {top!r} beside the recipe ({beside.origin}) has the name of a module that is already "
        f"imported ({loaded.origin}); rename the one beside the recipe"
    )


@attrs.frozen(kw_only=True)
class ForProcess:
    """A function that another process can unpickle.

    The process imports a module beside a recipe from its `folder`. Where the module has another object under the
    function's name, such as the column that wraps it, that object is sent, by its name.
    """

    function: Callable[..., Any]
    folder: Path | None
    by_name: bool

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The function, whose parameters are those of this object."""
        return self.function

    def __call__(self, *args: Any, **values: Any) -> Any:
        return self.function(*args, **values)

    def __reduce__(self) -> tuple[Any, ...]:
        with nullcontext() if self.folder is None else imports_from(self.folder):
            data = None if self.by_name else pickle.dumps(self.function)
        return receive, (self.folder, self.function.__module__, self.function.__qualname__, data)


def receive(folder: Path | None, module: str, name: str, data: bytes | None) -> Any:
    """The object that a pickle names, or whose own pickle it holds in `data`."""
    with nullcontext() if folder is None else imports_from(folder):
        return find_name(importlib.import_module(module), name) if data is None else pickle.loads(data)


def for_process(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function in a form that another process can unpickle: itself if it is defined in an installed module."""
    module = function.__module__
    with _lock:
        beside = _current is not None and module.partition(".")[0] in _names.get(_current, ())
        folder = Path(_current) if _current is not None and beside else None
    found = find_name(sys.modules.get(module), function.__qualname__)
    by_name = found is not None and not inspect.isroutine(found)
    if folder is None and not by_name:
        return function
    return ForProcess(function=function, folder=folder, by_name=by_name)


def import_object(reference: str, *, base: Path, where: str) -> Any:
    """Import `module:name`; modules beside the recipe, in `base`, are found too. Raises `ConfigError`."""
    module_name, colon, name = reference.partition(":")
    if not (module_name and colon and name):
        raise ConfigError(f"{where}: {reference!r} must be 'module:name'")
    with imports_from(base):
        _check_conflict(module_name, str(base.resolve()), where)
        try:
            found: Any = importlib.import_module(module_name)
        except Exception as error:
            raise ConfigError(
                f"{where}: {module_name!r} cannot be imported: {type(error).__name__}: {error}"
            ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            public = [other for other in vars(found) if not other.startswith("_")]
            raise ConfigError(f"{where}: {module_name!r} has no {name!r}{nearest(part, public)}")
        found = getattr(found, part)
    return found


def find_name(module: Any, name: str) -> Any:
    """The object of a qualified name in a module; None if it is missing."""
    for part in name.split("."):
        module = getattr(module, part, None)
    return module


def reference_to(value: Any) -> str:
    """The `module:name` of a function or class; of any other object its name in the module of its class, or that class.

    An object that is only in a local variable has no name.
    """
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}:{value.__qualname__}"
    kind = type(value)
    beside = vars(sys.modules[kind.__module__]) if kind.__module__ in sys.modules else {}
    return f"{kind.__module__}:{next((name for name, each in beside.items() if each is value), kind.__qualname__)}"


def is_generator_object(value: object) -> bool:
    """True if it has `generate` or `agenerate`: then it fills a column and need not be callable."""
    return any(callable(getattr(value, name, None)) for name in ("generate", "agenerate"))


def import_extra(module: str, *, extra: str, column: str) -> ModuleType:
    """Import a library that an extra of seedbed brings, or raise a `ConfigError` that names the extra."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        raise ConfigError(
            f"column {column!r} needs {library}, which is not installed ({error}): install seedbed[{extra}]"
        ) from error


# Byte code differs between versions of Python and with -O: digests with another tag cannot be compared.
_TAG = f"{sys.implementation.cache_tag}-{sys.flags.optimize}"
_HAS_DOCSTRING: int = getattr(inspect, "CO_HAS_DOCSTRING", 0)  # since Python 3.14; before, the first constant is it
# The kind of function; other flags depend on how it was compiled, such as imports from __future__.
_FLAGS = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
    | inspect.CO_ITERABLE_COROUTINE
)
# The file of methods that attrs generates: they are never edited, and __hash__ differs in each process.
_GENERATED = "<attrs generated"
_SCALARS = (str, bytes, int, float, complex, bool, type(None))


def describe_code(value: Any) -> dict[str, str]:
    """The name of a function, class or object, and a digest of its code where it is written in Python."""
    digest = code_digest(value)
    return {"name": reference_to(value), **({} if digest is None else {"digest": digest})}


def same_code(one: dict[str, str], other: dict[str, str]) -> bool:
    """Compare two results of `describe_code`: by their digests if these are comparable, else by name."""
    digest, other_digest = one.get("digest", ""), other.get("digest", "")
    if digest and other_digest and digest.partition(":")[0] == other_digest.partition(":")[0]:
        return digest == other_digest
    return one.get("name") == other.get("name")


def code_digest(value: Any) -> str | None:
    """A text that changes when the code of a function, class or object is edited; None if it has none.

    Code that it calls or captures is not included; nor are comments, docstrings and its position.
    """
    found = list(_codes(value))
    if not found:
        return None
    return f"{_TAG}:{hashlib.blake2b(repr(found).encode('utf-8', 'surrogatepass'), digest_size=10).hexdigest()}"


def _codes(value: Any) -> Iterator[Any]:
    if isinstance(value, functools.partial):
        yield from _codes(value.func)
        yield _plain(value.args), sorted((name, _plain(each)) for name, each in value.keywords.items())
    elif isinstance(value, property):
        for accessor in (value.fget, value.fset):
            yield from () if accessor is None else _codes(accessor)
    elif isinstance(value, type):
        yield from _class_codes(value)
    elif isinstance(code := getattr(value, "__code__", None), CodeType):
        named = (getattr(value, "__kwdefaults__", None) or {}).items()
        yield _code(code), _plain(getattr(value, "__defaults__", None)), sorted(map(repr, map(_plain, named)))
        # Of a decorated function (functools.wraps) both count.
        wrapped = getattr(value, "__wrapped__", None)
        if wrapped is not None and wrapped is not value:
            yield from _codes(wrapped)
    elif (function := getattr(value, "__func__", None)) is not None:
        yield from _codes(function)
    elif not inspect.isbuiltin(value) and not inspect.ismethoddescriptor(value):
        yield from _class_codes(type(value))


def _class_codes(cls: type) -> Iterator[Any]:
    """Its own functions and those of bases from the same package; methods that a library adds have its module."""
    package = cls.__module__.partition(".")[0]
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] != package or base is object:
            continue
        for name, member in sorted(vars(base).items()):
            function = getattr(member, "__func__", member)  # of static and class methods
            code = getattr(function, "__code__", None)
            is_written = isinstance(code, CodeType) and not code.co_filename.startswith(_GENERATED)
            if isinstance(member, property) or (is_written and function.__module__ == base.__module__):
                yield name, list(_codes(function))


def _code(code: CodeType) -> tuple[Any, ...]:
    constants = list(code.co_consts)
    if _HAS_DOCSTRING:
        documented = bool(code.co_flags & _HAS_DOCSTRING)
    else:
        documented = not code.co_name.startswith("<") and bool(constants) and isinstance(constants[0], str)
    if documented:
        constants[0] = None
    shape = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _FLAGS)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return (shape, names, code.co_code, code.co_exceptiontable, [_plain(each) for each in constants])


def _plain(value: Any) -> Any:
    """A constant as text that is the same in every process; anything else is represented by its type."""
    if isinstance(value, CodeType):
        return _code(value)
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if isinstance(value, frozenset):
        return "frozenset", sorted(map(repr, map(_plain, value)))
    return (type(value).__name__, repr(value)) if isinstance(value, _SCALARS) else type(value).__name__
