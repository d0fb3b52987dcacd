"""The check of a whole plan: every problem is found before anything runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .capabilities import check_capabilities, check_extensions
from .model import Plan, PlanNode
from .params import ParamChecker
from .problems import Code, Problems, shown, under
from .trees import TreeChecker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .model import Registries
    from .opspec import OpRegistry, OpSpec

SCHEMA_VERSION = 1

_NAME = re.compile(r"[A-Za-z0-9_]+")


def validate_plan(document: object, registries: Registries, ops: OpRegistry, problems: Problems) -> Plan | None:
    """The plan that a document describes; what is wrong with it is added to `problems`, and then there is no plan."""
    fields = problems.fields(
        document,
        "$",
        required=["schema_version", "plan_name", "nodes", "outputs"],
        optional=["expr_table", "pred_table", "built_by", "capabilities_required", "extensions"],
    )
    if fields is None:
        return None
    _check_version(fields, problems)
    name = _name(fields, "plan_name", "$", problems)
    if "built_by" in fields:
        problems.entries(fields["built_by"], "$.built_by")
    capabilities = check_capabilities(fields.get("capabilities_required", []), "$.capabilities_required", problems)
    extensions = check_extensions(fields.get("extensions", {}), "$.extensions", capabilities, problems, of_node=False)

    trees = TreeChecker(registries, problems)
    expressions = {
        name: trees.expression(value, under("$.expr_table", name))
        for name, value in (problems.entries(fields.get("expr_table", {}), "$.expr_table") or {}).items()
    }
    predicates = {
        name: trees.predicate(value, under("$.pred_table", name))
        for name, value in (problems.entries(fields.get("pred_table", {}), "$.pred_table") or {}).items()
    }

    given = (problems.items(fields["nodes"], "$.nodes") or []) if "nodes" in fields else []
    params = ParamChecker(
        registries=registries,
        problems=problems,
        trees=trees,
        expressions=expressions,
        predicates=predicates,
        node_ids=_node_ids(given),
    )
    nodes = [check_node(value, f"$.nodes[{index}]", ops, params, capabilities) for index, value in enumerate(given)]
    _check_graph(nodes, problems)
    outputs = _outputs(fields["outputs"], params) if "outputs" in fields else ()
    if problems.found or name is None:
        return None
    return Plan(
        name=name,
        nodes=tuple(node for node in nodes if node is not None),
        outputs=outputs,
        expressions={name: checked.tree for name, checked in expressions.items() if checked is not None},
        predicates={name: tree for name, tree in predicates.items() if tree is not None},
        capabilities=capabilities,
        extensions=extensions,
        registries=registries,
    )


def _check_version(fields: Mapping[str, Any], problems: Problems) -> None:
    if "schema_version" not in fields:
        return
    version = problems.integer(fields["schema_version"], "$.schema_version")
    if version is not None and version != SCHEMA_VERSION:
        message = f"expected {SCHEMA_VERSION}, found {version}"
        problems.add(Code.UNSUPPORTED_SCHEMA_VERSION, "$.schema_version", message)


def _name(fields: Mapping[str, Any], field: str, path: str, problems: Problems) -> str | None:
    if field not in fields:
        return None
    name = problems.text(fields[field], f"{path}.{field}")
    if name is not None and not _NAME.fullmatch(name):
        message = f"expected letters, digits and _ (at least one), found {shown(name)}"
        problems.add(Code.INVALID_VALUE, f"{path}.{field}", message)
        return None
    return name


def _node_ids(given: Sequence[object]) -> dict[str, int]:
    """Every id that references may name, with the index of the first node that has it."""
    node_ids: dict[str, int] = {}
    for index, value in enumerate(given):
        # Whatever else is wrong with a node, a reference to it is right.
        node_id = value.get("node_id") if isinstance(value, Mapping) else None
        if isinstance(node_id, str):
            node_ids.setdefault(node_id, index)
    return node_ids


def check_node(
    value: object, path: str, ops: OpRegistry, params: ParamChecker, capabilities: tuple[str, ...]
) -> PlanNode | None:
    """A node, None if it is not even an object; what could not be read of it is left empty, beside a problem said."""
    problems = params.problems
    fields = problems.fields(value, path, required=["node_id", "op", "inputs", "params"], optional=["extensions"])
    if fields is None:
        return None
    node_id = _name(fields, "node_id", path, problems)
    spec = _op(fields["op"], f"{path}.op", ops, params) if "op" in fields else None
    inputs = _inputs(fields["inputs"], f"{path}.inputs", spec, params) if "inputs" in fields else ()
    checked: Mapping[str, Any] = {}
    refs: tuple[str, ...] = ()
    if spec is not None and "params" in fields:
        checked, refs = params.check(fields["params"], f"{path}.params", spec)
    return PlanNode(
        node_id=node_id or "",
        op=spec.name if spec is not None else "",
        inputs=inputs,
        params=checked,
        upstream=tuple(dict.fromkeys((*inputs, *refs))),
        extensions=check_extensions(
            fields.get("extensions", {}), f"{path}.extensions", capabilities, problems, of_node=True
        ),
    )


def _op(value: object, path: str, ops: OpRegistry, params: ParamChecker) -> OpSpec | None:
    problems = params.problems
    name = problems.text(value, path)
    if name is None:
        return None
    spec = ops.get(name)
    if spec is None:
        known = [*ops.names(), *(alias for op in ops for alias in op.aliases)]
        problems.add(Code.UNKNOWN_OP, path, f"no op is named {shown(name)}{problems.hint(name, known)}")
        return None
    for key_id in sorted(spec.writes - set(params.registries.keys)):
        problems.add(
            Code.UNKNOWN_KEY, path, f"op {spec.name!r} writes the key {key_id}, which is not in the registries"
        )
    return spec


def _inputs(value: object, path: str, spec: OpSpec | None, params: ParamChecker) -> tuple[str, ...]:
    given = params.problems.items(value, path)
    if given is None:
        return ()
    if spec is not None:
        low, high = spec.inputs
        if not low <= len(given) <= high:
            wanted = str(low) if low == high else f"{low} to {high}"
            message = f"op {spec.name!r} takes {wanted} input{'' if wanted == '1' else 's'}, found {len(given)}"
            params.problems.add(Code.WRONG_INPUT_COUNT, path, message)
    found = [params.node(item, f"{path}[{index}]") for index, item in enumerate(given)]
    return tuple(each for each in found if each is not None)


def _outputs(value: object, params: ParamChecker) -> tuple[str, ...]:
    given = params.problems.items(value, "$.outputs")
    if given is not None and not given:
        params.problems.add(Code.INVALID_VALUE, "$.outputs", "expected at least one node id, found an empty array")
    found = [params.node(item, f"$.outputs[{index}]") for index, item in enumerate(given or [])]
    return tuple(each for each in found if each is not None)


def _check_graph(nodes: Sequence[PlanNode | None], problems: Problems) -> None:
    """Node ids are unique, and no node needs itself in the end."""
    first: dict[str, int] = {}
    upstream: dict[str, tuple[str, ...]] = {}
    for index, node in enumerate(nodes):
        if node is None or not node.node_id:
            continue
        if node.node_id in first:
            message = f"the node id {node.node_id!r} is that of $.nodes[{first[node.node_id]}] already"
            problems.add(Code.DUPLICATE_NODE_ID, f"$.nodes[{index}].node_id", message)
            continue
        first[node.node_id] = index
        upstream[node.node_id] = node.upstream
    for cycle in _cycles(upstream):
        spelled = " → ".join(repr(node_id) for node_id in cycle)
        problems.add(Code.CYCLE, f"$.nodes[{first[cycle[0]]}]", f"the nodes need each other in a circle: {spelled}")


def _cycles(upstream: Mapping[str, tuple[str, ...]]) -> list[list[str]]:
    """Cycles that have no node in common, each from a node back to it in the direction in which rows flow."""
    cycles: list[list[str]] = []
    told: set[str] = set()
    on_path: dict[str, int] = {}
    finished: set[str] = set()
    for root in upstream:
        if root in finished:
            continue
        # Iterative, so that a chain of thousands of nodes does not meet the recursion limit.
        path, steps = [root], [iter(upstream[root])]
        on_path[root] = 0
        while path:
            following = next(steps[-1], None)
            if following is None:
                steps.pop()
                last = path.pop()
                del on_path[last]
                finished.add(last)
            elif following in on_path:
                knot = path[on_path[following] :]
                if told.isdisjoint(knot):
                    told.update(knot)
                    # The path walks from a node to what it needs; rows flow the other way.
                    cycles.append([following, *reversed(knot)])
            elif following in upstream and following not in finished:
                on_path[following] = len(path)
                path.append(following)
                steps.append(iter(upstream[following]))
    return cycles
