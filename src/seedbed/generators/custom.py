"""Columns of a user's own functions: the decorator that makes one, and what the engine calls."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload

import attrs
import polars as pl

from ..errors import ConfigError
from ..models.model import Model
from ..recipe.code import find_name, is_generator_object
from ..recipe.custom import Custom
from ..runtime.async_functions import for_runtime
from .asyncio_context import for_asyncio
from .call import generator_function
from .column import Column
from .context import CellContext
from .registry import maker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ..models.base import ModelSpec
    from ..recipe.spec import ColumnSpec
    from .registry import Environment

P = ParamSpec("P")
R = TypeVar("R")


@overload
def column(function: Callable[P, R], /) -> Custom[P, R]: ...
@overload
def column(
    *,
    name: str | None = None,
    requires: Iterable[str] | None = None,
    outputs: Iterable[str] | None = None,
    side_effects: Iterable[str] = (),
    models: Mapping[str, str] | None = None,
    is_stateful: bool = False,
    timeout: float | None = None,
    retry_on: type[Exception] | Iterable[type[Exception]] = (),
    dtype: Any = None,
    key: str | None = None,
    tokens: int = 0,
    process: bool = False,
    runtime: Literal["asyncio", "trio"] | None = None,
    skip_when: str | None = None,
    skip_policy: str = "run",
) -> Callable[[Callable[P, R]], Custom[P, R]]: ...
def column(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a column of a function, which can still be called as it is.

    Of a function, sync or async, that fills a cell: parameters named like columns are its requirements, and a parameter
    of type `Model` gets the model whose alias is its name, or what `models` says. A function with a parameter of type
    `polars.DataFrame` fills a whole column from a frame of the columns in `requires`; one with a parameter of type
    `range` makes a column from scratch, from row numbers. A parameter of type `CellContext` gets the context. An async
    function runs under trio, or with `runtime="asyncio"` in a task of asyncio's.
    """
    if function is None:
        return functools.partial(column, **options)
    if isinstance(function, Custom):
        raise ConfigError(f"column {function.name!r} has @seedbed.column twice")
    if isinstance(function, type) or not callable(function):
        raise ConfigError(f"@seedbed.column must stand above a function, not above {function!r}")
    return _custom(function, **options)


def _custom(function: Callable[..., Any], *, name: str | None = None, **options: Any) -> Custom[..., Any]:
    name = name or str(getattr(function, "__name__", ""))
    given = dict(options.pop("models", None) or {})
    wanted = [parameter.name for parameter in _parameters(generator_function(function)[0]) if _is_a(parameter, Model)]
    unknown = [parameter for parameter in given if parameter not in wanted]
    if unknown:
        names = ", ".join(repr(each) for each in unknown)
        raise ConfigError(f"column {name!r}: models names {names}, which is no parameter of type Model")
    models = {parameter: given.get(parameter, parameter) for parameter in wanted}
    return Custom(name, function, models=models, **options)


@maker(Custom)
def make_custom(spec: Custom[..., Any], environment: Environment) -> Column:
    """The engine's column of a function; models are bound to the cell that uses them."""
    spec = _imported(spec, environment)
    function, is_async = generator_function(spec.function)
    for alias in spec.aliases():
        try:
            environment.model(alias)
        except ConfigError as error:
            raise ConfigError(f"column {spec.name!r}: {error}") from None
    kind, taken = _kind(function)
    requires = _requires(spec, function, taken)
    key = spec.key
    if key is None and spec.models:
        key = environment.model(spec.aliases()[0]).key("chat")
    generator: Any = spec.function
    if spec.models:
        if spec.process:
            raise ConfigError(f"column {spec.name!r} asks for a process, where its function cannot have a model")
        try:
            inner = for_runtime(function, is_async=is_async, runtime=spec.runtime, adapt=for_asyncio)
        except ConfigError as error:
            raise ConfigError(f"column {spec.name!r} {error}") from None
        generator = _with_models(spec, inner, is_async, taken, environment)
    elif spec.process:
        generator = _for_process(spec, function)
    return Column(
        spec.name,
        generator,
        kind=kind,
        requires=requires,
        key=key,
        tokens=spec.tokens,
        outputs=spec.outputs,
        side_effects=spec.side_effects or (),
        dtype=spec.dtype,
        timeout=spec.timeout,
        # A stateful object says so itself.
        is_stateful=spec.is_stateful or bool(getattr(spec.function, "is_stateful", False)),
        process=spec.process,
        # With models the generator is ours, which is trio's, and its function is in it.
        runtime=None if spec.models else spec.runtime,
        retry_on=_exceptions(spec, environment),
    )


def used_models(specs: Iterable[ColumnSpec], environment: Environment) -> dict[str, ModelSpec]:
    """The models that columns call, by alias: what must be open while they run.

    A spec knows its aliases itself, but for a function that it only names: that one is asked.
    """
    asked = (_imported(spec, environment) if isinstance(spec, Custom) else spec for spec in specs)
    return {alias: environment.model(alias) for spec in asked for alias in spec.aliases()}


