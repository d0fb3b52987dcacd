"""Columns that are filled by a user's own function."""

from __future__ import annotations

import builtins
import importlib
import sys
from typing import TYPE_CHECKING, Any, ClassVar, Generic, ParamSpec, SupportsIndex, TypeVar

import attrs

from ..errors import ConfigError
from ..graph import nearest
from ..runtime.async_functions import RUNTIMES
from .code import find_name, is_generator_object
from .spec import HOW, ColumnSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

P = ParamSpec("P")
R = TypeVar("R")
ExceptionClass = type[Exception]


def _names(value: Iterable[str] | str | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    return (value,) if isinstance(value, str) else tuple(value)


def _aliases(value: Mapping[str, str]) -> dict[str, str]:
    return dict(value)


def _retry_on(value: Any) -> tuple[ExceptionClass | str, ...]:
    """Exception classes; those built in may be named, others are `module:name`, which is imported later."""
    found: list[ExceptionClass | str] = []
    for each in (value,) if isinstance(value, type | str) else tuple(value):
        exception = getattr(builtins, each, None) if isinstance(each, str) and ":" not in each else each
        if isinstance(exception, str) or (isinstance(exception, type) and issubclass(exception, Exception)):
            found.append(exception)
        else:
            hint = nearest(each, _EXCEPTIONS) if isinstance(each, str) else ""
            raise ConfigError(f"retry_on must hold exception classes, or their names, not {each!r}{hint}")
    return tuple(found)


def _runtime(spec: ColumnSpec, _: object, value: Any) -> None:
    if value not in (None, *RUNTIMES):
        allowed = " or ".join(map(repr, RUNTIMES))
        raise ConfigError(f"column {spec.name!r}: runtime must be {allowed}, not {value!r}")


_EXCEPTIONS = [name for name, each in vars(builtins).items() if isinstance(each, type) and issubclass(each, Exception)]


@attrs.frozen
class Custom(ColumnSpec, Generic[P, R]):
    """A column that a function fills; `@seedbed.column` makes one, which can still be called as the function.

    `function` may also be an object with `generate` or `agenerate`, which may keep a state. In a recipe file it is
    `module:name`, and is imported only where the user allows code. `requires` are its columns (the function's
    parameters if not given); `models` says which model a parameter of type `Model` gets, by alias (the parameter's own
    name if not given); `key` is the throttle key (that of its first model if not given). `runtime` says whose loop an
    async function is written for, `trio` (also if not given) or `asyncio`.
    """

    type: ClassVar[str] = "custom"

    function: Callable[P, R] | str
    requires: tuple[str, ...] | None = attrs.field(default=None, converter=_names, kw_only=True)
    outputs: tuple[str, ...] | None = attrs.field(default=None, converter=_names, kw_only=True)
    side_effects: tuple[str, ...] | None = attrs.field(default=(), converter=_names, kw_only=True)
    models: Mapping[str, str] = attrs.field(factory=dict, converter=_aliases, kw_only=True)
    is_stateful: bool = attrs.field(default=False, kw_only=True)
    retry_on: tuple[ExceptionClass | str, ...] = attrs.field(
        default=(), converter=_retry_on, kw_only=True, metadata=HOW
    )
    key: str | None = attrs.field(default=None, kw_only=True, metadata=HOW)
    tokens: int = attrs.field(default=0, kw_only=True, metadata=HOW)
    process: bool = attrs.field(default=False, kw_only=True, metadata=HOW)
    runtime: str | None = attrs.field(default=None, kw_only=True, validator=_runtime, metadata=HOW)

    def __attrs_post_init__(self) -> None:
        """Refuse what is neither a function nor the name of one."""
        function: Any = self.function
        if isinstance(function, str):
            if ":" not in function:
                raise ConfigError(f"column {self.name!r}: function must be 'module:name', not {function!r}")
        elif isinstance(function, type) or not (callable(function) or is_generator_object(function)):
            raise ConfigError(
                f"column {self.name!r}: function must be a function, or an object with generate or agenerate, "
                f"not {function!r}"
            )

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
        """Pickle by reference what stands under the function's name: pickle cannot find the function itself there.

        A program's own module, `__main__`, is another one in the process that unpickles.
        """
        module, name = getattr(self.function, "__module__", None), getattr(self.function, "__qualname__", "")
        if module != "__main__" and find_name(sys.modules.get(str(module)), name) is self:
            return _import_column, (module, name)
        return super().__reduce_ex__(protocol)

    def aliases(self) -> tuple[str, ...]:
        return tuple(self.models.values())

    def code(self) -> tuple[str, ...]:
        return (*super().code(), *(each for each in self.retry_on if isinstance(each, str)))


def _import_column(module: str, name: str) -> Any:
    """The column that `Custom.__reduce_ex__` refers to."""
    return find_name(importlib.import_module(module), name)
