from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from seedbed.plans.documents import Problems, Value
from seedbed.plans.expressions import Expression, Predicate, TreeReader, pattern_problem
from seedbed.plans.registries import COUNTRY, default_registries
from seedbed.plans.rowset import RowSet, new_rows, string_column

REGISTRIES = default_registries()
ROWS = new_rows([1, 5, 9], {COUNTRY: string_column(["US", None, "de"])})
ID = {"op": "key_ref", "key_id": 1}
NAME = {"op": "key_ref", "key_id": COUNTRY}
TITLE = {"op": "key_ref", "key_id": 3002}
NULL = {"op": "const_null"}
WEIGHT = {"op": "param_ref", "param_id": 1}


def number(value: float) -> dict[str, Any]:
    """A constant."""
    return {"op": "const_number", "value": value}


def expression(tree: dict[str, Any]) -> Expression:
    """A valid expression."""
    found = TreeReader(REGISTRIES).expression(Value(tree, "$", Problems()))
    assert found is not None
    return found


def predicate(tree: dict[str, Any]) -> Predicate:
    """A valid predicate."""
    found = TreeReader(REGISTRIES).predicate(Value(tree, "$", Problems()))
    assert found is not None
    return found


def values(tree: dict[str, Any], params: dict[int, Any] | None = None, rows: RowSet = ROWS) -> list[Any]:
    """The values of an expression, None where null."""
    found, nulls = expression(tree).evaluate(rows, params or {})
    listed = np.broadcast_to(found, len(rows)).tolist()
    return [None if null else value for value, null in zip(listed, np.broadcast_to(nulls, len(rows)), strict=True)]


def kept(tree: dict[str, Any], params: dict[int, Any] | None = None, rows: RowSet = ROWS) -> list[int]:
    """The ids for which a predicate is true."""
    return rows.where(predicate(tree).mask(rows, params or {})).ids().tolist()


@pytest.mark.parametrize(
    ("tree", "params", "expected"),
    [
        ({"op": "mul", "a": ID, "b": number(0.5)}, {}, [0.5, 2.5, 4.5]),
        ({"op": "sub", "a": number(1), "b": ID}, {}, [0.0, -4.0, -8.0]),
        ({"op": "neg", "x": ID}, {}, [-1.0, -5.0, -9.0]),
        ({"op": "add", "a": ID, "b": NULL}, {}, [None, None, None]),
        ({"op": "add", "a": ID, "b": WEIGHT}, {}, [None, None, None]),
        ({"op": "add", "a": ID, "b": WEIGHT}, {1: 2.0}, [3.0, 7.0, 11.0]),
        ({"op": "coalesce", "a": WEIGHT, "b": number(3)}, {}, [3.0, 3.0, 3.0]),
        ({"op": "coalesce", "a": NAME, "b": {"op": "param_ref", "param_id": 2}}, {2: "x"}, ["US", "x", "de"]),
        ({"op": "coalesce", "a": NAME, "b": TITLE}, {}, ["US", None, "de"]),
        ({"op": "key_ref", "key_id": 2001}, {}, [0.0, 0.0, 0.0]),
    ],
)
def test_expressions(tree: dict[str, Any], params: dict[int, Any], expected: list[Any]) -> None:
    """Null propagates through everything but coalesce; keys and params that are not set read as documented."""
    assert values(tree, params) == expected


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ({"op": "cmp", "cmp": ">", "a": ID, "b": number(4)}, [5, 9]),
        ({"op": "not", "x": {"op": "cmp", "cmp": ">", "a": ID, "b": WEIGHT}}, [1, 5, 9]),
        ({"op": "cmp", "cmp": "==", "a": NAME, "b": NULL}, [5]),
        ({"op": "cmp", "cmp": "!=", "a": NULL, "b": NAME}, [1, 9]),
        ({"op": "cmp", "cmp": "==", "a": NULL, "b": NULL}, [1, 5, 9]),
        ({"op": "cmp", "cmp": "!=", "a": NULL, "b": NULL}, []),
        ({"op": "cmp", "cmp": "==", "a": WEIGHT, "b": WEIGHT}, []),
        ({"op": "cmp", "cmp": "!=", "a": WEIGHT, "b": number(1)}, []),
        ({"op": "cmp", "cmp": "<=", "a": NAME, "b": NAME}, [1, 9]),
        ({"op": "is_null", "x": NAME}, [5]),
        ({"op": "not_null", "x": NAME}, [1, 9]),
        ({"op": "in", "lhs": ID, "list": [5, 1.0, 77]}, [1, 5]),
        ({"op": "in", "lhs": ID, "list": list(range(5, 50))}, [5, 9]),
        ({"op": "in", "lhs": NAME, "list": ["de", "fr"]}, [9]),
        ({"op": "not", "x": {"op": "in", "lhs": NAME, "list": ["de"]}}, [1, 5]),
        ({"op": "in", "lhs": WEIGHT, "list": [0.0]}, []),
        ({"op": "and", "a": {"op": "const_bool", "value": True}, "b": {"op": "is_null", "x": NAME}}, [5]),
        ({"op": "or", "a": {"op": "const_bool", "value": True}, "b": {"op": "is_null", "x": NAME}}, [1, 5, 9]),
    ],
)
def test_predicates(tree: dict[str, Any], expected: list[int]) -> None:
    """A comparison with a null value is false and its negation true; a literal null compares with null."""
    assert kept(tree) == expected


