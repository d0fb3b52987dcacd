"""What an op declares: its params, inputs, output contract and functions; and the context that a run of it gets."""

from __future__ import annotations

import enum
import functools
import inspect
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, Unpack

import attrs

from ..errors import ConfigError
from ..runtime.asyncio import for_runtime
from .documents import INT64_MAX, INT64_MIN, Code, shown
from .redis.reads import OnceEndpoint
from .registries import KeyType
from .request import ReadTrace
from .rowset import RowSet, make_column, new_rows

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable

    from .documents import Value
    from .expressions import Expression, Predicate
    from .redis.reads import EndpointSource
    from .registries import Key, ParamValue, Registries
    from .request import Request

    # The function of a CPU op: called in a thread or, if it is cheap, on the loop.
    SyncRun = Callable[[tuple[RowSet, ...], Mapping[str, Any], "OpContext"], RowSet]
    # The function of an op that waits: called on the loop, and cancelled at its timeout.
    AsyncRun = Callable[[tuple[RowSet, ...], Mapping[str, Any], "OpContext"], Awaitable[RowSet]]
    Check = Callable[[Value, Mapping[str, Any], "Scope"], None]

REQUIRED: Final = object()


@attrs.frozen(kw_only=True)
class Scope:
    """Everything of one plan that params may refer to. An entry of a table is None if it is invalid itself."""

    registries: Registries
    expressions: Mapping[str, Expression | None]
    predicates: Mapping[str, Predicate | None]
    node_ids: Collection[str]

    def node(self, value: Value) -> str | None:
        return value.reference(self.node_ids, Code.UNKNOWN_NODE, "no node has the id")


@attrs.frozen
class ParamSpec:
    """One param of an op; created by the functions below."""

    description: str
    read: Callable[[Value, Scope], Any]  # the checked value, or None after adding a problem
    default: Any = attrs.field(default=REQUIRED, kw_only=True)
    # Whether the value is the id of a tree or of another node, or stands for itself.
    kind: Literal["value", "expression", "predicate", "node"] = attrs.field(default="value", kw_only=True)
    writes: bool = attrs.field(default=False, kw_only=True)  # a key that the op writes

    @property
    def required(self) -> bool:
        return self.default is REQUIRED


def string(default: Any = REQUIRED, *, nullable: bool = False) -> ParamSpec:
    """A string."""
    read = lambda value, _scope: None if nullable and value.raw is None else value.text()  # noqa: E731
    return ParamSpec("string", read, default=default)


def integer(minimum: int | None = None, maximum: int | None = None, default: Any = REQUIRED) -> ParamSpec:
    """An integer within inclusive bounds; a boolean is not one."""
    low, high = INT64_MIN if minimum is None else minimum, INT64_MAX if maximum is None else maximum
    read = lambda value, _scope: value.integer(low, high)  # noqa: E731
    return ParamSpec(f"integer{_bounds(minimum, maximum)}", read, default=default)


def number(minimum: float | None = None, maximum: float | None = None, default: Any = REQUIRED) -> ParamSpec:
    """A finite number within inclusive bounds."""
    low, high = -math.inf if minimum is None else minimum, math.inf if maximum is None else maximum
    read = lambda value, _scope: value.number(low=low, high=high)  # noqa: E731
    return ParamSpec(f"number{_bounds(minimum, maximum)}", read, default=default)


def _bounds(minimum: float | None, maximum: float | None) -> str:
    if minimum is None:
        return "" if maximum is None else f" at most {maximum:,}"
    return f" at least {minimum:,}" if maximum is None else f" {minimum:,} to {maximum:,}"


def boolean(default: Any = REQUIRED) -> ParamSpec:
    """True or false."""
    return ParamSpec("boolean", lambda value, _scope: value.boolean(), default=default)


def choice(*choices: str, default: Any = REQUIRED) -> ParamSpec:
    """One of some words."""
    return ParamSpec(" or ".join(choices), lambda value, _scope: value.choice(choices), default=default)


def endpoint(kind: str | None = None) -> ParamSpec:
    """The id of an endpoint; of any kind if none is named."""

    def read(value: Value, scope: Scope) -> str | None:
        found = scope.registries.endpoint(value)
        if found is not None and kind not in (None, found.kind):
            message = f"expected an endpoint of kind {kind!r}, found {found.id!r}, which is {found.kind!r}"
            return value.problem(Code.WRONG_ENDPOINT_KIND, message)
        return None if found is None else found.id

    return ParamSpec(f"{kind} endpoint" if kind else "endpoint", read)


