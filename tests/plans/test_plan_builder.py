from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from seedbed.checks import MAX_DEPTH
from seedbed.errors import InvalidPlan
from seedbed.plans.builder import EP, AuthoredPlan, Key, P, Pred, plan
from seedbed.plans.endpoint import Endpoint
from seedbed.plans.format import parse_plan
from seedbed.plans.ops import default_ops
from seedbed.plans.opspec import OpSpec, Rows, expression, key, node
from seedbed.plans.registries import default_registries

if TYPE_CHECKING:
    from collections.abc import Callable

    from seedbed.plans.builder import Node, PlanContext

REDIS = EP.redis.redis_default


def compiled(function: Callable[[PlanContext], Any], **options: Any) -> dict[str, Any]:
    """The document of a plan function."""
    return AuthoredPlan(name="test", function=function, **options).document()


def problems_of(function: Callable[[PlanContext], Any], **options: Any) -> list[tuple[str, str, str]]:
    """All problems of a plan function."""
    with pytest.raises(InvalidPlan) as caught:
        compiled(function, **options)
    return list(caught.value.problems)


def test_the_plan_of_the_format_can_be_written() -> None:
    """The fluent form compiles to exactly the document that the format shows."""

    @plan
    def top_follows(ctx: PlanContext) -> Node:
        return (
            ctx.viewer(endpoint=REDIS)
            .follow(endpoint=REDIS, fanout=20)
            .vm(out_key=Key.final_score, expr=Key.id * P.media_age_penalty_weight.coalesce(0.5), trace="score")
            .filter(pred=Pred.cmp(">", Key.final_score, 1))
            .sort(by=Key.final_score, order="desc")
            .take(count=3)
        )

    weight = {"op": "coalesce", "a": {"op": "param_ref", "param_id": 1}, "b": {"op": "const_number", "value": 0.5}}
    assert top_follows.document() == {
        "schema_version": 1,
        "plan_name": "top_follows",
        "nodes": [
            {"node_id": "n0", "op": "core::viewer", "inputs": [], "params": {"endpoint": "ep_0001"}},
            {"node_id": "n1", "op": "core::follow", "inputs": ["n0"], "params": {"endpoint": "ep_0001", "fanout": 20}},
            {
                "node_id": "n2",
                "op": "core::vm",
                "inputs": ["n1"],
                "params": {"out_key": 2001, "expr_id": "e0", "trace": "score"},
            },
            {"node_id": "n3", "op": "core::filter", "inputs": ["n2"], "params": {"pred_id": "p0"}},
            {"node_id": "n4", "op": "core::sort", "inputs": ["n3"], "params": {"by": 2001, "order": "desc"}},
            {"node_id": "n5", "op": "core::take", "inputs": ["n4"], "params": {"count": 3}},
        ],
        "outputs": ["n5"],
        "expr_table": {"e0": {"op": "mul", "a": {"op": "key_ref", "key_id": 1}, "b": weight}},
        "pred_table": {
            "p0": {
                "op": "cmp",
                "cmp": ">",
                "a": {"op": "key_ref", "key_id": 2001},
                "b": {"op": "const_number", "value": 1},
            }
        },
    }
    assert top_follows.plan() == parse_plan(top_follows.text())
    assert top_follows.text() == top_follows.text()


def test_every_op_has_a_method() -> None:
    """All ops of the format can be written, and several outputs are returned as a list."""

    def everything(ctx: PlanContext) -> list[Node]:
        users = ctx.viewer(endpoint=REDIS).recommendation(endpoint=REDIS, fanout=2).media(endpoint=REDIS, fanout=3)
        slow = ctx.fixed_source(row_count=4).sleep(duration_ms=1).busy_cpu(busy_wait_ms=2)
        ranked = users.follow(endpoint=REDIS, fanout=5).vm(out_key=Key.model_score_1, expr=1)
        chosen = ranked.filter(pred=Pred.const(value=True)).sort(by=Key.country).take(count=6)
        unique = chosen.dedupe(by=Key.id, keep="best", score=Key.model_score_1).join(rhs=slow)
        fetched = unique.fetch_features(endpoint=REDIS, prefix="f:", fields={"title": Key.title})
        return [fetched.concat(rhs=slow), ctx.sleep(duration_ms=3, fail_after_sleep=True)]

    document = compiled(everything)
    assert {each["op"] for each in document["nodes"]} == {
        name for name in (spec.name for spec in default_ops()) if name.startswith(("core::", "test::"))
    }
    assert document["outputs"] == ["n14", "n15"]
    assert document["nodes"][12]["params"] == {"rhs": "n5"}
    assert document["nodes"][15] == {
        "node_id": "n15",
        "op": "test::sleep",
        "inputs": [],
        "params": {"duration_ms": 3, "fail_after_sleep": True},
    }


