from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

import pytest
import trio
from plan_helpers import FakeEndpoint, ids, node, open_engine, plan_of, with_ops

from seedbed.errors import ConfigError, EndpointUnavailable, InvalidPlan, NodeFailed
from seedbed.plans import ops, opspec
from seedbed.plans.ops import CORE_OPS, OpRegistry, default_ops
from seedbed.plans.opspec import OpSpec, Rows, op
from seedbed.plans.registries import KeyType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seedbed.plans.opspec import OpContext
    from seedbed.plans.rowset import RowSet

EP = "ep_0001"


def social() -> FakeEndpoint:
    """A few users who follow each other."""
    return FakeEndpoint(
        {"user:1": {"country": "US", "name": "x"}, "user:2": {"country": "DE"}, "user:3": {"name": "y"}},
        {
            "follow:1": ["2", "3", "x", "4", "", "+5", "99999999999999999999", "6"],
            "recommendation:1": ["3", "2"],
            "media:2": ["20", "21", "22"],
            "media:3": ["30"],
        },
    )


async def test_viewer_gives_the_user_of_the_request() -> None:
    """One row with the user's id and country; a user without a hash has no country."""
    async with open_engine(endpoints=social()) as engine:
        plan = plan_of(node("v", "viewer", endpoint=EP))
        found = await engine.execute(plan, {"user_id": 1, "request_id": "r7"})
        assert found.candidates == [{"id": 1, "fields": {"country": "US"}}]
        assert found.request_id == "r7"
        unknown = await engine.execute(plan, {"user_id": "9"})
        assert unknown.candidates == [{"id": 9, "fields": {"country": None}}]
        assert unknown.engine_request_id != found.engine_request_id


async def test_follow_gives_the_listed_users_and_skips_invalid_ids() -> None:
    """Ids in list order up to fanout, each with its country; entries that are not integers of 64 bits are skipped."""
    async with open_engine(endpoints=social()) as engine:
        plan = plan_of(node("v", "viewer", endpoint=EP), node("f", "follow", "v", endpoint=EP, fanout=7))
        found = await engine.execute(plan, {"user_id": 1})
        assert [(one["id"], one["fields"]["country"]) for one in found.candidates] == [
            (2, "DE"),
            (3, None),
            (4, None),
            (5, None),
        ]


async def test_media_gives_ids_for_each_input_row_in_turn() -> None:
    """The lists of all input rows, one after the other, each up to fanout, with ids only."""
    async with open_engine(endpoints=social()) as engine:
        plan = plan_of(
            node("v", "viewer", endpoint=EP),
            node("r", "recommendation", "v", endpoint=EP, fanout=5),
            node("m", "media", "r", endpoint=EP, fanout=2),
        )
        found = await engine.execute(plan, {"user_id": 1})
        assert found.candidates == [{"id": number, "fields": {}} for number in (30, 20, 21)]


async def test_identical_reads_of_a_request_happen_once(autojump_clock: trio.testing.MockClock) -> None:
    """Two branches that read the same keys concurrently send one read; the next request reads again."""
    endpoint = social()
    endpoint.delay = 0.01
    plan = plan_of(
        node("v", "viewer", endpoint=EP),
        node("a", "follow", "v", endpoint=EP, fanout=5),
        node("b", "follow", "v", endpoint=EP, fanout=5),
        node("r", "recommendation", "v", endpoint=EP, fanout=5),
        outputs=["a", "b", "r"],
    )
    async with open_engine(endpoints=endpoint) as engine:
        found = await engine.execute(plan, {"user_id": 1})
        assert ids(found) == [2, 3, 4, 2, 3, 4, 3, 2]
        assert sorted(endpoint.asked) == sorted(set(endpoint.asked))
        asked = len(endpoint.asked)
        await engine.execute(plan, {"user_id": 1})
        assert len(endpoint.asked) == 2 * asked


