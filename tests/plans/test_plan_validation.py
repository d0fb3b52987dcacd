from __future__ import annotations

import itertools
from typing import Any

import attrs
import pytest
from sample_plans import full_plan, problems_of

from seedbed.checks import MAX_DEPTH
from seedbed.errors import InvalidPlan
from seedbed.plans.documents import Code
from seedbed.plans.endpoint import Endpoint
from seedbed.plans.expressions import MAX_SIZE
from seedbed.plans.format import parse_plan
from seedbed.plans.ops import OpRegistry, default_ops
from seedbed.plans.opspec import OpSpec, Rows, number
from seedbed.plans.registries import KeyType, Registries, default_registries

REMOVED: Any = object()


def changed(path: str, value: Any) -> dict[str, Any]:
    """The full plan with one value replaced or removed."""
    document: Any = full_plan()
    *steps, last = [int(step) if step.isdecimal() else step for step in path.split("/")]
    place = document
    for step in steps:
        place = place[step]
    if value is REMOVED:
        del place[last]
    else:
        place[last] = value
    return document


def key(key_id: Any) -> dict[str, Any]:
    """Refer to a key."""
    return {"op": "key_ref", "key_id": key_id}


def const(value: Any) -> dict[str, Any]:
    """A constant of any value, valid or not."""
    return {"op": "const_number", "value": value}


NULL = {"op": "const_null"}
COUNTRY = key(3001)