def trees(function: Callable[[PlanContext], Any]) -> dict[str, Any]:
    """Both tables of a plan function."""
    document = compiled(function)
    return {**document["expr_table"], **document["pred_table"]}


def number(value: float) -> dict[str, Any]:
    """Make a constant."""
    return {"op": "const_number", "value": value}


ID = {"op": "key_ref", "key_id": 1}
SCORE = {"op": "key_ref", "key_id": 2001}
COUNTRY = {"op": "key_ref", "key_id": 3001}


@pytest.mark.parametrize(
    ("expr", "tree"),
    [
        (2, number(2)),
        (Key.id + 1, {"op": "add", "a": ID, "b": number(1)}),
        (1 + Key.id, {"op": "add", "a": number(1), "b": ID}),
        (Key.id - 1, {"op": "sub", "a": ID, "b": number(1)}),
        (1 - Key.id, {"op": "sub", "a": number(1), "b": ID}),
        (2.5 * Key.id, {"op": "mul", "a": number(2.5), "b": ID}),
        (-Key.id, {"op": "neg", "x": ID}),
        (P.esr_cutoff.coalesce(0), {"op": "coalesce", "a": {"op": "param_ref", "param_id": 3}, "b": number(0)}),
        (
            (Key.id * 0).coalesce(None),
            {"op": "coalesce", "a": {"op": "mul", "a": ID, "b": number(0)}, "b": {"op": "const_null"}},
        ),
    ],
)
def test_arithmetic_is_written_as_in_python(expr: Any, tree: dict[str, Any]) -> None:
    """Operators give the trees of the format, numbers on either side."""
    assert trees(lambda ctx: ctx.fixed_source().vm(out_key=Key.final_score, expr=expr)) == {"e0": tree}


@pytest.mark.parametrize(
    ("pred", "tree"),
    [
        (Key.final_score > 1, {"op": "cmp", "cmp": ">", "a": SCORE, "b": number(1)}),
        (Key.final_score >= 1, {"op": "cmp", "cmp": ">=", "a": SCORE, "b": number(1)}),
        (1 > Key.final_score, {"op": "cmp", "cmp": "<", "a": SCORE, "b": number(1)}),  # noqa: SIM300  as users may write
        (Key.final_score <= Key.id, {"op": "cmp", "cmp": "<=", "a": SCORE, "b": ID}),
        (Key.final_score == 1, {"op": "cmp", "cmp": "==", "a": SCORE, "b": number(1)}),
        (Key.country != None, {"op": "cmp", "cmp": "!=", "a": COUNTRY, "b": {"op": "const_null"}}),  # noqa: E711  the literal null
        (Pred.in_(Key.country, ("US", "DE")), {"op": "in", "lhs": COUNTRY, "list": ["US", "DE"]}),
        (
            Pred.is_null(Key.country) & ~Pred.not_null(Key.id) | Pred.const(value=False),
            {
                "op": "or",
                "a": {
                    "op": "and",
                    "a": {"op": "is_null", "x": COUNTRY},
                    "b": {"op": "not", "x": {"op": "not_null", "x": ID}},
                },
                "b": {"op": "const_bool", "value": False},
            },
        ),
        (
            Pred.regex(Key.country, "^U", flags="i"),
            {"op": "regex", "key_id": 3001, "pattern": {"kind": "literal", "value": "^U"}, "flags": "i"},
        ),
        (
            Pred.regex(Key.title, P.blocklist_regex),
            {"op": "regex", "key_id": 3002, "pattern": {"kind": "param", "param_id": 2}, "flags": ""},
        ),
    ],
)
def test_predicates_are_written_as_in_python(pred: Pred, tree: dict[str, Any]) -> None:
    """Comparisons, & | ~ and the functions of Pred give the trees of the format."""
    assert trees(lambda ctx: ctx.fixed_source().filter(pred=pred)) == {"p0": tree}


