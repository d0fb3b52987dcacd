from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import trio
from plan_helpers import FakeEndpoint, ids, node, open_engine, plan_of, with_ops

from seedbed.errors import ConfigError, InvalidRequest, NodeFailed, RequestDeadlineExceeded
from seedbed.plans.engine import PlanEngine
from seedbed.plans.opspec import OpSpec, Rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trio.testing import MockClock

    from seedbed.plans.format import Plan

SCORE = {"e": {"op": "mul", "a": {"op": "key_ref", "key_id": 1}, "b": {"op": "const_number", "value": 0.5}}}
OVER_ONE = {
    "p": {
        "op": "cmp",
        "cmp": ">",
        "a": {"op": "key_ref", "key_id": 2001},
        "b": {"op": "const_number", "value": 1},
    }
}


def complex_dag() -> Plan:
    """Example 6 of the execution flow: ten nodes, with sleeps of its durations for what takes time there."""
    return plan_of(
        node("ids", "fixed_source", row_count=60),
        node("v", "sleep", "ids", duration_ms=10),
        node("follow", "sleep", "v", duration_ms=15),
        node("media_f", "sleep", "follow", duration_ms=20),
        node("vm_f", "sleep", "media_f", duration_ms=5),
        node("recs", "sleep", "v", duration_ms=20),
        node("media_r", "sleep", "recs", duration_ms=25),
        node("vm_r", "sleep", "media_r", duration_ms=5),
        node("score_f", "vm", "vm_f", out_key=2001, expr_id="e"),
        node("score_r", "vm", "vm_r", out_key=2001, expr_id="e"),
        node("merge", "concat", "score_f", rhs="score_r"),
        node("merged", "sleep", "merge", duration_ms=2),
        node("sort", "sort", "merged", by=2001, order="desc"),
        node("sorted", "sleep", "sort", duration_ms=3),
        node("take", "take", "sorted", count=50),
        node("taken", "sleep", "take", duration_ms=2),
        expressions=SCORE,
    )


async def test_the_ten_node_dag_takes_as_long_as_its_longest_path(autojump_clock: MockClock) -> None:
    """Within a deadline of 100 ms it answers after 67 ms, and the trace names the critical path."""
    async with open_engine() as engine:
        start = trio.current_time()
        found = await engine.execute(complex_dag(), {"user_id": 1}, deadline=0.1, trace=True)
        assert trio.current_time() - start == pytest.approx(0.067)
        assert ids(found) == [number for number in range(60, 35, -1) for _ in range(2)]
        assert found.trace is not None
        assert found.trace.total_ms == pytest.approx(67)
        assert found.trace.critical_path == (
            *("ids", "v", "recs", "media_r", "vm_r", "score_r"),
            *("merge", "merged", "sort", "sorted", "take", "taken"),
        )


async def test_the_ten_node_dag_fails_at_its_deadline(autojump_clock: MockClock) -> None:
    """With a deadline of 50 ms it fails at exactly 50 ms and names a node that ran then."""
    async with open_engine() as engine:
        start = trio.current_time()
        with pytest.raises(RequestDeadlineExceeded) as caught:
            await engine.execute(complex_dag(), {"user_id": 1}, deadline=0.05)
        assert trio.current_time() - start == pytest.approx(0.05, abs=1e-12)
        assert caught.value.node in ("vm_f", "media_r")


async def test_three_branches_run_at_the_same_time(autojump_clock: MockClock) -> None:
    """Three branches of a sleep and a vm take as long as the longest of them."""
    nodes = [node("s", "fixed_source", row_count=2)]
    for branch, duration in (("a", 10), ("b", 30), ("c", 20)):
        nodes.append(node(f"sleep_{branch}", "sleep", "s", duration_ms=duration))
        nodes.append(node(f"vm_{branch}", "vm", f"sleep_{branch}", out_key=2001, expr_id="e"))
    plan = plan_of(*nodes, outputs=["vm_a", "vm_b", "vm_c"], expressions=SCORE)
    async with open_engine() as engine:
        start = trio.current_time()
        found = await engine.execute(plan, {"user_id": 1})
        assert trio.current_time() - start == pytest.approx(0.03)
        assert ids(found) == [1, 2, 1, 2, 1, 2]


