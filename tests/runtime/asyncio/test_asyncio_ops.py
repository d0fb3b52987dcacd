"""Ops of plans whose functions are written for asyncio."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from hosts import HOSTS

from seedbed.errors import ConfigError, PlanError
from seedbed.plans import PlanEngine, op, parse_plan
from seedbed.plans.ops import OpRegistry, default_ops
from seedbed.plans.opspec import OpSpec, Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from seedbed.plans.opspec import OpContext
    from seedbed.plans.rowset import RowSet


class Data:
    """An endpoint in memory that counts its calls."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def get(self, _endpoint_id: str) -> Data:
        return self

    async def hgetall(self, key: str) -> dict[str, str]:
        raise NotImplementedError

    async def lrange(self, key: str, start: int, stop: int) -> list[str]:
        raise NotImplementedError

    async def hgetall_many(self, keys: list[str]) -> list[dict[str, str]]:
        self.asked += keys
        return [{"age": "3"} for _ in keys]

    async def lrange_many(self, keys: list[str], start: int, stop: int) -> list[list[str]]:
        raise NotImplementedError


async def gather(_inputs: tuple[RowSet, ...], _params: Mapping[str, Any], context: OpContext) -> RowSet:
    """Read twice at once, as asyncio does it."""
    data = context.endpoint("data")
    first, second = await asyncio.gather(data.hgetall("user:1"), data.hgetall("user:1"))
    await asyncio.sleep(0.001)
    return context.new_rows([int(first["age"]), int(second["age"]) + 1])


async def hangs(_inputs: tuple[RowSet, ...], _params: Mapping[str, Any], _context: OpContext) -> RowSet:
    """Wait for ever."""
    await asyncio.Event().wait()
    raise AssertionError


def plan_of(ops: OpRegistry, name: str) -> Any:
    """A plan of one node."""
    return parse_plan(
        {
            "schema_version": 1,
            "plan_name": "one",
            "nodes": [{"node_id": "n0", "op": name, "inputs": [], "params": {}}],
            "outputs": ["n0"],
            "expr_table": {},
            "pred_table": {},
        },
        ops=ops,
    )


@HOSTS
def test_an_op_on_asyncio_reads_endpoints_and_respects_its_timeout(host: Callable[..., Any]) -> None:
    """Its reads go to trio and back, identical ones once; a deadline cancels it."""
    ops = default_ops().copy()
    # The copy shows that a function which was made for trio stays so.
    ops.add(attrs.evolve(op("embed::gather", gives=Rows.NEW, inputs=(0, 0), runtime="asyncio")(gather), aliases=("g",)))
    ops.add(op("embed::hangs", gives=Rows.NEW, inputs=(0, 0), runtime="asyncio")(hangs))
    data = Data()

    async def main() -> list[int]:
        async with PlanEngine(ops=ops, endpoints=data) as engine:
            with pytest.raises(PlanError, match="deadline"):
                await engine.execute(plan_of(ops, "embed::hangs"), {"user_id": 1}, deadline=0.05)
            response = await engine.execute(plan_of(ops, "embed::gather"), {"user_id": 1})
            return [each["id"] for each in response.candidates]

    assert host(main) == [3, 4]
    assert data.asked == ["user:1"]


@HOSTS
def test_an_op_for_asyncio_that_runs_on_trio_fails_with_the_option_to_declare(host: Callable[..., Any]) -> None:
    """The error of its node says what to write."""
    ops = default_ops().copy()
    ops.add(op("embed::hangs", gives=Rows.NEW, inputs=(0, 0))(hangs))

    async def main() -> None:
        async with PlanEngine(ops=ops, endpoints=Data()) as engine:
            with pytest.raises(PlanError, match="written for asyncio: declare the op with runtime='asyncio'"):
                await engine.execute(plan_of(ops, "embed::hangs"), {"user_id": 1}, deadline=5)

    host(main)


def test_an_impossible_runtime_of_an_op_is_rejected() -> None:
    """The message names the op."""
    with pytest.raises(ConfigError, match="op 'embed::x' has runtime='asyncio', which is for async functions"):
        OpSpec(name="embed::x", gives=Rows.SAME, run=lambda inputs, _params, _context: inputs[0], runtime="asyncio")
