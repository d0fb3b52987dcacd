from __future__ import annotations

import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import trio
from plan_helpers import INLINE, node, plan_of, with_ops
from redis_servers import PATIENT, real_server, redis_at

from seedbed.errors import PlanError
from seedbed.plans.engine import PlanEngine
from seedbed.plans.opspec import OpSpec, Rows
from seedbed.plans.registries import Registries, default_registries

if TYPE_CHECKING:
    from seedbed.plans.format import Plan

FOLLOWS = plan_of(node("v", "viewer", endpoint="ep_0001"), node("f", "follow", "v", endpoint="ep_0001", fanout=3))
DEADLINE = 0.1


@pytest.mark.parametrize("first_use", [True, False], ids=["on the plan's first use", "later"])
async def test_a_backend_that_paused_leads_to_no_rejection(first_use: bool) -> None:
    """After Redis hung the plan is answered again beside another plan, and no request is OVERLOADED."""
    release = trio.Event()

    async def hold(inputs: Any, params: Any, ctx: Any) -> Any:
        await release.wait()
        return inputs[0]

    ops = with_ops(OpSpec(name="t::hold", gives=Rows.SAME, run_async=hold))
    other = plan_of(node("s", "fixed_source"), node("h", "t::hold", "s"), ops=ops)
    usual = default_registries()
    seen: Counter[str] = Counter()
    with real_server() as server:
        registries = Registries(
            keys=usual.keys, params=usual.params, endpoints={"ep_0001": redis_at(server.port, PATIENT)}
        )
        async with (
            PlanEngine(registries=registries, ops=ops, costs=INLINE) as engine,
            trio.open_nursery() as nursery,
        ):

            async def ask(plan: Plan) -> str:
                try:
                    await engine.execute(plan, {"user_id": 1}, deadline=DEADLINE)
                except PlanError as error:
                    seen[error.code] += 1
                    return error.code
                return "OK"

            nursery.start_soon(engine.execute, other, {"user_id": 1})
            if not first_use:
                while await ask(FOLLOWS) != "OK":
                    pass
            assert server._process is not None
            server._process.send_signal(signal.SIGSTOP)
            async with trio.open_nursery() as callers:
                for _ in range(20):
                    callers.start_soon(ask, FOLLOWS)
            assert seen["DEADLINE_EXCEEDED"] >= 20
            server._process.send_signal(signal.SIGCONT)
            answers = [await ask(FOLLOWS) for _ in range(20)]
            assert "OK" in answers
            release.set()
    assert seen["OVERLOADED"] == 0
