"""Models behind OpenAI's API: chat, embeddings and images, from whoever speaks it."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from ..errors import ConfigError, Permanent, Retryable
from .answers import count_tokens
from .base import HOW, ChatAnswer, EmbeddingAnswer, Image, ImageAnswer, Message, Tokens
from .http import open_http
from .mapping import excerpt, failure_of, parse_object, token_count, unexpected
from .provider import Caller, HttpModel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from .base import ChatRequest
    from .http import HttpResponse

_STRUCTURED = ("json_schema", "json_object", "prompt")


def _check_structured(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value not in _STRUCTURED:
        raise ConfigError(f"{attribute.name} must be one of {', '.join(map(repr, _STRUCTURED))}, not {value!r}")


@attrs.frozen(kw_only=True)
class OpenAICompatible(HttpModel):
    """A model behind an OpenAI-compatible API; `base_url` ends where `/chat/completions` begins.

    `structured_output` is how a schema is asked for: `json_schema` where the server can do that, `json_object` where it
    only knows JSON, `prompt` where it knows neither.
    """

    type: ClassVar[str] = "openai"

    # How a schema is asked for; what fits it is checked here in any case.
    structured_output: str = attrs.field(default="json_schema", validator=_check_structured, metadata=HOW)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[OpenAIClient]:
        """A client, for as long as a build runs."""
        credentials = self.credentials()
        headers = {"content-type": "application/json", **credentials.headers}
        if credentials.key:
            headers.setdefault("authorization", f"Bearer {credentials.key}")
        async with open_http(
            timeout=self.timeout, connect_timeout=self.connect_timeout, ssl_context=self.ssl_context()
        ) as http:
            yield OpenAIClient(Caller(http, self, headers, credentials.secrets), self.structured_output)

    @property
    def provider_id(self) -> str:
        """The same for specs that can share a client."""
        return f"{super().provider_id} {self.structured_output}"


class OpenAIClient:
    """One model of a provider that speaks OpenAI's API."""

    def __init__(self, caller: Caller, structured_output: str) -> None:
        self._caller = caller
        self._structured_output = structured_output

    def for_model(self, model: str) -> OpenAIClient:
        """The same connections, another model."""
        return OpenAIClient(self._caller.for_model(model), self._structured_output)

    async def chat(self, request: ChatRequest) -> ChatAnswer:
        response = await self._caller.post("/chat/completions", self._chat_body(request), request.scope)
        return self._chat_answer(request, response)

    def _chat_body(self, request: ChatRequest) -> bytes:
        # Not in `chat`: what lives as long as a call is visited by the garbage collector (overhead benchmark).
        messages = request.messages
        body: dict[str, Any] = {"model": self._caller.model, **request.parameters}
        if request.schema is not None:
            if self._structured_output == "json_schema":
                body["response_format"] = _response_format(request.schema)
            else:
                messages = with_instruction(messages, request.schema)
                if self._structured_output == "json_object":
                    body["response_format"] = {"type": "json_object"}
        body["messages"] = [_message(message) for message in messages]
        return json.dumps(body).encode()

    def _chat_answer(self, request: ChatRequest, response: HttpResponse) -> ChatAnswer:
        caller = self._caller
        found = parse_object(caller.model, response, caller.secrets)
        choices = found.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise unexpected(caller.model, "choices", response, caller.secrets)
        choice = choices[0]
        message = choice.get("message")
        if not isinstance(message, dict):
            raise unexpected(caller.model, "a message", response, caller.secrets)
        finish_reason = choice.get("finish_reason")
        if message.get("refusal"):
            raise Permanent(f"model {caller.model!r} refused: {_short(message['refusal'], caller)}")
        if finish_reason == "content_filter":
            raise Permanent(f"model {caller.model!r} stopped at its provider's content filter")
        text = _text_of(message.get("content"))
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        reasoning = reasoning if isinstance(reasoning, str) else None
        if not text and finish_reason != "length":
            raise unexpected(caller.model, "any text", response, caller.secrets)
        usage = found.get("usage")
        return ChatAnswer(
            text=text,
            reasoning=reasoning,
            finish_reason=finish_reason,
            tokens=tokens_of(usage, request.messages, text + (reasoning or "")),
        )

    async def embed(self, texts: Sequence[str], parameters: Mapping[str, Any]) -> EmbeddingAnswer:
        caller = self._caller
        body = {"model": caller.model, **parameters, "input": list(texts)}
        response = await caller.post("/embeddings", json.dumps(body).encode())
        found = parse_object(caller.model, response, caller.secrets)
        try:
            data = sorted(found["data"], key=lambda each: each.get("index", 0))
            vectors = tuple(tuple(map(float, each["embedding"])) for each in data)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise unexpected(caller.model, "embeddings", response, caller.secrets) from error
        if len(vectors) != len(texts):
            raise unexpected(caller.model, f"{len(texts)} embeddings (it has {len(vectors)})", response, caller.secrets)
        used = token_count(found.get("usage"), "prompt_tokens", "total_tokens")
        return EmbeddingAnswer(
            vectors=vectors, tokens=Tokens(input=sum(map(count_tokens, texts)) if used is None else used)
        )

    async def image(self, prompt: str, parameters: Mapping[str, Any]) -> ImageAnswer:
        caller = self._caller
        body = {"model": caller.model, **parameters, "prompt": prompt}
        response = await caller.post("/images/generations", json.dumps(body).encode())
        found = parse_object(caller.model, response, caller.secrets)
        data = found.get("data")
        if not isinstance(data, list) or not data or not all(isinstance(each, dict) for each in data):
            raise unexpected(caller.model, "images", response, caller.secrets)
        images = [await self._image(each, response) for each in data]
        usage = found.get("usage")
        asked = token_count(usage, "input_tokens", "prompt_tokens")
        tokens = Tokens(
            input=count_tokens(prompt) if asked is None else asked,
            output=token_count(usage, "output_tokens", "completion_tokens") or 0,
        )
        return ImageAnswer(images=tuple(images), tokens=tokens)

    async def _image(self, given: Mapping[str, Any], response: HttpResponse) -> Image:
        caller = self._caller
        encoded, url = given.get("b64_json"), given.get("url")
        if isinstance(url, str) and url.startswith("data:"):
            encoded = url.partition(",")[2]
        if encoded:
            try:
                data = base64.b64decode(encoded, validate=True)
            except (binascii.Error, TypeError, ValueError) as error:
                raise Retryable(f"model {caller.model!r} sent an image that is not base64") from error
            return Image(data=data, media_type=media_type_of(data))
        if not isinstance(url, str):
            raise unexpected(caller.model, "images", response, caller.secrets)
        try:
            endpoint = caller.http.endpoint("GET", url, {})  # without our headers: it may be anybody's server
        except ConfigError as error:
            raise unexpected(caller.model, "images", response, caller.secrets) from error
        fetched = await caller.send(endpoint)
        failure = failure_of(caller.model, fetched, caller.secrets)
        if failure is not None:
            raise failure
        return Image(data=fetched.body, media_type=media_type_of(fetched.body))


