"""Expressions over the columns of a row set, compiled once per plan.

An expression reads a row set and gives one value a row, or one for all, and where they are null. Arithmetic is that of
64-bit floats; integers stay integers only while nothing is computed with them, so that comparing ids is exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from .model import KeyType
from .rowset import Read, RowSet, unwritten

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .model import Registries
    from .request import ParamValue

    Evaluate = Callable[[RowSet, Mapping[int, ParamValue]], Read]

_INT64 = range(-(2**63), 2**63)
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
}


@attrs.frozen(kw_only=True)
class Expression:
    """A compiled expression. `type` is None for the literal null, which fits everywhere; `size` counts its tree."""

    evaluate: Evaluate
    type: KeyType | None
    size: int = 1


def compile_expression(tree: Mapping[str, Any], registries: Registries) -> Expression:
    """Compile a validated tree."""
    op = tree["op"]
    if op == "const_number":
        return _constant(tree["value"])
    if op == "const_null":
        return Expression(evaluate=lambda _rows, _params: (0.0, True), type=None)
    if op == "key_ref":
        return _key(tree["key_id"], registries)
    if op == "param_ref":
        return _param(tree["param_id"], registries)
    if op == "neg":
        return _negated(as_float(compile_expression(tree["x"], registries)))
    a, b = compile_expression(tree["a"], registries), compile_expression(tree["b"], registries)
    return _coalesced(a, b) if op == "coalesce" else _computed(op, as_float(a), as_float(b))


def as_float(expression: Expression) -> Expression:
    """The same with floats in place of integers."""
    if expression.type is not KeyType.INT:
        return expression
    evaluate = expression.evaluate

    def convert(rows: RowSet, params: Mapping[int, ParamValue]) -> Read:
        values, nulls = evaluate(rows, params)
        return (values.astype(np.float64) if isinstance(values, np.ndarray) else float(values)), nulls

    return Expression(evaluate=convert, type=KeyType.FLOAT, size=expression.size)


def either_null(a: Any, b: Any) -> Any:
    """Where one of two values is null; neither is null everywhere."""
    if a is False:
        return b
    return a if b is False else a | b


def _constant(value: float) -> Expression:
    exact = isinstance(value, int) and value in _INT64
    read: Read = (value if exact else float(value), False)
    return Expression(evaluate=lambda _rows, _params: read, type=KeyType.INT if exact else KeyType.FLOAT)


def _key(key_id: int, registries: Registries) -> Expression:
    key = registries.keys[key_id]
    absent = unwritten(key)

    def evaluate(rows: RowSet, _params: Mapping[int, ParamValue]) -> Read:
        return rows.read(key) if key_id in rows.columns else absent

    return Expression(evaluate=evaluate, type=key.type)


def _param(param_id: int, registries: Registries) -> Expression:
    def evaluate(_rows: RowSet, params: Mapping[int, ParamValue]) -> Read:
        value = params.get(param_id)
        return (0.0, True) if value is None else (value, False)

    return Expression(evaluate=evaluate, type=registries.params[param_id].type)


def _negated(x: Expression) -> Expression:
    evaluate = x.evaluate

    def negate(rows: RowSet, params: Mapping[int, ParamValue]) -> Read:
        values, nulls = evaluate(rows, params)
        return -values, nulls

    return Expression(evaluate=negate, type=KeyType.FLOAT, size=x.size + 1)


def _computed(op: str, a: Expression, b: Expression) -> Expression:
    compute, left, right = _ARITHMETIC[op], a.evaluate, b.evaluate

    def evaluate(rows: RowSet, params: Mapping[int, ParamValue]) -> Read:
        x, x_nulls = left(rows, params)
        y, y_nulls = right(rows, params)
        if x_nulls is True or y_nulls is True:
            return 0.0, True
        return compute(x, y), either_null(x_nulls, y_nulls)

    return Expression(evaluate=evaluate, type=KeyType.FLOAT, size=a.size + b.size + 1)


def _coalesced(a: Expression, b: Expression) -> Expression:
    kinds = {a.type, b.type} - {None}
    if len(kinds) > 1:
        a, b = as_float(a), as_float(b)
    first, second = a.evaluate, b.evaluate

    def evaluate(rows: RowSet, params: Mapping[int, ParamValue]) -> Read:
        x, x_nulls = first(rows, params)
        if x_nulls is False:
            return x, False
        y, y_nulls = second(rows, params)
        if x_nulls is True:
            return y, y_nulls
        if y_nulls is True:
            return x, x_nulls
        return np.where(x_nulls, y, x), (False if y_nulls is False else x_nulls & y_nulls)

    return Expression(evaluate=evaluate, type=a.type or b.type, size=a.size + b.size + 1)
