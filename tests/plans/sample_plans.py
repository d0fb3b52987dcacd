"""A valid plan that uses most of the format, for tests to change."""

from __future__ import annotations

import copy
from typing import Any

from seedbed.errors import InvalidPlan
from seedbed.plans.format import parse_plan

_KEY = {"op": "key_ref", "key_id": 2001}
_COUNTRY = {"op": "key_ref", "key_id": 3001}
_ONE = {"op": "const_number", "value": 1}
_WEIGHT = {"op": "coalesce", "a": {"op": "param_ref", "param_id": 1}, "b": {"op": "const_number", "value": 0.5}}

_FULL: dict[str, Any] = {
    "schema_version": 1,
    "plan_name": "full",
    "built_by": {"anything": [1, None]},
    "capabilities_required": ["seedbed.on_error.v1"],
    "extensions": {},
    "nodes": [
        {"node_id": "v", "op": "core::viewer", "inputs": [], "params": {"endpoint": "ep_0001"}},
        {
            "node_id": "f",
            "op": "core::follow",
            "inputs": ["v"],
            "params": {"endpoint": "ep_0001", "fanout": 20},
            "extensions": {"seedbed.on_error.v1": {"policy": "empty"}},
        },
        {"node_id": "s", "op": "core::vm", "inputs": ["f"], "params": {"out_key": 2001, "expr_id": "score"}},
        {"node_id": "k", "op": "core::filter", "inputs": ["s"], "params": {"pred_id": "keep", "trace": None}},
        {"node_id": "c", "op": "core::concat", "inputs": ["k"], "params": {"rhs": "w", "trace": "join"}},
        {"node_id": "o", "op": "core::sort", "inputs": ["c"], "params": {"by": 3001}},
        {"node_id": "t", "op": "take", "inputs": ["o"], "params": {"count": 3}},
        {"node_id": "z", "op": "sleep", "inputs": [], "params": {"duration_ms": 5}},
        {"node_id": "w", "op": "sleep", "inputs": ["x"], "params": {"duration_ms": 5, "fail_after_sleep": True}},
        {"node_id": "x", "op": "fixed_source", "inputs": [], "params": {}},
    ],
    "outputs": ["t", "z"],
    "expr_table": {
        "score": {"op": "mul", "a": {"op": "key_ref", "key_id": 1}, "b": _WEIGHT},
        "flipped": {"op": "neg", "x": {"op": "sub", "a": _KEY, "b": {"op": "add", "a": _ONE, "b": _ONE}}},
        "nothing": {"op": "const_null"},
    },
    "pred_table": {
        "keep": {
            "op": "and",
            "a": {
                "op": "or",
                "a": {"op": "cmp", "cmp": ">", "a": _KEY, "b": _ONE},
                "b": {"op": "is_null", "x": _COUNTRY},
            },
            "b": {"op": "not", "x": {"op": "in", "lhs": _COUNTRY, "list": ["US", "DE"]}},
        },
        "match": {"op": "regex", "key_id": 3002, "pattern": {"kind": "param", "param_id": 2}, "flags": "i"},
        "literal": {"op": "regex", "key_id": 3001, "pattern": {"kind": "literal", "value": "^U"}},
        "numbers": {"op": "in", "lhs": _KEY, "list": [1, 2.5]},
        "always": {"op": "const_bool", "value": True},
        "there": {"op": "not_null", "x": _COUNTRY},
    },
}


def full_plan() -> dict[str, Any]:
    """A copy to change."""
    return copy.deepcopy(_FULL)


def problems_of(document: Any, **options: Any) -> list[tuple[str, str]]:
    """The code and path of everything that is wrong with a plan."""
    try:
        parse_plan(document, **options)
    except InvalidPlan as error:
        return [(code, path) for code, path, _ in error.problems]
    return []
