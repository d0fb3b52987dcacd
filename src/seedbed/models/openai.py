"""Models behind OpenAI-compatible APIs: chat, embeddings and images."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import msgspec

from .. import checks
from ..errors import CellError, ConfigError, Permanent, Retryable
from .answers import count_tokens
from .base import NOT_IN_FINGERPRINT, ChatAnswer, EmbeddingAnswer, Image, ImageAnswer, Message, Tokens, ToolCall
from .provider import HttpModel, HttpModelClient, token_count

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from .base import ChatRequest
    from .http import HttpResponse


@attrs.frozen(kw_only=True)
class OpenAICompatible(HttpModel):
    """A model behind an OpenAI-compatible API, hosted or your own."""

    type: ClassVar[str] = "openai"

    structured_output: str = attrs.field(
        default="json_schema",
        validator=checks.one_of("json_schema", "json_object", "prompt"),
        metadata=NOT_IN_FINGERPRINT,
    )
    """How a schema is sent: as `json_schema`, in the prompt with the response format `json_object`, or in the `prompt`
    alone. The answer is validated in any case."""

    def open(self) -> AbstractAsyncContextManager[OpenAIClient]:
        return self.open_client(OpenAIClient, {}, "authorization", "Bearer ")


class OpenAIClient(HttpModelClient[OpenAICompatible]):
    """Sends chats, embeddings and images to one model."""

    async def chat(self, request: ChatRequest) -> ChatAnswer:
        try:
            # Not through `self.send`: each further coroutine costs whenever a call resumes (overhead benchmark).
            response = await self.endpoint("/chat/completions").send(self._chat_body(request), request.scope)
        except CellError as error:
            raise self.named(error) from error
        return self._chat_answer(request, response)

    def _chat_body(self, request: ChatRequest) -> bytes:
        # Not in `chat`: what lives as long as a call is visited by the garbage collector (overhead benchmark).
        messages = request.messages
        body: dict[str, Any] = {"model": self.model, **request.parameters}
        if request.schema is not None:
            if self.spec.structured_output == "json_schema":
                wanted: dict[str, Any] = {"name": "answer", "schema": request.schema}
                if _is_strict(request.schema):
                    wanted["strict"] = True
                body["response_format"] = {"type": "json_schema", "json_schema": wanted}
            else:
                messages = with_instruction(messages, request.schema)
                if self.spec.structured_output == "json_object":
                    body["response_format"] = {"type": "json_object"}
        if request.tools:
            fields = ("name", "description", "parameters")
            tools = [{field: getattr(tool, field) for field in fields} for tool in request.tools]
            body["tools"] = [{"type": "function", "function": tool} for tool in tools]
        body["messages"] = [_message(message) for message in messages]
        return json.dumps(body).encode()

    def _chat_answer(self, request: ChatRequest, response: HttpResponse) -> ChatAnswer:
        found = self.parse_object(response)
        choices = found.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise self.unexpected("choices", response)
        choice = choices[0]
        message = choice.get("message")
        if not isinstance(message, dict):
            raise self.unexpected("a message", response)
        finish_reason = choice.get("finish_reason")
        if message.get("refusal"):
            said = self.excerpt(str(message["refusal"]).encode())
            raise Permanent(f"model {self.model!r} refused: {said}", code="refused")
        if finish_reason == "content_filter":
            raise Permanent(f"model {self.model!r} stopped at its provider's content filter", code="refused")
        content = message.get("content")
        text = content if isinstance(content, str) else _text_of(content)
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        reasoning = reasoning if isinstance(reasoning, str) else None
        calls = _tool_calls(message.get("tool_calls")) if request.tools else ()
        if not text and not calls and finish_reason != "length":
            raise self.unexpected("any text", response)
        written = "".join(call.name + call.arguments for call in calls)
        usage = found.get("usage")
        return ChatAnswer(
            text=text,
            reasoning=reasoning,
            finish_reason=finish_reason,
            tokens=tokens_of(usage, request.messages, text + (reasoning or "") + written),
            tool_calls=calls,
        )

    async def embed(self, texts: Sequence[str], parameters: Mapping[str, Any]) -> EmbeddingAnswer:
        body = {"model": self.model, **parameters, "input": list(texts)}
        response = await self.send(self.endpoint("/embeddings"), json.dumps(body).encode())
        found = self.parse_object(response)
        try:
            data = sorted(found["data"], key=lambda each: each.get("index", 0))
            vectors = tuple(tuple(map(float, each["embedding"])) for each in data)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self.unexpected("embeddings", response) from error
        if len(vectors) != len(texts):
            raise self.unexpected(f"{len(texts)} embeddings (it has {len(vectors)})", response)
        used = token_count(found.get("usage"), "prompt_tokens", "total_tokens")
        return EmbeddingAnswer(
            vectors=vectors, tokens=Tokens(input=sum(map(count_tokens, texts)) if used is None else used)
        )

    async def image(self, prompt: str, parameters: Mapping[str, Any]) -> ImageAnswer:
        body = {"model": self.model, **parameters, "prompt": prompt}
        response = await self.send(self.endpoint("/images/generations"), json.dumps(body).encode())
        found = self.parse_object(response)
        data = found.get("data")
        if not isinstance(data, list) or not data or not all(isinstance(each, dict) for each in data):
            raise self.unexpected("images", response)
        images = [await self._image(each, response) for each in data]
        usage = found.get("usage")
        sent = token_count(usage, "input_tokens", "prompt_tokens")
        tokens = Tokens(
            input=count_tokens(prompt) if sent is None else sent,
            output=token_count(usage, "output_tokens", "completion_tokens") or 0,
        )
        return ImageAnswer(images=tuple(images), tokens=tokens)

    async def _image(self, given: Mapping[str, Any], response: HttpResponse) -> Image:
        encoded, url = given.get("b64_json"), given.get("url")
        if isinstance(url, str) and url.startswith("data:"):
            encoded = url.partition(",")[2]
        if encoded:
            try:
                data = base64.b64decode(encoded, validate=True)
            except (binascii.Error, TypeError, ValueError) as error:
                raise Retryable(f"model {self.model!r} sent an image that is not base64") from error
            return Image(data=data, media_type=media_type_of(data))
        if not isinstance(url, str):
            raise self.unexpected("images", response)
        try:
            endpoint = self.http.endpoint("GET", url, {})  # without our headers: the server may be any
        except ConfigError as error:
            raise self.unexpected("images", response) from error
        fetched = await self.send(endpoint)
        if not 200 <= fetched.status < 300:
            failure = Retryable if fetched.status >= 500 else Permanent
            raise failure(f"model {self.model!r}: the server of its image answered {fetched.status}")
        return Image(data=fetched.body, media_type=media_type_of(fetched.body))


def with_instruction(messages: Sequence[Message], schema: Mapping[str, Any]) -> tuple[Message, ...]:
    """Return the messages with an instruction to answer in JSON of that schema, for APIs without schemas."""
    words = f"Answer with one JSON value that fits this JSON Schema, and with nothing else:\n{json.dumps(schema)}"
    first = messages[0]
    if first.role == "system":
        return (msgspec.structs.replace(first, content=f"{first.content}\n\n{words}"), *messages[1:])
    return (Message(role="system", content=words), *messages)


def _message(message: Message) -> dict[str, Any]:
    if message.tool_call_id:
        return {"role": message.role, "tool_call_id": message.tool_call_id, "content": message.content}
    if message.tool_calls:
        calls = [call_body(call) for call in message.tool_calls]
        return {"role": message.role, "content": message.content or None, "tool_calls": calls}
    if not message.images:
        return {"role": message.role, "content": message.content}
    parts: list[dict[str, Any]] = [{"type": "text", "text": message.content}]
    for image in message.images:
        url = f"data:{image.media_type};base64,{base64.b64encode(image.data).decode()}"
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return {"role": message.role, "content": parts}


def call_body(call: ToolCall) -> dict[str, Any]:
    """A call of a tool in the chat format."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _tool_calls(given: object) -> tuple[ToolCall, ...]:
    """The tools that an answer calls; servers may leave out ids, and send arguments as an object."""
    calls: list[ToolCall] = []
    for each in given if isinstance(given, list) else []:
        function = each.get("function") if isinstance(each, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(name, str):
            continue
        arguments = function.get("arguments") or "{}"
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        calls.append(ToolCall(id=str(each.get("id") or f"call_{len(calls) + 1}"), name=name, arguments=text))
    return tuple(calls)


def _is_strict(schema: object) -> bool:
    """True if every object of the schema is closed and requires all its properties, as OpenAI's strict mode expects."""
    if isinstance(schema, Mapping):
        properties = schema.get("properties")
        is_object = schema.get("type") == "object" or isinstance(properties, Mapping)
        is_closed = schema.get("additionalProperties") is False
        if is_object and not (is_closed and set(schema.get("required", ())) == set(properties or ())):
            return False
        return all(map(_is_strict, schema.values()))
    return all(map(_is_strict, schema)) if isinstance(schema, list) else True


def _text_of(content: object) -> str:
    if isinstance(content, list):  # some providers answer in parts
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(text for text in texts if isinstance(text, str))
    return ""


def tokens_of(usage: object, messages: Sequence[Message], answered: str) -> Tokens:
    """The token usage of a chat, reported or estimated.

    Anthropic counts cached tokens beside those of the prompt, OpenAI as a part of them.
    """
    sent = token_count(usage, "prompt_tokens", "input_tokens")
    generated = token_count(usage, "completion_tokens", "output_tokens")
    cached = written = 0
    if isinstance(usage, dict) and sent is not None:
        details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
        if details is not None:
            cached = min(sent, token_count(details, "cached_tokens") or 0)
        elif "cache_read_input_tokens" in usage or "cache_creation_input_tokens" in usage:
            cached = token_count(usage, "cache_read_input_tokens") or 0
            written = token_count(usage, "cache_creation_input_tokens") or 0
            sent += cached + written
    return Tokens(
        input=sum(count_tokens(message.content) for message in messages) if sent is None else sent,
        output=count_tokens(answered) if generated is None else generated,
        cached=cached,
        cache_written=written,
    )


def media_type_of(data: bytes) -> str:
    """The media type of an image, by its first bytes; PNG if they are unknown."""
    if data.startswith(b"\xff\xd8"):
        return "image/jpeg"
    if data.startswith(b"GIF8"):
        return "image/gif"
    return "image/webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else "image/png"
