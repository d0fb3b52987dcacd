"""Columns that are filled by user-defined functions."""

from __future__ import annotations

import builtins
import functools
import sys
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, ParamSpec, SupportsIndex, TypeVar, overload

import attrs
import polars as pl

from .. import checks
from ..errors import ConfigError
from ..graph import Kind, nearest
from ..models.base import NOT_IN_FINGERPRINT
from ..runtime.asyncio import RUNTIMES, for_runtime
from ..runtime.threads import run_abandonable, run_sync
from .base import (
    CellContext,
    Column,
    Model,
    UncallableError,
    bind_call,
    for_asyncio,
    generator_function,
    has_type,
    read_parameters,
)
from .code import find_name, for_process, is_generator_object, receive
from .spec import ColumnSpec, Environment

if TYPE_CHECKING:
    import inspect
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from ..models.base import ModelSpec


P = ParamSpec("P")
R = TypeVar("R")
ExceptionClass = type[Exception]


def _retry_on(value: Any) -> tuple[ExceptionClass | str, ...]:
    """Exception classes; those built in may be named, others are `module:name`, which is imported later."""
    given = (value,) if isinstance(value, type | str) else tuple(value)
    found = tuple(_EXCEPTIONS.get(each, each) if isinstance(each, str) else each for each in given)
    for each in found:
        if not _is_exception(each) and not (isinstance(each, str) and ":" in each):
            hint = nearest(each, _EXCEPTIONS) if isinstance(each, str) else ""
            raise ConfigError(f"retry_on must hold exception classes, or their names, not {each!r}{hint}")
    return found


