"""What stands for the code of a user's function, so that an edit of it is noticed."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
from types import CodeType
from typing import TYPE_CHECKING, Any

from .code import reference_to

if TYPE_CHECKING:
    from collections.abc import Iterator

# Byte code differs between versions of Python and with -O: digests with another tag cannot be compared.
_TAG = f"{sys.implementation.cache_tag}-{sys.flags.optimize}"
_HAS_DOCSTRING: int = getattr(inspect, "CO_HAS_DOCSTRING", 0)  # since Python 3.14; before, the first constant tells
# What kind of function it is; other flags say how it was compiled, such as imports from __future__.
_FLAGS = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
    | inspect.CO_ITERABLE_COROUTINE
)
# The file of methods that attrs wrote: nobody edits them, and its __hash__ has another constant in each process.
_GENERATED = "<attrs generated"
_SCALARS = (str, bytes, int, float, complex, bool, type(None))


def told_code(value: Any) -> dict[str, str]:
    """The name of a function, class or object, and a digest of its code where it is written in Python."""
    digest = code_digest(value)
    return {"name": reference_to(value), **({} if digest is None else {"digest": digest})}


def same_code(one: dict[str, str], other: dict[str, str]) -> bool:
    """Whether two of `told_code` are the same: by their digests if these can be compared, else by name."""
    digests = (one.get("digest", ""), other.get("digest", ""))
    tags = {digest.partition(":")[0] for digest in digests}
    if len(tags) == 1 and all(digests):
        return digests[0] == digests[1]
    return one.get("name") == other.get("name")


def code_digest(value: Any) -> str | None:
    """A text that is another one once the code of a function, class or object was edited; None if it has none.

    What it calls and what it captures is not looked at; nor are comments, docstrings and where it stands.
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
        # A decorator that says so with functools.wraps: both count.
        wrapped = getattr(value, "__wrapped__", None)
        if wrapped is not None and wrapped is not value:
            yield from _codes(wrapped)
    elif (function := getattr(value, "__func__", None)) is not None:
        yield from _codes(function)
    elif not inspect.isbuiltin(value) and not inspect.ismethoddescriptor(value):
        yield from _class_codes(type(value))


def _class_codes(cls: type) -> Iterator[Any]:
    """Its own functions and those of bases from the same package; what a library put there has the library's module."""
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
    """A constant as text that is the same in every process; what is no constant counts by its type."""
    if isinstance(value, CodeType):
        return _code(value)
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if isinstance(value, frozenset):
        return "frozenset", sorted(map(repr, map(_plain, value)))
    return (type(value).__name__, repr(value)) if isinstance(value, _SCALARS) else type(value).__name__
