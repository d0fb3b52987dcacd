"""`seedbed plan run`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from .options import Machine  # noqa: TC001  cyclopts reads the annotations
from .plan_options import PlanSource, RequestLimits, RequestText

if TYPE_CHECKING:
    from ..plans.engine import PlanEngine
    from ..plans.response import Response, Trace


def run_plan(
    plan: str,
    /,
    *,
    request: RequestText,
    trace: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    source: PlanSource | None = None,
    limits: RequestLimits | None = None,
    machine: Machine | None = None,
) -> int:
    """Answer one request and show its candidates.

    Parameters
    ----------
    plan
        A JSON file, or FILE.py:FUNCTION with --allow-code.
    request
        The request as JSON, such as {"user_id": 1}; - reads it from standard input.
    trace
        Show when and where each node ran, and the nodes that the answer waited for.

    """
    from . import output
    from .plan_files import load_plan, run_engine

    limits = limits or RequestLimits()
    loaded = load_plan(plan, source or PlanSource())
    given = loaded.request(request)

    async def answer(engine: PlanEngine) -> Response:
        return await engine.execute(
            loaded.plan,
            given,
            deadline=limits.deadline,
            node_timeout=limits.node_timeout,
            trace=trace,
            partial=limits.partial,
        )

    response = run_engine(loaded.engine(limits), answer)
    if machine is not None and machine.json:
        output.print_json(response.to_dict())
    else:
        _tell(response)
    return 0


def _tell(response: Response) -> None:
    from . import output

    candidates = response.candidates
    out, err = output.console(), output.console(error=True)
    if candidates:
        names = list(candidates[0]["fields"])
        rows: list[list[Any]] = [[str(each["id"]), *each["fields"].values()] for each in candidates]
        output.print_table(["id", *names], rows)
    if response.trace is not None:
        tell_trace(response.trace)
    if response.coverage is not None:
        for each in response.coverage.degraded:
            err.print(f"degraded: node {each.node!r} ({each.policy}): {each.code}: {each.message}", markup=False)
        if response.coverage.unfinished:
            err.print(f"unfinished: {', '.join(response.coverage.unfinished)}", markup=False, soft_wrap=True)
    count = "1 candidate" if len(candidates) == 1 else f"{len(candidates):,} candidates"
    out.print(f"request {response.request_id}: {count}", markup=False)


def tell_trace(trace: Trace) -> None:
    """Show what ran, when and where, and what the answer waited for."""
    from . import output

    heads = ("node", "op", "label", "where", "segment", "start ms", "end ms", "rows in", "rows out")
    rows = [
        (
            *(each.node, each.op, each.label or "", each.where, each.segment),
            *(each.start_ms, each.end_ms, each.rows_in, each.rows_out),
        )
        for each in trace.nodes
    ]
    output.print_table(heads, rows, title=f"{trace.total_ms:,.3f} ms, of which queued {trace.queued_ms:,.3f} ms")
    output.console().print(f"critical path: {' → '.join(trace.critical_path)}", markup=False, soft_wrap=True)