def _is_exception(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


_names = checks.optional(checks.names)
_EXCEPTIONS = {name: each for name, each in vars(builtins).items() if _is_exception(each)}


@attrs.frozen(kw_only=True)
class Custom(ColumnSpec, Generic[P, R]):
    """A column that a user-defined function fills; `@seedbed.column` returns one, which can be called as the function.

    In a recipe file it needs `--allow-code`.
    """

    type: ClassVar[str] = "custom"

    function: Callable[P, R] | str = attrs.field(kw_only=False)
    """The function, or an object with `generate` or `agenerate`; in a recipe file its `module:name`."""
    requires: tuple[str, ...] | None = attrs.field(default=None, converter=checks.as_names, validator=_names)
    """The columns that it needs; by default its parameters."""
    outputs: tuple[str, ...] | None = attrs.field(default=None, converter=checks.as_names, validator=_names)
    """The names of its columns if it has several; it then returns a mapping by name."""
    side_effects: tuple[str, ...] | None = attrs.field(default=(), converter=checks.as_names, validator=_names)
    """Names of further columns in what it returns, which may be missing there."""
    models: Mapping[str, str] = attrs.field(factory=dict, converter=dict)
    """The alias of the model for each parameter of type `Model`; by default the name of the parameter."""
    is_stateful: bool = False
    """Call it for one row at a time, in row order, over all row groups."""
    retry_on: tuple[ExceptionClass | str, ...] = attrs.field(
        default=(), converter=_retry_on, metadata=NOT_IN_FINGERPRINT
    )
    """Exceptions of its own that are retried."""
    key: str | None = attrs.field(default=None, metadata=NOT_IN_FINGERPRINT)
    """The throttle key of its calls; by default that of its first model."""
    tokens: int = attrs.field(default=0, metadata=NOT_IN_FINGERPRINT)
    """How many tokens one call is expected to use, for limits of tokens."""
    process: bool = attrs.field(default=False, metadata=NOT_IN_FINGERPRINT)
    """Run it in a worker process: for functions that compute for long in Python."""
    runtime: str | None = attrs.field(
        default=None, validator=checks.optional(checks.one_of(*RUNTIMES)), metadata=NOT_IN_FINGERPRINT
    )
    """The event loop that an async function is written for; by default trio."""

    def __attrs_post_init__(self) -> None:
        function: Any = self.function
        if isinstance(function, str):
            if ":" not in function:
                raise ConfigError(f"{self.error_prefix}function must be 'module:name', not {function!r}")
        elif not _is_generator(function):
            expected = "a function, or an object with generate or agenerate"
            raise ConfigError(f"{self.error_prefix}function must be {expected}, not {function!r}")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself."""
        if isinstance(self.function, str):
            raise TypeError(f"column {self.name!r} names its function ({self.function}) and cannot be called")
        return self.function(*args, **kwargs)

    @property
    def __wrapped__(self) -> Callable[P, R] | str:
        """The function, where `inspect` looks for it."""
        return self.function

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> str | tuple[Any, ...]:
        """Pickle by reference: under the function's name the module has this column, not the function.

        A program's own module, `__main__`, is a different one in the process that unpickles.
        """
        module, name = getattr(self.function, "__module__", None), getattr(self.function, "__qualname__", "")
        if module != "__main__" and find_name(sys.modules.get(str(module)), name) is self:
            return receive, (None, module, name, None)
        return super().__reduce_ex__(protocol)

    def aliases(self) -> tuple[str, ...]:
        return tuple(self.models.values())

    def code(self) -> tuple[str, ...]:
        return (*super().code(), *(each for each in self.retry_on if isinstance(each, str)))

    def to_column(self, environment: Environment) -> Column:
        """The engine's column of a function; models are bound to the cell that uses them."""
        spec = _imported(self, environment)
        function, is_async = generator_function(spec.function)
        generator: Any = spec.function
        requires, key = spec.requires, spec.key
        kind, taken = _kind(function)
        if kind is Kind.FULL_COLUMN and requires is None:
            raise ConfigError(f"{spec.error_prefix}list the columns of its frame with requires=[…]")
        if spec.models and spec.process:
            raise ConfigError(f"column {spec.name!r} runs in a process, where its function cannot call a model")
        if spec.models:
            models = [environment.model(alias, spec.error_prefix) for alias in spec.aliases()]
            key = models[0].key("chat") if key is None else key
            generator, requires = _with_models(spec, kind, taken, environment)
        elif spec.process and not is_async:
            if "<" in function.__qualname__:
                problem = "runs in a process: its function must be defined at the top level of a module"
                raise ConfigError(f"column {spec.name!r} {problem}")
            generator = for_process(function)
        return Column(
            spec.name,
            generator,
            kind=kind,
            requires=requires,
            key=key,
            tokens=spec.tokens,
            outputs=spec.outputs,
            side_effects=spec.side_effects or (),
            # A generator object has its own `is_stateful`.
            is_stateful=spec.is_stateful or bool(getattr(spec.function, "is_stateful", False)),
            process=spec.process,
            # With models the generator is `_with_models`, which targets trio and calls the adapted function.
            runtime=None if spec.models else spec.runtime,
            retry_on=_exceptions(spec, environment),
        )


def _is_generator(value: Any) -> bool:
    """True for a function and for an object that generates; the engine creates no instance of a class."""
    return not isinstance(value, type) and (callable(value) or is_generator_object(value))


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
    """Turn a function into a column, which can still be called as the function.

    A function, sync or async, fills a cell: parameters named like columns are its requirements, and a parameter of type
    `Model` gets the model whose alias is its name, or the one in `models`. A function with a parameter of type
    `polars.DataFrame` fills a whole column from a frame of the columns in `requires`; one with a parameter of type
    `range` fills a column from scratch, from row numbers. A parameter of type `CellContext` gets the context. An async
    function runs under trio, or with `runtime="asyncio"` in a task of asyncio.
    """
    if function is None:
        return functools.partial(column, **options)
    if isinstance(function, Custom):
        raise ConfigError(f"column {function.name!r} has a duplicate @seedbed.column")
    if isinstance(function, type) or not callable(function):
        raise ConfigError(f"@seedbed.column decorates a function, not {function!r}")
    return _custom(function, **options)


def _custom(function: Callable[..., Any], *, name: str | None = None, **options: Any) -> Custom[..., Any]:
    name = name or str(getattr(function, "__name__", ""))
    given = dict(options.pop("models", None) or {})
    wanted = [each.name for each in _parameters(generator_function(function)[0]) if has_type(each, Model)]
    if unknown := [repr(parameter) for parameter in given if parameter not in wanted]:
        raise ConfigError(f"column {name!r}: models names {', '.join(unknown)}, which is not a parameter of type Model")
    models = {parameter: given.get(parameter, parameter) for parameter in wanted}
    return Custom(name, function, models=models, **options)


def used_models(specs: Iterable[ColumnSpec], environment: Environment) -> dict[str, ModelSpec]:
    """The models that columns call, by alias: what must be open while they run.

    A function that a spec only names is imported, because its parameters determine its models.
    """
    known = (_imported(spec, environment) if isinstance(spec, Custom) else spec for spec in specs)
    return {alias: environment.model(alias) for spec in known for alias in spec.aliases()}


def _imported(spec: Custom[..., Any], environment: Environment) -> Custom[..., Any]:
    """The spec with its function imported; fields of the file override those of the function's decorator."""
    if not isinstance(spec.function, str):
        return spec
    found = environment.import_object(spec.function, f"column {spec.name!r}, function")
    given = {
        field.name: getattr(spec, field.name)
        for field in attrs.fields(Custom)
        if field.name not in ("function", "models") and getattr(spec, field.name) != field.default
    }
    if isinstance(found, Custom):
        given["models"] = {**found.models, **spec.models}
        return attrs.evolve(found, **given)
    if not _is_generator(found):
        hint = "; name an instance of it, or write the recipe in Python" if isinstance(found, type) else ""
        raise ConfigError(f"column {spec.name!r}: {spec.function!r} is not a function but {found!r}{hint}")
    return _custom(found, models=spec.models, **given)


def _exceptions(spec: Custom[..., Any], environment: Environment) -> tuple[ExceptionClass, ...]:
    where = f"column {spec.name!r}, retry_on"
    found = tuple(environment.import_object(each, where) if isinstance(each, str) else each for each in spec.retry_on)
    if wrong := [given for given, each in zip(spec.retry_on, found, strict=True) if not _is_exception(each)]:
        raise ConfigError(f"{where}: {wrong[0]!r} is not an exception class")
    return found


def _kind(function: Callable[..., Any]) -> tuple[Kind, str | None]:
    """The kind of a function's column, and the parameter that takes the frame or the rows."""
    for parameter in _parameters(function):
        if has_type(parameter, pl.DataFrame):
            return Kind.FULL_COLUMN, parameter.name
        if has_type(parameter, range):
            return Kind.FROM_SCRATCH, parameter.name
    return Kind.CELL, None


def _with_models(
    spec: Custom[..., Any], kind: Kind, taken: str | None, environment: Environment
) -> tuple[Callable[..., Any], tuple[str, ...]]:
    """The function with its models, which are bound to the cell of each call, and the columns that it requires."""
    original, is_async = generator_function(spec.function)
    parameters = _parameters(original)
    if fixed := [each.name for each in parameters if each.kind is each.POSITIONAL_ONLY]:
        raise ConfigError(f"{spec.error_prefix}with models, parameter {fixed[0]!r} may not be positional-only")
    context_name = next((each.name for each in parameters if has_type(each, CellContext)), None)
    try:
        _, requires = bind_call(functools.partial(original, **dict.fromkeys(spec.models)), kind, spec.requires)
        function = for_runtime(original, is_async=is_async, runtime=spec.runtime, adapt=for_asyncio)
    except (UncallableError, ConfigError) as error:
        raise ConfigError(f"column {spec.name!r} {error}") from None

    def bind(context: CellContext) -> dict[str, Any]:
        bound: dict[str, Any] = {name: environment.bind(context, alias) for name, alias in spec.models.items()}
        return bound if context_name is None else {**bound, context_name: context}

    def fill_cell(context: CellContext, **values: Any) -> Any:
        return function(**values, **bind(context))

    def fill_column(given: Any, context: CellContext) -> Any:
        return function(**{str(taken): given}, **bind(context))

    fill = fill_cell if taken is None else fill_column
    if not is_async:
        return fill, requires

    @functools.wraps(fill)
    async def fill_async(*args: Any, **values: Any) -> Any:
        return await fill(*args, **values)

    return fill_async, requires


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return read_parameters(function)
    except UncallableError:  # reported with the other problems of the column
        return []


class Bridged:
    """A generator with both `generate` and `agenerate`: the missing one calls the other.

    `generate` may be called from any synchronous code, also inside a running event loop or in a worker thread.
    `agenerate` runs synchronous code in a worker thread.
    """

    def __init__(self, generator: object) -> None:
        self.generator = generator
        function, is_async = generator_function(generator)
        generate = getattr(generator, "generate", None) if is_async else function
        self.generate: Callable[..., Any] = generate or functools.partial(_run_async, function)
        self.agenerate: Callable[..., Awaitable[Any]] = function if is_async else functools.partial(_run_sync, function)


def _run_async(function: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
    return run_sync(functools.partial(function, *args, **kwargs))


async def _run_sync(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return await run_abandonable(functools.partial(function, *args, **kwargs))


def bridge(generator: object) -> Bridged:
    """Add the method, `generate` or `agenerate`, that a generator lacks."""
    return generator if isinstance(generator, Bridged) else Bridged(generator)
