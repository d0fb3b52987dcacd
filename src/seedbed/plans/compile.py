"""From a plan to what the executor walks: positions, counters and units that run as one, built once per fusion mode."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import attrs

from ..errors import ConfigError
from ..graph import topological_order
from .format import ON_ERROR
from .ops import CORE_OPS
from .opspec import Rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .format import Plan, PlanNode
    from .ops import OpRegistry
    from .opspec import OpSpec

Fusion = Literal["off", "auto"]
FUSIONS: Final[tuple[str, ...]] = get_args(Fusion)
REGEX: Final = "regex"
_JOIN: Final = "core::join"


@attrs.frozen
class Cost:
    """Seconds that a call takes, and seconds that each row adds."""

    fixed: float
    per_row: float

    def of(self, rows: int) -> float:
        return self.fixed + self.per_row * rows


# Ops in the trees that were measured; the cost of others is in proportion to their size.
_MEASURED_SIZES: Final[Mapping[str, int]] = {"core::vm": 5, "core::filter": 3}


@attrs.frozen(kw_only=True)
class Costs:
    """Seconds: of a hop to a thread and back, of ops by name, and of matching a pattern.

    Whether a segment runs on the loop depends on the ratio of these only, which differs little between machines, so
    they are constants (benchmarks/plans, "fusion", measures the decisions).
    """

    hop: float
    ops: Mapping[str, Cost]

    def cost(self, op: OpSpec, *, size: int = 0, patterns: int = 0) -> Cost:
        """The cost of a node whose tree has `size` ops; that of a user-defined op is unknown, so infinite."""
        op_cost, pattern = self.ops.get(op.name), self.ops[REGEX]
        if op.run_inline or op_cost is None:
            return Cost(0.0 if op.run_inline else math.inf, 0.0)
        factor = max(1.0, size / _MEASURED_SIZES.get(op.name, math.inf))
        return Cost(
            op_cost.fixed * factor + pattern.fixed * patterns, op_cost.per_row * factor + pattern.per_row * patterns
        )


DEFAULT_COSTS: Final = Costs(
    hop=170e-6,
    ops={
        "core::vm": Cost(11e-6, 1.3e-9),
        "core::filter": Cost(6e-6, 0.8e-9),
        "core::sort": Cost(8e-6, 20e-9),
        "core::take": Cost(1.2e-6, 0.0),
        "core::concat": Cost(13e-6, 7e-9),
        "core::dedupe": Cost(10e-6, 100e-9),
        "core::join": Cost(18e-6, 120e-9),
        REGEX: Cost(100e-6, 128e-9),
    },
)


@attrs.frozen(kw_only=True, eq=False)
class Step:
    """One node: its position in the plan, the positions of the results it needs, and how it runs."""

    node_id: str
    op: OpSpec
    params: Mapping[str, Any]
    position: int
    inputs: tuple[int, ...]
    refs: tuple[tuple[str, int], ...]  # of the nodes that its params name, by param
    upstream: tuple[int, ...]  # both
    policy: str
    cost: Cost
    writes: frozenset[int]
    # The contracts of our own ops hold; those of others are checked after each run.
    is_core: bool


class Unit:
    """What runs as one: a node on the loop, or a segment of CPU nodes, each the only consumer of the one before."""

    __slots__ = ("always_inline", "cost", "index", "is_async", "outside", "steps", "successors")

    def __init__(self, index: int, steps: Sequence[Step], *, fusion: str) -> None:
        self.index = index
        self.steps = tuple(steps)
        self.is_async = steps[0].op.run_async is not None
        self.always_inline = all(step.op.run_inline for step in steps)
        # Only `auto` compares the cost with a hop.
        fixed = sum(step.cost.fixed for step in steps) if fusion == "auto" else math.inf
        self.cost = Cost(fixed, sum(step.cost.per_row for step in steps))
        # The results of other units that it reads.
        own = {step.position for step in steps}
        self.outside = tuple({position for step in steps for position in step.upstream} - own)
        self.successors: tuple[int, ...] = ()  # the units that need it; set by `Schedule`


class Schedule:
    """The units of a plan for one fusion mode, and which of them each makes ready."""

    def __init__(self, compiled: CompiledPlan, units: Sequence[Unit]) -> None:
        self.compiled = compiled
        self.units = tuple(units)
        home = {step.position: unit.index for unit in units for step in unit.steps}
        before = [{home[position] for position in unit.outside} for unit in units]
        followers: list[list[int]] = [[] for _ in units]
        # What waits for servers starts before what uses the CPU of this machine.
        ordered = sorted(units, key=lambda unit: not unit.is_async)
        for unit in ordered:
            for index in before[unit.index]:
                followers[index].append(unit.index)
        for unit in units:
            unit.successors = tuple(followers[unit.index])
        self.needs = [len(each) for each in before]  # by unit: how many must be done before
        self.roots = tuple(unit for unit in ordered if not before[unit.index])


class CompiledPlan:
    """A plan ready to run."""

    def __init__(self, plan: Plan, ops: OpRegistry, costs: Costs) -> None:
        self.plan = plan
        self.ops = ops
        self.keys = plan.registries.keys
        positions = {node.node_id: position for position, node in enumerate(plan.nodes)}
        self.steps = tuple(_step(node, plan, ops, costs, positions) for node in plan.nodes)
        self.outputs = tuple(positions[name] for name in plan.outputs)
        self.has_policies = ON_ERROR in plan.capabilities
        self._schedules: dict[tuple[str, bool], Schedule] = {}

    def schedule(self, fusion: str, *, timed_nodes: bool = False) -> Schedule:
        """The units in that mode. With `timed_nodes` each node runs alone, so that one scope can end it."""
        found = self._schedules.get((fusion, timed_nodes))
        if found is None:
            if fusion not in FUSIONS:
                raise ConfigError(f"fusion must be {' or '.join(map(repr, FUSIONS))}, not {fusion!r}")
            units = self._units(fusion, fused=fusion != "off" and not timed_nodes)
            found = self._schedules[fusion, timed_nodes] = Schedule(self, units)
        return found

    def _units(self, fusion: str, *, fused: bool) -> list[Unit]:
        consumers = Counter(position for step in self.steps for position in step.upstream)
        consumers.update(self.outputs)
        segments: dict[int, list[Step]] = {}  # by the position of their first step
        first: dict[int, int] = {}  # of the segment that a step is in
        for position in topological_order([step.upstream for step in self.steps]):
            step, start = self.steps[position], position
            if fused and len(step.upstream) == 1 and step.op.run_async is None:
                before = self.steps[step.upstream[0]]
                if consumers[before.position] == 1 and before.op.run_async is None:
                    start = first[before.position]
            first[position] = start
            segments.setdefault(start, []).append(step)
        return [Unit(index, steps, fusion=fusion) for index, steps in enumerate(segments.values())]


def _step(node: PlanNode, plan: Plan, ops: OpRegistry, costs: Costs, positions: Mapping[str, int]) -> Step:
    op = ops.get(node.op)
    if op is None:
        raise ConfigError(f"node {node.node_id!r}: the engine has no op {node.op!r}")
    expression = plan.expressions.get(node.params.get("expr_id", ""))
    predicate = plan.predicates.get(node.params.get("pred_id", ""))
    size = sum(tree.size for tree in (expression, predicate) if tree is not None)
    return Step(
        node_id=node.node_id,
        op=op,
        params=node.params,
        position=positions[node.node_id],
        inputs=tuple(positions[name] for name in node.inputs),
        refs=tuple((param, positions[name]) for param, name in op.referenced_nodes(node.params).items()),
        upstream=tuple(positions[name] for name in node.upstream),
        policy=node.policy,
        cost=costs.cost(op, size=size, patterns=0 if predicate is None else predicate.patterns),
        writes=op.written_keys(node.params),
        is_core=any(op is core for core in CORE_OPS),
    )


@attrs.frozen(kw_only=True)
class SegmentPlan:
    """Nodes that run as one; from `inline_below` rows on, `auto` uses a thread."""

    nodes: tuple[str, ...]
    ops: tuple[str, ...]
    where: str  # loop, inline, thread or auto
    inline_below: int | None
    writes: tuple[str, ...]
    endpoints: tuple[str, ...]
    needs: tuple[str, ...]


@attrs.frozen(kw_only=True)
class Explanation:
    """How a plan runs in one fusion mode."""

    plan: str
    fusion: str
    segments: tuple[SegmentPlan, ...]
    costs: Costs


def written_columns(plan: Plan, ops: OpRegistry) -> dict[str, frozenset[int]]:
    """The keys that each node writes, by its id; a join writes those that its right side may have."""
    positions = {node.node_id: position for position, node in enumerate(plan.nodes)}
    upstream = [[positions[name] for name in node.upstream] for node in plan.nodes]
    written: dict[str, frozenset[int]] = {}
    kept: dict[str, frozenset[int]] = {}  # what the rows of a node may have
    for position in topological_order(upstream):
        node = plan.nodes[position]
        op = ops.get(node.op)
        own: frozenset[int] = frozenset() if op is None else op.written_keys(node.params)
        if node.op == _JOIN:
            own |= kept[node.params["rhs"]]
        written[node.node_id] = own
        is_new = op is not None and op.gives is Rows.NEW
        kept[node.node_id] = own if is_new else own.union(*(kept[name] for name in node.upstream))
    return written


def explain(compiled: CompiledPlan, fusion: str, costs: Costs) -> Explanation:
    """Describe how a plan runs."""
    written = written_columns(compiled.plan, compiled.ops)
    segments = tuple(_segment(unit, compiled, written, costs.hop) for unit in compiled.schedule(fusion).units)
    return Explanation(plan=compiled.plan.name, fusion=fusion, segments=segments, costs=costs)


def _segment(unit: Unit, compiled: CompiledPlan, written: Mapping[str, frozenset[int]], hop: float) -> SegmentPlan:
    where, below = "auto", None
    if unit.is_async or unit.always_inline or unit.cost.fixed >= hop:
        where = "loop" if unit.is_async else "inline" if unit.always_inline else "thread"
    elif unit.cost.per_row:
        below = math.ceil((hop - unit.cost.fixed) / unit.cost.per_row)
    return SegmentPlan(
        nodes=tuple(step.node_id for step in unit.steps),
        ops=tuple(step.op.name for step in unit.steps),
        where=where,
        inline_below=below,
        writes=tuple(compiled.keys[key].name for step in unit.steps for key in sorted(written[step.node_id])),
        endpoints=tuple(step.params["endpoint"] for step in unit.steps if "endpoint" in step.params),
        needs=tuple(compiled.steps[position].node_id for position in sorted(unit.outside)),
    )
