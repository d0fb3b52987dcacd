from __future__ import annotations

import functools
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
from plan_helpers import node
from serving import call, document, taking, write
from trio.testing import wait_all_tasks_blocked

from seedbed.errors import ConfigError
from seedbed.observe.metrics import Metrics
from seedbed.plans.digest import plan_digest
from seedbed.plans.endpoint import Endpoint
from seedbed.plans.registries import Registries, default_registries
from seedbed.plans.serve import ServeConfig, app
from seedbed.plans.serve.metrics import BUCKETS, HELP, exposition_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from seedbed.plans.serve import PlanApp

VIEWER = node("v", "core::viewer", endpoint="ep_0001")
SOURCE = node("s", "test::fixed_source", row_count=4)


def registries(**fields: Any) -> Registries:
    """The embedded registries with another server."""
    endpoint = Endpoint(**{"id": "ep_0001", "name": "r", "kind": "redis", "host": "memory", **fields})
    return attrs.evolve(default_registries(), endpoints={"ep_0001": endpoint})


@asynccontextmanager
async def serving(folder: Path, *plans: dict[str, Any], **options: Any) -> AsyncIterator[PlanApp]:
    """The application with some plans, open."""
    for plan in plans or (taking(3),):
        write(folder / f"{plan['plan_name']}.json", plan)
    served = app(folder, **{"registries": registries(), **options})
    async with served.open():
        yield served


async def test_plans_answer_requests(tmp_path: Path) -> None:
    """By its name, and by /rank with the name in the body; the answer names the version, ids are echoed."""
    async with serving(tmp_path) as served:
        found = await call(served, "POST", "/plans/simple", {"user_id": 1, "request_id": "mine"})
        assert found.status == 200
        assert [each["id"] for each in found.json["candidates"]] == [1, 2, 3]
        assert found.json["plan"] == {"name": "simple", "digest": plan_digest(taking(3))}
        assert (found.json["request_id"], found.headers["x-request-id"]) == ("mine", "mine")
        assert "trace" not in found.json
        ranked = await call(
            served, "POST", "/rank?trace=true", {"plan_name": "simple", "user_id": "1"}, x_request_id="of-the-header"
        )
        assert ranked.json["candidates"] == found.json["candidates"]
        assert ranked.json["request_id"] == ranked.headers["x-request-id"] == "of-the-header"
        assert [each["node"] for each in ranked.json["trace"]["nodes"]] == ["s", "t"]
        by_digest = await call(served, "POST", f"/plans/simple@{plan_digest(taking(3))[:8]}", {"user_id": 1})
        assert by_digest.status == 200


async def test_codes_have_their_status(tmp_path: Path) -> None:
    """Each error of a request has its code, its status and the node; all problems of a request are listed."""
    plans = [
        taking(3),
        document("down", VIEWER),
        document("fails", SOURCE, node("f", "test::sleep", "s", duration_ms=0, fail_after_sleep=True)),
        document("slow", SOURCE, node("w", "test::sleep", "s", duration_ms=60_000)),
    ]
    down = registries(host="127.0.0.1", port=1)
    async with serving(tmp_path, *plans, registries=down) as served:
        invalid = await call(served, "POST", "/plans/simple", {"user_id": -1, "extra": 1})
        assert (invalid.status, invalid.code) == (400, "INVALID_REQUEST")
        assert [each["path"] for each in invalid.json["error"]["problems"]] == ["$.extra", "$.user_id"]
        unavailable = await call(served, "POST", "/plans/down", {"user_id": 1})
        assert (unavailable.status, unavailable.code) == (502, "ENDPOINT_UNAVAILABLE")
        assert unavailable.json["error"]["node"] == "v"
        failed = await call(served, "POST", "/plans/fails", {"user_id": 1})
        assert (failed.status, failed.code, failed.json["error"]["node"]) == (500, "NODE_FAILED", "f")
        late = await call(served, "POST", "/plans/slow", {"user_id": 1}, x_deadline_ms="1")
        assert (late.status, late.code) == (504, "DEADLINE_EXCEEDED")
        unknown = await call(served, "POST", "/plans/none", {"user_id": 1}, x_request_id="r")
        assert (unknown.status, unknown.code, unknown.json["request_id"]) == (404, "UNKNOWN_PLAN", "r")
        assert "there are: down, fails, simple, slow" in unknown.json["error"]["message"]


async def test_rejections_say_when_to_come_again(tmp_path: Path) -> None:
    """With all slots taken a request is answered 503 with Retry-After."""
    slow = document("slow", SOURCE, node("w", "test::sleep", "s", duration_ms=60_000))
    config = ServeConfig(max_concurrent_requests=1, max_queue=0, grace=0)
    async with serving(tmp_path, slow, config=config) as served, trio.open_nursery() as nursery:
        nursery.start_soon(call, served, "POST", "/plans/slow", {"user_id": 1})
        while not served.service.engine.statistics().running:
            await trio.lowlevel.checkpoint()
        rejected = await call(served, "POST", "/plans/slow", {"user_id": 1})
        assert (rejected.status, rejected.code, rejected.headers["retry-after"]) == (503, "OVERLOADED", "1")
        nursery.cancel_scope.cancel()


