"""The ops of the plan format."""

from __future__ import annotations

import re
import time
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import trio

from . import opspec
from .model import KeyType
from .opspec import OpSpec, Rows
from .rowset import COUNTRY, ID, NO_ROWS, concat, first_in_order, new_rows, order_of, string_column
from .slices import SLICE_ROWS, slices

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from .context import OpContext
    from .rowset import RowSet

    Inputs = tuple[RowSet, ...]
    Params = Mapping[str, Any]

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_SURELY_64_BITS = 19  # digits below which every integer has them
_DAY_MS = 86_400_000


def _integers(texts: list[str]) -> list[int]:
    """Those of the texts that are integers of 64 bits."""
    # Nearly always they are nothing but digits, and hundreds a request: looking at all of them at once is quicker.
    together = "".join(texts)
    if together.isdigit() and together.isascii() and all(texts) and max(map(len, texts)) < _SURELY_64_BITS:
        return list(map(int, texts))
    found = [int(text) for text in texts if _INTEGER.fullmatch(text)]
    return [number for number in found if -(2**63) <= number < 2**63]


def _users(ids: Sequence[int], hashes: Iterable[Mapping[str, str]], ctx: OpContext) -> RowSet:
    columns = {COUNTRY: string_column([fields.get("country") for fields in hashes])} if COUNTRY in ctx.keys else {}
    return new_rows(ids, columns)


async def _viewer(_inputs: Inputs, params: Params, ctx: OpContext) -> RowSet:
    user_id = ctx.request.user_id
    fields = await ctx.endpoint(params["endpoint"]).hgetall(f"user:{user_id}")
    return _users([user_id], [fields], ctx)


def _unknown_viewer(_inputs: Inputs, _params: Params, ctx: OpContext) -> RowSet:
    return _users([ctx.request.user_id], [{}], ctx)


async def _listed(name: str, inputs: Inputs, params: Params, ctx: OpContext) -> list[list[int]]:
    """The ids in the lists of all input rows, one list after the other, in slices."""
    endpoint, last = ctx.endpoint(params["endpoint"]), params["fanout"] - 1
    pieces: list[list[int]] = []
    for rows in slices(inputs[0].ids()):
        elements = chain.from_iterable(await endpoint.lrange_many([f"{name}:{row}" for row in rows.tolist()], 0, last))
        while part := list(islice(elements, SLICE_ROWS)):
            pieces.append(_integers(part))
            if len(part) == SLICE_ROWS:
                await trio.lowlevel.checkpoint()
        if len(rows) == SLICE_ROWS:  # a read of what is known already passes no checkpoint
            await trio.lowlevel.checkpoint()
    return pieces


async def _listed_users(name: str, inputs: Inputs, params: Params, ctx: OpContext) -> RowSet:
    endpoint = ctx.endpoint(params["endpoint"])
    pieces: list[RowSet] = []
    for ids in await _listed(name, inputs, params, ctx):
        if pieces:
            await trio.lowlevel.checkpoint()
        hashes = await endpoint.hgetall_many([f"user:{user_id}" for user_id in ids])
        pieces.append(_users(ids, hashes, ctx))
    return concat(pieces, ctx.keys) if pieces else _users([], [], ctx)


async def _follow(inputs: Inputs, params: Params, ctx: OpContext) -> RowSet:
    return await _listed_users("follow", inputs, params, ctx)


async def _recommendation(inputs: Inputs, params: Params, ctx: OpContext) -> RowSet:
    return await _listed_users("recommendation", inputs, params, ctx)


async def _media(inputs: Inputs, params: Params, ctx: OpContext) -> RowSet:
    pieces: list[RowSet] = []
    for ids in await _listed("media", inputs, params, ctx):
        if pieces:
            await trio.lowlevel.checkpoint()
        pieces.append(new_rows(ids))
    return concat(pieces, ctx.keys) if pieces else NO_ROWS


def _vm(inputs: Inputs, params: Params, ctx: OpContext) -> RowSet:
    (rows,) = inputs
    key = ctx.keys[params["out_key"]]
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
        elif not key.nullable:
            row = int(rows.ids()[np.argmax(null_mask)])
            raise ValueError(f"the value of {key.name!r} is null for id {row}, and the key is not nullable")
        else:
            values = np.where(null_mask, 0.0, values)
    finite = np.isfinite(values)
    if not finite.all():
        bad = int(np.argmin(finite))
        raise ValueError(
            f"the value of {key.name!r} is {values[bad]} for id {int(rows.ids()[bad])}, which is not finite"
        )
    return rows.with_column(key.id, values, null_mask)


def _filter(inputs: Inputs, params: Params, ctx: OpContext) -> RowSet:
    (rows,) = inputs
    return rows.where(ctx.predicate(params["pred_id"]).mask(rows, ctx.param_values))


