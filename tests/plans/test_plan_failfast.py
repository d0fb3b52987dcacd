from __future__ import annotations

import threading
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from plan_helpers import FakeEndpoint, ids, jump_at, node, open_engine, plan_of, with_ops
from trio.testing import MockClock

from seedbed.errors import EndpointUnavailable, NodeFailed, NodeTimeout, PlanError, RequestDeadlineExceeded
from seedbed.plans.opspec import OpSpec, Rows, boolean

EP = "ep_0001"
SCORE = {"e": {"op": "add", "a": {"op": "param_ref", "param_id": 1}, "b": {"op": "key_ref", "key_id": 1}}}


async def test_the_first_failure_ends_everything_else(autojump_clock: MockClock) -> None:
    """A branch that fails cancels the others at once, and no later node starts."""
    ended: list[str] = []

    async def wait(inputs: Any, params: Any, ctx: Any) -> Any:
        try:
            await trio.sleep(10)
        finally:
            ended.append(ctx.node_id)

    ops = with_ops(OpSpec(name="t::wait", inputs=(0, 0), gives=Rows.NEW, run_async=wait))
    plan = plan_of(
        node("bad", "sleep", duration_ms=20, fail_after_sleep=True),
        node("a", "t::wait"),
        node("b", "t::wait"),
        node("join", "concat", "a", rhs="b"),
        outputs=["join", "bad"],
        ops=ops,
    )
    async with open_engine(ops=ops) as engine:
        start = trio.current_time()
        with pytest.raises(NodeFailed, match="RuntimeError: fail_after_sleep") as caught:
            await engine.execute(plan, {"user_id": 1})
        assert caught.value.node == "bad"
        assert isinstance(caught.value.__cause__, RuntimeError)
        assert trio.current_time() - start == pytest.approx(0.02)
        assert sorted(ended) == ["a", "b"]


async def test_a_failure_does_not_wait_for_a_thread() -> None:
    """A thread that runs when another branch fails is abandoned, and counted when it ends."""
    entered, let_go = trio.Event(), threading.Event()

    def work(inputs: Any, params: Any, ctx: Any) -> Any:
        trio.from_thread.run_sync(entered.set)
        assert let_go.wait(30)
        return inputs[0]

    async def fail(inputs: Any, params: Any, ctx: Any) -> Any:
        await entered.wait()
        raise LookupError("no luck")

    ops = with_ops(
        OpSpec(name="t::work", gives=Rows.SAME, run=work),
        OpSpec(name="t::fail", inputs=(0, 0), gives=Rows.NEW, run_async=fail),
    )
    plan = plan_of(
        node("s", "fixed_source"),
        node("w", "t::work", "s"),
        node("f", "t::fail"),
        outputs=["w", "f"],
        ops=ops,
    )
    async with open_engine(ops=ops) as engine:
        with pytest.raises(NodeFailed, match="LookupError: no luck"):
            await engine.execute(plan, {"user_id": 1})
        assert engine.statistics().threads_late == 1
        let_go.set()
        await engine._pool.wait_idle()
        assert engine.statistics().late_completions == 1


async def test_an_exception_of_a_sync_op_names_its_node() -> None:
    """Inline, in a segment and alone in a thread, the error names the node that raised."""

    def fail(inputs: Any, params: Any, ctx: Any) -> Any:
        raise ZeroDivisionError("by nothing")

    ops = with_ops(OpSpec(name="t::fail", gives=Rows.SAME, run=fail))
    plan = plan_of(
        node("s", "fixed_source"),
        node("a", "take", "s", count=1),
        node("b", "t::fail", "a"),
        node("c", "take", "b", count=1),
        ops=ops,
    )
    async with open_engine(ops=ops) as engine:
        for fusion in ("off", "auto"):
            with pytest.raises(NodeFailed, match="ZeroDivisionError: by nothing") as caught:
                await engine.execute(plan, {"user_id": 1}, fusion=fusion)
            assert caught.value.node == "b"