async def test_a_node_starts_when_its_last_input_is_done(autojump_clock: MockClock) -> None:
    """The join of a diamond waits for both sides only."""
    plan = plan_of(
        node("s", "fixed_source"),
        node("left", "sleep", "s", duration_ms=5),
        node("right", "sleep", "s", duration_ms=9),
        node("slow", "sleep", "s", duration_ms=50),
        node("join", "concat", "left", rhs="right"),
        outputs=["join", "slow"],
    )
    async with open_engine() as engine:
        found = await engine.execute(plan, {"user_id": 1}, trace=True)
        assert found.trace is not None
        by_node = {one.node: one for one in found.trace.nodes}
        assert by_node["join"].start_ms == pytest.approx(9)
        assert by_node["join"].rows_out == 2
        assert by_node["slow"].where == "loop"
        assert by_node["join"].where == "inline"


async def test_a_source_alone_needs_no_thread() -> None:
    """A plan of an async node alone runs on the loop."""
    async with open_engine() as engine:
        found = await engine.execute(plan_of(node("s", "fixed_source", row_count=3)), {"user_id": 1}, trace=True)
        assert ids(found) == [1, 2, 3]
        assert found.trace is not None
        assert [one.where for one in found.trace.nodes] == ["loop"]


async def test_traces_describe_each_node() -> None:
    """The trace of a node has its label, rows in and out, where it ran and its segment."""
    plan = plan_of(
        node("s", "fixed_source", row_count=5),
        node("x", "vm", "s", out_key=2001, expr_id="e", trace="score"),
        node("f", "filter", "x", pred_id="p"),
        node("o", "sort", "f", by=2001, order="desc"),
        node("t", "take", "o", count=2),
        expressions=SCORE,
        predicates=OVER_ONE,
    )
    async with open_engine() as engine:
        for fusion, where in (("auto", "inline"), ("off", "thread")):
            found = await engine.execute(plan, {"user_id": 1}, trace=True, fusion=fusion)
            document = found.to_dict()
            assert document["candidates"] == [
                {"id": 5, "fields": {"final_score": 2.5}},
                {"id": 4, "fields": {"final_score": 2.0}},
            ]
            rows = {one["node"]: (one["rows_in"], one["rows_out"]) for one in document["trace"]["nodes"]}
            assert rows == {"s": (0, 5), "x": (5, 5), "f": (5, 3), "o": (3, 3), "t": (3, 2)}
            assert {one["where"] for one in document["trace"]["nodes"]} == {"loop", where}
            assert document["trace"]["nodes"][1]["label"] == "score"
            assert len({one["segment"] for one in document["trace"]["nodes"]}) == (5 if fusion == "off" else 2)
            assert document["trace"]["critical_path"] == ("s", "x", "f", "o", "t")
            assert "coverage" not in document


async def test_an_invalid_request_is_rejected() -> None:
    """An invalid request, or an unknown fusion mode, is rejected before anything runs."""
    async with open_engine() as engine:
        plan = plan_of(node("s", "fixed_source"))
        with pytest.raises(InvalidRequest, match="user_id"):
            await engine.execute(plan, {"user_id": -1})
        with pytest.raises(ConfigError, match="fusion must be 'off' or 'auto', not 'some'"):
            await engine.execute(plan, {"user_id": 1}, fusion="some")  # type: ignore[arg-type]
        assert engine.statistics().outcomes == {"INVALID_REQUEST": 1}
        foreign = plan_of(node("s", "x::y"), ops=with_ops(OpSpec(name="x::y", inputs=(0, 0), gives=Rows.NEW, run=len)))
        with pytest.raises(ConfigError, match="the engine has no op 'x::y'"):
            await engine.execute(foreign, {"user_id": 1})
        for other in ({"schema_version": 1}, None, "plan.json"):
            with pytest.raises(ConfigError, match=f"the plan is of type {type(other).__name__}, not a Plan"):
                await engine.execute(other, {"user_id": 1})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_concurrent_requests": 0}, "max_concurrent_requests must be a whole number, 1 or more, not 0"),
        ({"max_queue": -1}, "max_queue must be a whole number, 0 or more, not -1"),
        ({"cpu_threads": 0}, "cpu_threads must be a whole number, 1 or more, not 0"),
        ({"grace": -1}, "grace must be seconds, 0 or more, not -1"),
        ({"fusion": "on"}, "fusion must be 'off' or 'auto', not 'on'"),
        ({"max_queue": "9"}, "max_queue must be a whole number, 0 or more, not '9'"),
        ({"cpu_threads": 1.5}, "cpu_threads must be a whole number, 1 or more, not 1.5"),
        ({"max_concurrent_requests": True}, "max_concurrent_requests must be a whole number, 1 or more, not True"),
        ({"grace": math.nan}, "grace must be seconds, 0 or more, not nan"),
        ({"grace": "5"}, "grace must be seconds, 0 or more, not '5'"),
    ],
)
def test_options_outside_their_range_are_rejected(options: dict[str, Any], message: str) -> None:
    """An engine names the invalid option before it is opened."""
    with pytest.raises(ConfigError, match=message):
        PlanEngine(**options)