def with_instruction(messages: Sequence[Message], schema: Mapping[str, Any]) -> tuple[Message, ...]:
    """The messages, with the wish for JSON of that schema said in words: for models that take no schema."""
    words = f"Answer with one JSON value that fits this JSON Schema, and with nothing else:\n{json.dumps(schema)}"
    first = messages[0]
    if first.role == "system":
        return (attrs.evolve(first, text=f"{first.text}\n\n{words}"), *messages[1:])
    return (Message(role="system", text=words), *messages)


def _message(message: Message) -> dict[str, Any]:
    if not message.images:
        return {"role": message.role, "content": message.text}
    parts: list[dict[str, Any]] = [{"type": "text", "text": message.text}]
    for image in message.images:
        url = f"data:{image.media_type};base64,{base64.b64encode(image.data).decode()}"
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return {"role": message.role, "content": parts}


def _response_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    wanted: dict[str, Any] = {"name": "answer", "schema": schema}
    if _is_strict(schema):
        wanted["strict"] = True
    return {"type": "json_schema", "json_schema": wanted}


def _is_strict(schema: object) -> bool:
    """Whether every object in it is closed and wants all its properties: what OpenAI's strict mode asks for."""
    if isinstance(schema, Mapping):
        properties = schema.get("properties")
        is_object = schema.get("type") == "object" or isinstance(properties, Mapping)
        is_closed = schema.get("additionalProperties") is False
        if is_object and not (is_closed and set(schema.get("required", ())) == set(properties or ())):
            return False
        return all(map(_is_strict, schema.values()))
    return all(map(_is_strict, schema)) if isinstance(schema, list) else True


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):  # parts, as some providers answer
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return ""


def _short(text: object, caller: Caller) -> str:
    return excerpt(str(text).encode(), caller.secrets)


def tokens_of(usage: object, messages: Sequence[Message], answered: str) -> Tokens:
    """What a chat used: as reported, or as estimated."""
    asked = token_count(usage, "prompt_tokens", "input_tokens")
    made = token_count(usage, "completion_tokens", "output_tokens")
    return Tokens(
        input=sum(count_tokens(message.text) for message in messages) if asked is None else asked,
        output=count_tokens(answered) if made is None else made,
    )


def media_type_of(data: bytes) -> str:
    """The kind of picture that the bytes are, by how they begin."""
    if data.startswith(b"\xff\xd8"):
        return "image/jpeg"
    if data.startswith(b"GIF8"):
        return "image/gif"
    return "image/webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else "image/png"
