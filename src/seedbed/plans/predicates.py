"""Predicates over the rows of a row set, compiled once per plan.

A predicate is true or false, never null: a comparison with a value that is null is false, so its negation is true.
Patterns are matched by RE2, which takes time in proportion to the text whatever the pattern is.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from ..errors import NodeFailed
from .expressions import as_float, compile_expression, either_null
from .model import KeyType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from .expressions import Expression
    from .model import Registries
    from .request import ParamValue
    from .rowset import RowSet

    # One answer a row, or one for all.
    Test = Callable[[RowSet, Mapping[int, ParamValue]], "NDArray[np.bool_] | bool"]

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
# Up to so many numbers, comparing with each is faster than numpy's isin.
_FEW = 6


@attrs.frozen(kw_only=True)
class Predicate:
    """A compiled predicate; `size` counts its tree, `patterns` the patterns in it."""

    test: Test
    size: int = 1
    patterns: int = 0

    def mask(self, rows: RowSet, params: Mapping[int, ParamValue]) -> NDArray[np.bool_]:
        """Which of the rows it is true for."""
        with np.errstate(all="ignore"):
            answer = self.test(rows, params)
        return answer if isinstance(answer, np.ndarray) else np.full(len(rows), answer)


def compile_predicate(tree: Mapping[str, Any], registries: Registries) -> Predicate:
    """Compile a validated tree."""
    op = tree["op"]
    if op == "const_bool":
        value = tree["value"]
        return Predicate(test=lambda _rows, _params: value)
    if op in ("and", "or"):
        a, b = compile_predicate(tree["a"], registries), compile_predicate(tree["b"], registries)
        return _joined(operator.and_ if op == "and" else operator.or_, a, b)
    if op == "not":
        return _negated(compile_predicate(tree["x"], registries))
    if op in ("is_null", "not_null"):
        return _null(compile_expression(tree["x"], registries), wanted=op == "is_null")
    if op == "in":
        return _member(compile_expression(tree["lhs"], registries), tree["list"])
    if op == "regex":
        return _matching(tree, registries)
    return _compared(tree, registries)


@functools.lru_cache(maxsize=256)
def pattern_problem(pattern: str) -> str | None:
    """What is wrong with a pattern, or None; the last ones are remembered, since requests bring the same again."""
    import pyarrow as pa  # noqa: PLC0415  slow to import, and most plans have no pattern

    try:
        _search(np.array([""], dtype=object), pattern, ignore_case=False)
    except (pa.ArrowInvalid, UnicodeError) as error:
        return str(error).removeprefix("Invalid regular expression: ")
    return None


def _search(values: NDArray[Any], pattern: str, *, ignore_case: bool) -> NDArray[np.bool_]:
    import pyarrow as pa  # noqa: PLC0415  as above
    from pyarrow import compute  # noqa: PLC0415

    texts = pa.array(values, type=pa.string())
    found = compute.match_substring_regex(texts, pattern, ignore_case=ignore_case)
    answers: NDArray[np.bool_] = found.fill_null(False).to_numpy(zero_copy_only=False)
    return answers


def _joined(join: Callable[[Any, Any], Any], a: Predicate, b: Predicate) -> Predicate:
    left, right = a.test, b.test
    return Predicate(
        test=lambda rows, params: join(left(rows, params), right(rows, params)),
        size=a.size + b.size + 1,
        patterns=a.patterns + b.patterns,
    )


def _negated(x: Predicate) -> Predicate:
    inner = x.test

    def test(rows: RowSet, params: Mapping[int, ParamValue]) -> NDArray[np.bool_] | bool:
        answer = inner(rows, params)
        return ~answer if isinstance(answer, np.ndarray) else not answer

    return Predicate(test=test, size=x.size + 1, patterns=x.patterns)


def _null(x: Expression, *, wanted: bool) -> Predicate:
    evaluate = x.evaluate

    def test(rows: RowSet, params: Mapping[int, ParamValue]) -> NDArray[np.bool_] | bool:
        nulls = evaluate(rows, params)[1]
        if isinstance(nulls, np.ndarray):
            return nulls if wanted else ~nulls
        return nulls is wanted

    return Predicate(test=test, size=x.size + 1)


def _compared(tree: Mapping[str, Any], registries: Registries) -> Predicate:
    cmp = tree["cmp"]
    a, b = compile_expression(tree["a"], registries), compile_expression(tree["b"], registries)
    if cmp in ("==", "!=") and "const_null" in (tree["a"]["op"], tree["b"]["op"]):
        return _null(b if tree["a"]["op"] == "const_null" else a, wanted=cmp == "==")
    if a.type is not b.type:
        a, b = as_float(a), as_float(b)
    compare, left, right = _COMPARE[cmp], a.evaluate, b.evaluate
    strings = KeyType.STRING in (a.type, b.type)

    def test(rows: RowSet, params: Mapping[int, ParamValue]) -> NDArray[np.bool_] | bool:
        x, x_nulls = left(rows, params)
        y, y_nulls = right(rows, params)
        if x_nulls is True or y_nulls is True:
            return False
        nulls = either_null(x_nulls, y_nulls)
        if nulls is False:
            answer: NDArray[np.bool_] | bool = compare(x, y)
            return answer
        if not strings:
            kept: NDArray[np.bool_] = compare(x, y) & ~nulls
            return kept
        # Python cannot tell whether a string is less than None.
        valued = ~nulls
        kept = np.zeros(len(rows), np.bool_)
        kept[valued] = compare(*(side[valued] if isinstance(side, np.ndarray) else side for side in (x, y)))
        return kept

    return Predicate(test=test, size=a.size + b.size + 1)


def _member(lhs: Expression, listed: Sequence[Any]) -> Predicate:
    evaluate = lhs.evaluate
    contains = _contains_string(listed) if lhs.type is KeyType.STRING else _contains_number(listed, lhs.type)

    def test(rows: RowSet, params: Mapping[int, ParamValue]) -> NDArray[np.bool_] | bool:
        values, nulls = evaluate(rows, params)
        if nulls is True:
            return False
        found = contains(values) if isinstance(values, np.ndarray) else bool(contains(np.array([values]))[0])
        return found if nulls is False else found & ~nulls

    return Predicate(test=test, size=lhs.size + 1 + len(listed) // _FEW)


def _contains_string(listed: Sequence[str]) -> Callable[[NDArray[Any]], NDArray[np.bool_]]:
    wanted = frozenset(listed)
    return lambda values: np.fromiter((value in wanted for value in values.tolist()), np.bool_, len(values))


def _contains_number(listed: Sequence[float], kind: KeyType | None) -> Callable[[NDArray[Any]], NDArray[np.bool_]]:
    # An integer is compared as an integer with integers, and as a float with floats.
    exact = [item for item in listed if kind is KeyType.INT and isinstance(item, int)]
    exact = [item for item in exact if -(2**63) <= item < 2**63]
    rounded = [float(item) for item in listed if kind is not KeyType.INT or isinstance(item, float)]

    def contains(values: NDArray[Any]) -> NDArray[np.bool_]:
        found = _contains(values, exact)
        return found | _contains(values.astype(np.float64), rounded) if rounded else found

    return contains


def _contains(values: NDArray[Any], wanted: Sequence[float]) -> NDArray[np.bool_]:
    if len(wanted) > _FEW:
        return np.isin(values, np.array(wanted, values.dtype))
    found = np.zeros(len(values), np.bool_)
    for item in wanted:
        found |= values == item
    return found


def _matching(tree: Mapping[str, Any], registries: Registries) -> Predicate:
    key = registries.keys[tree["key_id"]]
    pattern = tree["pattern"]
    literal = pattern["value"] if pattern["kind"] == "literal" else None
    param_id = pattern.get("param_id")
    ignore_case = tree.get("flags", "") == "i"

    def test(rows: RowSet, params: Mapping[int, ParamValue]) -> NDArray[np.bool_] | bool:
        wanted = literal
        if literal is None and (wanted := params.get(param_id)) is not None:
            # Whether or not there is a text to match it with, so that a wrong pattern is an error at once.
            complaint = pattern_problem(str(wanted))
            if complaint is not None:
                raise NodeFailed(f"param {registries.params[param_id].name!r} is not a pattern: {complaint}")
        values, nulls = rows.read(key)
        if wanted is None or nulls is True:
            return False
        if isinstance(values, np.ndarray):
            return _search(values, str(wanted), ignore_case=ignore_case)
        return bool(_search(np.array([values], dtype=object), str(wanted), ignore_case=ignore_case)[0])

    return Predicate(test=test, patterns=1)