def test_equal_expressions_share_an_entry() -> None:
    """Nodes that compute the same share an entry of the table, whether or not they share the object."""

    def twice(ctx: PlanContext) -> Node:
        first = ctx.fixed_source().vm(out_key=Key.model_score_1, expr=Key.id * 2).filter(pred=Key.id > 1)
        return (
            first.vm(out_key=Key.model_score_2, expr=Key.id * 2)
            .vm(out_key=Key.final_score, expr=Key.id)
            .filter(pred=Key.id > 1)
        )

    document = compiled(twice)
    assert [each["params"].get("expr_id") for each in document["nodes"]] == [None, "e0", None, "e0", "e1", None]
    assert list(document["expr_table"]) == ["e0", "e1"]
    assert list(document["pred_table"]) == ["p0"]


def test_on_error_is_an_extension_of_the_node() -> None:
    """A policy makes the plan require its capability."""
    document = compiled(
        lambda ctx: ctx.viewer(endpoint=REDIS).follow(endpoint=REDIS, fanout=1).on_error("empty").take(count=1)
    )
    assert document["capabilities_required"] == ["seedbed.on_error.v1"]
    assert [each.get("extensions") for each in document["nodes"]] == [
        None,
        {"seedbed.on_error.v1": {"policy": "empty"}},
        None,
    ]
    found = problems_of(lambda ctx: ctx.viewer(endpoint=REDIS).on_error("ignore"))  # type: ignore[arg-type]
    assert [problem[0] for problem in found] == ["INVALID_VALUE"]


WRONG: list[tuple[Callable[[PlanContext], Any], str, str, str]] = [
    (
        lambda ctx: ctx.viewer(endpoint=EP.redis.redis_defualt),
        "UNKNOWN_ENDPOINT",
        "$.nodes[0].params.endpoint",
        "no redis endpoint is named 'redis_defualt'; did you mean 'redis_default'?",
    ),
    (
        lambda ctx: ctx.viewer(endpoint=EP.http.api),
        "UNKNOWN_ENDPOINT",
        "$.nodes[0].params.endpoint",
        "no http endpoint is named 'api'",
    ),
    (
        lambda ctx: ctx.fixed_source().vm(out_key=Key.final_scor, expr=1),
        "UNKNOWN_KEY",
        "$.nodes[1].params.out_key",
        "no key is named 'final_scor'; did you mean 'final_score'?",
    ),
    (
        lambda ctx: ctx.fixed_source().vm(out_key=Key.final_score, expr=P.wieght * 2),
        "UNKNOWN_PARAM",
        "$.expr_table.e0.a.param_id",
        "no param is named 'wieght' (known: 'media_age_penalty_weight',",
    ),
    (
        lambda ctx: ctx.fixed_source().vm(out_key=Key.id, expr=1),
        "KEY_NOT_WRITABLE",
        "$.nodes[1].params.out_key",
        "expected a key that ops may write, found 'id'",
    ),
    (
        lambda ctx: ctx.fixed_source().vm(out_key=Key.final_score, expr=Key.country * 2),
        "TYPE_MISMATCH",
        "$.expr_table.e0.a",
        "expected a number for mul, found a string",
    ),
    (
        lambda ctx: ctx.fixed_source().vm(out_key=Key.final_score, expr=float("nan")),
        "NOT_FINITE",
        "$.expr_table.e0.value",
        "expected a finite number, found nan",
    ),
    (
        lambda ctx: ctx.fixed_source().filter(pred=Pred.in_(Key.country, [object()])),  # type: ignore[list-item]
        "WRONG_TYPE",
        "$.pred_table.p0.list[0]",
        "expected a number, found a value of type object",
    ),
    (
        lambda ctx: ctx.fixed_source().filter(pred=Pred.regex(Key.country, "(")),
        "INVALID_REGEX",
        "$.pred_table.p0.pattern.value",
        "expected a regular expression: missing ): (",
    ),
    (
        lambda ctx: ctx.fixed_source().take(count=0),
        "INVALID_VALUE",
        "$.nodes[1].params.count",
        "expected an integer of at least 1, found 0",
    ),
    (
        lambda ctx: ctx.fixed_source().sort(by=Key.id, order="down"),
        "INVALID_VALUE",
        "$.nodes[1].params.order",
        "expected one of 'asc', 'desc', found 'down'",
    ),
    (
        lambda ctx: ctx.fixed_source().concat(rhs=3),
        "WRONG_TYPE",
        "$.nodes[1].params.rhs",
        "expected a string, found 3",
    ),
    (lambda ctx: ctx.op("core::tak"), "UNKNOWN_OP", "$.nodes[0].op", "no op is named 'core::tak'; did you mean"),
    (
        lambda ctx: ctx.op("core::take", count=1),
        "WRONG_INPUT_COUNT",
        "$.nodes[0].inputs",
        "op 'core::take' takes 1 input, found 0",
    ),
    (
        lambda ctx: None,
        "WRONG_TYPE",
        "$.outputs",
        "expected plan 'test' to return a node or a list of nodes, found null",
    ),
    (lambda ctx: [], "INVALID_VALUE", "$.outputs", "expected at least one node id, found an empty array"),
    (lambda ctx: [ctx.fixed_source(), 3], "WRONG_TYPE", "$.outputs[1]", "expected a node, found 3"),
    (
        lambda ctx: [ctx.fixed_source(), ctx.fixed_source()][0],
        "UNUSED_NODE",
        "$.nodes[1]",
        "no output needs this node of op 'test::fixed_source': return it or remove it",
    ),
]


