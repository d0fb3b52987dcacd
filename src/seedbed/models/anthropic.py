"""Models behind the Messages API of Anthropic."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from .. import checks
from ..errors import Permanent
from .base import ChatAnswer
from .openai import tokens_of, with_instruction
from .provider import HttpModel, HttpModelClient, check_url, strip_slash

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from .base import ChatRequest, EmbeddingAnswer, ImageAnswer, Message
    from .http import HttpResponse

_VERSION = "2023-06-01"
_TOOL = "answer"
# The stop reasons of the API as finish reasons of OpenAI-compatible APIs.
_FINISH_REASONS = {"end_turn": "stop", "stop_sequence": "stop", "tool_use": "stop", "max_tokens": "length"}


@attrs.frozen(kw_only=True)
class Anthropic(HttpModel):
    """A model behind the API of Anthropic.

    A schema is sent as the input schema of a tool that the model must use. Thinking excludes forced tools; with it the
    schema is described in the prompt.
    """

    type: ClassVar[str] = "anthropic"

    base_url: str = attrs.field(default="https://api.anthropic.com/v1", validator=check_url, converter=strip_slash)
    api_key_env: str | None = attrs.field(default="ANTHROPIC_API_KEY", validator=checks.optional(checks.variable))
    max_tokens: int = attrs.field(default=4096, validator=checks.whole(1))
    """The limit of an answer where the parameters have none, because the API requires one."""

    def open(self) -> AbstractAsyncContextManager[AnthropicClient]:
        return self.open_client(AnthropicClient, {"anthropic-version": _VERSION}, "x-api-key")


class AnthropicClient(HttpModelClient[Anthropic]):
    """Sends chats to one model; the API has no embeddings and generates no images."""

    async def chat(self, request: ChatRequest) -> ChatAnswer:
        messages: Sequence[Message] = request.messages
        body: dict[str, Any] = {"model": self.model, "max_tokens": self.spec.max_tokens, **request.parameters}
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
        system = "\n\n".join(message.content for message in messages if message.role == "system")
        if system:
            body["system"] = system
        body["messages"] = [_message(message) for message in messages if message.role != "system"]
        response = await self.send(self.endpoint("/messages"), json.dumps(body).encode(), request.scope)
        return self._answer(request, response, is_wrapped=is_wrapped)

    def _answer(self, request: ChatRequest, response: HttpResponse, *, is_wrapped: bool) -> ChatAnswer:
        found = self.parse_object(response)
        stop_reason = found.get("stop_reason")
        if stop_reason == "refusal":
            raise Permanent(f"model {self.model!r} refused to answer (stop_reason 'refusal')")
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
            raise self.unexpected("any text", response)
        return ChatAnswer(
            text=text,
            reasoning=reasoning or None,
            finish_reason=_FINISH_REASONS.get(str(stop_reason), stop_reason),
            tokens=tokens_of(found.get("usage"), request.messages, text + reasoning),
        )

    async def embed(self, texts: Sequence[str], parameters: Mapping[str, Any]) -> EmbeddingAnswer:  # noqa: ARG002
        raise Permanent(f"model {self.model!r}: Anthropic's API has no embeddings; use another model")

    async def image(self, prompt: str, parameters: Mapping[str, Any]) -> ImageAnswer:  # noqa: ARG002
        raise Permanent(f"model {self.model!r}: Anthropic's API generates no images; use another model")


def _message(message: Message) -> dict[str, Any]:
    if not message.images:
        return {"role": message.role, "content": message.content}
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
    if message.content:
        parts.append({"type": "text", "text": message.content})
    return {"role": message.role, "content": parts}