async def test_cancelling_the_caller_ends_the_request(autojump_clock: MockClock) -> None:
    """A caller that is cancelled leaves nothing running, and its cancellation is not turned into an error."""
    async with open_engine() as engine:
        with trio.move_on_after(0.01) as scope:
            await engine.execute(plan_of(node("s", "sleep", duration_ms=500)), {"user_id": 1})
        assert scope.cancelled_caught
        assert engine.statistics().running == 0


async def test_an_op_with_a_nursery_of_its_own_may_fail(autojump_clock: MockClock) -> None:
    """An exception from such an op fails its node, even if it is raised during cancellation."""

    async def group(inputs: Any, params: Any, ctx: Any) -> Any:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 10)
            try:
                await trio.sleep(1)
            finally:
                raise ValueError("while cleaning up")

    ops = with_ops(OpSpec(name="t::group", inputs=(0, 0), gives=Rows.NEW, run_async=group))
    async with open_engine(ops=ops) as engine:
        with pytest.raises(NodeFailed, match="ValueError: while cleaning up") as caught:
            await engine.execute(plan_of(node("g", "t::group"), ops=ops), {"user_id": 1})
        assert caught.value.node == "g"
        with pytest.raises(RequestDeadlineExceeded):
            await engine.execute(plan_of(node("g", "t::group"), ops=ops), {"user_id": 1}, deadline=0.5)


@pytest.mark.parametrize("kind", ["async", "thread", "inline"])
@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt()])
async def test_an_exit_is_not_wrapped(kind: str, raised: BaseException, autojump_clock: MockClock) -> None:
    """An exception that is no failure of a node ends the request and is raised unchanged, in no group."""

    def leave(inputs: Any, params: Any, ctx: Any) -> Any:
        raise raised

    async def leave_later(inputs: Any, params: Any, ctx: Any) -> Any:
        raise raised

    how: dict[str, Any] = {"run_async": leave_later} if kind == "async" else {"run": leave}
    spec = OpSpec(name="t::leave", gives=Rows.SAME, run_inline=kind == "inline", **how)
    ops = with_ops(spec)
    plan = plan_of(
        node("s", "fixed_source"),
        node("x", "t::leave", "s"),
        node("w", "sleep", "s", duration_ms=1000),
        outputs=["x", "w"],
        ops=ops,
    )
    async with open_engine(ops=ops) as engine:
        with pytest.raises(type(raised)) as caught:
            await engine.execute(plan, {"user_id": 1})
        assert caught.value is raised


async def test_too_few_answers_fail_every_reader(autojump_clock: MockClock) -> None:
    """No node waits for ever for an answer that another node of the request did not get."""

    class TooFew(FakeEndpoint):
        async def lrange_many(self, keys: Sequence[str], start: int, stop: int) -> list[list[str]]:
            return (await super().lrange_many(keys, start, stop))[1:]

    endpoint = TooFew({}, {})
    endpoint.delay = 0.01
    plan = plan_of(
        node("s", "fixed_source", row_count=3),
        node("a", "media", "s", endpoint="ep_0001", fanout=2, on_error="empty"),
        node("b", "media", "s", endpoint="ep_0001", fanout=2, on_error="empty"),
        outputs=["a", "b"],
    )
    async with open_engine(endpoints=endpoint) as engine:
        found = await engine.execute(plan, {"user_id": 1})
        assert found.coverage is not None
        assert [(one.node, one.code) for one in found.coverage.degraded] == [("a", "NODE_FAILED"), ("b", "NODE_FAILED")]
