from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import trio
from plan_helpers import ids, jump_at, node, open_engine, plan_of, with_ops

from seedbed.errors import NodeTimeout, RequestDeadlineExceeded
from seedbed.plans.opspec import OpSpec, Rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trio.testing import MockClock

    from seedbed.plans.engine import PlanEngine
    from seedbed.plans.format import Plan


def busy(ms: int) -> Plan:
    """A source, and a node that uses the CPU in a thread."""
    return plan_of(node("s", "fixed_source"), node("b", "busy_cpu", "s", busy_wait_ms=ms))


def sleeping(*durations: int) -> Plan:
    """A source and a chain of sleeps, named n0, n1 and so on."""
    nodes = [node("s", "fixed_source")]
    for number, duration in enumerate(durations):
        nodes.append(node(f"n{number}", "sleep", nodes[-1]["node_id"], duration_ms=duration))
    return plan_of(*nodes)


class Gate:
    """A sync op that blocks until it is released."""

    def __init__(self) -> None:
        self.entered = trio.Event()
        self.open = threading.Event()
        self.ops = with_ops(OpSpec(name="t::gate", gives=Rows.SAME, run=self._run))

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


async def threads_end(engine: PlanEngine) -> None:
    """Wait until no thread of the engine works."""
    await engine._pool.wait_idle()


async def test_request_deadline_exceeded(gate: Gate, mock_clock: MockClock) -> None:
    """The deadline of the request ends the wait for a thread, and the error names the node in the thread."""
    plan = plan_of(node("s", "fixed_source"), node("g", "t::gate", "s"), ops=gate.ops)
    async with open_engine(ops=gate.ops) as engine, trio.open_nursery() as nursery:
        nursery.start_soon(jump_at, gate.entered, mock_clock, 0.02)
        with pytest.raises(RequestDeadlineExceeded, match="while it ran") as caught:
            await engine.execute(plan, {"user_id": 1}, deadline=0.02)
        assert caught.value.node == "g"
        gate.open.set()
        await threads_end(engine)


async def test_node_timeout_on_cpu_work(gate: Gate, mock_clock: MockClock) -> None:
    """The timeout of a node ends the wait for its thread."""
    plan = plan_of(node("s", "fixed_source"), node("g", "t::gate", "s"), ops=gate.ops)
    async with open_engine(ops=gate.ops) as engine, trio.open_nursery() as nursery:
        nursery.start_soon(jump_at, gate.entered, mock_clock, 0.02)
        with pytest.raises(NodeTimeout, match=r"longer than 20 ms") as caught:
            await engine.execute(plan, {"user_id": 1}, node_timeout=0.02)
        assert caught.value.node == "g"
        gate.open.set()
        await threads_end(engine)


@pytest.mark.parametrize("deadline", [0, -1])
async def test_deadline_already_expired(deadline: float, autojump_clock: MockClock) -> None:
    """A deadline in the past fails at once, before any node starts."""
    started: list[str] = []

    async def start(inputs: Any, params: Any, ctx: Any) -> Any:
        started.append(ctx.node_id)
        return ctx.new_rows([])

    ops = with_ops(OpSpec(name="t::start", inputs=(0, 0), gives=Rows.NEW, run_async=start))
    async with open_engine(ops=ops) as engine:
        with pytest.raises(RequestDeadlineExceeded, match="before it started") as caught:
            await engine.execute(plan_of(node("x", "t::start"), ops=ops), {"user_id": 1}, deadline=deadline)
        assert caught.value.node == "x"
        assert not started


async def test_very_short_deadline(gate: Gate, mock_clock: MockClock) -> None:
    """A deadline of 1 ms is met exactly."""
    plan = plan_of(node("s", "fixed_source"), node("g", "t::gate", "s"), ops=gate.ops)
    async with open_engine(ops=gate.ops) as engine, trio.open_nursery() as nursery:
        nursery.start_soon(jump_at, gate.entered, mock_clock, 0.001)
        with pytest.raises(RequestDeadlineExceeded):
            await engine.execute(plan, {"user_id": 1}, deadline=0.001)
        gate.open.set()
        await threads_end(engine)


