"""Which async functions of users are asyncio's, and what such a function gets as its context."""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from ..recipe.custom import RUNTIMES
from .call import UncallableError
from .context import CellContext

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from ..embed.crossing import Crossing

T = TypeVar("T")

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
_OTHERS = frozenset({"anyio", "sniffio", "trio"})


def for_runtime(function: Callable[..., Any], *, is_async: bool, runtime: str | None) -> Callable[..., Any]:
    """The function as the engine calls it: one of asyncio's in a task there, any other as it is.

    `runtime` is what the user said of it; where that is nothing, it is asyncio's only if there is no doubt.
    """
    if runtime not in (None, *RUNTIMES):
        raise UncallableError(f"has runtime={runtime!r}; allowed are {', '.join(map(repr, RUNTIMES))}")
    if runtime is not None and not is_async:
        raise UncallableError(f"has runtime={runtime!r}, which is for async functions, and its function is not one")
    if not is_async or (runtime or detect_runtime(function)) != "asyncio":
        return function
    from ..runtime.on_asyncio import on_asyncio  # noqa: PLC0415  asyncio takes long to import, and few need it

    return on_asyncio(function, adapt=_for_asyncio)


def detect_runtime(function: object) -> str:
    """Whose an async function is: `asyncio` where it can be nothing else, otherwise `trio`.

    It is asyncio's if in its own body it awaits, or enters with `async with` or `async for`, what it calls by name from
    a module that works under asyncio alone, and has no name in it of a library that works elsewhere.
    """
    function = inspect.unwrap(getattr(function, "__func__", function))  # type: ignore[arg-type]
    if not inspect.isfunction(function):
        return "trio"
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError, TypeError):
        return "trio"
    known = {**function.__globals__, **_enclosed(function)}
    (found, *_) = tree.body
    if not isinstance(found, ast.AsyncFunctionDef):
        return "trio"
    names = {node.id for node in ast.walk(found) if isinstance(node, ast.Name)}
    if any(_is_of(known.get(name), _OTHERS) for name in names):
        return "trio"
    local = {*function.__code__.co_varnames, *function.__code__.co_cellvars}
    awaited = (_called(expression) for statement in found.body for expression in _awaited(statement))
    return (
        "asyncio"
        if any(name not in local and _is_of(known.get(name), _ASYNCIO) for name in awaited if name is not None)
        else "trio"
    )


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


def _called(expression: ast.expr) -> str | None:
    """The name that a call begins with: `aiohttp` of `aiohttp.ClientSession()`, `sleep` of `sleep(1)`."""
    if not isinstance(expression, ast.Call):
        return None
    function = expression.func
    while isinstance(function, ast.Attribute):
        function = function.value
    return function.id if isinstance(function, ast.Name) else None


def _is_of(value: object, libraries: frozenset[str]) -> bool:
    """Whether a value is one of these modules, or a function or class of one."""
    if isinstance(value, ModuleType):
        module: object = value.__name__
    else:
        module = value.__module__ if inspect.isroutine(value) or inspect.isclass(value) else None
    return isinstance(module, str) and any(module == each or module.startswith(f"{each}.") for each in libraries)


class AsyncioContext:
    """The context of a function that runs on asyncio; what it does to the engine is done on trio's side."""

    def __init__(self, context: CellContext, crossing: Crossing) -> None:
        self._context = context
        self._crossing = crossing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def call(self, send: Callable[[], Awaitable[T]], *, key: str | None = None, tokens: int = 0) -> T:
        """`send` runs here, on asyncio; what leads to it and follows from it on trio."""
        sent = partial(self._crossing.run, send)
        return await self._crossing.call(partial(self._context.call, sent, key=key, tokens=tokens)).wait()

    def give_back(self) -> None:
        self._crossing.into_trio(self._context.give_back)


def _for_asyncio(value: Any, crossing: Crossing) -> Any:
    return AsyncioContext(value, crossing) if isinstance(value, CellContext) else value
