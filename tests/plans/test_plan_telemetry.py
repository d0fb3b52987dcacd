from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from plan_helpers import FakeEndpoint, node, plan_of
from serving import call, document, taking, write

from seedbed.errors import NodeFailed
from seedbed.plans.endpoint import Endpoint
from seedbed.plans.engine import PlanEngine
from seedbed.plans.registries import default_registries
from seedbed.plans.serve import app
from seedbed.plans.serve.telemetry import reporter, request_reporter

if TYPE_CHECKING:
    from pathlib import Path

    from seedbed.plans.request import RequestEnd

FOLLOW = node("v", "core::viewer", endpoint="ep_0001"), node("f", "core::follow", "v", endpoint="ep_0001", fanout=5)
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans() -> InMemorySpanExporter:
    """Where spans are collected."""
    return InMemorySpanExporter()


@pytest.fixture
def provider(spans: InMemorySpanExporter) -> TracerProvider:
    """A provider as a program configures it."""
    made = TracerProvider()
    made.add_span_processor(SimpleSpanProcessor(spans))
    return made


def test_nothing_is_reported_unless_it_is_configured() -> None:
    """Without a provider of the program there is no reporter, so requests are not even traced."""
    assert request_reporter() is None


async def test_a_request_has_spans_for_its_nodes_and_reads(
    tmp_path: Path, spans: InMemorySpanExporter, provider: TracerProvider
) -> None:
    """Over HTTP: one trace, continued from the caller's, in which spans of nodes and reads are below the request."""
    write(tmp_path / "follows.json", document("follows", *FOLLOW))
    write(tmp_path / "seed.json", {"follow:1": [2, 3]})
    memory = Endpoint(id="ep_0001", name="r", kind="redis", host="memory", seed_file=str(tmp_path / "seed.json"))
    registries = attrs.evolve(default_registries(), endpoints={"ep_0001": memory})
    plans = tmp_path / "plans"
    plans.mkdir()
    (tmp_path / "follows.json").rename(plans / "follows.json")
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader]).get_meter("test")
    served = app(plans, registries=registries, on_request=reporter(provider.get_tracer("test"), meter))
    async with served.open():
        answer = await call(served, "POST", "/plans/follows", {"user_id": 1}, traceparent=TRACEPARENT)
    assert answer.status == 200
    *below, request = spans.get_finished_spans()
    assert [each.name for each in below] == [
        *("node v", "node f"),
        *("HGETALL ep_0001", "LRANGE ep_0001", "HGETALL ep_0001"),
    ]
    assert [each.attributes["db.operation.batch.size"] for each in below[2:] if each.attributes] == [1, 1, 2]
    assert request.name == "plan follows"
    assert request.parent is not None
    assert format(request.context.trace_id, "032x") == TRACEPARENT.split("-")[1]
    assert format(request.parent.span_id, "016x") == TRACEPARENT.split("-")[2]
    for each in below:
        assert each.parent == request.context
        assert request.start_time <= each.start_time <= each.end_time <= request.end_time + 1_000_000
    data = reader.get_metrics_data()
    assert data is not None
    (metric,) = data.resource_metrics[0].scope_metrics[0].metrics
    (point,) = metric.data.data_points
    assert (metric.name, point.attributes) == (
        "seedbed.plan.duration",
        {"seedbed.plan": "follows", "seedbed.code": "OK"},
    )


async def test_a_failed_request_has_the_spans_of_what_ran(
    spans: InMemorySpanExporter, provider: TracerProvider
) -> None:
    """Its span has the error; nodes that ended before have theirs; a request that did not start has only its own."""
    endpoint = FakeEndpoint({}, {})
    ends: list[RequestEnd] = []
    report = reporter(provider.get_tracer("test"), None)

    def both(end: RequestEnd) -> None:
        ends.append(end)
        report(end)

    failing: Any = node("z", "test::sleep", "v", duration_ms=0, fail_after_sleep=True)
    plan = plan_of(FOLLOW[0], failing)
    async with PlanEngine(endpoints=endpoint, on_request=both) as engine:
        with pytest.raises(NodeFailed):
            await engine.execute(plan, {"user_id": 1})
    *below, request = spans.get_finished_spans()
    assert [each.name for each in below] == ["node v", "HGETALL ep_0001"]
    assert request.status.status_code is StatusCode.ERROR
    assert ends[0].code == "NODE_FAILED"


async def test_telemetry_that_fails_changes_no_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Requests are answered, new versions are taken over after their warm-up requests, and one error is logged."""

    def fail(_end: RequestEnd) -> None:
        raise RuntimeError("the exporter is down")

    write(tmp_path / "simple.json", taking(3))
    write(tmp_path / "simple.warmup.json", [{"user_id": 1}])
    served = app(tmp_path, on_request=fail)
    async with served.open():
        for count in (3, 2):
            write(tmp_path / "simple.json", taking(count))
            await served.service.catalog.refresh(served.service.engine)
            found = await call(served, "POST", "/plans/simple", {"user_id": 1})
            assert (found.status, len(found.json["candidates"])) == (200, count)
        assert (await call(served, "POST", "/plans/simple", {"user_id": -1})).status == 400
    assert [record.exc_text is not None and "exporter" in record.exc_text for record in caplog.records] == [True]