# What is changed, the code that it gives, and where, if not at the place of the change.
CASES: list[tuple[str, Any, Code, str | None]] = [
    ("schema_version", 2, Code.UNSUPPORTED_SCHEMA_VERSION, None),
    ("schema_version", True, Code.WRONG_TYPE, None),
    ("schema_version", 1.0, Code.WRONG_TYPE, None),
    ("schema_version", "1", Code.WRONG_TYPE, None),
    ("schema_version", REMOVED, Code.MISSING_FIELD, None),
    ("plan_name", "", Code.INVALID_VALUE, None),
    ("plan_name", "a-b", Code.INVALID_VALUE, None),
    ("plan_name", "a\n", Code.INVALID_VALUE, None),
    ("plan_name", "\u00e9", Code.INVALID_VALUE, None),
    ("plan_name", None, Code.WRONG_TYPE, None),
    ("built_by", "me", Code.WRONG_TYPE, None),
    ("comment", "hello", Code.UNKNOWN_FIELD, None),
    ("with space", 1, Code.UNKNOWN_FIELD, '$["with space"]'),
    ("nodes", {}, Code.WRONG_TYPE, None),
    ("nodes", REMOVED, Code.MISSING_FIELD, None),
    ("outputs", [], Code.INVALID_VALUE, None),
    ("outputs", "t", Code.WRONG_TYPE, None),
    ("outputs/0", "nowhere", Code.UNKNOWN_NODE, None),
    ("outputs/1", 3, Code.WRONG_TYPE, None),
    ("capabilities_required", "seedbed.on_error.v1", Code.WRONG_TYPE, None),
    ("capabilities_required", ["seedbed.on_error.v1"] * 2, Code.CAPABILITIES_NOT_SORTED, None),
    ("capabilities_required", ["seedbed.on_error.v1", "a.v1"], Code.CAPABILITIES_NOT_SORTED, None),
    (
        "capabilities_required",
        ["a.v1", "seedbed.on_error.v1"],
        Code.UNSUPPORTED_CAPABILITY,
        "$.capabilities_required[0]",
    ),
    ("capabilities_required", [], Code.CAPABILITY_NOT_REQUIRED, '$.nodes[1].extensions["seedbed.on_error.v1"]'),
    ("capabilities_required/0", 1, Code.WRONG_TYPE, None),
    ("extensions", None, Code.WRONG_TYPE, None),
    ("extensions/other", {}, Code.CAPABILITY_NOT_REQUIRED, None),
    ("extensions/seedbed.on_error.v1", {"policy": "fail"}, Code.INVALID_VALUE, '$.extensions["seedbed.on_error.v1"]'),
    (
        "nodes/1/extensions/seedbed.on_error.v1/policy",
        "ignore",
        Code.INVALID_VALUE,
        '$.nodes[1].extensions["seedbed.on_error.v1"].policy',
    ),
    (
        "nodes/1/extensions/seedbed.on_error.v1/policy",
        REMOVED,
        Code.MISSING_FIELD,
        '$.nodes[1].extensions["seedbed.on_error.v1"].policy',
    ),
    (
        "nodes/1/extensions/seedbed.on_error.v1/retry",
        1,
        Code.UNKNOWN_FIELD,
        '$.nodes[1].extensions["seedbed.on_error.v1"].retry',
    ),
    ("nodes/0", None, Code.WRONG_TYPE, None),
    ("nodes/0/node_id", "f", Code.DUPLICATE_NODE_ID, "$.nodes[1].node_id"),
    ("nodes/7/node_id", "z z", Code.INVALID_VALUE, None),
    ("nodes/7/node_id", REMOVED, Code.MISSING_FIELD, None),
    ("nodes/7/note", 1, Code.UNKNOWN_FIELD, None),
    ("nodes/0/op", "core::veiwer", Code.UNKNOWN_OP, None),
    ("nodes/0/op", None, Code.WRONG_TYPE, None),
    ("nodes/0/inputs", ["x"], Code.WRONG_INPUT_COUNT, None),
    ("nodes/1/inputs", [], Code.WRONG_INPUT_COUNT, None),
    ("nodes/1/inputs", ["v", "x"], Code.WRONG_INPUT_COUNT, None),
    ("nodes/8/inputs", ["x", "v"], Code.WRONG_INPUT_COUNT, None),
    ("nodes/1/inputs", REMOVED, Code.MISSING_FIELD, None),
    ("nodes/1/inputs", "v", Code.WRONG_TYPE, None),
    ("nodes/1/inputs/0", "vv", Code.UNKNOWN_NODE, None),
    ("nodes/1/inputs/0", None, Code.WRONG_TYPE, None),
    ("nodes/1/params", None, Code.WRONG_TYPE, None),
    ("nodes/1/params", REMOVED, Code.MISSING_FIELD, None),
    ("nodes/1/params/fanout", REMOVED, Code.MISSING_FIELD, None),
    ("nodes/1/params/fanout", None, Code.WRONG_TYPE, None),
    ("nodes/1/params/fanout", True, Code.WRONG_TYPE, None),
    ("nodes/1/params/fanout", 2.0, Code.WRONG_TYPE, None),
    ("nodes/1/params/fanout", "20", Code.WRONG_TYPE, None),
    ("nodes/1/params/fanout", 0, Code.INVALID_VALUE, None),
    ("nodes/1/params/fanout", 10_000_001, Code.INVALID_VALUE, None),
    ("nodes/1/params/fanuot", 3, Code.UNKNOWN_FIELD, None),
    ("nodes/1/params/trace", 3, Code.WRONG_TYPE, None),
    ("nodes/1/params/trace", "\ud800", Code.INVALID_VALUE, None),
    ("nodes/1/params/endpoint", "ep_0002", Code.UNKNOWN_ENDPOINT, None),
    ("nodes/1/params/endpoint", "ep_http", Code.WRONG_ENDPOINT_KIND, None),
    ("nodes/1/params/endpoint", 1, Code.WRONG_TYPE, None),
    ("nodes/2/params/out_key", 1, Code.KEY_NOT_WRITABLE, None),
    ("nodes/2/params/out_key", 3001, Code.WRONG_KEY_TYPE, None),
    ("nodes/2/params/out_key", 7, Code.UNKNOWN_KEY, None),
    ("nodes/2/params/out_key", True, Code.WRONG_TYPE, None),
    ("nodes/2/params/out_key", 2**80, Code.INVALID_VALUE, None),
    ("nodes/2/params/expr_id", "e9", Code.UNKNOWN_EXPR, None),
    ("nodes/2/params/expr_id", "nothing", Code.TYPE_MISMATCH, None),
    ("nodes/3/params/pred_id", "score", Code.UNKNOWN_PRED, None),
    ("nodes/4/params/rhs", "y", Code.UNKNOWN_NODE, None),
    ("nodes/4/params/rhs", None, Code.WRONG_TYPE, None),
    ("nodes/5/params/order", "down", Code.INVALID_VALUE, None),
    ("nodes/5/params/by", "3001", Code.WRONG_TYPE, None),
    ("nodes/6/params/count", 0, Code.INVALID_VALUE, None),
    ("nodes/6/params/count", 2**63, Code.INVALID_VALUE, None),
    ("nodes/8/params/fail_after_sleep", 1, Code.WRONG_TYPE, None),
    ("expr_table", [], Code.WRONG_TYPE, None),
    ("expr_table/flipped", None, Code.WRONG_TYPE, None),
    ("expr_table/flipped", {}, Code.MISSING_FIELD, "$.expr_table.flipped.op"),
    ("expr_table/flipped/op", "negate", Code.UNKNOWN_TREE_OP, None),
    ("expr_table/flipped/op", ["neg"], Code.WRONG_TYPE, None),
    ("expr_table/flipped/y", 1, Code.UNKNOWN_FIELD, None),
    ("expr_table/flipped/x", REMOVED, Code.MISSING_FIELD, None),
    ("expr_table/flipped/x/a", COUNTRY, Code.TYPE_MISMATCH, None),
    ("expr_table/flipped/x", COUNTRY, Code.TYPE_MISMATCH, None),
    ("expr_table/flipped/x/b/b", const(True), Code.WRONG_TYPE, "$.expr_table.flipped.x.b.b.value"),
    ("expr_table/flipped/x/b/b", const(None), Code.WRONG_TYPE, "$.expr_table.flipped.x.b.b.value"),
    ("expr_table/flipped/x/b/b", const(float("inf")), Code.NOT_FINITE, "$.expr_table.flipped.x.b.b.value"),
    ("expr_table/flipped/x/b/b", const(10**400), Code.NOT_FINITE, "$.expr_table.flipped.x.b.b.value"),
    (
        "expr_table/flipped/x/b",
        {"op": "mul", "a": const(1e200), "b": const(-1e200)},
        Code.NOT_FINITE,
        "$.expr_table.flipped.x.b",
    ),
    ("expr_table/nothing/value", None, Code.UNKNOWN_FIELD, None),
    ("expr_table/score/a/key_id", 4, Code.UNKNOWN_KEY, None),
    ("expr_table/score/a/key_id", 1.0, Code.WRONG_TYPE, None),
    ("expr_table/score/b/a/param_id", 9, Code.UNKNOWN_PARAM, None),
    ("expr_table/score/b/a/param_id", 2, Code.TYPE_MISMATCH, "$.expr_table.score.b"),
    ("expr_table/score", COUNTRY, Code.TYPE_MISMATCH, "$.nodes[2].params.expr_id"),
    ("expr_table/score", {"op": "add", "a": NULL, "b": const(1)}, Code.TYPE_MISMATCH, "$.nodes[2].params.expr_id"),
    ("pred_table/keep/op", "xor", Code.UNKNOWN_TREE_OP, None),
    ("pred_table/keep/a", key(1), Code.UNKNOWN_TREE_OP, "$.pred_table.keep.a.op"),
    ("pred_table/keep/a/a/cmp", "=", Code.INVALID_VALUE, None),
    ("pred_table/keep/a/a/cmp", None, Code.WRONG_TYPE, None),
    ("pred_table/keep/a/a/b", COUNTRY, Code.TYPE_MISMATCH, "$.pred_table.keep.a.a"),
    ("pred_table/keep/a/a/b", {"op": "const_bool", "value": True}, Code.UNKNOWN_TREE_OP, "$.pred_table.keep.a.a.b.op"),
    ("pred_table/keep/b/x/list", "US", Code.WRONG_TYPE, None),
    ("pred_table/keep/b/x/list", ["US", 1], Code.WRONG_TYPE, "$.pred_table.keep.b.x.list[1]"),
    ("pred_table/keep/b/x/list", [None], Code.WRONG_TYPE, "$.pred_table.keep.b.x.list[0]"),
    ("pred_table/keep/b/x/list", [1, 2], Code.TYPE_MISMATCH, "$.pred_table.keep.b.x.lhs"),
    ("pred_table/numbers/list", [1, "a"], Code.WRONG_TYPE, "$.pred_table.numbers.list[1]"),
    ("pred_table/numbers/list", [1, True], Code.WRONG_TYPE, "$.pred_table.numbers.list[1]"),
    ("pred_table/numbers/list", ["a"], Code.TYPE_MISMATCH, "$.pred_table.numbers.lhs"),
    ("pred_table/match/key_id", 2001, Code.WRONG_KEY_TYPE, None),
    ("pred_table/match/pattern/param_id", 1, Code.WRONG_PARAM_TYPE, None),
    ("pred_table/match/pattern/param_id", 9, Code.UNKNOWN_PARAM, None),
    ("pred_table/match/pattern/value", "x", Code.UNKNOWN_FIELD, None),
    ("pred_table/match/pattern/kind", "glob", Code.INVALID_VALUE, None),
    ("pred_table/match/pattern", "x", Code.WRONG_TYPE, None),
    ("pred_table/match/flags", "g", Code.INVALID_VALUE, None),
    ("pred_table/match/flags", None, Code.WRONG_TYPE, None),
    ("pred_table/literal/pattern/value", "(a", Code.INVALID_REGEX, None),
    ("pred_table/literal/pattern/value", "(?=a)", Code.INVALID_REGEX, None),
    ("pred_table/literal/pattern/value", None, Code.WRONG_TYPE, None),
    ("pred_table/always/value", 1, Code.WRONG_TYPE, None),
    ("pred_table/there/x", {"op": "not_null", "x": COUNTRY}, Code.UNKNOWN_TREE_OP, "$.pred_table.there.x.op"),
]


