from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing
from plan_helpers import ids, jump_at, node, open_engine, plan_of, with_ops

from seedbed.errors import ConfigError, InvalidRequest, NodeTimeout, Overloaded, PlanError
from seedbed.plans.admission import Admission, Forecast, LoopMeter, ThreadPool
from seedbed.plans.engine import DrainReport, PlanEngine
from seedbed.plans.opspec import OpSpec, Rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trio.testing import MockClock

    from seedbed.plans.format import Plan

TWENTY = plan_of(node("s", "fixed_source"), node("w", "sleep", "s", duration_ms=20))


class Client:
    """Sends requests and records the outcome and time of each."""

    def __init__(self, engine: PlanEngine) -> None:
        self.engine = engine
        self.start = trio.current_time()
        self.seen: dict[str, tuple[str, int]] = {}

    async def send(self, name: str, plan: Plan = TWENTY, **options: Any) -> None:
        try:
            await self.engine.execute(plan, {"user_id": 1}, **options)
            outcome = "OK"
        except PlanError as error:
            outcome = error.code
        self.seen[name] = outcome, round((trio.current_time() - self.start) * 1000)


async def test_requests_beyond_the_limits_are_rejected_at_once(autojump_clock: MockClock) -> None:
    """With two slots and a queue of one, the fourth request is rejected immediately and the third waits."""
    async with open_engine(max_concurrent_requests=2, max_queue=1) as engine:
        client = Client(engine)
        async with trio.open_nursery() as nursery:
            for name in "abc":
                nursery.start_soon(client.send, name)
                await trio.testing.wait_all_tasks_blocked()
            statistics = engine.statistics()
            assert (statistics.running, statistics.queued) == (2, 1)
            with pytest.raises(Overloaded, match=r"2 requests run and 1 wait \(max_queue\)"):
                await engine.execute(TWENTY, {"user_id": 1})
            assert trio.current_time() == client.start
        assert client.seen == {"a": ("OK", 20), "b": ("OK", 20), "c": ("OK", 40)}
        assert engine.statistics().outcomes == {"OK": 3, "OVERLOADED": 1}


async def test_waiting_requests_are_served_in_order(autojump_clock: MockClock) -> None:
    """First come, first served; one that is cancelled while it waits is skipped."""
    async with open_engine(max_concurrent_requests=1) as engine:
        client = Client(engine)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, "a")
            await trio.testing.wait_all_tasks_blocked()
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as others:
                    others.start_soon(client.send, "gone")
                    await trio.testing.wait_all_tasks_blocked()
                    scope.cancel()
            for name in "bc":
                nursery.start_soon(client.send, name)
                await trio.testing.wait_all_tasks_blocked()
        assert client.seen == {"a": ("OK", 20), "b": ("OK", 40), "c": ("OK", 60)}


async def test_a_request_that_could_not_be_answered_in_time_is_not_started(autojump_clock: MockClock) -> None:
    """A waiting request is rejected as soon as less time is left than the shortest request has taken."""
    async with open_engine(max_concurrent_requests=1) as engine:
        await engine.execute(TWENTY, {"user_id": 1})
        client = Client(engine)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, "a")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(lambda: client.send("hopeless", deadline=0.035))
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(lambda: client.send("patient", deadline=0.045))
        assert client.seen == {"hopeless": ("OVERLOADED", 15), "a": ("OK", 20), "patient": ("OK", 40)}


async def test_the_deadline_counts_from_arrival(autojump_clock: MockClock) -> None:
    """Time in the queue counts: the deadline does not move when a request starts."""
    async with open_engine(max_concurrent_requests=1) as engine:
        client = Client(engine)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, "a")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(lambda: client.send("b", deadline=0.03))
        assert client.seen == {"a": ("OK", 20), "b": ("DEADLINE_EXCEEDED", 30)}


