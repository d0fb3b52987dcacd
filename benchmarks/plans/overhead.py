"""What the engine costs per node that does nothing, against a trio task per node written by hand."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from seedbed.plans.engine import PlanEngine
from seedbed.plans.format import parse_plan
from seedbed.plans.ops import default_ops
from seedbed.plans.opspec import Rows, op
from seedbed.plans.rowset import NO_ROWS

from ..common import Bar, Table, best_of, cpu_seconds, expect

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seedbed.plans.format import Plan
    from seedbed.plans.ops import OpRegistry
    from seedbed.plans.opspec import OpContext
    from seedbed.plans.rowset import RowSet

BAR = 1.5
SHAPES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    # As complex_dag: two branches of three that meet, then a chain.
    "ten nodes": {
        "n0": (),
        "n1": ("n0",),
        "n2": ("n1",),
        "n3": ("n2",),
        "n4": ("n0",),
        "n5": ("n4",),
        "n6": ("n5",),
        "n7": ("n3", "n6"),
        "n8": ("n7",),
        "n9": ("n8",),
    },
    "a chain of ten": {f"n{at}": (f"n{at - 1}",) if at else () for at in range(10)},
    "one, then 98, then one": {
        "n0": (),
        **{f"n{at}": ("n0",) for at in range(1, 99)},
        "n99": tuple(f"n{at}" for at in range(1, 99)),
    },
}


@op("bench::nothing", gives=Rows.NEW, inputs=(0, 98))
async def nothing(_inputs: tuple[RowSet, ...], _params: Mapping[str, Any], _ctx: OpContext) -> RowSet:
    """Nothing, as quickly as can be."""
    return NO_ROWS


def make_plan(shape: Mapping[str, tuple[str, ...]]) -> tuple[Plan, OpRegistry]:
    """A plan of that shape whose nodes do nothing."""
    ops = default_ops().copy()
    ops.add(nothing)
    nodes = [
        {"node_id": name, "op": nothing.name, "inputs": list(needs), "params": {}} for name, needs in shape.items()
    ]
    document = {"schema_version": 1, "plan_name": "nothing", "nodes": nodes, "outputs": [list(shape)[-1]]}
    return parse_plan({**document, "expr_table": {}, "pred_table": {}}, ops=ops), ops


async def by_hand(shape: Mapping[str, tuple[str, ...]], requests: int) -> None:
    """A nursery per request, under its deadline, and a task per node that waits for those it needs."""

    async def node(name: str, done: dict[str, trio.Event], results: dict[str, RowSet]) -> None:
        inputs = []
        for needed in shape[name]:
            await done[needed].wait()
            inputs.append(results[needed])
        results[name] = await nothing.run_async(tuple(inputs), {}, None)  # type: ignore[misc, arg-type]
        done[name].set()

    for _ in range(requests):
        done = {name: trio.Event() for name in shape}
        results: dict[str, RowSet] = {}
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for name in shape:
                    nursery.start_soon(node, name, done, results)
        expect(len(results) == len(shape), "a node is missing")


async def with_engine(plan: Plan, ops: OpRegistry, requests: int, node_timeout: float | None) -> float:
    """CPU of the requests, without that of opening the engine."""
    async with PlanEngine(ops=ops, endpoints=_NoEndpoints()) as engine:
        await engine.execute(plan, {"user_id": 1}, deadline=60)
        before = time.process_time()
        for _ in range(requests):
            await engine.execute(plan, {"user_id": 1}, deadline=60, node_timeout=node_timeout)
        taken = time.process_time() - before
        expect(engine.statistics().outcomes == {"OK": requests + 1}, "a request failed")
    return taken


class _NoEndpoints:
    def get(self, endpoint_id: str) -> Any:
        raise KeyError(endpoint_id)


def measure(*, short: bool) -> tuple[list[Table], list[Bar]]:
    """Both, for each shape."""
    rows: list[dict[str, Any]] = []
    bars: list[Bar] = []
    rounds = 1 if short else 7
    for title, shape in SHAPES.items():
        requests = 20 if short else 30_000 // len(shape)
        plan, ops = make_plan(shape)
        nodes = requests * len(shape)
        measures = {
            "by hand": lambda shape=shape, requests=requests: cpu_seconds(partial(trio.run, by_hand, shape, requests))[
                0
            ],
            "engine": partial(trio.run, with_engine, plan, ops, requests, None),
            "with a node timeout": partial(trio.run, with_engine, plan, ops, requests, 30.0),
        }
        best = best_of(rounds, measures)
        rows.append(
            {
                "": title,
                **{f"{name}, µs a node": cpu / nodes * 1e6 for name, cpu in best.items()},
                "engine ÷ by hand": best["engine"] / best["by hand"],
            }
        )
        bars.append(
            Bar(
                name=f"CPU a node ÷ a trio task per node, {title}",
                measured=best["engine"] / best["by hand"],
                allowed=BAR,
            )
        )
    return [Table(title=f"CPU of nodes that do nothing, best of {rounds}", rows=rows)], bars