def _sort(inputs: Inputs, params: Params, ctx: OpContext) -> RowSet:
    (rows,) = inputs
    order = order_of(rows, ctx.keys[params["by"]], descending=params["order"] == "desc")
    return rows if order is None else rows.at(order)


def _take(inputs: Inputs, params: Params, _ctx: OpContext) -> RowSet:
    return inputs[0].head(params["count"])


def sort_and_take(inputs: Inputs, sort: Params, take: Params, ctx: OpContext) -> RowSet:
    """What sort and then take would give, ties and nulls included."""
    (rows,) = inputs
    count = take["count"]
    if count >= len(rows):
        return _sort(inputs, sort, ctx)
    order = first_in_order(rows, ctx.keys[sort["by"]], count, descending=sort["order"] == "desc")
    return rows.head(count) if order is None else rows.at(order)


def _concat(inputs: Inputs, _params: Params, ctx: OpContext) -> RowSet:
    return concat((inputs[0], ctx.refs["rhs"]), ctx.keys)


async def _sleep(inputs: Inputs, params: Params, _ctx: OpContext) -> RowSet:
    await trio.sleep(params["duration_ms"] / 1000)
    if params["fail_after_sleep"]:
        raise RuntimeError("fail_after_sleep")
    return inputs[0] if inputs else NO_ROWS


def _busy_cpu(inputs: Inputs, params: Params, _ctx: OpContext) -> RowSet:
    end = time.perf_counter() + params["busy_wait_ms"] / 1000
    while time.perf_counter() < end:
        pass
    return inputs[0]


async def _fixed_source(_inputs: Inputs, params: Params, _ctx: OpContext) -> RowSet:
    return new_rows(np.arange(1, params["row_count"] + 1))


def _users_op(name: str, run: opspec.AsyncRun) -> OpSpec:
    return OpSpec(
        name=f"core::{name}",
        aliases=(name,),
        params={"endpoint": opspec.endpoint("redis"), "fanout": opspec.integer(1, 10_000_000)},
        gives=Rows.NEW,
        writes=frozenset({ID, COUNTRY}),
        run_async=run,
    )


VM: Final = OpSpec(
    name="core::vm",
    aliases=("vm",),
    params={"out_key": opspec.key(KeyType.FLOAT, writes=True), "expr_id": opspec.expression()},
    gives=Rows.SAME,
    run=_vm,
)
FILTER: Final = OpSpec(
    name="core::filter", aliases=("filter",), params={"pred_id": opspec.predicate()}, gives=Rows.SUBSET, run=_filter
)
SORT: Final = OpSpec(
    name="core::sort",
    aliases=("sort",),
    params={"by": opspec.key(), "order": opspec.choice("asc", "desc", default="asc")},
    gives=Rows.REORDERED,
    run=_sort,
)
TAKE: Final = OpSpec(
    name="core::take",
    aliases=("take",),
    params={"count": opspec.integer(1)},
    gives=Rows.PREFIX,
    run=_take,
)
CONCAT: Final = OpSpec(
    name="core::concat", aliases=("concat",), params={"rhs": opspec.node()}, gives=Rows.APPENDED, run=_concat
)
CORE_OPS: Final = (
    OpSpec(
        name="core::viewer",
        aliases=("viewer",),
        params={"endpoint": opspec.endpoint("redis")},
        inputs=(0, 0),
        gives=Rows.NEW,
        writes=frozenset({ID, COUNTRY}),
        run_async=_viewer,
        fallback=_unknown_viewer,
    ),
    _users_op("follow", _follow),
    _users_op("recommendation", _recommendation),
    OpSpec(
        name="core::media",
        aliases=("media",),
        params={"endpoint": opspec.endpoint("redis"), "fanout": opspec.integer(1, 10_000)},
        gives=Rows.NEW,
        writes=frozenset({ID}),
        run_async=_media,
    ),
    VM,
    FILTER,
    SORT,
    TAKE,
    CONCAT,
    OpSpec(
        name="test::sleep",
        aliases=("sleep",),
        params={"duration_ms": opspec.integer(0, _DAY_MS), "fail_after_sleep": opspec.boolean(default=False)},
        inputs=(0, 1),
        gives=Rows.SAME,
        run_async=_sleep,
    ),
    OpSpec(
        name="test::busy_cpu",
        aliases=("busy_cpu",),
        params={"busy_wait_ms": opspec.integer(0, _DAY_MS)},
        gives=Rows.SAME,
        run=_busy_cpu,
    ),
    OpSpec(
        name="test::fixed_source",
        aliases=("fixed_source",),
        params={"row_count": opspec.integer(0, 10_000_000, default=1)},
        inputs=(0, 0),
        gives=Rows.NEW,
        writes=frozenset({ID}),
        run_async=_fixed_source,
    ),
)
