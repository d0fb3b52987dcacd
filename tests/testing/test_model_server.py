from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import trio

from seedbed.errors import ConfigError, Retryable
from seedbed.models import open_http
from seedbed.testing import (
    Reply,
    ServerRequest,
    SimulatedOutcome,
    serve_openai,
    serve_openai_process,
    serve_openai_sync,
)


def post(url: str, body: Any, path: str = "/chat/completions") -> tuple[int, Any, dict[str, str]]:
    """One call by the standard library, independent of our own client."""
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.load(answer), dict(answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error), dict(error.headers)


def chat(text: str) -> dict[str, Any]:
    """The body of a call with one turn."""
    return {"model": "m", "messages": [{"role": "user", "content": text}]}


def test_it_speaks_the_api_in_a_plain_test() -> None:
    """Chat, embeddings, images and messages are answered in their own formats, unknown paths with 404."""
    with serve_openai_sync() as server:
        status, answer, _ = post(server.url, chat("Ask a question about tea."))
        assert status == 200
        assert answer["choices"][0]["message"]["content"]
        assert answer["usage"]["total_tokens"] > 0
        _, answer, _ = post(server.url, {"input": ["a", "b"]}, "/embeddings")
        assert [each["index"] for each in answer["data"]] == [0, 1]
        _, answer, _ = post(server.url, {"prompt": "a cat", "n": 2}, "/images/generations")
        assert len(answer["data"]) == 2
        _, answer, _ = post(server.url, chat("hello"), "/messages")
        assert answer["content"][0]["type"] == "text"
        assert post(server.url, {}, "/nothing")[0] == 404
        with urllib.request.urlopen(f"{server.url}/models", timeout=10) as models:
            assert json.load(models)["data"]
        assert server.statistics.requests == 5
        assert server.statistics.prompts["hello"] == 1


def test_markers_decide_by_prompt() -> None:
    """A marker in a prompt sets its outcome for the given number of calls; a link is not a marker."""
    with serve_openai_sync(retry_after=9) as server:
        prompt = chat("Something [[503 x2]] else")
        assert [post(server.url, prompt)[0] for _ in range(3)] == [503, 503, 200]
        assert server.statistics.prompts["Something [[503 x2]] else"] == 3
        status, _, headers = post(server.url, chat("[[429 retry-after=3 reset-after=4]]"))
        assert (status, headers["retry-after"]) == (429, "3")
        assert headers["x-ratelimit-remaining-requests"] == "0"
        assert headers["x-ratelimit-reset-requests"] == "4s"
        assert "retry-after" not in post(server.url, chat("[[429]]"))[2]
        assert post(server.url, chat("See [[tea]] and [[500 years]]."))[0] == 200


def test_shares_with_and_without_headers() -> None:
    """Random rate limits and errors occur about as often as configured, with the configured headers."""
    with serve_openai_sync(rate_limit_share=0.3, error_share=0.1, error_status=502, retry_after=2, seed=3) as server:
        answers = [post(server.url, chat(f"number {number}")) for number in range(200)]
    statuses = Counter(status for status, *_ in answers)
    assert 35 <= statuses[429] <= 85
    assert 8 <= statuses[502] <= 36
    assert {headers.get("retry-after") for status, _, headers in answers if status == 429} == {"2"}
    with serve_openai_sync(rate_limit_share=1.0) as server:
        status, _, headers = post(server.url, chat("hello"))
    assert status == 429
    assert not [name for name in headers if "retry" in name.lower() or "ratelimit" in name.lower()]


async def test_capacity() -> None:
    """Calls above the capacity are rate-limited while the others are processed."""
    statuses: Counter[int] = Counter()
    async with serve_openai(capacity=4, latency=0.1) as server, open_http() as client:
        endpoint = client.endpoint("POST", f"{server.url}/chat/completions", {})

        async def call(number: int) -> None:
            statuses[(await endpoint.send(json.dumps(chat(f"n {number}")).encode())).status] += 1

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(call, number)
        assert statuses == {200: 4, 429: 6} == server.statistics.statuses
        assert server.statistics.max_in_flight == 4


