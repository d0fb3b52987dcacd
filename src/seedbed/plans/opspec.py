"""What an op declares about itself, and the registry that plans are read and run against."""

from __future__ import annotations

import enum
import inspect
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

from ..errors import ConfigError
from ..runtime.async_functions import for_runtime
from .model import KeyType

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from .context import OpContext
    from .rowset import RowSet

    # The work of an op that uses the CPU: called in a thread or, if it is cheap, on the loop.
    SyncRun = Callable[[tuple[RowSet, ...], Mapping[str, Any], OpContext], RowSet]
    # The work of an op that waits: called on the loop, and cancelled when its time is over.
    AsyncRun = Callable[[tuple[RowSet, ...], Mapping[str, Any], OpContext], Awaitable[RowSet]]

ENTRY_POINT_GROUP: Final = "seedbed.ops"


class _Required(enum.Enum):
    REQUIRED = "required"


REQUIRED: Final = _Required.REQUIRED


class ParamKind(enum.Enum):
    """What a parameter's JSON value is, or what it refers to."""

    STRING = "string"
    INTEGER = "integer"  # a boolean is not one
    NUMBER = "number"
    BOOLEAN = "boolean"
    CHOICE = "choice"
    ENDPOINT = "endpoint"  # an endpoint's id
    EXPRESSION = "expression"  # a name in the plan's expr_table
    PREDICATE = "predicate"  # a name in the plan's pred_table
    KEY = "key"  # a key's id
    NODE = "node"  # a node's id: an edge like an input


@attrs.frozen(kw_only=True)
class ParamSpec:
    """One parameter of an op; made by the functions below."""

    kind: ParamKind
    default: Any = REQUIRED
    nullable: bool = False
    minimum: float | None = None  # INTEGER and NUMBER, inclusive
    maximum: float | None = None  # INTEGER and NUMBER, inclusive
    choices: tuple[str, ...] = ()  # CHOICE
    endpoint_kind: str | None = None  # ENDPOINT: the kind that it must be of; None allows any
    key_types: tuple[KeyType, ...] = tuple(KeyType)  # KEY: the types that it may have
    writes: bool = False  # KEY: the op writes it, so it must be writable

    @property
    def required(self) -> bool:
        return self.default is REQUIRED


def string(default: Any = REQUIRED, *, nullable: bool = False) -> ParamSpec:
    """A string."""
    return ParamSpec(kind=ParamKind.STRING, default=default, nullable=nullable)


def integer(minimum: int | None = None, maximum: int | None = None, default: Any = REQUIRED) -> ParamSpec:
    """An integer within bounds."""
    return ParamSpec(kind=ParamKind.INTEGER, minimum=minimum, maximum=maximum, default=default)


def number(minimum: float | None = None, maximum: float | None = None, default: Any = REQUIRED) -> ParamSpec:
    """A finite number within bounds."""
    return ParamSpec(kind=ParamKind.NUMBER, minimum=minimum, maximum=maximum, default=default)


def boolean(default: Any = REQUIRED) -> ParamSpec:
    """True or false."""
    return ParamSpec(kind=ParamKind.BOOLEAN, default=default)


def choice(*choices: str, default: Any = REQUIRED) -> ParamSpec:
    """One of some words."""
    return ParamSpec(kind=ParamKind.CHOICE, choices=choices, default=default)


def endpoint(kind: str | None = None) -> ParamSpec:
    """The id of an endpoint of a kind."""
    return ParamSpec(kind=ParamKind.ENDPOINT, endpoint_kind=kind)


def expression() -> ParamSpec:
    """The name of an expression."""
    return ParamSpec(kind=ParamKind.EXPRESSION)


def predicate() -> ParamSpec:
    """The name of a predicate."""
    return ParamSpec(kind=ParamKind.PREDICATE)


def key(*types: KeyType, writes: bool = False) -> ParamSpec:
    """The id of a key of one of some types (of any type if none are named)."""
    return ParamSpec(kind=ParamKind.KEY, key_types=types or tuple(KeyType), writes=writes)


def node() -> ParamSpec:
    """The id of another node, whose rows the op is given as `ctx.refs[parameter]`."""
    return ParamSpec(kind=ParamKind.NODE)


TRACE: Final = string(None, nullable=True)


class Rows(enum.Enum):
    """The output contract of an op: what its rows are, compared with those of its first input."""

    NEW = "new"  # rows of its own
    SAME = "same"  # the same rows in the same order
    SUBSET = "subset"  # some of them, in order
    PREFIX = "prefix"  # the first of them
    REORDERED = "reordered"  # all of them, in another order
    APPENDED = "appended"  # all of them, then others


def _with_trace(params: Mapping[str, ParamSpec]) -> Mapping[str, ParamSpec]:
    return {**params, "trace": TRACE}


