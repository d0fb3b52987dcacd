"""The ops of the plan format, and the registry that plans are read and run against."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from importlib.metadata import entry_points
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import trio

from ..errors import ConfigError
from .documents import INT64_MAX, INT64_MIN, Code, shown
from .opspec import (
    OpSpec,
    Rows,
    boolean,
    choice,
    endpoint,
    expression,
    integer,
    key,
    node,
    op,
    predicate,
    string,
    written_fields,
)
from .registries import COUNTRY, ID, KeyType
from .rowset import (
    NO_ROWS,
    SLICE_ROWS,
    Column,
    concat,
    left_join,
    new_rows,
    order_of,
    slices,
    string_column,
    unique_positions,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from .documents import Value
    from .opspec import OpContext, Scope
    from .registries import Key
    from .rowset import RowSet

    Inputs = tuple[RowSet, ...]
    Params = Mapping[str, Any]

ENTRY_POINT_GROUP: Final = "seedbed.ops"

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_SURELY_64_BITS = 19  # digits below which every integer has them
_DAY_MS = 86_400_000

_REDIS = endpoint("redis")
_USERS = frozenset({ID, COUNTRY})  # the keys of rows that are users


def _users(ids: Sequence[int], hashes: Iterable[Mapping[str, str]], ctx: OpContext) -> RowSet:
    columns = {COUNTRY: string_column([fields.get("country") for fields in hashes])} if COUNTRY in ctx.keys else {}
    return new_rows(ids, columns)


def _unknown_viewer(_inputs: Inputs, _params: Params, ctx: OpContext) -> RowSet:
    return _users([ctx.request.user_id], [{}], ctx)


@op(
    "core::viewer",
    aliases=("viewer",),
    params={"endpoint": _REDIS},
    inputs=(0, 0),
    gives=Rows.NEW,
    writes=_USERS,
    fallback=_unknown_viewer,
)
async def _viewer(_inputs: Inputs, params: Params, ctx: OpContext) -> RowSet:
    user_id = ctx.request.user_id
    fields = await ctx.endpoint(params["endpoint"]).hgetall(f"user:{user_id}")
    return _users([user_id], [fields], ctx)


def _integers(texts: list[str]) -> list[int]:
    """Those of the texts that are integers of 64 bits."""
    # Nearly always they are nothing but digits, and a request has hundreds: one check of all of them is faster
    # (benchmarks/plans, "throughput").
    together = "".join(texts)
    if together.isdigit() and together.isascii() and all(texts) and max(map(len, texts)) < _SURELY_64_BITS:
        return list(map(int, texts))
    found = [int(text) for text in texts if _INTEGER.fullmatch(text)]
    return [number for number in found if INT64_MIN <= number <= INT64_MAX]


async def _listed(name: str, inputs: Inputs, params: Params, ctx: OpContext) -> list[list[int]]:
    """The ids in the lists of all input rows, one list after the other, in slices."""
    reads, last = ctx.endpoint(params["endpoint"]), params["fanout"] - 1
    pieces: list[list[int]] = []
    for rows in slices(inputs[0].ids()):
        elements = chain.from_iterable(await reads.lrange_many([f"{name}:{row}" for row in rows.tolist()], 0, last))
        while part := list(islice(elements, SLICE_ROWS)):
            pieces.append(_integers(part))
            if len(part) == SLICE_ROWS:
                await trio.lowlevel.checkpoint()
        if len(rows) == SLICE_ROWS:  # a read that the request has done already executes no checkpoint
            await trio.lowlevel.checkpoint()
    return pieces


def _list_op(name: str, *, largest: int, of_users: bool) -> OpSpec:
    """An op that reads a list of ids for each input row and, of users, their countries."""
    params = {"endpoint": _REDIS, "fanout": integer(1, largest)}
    writes = _USERS if of_users else frozenset({ID})

    @op(f"core::{name}", aliases=(name,), params=params, gives=Rows.NEW, writes=writes)
    async def listed(inputs: Inputs, params: Params, ctx: OpContext) -> RowSet:
        reads = ctx.endpoint(params["endpoint"])
        pieces: list[RowSet] = []
        for ids in await _listed(name, inputs, params, ctx) or [[]]:
            if pieces:
                await trio.lowlevel.checkpoint()
            if of_users and ids:
                pieces.append(_users(ids, await reads.hgetall_many([f"user:{user_id}" for user_id in ids]), ctx))
            else:
                pieces.append(_users([], [], ctx) if of_users else new_rows(ids))
        return concat(pieces, ctx.keys)

    return listed


def _check_vm(value: Value, params: Params, scope: Scope) -> None:
    """Reject what fails whatever the data: an expression that is always null, for a key that is not nullable."""
    out = scope.registries.keys.get(params.get("out_key") or 0)
    found = scope.expressions.get(params.get("expr_id") or "")
    if out is not None and not out.nullable and found is not None and found.always_null:
        message = f"expected a value for {out.name!r}, which is not nullable, found an expression that is always null"
        value.problem(Code.TYPE_MISMATCH, message, field="expr_id")


@op(
    "core::vm",
    aliases=("vm",),
    params={"out_key": key(KeyType.FLOAT, writes=True), "expr_id": expression()},
    gives=Rows.SAME,
    check=_check_vm,
)
def _vm(inputs: Inputs, params: Params, ctx: OpContext) -> RowSet:
    (rows,) = inputs
    out = ctx.keys[params["out_key"]]
    with np.errstate(all="ignore"):
        values, nulls = ctx.expression(params["expr_id"]).evaluate(rows, ctx.param_values)
    size = len(rows)
    if not isinstance(values, np.ndarray):
        values = np.full(size, values, np.float64)
    elif values.dtype != np.float64:
        values = values.astype(np.float64)
    null_mask: NDArray[np.bool_] | None = None
    if nulls is not False and size:
        null_mask = np.full(size, True) if nulls is True else nulls
        if not null_mask.any():
            null_mask = None
        elif not out.nullable:
            row = int(rows.ids()[np.argmax(null_mask)])
            raise ValueError(f"the value of {out.name!r} is null for id {row}, and the key is not nullable")
        else:
            values = np.where(null_mask, 0.0, values)
    finite = np.isfinite(values)
    if not finite.all():
        bad = int(np.argmin(finite))
        row = int(rows.ids()[bad])
        raise ValueError(f"the value of {out.name!r} is {values[bad]} for id {row}, which is not finite")
    return rows.with_column(out.id, Column(values, null_mask))


@op("core::filter", aliases=("filter",), params={"pred_id": predicate()}, gives=Rows.SUBSET)
def _filter(inputs: Inputs, params: Params, ctx: OpContext) -> RowSet:
    (rows,) = inputs
    return rows.where(ctx.predicate(params["pred_id"]).mask(rows, ctx.param_values))


_SORT_PARAMS: Final = {"by": key(), "order": choice("asc", "desc", default="asc")}


@op("core::sort", aliases=("sort",), params=_SORT_PARAMS, gives=Rows.REORDERED)
def _sort(inputs: Inputs, params: Params, ctx: OpContext) -> RowSet:
    (rows,) = inputs
    order = order_of(rows, ctx.keys[params["by"]], descending=params["order"] == "desc")
    return rows if order is None else rows.at(order)


@op("core::take", aliases=("take",), params={"count": integer(1)}, gives=Rows.PREFIX)
def _take(inputs: Inputs, params: Params, _ctx: OpContext) -> RowSet:
    return inputs[0].head(params["count"])


@op("core::concat", aliases=("concat",), params={"rhs": node()}, gives=Rows.APPENDED)
def _concat(inputs: Inputs, _params: Params, ctx: OpContext) -> RowSet:
    return concat((inputs[0], ctx.refs["rhs"]), ctx.keys)


_DEDUPE_PARAMS: Final = {
    "by": key(),
    "keep": choice("first", "best", default="first"),
    "score": key(KeyType.INT, KeyType.FLOAT, default=None),
}


def _check_dedupe(value: Value, params: Params, _scope: Scope) -> None:
    """Only the best row of several needs a score to compare them by."""
    is_given = isinstance(value.raw, Mapping) and "score" in value.raw
    if params.get("keep") == "best" and not is_given:
        value.problem(Code.MISSING_FIELD, "keep 'best' needs the key to compare by", field="score")
    elif params.get("keep") == "first" and is_given:
        value.problem(Code.INVALID_VALUE, "keep 'first' compares nothing: leave it out, or keep 'best'", field="score")


@op("core::dedupe", aliases=("dedupe",), params=_DEDUPE_PARAMS, gives=Rows.SUBSET, check=_check_dedupe)
def _dedupe(inputs: Inputs, params: Params, ctx: OpContext) -> RowSet:
    (rows,) = inputs
    best = None
    if params["keep"] == "best":
        best = order_of(rows, ctx.keys[params["score"]], descending=True)
    positions = unique_positions(rows, ctx.keys[params["by"]], best)
    return rows if positions is None else rows.at(positions)


@op("core::join", aliases=("join",), params={"rhs": node()}, gives=Rows.SAME)
def _join(inputs: Inputs, _params: Params, ctx: OpContext) -> RowSet:
    return left_join(inputs[0], ctx.refs["rhs"], ctx.keys)


def _parsed(key: Key, text: str | None, row: int, field: str) -> Any:
    """The value of a field for a key; a missing field reads as if nothing had written the key."""
    if text is None:
        return key.default
    if key.type is KeyType.STRING:
        return text
    try:
        value = int(text) if key.type is KeyType.INT else float(text)
    except ValueError:
        raise ValueError(f"field {field!r} of id {row} is {shown(text)}, expected {key.type.value}") from None
    if not (INT64_MIN <= value <= INT64_MAX if isinstance(value, int) else math.isfinite(value)):
        raise ValueError(f"field {field!r} of id {row} is {shown(text)}, which {key.name!r} cannot hold")
    return value


@op(
    "core::fetch_features",
    aliases=("fetch_features",),
    params={"endpoint": _REDIS, "prefix": string(), "fields": written_fields()},
    gives=Rows.SAME,
)
async def _fetch_features(inputs: Inputs, params: Params, ctx: OpContext) -> RowSet:
    (rows,) = inputs
    reads, prefix, fields = ctx.endpoint(params["endpoint"]), params["prefix"], params["fields"]
    columns: dict[str, list[Any]] = {field: [] for field in fields}
    for part in slices(rows.ids()):
        if len(part) == SLICE_ROWS:
            await trio.lowlevel.checkpoint()
        ids = part.tolist()
        hashes = await reads.hgetall_many([f"{prefix}{row}" for row in ids])
        for field, key_id in fields.items():
            key = ctx.keys[key_id]
            columns[field] += [
                _parsed(key, found.get(field), row, field) for row, found in zip(ids, hashes, strict=True)
            ]
    for field, key_id in fields.items():
        rows = ctx.with_values(rows, key_id, columns[field])
    return rows


_SLEEP_PARAMS: Final = {"duration_ms": integer(0, _DAY_MS), "fail_after_sleep": boolean(default=False)}


@op("test::sleep", aliases=("sleep",), params=_SLEEP_PARAMS, inputs=(0, 1), gives=Rows.SAME)
async def _sleep(inputs: Inputs, params: Params, _ctx: OpContext) -> RowSet:
    await trio.sleep(params["duration_ms"] / 1000)
    if params["fail_after_sleep"]:
        raise RuntimeError("fail_after_sleep")
    return inputs[0] if inputs else NO_ROWS


@op("test::busy_cpu", aliases=("busy_cpu",), params={"busy_wait_ms": integer(0, _DAY_MS)}, gives=Rows.SAME)
def _busy_cpu(inputs: Inputs, params: Params, _ctx: OpContext) -> RowSet:
    end = time.perf_counter() + params["busy_wait_ms"] / 1000
    while time.perf_counter() < end:
        pass
    return inputs[0]


@op(
    "test::fixed_source",
    aliases=("fixed_source",),
    params={"row_count": integer(0, 10_000_000, default=1)},
    inputs=(0, 0),
    gives=Rows.NEW,
    writes=frozenset({ID}),
)
async def _fixed_source(_inputs: Inputs, params: Params, _ctx: OpContext) -> RowSet:
    return new_rows(np.arange(1, params["row_count"] + 1))


CORE_OPS: Final = (
    _viewer,
    _list_op("follow", largest=10_000_000, of_users=True),
    _list_op("recommendation", largest=10_000_000, of_users=True),
    _list_op("media", largest=10_000, of_users=False),
    *(_vm, _filter, _sort, _take, _concat, _dedupe, _join, _fetch_features, _sleep, _busy_cpu, _fixed_source),
)


class OpRegistry:
    """Ops by name and alias."""

    def __init__(self, *ops: OpSpec) -> None:
        self.names: dict[str, OpSpec] = {}  # by name and alias
        for each in ops:
            self.add(each)

    def add(self, op: OpSpec) -> None:
        """Register an op; a name or alias that is taken is an error."""
        for name in (op.name, *op.aliases):
            if name in self.names:
                raise ConfigError(f"op {op.name!r}: the name {name!r} is taken by op {self.names[name].name!r}")
        self.names.update(dict.fromkeys((op.name, *op.aliases), op))

    def get(self, name: str) -> OpSpec | None:
        return self.names.get(name)

    def __iter__(self) -> Iterator[OpSpec]:
        return (op for name, op in self.names.items() if name == op.name)

    def copy(self) -> OpRegistry:
        """Another registry with the same ops, to add to."""
        return OpRegistry(*self)


_default: OpRegistry | None = None


def default_ops() -> OpRegistry:
    """The registry of this process: the ops of the format and those of installed packages.

    A package adds ops by an entry point of the group `seedbed.ops` that names an `OpSpec` or several of them.
    """
    global _default  # noqa: PLW0603  filled on first use, because reading entry points takes milliseconds
    if _default is None:
        registry = OpRegistry(*CORE_OPS)
        for entry in entry_points(group=ENTRY_POINT_GROUP):
            try:
                loaded = entry.load()
                several = [loaded] if isinstance(loaded, OpSpec) else list(loaded)
            except Exception as error:
                raise ConfigError(
                    f"entry point {entry.name!r} of {ENTRY_POINT_GROUP} ({entry.value}) cannot be loaded: "
                    f"{type(error).__name__}: {error}; repair or uninstall it"
                ) from error
            for each in several:
                if not isinstance(each, OpSpec):
                    raise ConfigError(
                        f"entry point {entry.name!r} of {ENTRY_POINT_GROUP} gives {each!r}, not an OpSpec"
                    )
                registry.add(each)
        _default = registry
    return _default


def register_op(op: OpSpec) -> OpSpec:
    """Add an op to the registry of this process."""
    default_ops().add(op)
    return op
