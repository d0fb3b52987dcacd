"""OpenTelemetry, where it is installed (the extra `otel`) and configured; otherwise nothing of it is imported.

Only its API is used. What collects spans and metrics is the program's choice: `opentelemetry-instrument seedbed …`, or
a provider that the program sets before it starts a build or an engine.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.context import Context
    from opentelemetry.metrics import Meter
    from opentelemetry.trace import Span, Tracer

    Attributes = Mapping[str, str | bool | int | float]


def configured_tracer(name: str) -> Tracer | None:
    """A tracer whose spans are collected; None if OpenTelemetry is not installed or has no provider."""
    try:
        from opentelemetry import trace  # noqa: PLC0415  of an extra
    except ImportError:
        return None
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return trace.get_tracer(name)


def configured_meter(name: str) -> Meter | None:
    """As `configured_tracer`, for metrics."""
    try:
        from opentelemetry import metrics  # noqa: PLC0415  of an extra
        from opentelemetry.metrics import _internal  # noqa: PLC0415  the proxy has no public name
    except ImportError:
        return None
    if isinstance(metrics.get_meter_provider(), _internal._ProxyMeterProvider | metrics.NoOpMeterProvider):  # noqa: SLF001  as above
        return None
    return metrics.get_meter(name)


def parent_context(traceparent: str | None) -> Context | None:
    """The context of a W3C traceparent that another service sent."""
    if traceparent is None:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    return TraceContextTextMapPropagator().extract({"traceparent": traceparent})


def begin_span(
    tracer: Tracer, name: str, began_ns: int, *, parent: Context | Span | None = None, attributes: Attributes
) -> Span:
    """A span that began at an instant of the wall clock, below a span or in a context; end it by `end_span`."""
    from opentelemetry import trace  # noqa: PLC0415  of an extra

    context = trace.set_span_in_context(parent) if isinstance(parent, trace.Span) else parent
    return tracer.start_span(name, context=context, start_time=began_ns, attributes=dict(attributes))


def end_span(span: Span, ended_ns: int, *, error: BaseException | None = None) -> None:
    """End a span, with the status of an error if there is one."""
    if error is not None:
        from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415  of an extra

        span.set_status(Status(StatusCode.ERROR, str(error)))
    span.end(end_time=ended_ns)


def wall_ns(seconds_ago: float = 0.0) -> int:
    """The instant so many seconds ago, as spans have it."""
    return time.time_ns() - round(seconds_ago * 1e9)