@attrs.frozen(kw_only=True)
class OpSpec:
    """An op: its parameters, how many inputs it takes, what it gives, which keys it writes and how it runs.

    Give `run`, `run_async` or both (then it runs on the loop). `params` need not name `trace`, which every op takes.
    The keys that an op writes are those of its `key(writes=True)` parameters and those in `writes`.
    """

    name: str
    params: Mapping[str, ParamSpec] = attrs.field(factory=dict, converter=_with_trace)
    inputs: tuple[int, int] = (1, 1)  # at least, at most
    gives: Rows
    writes: frozenset[int] = frozenset()
    run: SyncRun | None = None
    run_async: AsyncRun | None = None
    # Always cheap: `run` is called on the loop, whatever the number of rows and the fusion mode.
    run_inline: bool = False
    # What stands in for the rows of an op that gives new ones when it failed and its policy is "default"; else none.
    fallback: SyncRun | None = None
    # Short names that plans may use too.
    aliases: tuple[str, ...] = ()
    # Whose loop `run_async` is written for, `trio` (also if not given) or `asyncio`.
    runtime: str | None = None

    def __attrs_post_init__(self) -> None:
        if self.run is None and self.run_async is None:
            raise ConfigError(f"op {self.name!r} has neither run nor run_async")
        if self.run_inline and self.run is None:
            raise ConfigError(f"op {self.name!r} declares run_inline but has no run")
        function = self.run_async or self.run
        assert function is not None
        try:
            found = for_runtime(function, is_async=self.run_async is not None, runtime=self.runtime)
        except ConfigError as error:
            raise ConfigError(f"op {self.name!r} {error}") from None
        if self.run_async is not None:
            object.__setattr__(self, "run_async", found)

    def written_keys(self, params: Mapping[str, Any]) -> frozenset[int]:
        """The keys that a node with these (validated) parameters writes."""
        return self.writes.union(params[name] for name, spec in self.params.items() if spec.writes)


class OpRegistry:
    """Ops by name and alias."""

    def __init__(self, *ops: OpSpec) -> None:
        self._ops: dict[str, OpSpec] = {}
        self._names: dict[str, str] = {}  # alias or name → name
        for op in ops:
            self.add(op)

    def add(self, op: OpSpec) -> None:
        """Register an op; a name or alias that is taken is an error."""
        for name in (op.name, *op.aliases):
            if name in self._names:
                raise ConfigError(f"op {op.name!r}: the name {name!r} is taken by op {self._names[name]!r}")
        self._ops[op.name] = op
        self._names.update(dict.fromkeys((op.name, *op.aliases), op.name))

    def get(self, name: str) -> OpSpec | None:
        """The op of that name or alias, or None."""
        full = self._names.get(name)
        return None if full is None else self._ops[full]

    def names(self) -> tuple[str, ...]:
        """The full names of all ops, sorted."""
        return tuple(sorted(self._ops))

    def __iter__(self) -> Iterator[OpSpec]:
        return iter(self._ops.values())

    def __len__(self) -> int:
        return len(self._ops)

    def copy(self) -> OpRegistry:
        """Another registry with the same ops, to add to."""
        return OpRegistry(*self)


_default: OpRegistry | None = None


def default_ops() -> OpRegistry:
    """The registry of this process: the ops of the format and those that installed packages bring.

    A package brings ops by an entry point of the group `seedbed.ops` that names an `OpSpec` or several of them.
    """
    global _default  # noqa: PLW0603  filled when first asked for, because looking for entry points takes milliseconds
    if _default is None:
        from .ops import CORE_OPS  # noqa: PLC0415  ops are declared with the names of this module

        registry = OpRegistry(*CORE_OPS)
        for entry in entry_points(group=ENTRY_POINT_GROUP):
            try:
                brought = entry.load()
                several = [brought] if isinstance(brought, OpSpec) else list(brought)
            except Exception as error:
                raise ConfigError(
                    f"entry point {entry.name!r} of {ENTRY_POINT_GROUP} ({entry.value}) cannot be loaded: "
                    f"{type(error).__name__}: {error}; repair or uninstall it"
                ) from error
            for op in several:
                if not isinstance(op, OpSpec):
                    raise ConfigError(f"entry point {entry.name!r} of {ENTRY_POINT_GROUP} gives {op!r}, not an OpSpec")
                registry.add(op)
        _default = registry
    return _default


def register_op(op: OpSpec) -> OpSpec:
    """Add an op to the registry of this process."""
    default_ops().add(op)
    return op


def op(
    name: str,
    *,
    gives: Rows,
    params: Mapping[str, ParamSpec] | None = None,
    inputs: tuple[int, int] = (1, 1),
    writes: frozenset[int] = frozenset(),
    run_inline: bool = False,
    aliases: tuple[str, ...] = (),
    runtime: Literal["asyncio", "trio"] | None = None,
) -> Callable[[SyncRun | AsyncRun], OpSpec]:
    """Make an op of a function; an async one runs on the loop (`runtime` says whose). It is not registered."""

    def declare(function: Any) -> OpSpec:
        is_async = inspect.iscoroutinefunction(function)
        return OpSpec(
            name=name,
            params=params or {},
            inputs=inputs,
            gives=gives,
            writes=writes,
            run=None if is_async else function,
            run_async=function if is_async else None,
            run_inline=run_inline,
            aliases=aliases,
            runtime=runtime,
        )

    return declare
