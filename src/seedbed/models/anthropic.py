"""Models behind the Messages API of Anthropic."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from .. import checks
from ..errors import Permanent
from .base import ChatAnswer, ToolCall
from .openai import tokens_of, with_instruction
from .provider import HttpModel, HttpModelClient, check_url, strip_slash

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from .base import ChatRequest, EmbeddingAnswer, ImageAnswer, Message
    from .http import HttpResponse

_VERSION = "2023-06-01"
_TOOL = "answer"
# The stop reasons of the API as finish reasons of OpenAI-compatible APIs.
_THINKING = frozenset({"thinking", "redacted_thinking"})
_FINISH_REASONS = {"end_turn": "stop", "stop_sequence": "stop", "tool_use": "stop", "max_tokens": "length"}


@attrs.frozen(kw_only=True)
class Anthropic(HttpModel):
    """A model behind the API of Anthropic.

    A schema is sent as the input schema of a tool that the model must use, or one of the column's tools. Thinking
    excludes forced tools; with it the schema is described in the prompt.
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
        tools = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
            for tool in request.tools
        ]
        if request.schema is not None:
            if (body.get("thinking") or {}).get("type") in {"enabled", "adaptive"}:
                messages = with_instruction(messages, request.schema)
            else:
                is_wrapped = request.schema.get("type") != "object"
                schema: Any = request.schema
                if is_wrapped:  # the input of a tool is always an object
                    schema = {"type": "object", "properties": {"value": schema}, "required": ["value"]}
                tools.append({"name": _TOOL, "description": "Give the answer.", "input_schema": schema})
                body["tool_choice"] = {"type": "any"} if request.tools else {"type": "tool", "name": _TOOL}
        if tools:
            body["tools"] = tools
        system = "\n\n".join(message.content for message in messages if message.role == "system")
        if system:
            body["system"] = system
        body["messages"] = _messages(message for message in messages if message.role != "system")
        response = await self.send(self.endpoint("/messages"), json.dumps(body).encode(), request.scope)
        return self._answer(request, response, is_wrapped=is_wrapped)

    def _answer(self, request: ChatRequest, response: HttpResponse, *, is_wrapped: bool) -> ChatAnswer:
        found = self.parse_object(response)
        stop_reason = found.get("stop_reason")
        if stop_reason == "refusal":
            raise Permanent(f"model {self.model!r} refused to answer (stop_reason 'refusal')", code="refused")
        content = found.get("content")
        blocks = [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []
        texts = [str(block.get("text") or "") for block in blocks if block.get("type") == "text"]
        thoughts = [str(block.get("thinking") or "") for block in blocks if block.get("type") == "thinking"]
        calls: list[ToolCall] = []
        for block in blocks:
            given = block.get("input")
            if block.get("type") != "tool_use":
                continue
            if block.get("name") == _TOOL and request.schema is not None:
                if is_wrapped and isinstance(given, Mapping):
                    given = given.get("value")
                texts = [json.dumps(given, ensure_ascii=False)]
            elif request.tools:
                arguments = json.dumps(given or {}, ensure_ascii=False)
                number = str(block.get("id") or f"call_{len(calls) + 1}")
                calls.append(ToolCall(id=number, name=str(block.get("name")), arguments=arguments))
        text, reasoning = "".join(texts), "\n\n".join(thoughts)
        if not text and not calls and stop_reason != "max_tokens":
            raise self.unexpected("any text", response)
        written = "".join(call.name + call.arguments for call in calls)
        return ChatAnswer(
            text=text,
            reasoning=reasoning or None,
            finish_reason=_FINISH_REASONS.get(str(stop_reason), stop_reason),
            tokens=tokens_of(found.get("usage"), request.messages, text + reasoning + written),
            tool_calls=tuple(calls),
            thinking=tuple(dict(block) for block in blocks if block.get("type") in _THINKING) if calls else (),
        )

    async def embed(self, texts: Sequence[str], parameters: Mapping[str, Any]) -> EmbeddingAnswer:  # noqa: ARG002
        raise Permanent(f"model {self.model!r}: Anthropic's API has no embeddings; use another model")

    async def image(self, prompt: str, parameters: Mapping[str, Any]) -> ImageAnswer:  # noqa: ARG002
        raise Permanent(f"model {self.model!r}: Anthropic's API generates no images; use another model")


def _messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """The messages of a request; the results of tools that were called together are one message of the user."""
    found: list[dict[str, Any]] = []
    is_results = False
    for message in messages:
        if message.tool_call_id:
            result = {"type": "tool_result", "tool_use_id": message.tool_call_id, "content": message.content}
            if is_results:
                found[-1]["content"].append(result)
            else:
                found.append({"role": "user", "content": [result]})
        else:
            found.append(_message(message))
        is_results = bool(message.tool_call_id)
    return found


def _message(message: Message) -> dict[str, Any]:
    if message.tool_calls:
        blocks: list[dict[str, Any]] = [*message.thinking]
        if message.content:
            blocks.append({"type": "text", "text": message.content})
        blocks += [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": _object(call.arguments)}
            for call in message.tool_calls
        ]
        return {"role": message.role, "content": blocks}
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


def _object(arguments: str) -> Any:
    """The arguments of a call as the API wants them back: what is no object came from another model."""
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}
