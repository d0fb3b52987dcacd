from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
import trio.testing
from plan_helpers import INLINE, ids, jump_at, node, open_engine, plan_of, with_ops

from seedbed.errors import NodeTimeout, RequestDeadlineExceeded
from seedbed.plans.compile import DEFAULT_COSTS, Cost
from seedbed.plans.opspec import OpSpec, Rows

if TYPE_CHECKING:
    from trio.testing import MockClock

    from seedbed.plans.format import Plan
    from seedbed.plans.request import Response

EXPRESSIONS = {"e": {"op": "neg", "x": {"op": "key_ref", "key_id": 1}}}
# A row costs a millisecond in a vm and a hop ten.
ROWS_MATTER = attrs.evolve(INLINE, hop=0.01, ops={**INLINE.ops, "core::vm": Cost(0.0, 0.001)})


def chain(rows: int = 3) -> Plan:
    """A source and four CPU nodes behind it, the last of them read twice."""
    return plan_of(
        node("s", "fixed_source", row_count=rows),
        node("x", "vm", "s", out_key=2001, expr_id="e"),
        node("o", "sort", "x", by=2001),
        node("t", "take", "o", count=2),
        node("a", "take", "t", count=1),
        node("b", "take", "t", count=2),
        outputs=["a", "b"],
        expressions=EXPRESSIONS,
    )


def places(response: Response) -> dict[str, str]:
    """Where each node ran."""
    assert response.trace is not None
    return {one.node: one.where for one in response.trace.nodes}


async def test_chains_of_cpu_nodes_with_one_consumer_are_segments() -> None:
    """A node joins the segment of its only input if that has no other consumer; with fusion off, no node joins."""
    async with open_engine() as engine:
        segments = [one.nodes for one in engine.explain(chain()).segments]
        assert segments == [("s",), ("x", "o", "t"), ("a",), ("b",)]
        assert all(len(one.nodes) == 1 for one in engine.explain(chain(), fusion="off").segments)


async def test_an_output_ends_a_segment() -> None:
    """An output node is the last of its segment, because its rows are needed as they are."""
    plan = plan_of(
        node("s", "fixed_source", row_count=3),
        node("o", "sort", "s", by=1, order="desc"),
        node("t", "take", "o", count=1),
        outputs=["o", "t"],
    )
    async with open_engine() as engine:
        assert [one.nodes for one in engine.explain(plan).segments] == [("s",), ("o",), ("t",)]
        assert ids(await engine.execute(plan, {"user_id": 1})) == [3, 2, 1, 3]


async def test_a_segment_runs_where_it_is_cheaper() -> None:
    """Few rows run on the loop, many in a thread; without fusion all run in threads."""
    async with open_engine(costs=ROWS_MATTER) as engine:
        few, many = chain(9), chain(11)
        assert places(await engine.execute(few, {"user_id": 1}, trace=True))["x"] == "inline"
        assert places(await engine.execute(many, {"user_id": 1}, trace=True))["x"] == "thread"
        where = places(await engine.execute(few, {"user_id": 1}, trace=True, fusion="off"))
        assert where == {"s": "loop", "x": "thread", "o": "thread", "t": "thread", "a": "thread", "b": "thread"}
        (segment,) = [one for one in engine.explain(few).segments if "x" in one.nodes]
        assert (segment.where, segment.inline_below) == ("auto", 10)
        assert (segment.writes, segment.needs) == (("final_score",), ("s",))
        assert engine.explain(few).costs is ROWS_MATTER


async def test_fusion_is_set_for_an_engine_and_for_a_request() -> None:
    """The mode of a request overrides that of its engine."""
    async with open_engine(fusion="off") as engine:
        assert places(await engine.execute(chain(), {"user_id": 1}, trace=True))["x"] == "thread"
        assert places(await engine.execute(chain(), {"user_id": 1}, trace=True, fusion="auto"))["x"] == "inline"


async def test_a_custom_op_runs_in_a_thread_unless_it_is_inline() -> None:
    """The cost of a custom op is unknown; `run_inline` declares that it is always small, whatever the mode."""
    main = threading.current_thread()
    seen: dict[str, bool] = {}

    def note(inputs: Any, params: Any, ctx: Any) -> Any:
        seen[ctx.node_id] = threading.current_thread() is main
        return inputs[0]

    ops = with_ops(
        OpSpec(name="t::heavy", gives=Rows.SAME, run=note),
        OpSpec(name="t::light", gives=Rows.SAME, run=note, run_inline=True),
    )
    plan = plan_of(
        node("s", "fixed_source"),
        node("heavy", "t::heavy", "s"),
        node("light", "t::light", "s"),
        outputs=["heavy", "light"],
        ops=ops,
    )
    async with open_engine(ops=ops) as engine:
        for fusion in ("off", "auto"):
            seen.clear()
            await engine.execute(plan, {"user_id": 1}, fusion=fusion)
            assert seen == {"heavy": False, "light": True}


class Steps:
    """Sync ops that each block at a gate, so that a test controls which node of a segment a thread runs."""

    def __init__(self) -> None:
        self.gates = {name: threading.Event() for name in "abc"}
        self.entered = {name: trio.Event() for name in "abc"}
        self.left: list[str] = []
        self.ops = with_ops(OpSpec(name="t::step", gives=Rows.SAME, run=self._run))
        self.plan = plan_of(
            node("s", "fixed_source"),
            node("a", "t::step", "s"),
            node("b", "t::step", "a"),
            node("c", "t::step", "b"),
            ops=self.ops,
        )

    def _run(self, inputs: Any, params: Any, ctx: Any) -> Any:
        trio.from_thread.run_sync(self.entered[ctx.node_id].set)
        assert self.gates[ctx.node_id].wait(30)
        self.left.append(ctx.node_id)
        return inputs[0]

    def open_all(self) -> None:
        for gate in self.gates.values():
            gate.set()