async def test_partial_answers_are_marked(tmp_path: Path) -> None:
    """On request, what is done by the deadline is the answer, marked in a header and by its coverage."""
    plan = document("slow", SOURCE, node("w", "test::sleep", "s", duration_ms=60_000), outputs=["s", "w"])
    async with serving(tmp_path, plan) as served:
        found = await call(served, "POST", "/plans/slow?partial", {"user_id": 1}, x_deadline_ms="20")
        assert (found.status, found.headers["x-partial"]) == (200, "true")
        assert found.json["coverage"]["unfinished"] == ["w"]
        assert [each["id"] for each in found.json["candidates"]] == [1, 2, 3, 4]
        metrics = (await call(served, "GET", "/metrics")).body.decode()
        assert 'seedbed_plan_partial_total{plan="slow"} 1' in metrics


@pytest.mark.parametrize("given", ["x", "-1", "nan", "inf", ""])
async def test_a_deadline_that_is_none_is_rejected(tmp_path: Path, given: str) -> None:
    """The header is milliseconds."""
    async with serving(tmp_path) as served:
        found = await call(served, "POST", "/plans/simple", {"user_id": 1}, x_deadline_ms=given)
        assert (found.status, found.code) == (400, "INVALID_REQUEST")
        assert "X-Deadline-Ms" in found.json["error"]["message"]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b"", "$"),
        (b"[]", "$"),
        (b'{"user_id": 1}', "$.plan_name"),
        (b'{"user_id": 1, "plan_name": 7}', "$.plan_name"),
        (b"\xff", "$"),
    ],
)
async def test_a_body_that_names_no_plan_is_rejected(tmp_path: Path, body: bytes, path: str) -> None:
    """/rank needs the name of a plan."""
    async with serving(tmp_path) as served:
        found = await call(served, "POST", "/rank", parts=[body])
        assert (found.status, found.code) == (400, "INVALID_REQUEST")
        assert found.json["error"]["problems"][0]["path"] == path


async def test_bodies_have_a_limit(tmp_path: Path) -> None:
    """A body above the limit is rejected, by what it says of its length and by what comes; parts are one body."""
    async with serving(tmp_path, config=ServeConfig(max_body=40)) as served:
        body = json.dumps({"user_id": 1}).encode()
        halves = [body[:5], body[5:], b""]
        assert (await call(served, "POST", "/plans/simple", parts=halves)).status == 200
        for options in ({"parts": [b" " * 30] * 2}, {"content_length": "41"}, {"content_length": "9" * 500}):
            found = await call(served, "POST", "/plans/simple", **options)  # type: ignore[arg-type]
            assert (found.status, found.code) == (413, "TOO_LARGE")
        # The caller goes away before its request is whole.
        assert (await call(served, "POST", "/plans/simple", parts=[])).status == 0


async def test_a_caller_that_goes_away_cancels_its_request(tmp_path: Path, autojump_clock: object) -> None:
    """Its slot is free at once, and it is counted as such; others are answered."""
    slow = document("slow", SOURCE, node("w", "test::sleep", "s", duration_ms=3_600_000))
    gone = trio.Event()
    async with serving(tmp_path, slow, taking(3)) as served, trio.open_nursery() as nursery:
        nursery.start_soon(functools.partial(call, served, "POST", "/plans/slow", {"user_id": 1}, gone=gone))
        await wait_all_tasks_blocked()
        assert served.service.engine.statistics().running == 1
        gone.set()
        await wait_all_tasks_blocked()
        assert served.service.engine.statistics().running == 0
        assert 'plan="slow",code="DISCONNECTED"} 1' in exposition_of(served.service.all_samples())
        assert (await call(served, "POST", "/plans/simple", {"user_id": 1})).status == 200


async def test_a_token_is_required(tmp_path: Path) -> None:
    """Without it, or with another one, everything but the probes is 401, and says so in the way of HTTP."""
    async with serving(tmp_path, token="s3cret") as served:
        for path in ("/plans", "/metrics", "/plans/simple", "/nothing"):
            for headers in ({}, {"authorization": "Bearer other"}, {"authorization": "Basic s3cret"}):
                found = await call(served, "GET", path, **headers)
                assert (found.status, found.code) == (401, "UNAUTHORIZED")
                assert found.headers["www-authenticate"] == "Bearer"
                assert "s3cret" not in found.body.decode()
        assert (await call(served, "GET", "/healthz")).status == 200
        assert (await call(served, "GET", "/readyz")).status == 200
        allowed = await call(served, "POST", "/plans/simple", {"user_id": 1}, authorization="bearer s3cret")
        assert allowed.status == 200