def json_path(path: str) -> str:
    """A path in the notation of problems."""
    steps = (f"[{step}]" if step.isdecimal() else f".{step}" for step in path.split("/"))
    return "$" + "".join(steps)


@pytest.fixture
def registries() -> Registries:
    """The default ones and an endpoint of the other kind."""
    defaults = default_registries()
    http = Endpoint(id="ep_http", name="api", kind="http", host="localhost", port=80)
    return attrs.evolve(defaults, endpoints={**defaults.endpoints, http.id: http})


@pytest.mark.parametrize(
    ("change", "value", "code", "path"), CASES, ids=[f"{case[0]}-{index}" for index, case in enumerate(CASES)]
)
def test_a_problem_has_its_code_and_its_path(
    change: str, value: Any, code: Code, path: str | None, registries: Registries
) -> None:
    """Every invalid change is reported with a stable code at its path."""
    assert problems_of(full_plan(), registries=registries) == []
    assert (code, path or json_path(change)) in problems_of(changed(change, value), registries=registries)


def test_most_changes_are_one_problem() -> None:
    """One mistake gives one problem, and not one for each reference to it."""
    single = [
        ("expr_table/score/a/key_id", 4),
        ("pred_table/keep/a/a/cmp", "="),
        ("nodes/1/op", "core::folow"),
        ("nodes/2/params/out_key", 7),
        ("nodes/7/note", 1),
    ]
    for change, value in single:
        assert len(problems_of(changed(change, value))) == 1, change