async def test_a_script_decides_call_by_call() -> None:
    """A script sees the request and returns a text, an outcome, a whole answer, or None for the default."""
    seen: list[ServerRequest] = []
    outcomes: list[Any] = [
        "my text",
        SimulatedOutcome(outcome="status", status=418),
        Reply(status=201, body={"a": 1}),
        None,
    ]

    def script(request: ServerRequest) -> Any:
        seen.append(request)
        return outcomes[request.number - 1]

    async with serve_openai(script=script, answer="usual") as server, open_http() as client:
        endpoint = client.endpoint("POST", f"{server.url}/chat/completions", {"x-thing": "1"})
        answers = [await endpoint.send(json.dumps(chat("hello")).encode()) for _ in outcomes]
    assert [answer.status for answer in answers] == [200, 418, 201, 200]
    texts = [json.loads(answers[index].body)["choices"][0]["message"]["content"] for index in (0, 3)]
    assert texts == ["my text", "usual"]
    assert json.loads(answers[2].body) == {"a": 1}
    assert seen[0].headers["x-thing"] == "1"
    assert (seen[0].prompt, seen[0].path) == ("hello", "/v1/chat/completions")


async def test_answers_are_recorded() -> None:
    """With record=True every answer is listed with the number of its request and the instant of sending."""
    async with serve_openai(record=True, latency=0.01) as server, open_http() as client:
        endpoint = client.endpoint("POST", f"{server.url}/chat/completions", {})
        before = time.monotonic()
        for prompt in ("one", "[[500]] two", "[[truncated]] three", "[[reset]] four"):
            with suppress(Retryable):
                await endpoint.send(json.dumps(chat(prompt)).encode())
    assert [(each.number, each.status) for each in server.answers] == [(1, 200), (2, 500), (3, 0), (4, 0)]
    assert [each.prompt for each in server.answers] == [each.prompt for each in server.requests]
    instants = [before, *(each.time for each in server.answers), time.monotonic()]
    assert instants == sorted(instants)


def test_a_hanging_call_can_be_released() -> None:
    """A test delays an answer until it releases the call, from its own thread."""
    answers: list[Any] = []
    with serve_openai_sync() as server, ThreadPoolExecutor(2) as pool:
        one, two = (pool.submit(post, server.url, chat(f"[[hang]] {name}")) for name in ("one", "two"))
        while server.statistics.in_flight < 2:
            time.sleep(0.001)
        server.release(lambda prompt: "two" in prompt)
        answers.append(two.result(10))
        assert not one.done()
        server.release()
        answers.append(one.result(10))
    assert [status for status, *_ in answers] == [200, 200]


async def test_the_api_key_is_checked() -> None:
    """With api_key set, calls without it are rejected."""
    async with serve_openai(api_key="right") as server, open_http() as client:
        for headers, status in (({}, 401), ({"authorization": "Bearer right"}, 200), ({"x-api-key": "right"}, 200)):
            endpoint = client.endpoint("POST", f"{server.url}/chat/completions", headers)
            assert (await endpoint.send(json.dumps(chat("hello")).encode())).status == status


async def test_a_failure_inside_the_block_is_raised_as_itself() -> None:
    """An exception of the block is not wrapped in a group."""
    with pytest.raises(KeyError, match="mine"):
        async with serve_openai():
            raise KeyError("mine")
    with pytest.raises(KeyError, match="mine"), serve_openai_sync():
        raise KeyError("mine")


def test_invalid_options_are_rejected() -> None:
    """An unknown or invalid option is an error at the start of the server."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'latencies'"), serve_openai_sync(latencies=1):
        pass
    with pytest.raises(ConfigError, match="latency must be seconds"), serve_openai_sync(latency="long"):
        pass


def test_the_server_runs_in_a_process() -> None:
    """The server runs as a process, reports its statistics, and ends with the block."""
    with serve_openai_process(answer="from afar") as server:
        assert server.pid != os.getpid()
        status, answer, _ = post(server.url, chat("hello"))
        assert (status, answer["choices"][0]["message"]["content"]) == (200, "from afar")
        found = server.statistics()
        assert (found["requests"], found["prompts"], found["statuses"]) == (1, {"hello": 1}, {"200": 1})
    with pytest.raises(urllib.error.URLError):
        post(server.url, chat("hello"))
    with pytest.raises(RuntimeError, match="did not start"), serve_openai_process(latency=-1):
        pass
