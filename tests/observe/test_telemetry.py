"""Builds as OpenTelemetry spans and metrics, received by a collector over OTLP."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import attrs
import opentelemetry.metrics
import opentelemetry.trace
import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

import seedbed as sb
from seedbed.testing import serve_openai_sync

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@attrs.define(eq=False)
class Received:
    """What the collector was sent."""

    spans: list[Any] = attrs.field(factory=list)
    metrics: dict[str, Any] = attrs.field(factory=dict)

    def named(self, name: str) -> list[Any]:
        """The spans of a name."""
        return [span for span in self.spans if span.name == name]


@contextmanager
def collector() -> Iterator[tuple[str, Received]]:
    """A server on loopback that decodes what OTLP exporters send."""
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Nothing."""

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/v1/traces":
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    received.spans += [span for scope in resource.scope_spans for span in scope.spans]
            else:
                for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                    received.metrics |= {each.name: each for scope in resource.scope_metrics for each in scope.metrics}
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", received
    finally:
        server.shutdown()
        server.server_close()


def attributes(holder: Any) -> dict[str, Any]:
    """Attributes as a dict."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in holder.attributes}


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Received]]:
    """A function that sends what was recorded, and what the collector has received."""
    with collector() as (url, found):
        traces = TracerProvider(shutdown_on_exit=False)
        traces.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{url}/v1/traces")))
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{url}/v1/metrics"), export_interval_millis=1e9)
        metrics = MeterProvider([reader], shutdown_on_exit=False)
        # The application's own SDK; set for one test, where an application sets it for the process.
        monkeypatch.setattr(opentelemetry.trace, "get_tracer", traces.get_tracer)
        monkeypatch.setattr(opentelemetry.metrics, "get_meter", metrics.get_meter)
        yield metrics.force_flush, found
        traces.shutdown()
        metrics.shutdown()


def recipe(url: str, prompt: str = "Ask about {{ n }}") -> sb.Recipe:
    """One call of a model for each row."""
    model = sb.OpenAICompatible(base_url=url, model="small", input_price=1_000_000)
    return sb.Recipe(
        columns=[sb.UUID("n"), sb.LLMText("question", model="m", prompt=prompt)],
        models={"m": model},
    )


def test_a_build_and_its_calls_are_spans(received: tuple[Any, Received], tmp_path: Path) -> None:
    """A span of the build holds one of each call, with the attributes of the conventions and no text."""
    _, found = received
    with serve_openai_sync(answer="What is it?") as server:
        sb.build(recipe(server.url), rows=5, out=tmp_path / "data", readers=[sb.Telemetry(sample=1)])
        address = server.url.removeprefix("http://").removesuffix("/v1")
    (build,) = found.named("seedbed.build")
    assert attributes(build)["seedbed.rows.written"] == 5
    calls = found.named("chat small")
    assert len(calls) == 5
    assert {call.parent_span_id for call in calls} == {build.span_id}
    shown = attributes(calls[0])
    assert shown["gen_ai.operation.name"] == "chat"
    assert shown["gen_ai.provider.name"] == "openai"
    assert shown["server.address"] == address
    assert shown["gen_ai.usage.input_tokens"] > 0
    assert not [name for name in shown if name.endswith("messages")]
    assert all(build.start_time_unix_nano <= call.end_time_unix_nano <= build.end_time_unix_nano for call in calls)


def test_texts_are_sent_on_request_only(received: tuple[Any, Received], tmp_path: Path) -> None:
    """With `prompts` a span has the messages and the answer, in the form of the conventions."""
    _, found = received
    with serve_openai_sync(answer="What is it?") as server:
        telemetry = sb.Telemetry(sample=1, prompts=True)
        sb.build(recipe(server.url, "Ask about rain"), rows=1, out=tmp_path / "data", readers=[telemetry])
    shown = attributes(found.named("chat small")[0])
    assert json.loads(shown["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "Ask about rain"}]}
    ]
    assert json.loads(shown["gen_ai.output.messages"])[0]["parts"][0]["content"] == "What is it?"


def test_metrics_count_every_call_whatever_has_a_span(received: tuple[Any, Received], tmp_path: Path) -> None:
    """Duration and tokens of all calls are in the histograms of the conventions, also of those that failed."""
    flush, found = received
    with serve_openai_sync(answer="What is it?", error_share=0.4, seed=1, max_failures=1) as server:
        dataset = sb.build(recipe(server.url), rows=20, out=tmp_path / "data", readers=[sb.Telemetry(sample=0)])
    flush()
    assert found.named("chat small") == []
    points = found.metrics["gen_ai.client.operation.duration"].histogram.data_points
    counts = {attributes(point).get("error.type"): point.count for point in points}
    assert counts[None] == 20
    assert counts["Retryable"] > 0
    tokens = {
        attributes(point)["gen_ai.token.type"]: point.sum
        for point in found.metrics["gen_ai.client.token.usage"].histogram.data_points
    }
    usage = dataset.report.model_usage["m"]
    assert tokens == {"input": usage.input_tokens, "output": usage.output_tokens}
    points = found.metrics["seedbed.rows"].sum.data_points
    rows = {attributes(point)["seedbed.outcome"]: point.as_int for point in points}
    assert rows == {"written": 20, "dropped": 0}


def test_a_build_that_fails_ends_its_span_with_the_error(received: tuple[Any, Received], tmp_path: Path) -> None:
    """The span of a build that stopped early says why."""
    _, found = received
    with serve_openai_sync(answer="What is it?") as server, pytest.raises(sb.BudgetExceeded):
        config = sb.RunConfig(max_cost=0)
        sb.build(recipe(server.url), rows=5, out=tmp_path / "data", readers=[sb.Telemetry()], config=config)
    (build,) = found.named("seedbed.build")
    assert build.status.code == 2
    assert "max_cost" in build.status.message


@pytest.mark.parametrize("sample", [-0.1, 1.5])
def test_a_share_is_from_0_to_1(sample: float) -> None:
    """Anything else is an error."""
    with pytest.raises(sb.ConfigError, match="sample must be a number from 0 to 1"):
        sb.Telemetry(sample=sample)