def test_all_problems_are_reported_at_once() -> None:
    """A plan with many mistakes names every one of them in one error."""
    document = full_plan()
    document["schema_version"] = 7
    document["plan_name"] = "no good"
    document["nodes"][0]["op"] = "core::veiwer"
    document["nodes"][1]["params"] = {"endpoint": "ep_1", "fanout": None, "depth": 1}
    document["nodes"][2]["params"]["out_key"] = 3001
    document["pred_table"]["numbers"]["list"] = [True, "x"]
    document["outputs"] = ["t", "u"]
    assert problems_of(document) == [
        ("UNSUPPORTED_SCHEMA_VERSION", "$.schema_version"),
        ("INVALID_VALUE", "$.plan_name"),
        ("WRONG_TYPE", "$.pred_table.numbers.list[0]"),
        ("WRONG_TYPE", "$.pred_table.numbers.list[1]"),
        ("UNKNOWN_OP", "$.nodes[0].op"),
        ("UNKNOWN_FIELD", "$.nodes[1].params.depth"),
        ("UNKNOWN_ENDPOINT", "$.nodes[1].params.endpoint"),
        ("WRONG_TYPE", "$.nodes[1].params.fanout"),
        ("WRONG_KEY_TYPE", "$.nodes[2].params.out_key"),
        ("UNKNOWN_NODE", "$.outputs[1]"),
    ]


def test_messages_name_the_expected_and_the_found_value() -> None:
    """A message has the allowed values, the value that was found, and the nearest known name."""
    document = full_plan()
    document["nodes"][0]["op"] = "core::veiwer"
    document["nodes"][1]["params"]["fanout"] = True
    document["nodes"][2]["params"]["expr_id"] = "scroe"
    document["nodes"][5]["params"]["by"] = 8
    defaults = default_registries()
    few = attrs.evolve(defaults, keys={key_id: defaults.keys[key_id] for key_id in (1, 3001)})
    document["nodes"][2]["params"]["out_key"] = 3001
    document["expr_table"] = {"score": const(1)}
    document["pred_table"] = {"keep": {"op": "const_bool", "value": True}}
    with pytest.raises(InvalidPlan) as caught:
        parse_plan(document, few)
    assert [message for _, _, message in caught.value.problems] == [
        "no op is named 'core::veiwer'; did you mean 'core::viewer'?",
        "expected an integer, found true",
        "expected a key of type float, found 'country', which is string",
        "expr_table has no 'scroe'; did you mean 'score'?",
        "no key has the id 8 (known: 1 id, 3001 country)",
    ]