def _imported(spec: Custom[..., Any], environment: Environment) -> Custom[..., Any]:
    """The spec with its function, if it only names it; what the file says goes before what its decorator said."""
    if not isinstance(spec.function, str):
        return spec
    if not environment.allow_code:
        raise ConfigError(
            f"column {spec.name!r} runs code of its own ({spec.function!r}), which is allowed only with --allow-code"
        )
    found = environment.import_object(spec.function, f"column {spec.name!r}, function")
    said = {
        field.name: getattr(spec, field.name)
        for field in attrs.fields(Custom)
        if field.name not in ("function", "models") and getattr(spec, field.name) != field.default
    }
    if isinstance(found, Custom):
        said["models"] = {**found.models, **spec.models}
        return attrs.evolve(found, **said)
    if isinstance(found, type) or not (callable(found) or is_generator_object(found)):
        hint = "; name an object of it, or hand in the recipe itself, in Python" if isinstance(found, type) else ""
        raise ConfigError(f"column {spec.name!r}: {spec.function!r} is no function but {found!r}{hint}")
    return _custom(found, models=spec.models, **said)


def _exceptions(spec: Custom[..., Any], environment: Environment) -> tuple[type[Exception], ...]:
    where = f"column {spec.name!r}, retry_on"
    found: list[type[Exception]] = []
    for each in spec.retry_on:
        exception = environment.import_object(each, where) if isinstance(each, str) else each
        if not (isinstance(exception, type) and issubclass(exception, Exception)):
            raise ConfigError(f"{where}: {each!r} is no exception class")
        found.append(exception)
    return tuple(found)


def _kind(function: Callable[..., Any]) -> tuple[str, str | None]:
    """What a function fills, and the parameter that takes the frame or the rows."""
    for parameter in _parameters(function):
        if _is_a(parameter, pl.DataFrame):
            return "full_column", parameter.name
        if _is_a(parameter, range):
            return "from_scratch", parameter.name
    return "cell", None


def _requires(spec: Custom[..., Any], function: Callable[..., Any], taken: str | None) -> tuple[str, ...]:
    parameters = _parameters(function)
    fixed = [each for each in parameters if each.kind is each.POSITIONAL_ONLY]
    if fixed:
        raise ConfigError(
            f"column {spec.name!r}: parameter {fixed[0].name!r} is positional-only and has no name to go by"
        )
    others = [
        each.name
        for each in parameters
        if each.default is each.empty
        and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        and each.name != taken
        and each.name not in spec.models
        and not _is_a(each, CellContext)
    ]
    if taken is None:
        return tuple(others) if spec.requires is None else spec.requires
    if others:
        names = ", ".join(repr(name) for name in others)
        raise ConfigError(
            f"column {spec.name!r} is called with {taken!r} alone, but its function wants {names} as well"
        )
    if spec.requires is None and _kind(function)[0] == "full_column":
        raise ConfigError(f"column {spec.name!r}: say which columns its frame holds, with requires=[…]")
    return spec.requires or ()


def _with_models(
    spec: Custom[..., Any], function: Callable[..., Any], is_async: bool, taken: str | None, environment: Environment
) -> Callable[..., Any]:
    """The function with its models in it, made anew for each call because they are bound to the cell."""
    context_name = next((each.name for each in _parameters(function) if _is_a(each, CellContext)), None)

    def bind(context: CellContext) -> dict[str, Any]:
        bound: dict[str, Any] = {
            parameter: Model(alias, environment.model(alias), environment.client(alias), context, seed=environment.seed)
            for parameter, alias in spec.models.items()
        }
        return bound if context_name is None else {**bound, context_name: context}

    if taken is not None:
        return _whole(function, is_async, taken, bind)
    if is_async:

        async def fill_async(context: CellContext, **values: Any) -> Any:
            return await function(**values, **bind(context))

        return fill_async

    def fill(context: CellContext, **values: Any) -> Any:
        return function(**values, **bind(context))

    return fill


def _whole(
    function: Callable[..., Any], is_async: bool, taken: str, bind: Callable[[CellContext], dict[str, Any]]
) -> Callable[..., Any]:
    if is_async:

        async def fill_async(given: Any, context: CellContext) -> Any:
            return await function(**{taken: given}, **bind(context))

        return fill_async

    def fill(given: Any, context: CellContext) -> Any:
        return function(**{taken: given}, **bind(context))

    return fill


@attrs.frozen(kw_only=True)
class ByName:
    """A function that is sent to a process by its name: under that name its module has the column made of it."""

    module: str
    name: str

    def __call__(self, **values: Any) -> Any:
        return find_name(importlib.import_module(self.module), self.name)(**values)


def _for_process(spec: Custom[..., Any], function: Callable[..., Any]) -> Any:
    module, name = function.__module__, function.__qualname__
    if "<" in name:
        raise ConfigError(f"column {spec.name!r} asks for a process: its function must stand at the top of a module")
    found = find_name(sys.modules.get(module), name)
    return ByName(module=module, name=name) if isinstance(found, Custom) else function


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    for evaluate in (True, False):
        try:
            return list(inspect.signature(function, eval_str=evaluate).parameters.values())
        except Exception:  # noqa: BLE001  annotations can raise anything; their text is enough then
            continue
    return []


def _is_a(parameter: inspect.Parameter, kind: type) -> bool:
    """Whether a parameter is annotated with a class; annotations that could not be evaluated are read as text."""
    annotation = parameter.annotation
    if isinstance(annotation, str):
        return annotation.rpartition(".")[2].strip("'\" ") == kind.__name__
    return annotation is kind
