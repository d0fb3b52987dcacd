"""Models behind Anthropic's own API (messages)."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from ..errors import ConfigError, Permanent
from .base import ChatAnswer
from .http import open_http
from .mapping import parse_object, unexpected
from .openai import tokens_of, with_instruction
from .provider import Caller, HttpModel, check_env, check_url, strip_slash

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from .base import ChatRequest, EmbeddingAnswer, ImageAnswer, Message
    from .http import HttpResponse

_VERSION = "2023-06-01"
_TOOL = "answer"
# What the API calls an end, in the words that everybody else uses.
_FINISH_REASONS = {"end_turn": "stop", "stop_sequence": "stop", "tool_use": "stop", "max_tokens": "length"}


def _check_max_tokens(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{attribute.name} must be a whole number, 1 or more, not {value!r}")


@attrs.frozen(kw_only=True)
class Anthropic(HttpModel):
    """A model behind Anthropic's API. `max_tokens` is sent where the parameters have none: the API wants one.

    A schema is asked for as the input of a tool that must be used; where the model is to think aloud, which forbids
    that, it is asked for in words.
    """

    type: ClassVar[str] = "anthropic"

    base_url: str = attrs.field(default="https://api.anthropic.com/v1", validator=check_url, converter=strip_slash)
    api_key_env: str | None = attrs.field(default="ANTHROPIC_API_KEY", validator=check_env)
    max_tokens: int = attrs.field(default=4096, validator=_check_max_tokens)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[AnthropicClient]:
        """A client, for as long as a build runs."""
        credentials = self.credentials()
        headers = {"content-type": "application/json", "anthropic-version": _VERSION, **credentials.headers}
        if credentials.key:
            headers.setdefault("x-api-key", credentials.key)
        async with open_http(
            timeout=self.timeout, connect_timeout=self.connect_timeout, ssl_context=self.ssl_context()
        ) as http:
            yield AnthropicClient(Caller(http, self, headers, credentials.secrets), self.max_tokens)

    @property
    def provider_id(self) -> str:
        """The same for specs that can share a client."""
        return f"{super().provider_id} {self.max_tokens}"


class AnthropicClient:
    """One model of Anthropic's API."""

    def __init__(self, caller: Caller, max_tokens: int) -> None:
        self._caller = caller
        self._max_tokens = max_tokens

    def for_model(self, model: str) -> AnthropicClient:
        """The same connections, another model."""
        return AnthropicClient(self._caller.for_model(model), self._max_tokens)

    async def chat(self, request: ChatRequest) -> ChatAnswer:
        caller = self._caller
        messages: Sequence[Message] = request.messages
        body: dict[str, Any] = {"model": caller.model, "max_tokens": self._max_tokens, **request.parameters}
        is_wrapped = False
        if request.schema is not None:
            if (body.get("thinking") or {}).get("type") in {"enabled", "adaptive"}:
                messages = with_instruction(messages, request.schema)
            else:
                is_wrapped = request.schema.get("type") != "object"
                schema: Any = request.schema
                if is_wrapped:  # the input of a tool is always an object
                    schema = {"type": "object", "properties": {"value": schema}, "required": ["value"]}
                body["tools"] = [{"name": _TOOL, "description": "Give the answer.", "input_schema": schema}]
                body["tool_choice"] = {"type": "tool", "name": _TOOL}
        system = "\n\n".join(message.text for message in messages if message.role == "system")
        if system:
            body["system"] = system
        body["messages"] = [_message(message) for message in messages if message.role != "system"]
        response = await caller.post("/messages", json.dumps(body).encode(), request.scope)
        return self._answer(request, response, is_wrapped=is_wrapped)

    def _answer(self, request: ChatRequest, response: HttpResponse, *, is_wrapped: bool) -> ChatAnswer:
        caller = self._caller
        found = parse_object(caller.model, response, caller.secrets)
        stop_reason = found.get("stop_reason")
        if stop_reason == "refusal":
            raise Permanent(f"model {caller.model!r} refused to answer (stop_reason 'refusal')")
        content = found.get("content")
        blocks = [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []
        texts = [str(block.get("text") or "") for block in blocks if block.get("type") == "text"]
        thoughts = [str(block.get("thinking") or "") for block in blocks if block.get("type") == "thinking"]
        for block in blocks:
            if block.get("type") == "tool_use" and block.get("name") == _TOOL:
                given = block.get("input")
                if is_wrapped and isinstance(given, Mapping):
                    given = given.get("value")
                texts = [json.dumps(given, ensure_ascii=False)]
        text, reasoning = "".join(texts), "\n\n".join(thoughts)
        if not text and stop_reason != "max_tokens":
            raise unexpected(caller.model, "any text", response, caller.secrets)
        return ChatAnswer(
            text=text,
            reasoning=reasoning or None,
            finish_reason=_FINISH_REASONS.get(str(stop_reason), stop_reason),
            tokens=tokens_of(found.get("usage"), request.messages, text + reasoning),
        )

    async def embed(self, texts: Sequence[str], parameters: Mapping[str, Any]) -> EmbeddingAnswer:  # noqa: ARG002
        raise Permanent(f"model {self._caller.model!r}: Anthropic's API has no embeddings; use another model")

    async def image(self, prompt: str, parameters: Mapping[str, Any]) -> ImageAnswer:  # noqa: ARG002
        raise Permanent(f"model {self._caller.model!r}: Anthropic's API makes no images; use another model")


def _message(message: Message) -> dict[str, Any]:
    if not message.images:
        return {"role": message.role, "content": message.text}
    parts: list[dict[str, Any]] = [
        {
            "type": "image",
            "source": {
                "type": "base64",
                "media_type": image.media_type,
                "data": base64.b64encode(image.data).decode(),
            },
        }
        for image in message.images
    ]
    if message.text:
        parts.append({"type": "text", "text": message.text})
    return {"role": message.role, "content": parts}
