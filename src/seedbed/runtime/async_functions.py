"""Decide whether a user's coroutine function targets trio or asyncio, and adapt it."""

from __future__ import annotations

import ast
import inspect
import textwrap
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ..embed.crossing import Crossing

RUNTIMES = ("asyncio", "trio")
# The attribute of what `on_asyncio` returns.
MADE_FOR_TRIO = "_seedbed_made_for_trio"

# What can be awaited in no other way than under asyncio.
_ASYNCIO = frozenset(
    {
        "aiofiles",
        "aiohttp",
        "aiomysql",
        "aiopg",
        "aiosqlite",
        "asyncio",
        "asyncpg",
        "motor",
        "redis.asyncio",
        "uvloop",
    }
)
# Who uses these knows of other loops than asyncio's.
_OTHERS = frozenset({"anyio", "sniffio", "trio", "trio_asyncio"})


def for_runtime(
    function: Callable[..., Any],
    *,
    is_async: bool,
    runtime: str | None,
    adapt: Callable[[Any, Crossing], Any] | None = None,
) -> Callable[..., Any]:
    """The function as the engine calls it: one of asyncio's in a task there, any other as it is.

    `runtime` is what the user said of it; where that is nothing, it is asyncio's only if there is no doubt. `adapt` is
    as for `on_asyncio`. The message of the `ConfigError` for what cannot be is the rest of a sentence about its owner.
    """
    if runtime not in (None, *RUNTIMES):
        raise ConfigError(f"has runtime={runtime!r}; allowed are {', '.join(map(repr, RUNTIMES))}")
    if runtime is not None and not is_async:
        raise ConfigError(f"has runtime={runtime!r}, which is for async functions, and its function is not one")
    if not is_async or hasattr(function, MADE_FOR_TRIO) or (runtime or detect_runtime(function)) != "asyncio":
        return function
    from .on_asyncio import on_asyncio  # noqa: PLC0415  asyncio takes long to import, and few need it

    return on_asyncio(function, adapt)


def detect_runtime(function: object) -> str:
    """Whose an async function is: `asyncio` where it can be nothing else, otherwise `trio`.

    It is asyncio's if in its own body it awaits, or enters with `async with` or `async for`, what it calls by name from
    a module that works under asyncio alone, and has no name in it of a library that works elsewhere.
    """
    function = inspect.unwrap(getattr(function, "__func__", function))  # type: ignore[arg-type]
    if not inspect.isfunction(function):
        return "trio"
    known = {**function.__globals__, **_enclosed(function)}
    code = function.__code__
    # Nearly every function is nobody's, and its names say so without a look at its source.
    if not any(_is_of(known.get(name), _ASYNCIO) for name in _names(code)):
        return "trio"
    try:
        found = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, SyntaxError, TypeError):
        return "trio"
    if not isinstance(found, ast.AsyncFunctionDef):
        return "trio"
    if any(_is_of(known.get(node.id), _OTHERS) for node in ast.walk(found) if isinstance(node, ast.Name)):
        return "trio"
    local = {*code.co_varnames, *code.co_cellvars}
    outside = {name: value for name, value in known.items() if name not in local}
    return "asyncio" if any(_is_asyncio(each, outside) for line in found.body for each in _awaited(line)) else "trio"


def _names(code: CodeType) -> Iterator[str]:
    """What a function may look up outside of it, with what is nested in it, as comprehensions are."""
    yield from code.co_names
    yield from code.co_freevars
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _enclosed(function: Any) -> dict[str, Any]:
    """What the function finds around it."""
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found


def _awaited(node: ast.AST) -> Iterator[ast.expr]:
    """Every expression that is awaited in the function itself, and not in a function inside of it."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
        return
    if isinstance(node, ast.Await):
        yield node.value
    elif isinstance(node, ast.AsyncWith):
        yield from (item.context_expr for item in node.items)
    elif isinstance(node, ast.AsyncFor):
        yield node.iter
    for child in ast.iter_child_nodes(node):
        yield from _awaited(child)


def _is_asyncio(expression: ast.expr, known: Mapping[str, Any]) -> bool:
    """Whether it calls something of asyncio's by name: `aiohttp.ClientSession()`, `asyncio.Event().wait()`."""
    if not isinstance(expression, ast.Call):
        return False
    while not isinstance(expression, ast.Name):
        if isinstance(expression, ast.Call):
            expression = expression.func
        elif isinstance(expression, ast.Attribute):
            expression = expression.value
        else:
            return False
    return _is_of(known.get(expression.id), _ASYNCIO)


def _is_of(value: object, libraries: frozenset[str]) -> bool:
    """Whether a value is one of these modules, or a function or class of one."""
    if isinstance(value, ModuleType):
        module: object = value.__name__
    else:
        module = value.__module__ if inspect.isroutine(value) or inspect.isclass(value) else None
    return isinstance(module, str) and any(module == each or module.startswith(f"{each}.") for each in libraries)


def looks_like_asyncio(error: Exception) -> bool:
    """Whether an error is what code that is written for asyncio gets from being run by trio."""
    text = str(error)
    if isinstance(error, TypeError):
        return text.startswith("trio.run received unrecognized yield message")
    return isinstance(error, RuntimeError) and (
        text == "no running event loop" or text.endswith("should be used inside a task")
    )