@pytest.mark.parametrize("fusion", ["off", "auto"])
@pytest.mark.parametrize(("policy", "expected"), [("empty", []), ("default", [(1, 0.0), (2, 0.0)])])
async def test_a_node_may_degrade(fusion: Any, policy: str, expected: list[Any]) -> None:
    """With a policy, a node that fails gives no rows or its input with defaults, and the coverage lists it."""
    plan = plan_of(
        node("s", "fixed_source", row_count=2),
        node("x", "vm", "s", out_key=2001, expr_id="e", on_error=policy),
        node("o", "sort", "x", by=1),
        expressions=SCORE,
    )
    async with open_engine() as engine:
        found = await engine.execute(plan, {"user_id": 1}, fusion=fusion)
        assert [(one["id"], one["fields"]["final_score"]) for one in found.candidates if one["fields"]] == expected
        assert found.coverage is not None
        (degraded,) = found.coverage.degraded
        assert (degraded.node, degraded.policy, degraded.code) == ("x", policy, "NODE_FAILED")
        assert "'final_score' is null for id 1" in degraded.message
        request = {"user_id": 1, "param_overrides": {"media_age_penalty_weight": 1.0}}
        whole = await engine.execute(plan, request, fusion=fusion)
        assert whole.coverage is not None
        assert whole.coverage.complete


async def test_a_branch_whose_endpoint_is_down_may_be_left_out(autojump_clock: MockClock) -> None:
    """An endpoint that fails empties the branch that may be empty; a viewer falls back to the bare user."""
    endpoint = FakeEndpoint({}, {})
    endpoint.error = EndpointUnavailable("down")
    plan = plan_of(
        node("v", "viewer", endpoint=EP, on_error="default"),
        node("f", "follow", "v", endpoint=EP, fanout=3, on_error="default"),
        node("j", "concat", "v", rhs="f"),
    )
    async with open_engine(endpoints=endpoint) as engine:
        found = await engine.execute(plan, {"user_id": 8})
        assert found.candidates == [{"id": 8, "fields": {"country": None}}]
        assert found.coverage is not None
        assert [(one.node, one.code) for one in found.coverage.degraded] == [
            ("v", "ENDPOINT_UNAVAILABLE"),
            ("f", "ENDPOINT_UNAVAILABLE"),
        ]