async def test_a_shared_read_survives_the_cancellation_of_its_reader(autojump_clock: trio.testing.MockClock) -> None:
    """When the node that reads for two is cancelled, the other reads for itself."""
    endpoint = social()
    endpoint.delay = 0.01

    async def first(inputs: tuple[RowSet, ...], params: Mapping[str, Any], ctx: OpContext) -> RowSet:
        with trio.move_on_after(0.005):
            await ctx.endpoint(EP).hgetall("user:2")
        return ctx.new_rows([])

    async def second(inputs: tuple[RowSet, ...], params: Mapping[str, Any], ctx: OpContext) -> RowSet:
        await trio.sleep(0.001)
        fields = await ctx.endpoint(EP).hgetall("user:2")
        assert fields == {"country": "DE"}
        assert await ctx.endpoint(EP).lrange("media:2", 0, 1) == ["20", "21"]
        return ctx.new_rows([1])

    ops = with_ops(
        OpSpec(name="t::first", inputs=(0, 0), gives=Rows.NEW, run_async=first),
        OpSpec(name="t::second", inputs=(0, 0), gives=Rows.NEW, run_async=second),
    )
    async with open_engine(endpoints=endpoint, ops=ops) as engine:
        plan = plan_of(node("a", "t::first"), node("b", "t::second"), outputs=["a", "b"], ops=ops)
        assert ids(await engine.execute(plan, {"user_id": 1})) == [1]
        assert endpoint.asked == ["user:2", "user:2", "media:2"]


async def test_an_endpoint_that_is_down_names_the_node(autojump_clock: trio.testing.MockClock) -> None:
    """The error names the node that read, also if it shared the read."""
    endpoint = social()
    endpoint.error = EndpointUnavailable("connection refused")
    async with open_engine(endpoints=endpoint) as engine:
        plan = plan_of(node("v", "viewer", endpoint=EP), node("w", "viewer", endpoint=EP), outputs=["v", "w"])
        with pytest.raises(EndpointUnavailable, match="connection refused") as caught:
            await engine.execute(plan, {"user_id": 1})
        assert caught.value.node in ("v", "w")


ONE = {"op": "const_number", "value": 1}
HUGE = {"op": "const_number", "value": 1e308}


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"op": "mul", "a": HUGE, "b": {"op": "key_ref", "key_id": 1}}, "'final_score' is inf for id 2"),
        ({"op": "add", "a": ONE, "b": {"op": "param_ref", "param_id": 1}}, "'final_score' is null for id 1"),
    ],
)
async def test_vm_rejects_values_that_are_not_numbers(tree: dict[str, Any], message: str) -> None:
    """A result that is not finite, or null for a key that is not nullable, fails the node and names the row."""
    plan = plan_of(
        node("s", "fixed_source", row_count=3),
        node("x", "vm", "s", out_key=2001, expr_id="e"),
        expressions={"e": tree},
    )
    async with open_engine() as engine:
        with pytest.raises(NodeFailed, match=message) as caught:
            await engine.execute(plan, {"user_id": 1})
        assert caught.value.node == "x"


async def test_a_custom_op_gets_all_it_needs() -> None:
    """A custom op gets inputs, validated params, expressions, request, deadline and referenced rows."""
    seen: dict[str, Any] = {}

    @op(
        "my::boost",
        gives=Rows.SAME,
        params={
            "factor": opspec.number(0, 10, default=2.0),
            "expr_id": opspec.expression(),
            "other": opspec.node(),
            "out_key": opspec.key(KeyType.FLOAT, writes=True),
        },
    )
    def boost(inputs: tuple[RowSet, ...], params: Mapping[str, Any], ctx: OpContext) -> RowSet:
        seen.update(user=ctx.request.user_id, other=len(ctx.refs["other"]), deadline=ctx.deadline)
        values, _ = ctx.expression(params["expr_id"]).evaluate(inputs[0], ctx.param_values)
        return ctx.with_values(inputs[0], params["out_key"], [params["factor"] * value for value in values.tolist()])

    ops = with_ops(boost)
    plan = plan_of(
        node("s", "fixed_source", row_count=2),
        node("o", "fixed_source", row_count=5),
        node("b", "my::boost", "s", expr_id="e", other="o", out_key=1001),
        expressions={"e": {"op": "key_ref", "key_id": 1}},
        ops=ops,
    )
    async with open_engine(ops=ops) as engine:
        found = await engine.execute(plan, {"user_id": 4}, deadline=60, node_timeout=30)
        assert [one["fields"] for one in found.candidates] == [{"model_score_1": 2.0}, {"model_score_1": 4.0}]
        assert (seen["user"], seen["other"]) == (4, 5)
        assert 0 < seen["deadline"] - trio.current_time() < 30