def test_ids_are_compared_exactly() -> None:
    """Two ids that are one float are still two ids."""
    rows = new_rows([2**53, 2**53 + 1])
    wanted = number(2**53 + 1)
    assert kept({"op": "cmp", "cmp": "==", "a": ID, "b": wanted}, rows=rows) == [2**53 + 1]
    assert kept({"op": "in", "lhs": ID, "list": [2**53 + 1]}, rows=rows) == [2**53 + 1]
    assert kept({"op": "cmp", "cmp": "<", "a": ID, "b": number(2**80)}, rows=rows) == [2**53, 2**53 + 1]


def test_beside_a_float_numbers_are_floats() -> None:
    """Computed values are floats, and so are the ids and constants that are compared with them."""
    rows = new_rows([2**53 - 1, 2**53, 2**53 + 1])
    computed = {"op": "neg", "x": {"op": "neg", "x": ID}}
    for tree in (
        {"op": "in", "lhs": computed, "list": [2**53 + 1]},
        {"op": "in", "lhs": ID, "list": [2.0**53]},
        {"op": "cmp", "cmp": "==", "a": computed, "b": number(2**53 + 1)},
        {"op": "cmp", "cmp": "==", "a": {"op": "coalesce", "a": ID, "b": number(0.5)}, "b": number(2**53 + 1)},
    ):
        assert kept(tree, rows=rows) == [2**53, 2**53 + 1]


def regex(pattern: dict[str, Any], flags: str = "") -> dict[str, Any]:
    """A pattern for the country."""
    return {"op": "regex", "key_id": COUNTRY, "pattern": pattern, "flags": flags}


def test_patterns_match_anywhere_and_never_null() -> None:
    """A pattern matches anywhere in the string, case-sensitively without the flag, and never matches null."""
    assert kept(regex({"kind": "literal", "value": "S|e"})) == [1, 9]
    assert kept(regex({"kind": "literal", "value": "^DE$"})) == []
    assert kept(regex({"kind": "literal", "value": "^DE$"}, "i")) == [9]
    assert kept({"op": "not", "x": regex({"kind": "literal", "value": ""})}) == [5]
    blocked = regex({"kind": "param", "param_id": 2})
    assert kept(blocked, {2: "d"}) == [9]
    assert kept(blocked) == []
    assert kept({"op": "regex", "key_id": 3002, "pattern": {"kind": "literal", "value": ""}, "flags": ""}) == []


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|a)*$", "(a*)*b", "(.*a){20}b"])
def test_no_pattern_takes_more_than_linear_time(pattern: str) -> None:
    """Patterns on which a backtracking matcher would never end are matched at once."""
    rows = new_rows([1], {COUNTRY: string_column(["a" * 50_000 + "!"])})
    assert kept(regex({"kind": "literal", "value": pattern}), rows=rows) == []


def test_invalid_patterns_are_named() -> None:
    """A pattern that is invalid, or cannot be matched in linear time, is reported before anything runs."""
    assert pattern_problem("a(b|c)+") is None
    assert "missing )" in (pattern_problem("(") or "")
    assert pattern_problem("(?=a)") is not None
    assert pattern_problem("\ud800") is not None
