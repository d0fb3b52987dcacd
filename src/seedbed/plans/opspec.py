"""What an op declares: its params, inputs, output contract and functions; and the context that a run of it gets."""

from __future__ import annotations

import enum
import inspect
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

from ..errors import ConfigError
from ..runtime.asyncio import for_runtime
from .documents import INT64_MAX, INT64_MIN, Code, shown
from .registries import KeyType
from .rowset import RowSet, make_column, new_rows

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

    from .documents import Value
    from .expressions import Expression, Predicate
    from .redis import RequestEndpoints
    from .registries import Key, ParamValue, Registries
    from .request import Request

    # The function of a CPU op: called in a thread or, if it is cheap, on the loop.
    SyncRun = Callable[[tuple[RowSet, ...], Mapping[str, Any], "OpContext"], RowSet]
    # The function of an op that waits: called on the loop, and cancelled at its timeout.
    AsyncRun = Callable[[tuple[RowSet, ...], Mapping[str, Any], "OpContext"], Awaitable[RowSet]]

REQUIRED: Final = object()


class ParamKind(enum.Enum):
    """What a param's JSON value is, or what it refers to."""

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
class Scope:
    """Everything of one plan that params may refer to. An entry of a table is None if it has problems itself."""

    registries: Registries
    expressions: Mapping[str, Expression | None]
    predicates: Mapping[str, Predicate | None]
    node_ids: Collection[str]

    def node(self, value: Value) -> str | None:
        """A reference to a node of the plan."""
        return value.reference(self.node_ids, Code.UNKNOWN_NODE, "no node has the id")


@attrs.frozen(kw_only=True)
class ParamSpec:
    """One param of an op; built by the functions below."""

    kind: ParamKind
    read: Callable[[Value, Scope], Any]  # the checked value, or None after adding a problem
    description: str
    default: Any = REQUIRED
    nullable: bool = False
    writes: bool = False  # a key that the op writes

    @property
    def required(self) -> bool:
        return self.default is REQUIRED


def string(default: Any = REQUIRED, *, nullable: bool = False) -> ParamSpec:
    """A string."""
    kind = ParamKind.STRING
    read = lambda value, _scope: value.text()  # noqa: E731
    return ParamSpec(kind=kind, read=read, description=kind.value, default=default, nullable=nullable)


def integer(minimum: int | None = None, maximum: int | None = None, default: Any = REQUIRED) -> ParamSpec:
    """An integer within inclusive bounds."""
    low, high = INT64_MIN if minimum is None else minimum, INT64_MAX if maximum is None else maximum
    return ParamSpec(
        kind=ParamKind.INTEGER,
        read=lambda value, _scope: value.integer(low, high),
        description=f"integer{_bounds(minimum, maximum)}",
        default=default,
    )


def number(minimum: float | None = None, maximum: float | None = None, default: Any = REQUIRED) -> ParamSpec:
    """A finite number within inclusive bounds."""
    return ParamSpec(
        kind=ParamKind.NUMBER,
        read=lambda value, _scope: value.number(minimum, maximum),
        description=f"number{_bounds(minimum, maximum)}",
        default=default,
    )


def _bounds(minimum: float | None, maximum: float | None) -> str:
    if minimum is None:
        return "" if maximum is None else f" at most {maximum:,}"
    return f" at least {minimum:,}" if maximum is None else f" {minimum:,} to {maximum:,}"


def boolean(default: Any = REQUIRED) -> ParamSpec:
    """True or false."""
    kind = ParamKind.BOOLEAN
    return ParamSpec(kind=kind, read=lambda value, _scope: value.boolean(), description=kind.value, default=default)


def choice(*choices: str, default: Any = REQUIRED) -> ParamSpec:
    """One of some words."""
    return ParamSpec(
        kind=ParamKind.CHOICE,
        read=lambda value, _scope: value.choice(choices),
        description=" or ".join(choices),
        default=default,
    )


def endpoint(kind: str | None = None) -> ParamSpec:
    """The id of an endpoint; of any kind if none is named."""

    def read(value: Value, scope: Scope) -> str | None:
        found = scope.registries.endpoint(value)
        if found is not None and kind is not None and found.kind != kind:
            message = f"expected an endpoint of kind {kind!r}, found {found.id!r}, which is {found.kind!r}"
            value.problem(Code.WRONG_ENDPOINT_KIND, message)
            return None
        return None if found is None else found.id

    return ParamSpec(kind=ParamKind.ENDPOINT, read=read, description=f"{kind} endpoint" if kind else "endpoint")


def expression() -> ParamSpec:
    """The name of an expression that gives a number."""

    def read(value: Value, scope: Scope) -> str | None:
        name = value.reference(scope.expressions, Code.UNKNOWN_EXPR, "expr_table has no")
        found = None if name is None else scope.expressions[name]
        if found is not None and found.type is KeyType.STRING:
            message = f"expected an expression that gives a number, found {shown(name)}, which gives a string"
            value.problem(Code.TYPE_MISMATCH, message)
            return None
        return name

    return ParamSpec(kind=ParamKind.EXPRESSION, read=read, description="expression")


def predicate() -> ParamSpec:
    """The name of a predicate."""

    def read(value: Value, scope: Scope) -> str | None:
        return value.reference(scope.predicates, Code.UNKNOWN_PRED, "pred_table has no")

    return ParamSpec(kind=ParamKind.PREDICATE, read=read, description="predicate")