async def test_paths_and_methods(tmp_path: Path) -> None:
    """What there is, is listed, explained and probed; everything else is 404 or 405."""
    async with serving(tmp_path) as served:
        write(tmp_path / "bad.json", "{")
        await served.service.catalog.refresh(served.service.engine)
        listed = (await call(served, "GET", "/plans")).json
        assert [(each["name"], each["nodes"], each["outputs"]) for each in listed["plans"]] == [("simple", 2, ["t"])]
        assert [each["file"] for each in listed["not_served"]] == ["bad.json"]
        explained = (await call(served, "GET", "/plans/simple/explain")).json
        assert [each["nodes"] for each in explained["segments"]] == [["s"], ["t"]]
        ready = await call(served, "GET", "/readyz")
        assert (ready.status, ready.json["problems"]) == (200, ["bad.json"])
        served.service.draining = True
        assert (await call(served, "GET", "/readyz")).status == 503
        assert (await call(served, "POST", "/plans/simple", {"user_id": 1})).status == 200
        for method, path, status in (
            ("GET", "/plans/simple", 405),
            ("POST", "/plans", 405),
            ("DELETE", "/rank", 405),
            ("GET", "/plans/none/explain", 404),
            ("GET", "/plans/", 404),
            ("GET", "/plans/simple/other", 404),
            ("GET", "/../etc/passwd", 404),
        ):
            assert (await call(served, method, path)).status == status, (method, path)
        head = await call(served, "HEAD", "/plans")
        assert (head.status, head.body) == (200, b"")


async def test_a_directory_without_plans_is_not_ready(tmp_path: Path) -> None:
    """The probe fails until there is a plan."""
    served = app(tmp_path)
    assert (await call(served, "GET", "/readyz")).status == 503
    async with served.open():
        assert (await call(served, "GET", "/healthz")).status == 200
        assert (await call(served, "GET", "/readyz")).status == 503
        write(tmp_path / "simple.json", taking(1))
        await served.service.catalog.refresh(served.service.engine)
        assert (await call(served, "GET", "/readyz")).status == 200
    assert (await call(served, "GET", "/readyz")).status == 503
    with pytest.raises(ConfigError, match="is not a directory"):
        app(tmp_path / "none")


async def test_metrics_count_requests(tmp_path: Path) -> None:
    """Requests by plan and code, their durations, and the commands of endpoints, in the order that readers expect."""
    async with serving(tmp_path, taking(3), document("viewer", VIEWER)) as served:
        for path in ("/plans/simple", "/plans/simple", "/plans/viewer"):
            await call(served, "POST", path, {"user_id": 1})
        await call(served, "POST", "/plans/simple", {})
        lines = (await call(served, "GET", "/metrics")).body.decode().splitlines()
    assert 'seedbed_plan_requests_total{plan="simple",code="OK"} 2' in lines
    assert 'seedbed_plan_requests_total{plan="simple",code="INVALID_REQUEST"} 1' in lines
    assert 'seedbed_plan_request_seconds_count{plan="simple"} 3' in lines
    assert 'seedbed_endpoint_commands_total{endpoint="ep_0001"} 1' in lines
    bounds = [line for line in lines if line.startswith('seedbed_plan_request_seconds_bucket{plan="simple"')]
    assert bounds[0].startswith('seedbed_plan_request_seconds_bucket{plan="simple",le="0.001"}')
    assert bounds[-1].startswith('seedbed_plan_request_seconds_bucket{plan="simple",le="+Inf"}')


def test_a_histogram_counts_values_up_to_each_bound() -> None:
    """A value counts for its own bound and for all above."""
    metrics = Metrics(HELP, BUCKETS)
    for seconds in (0.001, 0.3, 99.0):
        metrics.observe("seedbed_plan_request_seconds", seconds)
    lines = exposition_of([metrics.samples, metrics.samples]).splitlines()
    assert 'seedbed_plan_request_seconds_bucket{le="0.001"} 2' in lines
    assert 'seedbed_plan_request_seconds_bucket{le="0.25"} 2' in lines
    assert 'seedbed_plan_request_seconds_bucket{le="0.5"} 4' in lines
    assert 'seedbed_plan_request_seconds_bucket{le="+Inf"} 6' in lines


async def test_the_lifespan_opens_and_closes_it(tmp_path: Path) -> None:
    """A server's lifespan opens the engine; what cannot be opened is a failed start with the reason."""
    write(tmp_path / "simple.json", taking(1))

    async def run(served: PlanApp, *messages: str) -> list[dict[str, Any]]:
        waiting, sent = [{"type": f"lifespan.{each}"} for each in messages], list[dict[str, Any]]()

        async def receive() -> dict[str, Any]:
            return waiting.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)
            if message["type"] == "lifespan.startup.complete":
                assert (await call(served, "POST", "/plans/simple", {"user_id": 1})).status == 200

        await served({"type": "lifespan"}, receive, send)
        return sent

    sent = await run(app(tmp_path), "startup", "shutdown")
    assert [each["type"] for each in sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    without_password = registries(host="h", password_env="SEEDBED_TEST_NOT_SET")
    (failed,) = await run(app(tmp_path, registries=without_password), "startup")
    assert failed["type"] == "lifespan.startup.failed"
    assert "SEEDBED_TEST_NOT_SET" in failed["message"]