@st.composite
def policied_nodes(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Nodes of all ops, each of which may degrade."""
    nodes: list[dict[str, Any]] = []
    kinds: dict[str, dict[str, Any]] = {
        "viewer": {"endpoint": EP},
        "fixed_source": {"row_count": 2},
        "follow": {"endpoint": EP, "fanout": 2},
        "media": {"endpoint": EP, "fanout": 2},
        "vm": {"out_key": 2001, "expr_id": "e"},
        "filter": {"pred_id": "p"},
        "sort": {"by": 1},
        "take": {"count": 1},
        "sleep": {"duration_ms": 0},
        "concat": {},
    }
    for number in range(draw(st.integers(1, 8))):
        op = draw(st.sampled_from([*kinds] if nodes else ["viewer", "fixed_source"]))
        names = [one["node_id"] for one in nodes]
        inputs = [] if op in ("viewer", "fixed_source") else [draw(st.sampled_from(names))]
        params = {"rhs": draw(st.sampled_from(names))} if op == "concat" else kinds[op]
        policy = draw(st.sampled_from(["empty", "default"]))
        nodes.append(node(f"n{number}", op, *inputs, on_error=policy, **params))
    return nodes


@given(policied_nodes(), st.data())
def test_a_response_has_the_same_fields_when_nodes_degrade(nodes: list[dict[str, Any]], data: st.DataObject) -> None:
    """Whichever node degrades and whatever its policy, candidates have the same fields."""
    outputs = data.draw(st.lists(st.sampled_from([one["node_id"] for one in nodes]), min_size=1, max_size=3))
    plan = plan_of(
        *nodes,
        outputs=outputs,
        expressions={"e": {"op": "const_number", "value": 1}},
        predicates={"p": {"op": "const_bool", "value": True}},
    )
    endpoint = FakeEndpoint({}, {f"{name}:{n}": ["1", "2"] for name in ("follow", "media") for n in (1, 2)})

    async def main() -> None:
        async with open_engine(endpoints=endpoint) as engine:
            whole = await engine.execute(plan, {"user_id": 1})
            late = await engine.execute(plan, {"user_id": 1}, node_timeout=0)
            assert late.coverage is not None
            assert len(late.coverage.degraded) == len(nodes)
            endpoint.error = EndpointUnavailable("down")
            away = await engine.execute(plan, {"user_id": 1})
            for degraded in (late, away):
                assert list(degraded.rows.columns) == list(whole.rows.columns)

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def test_a_node_that_takes_too_long_may_degrade(autojump_clock: MockClock) -> None:
    """A node timeout is a failure of that node alone where its policy says so; the request's deadline never is."""
    plan = plan_of(
        node("s", "fixed_source", row_count=2),
        node("slow", "sleep", "s", duration_ms=100, on_error="default"),
        node("next", "sleep", "slow", duration_ms=5),
    )
    async with open_engine() as engine:
        start = trio.current_time()
        found = await engine.execute(plan, {"user_id": 1}, node_timeout=0.01)
        assert trio.current_time() - start == pytest.approx(0.015)
        assert ids(found) == [1, 2]
        assert found.coverage is not None
        assert [one.code for one in found.coverage.degraded] == ["NODE_TIMEOUT"]
        with pytest.raises(RequestDeadlineExceeded) as caught:
            await engine.execute(plan, {"user_id": 1}, deadline=0.01)
        assert caught.value.node == "slow"


@pytest.mark.parametrize("fusion", ["off", "auto"])
async def test_a_thread_that_takes_too_long_may_degrade(fusion: Any, mock_clock: MockClock) -> None:
    """The request continues without the node whose thread timed out, and without waiting for that thread."""
    entered, let_go = trio.Event(), threading.Event()

    def work(inputs: Any, params: Any, ctx: Any) -> Any:
        trio.from_thread.run_sync(entered.set)
        assert let_go.wait(30)
        return inputs[0]

    ops = with_ops(OpSpec(name="t::work", gives=Rows.SAME, run=work))
    plan = plan_of(
        node("s", "fixed_source", row_count=5),
        node("t3", "take", "s", count=3),
        node("w", "t::work", "t3", on_error="default"),
        node("t2", "take", "w", count=2),
        ops=ops,
    )
    async with open_engine(ops=ops) as engine, trio.open_nursery() as nursery:
        nursery.start_soon(jump_at, entered, mock_clock, 0.2)
        found = await engine.execute(plan, {"user_id": 1}, node_timeout=0.2, fusion=fusion, trace=True)
        assert ids(found) == [1, 2]
        assert found.coverage is not None
        assert [(one.node, one.code) for one in found.coverage.degraded] == [("w", "NODE_TIMEOUT")]
        assert found.trace is not None
        assert [(one.node, one.rows_out) for one in found.trace.nodes] == [("s", 5), ("t3", 3), ("w", 3), ("t2", 2)]
        assert engine.statistics().threads_late == 1
        let_go.set()
        await engine._pool.wait_idle()


async def test_a_fallback_that_fails_fails_the_node() -> None:
    """An exception in the fallback of a failed node fails the request."""

    async def fail(inputs: Any, params: Any, ctx: Any) -> Any:
        raise KeyError("first")

    def fail_again(inputs: Any, params: Any, ctx: Any) -> Any:
        raise KeyError("second")

    ops = with_ops(OpSpec(name="t::x", inputs=(0, 0), gives=Rows.NEW, run_async=fail, fallback=fail_again))
    async with open_engine(ops=ops) as engine:
        with pytest.raises(NodeFailed, match="second"):
            await engine.execute(plan_of(node("x", "t::x", on_error="default"), ops=ops), {"user_id": 1})


@pytest.mark.parametrize("runs", ["run", "run_async"])
@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (NodeTimeout("late", node="w"), "NODE_FAILED"),
        (RequestDeadlineExceeded("late", node="w"), "NODE_FAILED"),
        (EndpointUnavailable("down", node="w"), "ENDPOINT_UNAVAILABLE"),
    ],
)
async def test_an_op_that_runs_another_plan_fails_as_its_own_node(runs: str, raised: PlanError, code: str) -> None:
    """An error that names a node of another plan is the failure of this node, partial or not, and may be degraded."""

    def fail(inputs: Any, params: Any, ctx: Any) -> Any:
        raise raised

    async def fail_async(inputs: Any, params: Any, ctx: Any) -> Any:
        raise raised

    how: dict[str, Any] = {"run": fail} if runs == "run" else {"run_async": fail_async}
    ops = with_ops(OpSpec(name="t::nested", gives=Rows.SAME, **how))
    async with open_engine(ops=ops) as engine:
        for policy, partial in (("fail", False), ("fail", True), ("empty", False)):
            plan = plan_of(node("s", "fixed_source"), node("x", "t::nested", "s", on_error=policy), ops=ops)
            if policy == "empty":
                found = await engine.execute(plan, {"user_id": 1})
                assert found.coverage is not None
                assert [(one.node, one.code) for one in found.coverage.degraded] == [("x", code)]
                continue
            with pytest.raises(PlanError, match=f"node 'x': node 'w': {raised.message}") as caught:
                await engine.execute(plan, {"user_id": 1}, partial=partial, deadline=60)
            assert (caught.value.node, caught.value.code, caught.value.__cause__) == ("x", code, raised)


