from __future__ import annotations

import gc
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import trio
from plan_helpers import FakeEndpoint, assert_nothing_left, node, open_engine, plan_of, with_ops

from seedbed.errors import EndpointUnavailable, PlanError
from seedbed.plans import opspec
from seedbed.plans.execute import Execution, UnitRun
from seedbed.plans.opspec import OpContext, OpSpec, RequestContext, Rows
from seedbed.plans.rowset import RowSet

if TYPE_CHECKING:
    from trio.testing import MockClock

    from seedbed.plans.engine import PlanEngine

EP = "ep_0001"
OK = plan_of(
    node("v", "viewer", endpoint=EP),
    node("f", "follow", "v", endpoint=EP, fanout=3),
    node("r", "recommendation", "v", endpoint=EP, fanout=3),
    node("j", "concat", "f", rhs="r"),
    node("o", "sort", "j", by=1, order="desc"),
    node("t", "take", "o", count=2),
)
SLOW = plan_of(node("a", "sleep", duration_ms=50), node("b", "sleep", duration_ms=50), outputs=["a", "b"])
BAD = plan_of(
    node("a", "sleep", duration_ms=5, fail_after_sleep=True), node("b", "sleep", duration_ms=9), outputs=["a", "b"]
)


async def _lose(inputs: Any, params: Any, ctx: Any) -> Any:
    await ctx.endpoint(EP).hgetall("user:1")
    raise EndpointUnavailable("connection reset")


OPS = with_ops(OpSpec(name="t::lose", inputs=(0, 0), gives=Rows.NEW, run_async=_lose))
LOST = plan_of(node("x", "t::lose"), node("v", "viewer", endpoint=EP), outputs=["x", "v"], ops=OPS)


def alive() -> Counter[str]:
    """The number of living objects of requests."""
    gc.collect()
    kinds = (Execution, UnitRun, OpContext, RequestContext, RowSet)
    return Counter(type(each).__name__ for each in gc.get_objects() if isinstance(each, kinds))


async def outcome(engine: PlanEngine, *args: Any, **options: Any) -> str:
    """OK, or the code of the error."""
    try:
        await engine.execute(*args, **options)
    except PlanError as error:
        return error.code
    return "OK"


async def test_nothing_is_left_of_thousands_of_requests(autojump_clock: MockClock) -> None:
    """Requests that succeed, fail, time out and lose their endpoint, in turn and many at once, leave nothing behind."""
    endpoint = FakeEndpoint({}, {"follow:1": ["2", "3"], "recommendation:1": ["3", "4"]})
    seen: Counter[str] = Counter()
    async with open_engine(endpoints=endpoint, ops=OPS, max_concurrent_requests=8, max_queue=1_000) as engine:

        async def one(number: int) -> None:
            kind = number % 5
            if kind == 0:
                seen[await outcome(engine, OK, {"user_id": 1}, deadline=60, node_timeout=60)] += 1
            elif kind == 1:
                seen[await outcome(engine, BAD, {"user_id": 1})] += 1
            elif kind == 2:
                seen[await outcome(engine, SLOW, {"user_id": 1}, node_timeout=0.01)] += 1
            elif kind == 3:
                with trio.move_on_after(0.003):
                    await outcome(engine, SLOW, {"user_id": 1})
                seen["cancelled"] += 1
            else:
                seen[await outcome(engine, LOST, {"user_id": 1})] += 1

        async def round_of(count: int) -> None:
            async with trio.open_nursery() as nursery:
                for number in range(count):
                    nursery.start_soon(one, number)

        await round_of(50)
        tasks, objects = trio.lowlevel.current_statistics().tasks_living, alive()
        seen.clear()
        for _ in range(20):
            await round_of(150)
            assert_nothing_left(engine)
        assert trio.lowlevel.current_statistics().tasks_living == tasks
        assert alive() == objects
        assert sum(seen.values()) == 3_000
        assert seen == dict.fromkeys(("OK", "NODE_FAILED", "NODE_TIMEOUT", "cancelled", "ENDPOINT_UNAVAILABLE"), 600)


async def test_nothing_is_left_of_requests_that_use_threads() -> None:
    """Threads that are waited for and threads that are abandoned, alternating, all end and are all counted."""

    def work(inputs: Any, params: Any, ctx: Any) -> Any:
        if params["fails"]:
            raise ValueError("told to")
        return inputs[0]

    def overrun(inputs: Any, params: Any, ctx: Any) -> Any:
        trio.from_thread.run_sync(entered[-1].cancel)
        return inputs[0]

    ops = with_ops(
        OpSpec(name="t::work", gives=Rows.SAME, params={"fails": opspec.boolean()}, run=work),
        OpSpec(name="t::overrun", gives=Rows.SAME, run=overrun),
    )
    plans = {
        fails: plan_of(node("s", "fixed_source"), node("w", "t::work", "s", fails=fails), ops=ops)
        for fails in (False, True)
    }
    given_up = plan_of(node("s", "fixed_source"), node("w", "t::overrun", "s"), ops=ops)
    entered: list[trio.CancelScope] = []
    seen: Counter[str] = Counter()
    async with open_engine(ops=ops) as engine:

        async def round_of(count: int) -> None:
            for _ in range(count):
                seen[await outcome(engine, plans[False], {"user_id": 1}, node_timeout=60)] += 1
                seen[await outcome(engine, plans[True], {"user_id": 1}, deadline=60)] += 1
                with trio.CancelScope() as scope:
                    entered.append(scope)
                    await outcome(engine, given_up, {"user_id": 1})
                assert scope.cancelled_caught
                await engine._pool.wait_idle()

        await round_of(3)
        tasks, threads, objects = trio.lowlevel.current_statistics().tasks_living, threading.active_count(), alive()
        seen.clear()
        await round_of(200)
        assert seen == {"OK": 200, "NODE_FAILED": 200}
        statistics = engine.statistics()
        assert (statistics.threads_busy, statistics.threads_late, statistics.late_completions) == (0, 0, 203)
        assert trio.lowlevel.current_statistics().tasks_living == tasks
        assert threading.active_count() <= threads + 2
        assert alive() == objects


async def test_the_number_of_compiled_plans_is_bounded() -> None:
    """An engine caches a bounded number of compiled plans."""
    async with open_engine() as engine:
        for number in range(300):
            await engine.execute(plan_of(node(f"n{number}", "fixed_source")), {"user_id": 1})
        assert len(engine._compiled) == 256