class Gate:
    """A sync op that blocks until it is released."""

    def __init__(self) -> None:
        self.entered = trio.Event()
        self.open = threading.Event()
        self.ops = with_ops(OpSpec(name="t::gate", gives=Rows.SAME, run=self._run))
        self.plan = plan_of(node("s", "fixed_source"), node("g", "t::gate", "s"), ops=self.ops)

    def _run(self, inputs: Any, params: Any, ctx: Any) -> Any:
        trio.from_thread.run_sync(self.entered.set)
        assert self.open.wait(30)
        return inputs[0]


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A gate that is open at the end of the test."""
    made = Gate()
    yield made
    made.open.set()


async def test_late_threads_that_occupy_the_whole_pool_lead_to_rejection(gate: Gate, mock_clock: MockClock) -> None:
    """A request that needs a thread is rejected after a second, others are answered; later all are."""
    async with open_engine(ops=gate.ops, cpu_threads=1) as engine, trio.open_nursery() as nursery:
        nursery.start_soon(jump_at, gate.entered, mock_clock, 1)
        with pytest.raises(NodeTimeout):
            await engine.execute(gate.plan, {"user_id": 1}, node_timeout=1)
        nursery.start_soon(pass_time, mock_clock, 1)
        with pytest.raises(
            Overloaded, match=r"none of 1 threads .* became free in time; 1 work on nodes whose requests"
        ):
            await engine.execute(gate.plan, {"user_id": 1})
        light = plan_of(node("s", "fixed_source"), node("t", "take", "s", count=1))
        assert ids(await engine.execute(light, {"user_id": 1})) == [1]
        nursery.start_soon(pass_time, mock_clock, 1)
        with pytest.raises(Overloaded):
            await engine.execute(light, {"user_id": 1}, fusion="off")
        gate.open.set()
        await engine._pool.wait_idle()
        assert ids(await engine.execute(gate.plan, {"user_id": 1})) == [1]


async def test_a_request_that_waits_for_abandoned_threads_is_answered_if_one_becomes_free(
    gate: Gate, mock_clock: MockClock
) -> None:
    """Abandoned threads are no reason to reject a request that can still finish."""
    async with open_engine(ops=gate.ops, cpu_threads=1) as engine, trio.open_nursery() as nursery:
        client = Client(engine)
        nursery.start_soon(lambda: client.send("a", gate.plan, node_timeout=1))
        await gate.entered.wait()
        mock_clock.jump(1)
        while "a" not in client.seen:
            await trio.lowlevel.checkpoint()
        nursery.start_soon(client.send, "patient", gate.plan)
        nursery.start_soon(lambda: client.send("b", gate.plan, deadline=10))
        nursery.start_soon(lambda: client.send("c", gate.plan, deadline=0.5))
        await trio.testing.wait_all_tasks_blocked()
        assert engine.statistics().threads_late == 1
        mock_clock.jump(0.9)
        while "c" not in client.seen:
            await trio.lowlevel.checkpoint()
        gate.open.set()
        while len(client.seen) < 4:
            await trio.lowlevel.checkpoint()
        assert client.seen == {
            "a": ("NODE_TIMEOUT", 1000),
            "c": ("DEADLINE_EXCEEDED", 1900),
            "patient": ("OK", 1900),
            "b": ("OK", 1900),
        }


async def test_a_request_is_rejected_if_no_thread_became_free_in_time(gate: Gate, mock_clock: MockClock) -> None:
    """It is rejected when the time left equals the thread time that its plan needs."""
    async with open_engine(ops=gate.ops, cpu_threads=1) as engine, trio.open_nursery() as nursery:
        client = Client(engine)
        nursery.start_soon(jump_at, gate.entered, mock_clock, 2)
        nursery.start_soon(client.send, "slow", gate.plan)
        await gate.entered.wait()
        gate.open.set()
        await engine._pool.wait_idle()
        gate.open.clear()
        gate.entered = trio.Event()
        nursery.start_soon(client.send, "stuck", gate.plan)
        await gate.entered.wait()
        nursery.start_soon(lambda: client.send("hurried", gate.plan, deadline=5))
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(3)
        while "hurried" not in client.seen:
            await trio.lowlevel.checkpoint()
        assert client.seen == {"slow": ("OK", 2000), "hurried": ("OVERLOADED", 5000)}
        gate.open.set()


async def test_a_rejected_caller_that_retries_lets_other_tasks_run(autojump_clock: MockClock) -> None:
    """Each rejection passes a checkpoint, so a retry loop without any wait does not occupy the loop."""
    others = 0

    async def count() -> None:
        nonlocal others
        while True:
            await trio.lowlevel.checkpoint()
            others += 1

    async with open_engine(max_concurrent_requests=1, max_queue=0) as engine, trio.open_nursery() as nursery:
        nursery.start_soon(engine.execute, plan_of(node("w", "sleep", duration_ms=60_000)), {"user_id": 1})
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(count)
        for _ in range(100):
            with pytest.raises(Overloaded):
                await engine.execute(TWENTY, {"user_id": 1})
        assert others >= 90
        nursery.cancel_scope.cancel()


async def test_a_reloaded_plan_keeps_its_forecast(autojump_clock: MockClock) -> None:
    """A forecast belongs to the name of a plan."""

    async def work(inputs: Any, params: Any, ctx: Any) -> Any:
        autojump_clock.jump(0.01)
        return inputs[0]

    ops = with_ops(OpSpec(name="t::work", gives=Rows.SAME, run_async=work))
    async with open_engine(ops=ops) as engine:
        for _ in range(2):
            plan = plan_of(node("s", "fixed_source"), node("w", "t::work", "s"), ops=ops)
            await engine.execute(plan, {"user_id": 1})
        (forecast,) = engine._forecasts.values()
        assert forecast.loop == pytest.approx(0.01)


async def test_threads_are_given_in_order(gate: Gate) -> None:
    """With one thread, nodes that need it run one after the other, and cancelling a waiting one loses nothing."""
    async with open_engine(ops=gate.ops, cpu_threads=1) as engine, trio.open_nursery() as nursery:
        client = Client(engine)
        nursery.start_soon(client.send, "a", gate.plan)
        await gate.entered.wait()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as others:
                others.start_soon(client.send, "gone", gate.plan)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        for name in "bc":
            nursery.start_soon(client.send, name, gate.plan)
            await trio.testing.wait_all_tasks_blocked()
        gate.open.set()
        while len(client.seen) < 3:
            await trio.lowlevel.checkpoint()
        assert list(client.seen) == ["a", "b", "c"]
        assert engine.statistics().threads_busy == 0


async def test_leaving_waits_for_running_requests_and_rejects_waiting_ones(autojump_clock: MockClock) -> None:
    """Running requests may finish within grace; waiting and new ones are rejected; the engine reports both."""
    engine = PlanEngine(endpoints=_nothing(), max_concurrent_requests=1, grace=1.0)
    async with trio.open_nursery() as nursery, engine:
        client = Client(engine)
        nursery.start_soon(client.send, "runs")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(client.send, "waits")
        await trio.testing.wait_all_tasks_blocked()
    assert client.seen == {"waits": ("OVERLOADED", 0), "runs": ("OK", 20)}
    assert engine.drained == DrainReport(finished=1, cancelled=0, threads_left=0)
    with pytest.raises(Overloaded, match="closing"):
        await engine.execute(TWENTY, {"user_id": 1})


async def test_requests_that_run_after_grace_are_cancelled(autojump_clock: MockClock) -> None:
    """A request that outlives grace gets a typed error, and the report counts it."""
    long = plan_of(node("w", "sleep", duration_ms=60_000))
    engine = PlanEngine(endpoints=_nothing(), grace=0.5)
    async with trio.open_nursery() as nursery, engine:
        client = Client(engine)
        nursery.start_soon(client.send, "long", long)
        nursery.start_soon(client.send, "short")
        await trio.testing.wait_all_tasks_blocked()
    assert client.seen == {"short": ("OK", 20), "long": ("OVERLOADED", 500)}
    assert engine.drained == DrainReport(finished=1, cancelled=1, threads_left=0)


async def test_a_cancelled_engine_ends_its_requests_at_once(autojump_clock: MockClock) -> None:
    """Leaving by cancellation has no grace."""
    engine = PlanEngine(endpoints=_nothing(), grace=10)
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(0.1):
            async with engine:
                client = Client(engine)
                nursery.start_soon(client.send, "long", plan_of(node("w", "sleep", duration_ms=60_000)))
                await trio.sleep_forever()
    assert client.seen == {"long": ("OVERLOADED", 100)}
    assert engine.drained == DrainReport(finished=0, cancelled=1, threads_left=0)


async def test_threads_that_do_not_end_within_grace_are_reported(gate: Gate, mock_clock: MockClock) -> None:
    """Leaving does not wait for a stuck thread longer than grace, and the report counts the thread."""
    engine = PlanEngine(endpoints=_nothing(), ops=gate.ops, grace=1)
    async with trio.open_nursery() as nursery, engine:
        nursery.start_soon(jump_at, gate.entered, mock_clock, 1)
        with pytest.raises(NodeTimeout):
            await engine.execute(gate.plan, {"user_id": 1}, node_timeout=1)

        async def pass_grace() -> None:
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(1)

        nursery.start_soon(pass_grace)
    assert engine.drained == DrainReport(finished=0, cancelled=0, threads_left=1)
    gate.open.set()


async def test_using_a_closed_engine_is_an_error() -> None:
    """Using an engine outside of `async with` raises a ConfigError."""
    with pytest.raises(ConfigError, match="not open"):
        await PlanEngine().execute(TWENTY, {"user_id": 1})
    with pytest.raises(ConfigError, match="not open"):
        PlanEngine().explain(TWENTY)
    with pytest.raises(ConfigError, match="not open"):
        PlanEngine().statistics()


def _nothing() -> Any:
    return {}


def new_admission(limit: int, max_queue: int) -> tuple[Admission, ThreadPool]:
    """The admission of an engine with one thread."""
    clock = trio.current_time
    pool = ThreadPool(1, clock)
    return Admission(limit, max_queue, meter=LoopMeter(clock), pool=pool, clock=clock), pool


async def pass_time(clock: MockClock, seconds: float) -> None:
    """Advance the clock as soon as every task waits."""
    await trio.testing.wait_all_tasks_blocked()
    clock.jump(seconds)


async def test_a_slot_given_to_a_cancelled_request_is_passed_on(autojump_clock: MockClock) -> None:
    """A request that is cancelled in the instant of its turn returns the slot, in the queue and in the pool."""
    admission, pool = new_admission(1, 1)
    first = admission.ask(math.inf, Forecast())
    lease = object()
    pool.limiter.acquire_on_behalf_of_nowait(lease)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(admission.wait, admission.ask(math.inf, Forecast()))
        nursery.start_soon(pool.run, int)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        admission.leave(first, in_time=None)
        pool.limiter.release_on_behalf_of(lease)
    assert (admission.running, admission.queued, pool.busy) == (0, 0, 0)


async def test_an_invalid_request_holds_no_slot(autojump_clock: MockClock) -> None:
    """It is rejected at once, with a slot or without, and leaves none occupied."""
    started, release = trio.Event(), trio.Event()

    async def hold(inputs: Any, params: Any, ctx: Any) -> Any:
        started.set()
        await release.wait()
        return inputs[0]

    ops = with_ops(OpSpec(name="t::hold", gives=Rows.SAME, run_async=hold))
    plan = plan_of(node("s", "fixed_source"), node("h", "t::hold", "s"), ops=ops)
    async with open_engine(ops=ops, max_concurrent_requests=1, max_queue=1) as engine:
        for full in (False, True):
            async with trio.open_nursery() as nursery:
                if full:
                    nursery.start_soon(engine.execute, plan, {"user_id": 1})
                    await started.wait()
                with pytest.raises(InvalidRequest):
                    await engine.execute(plan, {"user_id": -1})
                statistics = engine.statistics()
                assert (statistics.running, statistics.queued) == (int(full), 0)
                release.set()


async def test_requests_that_would_make_each_other_late_are_rejected(autojump_clock: MockClock) -> None:
    """Once the engine knows that requests delay each other, it starts only as many as can be in time."""

    async def work(inputs: Any, params: Any, ctx: Any) -> Any:
        for _ in range(10):
            autojump_clock.jump(0.001)  # while the loop works
            await trio.lowlevel.checkpoint()
        return inputs[0]

    ops = with_ops(OpSpec(name="t::work", gives=Rows.SAME, run_async=work))
    plan = plan_of(node("s", "fixed_source"), node("w", "t::work", "s"), ops=ops)
    async with open_engine(ops=ops) as engine:
        client = Client(engine)
        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(lambda number=number: client.send(f"early {number}", plan, deadline=0.035))
                await trio.sleep(0.005)
        assert engine.statistics().outcomes["OK"] > 70  # one each 10 ms is all that can be answered
        client.seen.clear()
        client.start = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(lambda number=number: client.send(f"hurried {number}", plan, deadline=0.035))
        outcomes = [outcome for outcome, _ in client.seen.values()]
        assert outcomes.count("OVERLOADED") >= 15
        assert outcomes.count("OK") >= 2


@pytest.mark.parametrize("limit", ["deadline", "node_timeout"])
@pytest.mark.parametrize("value", [math.nan, "5", [1], pytest.param(10**5000, id="huge")])
async def test_an_invalid_limit_holds_no_slot(limit: str, value: Any) -> None:
    """An invalid deadline or timeout is rejected before anything runs."""
    async with open_engine(max_concurrent_requests=1, max_queue=0) as engine:
        with pytest.raises(ConfigError, match=f"{limit} must be a number of seconds, not "):
            await engine.execute(TWENTY, {"user_id": 1}, **{limit: value})
        assert engine.statistics().running == 0


async def test_a_request_that_waits_when_the_engine_closes_gets_no_slot() -> None:
    """Not even one that becomes free in the same instant; nor is it lost if the waiting request is cancelled too."""
    admission, _ = new_admission(1, 2)
    first = admission.ask(math.inf, Forecast())
    waiting = [admission.ask(math.inf, Forecast()) for _ in range(2)]
    with pytest.RaisesGroup(pytest.RaisesExc(Overloaded, match="closing")):
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as cancelled:
                    cancelled.start_soon(admission.wait, waiting[1])
                    nursery.start_soon(admission.wait, waiting[0])
                    await trio.testing.wait_all_tasks_blocked()
                    scope.cancel()
                    admission.close()
                    admission.leave(first, in_time=None)
    assert (admission.running, admission.queued) == (0, 0)
