"""`seedbed plan explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import attrs
from cyclopts import Parameter

from .options import Machine  # noqa: TC001  cyclopts reads the annotations
from .plan_options import PlanSource, RequestLimits, RequestText

if TYPE_CHECKING:
    from ..plans.engine import Explanation, PlanEngine, SegmentPlan
    from ..plans.model import Plan
    from ..plans.response import Response
    from .plan_files import LoadedPlan


def explain_plan(
    plan: str,
    /,
    *,
    request: RequestText | None = None,
    mermaid: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    source: PlanSource | None = None,
    limits: RequestLimits | None = None,
    machine: Machine | None = None,
) -> int:
    """Show what runs where: nodes, segments, endpoints, the keys that are written, and what was measured for it.

    Parameters
    ----------
    plan
        A JSON file, or FILE.py:FUNCTION with --allow-code.
    request
        Also run this request and show what its answer waited for; - reads it from standard input.
    mermaid
        Write the graph as mermaid text, with a box around each segment, and nothing else.

    """
    import sys

    from . import output
    from .plan_files import load_plan, run_engine

    limits = limits or RequestLimits()
    loaded = load_plan(plan, source or PlanSource())
    given = None if request is None else loaded.request(request)

    async def explain(engine: PlanEngine) -> tuple[Explanation, Response | None]:
        explained = engine.explain(loaded.plan)
        if given is None:
            return explained, None
        response = await engine.execute(
            loaded.plan,
            given,
            deadline=limits.deadline,
            node_timeout=limits.node_timeout,
            trace=True,
            partial=limits.partial,
        )
        return explained, response

    explained, response = run_engine(loaded.engine(limits), explain)
    trace = None if response is None else response.trace
    if machine is not None and machine.json:
        output.print_json({**_data(loaded, explained), **({} if trace is None else {"trace": attrs.asdict(trace)})})
    elif mermaid:
        sys.stdout.write(_mermaid(loaded.plan, explained))
    else:
        _tell(loaded, explained)
        if trace is not None:
            from .plan_run import tell_trace

            tell_trace(trace)
    return 0


def _data(loaded: LoadedPlan, explained: Explanation) -> dict[str, Any]:
    plan = loaded.plan
    return {
        "plan": plan.name,
        "fusion": explained.fusion,
        "nodes": _nodes(loaded, explained),
        "outputs": plan.outputs,
        "segments": [attrs.asdict(segment) for segment in explained.segments],
        "endpoints": [_endpoint(plan, name) for name in _endpoints(explained)],
        "calibration": {
            "hop_us": explained.calibration.hop * 1e6,
            "ops": {
                name: {"fixed_us": cost.fixed * 1e6, "per_row_us": cost.per_row * 1e6}
                for name, cost in explained.calibration.ops.items()
            },
            "doubts": [
                {"what": doubt.what, "found_us": doubt.found * 1e6, "taken_us": doubt.taken * 1e6}
                for doubt in explained.calibration.doubts
            ],
        },
    }


def _nodes(loaded: LoadedPlan, explained: Explanation) -> list[dict[str, Any]]:
    homes = {node: number for number, segment in enumerate(explained.segments) for node in segment.nodes}
    keys = loaded.plan.registries.keys
    found = []
    for node in loaded.plan.nodes:
        op = loaded.ops.get(node.op)
        writes = sorted(op.written_keys(node.params)) if op is not None else []
        found.append(
            {
                "node": node.node_id,
                "op": node.op,
                "needs": list(node.upstream),
                "segment": homes[node.node_id],
                "runs": _where(explained.segments[homes[node.node_id]]),
                "endpoint": node.params.get("endpoint"),
                "writes": [keys[key].name if key in keys else str(key) for key in writes],
                "label": node.params.get("trace"),
            }
        )
    return found


def _where(segment: SegmentPlan) -> str:
    if segment.where != "auto":
        return segment.where
    return "inline" if segment.inline_below is None else f"inline below {segment.inline_below:,} rows, else thread"


def _endpoints(explained: Explanation) -> list[str]:
    return sorted({name for segment in explained.segments for name in segment.endpoints})


def _endpoint(plan: Plan, name: str) -> dict[str, Any]:
    endpoint = plan.registries.endpoints[name]
    place = endpoint.host if endpoint.host == "memory" else f"{endpoint.host}:{endpoint.port}"
    head = {"id": name, "name": endpoint.name, "kind": endpoint.kind, "at": place}
    return {**head, **attrs.asdict(endpoint.policy)}


def _tell(loaded: LoadedPlan, explained: Explanation) -> None:
    from . import output

    found = _data(loaded, explained)
    heads = ("node", "op", "needs", "segment", "runs", "endpoint", "writes")
    rows = [
        (
            *(each["node"], each["op"], ", ".join(each["needs"]), each["segment"]),
            *(each["runs"], each["endpoint"] or "", ", ".join(each["writes"])),
        )
        for each in found["nodes"]
    ]
    output.print_table(heads, rows, title=f"{found['plan']}, fusion {found['fusion']}")
    print = output.console().print  # noqa: A001
    print(f"outputs: {', '.join(found['outputs'])}", markup=False, soft_wrap=True)
    if found["endpoints"]:
        output.print_table(
            [head.replace("_", " ") for head in found["endpoints"][0]],
            [list(each.values()) for each in found["endpoints"]],
            title="endpoints",
        )
    measured = found["calibration"]
    output.print_table(
        ("op", "a call, µs", "a row, µs"),
        [(name, cost["fixed_us"], cost["per_row_us"]) for name, cost in measured["ops"].items()],
        title="calibration",
    )
    print(f"a hop to a thread and back: {measured['hop_us']:,.0f} µs")
    for doubt in measured["doubts"]:
        print(
            f"not believed: {doubt['what']} in {doubt['found_us']:,.4g} µs; reckoned with {doubt['taken_us']:,.4g} µs",
            markup=False,
            soft_wrap=True,
        )


def _mermaid(plan: Plan, explained: Explanation) -> str:
    """Nodes by their ids, so that a plan's names cannot break the text: they are letters, digits and _."""
    lines = ["graph TD"]
    ops = {node.node_id: node.op for node in plan.nodes}
    for number, segment in enumerate(explained.segments):
        boxed = len(segment.nodes) > 1
        if boxed:
            lines.append(f'    subgraph segment_{number} ["segment {number}: {_where(segment)}"]')
        for node in segment.nodes:
            shape = f'(["{node}<br/>{ops[node]}"])' if segment.where == "loop" else f'["{node}<br/>{ops[node]}"]'
            lines.append(f"    {'    ' if boxed else ''}node_{node}{shape}")
        if boxed:
            lines.append("    end")
    lines.extend(f"    node_{needed} --> node_{node.node_id}" for node in plan.nodes for needed in node.upstream)
    return "\n".join(lines) + "\n"