async def test_generous_deadline_succeeds() -> None:
    """With enough time the rows are returned."""
    async with open_engine() as engine:
        assert ids(await engine.execute(busy(5), {"user_id": 1}, deadline=60)) == [1]


async def test_very_short_node_timeout(gate: Gate, mock_clock: MockClock) -> None:
    """A node timeout of 1 ms is met exactly."""
    plan = plan_of(node("s", "fixed_source"), node("g", "t::gate", "s"), ops=gate.ops)
    async with open_engine(ops=gate.ops) as engine, trio.open_nursery() as nursery:
        nursery.start_soon(jump_at, gate.entered, mock_clock, 0.001)
        with pytest.raises(NodeTimeout):
            await engine.execute(plan, {"user_id": 1}, node_timeout=0.001)
        gate.open.set()
        await threads_end(engine)


async def test_a_node_timeout_of_zero_runs_nothing(autojump_clock: MockClock) -> None:
    """A node timeout of zero fails the first node without running it, on the loop and in a thread."""
    async with open_engine() as engine:
        with pytest.raises(NodeTimeout) as caught:
            await engine.execute(sleeping(0), {"user_id": 1}, node_timeout=0)
        assert caught.value.node == "s"


async def test_generous_node_timeout_succeeds() -> None:
    """With enough time for each node the rows are returned."""
    async with open_engine() as engine:
        assert ids(await engine.execute(busy(5), {"user_id": 1}, node_timeout=60)) == [1]


async def test_the_earlier_of_both_limits_fires(autojump_clock: MockClock) -> None:
    """With both set, the earlier one ends the request and determines its error."""
    async with open_engine() as engine:
        start = trio.current_time()
        with pytest.raises(NodeTimeout) as timeout:
            await engine.execute(sleeping(50), {"user_id": 1}, deadline=0.04, node_timeout=0.01)
        assert trio.current_time() - start == pytest.approx(0.01)
        assert timeout.value.node == "n0"
        with pytest.raises(RequestDeadlineExceeded) as deadline:
            await engine.execute(sleeping(50), {"user_id": 1}, deadline=0.01, node_timeout=0.04)
        assert trio.current_time() - start == pytest.approx(0.02)
        assert deadline.value.node == "n0"


async def test_multi_stage_pipeline(autojump_clock: MockClock) -> None:
    """The time of all stages counts for the deadline, and that of each node for its timeout."""
    async with open_engine() as engine:
        with pytest.raises(RequestDeadlineExceeded) as caught:
            await engine.execute(sleeping(30, 30), {"user_id": 1}, deadline=0.05, node_timeout=0.04)
        assert caught.value.node == "n1"
        assert ids(await engine.execute(sleeping(30, 30), {"user_id": 1}, deadline=0.07, node_timeout=0.04)) == [1]
        with pytest.raises(NodeTimeout) as timeout:
            await engine.execute(sleeping(30, 41, 1), {"user_id": 1}, node_timeout=0.04)
        assert timeout.value.node == "n1"


async def test_sleep_respects_the_request_deadline(autojump_clock: MockClock) -> None:
    """An async op is cancelled at the deadline of its request."""
    async with open_engine() as engine:
        start = trio.current_time()
        with pytest.raises(RequestDeadlineExceeded):
            await engine.execute(sleeping(1000), {"user_id": 1}, deadline=0.02)
        assert trio.current_time() - start == pytest.approx(0.02)