def test_a_cycle_over_inputs_and_references_is_spelled_out() -> None:
    """A node that depends on itself through an input and a concat's rhs is reported with the whole cycle."""
    document = changed("nodes/8/inputs/0", "c")
    with pytest.raises(InvalidPlan) as caught:
        parse_plan(document)
    assert caught.value.problems == (("CYCLE", "$.nodes[4]", "circular dependency between nodes: 'c' → 'w' → 'c'"),)


def test_separate_cycles_are_each_reported() -> None:
    """Every cycle is found, also that of a node that is its own input."""
    document = full_plan()
    document["nodes"][8]["inputs"] = ["c"]
    document["nodes"][7]["inputs"] = ["z"]
    assert problems_of(document) == [("CYCLE", "$.nodes[4]"), ("CYCLE", "$.nodes[7]")]


def test_long_chains_and_long_cycles_are_handled() -> None:
    """Thousands of nodes in a chain are validated, and a cycle of them is found."""
    count = 5_000
    nodes: list[dict[str, Any]] = [{"node_id": "n0", "op": "fixed_source", "inputs": [], "params": {}}]
    nodes += [
        {"node_id": f"n{index}", "op": "take", "inputs": [f"n{index - 1}"], "params": {"count": 1}}
        for index in range(1, count)
    ]
    document = {"schema_version": 1, "plan_name": "long", "nodes": nodes, "outputs": [f"n{count - 1}"]}
    assert len(parse_plan(document).nodes) == count
    nodes[0] = {"node_id": "n0", "op": "take", "inputs": [f"n{count - 1}"], "params": {"count": 1}}
    assert problems_of(document) == [("CYCLE", "$.nodes[0]")]


def nested(depth: int) -> dict[str, Any]:
    """An expression of that many levels."""
    tree = const(1)
    for _ in range(depth - 1):
        tree = {"op": "neg", "x": tree}
    return tree


def test_the_depth_of_trees_is_limited() -> None:
    """A tree of the maximum depth is valid; a deeper one is a problem and does not exhaust the stack."""
    assert problems_of(changed("expr_table/flipped", nested(MAX_DEPTH))) == []
    assert problems_of(changed("expr_table/flipped", nested(MAX_DEPTH + 1))) == [
        ("TOO_DEEP", "$.expr_table.flipped" + ".x" * MAX_DEPTH)
    ]
    bushy: dict[str, Any] = {"op": "const_bool", "value": True}
    for _ in range(100_000):
        bushy = {"op": "and", "a": bushy, "b": bushy}
    assert [code for code, _ in problems_of(changed("pred_table/always", bushy))] == ["TOO_DEEP"]


def test_the_size_of_trees_is_limited() -> None:
    """A tree that shares its branches, and would be huge without, is rejected."""
    tree = const(0)
    for _ in range(40):
        tree = {"op": "add", "a": tree, "b": tree}
    assert [code for code, _ in problems_of(changed("expr_table/flipped", tree))] == ["TOO_LARGE"]
    wide: dict[str, Any] = const(0)
    for _ in range(12):  # 2 ** 13 - 1 ops
        wide = {"op": "add", "a": wide, "b": wide}
    assert MAX_SIZE > 2**13
    assert problems_of(changed("expr_table/flipped", wide)) == []


def test_literal_nulls_fit_everywhere() -> None:
    """The literal null may be compared, searched for and computed with; only a non-nullable key rejects it."""
    for tree in (
        {"op": "cmp", "cmp": "==", "a": COUNTRY, "b": NULL},
        {"op": "cmp", "cmp": "<", "a": NULL, "b": key(2001)},
        {"op": "cmp", "cmp": "==", "a": NULL, "b": NULL},
        {"op": "in", "lhs": NULL, "list": ["a"]},
        {"op": "in", "lhs": COUNTRY, "list": []},
        {"op": "is_null", "x": {"op": "coalesce", "a": NULL, "b": COUNTRY}},
        {"op": "cmp", "cmp": "==", "a": COUNTRY, "b": key(3002)},
    ):
        assert problems_of(changed("pred_table/always", tree)) == []