def expression() -> ParamSpec:
    """The id of an expression in the plan's `expr_table` that gives a number."""

    def read(value: Value, scope: Scope) -> str | None:
        name = value.reference(scope.expressions, Code.UNKNOWN_EXPR, "expr_table has no")
        found = None if name is None else scope.expressions[name]
        if found is not None and found.type is KeyType.STRING:
            message = f"expected an expression that gives a number, found {shown(name)}, which gives a string"
            return value.problem(Code.TYPE_MISMATCH, message)
        return name

    return ParamSpec("expression", read, kind="expression")


def predicate() -> ParamSpec:
    """The id of a predicate in the plan's `pred_table`."""
    read = lambda value, scope: value.reference(scope.predicates, Code.UNKNOWN_PRED, "pred_table has no")  # noqa: E731
    return ParamSpec("predicate", read, kind="predicate")


def key(*types: KeyType, writes: bool = False, default: Any = REQUIRED) -> ParamSpec:
    """The id of a key of one of some types (of any type if none are named)."""
    read = functools.partial(_read_key, types=types, writes=writes)
    return ParamSpec("key", read, writes=writes, default=default)


def _read_key(value: Value, scope: Scope, *, types: Collection[KeyType], writes: bool) -> int | None:
    found = scope.registries.key(value)
    if found is None:
        return None
    if writes and not found.writable:
        return value.problem(Code.KEY_NOT_WRITABLE, f"expected a key that ops may write, found {found.name!r}")
    if types and found.type not in types:
        allowed = " or ".join(each.value for each in types)
        message = f"expected a key of type {allowed}, found {found.name!r}, which is {found.type.value}"
        return value.problem(Code.WRONG_KEY_TYPE, message)
    return found.id


def written_fields() -> ParamSpec:
    """The keys that fields of something else are written to, by the names of the fields."""

    def read(value: Value, scope: Scope) -> dict[str, int] | None:
        entries = value.entries()
        if value and isinstance(value.raw, Mapping) and not entries:
            return value.problem(Code.INVALID_VALUE, "expected at least one field, found an empty object")
        found = {name: _read_key(each, scope, types=(), writes=True) for name, each in entries.items()}
        keys = {name: key_id for name, key_id in found.items() if key_id is not None}
        for name, key_id in keys.items():
            if key_id in list(keys.values())[: list(keys).index(name)]:
                value.problem(Code.DUPLICATE_ID, f"another field is written to the key {key_id} already", field=name)
        return keys

    return ParamSpec("fields by key", read, writes=True)


def node() -> ParamSpec:
    """The id of another node, an edge like an input; the op gets its rows as `ctx.refs[param]`."""
    return ParamSpec("node", lambda value, scope: scope.node(value), kind="node")


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

    Pass `run`, `run_async` or both (then it runs on the loop). `params` need not name `trace`, which every op takes.
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
    check: Check | None = None
    aliases: tuple[str, ...] = ()  # short names that plans may use too
    # The loop that `run_async` is written for: `trio` (the default) or `asyncio`.
    runtime: str | None = None

    def __attrs_post_init__(self) -> None:
        function = self.run_async or self.run
        if function is None:
            raise ConfigError(f"op {self.name!r} has neither run nor run_async")
        if self.run_inline and self.run is None:
            raise ConfigError(f"op {self.name!r} declares run_inline but has no run")
        try:
            found = for_runtime(function, is_async=self.run_async is not None, runtime=self.runtime)
        except ConfigError as error:
            raise ConfigError(f"op {self.name!r} {error}") from None
        if self.run_async is not None:
            object.__setattr__(self, "run_async", found)

    def written_keys(self, params: Mapping[str, Any]) -> frozenset[int]:
        """The keys that a node with these (validated) params writes."""
        written = [params[name] for name, spec in self.params.items() if spec.writes]
        return self.writes.union(*(each.values() if isinstance(each, Mapping) else (each,) for each in written))

    def referenced_nodes(self, params: Mapping[str, Any]) -> dict[str, str]:
        """The nodes that a node's params refer to, by the name of the param."""
        names = (name for name, spec in self.params.items() if spec.kind == "node")
        return {name: params[name] for name in names if params.get(name) is not None}

    def read_params(self, value: Value, scope: Scope) -> dict[str, Any]:
        """The checked params of a node with their defaults; None where a param is invalid."""
        required = [name for name, spec in self.params.items() if spec.required]
        fields = value.fields(*required, optional=[name for name in self.params if name not in required])
        checked: dict[str, Any] = {}
        for name, spec in self.params.items():
            if fields[name]:
                checked[name] = spec.read(fields[name], scope)
            elif not spec.required:
                checked[name] = spec.default
        if self.check is not None:
            self.check(value, checked, scope)
        return checked