async def test_sleep_respects_the_node_timeout(autojump_clock: MockClock) -> None:
    """An async op that timed out is cancelled, not left running."""
    ended: list[float] = []

    async def note(inputs: Any, params: Any, ctx: Any) -> Any:
        try:
            await trio.sleep(1)
        finally:
            ended.append(trio.current_time())

    ops = with_ops(OpSpec(name="t::note", inputs=(0, 0), gives=Rows.NEW, run_async=note))
    async with open_engine(ops=ops) as engine:
        start = trio.current_time()
        with pytest.raises(NodeTimeout):
            await engine.execute(plan_of(node("x", "t::note"), ops=ops), {"user_id": 1}, node_timeout=0.02)
        assert ended == [pytest.approx(start + 0.02)]


async def test_a_result_at_the_instant_of_the_limit_is_late(autojump_clock: MockClock) -> None:
    """A result at the very instant of the limit is too late, every time."""
    async with open_engine() as engine:
        for _ in range(10):
            with pytest.raises(RequestDeadlineExceeded):
                await engine.execute(sleeping(32), {"user_id": 1}, deadline=0.032)
            with pytest.raises(NodeTimeout):
                await engine.execute(sleeping(32), {"user_id": 1}, node_timeout=0.032)


async def test_late_completion_increments_the_counter(gate: Gate, mock_clock: MockClock) -> None:
    """A thread that ends after its request is counted, and its result is dropped."""
    plan = plan_of(node("s", "fixed_source"), node("g", "t::gate", "s"), ops=gate.ops)
    async with open_engine(ops=gate.ops) as engine, trio.open_nursery() as nursery:
        nursery.start_soon(jump_at, gate.entered, mock_clock, 0.02)
        with pytest.raises(NodeTimeout):
            await engine.execute(plan, {"user_id": 1}, node_timeout=0.02)
        before = engine.statistics()
        assert (before.threads_late, before.late_completions) == (1, 0)
        gate.open.set()
        await threads_end(engine)
        after = engine.statistics()
        assert (after.threads_busy, after.threads_late, after.late_completions) == (0, 0, 1)
        assert ids(await engine.execute(plan, {"user_id": 1})) == [1]


async def test_a_late_result_of_an_async_op_is_dropped_and_counted(autojump_clock: MockClock) -> None:
    """The result of an async op that shields itself beyond its timeout is dropped."""

    async def stubborn(inputs: Any, params: Any, ctx: Any) -> Any:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
            await trio.sleep(0.1)
        return ctx.new_rows([1])

    ops = with_ops(OpSpec(name="t::stubborn", inputs=(0, 0), gives=Rows.NEW, run_async=stubborn))
    async with open_engine(ops=ops) as engine:
        with pytest.raises(RequestDeadlineExceeded):
            await engine.execute(plan_of(node("x", "t::stubborn"), ops=ops), {"user_id": 1}, deadline=0.02)
        assert engine.statistics().late_completions == 1


async def test_mixed_pipeline_times_out_in_its_async_phase(gate: Gate, autojump_clock: MockClock) -> None:
    """The error names the async node if the deadline passes before the thread starts."""
    plan = plan_of(
        node("s", "fixed_source"),
        node("w", "sleep", "s", duration_ms=60_000),
        node("g", "t::gate", "w"),
        ops=gate.ops,
    )
    async with open_engine(ops=gate.ops) as engine:
        with pytest.raises(RequestDeadlineExceeded) as caught:
            await engine.execute(plan, {"user_id": 1}, deadline=0.02)
        assert caught.value.node == "w"
        assert not gate.entered.is_set()


async def test_mixed_pipeline_times_out_in_its_cpu_phase(gate: Gate, mock_clock: MockClock) -> None:
    """The error names the CPU node if the deadline passes in its thread."""
    plan = plan_of(
        node("s", "fixed_source"),
        node("w", "sleep", "s", duration_ms=0),
        node("g", "t::gate", "w"),
        ops=gate.ops,
    )
    async with open_engine(ops=gate.ops) as engine, trio.open_nursery() as nursery:
        nursery.start_soon(jump_at, gate.entered, mock_clock, 0.1)
        with pytest.raises(NodeTimeout) as caught:
            await engine.execute(plan, {"user_id": 1}, deadline=60, node_timeout=0.1)
        assert caught.value.node == "g"
        gate.open.set()
        await threads_end(engine)


