"""What CPU ops and a hop to a thread cost on this machine, measured when an engine starts."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Final

import attrs
import numpy as np

from ..runtime.offload import finish_in_thread
from .context import OpContext, RequestContext
from .expressions import compile_expression
from .memo import RequestEndpoints
from .model import Key, KeyType, Registries
from .ops import CONCAT, FILTER, SORT, TAKE, VM
from .predicates import compile_predicate
from .request import Request
from .rowset import ID, new_rows, string_column

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .opspec import OpSpec

_SCORE, _NAME = 2, 3
_KEYS: Final[Mapping[int, Key]] = {
    ID: Key(id=ID, name="id", type=KeyType.INT, writable=False),
    _SCORE: Key(id=_SCORE, name="score", type=KeyType.FLOAT, default=0),
    _NAME: Key(id=_NAME, name="name", type=KeyType.STRING, nullable=True),
}
# The trees that are measured; the cost of others is in proportion to their size.
_EXPRESSION: Final = {
    "op": "add",
    "a": {"op": "mul", "a": {"op": "key_ref", "key_id": ID}, "b": {"op": "const_number", "value": 0.5}},
    "b": {"op": "key_ref", "key_id": _SCORE},
}
_PREDICATE: Final = {
    "op": "cmp",
    "cmp": ">",
    "a": {"op": "key_ref", "key_id": _SCORE},
    "b": {"op": "const_number", "value": 0.5},
}
_PATTERN: Final = {"op": "regex", "key_id": _NAME, "pattern": {"kind": "literal", "value": "a.*b$"}, "flags": ""}
_FEW, _MANY = 16, 2_048
_ROUNDS = 5
_HOPS = 9
REGEX: Final = "regex"


@attrs.frozen
class Cost:
    """Seconds that a call takes, and seconds that each row adds."""

    fixed: float
    per_row: float

    def times(self, factor: float) -> Cost:
        """The cost of so many times the work."""
        return Cost(self.fixed * factor, self.per_row * factor)


UNKNOWN: Final = Cost(math.inf, 0.0)


@attrs.frozen(kw_only=True)
class Calibration:
    """Seconds: of a hop to a thread and back, and of what was measured: ops by name, and matching a pattern."""

    hop: float
    ops: Mapping[str, Cost]
    expression_size: int
    predicate_size: int

    def cost(self, op: OpSpec, expression_size: int = 0, predicate_size: int = 0, patterns: int = 0) -> Cost:
        """What one node costs; what is not known is infinite."""
        if op.run_inline:
            return Cost(0.0, 0.0)
        measured = self.ops.get(op.name)
        if measured is None:
            return UNKNOWN
        if op.name == VM.name:
            return measured.times(max(1.0, expression_size / self.expression_size))
        if op.name == FILTER.name:
            tree = measured.times(max(1.0, predicate_size / self.predicate_size))
            regex = self.ops[REGEX].times(patterns)
            return Cost(tree.fixed + regex.fixed, tree.per_row + regex.per_row)
        return measured


def measure_ops() -> Mapping[str, Cost]:
    """Measure the CPU ops on few and on many rows; takes a few milliseconds."""
    registries = Registries(keys=_KEYS, params={}, endpoints={})
    shared = RequestContext(
        Request(user_id=0),
        RequestEndpoints({}),
        _KEYS,
        {"e": compile_expression(_EXPRESSION, registries)},
        {"p": compile_predicate(_PREDICATE, registries), "r": compile_predicate(_PATTERN, registries)},
    )

    def seconds(op: OpSpec, params: Mapping[str, Any], size: int) -> float:
        ids = (np.arange(size) * 7919) % max(size, 1)
        rows = new_rows(ids, {_NAME: string_column([f"a name {number} b" for number in ids.tolist()])})
        rows = rows.with_column(_SCORE, ids / max(size, 1))
        ctx = OpContext(shared, "", math.inf, {"rhs": rows})
        run = op.run
        assert run is not None
        return _fastest(lambda: run((rows,), params, ctx))

    def cost(op: OpSpec, params: Mapping[str, Any]) -> Cost:
        few, many = seconds(op, params, _FEW), seconds(op, params, _MANY)
        per_row = max(0.0, many - few) / (_MANY - _FEW)
        return Cost(few, per_row)

    return {
        VM.name: cost(VM, {"out_key": _SCORE, "expr_id": "e"}),
        FILTER.name: cost(FILTER, {"pred_id": "p"}),
        SORT.name: cost(SORT, {"by": _SCORE, "order": "desc"}),
        TAKE.name: cost(TAKE, {"count": 10}),
        CONCAT.name: cost(CONCAT, {"rhs": ""}),
        REGEX: cost(FILTER, {"pred_id": "r"}),
    }


def _fastest(call: Callable[[], object]) -> float:
    best = math.inf
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


async def calibrate() -> Calibration:
    """Measure this machine."""
    # The fastest, as with the ops: what a busy machine adds to one it adds to the other.
    hop = math.inf
    for _ in range(_HOPS):
        start = time.perf_counter()
        await finish_in_thread(_nothing)
        hop = min(hop, time.perf_counter() - start)
    return Calibration(hop=hop, ops=measure_ops(), expression_size=5, predicate_size=3)


def _nothing() -> None:
    pass