@pytest.mark.parametrize("stops_at", ["a", "b", "c"])
async def test_a_timeout_inside_a_segment_names_the_right_node(stops_at: str, mock_clock: MockClock) -> None:
    """The error names the node that exceeded its own timeout, and later nodes do not run."""
    steps = Steps()
    async with open_engine(ops=steps.ops) as engine, trio.open_nursery() as nursery:
        for name in steps.gates:
            if name == stops_at:
                break
            steps.gates[name].set()
        nursery.start_soon(jump_at, steps.entered[stops_at], mock_clock, 0.2)
        with pytest.raises(NodeTimeout) as caught:
            await engine.execute(steps.plan, {"user_id": 1}, node_timeout=0.2)
        assert caught.value.node == stops_at
        steps.open_all()
        await engine._pool.wait_idle()
        assert steps.left[-1] == stops_at


async def test_the_deadline_inside_a_segment_names_the_right_node(mock_clock: MockClock) -> None:
    """The error names the node that the thread has reached, and the thread stops after it."""
    steps = Steps()
    steps.gates["a"].set()
    async with open_engine(ops=steps.ops) as engine, trio.open_nursery() as nursery:
        nursery.start_soon(jump_at, steps.entered["b"], mock_clock, 0.2)
        with pytest.raises(RequestDeadlineExceeded) as caught:
            await engine.execute(steps.plan, {"user_id": 1}, deadline=0.2)
        assert caught.value.node == "b"
        steps.open_all()
        await engine._pool.wait_idle()
        assert steps.left == ["a", "b"]
        assert engine.statistics().late_completions == 1


async def test_an_abandoned_thread_stops_at_the_next_node() -> None:
    """When the caller is cancelled, the thread ends after its current node."""
    steps = Steps()
    async with open_engine(ops=steps.ops) as engine:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: engine.execute(steps.plan, {"user_id": 1}))
                await steps.entered["a"].wait()
                scope.cancel()
        steps.open_all()
        await engine._pool.wait_idle()
        assert steps.left == ["a"]


async def test_every_node_of_a_segment_has_its_own_timeout(mock_clock: MockClock) -> None:
    """Nodes that each stay within the node timeout finish, though together they take longer."""
    steps = Steps()
    async with open_engine(ops=steps.ops) as engine, trio.open_nursery() as nursery:

        async def open_one_by_one() -> None:
            for name, gate in steps.gates.items():
                await jump_at(steps.entered[name], mock_clock, 0.4)
                # Tasks that wake at this instant do so before the thread continues.
                await trio.testing.wait_all_tasks_blocked()
                gate.set()

        nursery.start_soon(open_one_by_one)
        found = await engine.execute(steps.plan, {"user_id": 1}, node_timeout=1.0)
        assert ids(found) == [1]


async def test_deadlines_are_checked_between_the_nodes_of_a_segment_on_the_loop() -> None:
    """A node on the loop that takes too long is named when it ends, and the next one does not run."""
    ran: list[str] = []
    now = 0.0

    class Jumping(trio.abc.Clock):
        def start_clock(self) -> None:
            pass

        def current_time(self) -> float:
            return now

        def deadline_to_sleep_time(self, deadline: float) -> float:
            return 0.0 if deadline <= now else 999.0

    def jump(inputs: Any, params: Any, ctx: Any) -> Any:
        nonlocal now
        ran.append(ctx.node_id)
        now += 10
        return inputs[0]

    ops = with_ops(OpSpec(name="t::jump", gives=Rows.SAME, run=jump, run_inline=True))
    plan = plan_of(
        node("s", "fixed_source"),
        *(node(name, "t::jump", before) for before, name in ("sa", "ab", "bc", "cd")),
        ops=ops,
    )

    async def main() -> None:
        async with open_engine(ops=ops) as engine:
            with pytest.raises(RequestDeadlineExceeded) as caught:
                await engine.execute(plan, {"user_id": 1}, deadline=15)
            assert (caught.value.node, ran) == ("b", ["a", "b"])
            ran.clear()
            with pytest.raises(NodeTimeout) as timeout:
                await engine.execute(plan, {"user_id": 1}, node_timeout=9)
            assert (timeout.value.node, ran) == ("a", ["a"])
            assert engine.statistics().late_completions == 2

    await trio.to_thread.run_sync(lambda: trio.run(main, clock=Jumping()))


def test_costs_are_in_proportion_to_the_work() -> None:
    """Every op of the format that uses the CPU has a cost, a larger tree costs more, and an unknown op is infinite."""
    costs = DEFAULT_COSTS
    assert set(costs.ops) == set(INLINE.ops)
    assert all(cost.fixed > 0 and cost.per_row >= 0 for cost in costs.ops.values())
    ops = {op.name: op for op in with_ops(OpSpec(name="t::x", gives=Rows.SAME, run=len))}
    small = costs.cost(ops["core::vm"], size=5)
    assert costs.cost(ops["core::vm"], size=50).fixed == pytest.approx(10 * small.fixed)
    plain, pattern = (costs.cost(ops["core::filter"], size=3, patterns=count) for count in (0, 2))
    assert pattern.fixed > plain.fixed
    assert costs.cost(ops["t::x"]).fixed == math.inf
