from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from model_helpers import ask

from seedbed.errors import ConfigError, Permanent, RateLimited, Retryable
from seedbed.models import Anthropic, ChatRequest, Image, Message
from seedbed.models.base import Tokens, usage_of
from seedbed.testing import Reply, serve_openai

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from seedbed.models import ModelClient
    from seedbed.testing import OpenAIServer

KEY = "sk-ant-0123456789"


@asynccontextmanager
async def pair(
    monkeypatch: pytest.MonkeyPatch, spec: dict[str, Any] | None = None, **server: Any
) -> AsyncIterator[tuple[OpenAIServer, ModelClient]]:
    """A server that requires the key, and a client connected to it."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    async with (
        serve_openai(record=True, api_key=KEY, **server) as running,
        Anthropic(base_url=running.url, model="claude", **(spec or {})).open() as client,
    ):
        yield running, client


async def test_the_wire_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """System text, images, max_tokens and the key are sent as the API expects them; text and usage are returned."""
    reply = Reply(
        body={
            "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "cat"}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 12, "output_tokens": 3},
        }
    )
    image = Image(data=b"abc", media_type="image/png")
    async with pair(monkeypatch, script=lambda _: reply) as (server, client):
        answer = await client.chat(
            ChatRequest(
                messages=(
                    Message(role="system", content="Be brief."),
                    Message(role="user", content="What is it?", images=(image,)),
                    Message(role="assistant", content="A dog."),
                    Message(role="user", content="Look again."),
                ),
                parameters={"temperature": 0.1},
            )
        )
        (request,) = server.requests
    assert request.path == "/v1/messages"
    assert request.headers["anthropic-version"] == "2023-06-01"
    assert request.headers["x-api-key"] == KEY
    assert request.body == {
        "model": "claude",
        "max_tokens": 4096,
        "temperature": 0.1,
        "system": "Be brief.",
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "YWJj"}},
                    {"type": "text", "text": "What is it?"},
                ],
            },
            {"role": "assistant", "content": "A dog."},
            {"role": "user", "content": "Look again."},
        ],
    }
    assert (answer.text, answer.finish_reason) == ("a cat", "stop")
    assert (answer.tokens.input, answer.tokens.output) == (12, 3)


async def test_a_schema_is_the_input_of_a_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Structured output uses a forced tool; a schema that is not an object is wrapped in one."""
    person = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    names = {"type": "array", "items": {"type": "string"}, "minItems": 2}
    async with pair(monkeypatch) as (server, client):
        assert isinstance(json.loads((await client.chat(ask("Who?", schema=person))).text)["age"], int)
        listed = await client.chat(ask("Who?", schema=names))
        assert len(json.loads(listed.text)) >= 2
        assert listed.finish_reason == "stop"
        first, second = (request.body for request in server.requests)
    assert first["tool_choice"] == {"type": "tool", "name": "answer"}
    assert first["tools"][0]["input_schema"] == person
    assert second["tools"][0]["input_schema"]["properties"] == {"value": names}


async def test_thinking_blocks_are_the_reasoning(monkeypatch: pytest.MonkeyPatch) -> None:
    """With thinking, tools cannot be forced, so the schema is described in the prompt."""
    parameters = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    async with pair(monkeypatch, answer='{"age": 3}') as (server, client):
        answer = await client.chat(ask("Who?", schema={"type": "object"}, parameters=parameters))
        (request,) = server.requests
    assert (answer.text, answer.reasoning) == ('{"age": 3}', "The prompt: Who?")
    assert "tools" not in request.body
    assert '{"type": "object"}' in request.body["system"]


@pytest.mark.parametrize(
    ("prompt", "error", "message"),
    [
        ("[[429 retry-after=7]]", RateLimited, "model 'claude' answered 429"),
        ("[[529]]", Retryable, "model 'claude' answered 529"),
        ("[[400]]", Permanent, "model 'claude' answered 400"),
        ("[[refusal]]", Permanent, "model 'claude' refused"),
        ("[[empty]]", Retryable, "model 'claude' answered without any text"),
        ("[[malformed]]", Retryable, "malformed JSON"),
    ],
)
async def test_failures_have_the_common_classes(
    monkeypatch: pytest.MonkeyPatch, prompt: str, error: type[Exception], message: str
) -> None:
    """Failures have the same classes as those of OpenAI-compatible models."""
    async with pair(monkeypatch) as (_, client):
        with pytest.raises(error, match=message) as caught:
            await client.chat(ask(prompt))
    assert KEY not in repr(caught.value)
    assert not isinstance(caught.value, RateLimited) or caught.value.retry_after == "7"


async def test_a_truncated_answer_has_finish_reason_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stop reason max_tokens is the finish reason length."""
    async with pair(monkeypatch, {"max_tokens": 5}) as (server, client):
        assert (await client.chat(ask("[[length]]"))).finish_reason == "length"
        assert server.requests[0].body["max_tokens"] == 5


async def test_unsupported_calls_are_permanent_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API has neither embeddings nor images."""
    async with pair(monkeypatch) as (_, client):
        with pytest.raises(Permanent, match="has no embeddings"):
            await client.embed(["x"], {})
        with pytest.raises(Permanent, match="generates no images"):
            await client.image("x", {})


def test_fields_are_validated(monkeypatch: pytest.MonkeyPatch) -> None:
    """max_tokens must be a whole number; api_key_env defaults to ANTHROPIC_API_KEY."""
    with pytest.raises(ConfigError, match="max_tokens must be a whole number"):
        Anthropic(model="claude", max_tokens=0)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    assert "ANTHROPIC_API_KEY" in Anthropic(model="claude").problems()[0]


async def test_cached_tokens_are_part_of_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens that the API read from its cache or stored there count as tokens of the prompt too."""
    usage = {
        "input_tokens": 10,
        "cache_read_input_tokens": 70,
        "cache_creation_input_tokens": 20,
        "output_tokens": 5,
    }
    reply = Reply(body={"content": [{"type": "text", "text": "yes"}], "stop_reason": "end_turn", "usage": usage})
    prices = {"input_price": 10.0, "output_price": 100.0, "cached_price": 1.0, "cache_write_price": 12.5}
    async with pair(monkeypatch, prices, script=lambda _: reply) as (_, client):
        answer = await client.chat(ask("yes?"))
    assert answer.tokens == Tokens(input=100, output=5, cached=70, cache_written=20)
    spec = Anthropic(model="claude", **prices)
    found = usage_of(spec, answer.tokens)
    assert (found.input_tokens, found.cached_tokens, found.cache_write_tokens) == (100, 70, 20)
    assert found.cost == pytest.approx((10 * 10 + 70 * 1 + 20 * 12.5 + 5 * 100) / 1_000_000)
