"""Expressions and predicates over the columns of a row set: a JSON tree is checked and compiled in one walk.

An expression reads a row set and returns one value per row, or one for all, and where they are null. Arithmetic is that
of 64-bit floats; integers stay integers only while nothing is computed with them, so that comparing ids is exact.
A predicate is true or false, never null: a comparison with a value that is null is false, so its negation is true.
Patterns are matched by RE2, which takes time in proportion to the text whatever the pattern is.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs
import numpy as np

from ..checks import MAX_DEPTH
from ..errors import NodeFailed
from .documents import Code, Value, shortened, shown
from .registries import KeyType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from .registries import Key, Param, ParamValue, Registries
    from .rowset import Read, RowSet

    Params = Mapping[int, ParamValue]
    Evaluate = Callable[[RowSet, Params], Read]
    # One answer per row, or one for all.
    Test = Callable[[RowSet, Params], NDArray[np.bool_] | bool]

# A tree written in Python can share branches, which makes its size as JSON exponential in its depth.
MAX_SIZE: Final = 10_000

_ARITHMETIC: Final[Mapping[str, Callable[..., Any]]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "neg": operator.neg,
}
_COMPARE: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_LOGIC: Final[Mapping[str, Callable[..., Any]]] = {"and": operator.and_, "or": operator.or_, "not": np.logical_not}
EXPRESSION_OPS: Final = ("const_number", "const_null", "key_ref", "param_ref", *_ARITHMETIC, "coalesce")
PREDICATE_OPS: Final = ("const_bool", *_LOGIC, "cmp", "in", "is_null", "not_null", "regex")


@attrs.frozen(kw_only=True)
class Expression:
    """A checked and compiled expression. `type` is None for null, which fits everywhere; `size` counts its ops."""

    tree: Mapping[str, Any]
    evaluate: Evaluate = attrs.field(eq=False, repr=False)
    type: KeyType | None
    size: int = 1
    constant: float | None = None  # its value, if it needs no data
    always_null: bool = False  # whatever the data

    @property
    def kind(self) -> str:
        """The kind of its values, for messages."""
        return "null" if self.type is None else "a string" if self.type is KeyType.STRING else "a number"

    def as_float(self) -> Expression:
        """The same with floats in place of integers."""
        if self.type is not KeyType.INT:
            return self
        evaluate = self.evaluate

        def convert(rows: RowSet, params: Params) -> Read:
            values, nulls = evaluate(rows, params)
            return (values.astype(np.float64) if isinstance(values, np.ndarray) else float(values)), nulls

        return attrs.evolve(self, evaluate=convert, type=KeyType.FLOAT)


@attrs.frozen(kw_only=True)
class Predicate:
    """A checked and compiled predicate; `size` counts its ops, `patterns` its regular expressions."""

    tree: Mapping[str, Any]
    test: Test = attrs.field(eq=False, repr=False)
    size: int = 1
    patterns: int = 0

    def mask(self, rows: RowSet, params: Params) -> NDArray[np.bool_]:
        """True for each of the rows for which the predicate is true."""
        with np.errstate(all="ignore"):
            answer = self.test(rows, params)
        return answer if isinstance(answer, np.ndarray) else np.full(len(rows), answer)


class TreeReader:
    """Reads the trees of one document against its registries."""

    def __init__(self, registries: Registries) -> None:
        self._registries = registries
        self._left = 0  # how many more ops the tree that is being read may have

    def expression(self, value: Value) -> Expression | None:
        self._left = MAX_SIZE
        return self._expression(value, 1)

    def predicate(self, value: Value) -> Predicate | None:
        self._left = MAX_SIZE
        return self._predicate(value, 1)

    def _op(self, value: Value, depth: int, known: tuple[str, ...], what: str) -> str:
        """The op of a tree; empty if it is missing or unknown, or the tree is too large."""
        self._left -= 1
        if self._left < 0:
            if self._left == -1:
                value.problem(Code.TOO_LARGE, f"expected a tree of at most {MAX_SIZE} ops")
        elif depth > MAX_DEPTH:
            value.problem(Code.TOO_DEEP, f"expected a tree of at most {MAX_DEPTH} levels")
            self._left = -1  # the rest of the tree would have the same problem again and again
        elif not isinstance(value.raw, Mapping):
            value.expected(f"{what}, an object with 'op'")
        elif "op" not in value.raw:
            value.problem(Code.MISSING_FIELD, f"the field 'op' is required: {what}", field="op")
        else:
            op = Value(value.raw["op"], f"{value.path}.op", value.problems).text()
            if op in known:
                return op
            if op is not None:
                message = f"expected the op of {what}, found {shown(op)}{value.problems.hint(op, known)}"
                value.problem(Code.UNKNOWN_TREE_OP, message, field="op")
        return ""

    def _expression(self, value: Value, depth: int) -> Expression | None:
        op = self._op(value, depth, EXPRESSION_OPS, "an expression") if value else ""
        if op == "key_ref":
            key = self._registries.key(value.fields("op", "key_id")["key_id"])
            return None if key is None else _key(key)
        if op == "param_ref":
            param = self._registries.param(value.fields("op", "param_id")["param_id"])
            return None if param is None else _param(param)
        if op == "const_number":
            number = value.fields("op", "value")["value"].number()
            if number is None:
                return None
            return Expression(
                tree={"op": op, "value": number},
                evaluate=lambda _rows, _params: (number, False),
                type=KeyType.INT if isinstance(number, int) else KeyType.FLOAT,
                constant=float(number),
            )
        if op == "const_null":
            value.fields("op")
            return Expression(tree={"op": op}, evaluate=lambda _rows, _params: (0.0, True), type=None, always_null=True)
        if not op:
            return None
        names = ("x",) if op == "neg" else ("a", "b")
        fields = value.fields("op", *names)
        operands = self._expressions(fields, names, depth)
        if len(operands) < len(names):
            return None
        if op == "coalesce":
            return _coalesced(*operands) if _comparable(operands, "coalesce", value) else None
        numbers = {name: each for name, each in zip(names, operands, strict=True) if each.type is not KeyType.STRING}
        for name in names:
            if name not in numbers:
                fields[name].problem(Code.TYPE_MISMATCH, f"expected a number for {op}, found a string")
        return _computed(op, numbers, value) if len(numbers) == len(names) else None

    def _expressions(self, fields: Mapping[str, Value], names: Sequence[str], depth: int) -> list[Expression]:
        """The valid ones of these operands of a tree."""
        found = [self._expression(fields[name], depth + 1) for name in names]
        return [each for each in found if each is not None]

    def _predicate(self, value: Value, depth: int) -> Predicate | None:
        op = self._op(value, depth, PREDICATE_OPS, "a predicate") if value else ""
        if op in _LOGIC:
            names = ("x",) if op == "not" else ("a", "b")
            fields = value.fields("op", *names)
            found = {name: self._predicate(fields[name], depth + 1) for name in names}
            parts = {name: each for name, each in found.items() if each is not None}
            return _combined(op, parts) if len(parts) == len(names) else None
        if op in ("is_null", "not_null"):
            operand = self._expression(value.fields("op", "x")["x"], depth + 1)
            return None if operand is None else _null({"op": op, "x": operand.tree}, operand, wanted=op == "is_null")
        if op == "const_bool":
            constant = value.fields("op", "value")["value"].boolean()
            return None if constant is None else _always(constant)
        if op == "cmp":
            fields = value.fields("op", "cmp", "a", "b")
            cmp = fields["cmp"].choice(tuple(_COMPARE))
            operands = self._expressions(fields, ("a", "b"), depth)
            if len(operands) < 2 or not _comparable(operands, "compare", value) or cmp is None:
                return None
            return _compared(cmp, *operands)
        if op == "in":
            return self._in(value, depth)
        return self._regex(value) if op == "regex" else None

    def _in(self, value: Value, depth: int) -> Predicate | None:
        fields = value.fields("op", "lhs", "list")
        lhs = self._expression(fields["lhs"], depth + 1)
        given = fields["list"].items()
        if given is None:
            return None
        # The first element decides which of the two the list is meant to be.
        strings = bool(given) and isinstance(given[0].raw, str)
        listed: list[int | float | str | None] = []
        for item in given:
            if strings:
                listed.append(item.text("a string, as the first of the list"))
            elif isinstance(item.raw, str):
                listed.append(item.expected("a number, as the first of the list"))
            else:
                listed.append(item.number())
        if lhs is None or None in listed:
            return None
        if lhs.type is None:  # null has no type to look for in a list, and is in none
            return _always(value=False)
        if given and (lhs.type is KeyType.STRING) is not strings:
            message = f"expected {'a string' if strings else 'a number'}, as in the list, found {lhs.kind}"
            return fields["lhs"].problem(Code.TYPE_MISMATCH, message)
        return _member(lhs, listed)

    def _regex(self, value: Value) -> Predicate | None:
        fields = value.fields("op", "key_id", "pattern", optional=["flags"])
        key = self._registries.key(fields["key_id"])
        if key is not None and key.type is not KeyType.STRING:
            message = f"expected a string key, found {key.name!r}, which is {key.type.value}"
            key = fields["key_id"].problem(Code.WRONG_KEY_TYPE, message)
        flags = fields["flags"].choice(("", "i")) if fields["flags"] else ""
        pattern = self._pattern(fields["pattern"])
        return None if key is None or flags is None or pattern is None else _matching(key, pattern, flags)

    def _pattern(self, value: Value) -> str | Param | None:
        if isinstance(value.raw, Mapping) and value.raw.get("kind") == "param":
            field = value.fields("kind", "param_id")["param_id"]
            param = self._registries.param(field)
            if param is not None and param.type is not KeyType.STRING:
                message = f"expected a string param, found {param.name!r}, which is {param.type.value}"
                return field.problem(Code.WRONG_PARAM_TYPE, message)
            return param
        fields = value.fields("kind", "value")
        kind = fields["kind"].choice(("literal", "param"))
        text = fields["value"].text() if kind is not None or not fields["kind"] else None
        if text is None or kind is None:
            return None
        if (complaint := pattern_problem(text)) is not None:
            message = f"expected a regular expression: {shortened(complaint)}"
            return fields["value"].problem(Code.INVALID_REGEX, message)
        return text


def _comparable(operands: Sequence[Expression], purpose: str, value: Value) -> bool:
    """True if two operands are of one type, or one of them is null, which fits everywhere."""
    a, b = operands
    fits = a.type is None or b.type is None or a.kind == b.kind
    if not fits:
        message = f"expected two values of one type to {purpose}, found {a.kind} and {b.kind}"
        value.problem(Code.TYPE_MISMATCH, message)
    return fits


def _key(key: Key) -> Expression:
    return Expression(
        tree={"op": "key_ref", "key_id": key.id}, evaluate=lambda rows, _params: rows.read(key), type=key.type
    )


def _param(param: Param) -> Expression:
    def evaluate(_rows: RowSet, params: Params) -> Read:
        value = params.get(param.id)
        return (0.0, True) if value is None else (value, False)

    return Expression(tree={"op": "param_ref", "param_id": param.id}, evaluate=evaluate, type=param.type)


def _computed(op: str, operands: Mapping[str, Expression], value: Value) -> Expression | None:
    compute = _ARITHMETIC[op]
    constants = [each.constant for each in operands.values()]
    constant: float | None = None if None in constants else compute(*constants)
    if constant is not None and not math.isfinite(constant):
        message = f"expected a finite number, {op} of its constants gives {constant}"
        return value.problem(Code.NOT_FINITE, message)
    first, *others = (each.as_float().evaluate for each in operands.values())

    def negate(rows: RowSet, params: Params) -> Read:
        values, nulls = first(rows, params)
        return -values, nulls

    def combine(rows: RowSet, params: Params) -> Read:
        x, x_nulls = first(rows, params)
        y, y_nulls = others[0](rows, params)
        if x_nulls is True or y_nulls is True:
            return 0.0, True
        return compute(x, y), _either(x_nulls, y_nulls)

    return Expression(
        tree={"op": op, **{name: each.tree for name, each in operands.items()}},
        evaluate=combine if others else negate,
        type=KeyType.FLOAT,
        size=1 + sum(each.size for each in operands.values()),
        constant=constant,
        always_null=any(each.always_null for each in operands.values()),
    )


def _either(a: Any, b: Any) -> Any:
    """Where one of two values is null; neither is null everywhere."""
    if a is False:
        return b
    return a if b is False else a | b


def _coalesced(a: Expression, b: Expression) -> Expression:
    tree = {"op": "coalesce", "a": a.tree, "b": b.tree}
    if a.type is not None and b.type is not None and a.type is not b.type:
        a, b = a.as_float(), b.as_float()
    first, second = a.evaluate, b.evaluate

    def evaluate(rows: RowSet, params: Params) -> Read:
        x, x_nulls = first(rows, params)
        if x_nulls is False:
            return x, False
        y, y_nulls = second(rows, params)
        if x_nulls is True:
            return y, y_nulls
        if y_nulls is True:
            return x, x_nulls
        return np.where(x_nulls, y, x), (False if y_nulls is False else x_nulls & y_nulls)

    return Expression(
        tree=tree,
        evaluate=evaluate,
        type=a.type or b.type,
        size=a.size + b.size + 1,
        constant=b.constant if a.always_null else a.constant,
        always_null=a.always_null and b.always_null,
    )


def _always(value: bool) -> Predicate:
    return Predicate(tree={"op": "const_bool", "value": value}, test=lambda _rows, _params: value)


def _combined(op: str, parts: Mapping[str, Predicate]) -> Predicate:
    combine, tests = _LOGIC[op], [each.test for each in parts.values()]
    return Predicate(
        tree={"op": op, **{name: each.tree for name, each in parts.items()}},
        test=lambda rows, params: combine(*[test(rows, params) for test in tests]),
        size=1 + sum(each.size for each in parts.values()),
        patterns=sum(each.patterns for each in parts.values()),
    )


def _null(tree: Mapping[str, Any], x: Expression, *, wanted: bool) -> Predicate:
    def test(rows: RowSet, params: Params) -> NDArray[np.bool_] | bool:
        nulls = x.evaluate(rows, params)[1]
        return nulls if wanted else np.logical_not(nulls)

    return Predicate(tree=tree, test=test, size=x.size + 1)


def _compared(cmp: str, a: Expression, b: Expression) -> Predicate:
    tree = {"op": "cmp", "cmp": cmp, "a": a.tree, "b": b.tree}
    if cmp in ("==", "!=") and "const_null" in (a.tree["op"], b.tree["op"]):
        return _null(tree, b if a.tree["op"] == "const_null" else a, wanted=cmp == "==")
    if a.type is not b.type:
        a, b = a.as_float(), b.as_float()
    compute, left, right = _COMPARE[cmp], a.evaluate, b.evaluate

    def test(rows: RowSet, params: Params) -> NDArray[np.bool_] | bool:
        x, x_nulls = left(rows, params)
        y, y_nulls = right(rows, params)
        if x_nulls is True or y_nulls is True:
            return False
        answer: NDArray[np.bool_] | bool = compute(x, y)
        nulls = _either(x_nulls, y_nulls)
        return answer if nulls is False else answer & ~nulls

    return Predicate(tree=tree, test=test, size=a.size + b.size + 1)


def _member(lhs: Expression, listed: Sequence[Any]) -> Predicate:
    if lhs.type is KeyType.STRING:
        strings = frozenset(listed)

        def contains(values: NDArray[Any]) -> NDArray[np.bool_]:
            return np.fromiter((value in strings for value in values.tolist()), np.bool_, len(values))

    else:
        # An integer is compared as an integer with integers, and as a float with floats.
        exact = [item for item in listed if lhs.type is KeyType.INT and isinstance(item, int)]
        rounded = [float(item) for item in listed if lhs.type is not KeyType.INT or isinstance(item, float)]

        def contains(values: NDArray[Any]) -> NDArray[np.bool_]:
            found: NDArray[np.bool_] = np.isin(values, np.array(exact, values.dtype))
            return found | np.isin(values.astype(np.float64), rounded) if rounded else found

    def test(rows: RowSet, params: Params) -> NDArray[np.bool_] | bool:
        values, nulls = lhs.evaluate(rows, params)
        if nulls is True:
            return False
        found = contains(values) if isinstance(values, np.ndarray) else bool(contains(np.array([values]))[0])
        return found if nulls is False else found & ~nulls

    tree = {"op": "in", "lhs": lhs.tree, "list": list(listed)}
    return Predicate(tree=tree, test=test, size=lhs.size + 1 + len(listed) // 6)


def pattern_problem(pattern: str) -> str | None:
    """The problem of a regular expression, or None."""
    import pyarrow as pa  # noqa: PLC0415  slow to import, and most plans have no pattern

    try:
        _search(np.array([""], dtype=object), pattern, ignore_case=False)
    except (pa.ArrowInvalid, UnicodeError) as error:
        return str(error).removeprefix("Invalid regular expression: ")
    return None


def _search(values: NDArray[Any], pattern: str, *, ignore_case: bool) -> NDArray[np.bool_]:
    import pyarrow as pa  # noqa: PLC0415  as above
    from pyarrow import compute  # noqa: PLC0415

    found = compute.match_substring_regex(pa.array(values, type=pa.string()), pattern, ignore_case=ignore_case)
    answers: NDArray[np.bool_] = found.to_numpy(zero_copy_only=False)
    return answers


def _matching(key: Key, pattern: str | Param, flags: str) -> Predicate:
    param = None if isinstance(pattern, str) else pattern

    def test(rows: RowSet, params: Params) -> NDArray[np.bool_] | bool:
        wanted = params.get(param.id) if param is not None else pattern
        if param is not None and wanted is not None:
            # Whether or not there is a text to match it with, so that a wrong pattern is an error at once.
            complaint = pattern_problem(str(wanted))
            if complaint is not None:
                raise NodeFailed(f"param {param.name!r} is not a regular expression: {complaint}")
        values, nulls = rows.read(key)
        if wanted is None or nulls is True:
            return False
        found = _search(np.atleast_1d(values), str(wanted), ignore_case=flags == "i")
        if not isinstance(values, np.ndarray):
            return bool(found[0])
        return found if nulls is False else found & ~nulls

    found = {"kind": "literal", "value": pattern} if param is None else {"kind": "param", "param_id": param.id}
    return Predicate(tree={"op": "regex", "key_id": key.id, "pattern": found, "flags": flags}, test=test, patterns=1)