@pytest.mark.parametrize(("function", "code", "path", "message"), WRONG)
def test_mistakes_are_named(function: Callable[[PlanContext], Any], code: str, path: str, message: str) -> None:
    """Each problem of a plan function has a code, a path and a message."""
    (found,) = problems_of(function)
    assert found[:2] == (code, path)
    assert found[2].startswith(message)


def test_an_unknown_method_is_an_attribute_error() -> None:
    """The message about an unknown op suggests the op that was probably meant."""
    for use in (lambda ctx: ctx.fixed_sorce(), lambda ctx: ctx.fixed_source().tak(count=1)):
        with pytest.raises(AttributeError, match="did you mean"):
            compiled(use)


def test_a_rejected_node_leaves_nothing_behind() -> None:
    """A mistake is raised by the call that makes it, and the plan function can continue without that node."""

    def wrong(ctx: PlanContext) -> Node:
        source = ctx.fixed_source()
        with pytest.raises(InvalidPlan):
            source.vm(out_key=Key.final_score, expr=Key.nope)
        return source.take(count=1)

    assert compiled(wrong)["nodes"][1] == {
        "node_id": "n1",
        "op": "core::take",
        "inputs": ["n0"],
        "params": {"count": 1},
    }
    assert compiled(wrong)["expr_table"] == {}


def test_nodes_of_another_plan_are_rejected() -> None:
    """A node belongs to the plan that created it."""
    stolen: list[Node] = []
    compiled(lambda ctx: stolen.append(ctx.fixed_source()) or stolen[0])  # type: ignore[func-returns-value]
    for use in (lambda ctx: stolen[0], lambda ctx: ctx.fixed_source().concat(rhs=stolen[0])):
        (found,) = problems_of(use)
        assert found[0] == "UNKNOWN_NODE"
        assert found[2] == "expected a node of this plan, found one of another"


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: bool(Key.id > 1), "write & | ~ in place of and, or, not"),
        (lambda: 1 < Key.id < 3, r"\(a < b\) & \(b < c\) in place of a < b < c"),
        (lambda: Key.country == "US", r"compare it by Pred\.in_\(Key\.country, \['US'\]\)"),
        (lambda: Key.id + True, "not of True"),
        (lambda: Key.id * [1], r"not of \[1\]"),
        (lambda: (Key.id > 1) & True, "a predicate is a comparison or the result of a function of Pred, not True"),
        (lambda: Pred.regex(Key.id + 1, "a"), "a pattern is matched with a key like"),  # type: ignore[arg-type]
        (lambda: {Key.id}, "unhashable"),
    ],
)
def test_misleading_python_operators_are_type_errors(use: Callable[[], object], message: str) -> None:
    """Where Python's own meaning of an operator would be wrong, the error suggests what to write."""
    with pytest.raises(TypeError, match=message):
        use()


