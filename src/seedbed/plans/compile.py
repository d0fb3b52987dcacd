"""From a plan to what the executor walks: indices, counters and closures, made once per plan and fusion mode."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from ..errors import ConfigError
from .capabilities import ON_ERROR
from .expressions import compile_expression
from .ops import CORE_OPS, SORT, TAKE
from .opspec import ParamKind
from .predicates import compile_predicate
from .rowset import ID

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .calibration import Calibration
    from .expressions import Expression
    from .model import Plan, PlanNode
    from .opspec import OpRegistry, OpSpec
    from .predicates import Predicate

Fusion = Literal["off", "chain", "auto"]
FUSIONS: Final[tuple[str, ...]] = get_args(Fusion)


class Step:
    """One node: where it stands in the plan, which results it needs and how it runs."""

    __slots__ = (
        "cost",
        "inputs",
        "is_core",
        "may_degrade",
        "may_have",
        "node_id",
        "op",
        "params",
        "policy",
        "position",
        "refs",
        "upstream",
        "writes",
    )

    def __init__(self, node: PlanNode, op: OpSpec, positions: Mapping[str, int]) -> None:
        self.node_id = node.node_id
        self.op = op
        self.params: Mapping[str, Any] = node.params
        self.position = positions[node.node_id]
        self.inputs = tuple(positions[name] for name in node.inputs)
        self.refs = tuple(
            (name, positions[node.params[name]])
            for name, spec in op.params.items()
            if spec.kind is ParamKind.NODE and node.params.get(name) is not None
        )
        self.upstream = tuple(dict.fromkeys([*self.inputs, *(position for _, position in self.refs)]))
        self.policy: str = node.extensions.get(ON_ERROR, {}).get("policy", "fail")
        self.may_degrade = self.policy != "fail"
        self.writes = op.written_keys(node.params)
        # The keys that its rows may have, those of its inputs left aside.
        self.may_have = self.writes | {ID}
        # Our own ops keep their contracts; those of others are checked each time.
        self.is_core = any(op is core for core in CORE_OPS)
        self.cost = 0.0, 0.0  # seconds: fixed, per row; set by CompiledPlan


class Unit:
    """What runs as one: a node on the loop, or a segment of CPU nodes, each the only consumer of the one before."""

    __slots__ = (
        "always_inline",
        "fixed",
        "index",
        "is_async",
        "may_degrade",
        "needs",
        "outside",
        "pairs",
        "per_row",
        "steps",
        "successors",
    )

    def __init__(self, index: int, steps: Sequence[Step], *, fusion: str) -> None:
        self.index = index
        self.steps = tuple(steps)
        self.is_async = steps[0].op.run_async is not None
        self.may_degrade = any(step.may_degrade for step in steps)
        self.always_inline = all(step.op.run_inline for step in steps)
        # The estimate of a run is fixed + per_row × rows. Only `auto` asks whether that is less than a hop.
        self.fixed = sum(step.cost[0] for step in steps) if fusion == "auto" else math.inf
        self.per_row = sum(step.cost[1] for step in steps)
        # The steps that are a sort whose rows only the next step sees, which takes the first of them. Not if rows of
        # one of them may have to be replaced: that needs the rows between them.
        self.pairs = frozenset(
            place
            for place, (step, after) in enumerate(itertools.pairwise(steps))
            if step.op is SORT and after.op is TAKE and not step.may_degrade and not after.may_degrade
        )
        # The results of other units that it reads.
        own = {step.position for step in steps}
        self.outside = tuple({position for step in steps for position in step.upstream} - own)
        self.needs = 0  # units that must be done before; this and the next set by `_link`
        self.successors: tuple[int, ...] = ()


class Schedule:
    """The units of a plan for one fusion mode."""

    __slots__ = ("needs", "roots", "units")

    def __init__(self, units: Sequence[Unit]) -> None:
        self.units = tuple(units)
        self.needs = [unit.needs for unit in units]
        self.roots = tuple(sorted((unit for unit in units if not unit.needs), key=_waits_last))


def _waits_last(unit: Unit) -> bool:
    # What waits for others is started before what uses the CPU of this one.
    return not unit.is_async


class CompiledPlan:
    """A plan ready to run."""

    def __init__(self, plan: Plan, ops: OpRegistry, calibration: Calibration) -> None:
        self.plan = plan
        self.keys = plan.registries.keys
        self.expressions: Mapping[str, Expression] = {
            name: compile_expression(tree, plan.registries) for name, tree in plan.expressions.items()
        }
        self.predicates: Mapping[str, Predicate] = {
            name: compile_predicate(tree, plan.registries) for name, tree in plan.predicates.items()
        }
        positions = {node.node_id: position for position, node in enumerate(plan.nodes)}
        self.steps = tuple(Step(node, _op(node, ops), positions) for node in plan.nodes)
        for step in self.steps:
            step.cost = self._cost(step, calibration)
        self.outputs = tuple(positions[name] for name in plan.outputs)
        self.has_policies = ON_ERROR in plan.capabilities
        self._schedules: dict[str, Schedule] = {}

    def schedule(self, fusion: str) -> Schedule:
        """What runs as one, in that mode."""
        found = self._schedules.get(fusion)
        if found is None:
            if fusion not in FUSIONS:
                raise ConfigError(f"fusion is {fusion!r}; allowed are {', '.join(FUSIONS)}")
            found = self._schedules[fusion] = Schedule(self._units(fusion))
        return found

    def _cost(self, step: Step, calibration: Calibration) -> tuple[float, float]:
        expression = self.expressions.get(step.params.get("expr_id", ""))
        predicate = self.predicates.get(step.params.get("pred_id", ""))
        cost = calibration.cost(
            step.op,
            expression_size=0 if expression is None else expression.size,
            predicate_size=0 if predicate is None else predicate.size,
            patterns=0 if predicate is None else predicate.patterns,
        )
        return cost.fixed, cost.per_row

    def _units(self, fusion: str) -> list[Unit]:
        consumers = Counter(position for step in self.steps for position in step.upstream)
        consumers.update(self.outputs)
        # The first step of each segment and those that join it, in the order of the walk.
        segments: dict[int, list[Step]] = {}
        head: dict[int, int] = {}
        for step in self._in_order():
            before = step.upstream[0] if len(step.upstream) == 1 else None
            joins = (
                fusion != "off"
                and before is not None
                and consumers[before] == 1
                and step.op.run_async is None
                and self.steps[before].op.run_async is None
            )
            start = head[before] if joins and before is not None else step.position
            head[step.position] = start
            segments.setdefault(start, []).append(step)
        units = [Unit(index, steps, fusion=fusion) for index, steps in enumerate(segments.values())]
        _link(units)
        return units

    def _in_order(self) -> list[Step]:
        ordered: list[Step] = []
        done: set[int] = set()
        for first in self.steps:
            stack = [first]
            while stack:
                step = stack[-1]
                missing = [position for position in step.upstream if position not in done]
                if missing:
                    stack.extend(self.steps[position] for position in missing)
                    continue
                stack.pop()
                if step.position not in done:
                    done.add(step.position)
                    ordered.append(step)
        return ordered


def _op(node: PlanNode, ops: OpRegistry) -> OpSpec:
    found = ops.get(node.op)
    if found is None:
        raise ConfigError(f"node {node.node_id!r}: the engine has no op {node.op!r}")
    return found


def _link(units: Sequence[Unit]) -> None:
    """Say of each unit which ones it makes ready and how many it waits for."""
    home = {step.position: unit for unit in units for step in unit.steps}
    followers: dict[int, list[Unit]] = {unit.index: [] for unit in units}
    for unit in units:
        before = {home[position].index for position in unit.outside}
        unit.needs = len(before)
        for index in before:
            followers[index].append(unit)
    for unit in units:
        unit.successors = tuple(follower.index for follower in sorted(followers[unit.index], key=_waits_last))