class OpOptions(TypedDict, total=False):
    """The optional fields of an `OpSpec`, for `op`."""

    params: Mapping[str, ParamSpec]
    inputs: tuple[int, int]
    writes: frozenset[int]
    run_inline: bool
    fallback: SyncRun | None
    check: Check | None
    aliases: tuple[str, ...]
    runtime: Literal["asyncio", "trio"] | None


def op(name: str, *, gives: Rows, **options: Unpack[OpOptions]) -> Callable[[SyncRun | AsyncRun], OpSpec]:
    """Turn a function into an op; an async one runs on the loop (of `runtime`). It is not registered."""

    def declare(function: Any) -> OpSpec:
        if inspect.iscoroutinefunction(function):
            return OpSpec(name=name, gives=gives, run_async=function, **options)
        return OpSpec(name=name, gives=gives, run=function, **options)

    return declare


@attrs.define(eq=False, kw_only=True)
class RequestContext:
    """What all nodes of one request share."""

    request: Request
    endpoints: EndpointSource
    keys: Mapping[int, Key]
    expressions: Mapping[str, Expression]
    predicates: Mapping[str, Predicate]
    clock: Callable[[], float]
    arrival: float  # instant of trio's clock, as the deadline
    deadline: float
    node_timeout: float  # seconds
    traced: bool
    reads: list[ReadTrace] = attrs.field(factory=list, init=False)  # if it is traced, in the order they ended
    _used_endpoints: dict[str, Any] = attrs.field(factory=dict, init=False)

    def endpoint(self, endpoint_id: str) -> Any:
        """The endpoint of that id; of one that reads as Redis does, identical reads of the request happen once."""
        found = self._used_endpoints.get(endpoint_id)
        if found is None:
            endpoint = self.endpoints.get(endpoint_id)
            found = endpoint
            if hasattr(endpoint, "hgetall_many"):
                record = functools.partial(self._record_read, endpoint_id) if self.traced else None
                found = OnceEndpoint(endpoint, record=record)
            self._used_endpoints[endpoint_id] = found
        return found

    def _record_read(self, endpoint_id: str, command: str, keys: int, began: float) -> None:
        start, end = ((instant - self.arrival) * 1000 for instant in (began, self.clock()))
        self.reads.append(ReadTrace(endpoint=endpoint_id, command=command, keys=keys, start_ms=start, end_ms=end))


@attrs.define(eq=False)
class OpContext:
    """What one run of one node gets besides its inputs and params.

    `deadline` is the instant of trio's clock at which the node times out (infinite if it does not); `refs` are the
    rows of the nodes that its params name. What endpoints answer is shared with other nodes of the request: do not
    change it.
    """

    _shared: RequestContext
    node_id: str
    deadline: float
    refs: Mapping[str, RowSet]

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
        return self._shared.expressions[name]

    def predicate(self, name: str) -> Predicate:
        return self._shared.predicates[name]

    def endpoint(self, endpoint_id: str) -> Any:
        return self._shared.endpoint(endpoint_id)

    def new_rows(self, ids: Iterable[int], columns: Mapping[int, Iterable[Any]] | None = None) -> RowSet:
        """Rows of plain Python values, None where null."""
        made = {key_id: make_column(self.keys[key_id], values) for key_id, values in (columns or {}).items()}
        return new_rows(list(ids), made)

    def with_values(self, rows: RowSet, key_id: int, values: Iterable[Any]) -> RowSet:
        """The same rows with a column of plain Python values, None where null."""
        return rows.with_column(key_id, make_column(self.keys[key_id], values))