@pytest.mark.parametrize(
    ("gives", "result", "message"),
    [
        (Rows.SAME, lambda rows, ctx: rows.head(1), "declares 'same' rows, but returned 1 of 2"),
        (Rows.REORDERED, lambda rows, ctx: rows.head(0), "declares 'reordered' rows"),
        (Rows.SUBSET, lambda rows, ctx: ctx.new_rows([1, 2, 3]), "declares 'subset' rows"),
        (Rows.PREFIX, lambda rows, ctx: ctx.new_rows([2]), "declares 'prefix' rows"),
        (Rows.APPENDED, lambda rows, ctx: rows.head(1), "declares 'appended' rows"),
        (Rows.SAME, lambda rows, ctx: ctx.with_values(rows, 1001, [1, 2]), r"wrote the keys \[1001\]"),
        (Rows.SAME, lambda rows, ctx: [1], "returned list, not a RowSet"),
    ],
)
async def test_an_op_that_breaks_its_contract_fails(gives: Rows, result: Any, message: str) -> None:
    """The declared rows and keys of a custom op are checked after each run."""
    ops = with_ops(OpSpec(name="my::op", gives=gives, run=lambda inputs, params, ctx: result(inputs[0], ctx)))
    plan = plan_of(node("s", "fixed_source", row_count=2), node("x", "my::op", "s"), ops=ops)
    async with open_engine(ops=ops) as engine:
        with pytest.raises(NodeFailed, match=message):
            await engine.execute(plan, {"user_id": 1})


