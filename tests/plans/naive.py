"""A plan run row by row in plain Python: slow, obvious, and sharing nothing with the engine but the parsed plan."""

from __future__ import annotations

import math
import re
from functools import cmp_to_key
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from seedbed.plans.format import Plan, PlanNode

# A row is what each key that was written holds; the id is key 1.
Row = dict[int, Any]


class NaiveFailure(Exception):
    """Nodes failed, all that they need being there; which ones."""

    def __init__(self, *nodes: str) -> None:
        super().__init__(*nodes)
        self.nodes = frozenset(nodes)


def run_naively(plan: Plan, params: Mapping[int, Any], rows_of: Mapping[str, list[Row]]) -> list[Row]:
    """The rows of the plan's outputs; `rows_of` gives the rows of its sources by node id."""
    nodes = {node.node_id: node for node in plan.nodes}
    done: dict[str, tuple[list[int], list[Row]]] = {}

    def result(name: str) -> tuple[list[int], list[Row]]:
        if name not in done:
            done[name] = _Node(plan, params, nodes[name], rows_of).run(result)
        return done[name]

    failed: set[str] = set()
    for name in nodes:
        try:
            result(name)
        except NaiveFailure as failure:
            failed |= failure.nodes
    if failed:
        raise NaiveFailure(*failed)
    return _append(plan, [result(name) for name in plan.outputs])[1]


def _read(plan: Plan, row: Row, key_id: int) -> Any:
    if key_id in row:
        return row[key_id]
    key = plan.registries.keys[key_id]
    return None if key.nullable else key.default


def _append(plan: Plan, parts: list[tuple[list[int], list[Row]]]) -> tuple[list[int], list[Row]]:
    keys: list[int] = []
    for columns, _ in parts:
        keys += [key for key in columns if key not in keys]
    return keys, [{key: _read(plan, row, key) for key in keys} for _, rows in parts for row in rows]


