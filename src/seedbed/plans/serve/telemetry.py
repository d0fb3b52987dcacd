"""Spans and metrics of requests for OpenTelemetry: a span for a request, one for each node and each batch of reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...observe.otel import begin_span, configured_meter, configured_tracer, end_span, parent_context, wall_ns

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.metrics import Meter
    from opentelemetry.trace import Tracer

    from ..request import RequestEnd

_SCOPE = "seedbed.plans"


def request_reporter() -> Callable[[RequestEnd], None] | None:
    """What reports requests that have ended, for `PlanEngine.on_request`; None if nothing collects it."""
    tracer, meter = configured_tracer(_SCOPE), configured_meter(_SCOPE)
    return None if tracer is None and meter is None else reporter(tracer, meter)


def reporter(tracer: Tracer | None, meter: Meter | None) -> Callable[[RequestEnd], None]:
    """Report requests to a tracer, a meter or both."""
    duration = None
    if meter is not None:
        duration = meter.create_histogram("seedbed.plan.duration", "s", "Seconds from arrival to answer")

    def report(end: RequestEnd) -> None:
        if duration is not None:
            duration.record(end.seconds, {"seedbed.plan": end.plan, "seedbed.code": end.code})
        if tracer is not None:
            _trace(tracer, end)

    return report


def _trace(tracer: Tracer, end: RequestEnd) -> None:
    began = wall_ns(end.seconds)
    attributes = {"seedbed.plan": end.plan, "seedbed.code": end.code}
    if end.request_id is not None:
        attributes["seedbed.request_id"] = end.request_id
    request = begin_span(tracer, f"plan {end.plan}", began, parent=parent_context(end.parent), attributes=attributes)

    def instant(milliseconds: float) -> int:
        return began + round(milliseconds * 1e6)

    if end.trace is not None:
        for node in end.trace.nodes:
            span = begin_span(
                tracer,
                f"node {node.node}",
                instant(node.start_ms),
                parent=request,
                attributes={
                    "seedbed.op": node.op,
                    "seedbed.where": node.where,
                    "seedbed.rows_in": node.rows_in,
                    "seedbed.rows_out": node.rows_out,
                },
            )
            end_span(span, instant(node.end_ms))
        for read in end.trace.reads:
            span = begin_span(
                tracer,
                f"{read.command} {read.endpoint}",
                instant(read.start_ms),
                parent=request,
                attributes={
                    "db.system.name": "redis",
                    "db.operation.name": read.command,
                    "db.operation.batch.size": read.keys,
                },
            )
            end_span(span, instant(read.end_ms))
    end_span(request, instant(end.seconds * 1000), error=end.error)