def test_plans_that_can_only_fail_are_rejected() -> None:
    """An expression that is null whatever the data is rejected for a key that is not nullable."""
    always_null = [
        NULL,
        {"op": "neg", "x": NULL},
        {"op": "mul", "a": key(1), "b": {"op": "coalesce", "a": NULL, "b": NULL}},
    ]
    for tree in always_null:
        assert problems_of(changed("expr_table/score", tree)) == [("TYPE_MISMATCH", "$.nodes[2].params.expr_id")]
    assert problems_of(changed("expr_table/score", {"op": "coalesce", "a": NULL, "b": key(1)})) == []


def test_always_null_fits_a_nullable_key() -> None:
    """A nullable float key takes an expression that is always null."""
    defaults = default_registries()
    nullable = attrs.evolve(defaults.keys[2001], nullable=True, default=None)
    registries = attrs.evolve(defaults, keys={**defaults.keys, 2001: nullable})
    assert problems_of(changed("expr_table/score", NULL), registries=registries) == []


def test_custom_ops_are_checked_by_their_declaration() -> None:
    """A custom op has its params, bounds and inputs checked like those of the format."""

    def run(inputs: Any, params: Any, ctx: Any) -> Any: ...

    ops = default_ops().copy()
    ops.add(
        OpSpec(
            name="mine::scale",
            params={"factor": number(0, 2, default=1.5)},
            inputs=(1, 3),
            gives=Rows.SAME,
            run=run,
        )
    )
    document = full_plan()
    document["nodes"].append({"node_id": "m", "op": "mine::scale", "inputs": ["t", "z", "t"], "params": {}})
    plan = parse_plan(document, ops=ops)
    assert plan.nodes[-1].params == {"factor": 1.5, "trace": None}
    assert plan.nodes[-1].upstream == ("t", "z")
    for value, code in (
        (2.5, "INVALID_VALUE"),
        (-1, "INVALID_VALUE"),
        (True, "WRONG_TYPE"),
        (float("nan"), "NOT_FINITE"),
    ):
        document["nodes"][-1]["params"]["factor"] = value
        assert problems_of(document, ops=ops) == [(code, "$.nodes[10].params.factor")]


def test_an_op_that_writes_a_key_needs_it_registered() -> None:
    """If a fixed key of an op is not in the registries, the plan is rejected before it runs."""

    def run(inputs: Any, params: Any, ctx: Any) -> Any: ...

    ops = OpRegistry(*default_ops(), OpSpec(name="mine::tag", gives=Rows.SAME, writes=frozenset({77}), run=run))
    document = full_plan()
    document["nodes"].append({"node_id": "m", "op": "mine::tag", "inputs": ["t"], "params": {}})
    assert problems_of(document, ops=ops) == [("UNKNOWN_KEY", "$.nodes[10].op")]


def test_many_unknown_names_are_rejected_quickly() -> None:
    """The nearest name is searched for a few times only, so that a plan full of unknown names is rejected quickly."""
    count = 3_000
    nodes = [
        {"node_id": f"node_{index}", "op": "take", "inputs": [f"nod_{index}"], "params": {"count": 1}}
        for index in range(count)
    ]
    document = {"schema_version": 1, "plan_name": "wrong", "nodes": nodes, "outputs": ["node_0"]}
    with pytest.raises(InvalidPlan) as caught:
        parse_plan(document)
    assert len(caught.value.problems) == count
    hints = sum("did you mean" in message for _, _, message in caught.value.problems)
    assert hints <= 50


def test_codes_are_all_tested() -> None:
    """Every code that a plan can have has a case above."""
    elsewhere = {Code.INVALID_JSON, Code.DUPLICATE_FIELD, Code.UNUSED_NODE, Code.DUPLICATE_ID, Code.DUPLICATE_NAME}
    here = {case[2] for case in CASES} | {Code.CYCLE, Code.TOO_DEEP, Code.TOO_LARGE}
    assert set(Code) - elsewhere == here


def test_every_key_type_can_be_sorted_by() -> None:
    """Sorting takes id, float and string keys."""
    by_type = {each.type: each.id for each in default_registries().keys.values()}
    assert set(by_type) == set(KeyType)
    for key_id, order in itertools.product(by_type.values(), ["asc", "desc"]):
        assert problems_of(changed("nodes/5/params", {"by": key_id, "order": order})) == []