async def test_mixed_pipeline_succeeds() -> None:
    """With enough time both phases finish."""
    plan = plan_of(
        node("s", "fixed_source", row_count=2),
        node("w", "sleep", "s", duration_ms=1),
        node("b", "busy_cpu", "w", busy_wait_ms=1),
    )
    async with open_engine() as engine:
        assert ids(await engine.execute(plan, {"user_id": 1}, deadline=60, node_timeout=60)) == [1, 2]


async def test_parallel_async_nodes_both_respect_the_deadline(autojump_clock: MockClock) -> None:
    """Concurrent async nodes all end at the deadline; the error names the first to start."""
    plan = plan_of(
        node("a", "sleep", duration_ms=100),
        node("b", "sleep", duration_ms=200),
        outputs=["a", "b"],
    )
    async with open_engine() as engine:
        start = trio.current_time()
        with pytest.raises(RequestDeadlineExceeded):
            await engine.execute(plan, {"user_id": 1}, deadline=0.02)
        assert trio.current_time() - start == pytest.approx(0.02)


async def test_each_node_is_timed_from_its_own_start(autojump_clock: MockClock) -> None:
    """Nodes that start at different instants are each timed from their own start."""
    plan = plan_of(
        node("a", "sleep", duration_ms=8),
        node("b", "sleep", "a", duration_ms=9),
        node("c", "sleep", "b", duration_ms=9),
        node("x", "sleep", "a", duration_ms=3),
        node("y", "sleep", "x", duration_ms=11),
        outputs=["c", "y"],
    )
    async with open_engine() as engine:
        start = trio.current_time()
        with pytest.raises(NodeTimeout) as caught:
            await engine.execute(plan, {"user_id": 1}, node_timeout=0.01)
        assert caught.value.node == "y"
        assert trio.current_time() - start == pytest.approx(0.021)


async def test_partial_results_at_the_deadline(autojump_clock: MockClock) -> None:
    """A partial response has the outputs that are done, and names the nodes that are not."""
    plan = plan_of(
        node("s", "fixed_source", row_count=2),
        node("slow", "sleep", "s", duration_ms=100),
        node("after", "take", "slow", count=1),
        outputs=["s", "after"],
    )
    async with open_engine() as engine:
        start = trio.current_time()
        found = await engine.execute(plan, {"user_id": 1}, deadline=0.02, partial=True)
        assert trio.current_time() - start == pytest.approx(0.02)
        assert ids(found) == [1, 2]
        assert found.to_dict()["coverage"] == {
            "degraded": (),
            "unfinished": ("slow", "after"),
            "complete": False,
        }
        whole = await engine.execute(plan, {"user_id": 1}, deadline=1, partial=True)
        assert ids(whole) == [1, 2, 1]
        assert whole.coverage is not None
        assert whole.coverage.complete


async def test_a_request_waits_for_an_op_that_shields_itself(autojump_clock: MockClock) -> None:
    """An op under a shield is not cancelled: the error is raised when it ends, and its result is dropped."""

    async def shielded(inputs: Any, params: Any, ctx: Any) -> Any:
        with trio.CancelScope(shield=True):
            await trio.sleep(0.05)
        return ctx.new_rows([1])

    ops = with_ops(OpSpec(name="t::x", inputs=(0, 0), gives=Rows.NEW, run_async=shielded))
    async with open_engine(ops=ops) as engine:
        with pytest.raises(RequestDeadlineExceeded) as caught:
            await engine.execute(plan_of(node("x", "t::x"), ops=ops), {"user_id": 1}, deadline=0.01)
        assert caught.value.node == "x"
        assert trio.current_time() == pytest.approx(0.05)
        assert engine.statistics().late_completions == 1
