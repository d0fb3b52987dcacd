"""Short forms for plans, endpoints that record their reads, and engines whose costs are fixed."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import trio

from seedbed.plans.compile import Cost, Costs
from seedbed.plans.engine import PlanEngine
from seedbed.plans.format import parse_plan
from seedbed.plans.ops import CORE_OPS, OpRegistry, default_ops
from seedbed.plans.redis import RedisReads
from seedbed.plans.registries import default_registries

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from trio.testing import MockClock

    from seedbed.plans.format import Plan
    from seedbed.plans.opspec import OpSpec
    from seedbed.plans.registries import Registries
    from seedbed.plans.request import Response

CHEAP = Cost(1e-6, 0.0)
# Every op of the format is far cheaper than a hop, so that `auto` runs everything on the loop.
_SYNC = [op.name for op in CORE_OPS if op.run is not None and op.name.startswith("core::")]
INLINE = Costs(hop=1.0, ops=dict.fromkeys((*_SYNC, "regex"), CHEAP))


def node(node_id: str, op: str, *inputs: str, on_error: str | None = None, **params: Any) -> dict[str, Any]:
    """One node of a plan document."""
    document: dict[str, Any] = {"node_id": node_id, "op": op, "inputs": list(inputs), "params": params}
    if on_error is not None:
        document["extensions"] = {"seedbed.on_error.v1": {"policy": on_error}}
    return document


def plan_of(
    *nodes: dict[str, Any],
    outputs: Sequence[str] | None = None,
    expressions: Mapping[str, Any] | None = None,
    predicates: Mapping[str, Any] | None = None,
    ops: OpRegistry | None = None,
    registries: Registries | None = None,
) -> Plan:
    """A plan of these nodes, validated; its output is the last node unless others are named."""
    document: dict[str, Any] = {
        "schema_version": 1,
        "plan_name": "test",
        "nodes": list(nodes),
        "outputs": [nodes[-1]["node_id"]] if outputs is None else list(outputs),
        "expr_table": dict(expressions or {}),
        "pred_table": dict(predicates or {}),
    }
    if any("extensions" in one for one in nodes):
        document["capabilities_required"] = ["seedbed.on_error.v1"]
    return parse_plan(document, registries=registries or default_registries(), ops=ops or default_ops())


def with_ops(*ops: OpSpec) -> OpRegistry:
    """The ops of the format and these."""
    registry = default_ops().copy()
    for op in ops:
        registry.add(op)
    return registry


class FakeEndpoint(RedisReads):
    """Hashes and lists in memory; records every key that was read, and can be slow or down."""

    def __init__(self, hashes: Mapping[str, dict[str, str]], lists: Mapping[str, list[str]]) -> None:
        self.hashes = hashes
        self.lists = lists
        self.asked: list[str] = []
        self.delay = 0.0
        self.error: Exception | None = None

    def get(self, endpoint_id: str) -> FakeEndpoint:
        assert endpoint_id == "ep_0001"
        return self

    async def hgetall_many(self, keys: Sequence[str]) -> list[dict[str, str]]:
        await self._answer(keys)
        return [self.hashes.get(key, {}) for key in keys]

    async def lrange_many(self, keys: Sequence[str], start: int, stop: int) -> list[list[str]]:
        await self._answer(keys)
        return [self.lists.get(key, [])[start : stop + 1] for key in keys]

    async def _answer(self, keys: Sequence[str]) -> None:
        self.asked.extend(keys)
        await trio.sleep(self.delay)
        if self.error is not None:
            raise self.error


class NoEndpoints:
    def get(self, endpoint_id: str) -> Any:
        raise AssertionError(f"no test asks endpoint {endpoint_id}")


@asynccontextmanager
async def open_engine(**options: Any) -> AsyncIterator[PlanEngine]:
    """An engine without endpoints and with fixed costs, unless the options differ; checks that nothing is left."""
    async with PlanEngine(**{"endpoints": NoEndpoints(), "costs": INLINE, "cpu_threads": 2, **options}) as engine:
        yield engine
        assert_nothing_left(engine)


def assert_nothing_left(engine: PlanEngine) -> None:
    """No request runs or waits in the engine, and no task waits for a thread."""
    statistics = engine.statistics()
    assert (statistics.running, statistics.queued) == (0, 0)
    assert not engine._executions
    assert not engine._pool.limiter.statistics().tasks_waiting


async def jump_at(event: trio.Event, clock: MockClock, seconds: float) -> None:
    """Advance the clock as soon as the event is set."""
    await event.wait()
    clock.jump(seconds)


def ids(response: Response) -> list[int]:
    """The ids of the candidates."""
    return [candidate["id"] for candidate in response.candidates]