def key(*types: KeyType, writes: bool = False) -> ParamSpec:
    """The id of a key of one of some types (of any type if none are named)."""

    def read(value: Value, scope: Scope) -> int | None:
        found = scope.registries.key(value)
        if found is None:
            return None
        if writes and not found.writable:
            value.problem(Code.KEY_NOT_WRITABLE, f"expected a key that ops may write, found {found.name!r}")
            return None
        if types and found.type not in types:
            allowed = " or ".join(each.value for each in types)
            message = f"expected a key of type {allowed}, found {found.name!r}, which is {found.type.value}"
            value.problem(Code.WRONG_KEY_TYPE, message)
            return None
        return found.id

    return ParamSpec(kind=ParamKind.KEY, read=read, description="key", writes=writes)


def node() -> ParamSpec:
    """The id of another node, whose rows the op gets as `ctx.refs[param]`."""
    return ParamSpec(kind=ParamKind.NODE, read=lambda value, scope: scope.node(value), description="node")


class Rows(enum.Enum):
    """The output contract of an op: its rows, compared with those of its first input."""

    NEW = "new"  # other rows
    SAME = "same"  # the same rows in the same order
    SUBSET = "subset"  # some of them, in order
    PREFIX = "prefix"  # the first of them
    REORDERED = "reordered"  # all of them, in another order
    APPENDED = "appended"  # all of them, then others


def _with_trace(params: Mapping[str, ParamSpec]) -> Mapping[str, ParamSpec]:
    return {**params, "trace": string(None, nullable=True)}


@attrs.frozen(kw_only=True)
class OpSpec:
    """An op: its params, how many inputs it takes, its output contract, which keys it writes and how it runs.

    Give `run`, `run_async` or both (then it runs on the loop). `params` need not name `trace`, which every op takes.
    The keys that an op writes are those of its `key(writes=True)` params and those in `writes`.
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
    # The rows of an op with contract NEW that failed and whose policy is "default"; without it there are none.
    fallback: SyncRun | None = None
    # A check of the params together, after each was checked; problems are added to the value of all params.
    check: Callable[[Value, Mapping[str, Any], Scope], None] | None = None
    # Short names that plans may use too.
    aliases: tuple[str, ...] = ()
    # The loop that `run_async` is written for: `trio` (also if not given) or `asyncio`.
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
        """The keys that a node with these (validated) params writes."""
        return self.writes.union(params[name] for name, spec in self.params.items() if spec.writes)

    def referenced_nodes(self, params: Mapping[str, Any]) -> dict[str, str]:
        """The nodes that a node's params refer to, by the name of the param."""
        kinds = ((name, spec.kind) for name, spec in self.params.items())
        return {name: params[name] for name, kind in kinds if kind is ParamKind.NODE and params.get(name) is not None}

    def read_params(self, value: Value, scope: Scope) -> dict[str, Any]:
        """The checked params of a node with their defaults; None where a param has a problem."""
        required = [name for name, spec in self.params.items() if spec.required]
        fields = value.fields(*required, optional=[name for name in self.params if name not in required])
        checked: dict[str, Any] = {}
        for name, spec in self.params.items():
            if name in fields:
                is_null = spec.nullable and fields[name].raw is None
                checked[name] = None if is_null else spec.read(fields[name], scope)
            elif not spec.required:
                checked[name] = spec.default
        if self.check is not None:
            self.check(value, checked, scope)
        return checked


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
    """Turn a function into an op; an async one runs on the loop (of `runtime`). It is not registered."""

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


@attrs.define(eq=False)
class RequestContext:
    """What all nodes of one request share."""

    request: Request
    endpoints: RequestEndpoints
    keys: Mapping[int, Key]
    expressions: Mapping[str, Expression]
    predicates: Mapping[str, Predicate]
    clock: Callable[[], float]
    arrival: float  # instant of trio's clock, as the deadline
    deadline: float
    node_timeout: float  # seconds
    traced: bool


class OpContext:
    """What one run of one node gets besides its inputs and params.

    `deadline` is the instant of trio's clock at which the node times out (infinite if it does not); `refs` are the
    rows of the nodes that its params name. What endpoints answer is shared with other nodes of the request: read it,
    and do not change it.
    """

    __slots__ = ("_shared", "deadline", "node_id", "refs")

    def __init__(self, shared: RequestContext, node_id: str, deadline: float, refs: Mapping[str, RowSet]) -> None:
        self._shared = shared
        self.node_id = node_id
        self.deadline = deadline
        self.refs = refs

    @property
    def request(self) -> Request:
        return self._shared.request

    @property
    def keys(self) -> Mapping[int, Key]:
        return self._shared.keys

    @property
    def param_values(self) -> Mapping[int, ParamValue]:
        return self._shared.request.param_overrides

    def expression(self, name: str) -> Expression:
        """The compiled expression that a param names."""
        return self._shared.expressions[name]

    def predicate(self, name: str) -> Predicate:
        """The compiled predicate that a param names."""
        return self._shared.predicates[name]

    def endpoint(self, endpoint_id: str) -> Any:
        """The endpoint of that id; identical reads within the request reach it once."""
        return self._shared.endpoints.get(endpoint_id)

    def new_rows(self, ids: Iterable[int], columns: Mapping[int, Iterable[Any]] | None = None) -> RowSet:
        """Rows of plain Python values, None where null."""
        return new_rows(
            list(ids), {key_id: make_column(self.keys[key_id], values) for key_id, values in (columns or {}).items()}
        )

    def with_values(self, rows: RowSet, key_id: int, values: Iterable[Any]) -> RowSet:
        """The same rows with a column of plain Python values, None where null."""
        column = make_column(self.keys[key_id], values)
        return rows.with_column(key_id, column.values, column.nulls)