def test_registering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ops come from the format, from entry points and from registration; a name can be registered once."""
    entry = EntryPoint(name="mine", value="plugin_of_a_test:op", group="seedbed.ops")
    loaded = OpSpec(name="plug::in", gives=Rows.SAME, run=lambda inputs, params, ctx: inputs[0], aliases=("plug",))
    monkeypatch.setattr(EntryPoint, "load", lambda self: [loaded])
    monkeypatch.setattr(ops, "entry_points", lambda group: [entry] if group == "seedbed.ops" else [])
    monkeypatch.setattr(ops, "_default", None)
    registry = default_ops()
    assert {spec.name for spec in registry} == {"plug::in", *(core.name for core in CORE_OPS)}
    assert registry.get("plug") is registry.get("plug::in") is loaded
    mine = ops.register_op(OpSpec(name="my::op", gives=Rows.SAME, run=lambda inputs, params, ctx: inputs[0]))
    assert default_ops().get("my::op") is mine
    with pytest.raises(ConfigError, match="the name 'vm' is taken by op 'core::vm'"):
        registry.add(OpSpec(name="x", aliases=("vm",), gives=Rows.SAME, run=lambda inputs, params, ctx: inputs[0]))
    monkeypatch.setattr(EntryPoint, "load", lambda self: [3])
    monkeypatch.setattr(ops, "_default", None)
    with pytest.raises(ConfigError, match=r"entry point 'mine' of seedbed\.ops gives 3"):
        default_ops()
    monkeypatch.setattr(EntryPoint, "load", lambda self: 3)
    with pytest.raises(ConfigError, match=r"\(plugin_of_a_test:op\) cannot be loaded: TypeError: .*int.* not iterable"):
        default_ops()
    monkeypatch.undo()
    monkeypatch.setattr(ops, "entry_points", lambda group: [entry])
    monkeypatch.setattr(ops, "_default", None)
    with pytest.raises(ConfigError, match=r"entry point 'mine' .* cannot be loaded: ModuleNotFoundError"):
        default_ops()


def test_an_op_needs_a_function() -> None:
    """Declaring an op without a function, or inline without a sync one, is rejected."""
    with pytest.raises(ConfigError, match="neither run nor run_async"):
        OpSpec(name="x", gives=Rows.NEW)

    async def wait(inputs: Any, params: Any, ctx: Any) -> Any: ...

    with pytest.raises(ConfigError, match="run_inline but has no run"):
        OpSpec(name="x", gives=Rows.NEW, run_async=wait, run_inline=True)
    assert list(OpRegistry()) == []


@pytest.mark.parametrize("fusion", ["off", "auto"])
@pytest.mark.parametrize("rows", [0, 3])
async def test_an_invalid_pattern_in_a_request_fails_its_node(fusion: Any, rows: int) -> None:
    """A pattern from the request is checked even if there is no text to match, and the error names its node."""
    plan = plan_of(
        node("s", "fixed_source", row_count=3),
        node("some", "filter", "s", pred_id="some"),
        node("f", "filter", "some", pred_id="p"),
        predicates={
            "some": {"op": "const_bool", "value": rows > 0},
            "p": {"op": "regex", "key_id": 3001, "pattern": {"kind": "param", "param_id": 2}, "flags": ""},
        },
    )
    async with open_engine() as engine:
        with pytest.raises(
            NodeFailed, match=r"node 'f': param 'blocklist_regex' is not a regular expression: missing \)"
        ):
            await engine.execute(plan, {"user_id": 1, "param_overrides": {"blocklist_regex": "("}}, fusion=fusion)
        good = {"user_id": 1, "param_overrides": {"blocklist_regex": "x"}}
        assert ids(await engine.execute(plan, good, fusion=fusion)) == []


SCORED = FakeEndpoint(
    {
        "f:1": {"score": "0.5", "title": "b", "rank": "3"},
        "f:2": {"score": "2", "title": "a"},
        "f:3": {"score": "0.5", "title": "b", "rank": "-1"},
        "f:5": {},
    },
    {},
)
FEATURES = {"score": 1001, "title": 3002}
FETCH = node("f", "fetch_features", "s", endpoint=EP, prefix="f:", fields=FEATURES)
FIVE = node("s", "fixed_source", row_count=5)


def fields(response: Any) -> list[tuple[Any, ...]]:
    """The id and the fields of each candidate."""
    return [(each["id"], *each["fields"].values()) for each in response.candidates]


async def test_features_are_fetched_into_declared_keys() -> None:
    """Fields of a row's hash become columns of the key's type; a missing one reads as if nothing had written it."""
    async with open_engine(endpoints=SCORED) as engine:
        found = await engine.execute(plan_of(FIVE, FETCH), {"user_id": 1})
        assert fields(found) == [(1, 0.5, "b"), (2, 2.0, "a"), (3, 0.5, "b"), (4, 0.0, None), (5, 0.0, None)]
        none = await engine.execute(plan_of(node("s", "fixed_source", row_count=0), FETCH), {"user_id": 1})
        assert none.candidates == []


@pytest.mark.parametrize("text", ["x", "", "nan", "inf", "1e999"])
async def test_a_feature_that_does_not_fit_its_key_fails_the_node(text: str) -> None:
    """The error names the field, the id and what was found."""
    async with open_engine(endpoints=FakeEndpoint({"f:1": {"score": text}}, {})) as engine:
        with pytest.raises(NodeFailed, match=r"node 'f': ValueError: field 'score' of id 1 is") as raised:
            await engine.execute(plan_of(FIVE, FETCH), {"user_id": 1})
        assert repr(text) in str(raised.value)


async def test_rows_with_one_value_are_deduplicated() -> None:
    """The first stays, or the one with the highest score; rows without a value all stay, and the order too."""
    async with open_engine(endpoints=SCORED) as engine:

        async def kept(**params: Any) -> list[int]:
            return ids(await engine.execute(plan_of(FIVE, FETCH, node("d", "dedupe", "f", **params)), {"user_id": 1}))

        assert await kept(by=3002) == [1, 2, 4, 5]
        assert await kept(by=3002, keep="best", score=1) == [2, 3, 4, 5]
        assert await kept(by=1001) == [1, 2, 4]
        assert await kept(by=1001, keep="best", score=1) == [2, 3, 5]
        assert await kept(by=2001, keep="best", score=1001) == [2]
        assert await kept(by=3001) == [1, 2, 3, 4, 5]


async def test_a_join_adds_the_columns_of_the_same_id() -> None:
    """Rows without a match keep what they have; other columns read as if nothing had written them."""
    right = node("r", "sort", "f", by=1, order="desc"), node("three", "take", "r", count=4)
    scored = node("v", "vm", "s", out_key=1001, expr_id="nine")
    plan = plan_of(
        *(FIVE, FETCH, *right, scored),
        node("j", "join", "v", rhs="three"),
        expressions={"nine": {"op": "const_number", "value": 9}},
    )
    async with open_engine(endpoints=SCORED) as engine:
        found = await engine.execute(plan, {"user_id": 1})
        assert fields(found) == [(1, 9.0, None), (2, 2.0, "a"), (3, 0.5, "b"), (4, 0.0, None), (5, 0.0, None)]
        # `explain` names the columns of the right side, whose rows keep them through other ops.
        (joined,) = [segment for segment in engine.explain(plan).segments if "j" in segment.nodes]
        (fetched,) = [segment for segment in engine.explain(plan).segments if "f" in segment.nodes]
        assert set(fetched.writes) <= set(joined.writes)
        assert len(fetched.writes) == 2


async def test_a_join_with_duplicate_right_ids_fails() -> None:
    """The error names the id."""
    plan = plan_of(FIVE, node("c", "concat", "s", rhs="s"), node("j", "join", "s", rhs="c"))
    async with open_engine() as engine:
        with pytest.raises(NodeFailed, match="node 'j': ValueError: two rows of the right side have the id 1"):
            await engine.execute(plan, {"user_id": 1})


@pytest.mark.parametrize(
    ("last", "path", "message"),
    [
        (node("d", "dedupe", "s", by=1, keep="best"), "params.score", "needs the key to compare by"),
        (node("d", "dedupe", "s", by=1, score=1001), "params.score", "keep 'first' compares nothing"),
        (
            node("d", "dedupe", "s", by=1, keep="best", score=3001),
            "params.score",
            "expected a key of type int or float",
        ),
        (node("d", "dedupe", "s", by=9), "params.by", "no key has the id 9"),
        (node("j", "join", "s", rhs="x"), "params.rhs", "no node has the id 'x'"),
        (
            node("f", "fetch_features", "s", endpoint=EP, prefix="", fields={"a": 1}),
            "params.fields.a",
            "may write, found 'id'",
        ),
        (node("f", "fetch_features", "s", endpoint=EP, prefix="", fields={}), "params.fields", "at least one field"),
        (
            node("f", "fetch_features", "s", endpoint=EP, prefix="", fields={"a": 1001, "b": 1001}),
            "params.fields.b",
            "another field is written to the key 1001",
        ),
        (node("f", "fetch_features", "s", endpoint=EP, prefix="", fields=[1]), "params.fields", "expected an object"),
    ],
)
def test_wrong_params_of_these_ops_are_named(last: dict[str, Any], path: str, message: str) -> None:
    """What is wrong with dedupe, join and fetch_features is found before anything runs."""
    with pytest.raises(InvalidPlan) as raised:
        plan_of(FIVE, last)
    ((_, found, text),) = raised.value.problems
    assert (found, message in text) == (f"$.nodes[1].{path}", True), text
