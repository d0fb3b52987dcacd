"""What CPU ops and a hop to a thread cost on this machine, measured when an engine starts."""

from __future__ import annotations

import math
import statistics
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
    from collections.abc import Mapping

    from .opspec import OpSpec
    from .rowset import RowSet

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
_FEW, _MANY = 16, 8_192
_ROUNDS: Final = 7
# A hop differs from one to the next even on an idle machine. The least of a few leaves out what others did to it, and
# the median of such leasts is not misled by one that was lucky.
_GROUPS, _HOPS = 5, 5
REGEX: Final = "regex"

# Seconds that are believed. A machine that others use can show anything for a moment, and an engine would live with it:
# rows that seem to cost nothing would keep millions of them on the loop, a hop that seems to last for ever as well.
_HOP: Final = (20e-6, 2e-3)
_CALL: Final = (0.1e-6, 1e-3)
_ROW: Final = {
    VM.name: (0.3e-9, 1e-6),
    FILTER.name: (0.3e-9, 1e-6),
    SORT.name: (5e-9, 5e-6),
    TAKE.name: (0.0, 0.1e-6),  # it only says how many
    CONCAT.name: (0.3e-9, 1e-6),
    REGEX: (10e-9, 10e-6),
}


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
class Doubt:
    """Something was measured that cannot be; seconds."""

    what: str
    found: float
    taken: float  # what is reckoned with instead


@attrs.frozen(kw_only=True)
class Calibration:
    """Seconds: of a hop to a thread and back, and of what was measured: ops by name, and matching a pattern.

    Measurements that were not believed are in `doubts`.
    """

    hop: float
    ops: Mapping[str, Cost]
    expression_size: int
    predicate_size: int
    doubts: tuple[Doubt, ...] = ()

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


def plausible(hop: float, ops: Mapping[str, Cost]) -> Calibration:
    """A calibration out of these measurements, and the nearest that can be where one cannot."""
    doubts: list[Doubt] = []

    def believed(what: str, found: float, bounds: tuple[float, float]) -> float:
        taken = min(max(found, bounds[0]), bounds[1])
        if taken != found:
            doubts.append(Doubt(what=what, found=found, taken=taken))
        return taken

    return Calibration(
        hop=believed("hop", hop, _HOP),
        ops={
            name: Cost(
                believed(f"{name}, a call", cost.fixed, _CALL), believed(f"{name}, a row", cost.per_row, _ROW[name])
            )
            for name, cost in ops.items()
        },
        expression_size=5,
        predicate_size=3,
        doubts=tuple(doubts),
    )


def measure_ops() -> Mapping[str, Cost]:
    """Measure the CPU ops on few and on many rows; takes some hundredths of a second."""
    registries = Registries(keys=_KEYS, params={}, endpoints={})
    shared = RequestContext(
        Request(user_id=0),
        RequestEndpoints({}),
        _KEYS,
        {"e": compile_expression(_EXPRESSION, registries)},
        {"p": compile_predicate(_PREDICATE, registries), "r": compile_predicate(_PATTERN, registries)},
    )
    few, many = _rows(_FEW), _rows(_MANY)

    def cost(op: OpSpec, params: Mapping[str, Any]) -> Cost:
        run = op.run
        assert run is not None
        least = [math.inf, math.inf]
        # In turn, so that a bad moment meets both.
        for _ in range(_ROUNDS):
            for place, rows in enumerate((few, many)):
                ctx = OpContext(shared, "", math.inf, {"rhs": rows})
                start = time.perf_counter()
                run((rows,), params, ctx)
                least[place] = min(least[place], time.perf_counter() - start)
        return Cost(least[0], max(0.0, least[1] - least[0]) / (_MANY - _FEW))

    return {
        VM.name: cost(VM, {"out_key": _SCORE, "expr_id": "e"}),
        FILTER.name: cost(FILTER, {"pred_id": "p"}),
        SORT.name: cost(SORT, {"by": _SCORE, "order": "desc"}),
        TAKE.name: cost(TAKE, {"count": 10}),
        CONCAT.name: cost(CONCAT, {"rhs": ""}),
        REGEX: cost(FILTER, {"pred_id": "r"}),
    }


def _rows(size: int) -> RowSet:
    ids = (np.arange(size) * 7919) % size
    rows = new_rows(ids, {_NAME: string_column([f"a name {number} b" for number in ids.tolist()])})
    return rows.with_column(_SCORE, ids / size)


async def calibrate() -> Calibration:
    """Measure this machine."""
    await finish_in_thread(_nothing)  # the first one makes the thread
    leasts: list[float] = []
    for _ in range(_GROUPS):
        least = math.inf
        for _ in range(_HOPS):
            start = time.perf_counter()
            await finish_in_thread(_nothing)
            least = min(least, time.perf_counter() - start)
        leasts.append(least)
    return plausible(statistics.median(leasts), measure_ops())


def _nothing() -> None:
    pass