async def test_an_op_that_reads_concurrently_reports_every_failure() -> None:
    """All exceptions of the op's nursery are reported; ENDPOINT_UNAVAILABLE only if each of them is one."""

    async def ask(raised: Exception) -> None:
        raise raised

    async def both(inputs: Any, params: Any, ctx: Any) -> Any:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, EndpointUnavailable("is down"))
            nursery.start_soon(ask, EndpointUnavailable("is down") if params["only"] else OSError())

    spec = OpSpec(name="t::both", inputs=(0, 0), gives=Rows.NEW, run_async=both, params={"only": boolean()})
    ops = with_ops(spec)
    async with open_engine(ops=ops) as engine:
        with pytest.raises(EndpointUnavailable, match="node 'x': is down; is down"):
            await engine.execute(plan_of(node("x", "t::both", only=True), ops=ops), {"user_id": 1})
        with pytest.raises(NodeFailed, match=r"(is down; OSError|OSError; is down)$"):
            await engine.execute(plan_of(node("x", "t::both", only=False), ops=ops), {"user_id": 1})


@pytest.mark.parametrize("fusion", ["off", "auto"])
async def test_a_node_without_time_may_degrade(fusion: Any, autojump_clock: MockClock) -> None:
    """A node without any time is not run, async or sync, and its policy decides."""
    called: list[str] = []

    def work(inputs: Any, params: Any, ctx: Any) -> Any:
        called.append(ctx.node_id)
        return inputs[0]

    ops = with_ops(OpSpec(name="t::work", gives=Rows.SAME, run=work))
    plan = plan_of(
        node("s", "fixed_source", row_count=2, on_error="empty"),
        node("w", "t::work", "s", on_error="default"),
        node("t", "take", "w", count=1, on_error="default"),
        ops=ops,
    )
    async with open_engine(ops=ops) as engine:
        found = await engine.execute(plan, {"user_id": 1}, node_timeout=0, fusion=fusion)
        assert found.coverage is not None
        assert [(one.node, one.code) for one in found.coverage.degraded] == [
            ("s", "NODE_TIMEOUT"),
            ("w", "NODE_TIMEOUT"),
            ("t", "NODE_TIMEOUT"),
        ]
        assert not called
