from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import attrs
import pytest
from sample_plans import full_plan, problems_of

from seedbed.errors import InvalidPlan
from seedbed.plans.documents import Code
from seedbed.plans.format import Plan, PlanNode, parse_plan, plan_text

ROOT = Path(__file__).parents[2]


def test_a_plan_is_read_completely() -> None:
    """A valid plan has full op names, params with their defaults, and upstream nodes with references after inputs."""
    plan = parse_plan(full_plan())
    assert plan.name == "full"
    assert plan.outputs == ("t", "z")
    assert plan.capabilities == ("seedbed.on_error.v1",)
    nodes = {node.node_id: node for node in plan.nodes}
    assert list(nodes) == ["v", "f", "s", "k", "c", "o", "t", "z", "w", "x"]
    assert nodes["t"] == PlanNode(
        node_id="t", op="core::take", inputs=("o",), params={"count": 3, "trace": None}, upstream=("o",)
    )
    assert nodes["c"].params == {"rhs": "w", "trace": "join"}
    assert nodes["c"].upstream == ("k", "w")
    assert nodes["o"].params == {"by": 3001, "order": "asc", "trace": None}
    assert nodes["z"].params == {"duration_ms": 5, "fail_after_sleep": False, "trace": None}
    assert nodes["x"].params == {"row_count": 1, "trace": None}
    assert nodes["f"].policy == "empty"
    assert plan.predicates["literal"].tree["flags"] == ""
    assert plan.expressions["score"].tree == full_plan()["expr_table"]["score"]


def test_every_source_gives_the_same_plan(tmp_path: Path) -> None:
    """A mapping, text, bytes and a file are read alike."""
    document = full_plan()
    text = json.dumps(document)
    file = tmp_path / "plan.json"
    file.write_text("\ufeff" + text, encoding="utf-8")
    sources: list[Any] = [text, text.encode(), plan_text(document), file]
    expected = parse_plan(document)
    assert all(parse_plan(source) == expected for source in sources)


def test_the_plan_does_not_change_with_its_document() -> None:
    """A validated plan does not change with the mapping that it was read from."""
    document = full_plan()
    plan = parse_plan(document)
    document["expr_table"]["score"]["op"] = "nonsense"
    document["nodes"][1]["params"]["fanout"] = -1
    document["nodes"][1]["extensions"]["seedbed.on_error.v1"]["policy"] = "other"
    document["pred_table"]["numbers"]["list"].append("x")
    assert plan == parse_plan(full_plan())


@pytest.mark.parametrize("alias", ["viewer", "core::viewer"])
def test_names_without_a_namespace_are_aliases(alias: str) -> None:
    """The short names of ops mean the same ops."""
    document = full_plan()
    document["nodes"][0]["op"] = alias
    assert parse_plan(document).nodes[0].op == "core::viewer"


def test_tables_and_the_rest_may_be_left_out() -> None:
    """A plan without expressions needs no tables."""
    node = {"node_id": "a", "op": "fixed_source", "inputs": [], "params": {"row_count": 2}}
    plan = parse_plan({"schema_version": 1, "plan_name": "small", "nodes": [node], "outputs": ["a"]})
    assert isinstance(plan, Plan)
    assert (plan.expressions, plan.predicates, plan.capabilities) == ({}, {}, ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected JSON: Expecting value"),
        ('{"a": 1,}', "expected JSON"),
        ('{"schema_version": NaN}', "NaN is not a JSON number"),
        ('{"schema_version": -Infinity}', "-Infinity is not a JSON number"),
        ("1" * 5_000, "expected JSON: Exceeds the limit"),
        (b"\xff{}", "expected UTF-8, found 0xff at byte 0"),
    ],
)
def test_invalid_json_is_one_problem(text: str | bytes, message: str) -> None:
    """Text that cannot be parsed is INVALID_JSON at the root, with the reason."""
    with pytest.raises(InvalidPlan, match=re.escape(message)) as caught:
        parse_plan(text)
    assert [problem[:2] for problem in caught.value.problems] == [("INVALID_JSON", "$")]


@pytest.mark.parametrize("text", ["[]", "null", "3", '"x"', "true"])
def test_json_that_is_not_an_object_is_one_problem(text: str) -> None:
    """A plan is an object."""
    assert problems_of(text) == [("WRONG_TYPE", "$")]


def test_deep_nesting_is_one_problem() -> None:
    """A document that is nested too deep is rejected and does not end the process."""
    assert problems_of("[" * 100_000) == [("TOO_DEEP", "$")]
    assert problems_of('{"a":' * 100_000) == [("TOO_DEEP", "$")]


def test_duplicate_fields_are_problems() -> None:
    """A duplicate field is reported at its path; no value is dropped silently."""
    text = plan_text(full_plan())
    text = text.replace('"fanout": 20', '"fanout": 20, "fanout": 30, "fanout": 40')
    text = text.replace('"plan_name": "full"', '"plan_name": "full", "plan_name": "other"')
    assert problems_of(text) == [
        ("DUPLICATE_FIELD", "$.plan_name"),
        ("DUPLICATE_FIELD", "$.nodes[1].params.fanout"),
    ]


def test_field_names_that_are_not_text_are_problems() -> None:
    """A mapping from Python may have any keys; those that JSON cannot have are rejected."""
    document: dict[Any, Any] = {**full_plan(), 7: 1}
    document["expr_table"]["\ud800"] = {"op": "const_null"}
    assert problems_of(document) == [("WRONG_TYPE", '$["7"]'), ("WRONG_TYPE", '$.expr_table["\\ud800"]')]


def test_numbers_keep_their_value() -> None:
    """Integers of 64 bits stay integers, larger ones become floats."""
    document = full_plan()
    document["pred_table"]["numbers"]["list"] = [2**63 - 1, 2**63, 2.5]
    listed = parse_plan(document).predicates["numbers"].tree["list"]
    assert listed == [2**63 - 1, float(2**63), 2.5]
    assert [type(item) for item in listed] == [int, float, float]


def test_text_reads_back_as_the_same_document() -> None:
    """Writing a plan loses nothing."""
    assert json.loads(plan_text(full_plan())) == full_plan()


def test_problems_hold_plain_strings() -> None:
    """Codes are strings that can be written as JSON."""
    with pytest.raises(InvalidPlan) as caught:
        parse_plan({})
    assert json.loads(json.dumps(caught.value.problems))[0][0] == "MISSING_FIELD"
    assert caught.value.code == "INVALID_PLAN"


def test_every_code_is_documented() -> None:
    """The reference has a row for every code and no other."""
    page = (ROOT / "docs" / "reference" / "plan-format.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| `([A-Z_]+)` \|", page, re.MULTILINE)
    assert documented == [code.value for code in Code]


def test_the_documented_plan_is_valid() -> None:
    """The plan that the reference shows is one."""
    page = (ROOT / "docs" / "reference" / "plan-format.md").read_text(encoding="utf-8")
    shown = re.search(r"```json\n(.*?)```", page, re.DOTALL)
    assert shown is not None
    assert attrs.asdict(parse_plan(shown[1]))["name"] == "top_follows"


def test_an_invalid_plan_reaches_other_processes() -> None:
    """The error of a plan is pickled with its problems."""
    error = InvalidPlan([("UNKNOWN_OP", "$.nodes[0].op", "no op is named 'x'")])
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.problems, str(again), again.node) == (InvalidPlan, error.problems, str(error), None)
