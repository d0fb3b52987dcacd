"""The check of expression and predicate trees: ops, fields, references and types."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from ..graph.limits import MAX_DEPTH
from .model import KeyType
from .predicates import pattern_problem
from .problems import Code, Problems, shortened, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from .model import Key, Param, Registries

# A tree made in Python can share its branches, so that its size as JSON is exponential in its depth.
MAX_SIZE = 10_000

COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
REGEX_FLAGS = ("", "i")

_ARITHMETIC: Mapping[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
}
EXPRESSION_OPS = ("const_number", "const_null", "key_ref", "param_ref", *_ARITHMETIC, "neg", "coalesce")
PREDICATE_OPS = ("const_bool", "and", "or", "not", "cmp", "in", "is_null", "not_null", "regex")


class ValueKind(enum.Enum):
    """What an expression gives, apart from the nulls that data may hold."""

    NUMBER = "a number"
    STRING = "a string"
    NULL = "null"  # the literal one, which fits everywhere


@attrs.frozen(kw_only=True)
class Expression:
    """A checked expression: its tree with nothing left out and what it gives, as far as no data is needed to know."""

    tree: Mapping[str, Any]
    kind: ValueKind
    constant: float | None = None
    always_null: bool = False


class TreeChecker:
    """Checks the trees of one document against its registries; what is wrong goes to `problems`."""

    def __init__(self, registries: Registries, problems: Problems) -> None:
        self._registries = registries
        self._problems = problems
        self._left = 0  # how many more ops the tree that is being checked may have

    def expression(self, value: object, path: str) -> Expression | None:
        """Check a whole expression."""
        self._left = MAX_SIZE
        return self._expression(value, path, 1)

    def predicate(self, value: object, path: str) -> Mapping[str, Any] | None:
        """Check a whole predicate."""
        self._left = MAX_SIZE
        return self._predicate(value, path, 1)

    def _op(self, value: object, path: str, depth: int, known: tuple[str, ...], what: str) -> str | None:
        """The op of the tree at `path`, if it is one and the tree has not become too large."""
        self._left -= 1
        if self._left < 0:
            if self._left == -1:
                self._problems.add(Code.TOO_LARGE, path, f"expected a tree of at most {MAX_SIZE} ops")
            return None
        if depth > MAX_DEPTH:
            self._problems.add(Code.TOO_DEEP, path, f"expected a tree of at most {MAX_DEPTH} levels")
            self._left = -1  # the rest of the tree would say the same again and again
            return None
        if not isinstance(value, Mapping):
            self._problems.expected(f"{what}, an object with 'op'", value, path)
            return None
        if "op" not in value:
            self._problems.add(Code.MISSING_FIELD, f"{path}.op", f"the field 'op' is required: {what}")
            return None
        op = self._problems.text(value["op"], f"{path}.op")
        if op is not None and op not in known:
            hint = self._problems.hint(op, known)
            message = f"expected the op of {what}, found {shown(op)}{hint}"
            self._problems.add(Code.UNKNOWN_TREE_OP, f"{path}.op", message)
            return None
        return op

    def _expression(self, value: object, path: str, depth: int) -> Expression | None:
        op = self._op(value, path, depth, EXPRESSION_OPS, "an expression")
        if op is None:
            return None
        if op in ("key_ref", "param_ref", "const_number", "const_null"):
            return self._leaf(op, value, path)
        if op == "neg":
            return self._neg(value, path, depth)
        fields = self._fields(value, path, "a", "b")
        a = self._expression(fields["a"], f"{path}.a", depth + 1) if "a" in fields else None
        b = self._expression(fields["b"], f"{path}.b", depth + 1) if "b" in fields else None
        if a is None or b is None:
            return None
        tree = {"op": op, "a": a.tree, "b": b.tree}
        return self._coalesce(a, b, tree, path) if op == "coalesce" else self._arithmetic(op, a, b, tree, path)

    def _leaf(self, op: str, value: object, path: str) -> Expression | None:
        if op == "key_ref":
            fields = self._fields(value, path, "key_id")
            key = self.key(fields["key_id"], f"{path}.key_id") if "key_id" in fields else None
            return None if key is None else Expression(tree={"op": op, "key_id": key.id}, kind=_kind(key.type))
        if op == "param_ref":
            fields = self._fields(value, path, "param_id")
            param = self._param(fields["param_id"], f"{path}.param_id") if "param_id" in fields else None
            return None if param is None else Expression(tree={"op": op, "param_id": param.id}, kind=_kind(param.type))
        if op == "const_null":
            self._fields(value, path)
            return Expression(tree={"op": op}, kind=ValueKind.NULL, always_null=True)
        fields = self._fields(value, path, "value")
        number = self._problems.number(fields["value"], f"{path}.value") if "value" in fields else None
        if number is None:
            return None
        return Expression(tree={"op": op, "value": number}, kind=ValueKind.NUMBER, constant=float(number))

    def _neg(self, value: object, path: str, depth: int) -> Expression | None:
        fields = self._fields(value, path, "x")
        x = self._expression(fields["x"], f"{path}.x", depth + 1) if "x" in fields else None
        if x is None or not self._is_number("neg", x, f"{path}.x"):
            return None
        constant = None if x.constant is None else -x.constant
        tree = {"op": "neg", "x": x.tree}
        return Expression(tree=tree, kind=ValueKind.NUMBER, constant=constant, always_null=x.always_null)

    def _arithmetic(self, op: str, a: Expression, b: Expression, tree: dict[str, Any], path: str) -> Expression | None:
        # Both are looked at, so that both are reported.
        if not all([self._is_number(op, a, f"{path}.a"), self._is_number(op, b, f"{path}.b")]):
            return None
        if a.constant is None or b.constant is None:
            return Expression(tree=tree, kind=ValueKind.NUMBER, always_null=a.always_null or b.always_null)
        constant = _ARITHMETIC[op](a.constant, b.constant)
        if not math.isfinite(constant):
            self._problems.add(
                Code.NOT_FINITE, path, f"expected a finite number, {op} of its constants gives {constant}"
            )
            return None
        return Expression(tree=tree, kind=ValueKind.NUMBER, constant=constant)

    def _coalesce(self, a: Expression, b: Expression, tree: dict[str, Any], path: str) -> Expression | None:
        kinds = {a.kind, b.kind} - {ValueKind.NULL}
        if len(kinds) > 1:
            message = f"expected two values of one type to coalesce, found {a.kind.value} and {b.kind.value}"
            self._problems.add(Code.TYPE_MISMATCH, path, message)
            return None
        return Expression(
            tree=tree,
            kind=a.kind if a.kind is not ValueKind.NULL else b.kind,
            constant=b.constant if a.always_null else a.constant,
            always_null=a.always_null and b.always_null,
        )

    def _is_number(self, op: str, operand: Expression, path: str) -> bool:
        if operand.kind is not ValueKind.STRING:
            return True
        self._problems.add(Code.TYPE_MISMATCH, path, f"expected a number for {op}, found {operand.kind.value}")
        return False

    def _predicate(self, value: object, path: str, depth: int) -> Mapping[str, Any] | None:
        op = self._op(value, path, depth, PREDICATE_OPS, "a predicate")
        if op is None:
            return None
        if op in ("and", "or"):
            fields = self._fields(value, path, "a", "b")
            a = self._predicate(fields["a"], f"{path}.a", depth + 1) if "a" in fields else None
            b = self._predicate(fields["b"], f"{path}.b", depth + 1) if "b" in fields else None
            return None if a is None or b is None else {"op": op, "a": a, "b": b}
        if op == "not":
            fields = self._fields(value, path, "x")
            x = self._predicate(fields["x"], f"{path}.x", depth + 1) if "x" in fields else None
            return None if x is None else {"op": op, "x": x}
        if op in ("is_null", "not_null"):
            fields = self._fields(value, path, "x")
            operand = self._expression(fields["x"], f"{path}.x", depth + 1) if "x" in fields else None
            return None if operand is None else {"op": op, "x": operand.tree}
        if op == "const_bool":
            fields = self._fields(value, path, "value")
            constant = self._problems.boolean(fields["value"], f"{path}.value") if "value" in fields else None
            return None if constant is None else {"op": op, "value": constant}
        if op == "cmp":
            return self._cmp(value, path, depth)
        return self._in(value, path, depth) if op == "in" else self._regex(value, path)

    def _cmp(self, value: object, path: str, depth: int) -> Mapping[str, Any] | None:
        fields = self._fields(value, path, "cmp", "a", "b")
        cmp = self._problems.choice(fields["cmp"], f"{path}.cmp", COMPARISONS) if "cmp" in fields else None
        a = self._expression(fields["a"], f"{path}.a", depth + 1) if "a" in fields else None
        b = self._expression(fields["b"], f"{path}.b", depth + 1) if "b" in fields else None
        if a is None or b is None:
            return None
        if ValueKind.NULL not in (a.kind, b.kind) and a.kind is not b.kind:
            message = f"expected two values of one type to compare, found {a.kind.value} and {b.kind.value}"
            self._problems.add(Code.TYPE_MISMATCH, path, message)
            return None
        return None if cmp is None else {"op": "cmp", "cmp": cmp, "a": a.tree, "b": b.tree}

    def _in(self, value: object, path: str, depth: int) -> Mapping[str, Any] | None:
        problems = self._problems
        fields = self._fields(value, path, "lhs", "list")
        lhs = self._expression(fields["lhs"], f"{path}.lhs", depth + 1) if "lhs" in fields else None
        given = problems.items(fields["list"], f"{path}.list") if "list" in fields else None
        if given is None:
            return None
        # The first entry says which of the two the list is meant to be.
        kind = ValueKind.STRING if given and isinstance(given[0], str) else ValueKind.NUMBER
        items: list[int | float | str] = []
        for index, item in enumerate(given):
            at = f"{path}.list[{index}]"
            if kind is ValueKind.STRING:
                entry: int | float | str | None = problems.text(item, at, "a string, as the first of the list")
            elif isinstance(item, str):
                problems.expected("a number, as the first of the list", item, at)
                continue
            else:
                entry = problems.number(item, at)
            if entry is not None:
                items.append(entry)
        if lhs is None or len(items) < len(given):
            return None
        if given and lhs.kind not in (kind, ValueKind.NULL):
            message = f"expected {kind.value}, as in the list, found {lhs.kind.value}"
            problems.add(Code.TYPE_MISMATCH, f"{path}.lhs", message)
            return None
        # The literal null has no type to look for in a list, and is in none.
        found = {"op": "in", "lhs": lhs.tree, "list": items}
        return {"op": "const_bool", "value": False} if lhs.kind is ValueKind.NULL else found

    def _regex(self, value: object, path: str) -> Mapping[str, Any] | None:
        problems = self._problems
        fields = problems.fields(value, path, required=["op", "key_id", "pattern"], optional=["flags"]) or {}
        key = self.key(fields["key_id"], f"{path}.key_id") if "key_id" in fields else None
        if key is not None and key.type is not KeyType.STRING:
            message = f"expected a string key, found {key.name!r}, which is {key.type.value}"
            problems.add(Code.WRONG_KEY_TYPE, f"{path}.key_id", message)
            key = None
        flags = problems.choice(fields.get("flags", ""), f"{path}.flags", REGEX_FLAGS)
        pattern = self._pattern(fields["pattern"], f"{path}.pattern") if "pattern" in fields else None
        if key is None or flags is None or pattern is None:
            return None
        return {"op": "regex", "key_id": key.id, "pattern": pattern, "flags": flags}

    def _pattern(self, value: object, path: str) -> Mapping[str, Any] | None:
        problems = self._problems
        kind = value.get("kind") if isinstance(value, Mapping) else None
        if kind == "param":
            fields = problems.fields(value, path, required=["kind", "param_id"]) or {}
            param = self._param(fields["param_id"], f"{path}.param_id") if "param_id" in fields else None
            if param is None:
                return None
            if param.type is not KeyType.STRING:
                message = f"expected a string param, found {param.name!r}, which is {param.type.value}"
                problems.add(Code.WRONG_PARAM_TYPE, f"{path}.param_id", message)
                return None
            return {"kind": "param", "param_id": param.id}
        fields = problems.fields(value, path, required=["kind", "value"]) or {}
        if "kind" in fields and problems.choice(kind, f"{path}.kind", ["literal", "param"]) is None:
            return None
        text = problems.text(fields["value"], f"{path}.value") if "value" in fields else None
        if text is None or "kind" not in fields:
            return None
        complaint = pattern_problem(text)
        if complaint is not None:
            problems.add(Code.INVALID_REGEX, f"{path}.value", f"expected a regular expression: {shortened(complaint)}")
            return None
        return {"kind": "literal", "value": text}

    def key(self, value: object, path: str) -> Key | None:
        """The key of that id."""
        key_id = self._problems.integer(value, path)
        if key_id is None:
            return None
        key = self._registries.keys.get(key_id)
        if key is None:
            known = ", ".join(f"{each.id} {each.name}" for each in list(self._registries.keys.values())[:20])
            self._problems.add(Code.UNKNOWN_KEY, path, f"no key has the id {key_id} (known: {known})")
        return key

    def _param(self, value: object, path: str) -> Param | None:
        param_id = self._problems.integer(value, path)
        if param_id is None:
            return None
        param = self._registries.params.get(param_id)
        if param is None:
            known = ", ".join(f"{each.id} {each.name}" for each in list(self._registries.params.values())[:20])
            self._problems.add(Code.UNKNOWN_PARAM, path, f"no param has the id {param_id} (known: {known})")
        return param

    def _fields(self, value: object, path: str, *names: str) -> dict[str, Any]:
        return self._problems.fields(value, path, required=("op", *names)) or {}


def _kind(type_: KeyType) -> ValueKind:
    return ValueKind.STRING if type_ is KeyType.STRING else ValueKind.NUMBER
