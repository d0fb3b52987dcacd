"""Plans as JSON documents: parsed and validated as a whole, so that every problem is found before anything runs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from ..graph import find_cycles
from .documents import Code, Problems, read_document, shown
from .expressions import TreeReader
from .ops import default_ops
from .opspec import Scope
from .registries import default_registries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .documents import Source, Value
    from .expressions import Expression, Predicate
    from .ops import OpRegistry
    from .opspec import OpSpec
    from .registries import Registries

SCHEMA_VERSION: Final = 1
ON_ERROR: Final = "seedbed.on_error.v1"
CAPABILITIES: Final = (ON_ERROR,)

_NAME = re.compile(r"[A-Za-z0-9_]+")


@attrs.frozen(kw_only=True)
class PlanNode:
    """One op of a plan, validated: `op` is the full name, `params` are checked and have their defaults.

    `upstream` are the nodes it needs: its inputs, then the nodes that its params refer to (concat's rhs).
    """

    node_id: str
    op: str
    inputs: tuple[str, ...]
    params: Mapping[str, Any]
    upstream: tuple[str, ...]
    policy: str = "fail"  # of `seedbed.on_error.v1`


@attrs.frozen(kw_only=True)
class Plan:
    """A plan that passed validation: it can only fail for reasons of data, endpoints and time."""

    name: str
    nodes: tuple[PlanNode, ...]
    outputs: tuple[str, ...]
    expressions: Mapping[str, Expression]
    predicates: Mapping[str, Predicate]
    capabilities: tuple[str, ...] = ()
    registries: Registries


def parse_plan(data: Source, registries: Registries | None = None, ops: OpRegistry | None = None) -> Plan:
    """Read a plan from a mapping, JSON text, its bytes or the path of a file.

    Raises one `InvalidPlan` with everything that is wrong.
    """
    problems = Problems()
    document = read_document(data, problems)
    registries = default_registries() if registries is None else registries
    ops = default_ops() if ops is None else ops
    fields = document.fields(
        *("schema_version", "plan_name", "nodes", "outputs"),
        optional=["expr_table", "pred_table", "built_by", "capabilities_required", "extensions"],
    )
    version = fields["schema_version"].integer()
    if version is not None and version != SCHEMA_VERSION:
        message = f"expected {SCHEMA_VERSION}, found {version}"
        fields["schema_version"].problem(Code.UNSUPPORTED_SCHEMA_VERSION, message)
    name = fields["plan_name"].text(like=_NAME)
    fields["built_by"].entries()
    capabilities = _capabilities(fields["capabilities_required"])
    read_policy(fields["extensions"], capabilities, of_node=False)
    trees = TreeReader(registries)
    expressions = {name: trees.expression(value) for name, value in fields["expr_table"].entries().items()}
    predicates = {name: trees.predicate(value) for name, value in fields["pred_table"].entries().items()}
    given = fields["nodes"].items() or []
    # A reference to a node is valid whatever else is wrong with that node.
    ids = (value.raw.get("node_id") for value in given if isinstance(value.raw, Mapping))
    scope = Scope(
        registries=registries,
        expressions=expressions,
        predicates=predicates,
        node_ids={node_id: None for node_id in ids if isinstance(node_id, str)},
    )
    nodes = [read_node(value, ops, scope, capabilities) for value in given]
    _check_graph(nodes, given)
    outputs = fields["outputs"].items()
    if outputs is not None and not outputs:
        fields["outputs"].problem(Code.INVALID_VALUE, "expected at least one node id, found an empty array")
    output_ids = tuple(node_id for item in outputs or [] if (node_id := scope.node(item)) is not None)
    problems.raise_invalid_plan()
    return Plan(
        name=name or "",
        nodes=tuple(nodes),
        outputs=output_ids,
        expressions={name: found for name, found in expressions.items() if found is not None},
        predicates={name: found for name, found in predicates.items() if found is not None},
        capabilities=capabilities,
        registries=registries,
    )


def read_node(value: Value, ops: OpRegistry, scope: Scope, capabilities: Sequence[str]) -> PlanNode:
    """A node; what could not be read of it is empty, and has a problem."""
    fields = value.fields("node_id", "op", "inputs", "params", optional=["extensions"])
    node_id = fields["node_id"].text(like=_NAME)
    spec = _op(fields["op"], ops, scope)
    inputs = _inputs(fields["inputs"], spec, scope)
    params = spec.read_params(fields["params"], scope) if spec is not None and fields["params"] else {}
    refs = {} if spec is None else spec.referenced_nodes(params)
    return PlanNode(
        node_id=node_id or "",
        op=spec.name if spec is not None else "",
        inputs=inputs,
        params=params,
        upstream=tuple(dict.fromkeys((*inputs, *refs.values()))),
        policy=read_policy(fields["extensions"], capabilities, of_node=True),
    )


def _op(value: Value, ops: OpRegistry, scope: Scope) -> OpSpec | None:
    name = value.reference(ops.names, Code.UNKNOWN_OP, "no op is named")
    spec = None if name is None else ops.get(name)
    if spec is not None:
        for key_id in sorted(spec.writes - set(scope.registries.keys)):
            message = f"op {spec.name!r} writes the key {key_id}, which is not in the registries"
            value.problem(Code.UNKNOWN_KEY, message)
    return spec


def _inputs(value: Value, spec: OpSpec | None, scope: Scope) -> tuple[str, ...]:
    given = value.items()
    if given is not None and spec is not None and not spec.inputs[0] <= len(given) <= spec.inputs[1]:
        low, high = spec.inputs
        wanted = str(low) if low == high else f"{low} to {high}"
        message = f"op {spec.name!r} takes {wanted} input{'' if wanted == '1' else 's'}, found {len(given)}"
        value.problem(Code.WRONG_INPUT_COUNT, message)
    return tuple(node_id for item in given or [] if (node_id := scope.node(item)) is not None)


def _check_graph(nodes: Sequence[PlanNode], given: Sequence[Value]) -> None:
    """Node ids are unique, and no node depends on itself."""
    first: dict[str, Value] = {}
    upstream: dict[str, tuple[str, ...]] = {}
    for node, value in zip(nodes, given, strict=True):
        if node.node_id in first:
            message = f"duplicate node id {node.node_id!r}, which {first[node.node_id].path} has"
            value.problem(Code.DUPLICATE_NODE_ID, message, field="node_id")
        elif node.node_id:
            first[node.node_id] = value
            upstream[node.node_id] = node.upstream
    for cycle in find_cycles(upstream):
        spelled = " → ".join(repr(node_id) for node_id in cycle)
        first[cycle[0]].problem(Code.CYCLE, f"circular dependency between nodes: {spelled}")


def _capabilities(value: Value) -> tuple[str, ...]:
    """The capabilities that a plan requires, each of which must be supported."""
    items = value.items() or []
    for item in items:
        item.reference(CAPABILITIES, Code.UNSUPPORTED_CAPABILITY, "the engine does not support")
    names = [item.raw for item in items if isinstance(item.raw, str)]
    if names != sorted(set(names)):
        value.problem(Code.CAPABILITIES_NOT_SORTED, "expected names that are sorted and unique")
    return tuple(names)


def read_policy(value: Value, capabilities: Sequence[str], *, of_node: bool) -> str:
    """Check the extensions of a plan or of a node; returns the node's policy for its failure."""
    policy: str | None = None
    for name, payload in value.entries().items():
        if name not in capabilities:
            payload.problem(Code.CAPABILITY_NOT_REQUIRED, f"expected {shown(name)} to be in capabilities_required")
        # The payload of an unsupported capability cannot be checked; that it is unsupported is reported already.
        if name == ON_ERROR and not of_node:
            payload.problem(Code.INVALID_VALUE, f"{ON_ERROR} belongs to a node, not to the plan")
        elif name == ON_ERROR:
            policy = payload.fields("policy")["policy"].choice(("fail", "empty", "default"))
    return policy or "fail"


def plan_text(document: Mapping[str, Any]) -> str:
    """A plan's document as JSON text, a line for each node and each tree: the same text for the same plan."""
    lines = []
    for name, value in document.items():
        text = _compact(value)
        if value and isinstance(value, list) and name == "nodes":
            text = "[\n" + ",\n".join(f"  {_compact(node)}" for node in value) + "]"
        elif value and name in ("expr_table", "pred_table"):
            text = "{\n" + ",\n".join(f"  {json.dumps(key)}: {_compact(tree)}" for key, tree in value.items()) + "}"
        lines.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