class _Node:
    def __init__(self, plan: Plan, params: Mapping[int, Any], node: PlanNode, rows_of: Mapping[str, list[Row]]) -> None:
        self.plan, self.params, self.node, self.rows_of = plan, params, node, rows_of

    def run(self, result: Any) -> tuple[list[int], list[Row]]:
        node, given = self.node, self.node.params
        if node.node_id in self.rows_of:
            rows = self.rows_of[node.node_id]
            return (list(rows[0]) if rows else [1]), rows
        columns, rows = result(node.inputs[0])
        if node.op == "core::vm":
            return self.or_policy(columns, rows, [given["out_key"]], lambda: self.vm(columns, rows))
        if node.op == "core::filter":
            tree = self.plan.predicates[given["pred_id"]].tree
            return columns, [row for row in rows if self.holds(tree, row)]
        if node.op == "core::sort":
            return columns, self.sorted(rows)
        if node.op == "core::take":
            return columns, rows[: given["count"]]
        if node.op == "core::concat":
            return _append(self.plan, [(columns, rows), result(given["rhs"])])
        if node.op == "core::dedupe":
            return columns, self.deduped(rows)
        if node.op == "core::join":
            right = result(given["rhs"])
            return self.or_policy(columns, rows, [], lambda: self.joined(columns, rows, *right))
        raise AssertionError(node.op)

    def or_policy(
        self, columns: list[int], rows: list[Row], writes: list[int], run: Callable[[], tuple[list[int], list[Row]]]
    ) -> tuple[list[int], list[Row]]:
        """What a node gives, or what its policy puts in its place if it fails."""
        try:
            return run()
        except NaiveFailure:
            if self.node.policy == "fail":
                raise
        kept = [] if self.node.policy == "empty" else rows
        unwritten = {key: _read(self.plan, {}, key) for key in writes}
        return [*columns, *(key for key in writes if key not in columns)], [{**row, **unwritten} for row in kept]

    def deduped(self, rows: list[Row]) -> list[Row]:
        by, score = self.node.params["by"], self.node.params["score"]
        kept: dict[Any, int] = {}
        alone: list[int] = []
        for at, row in enumerate(rows):
            value = _read(self.plan, row, by)
            if value is None:
                alone.append(at)
                continue
            held = kept.setdefault(value, at)
            if self.node.params["keep"] == "best":
                new, old = _read(self.plan, row, score), _read(self.plan, rows[held], score)
                if new is not None and (old is None or new > old):
                    kept[value] = at
        return [rows[at] for at in sorted([*alone, *kept.values()])]

    def joined(
        self, columns: list[int], rows: list[Row], others: list[int], right: list[Row]
    ) -> tuple[list[int], list[Row]]:
        by_id = {row[1]: row for row in right}
        if len(by_id) < len(right):
            raise NaiveFailure(self.node.node_id)
        made = []
        for row in rows:
            found = by_id.get(row[1])
            added = {key: _read(self.plan, row if found is None else found, key) for key in others if key != 1}
            made.append({**row, **added})
        return [*columns, *(key for key in others if key not in columns)], made

    def vm(self, columns: list[int], rows: list[Row]) -> tuple[list[int], list[Row]]:
        out = self.node.params["out_key"]
        key = self.plan.registries.keys[out]
        made = []
        for row in rows:
            value = self.value(self.plan.expressions[self.node.params["expr_id"]].tree, row)
            if value is None and not key.nullable:
                raise NaiveFailure(self.node.node_id)
            if value is not None:
                value = float(value)
                if not math.isfinite(value):
                    raise NaiveFailure(self.node.node_id)
            made.append({**row, out: value})
        return [*columns, *([out] if out not in columns else [])], made

    def sorted(self, rows: list[Row]) -> list[Row]:
        by = self.node.params["by"]
        sign = -1 if self.node.params["order"] == "desc" else 1

        def compare(a: Row, b: Row) -> int:
            x, y = _read(self.plan, a, by), _read(self.plan, b, by)
            if x is None or y is None:
                return (x is None) - (y is None)
            return sign * ((x > y) - (x < y))

        return sorted(rows, key=cmp_to_key(compare))

    def value(self, tree: Mapping[str, Any], row: Row) -> Any:
        op = tree["op"]
        if op == "const_number":
            return tree["value"]
        if op == "const_null":
            return None
        if op == "key_ref":
            return _read(self.plan, row, tree["key_id"])
        if op == "param_ref":
            return self.params.get(tree["param_id"])
        if op == "coalesce":
            first = self.value(tree["a"], row)
            found = self.value(tree["b"], row) if first is None else first
            return found if self.is_whole(tree) else _rounded(found)
        operands = [self.value(tree[name], row) for name in (("x",) if op == "neg" else ("a", "b"))]
        if None in operands:
            return None
        numbers = [float(operand) for operand in operands]
        if op == "neg":
            return -numbers[0]
        a, b = numbers
        return {"add": a + b, "sub": a - b, "mul": a * b}[op]

    def is_whole(self, tree: Mapping[str, Any]) -> bool:
        """Whether an expression is an integer wherever it is a value; with all others, numbers are floats."""
        op = tree["op"]
        if op == "const_number":
            return isinstance(tree["value"], int) and -(2**63) <= tree["value"] < 2**63
        if op == "coalesce":
            return all(self.is_whole(tree[name]) for name in "ab")
        if op == "key_ref":
            return self.plan.registries.keys[tree["key_id"]].type.value == "int"
        if op == "param_ref":
            return self.plan.registries.params[tree["param_id"]].type.value == "int"
        return op == "const_null"

    def holds(self, tree: Mapping[str, Any], row: Row) -> bool:
        op = tree["op"]
        if op == "const_bool":
            return bool(tree["value"])
        if op == "and":
            return self.holds(tree["a"], row) and self.holds(tree["b"], row)
        if op == "or":
            return self.holds(tree["a"], row) or self.holds(tree["b"], row)
        if op == "not":
            return not self.holds(tree["x"], row)
        if op == "is_null":
            return self.value(tree["x"], row) is None
        if op == "not_null":
            return self.value(tree["x"], row) is not None
        if op == "in":
            value = self.value(tree["lhs"], row)
            whole = self.is_whole(tree["lhs"])
            return value is not None and any(
                value == item if whole and isinstance(item, int) else _rounded(value) == _rounded(item)
                for item in tree["list"]
            )
        if op == "regex":
            return self.matches(tree, row)
        return self.compares(tree, row)

    def matches(self, tree: Mapping[str, Any], row: Row) -> bool:
        pattern = tree["pattern"]
        wanted = pattern["value"] if pattern["kind"] == "literal" else self.params.get(pattern["param_id"])
        text = _read(self.plan, row, tree["key_id"])
        if wanted is None or text is None:
            return False
        return re.search(wanted, text, re.IGNORECASE if tree.get("flags") == "i" else 0) is not None

    def compares(self, tree: Mapping[str, Any], row: Row) -> bool:
        a, b = self.value(tree["a"], row), self.value(tree["b"], row)
        cmp = tree["cmp"]
        literal_null = "const_null" in (tree["a"]["op"], tree["b"]["op"])
        if literal_null and cmp in ("==", "!="):
            return (a is None and b is None) if cmp == "==" else (a is not None or b is not None)
        if a is None or b is None:
            return False
        if not (self.is_whole(tree["a"]) and self.is_whole(tree["b"])):
            a, b = _rounded(a), _rounded(b)
        return {
            "==": lambda: a == b,
            "!=": lambda: a != b,
            "<": lambda: a < b,
            "<=": lambda: a <= b,
            ">": lambda: a > b,
            ">=": lambda: a >= b,
        }[cmp]()


def _rounded(value: Any) -> Any:
    return float(value) if isinstance(value, int) else value
