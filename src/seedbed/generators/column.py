"""A column as the engine takes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import attrs

from ..errors import ConfigError
from ..graph import Kind
from ..runtime.async_functions import for_runtime
from .asyncio_context import for_asyncio
from .call import Call, UncallableError, bind_call


def _names(value: Iterable[str] | str | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    return (value,) if isinstance(value, str) else tuple(value)


def _kind(value: Kind | str) -> Kind:
    try:
        return Kind(value)
    except ValueError:
        allowed = ", ".join(repr(kind.value) for kind in Kind)
        raise ConfigError(f"kind must be one of {allowed}, not {value!r}") from None


def _exceptions(value: type[Exception] | Iterable[type[Exception]]) -> tuple[type[Exception], ...]:
    return (value,) if isinstance(value, type) else tuple(value)


class SkipRule(Protocol):
    """When a cell is not to be made: it is null, and its generator is not called."""

    @property
    def requires(self) -> tuple[str, ...]: ...
    @property
    def decide(self) -> Callable[[Mapping[str, Any]], bool]:
        """Whether to skip, from the values of the required columns; it may raise."""
        ...


@attrs.frozen(eq=False)
class Column:
    """One generator and what it makes.

    `generator` is a function, sync or async, or an object with `generate` or `agenerate`. What it is called with:

    - kind `cell`: the values of its required columns of one row, by parameter name; it returns the cell's value;
    - kind `full_column`: a polars frame of its required columns; it returns as many values as the frame has rows;
    - kind `from_scratch`: a `range` of row numbers; it returns a value for each.

    A generator with several outputs or side effects returns a mapping (or, for whole columns, a frame) by name; a side
    effect may be missing, an output may not. Sync generators run in a worker thread, or in a process with
    `process=True`. A parameter annotated `CellContext` gets the context. A value that is a `CellError` among those of a
    whole column fails its row and no other.
    """

    name: str
    generator: Any
    kind: Kind = attrs.field(default=Kind.CELL, converter=_kind, kw_only=True)
    # Columns that it needs; a cell function's parameters if not given.
    requires: tuple[str, ...] = attrs.field(default=None, converter=_names, kw_only=True)
    # Throttle key of the calls it makes, if it makes any.
    key: str | None = attrs.field(default=None, kw_only=True)
    # Further keys that its calls use through `CellContext.call`; limits may be given for them too.
    other_keys: tuple[str, ...] = attrs.field(default=(), converter=_names, kw_only=True)
    # Tokens that one call is expected to use, for tokens-per-minute limits and max_tokens.
    tokens: int = attrs.field(default=0, kw_only=True)
    outputs: tuple[str, ...] = attrs.field(default=None, converter=_names, kw_only=True)
    side_effects: tuple[str, ...] = attrs.field(default=(), converter=_names, kw_only=True)
    # A polars, pyarrow or Python type, or a mapping of them by output; unknown where not given.
    dtype: Any = attrs.field(default=None, kw_only=True)
    timeout: float | None = attrs.field(default=None, kw_only=True)
    is_stateful: bool = attrs.field(default=None, kw_only=True)
    process: bool = attrs.field(default=False, kw_only=True)
    # Whose loop its async function is written for, `trio` (also if not given) or `asyncio`.
    runtime: str | None = attrs.field(default=None, kw_only=True)
    allow_resize: bool = attrs.field(default=False, kw_only=True)
    # Exceptions of its own code that are worth another attempt.
    retry_on: tuple[type[Exception], ...] = attrs.field(default=(), converter=_exceptions, kw_only=True)
    skip: SkipRule | None = attrs.field(default=None, kw_only=True)
    # What becomes of a cell one of whose inputs was skipped: `run` it with a null, or `skip` it too.
    skip_policy: str = attrs.field(default="run", kw_only=True)
    # At most so many of its calls at once, where that is less than its key allows; columns of one `lane` share it.
    lane: str | None = attrs.field(default=None, kw_only=True)
    lane_limit: int | None = attrs.field(default=None, kw_only=True)
    # The columns whose values its generator gets: `requires` without what only its skip rule reads.
    inputs: tuple[str, ...] = attrs.field(init=False, default=(), repr=False)
    # How the generator is called, and what is wrong with it if it cannot be.
    call: Call | None = attrs.field(init=False, default=None, repr=False)
    problem: str | None = attrs.field(init=False, default=None, repr=False)

    def __attrs_post_init__(self) -> None:
        """Read the generator's signature; what is wrong is kept for the start-up check, which reports all at once."""
        put = object.__setattr__
        given: dict[str, Any] = {name: getattr(self, name) for name in ("outputs", "is_stateful", "requires")}
        if given["outputs"] is None:
            put(self, "outputs", (self.name,))
        if given["is_stateful"] is None:
            put(self, "is_stateful", bool(getattr(self.generator, "is_stateful", False)))
        try:
            call, requires = bind_call(self.generator, self.kind, given["requires"])
            function = for_runtime(call.function, is_async=call.is_async, runtime=self.runtime, adapt=for_asyncio)
        except (UncallableError, ConfigError) as error:
            put(self, "problem", f"column {self.name!r} {error}")
            put(self, "inputs", given["requires"] or ())
        else:
            put(self, "call", attrs.evolve(call, function=function))
            put(self, "inputs", requires)
        rule = self.skip.requires if self.skip is not None else ()
        put(self, "requires", tuple(dict.fromkeys((*self.inputs, *rule))))

    def dtypes(self) -> dict[str, Any]:
        """The declared type of each output that has one."""
        if self.dtype is None:
            return {}
        if isinstance(self.dtype, Mapping):
            return dict(self.dtype)
        return {self.outputs[0]: self.dtype}
