from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from model_helpers import ask

from seedbed.errors import ConfigError, Permanent, RateLimited, Retryable
from seedbed.models import Anthropic, ChatRequest, Image, Message
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
    """A server that wants the key, and a client of it."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    async with (
        serve_openai(record=True, api_key=KEY, **server) as running,
        Anthropic(base_url=running.url, model="claude", **(spec or {})).open() as client,
    ):
        yield running, client


async def test_the_wire_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """System text, pictures, max_tokens and the key go where the API wants them; text and usage come back."""
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
                    Message(role="system", text="Be brief."),
                    Message(role="user", text="What is it?", images=(image,)),
                    Message(role="assistant", text="A dog."),
                    Message(role="user", text="Look again."),
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
    """Structured output comes by a tool that must be used; what is no object travels inside one."""
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


async def test_thinking_aloud(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thinking blocks are the reasoning, and a schema is then asked for in words, as a tool may not be forced."""
    parameters = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    async with pair(monkeypatch, answer='{"age": 3}') as (server, client):
        answer = await client.chat(ask("Who?", schema={"type": "object"}, parameters=parameters))
        (request,) = server.requests
    assert (answer.text, answer.reasoning) == ('{"age": 3}', "They ask: Who?")
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
async def test_failures(monkeypatch: pytest.MonkeyPatch, prompt: str, error: type[Exception], message: str) -> None:
    """Failures are of the same classes as everywhere."""
    async with pair(monkeypatch) as (_, client):
        with pytest.raises(error, match=message) as caught:
            await client.chat(ask(prompt))
    assert KEY not in repr(caught.value)
    assert not isinstance(caught.value, RateLimited) or caught.value.retry_after == "7"


async def test_an_answer_that_was_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """max_tokens is the end that others call length."""
    async with pair(monkeypatch, {"max_tokens": 5}) as (server, client):
        assert (await client.chat(ask("[[length]]"))).finish_reason == "length"
        assert server.requests[0].body["max_tokens"] == 5


async def test_what_the_api_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Embeddings and images are permanent errors."""
    async with pair(monkeypatch) as (_, client):
        with pytest.raises(Permanent, match="has no embeddings"):
            await client.embed(["x"], {})
        with pytest.raises(Permanent, match="makes no images"):
            await client.image("x", {})


def test_fields_of_its_own_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """max_tokens is a whole number; the key's variable has a usual name."""
    with pytest.raises(ConfigError, match="max_tokens must be a whole number"):
        Anthropic(model="claude", max_tokens=0)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    assert "ANTHROPIC_API_KEY" in Anthropic(model="claude").problems()[0]