def test_symbols_behave_as_ordinary_objects() -> None:
    """Symbols can be copied, compared and inspected like other objects."""
    assert repr(copy.copy(Key.id)) == "<KeyRef key_ref>"
    assert not hasattr(Key, "__wrapped__")
    assert EP.redis.x == EP.redis.x


def test_trees_that_are_too_deep_or_too_large_are_rejected_where_they_are_used() -> None:
    """An expression that is too deep or too large is an error of the line that creates a node with it."""
    deep: Any = Key.id
    for _ in range(MAX_DEPTH):
        deep = -deep
    large: Any = Key.id
    for _ in range(50):
        large = large + large
    for expr, code in ((deep, "TOO_DEEP"), (large, "TOO_LARGE")):

        def build(ctx: PlanContext, expr: Any = expr, code: str = code) -> Any:
            source = ctx.fixed_source()
            with pytest.raises(InvalidPlan, match=code):
                source.vm(out_key=Key.final_score, expr=expr)
            return source

        compiled(build)


def test_custom_ops_and_registries() -> None:
    """Custom ops and registries are used by name, with params named as in JSON."""

    def run(inputs: Any, params: Any, ctx: Any) -> Any: ...

    ops = default_ops().copy()
    params = {"weight_expr": expression(), "target": key(writes=True), "other": node()}
    ops.add(OpSpec(name="mine::blend", params=params, inputs=(1, 2), gives=Rows.SAME, run=run))
    defaults = default_registries()
    endpoint = Endpoint(id="ep_mine", name="mine", kind="redis", host="memory")
    registries = attrs.evolve(defaults, endpoints={"ep_mine": endpoint})

    @plan(name="blended", registries=registries, ops=ops)
    def function(ctx: PlanContext) -> Node:
        a, b = ctx.viewer(endpoint=EP.redis.mine), ctx.fixed_source()
        return a.op("mine::blend", b, weight_expr=Key.id + 1, target=Key.final_score, other=b)

    document = function.document()
    assert document["plan_name"] == "blended"
    assert document["nodes"][0]["params"] == {"endpoint": "ep_mine"}
    assert document["nodes"][2] == {
        "node_id": "n2",
        "op": "mine::blend",
        "inputs": ["n0", "n1"],
        "params": {"weight_expr": "e0", "target": 2001, "other": "n1"},
    }
    assert function.plan().registries is registries


def test_names_must_fit_the_format() -> None:
    """A function whose name the format does not allow needs an explicit name."""

    def size(ctx: PlanContext) -> Node:
        return ctx.fixed_source()

    size.__name__ = "größe"
    with pytest.raises(InvalidPlan, match=r"\$\.plan_name: expected text like \[A-Za-z0-9_\]\+"):
        plan(size).document()
    assert plan(name="size")(size).document()["plan_name"] == "size"


def test_a_tree_given_under_both_of_its_names_is_rejected() -> None:
    """`expr` and `expr_id` are one param, so a node with both is invalid, whichever comes first."""
    given: list[dict[str, Any]] = [{"expr": Key.id * 2, "expr_id": Key.id * 3}, {"expr_id": Key.id * 3, "expr": Key.id}]
    for params in given:

        def both(ctx: PlanContext, params: dict[str, Any] = params) -> Node:
            return ctx.fixed_source(row_count=1).vm(out_key=Key.final_score, **params)

        with pytest.raises(InvalidPlan, match=r"nodes\[1\]\.params\.expr_id: duplicate param: pass either 'expr' or"):
            compiled(both)


def test_the_tree_of_a_rejected_node_is_not_in_the_plan() -> None:
    """A tree of a rejected node, whichever param is invalid, leaves no entry, and the next tree gets its id."""

    def retried(ctx: PlanContext) -> Node:
        rows = ctx.fixed_source(row_count=1)
        with pytest.raises(InvalidPlan):
            rows.vm(expr=Key.id * 2, out_key=Key.country)
        with pytest.raises(InvalidPlan):
            rows.filter(pred=Key.id < 2, count=3)
        return rows.vm(expr=Key.id * 3, out_key=Key.final_score).filter(pred=Key.id < 4)

    document = compiled(retried)
    assert list(document["expr_table"]) == ["e0"]
    assert document["expr_table"]["e0"]["b"]["value"] == 3
    assert list(document["pred_table"]) == ["p0"]
    assert document["pred_table"]["p0"]["b"]["value"] == 4
