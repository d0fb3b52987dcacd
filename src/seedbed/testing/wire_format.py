"""Requests and answers of the APIs that the test server speaks: OpenAI's, and Anthropic's messages."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from ..models.answers import count_tokens, fitting_json, hash_vector, plausible_text, small_png

if TYPE_CHECKING:
    from ..models.behaviour import Fate


@attrs.frozen(kw_only=True)
class ServerRequest:
    """A call as it came; `prompt` is the text of the last turn (the input of an embedding, the prompt of an image)."""

    method: str
    path: str
    headers: Mapping[str, str] = attrs.field(repr=False)
    body: Mapping[str, Any]
    prompt: str
    number: int
    """Counts from 1 over all calls."""


@attrs.frozen(kw_only=True)
class ServerAnswer:
    """What became of a call: the status that was sent, and when it was."""

    number: int
    """The `number` of its request."""
    prompt: str
    status: int
    """0 stands for a call that was reset or whose answer was cut off."""
    time: float
    """An instant of `time.monotonic`: all of the answer is with the operating system, which hands it to the client."""


@attrs.frozen(kw_only=True)
class Reply:
    """An HTTP answer as a script wants it."""

    status: int = 200
    body: Any = None
    """Bytes as they are, anything else as JSON."""
    headers: Mapping[str, str] = attrs.field(factory=dict)

    def content(self) -> bytes:
        """The bytes of the body."""
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


Script = Callable[[ServerRequest], "Reply | Fate | str | None"]
"""What becomes of a call: a whole answer, a fate, the text to answer with, or None for the usual."""

KINDS = {
    "/chat/completions": "chat",
    "/embeddings": "embeddings",
    "/images/generations": "images",
    "/messages": "messages",
}


def kind_of(path: str) -> str | None:
    """Which API a path belongs to, wherever the server is mounted."""
    path = path.partition("?")[0]
    return next((kind for end, kind in KINDS.items() if path.endswith(end)), None)


def prompt_of(kind: str, body: Mapping[str, Any]) -> str:
    """The text by which a call is counted and answered."""
    if kind == "images":
        return str(body.get("prompt", ""))
    if kind == "embeddings":
        given = body.get("input", "")
        return given if isinstance(given, str) else "\n".join(map(str, given))
    messages = body.get("messages") or [{}]
    content = messages[-1].get("content", "")
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content if part.get("type") == "text")


def answer_text(kind: str, body: Mapping[str, Any], prompt: str) -> str:
    """What the server says when nobody told it what to say."""
    schema = None
    if kind == "chat":
        schema = (body.get("response_format") or {}).get("json_schema", {}).get("schema")
    elif kind == "messages" and body.get("tools"):
        schema = body["tools"][0].get("input_schema")
    return fitting_json(schema, prompt) if schema else plausible_text(prompt)


def answer_body(kind: str, body: Mapping[str, Any], prompt: str, text: str, fate: Fate, *, usage: bool) -> Any:
    """The JSON of an answer."""
    model = body.get("model", "test")
    if kind == "embeddings":
        given = body.get("input", "")
        texts = [given] if isinstance(given, str) else given
        size = body.get("dimensions") or 16
        data = [
            {"object": "embedding", "index": index, "embedding": hash_vector(each, size)}
            for index, each in enumerate(texts)
        ]
        answer: dict[str, Any] = {"object": "list", "model": model, "data": [] if fate.outcome == "empty" else data}
    elif kind == "images":
        pictures = [
            {"b64_json": base64.b64encode(small_png(f"{prompt} {n}")).decode()} for n in range(body.get("n") or 1)
        ]
        answer = {"created": 0, "data": [] if fate.outcome == "empty" else pictures}
    elif kind == "messages":
        return _anthropic_body(body, prompt, text, fate, usage=usage)
    else:
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if fate.outcome == "refusal":
            message = {"role": "assistant", "content": None, "refusal": "I cannot help with that."}
        reason = {"length": "length", "filter": "content_filter"}.get(fate.outcome, "stop")
        choice = {"index": 0, "message": message, "finish_reason": reason}
        answer = {
            "id": "chatcmpl-test",
            "object": "chat.completion",
            "model": model,
            "choices": [] if fate.outcome == "empty" else [choice],
        }
    if usage:
        asked, answered = count_tokens(prompt), count_tokens(text)
        answer["usage"] = {
            "prompt_tokens": asked,
            "completion_tokens": answered,
            "total_tokens": asked + answered,
        }
    return answer


def _anthropic_body(body: Mapping[str, Any], prompt: str, text: str, fate: Fate, *, usage: bool) -> Any:
    content: list[dict[str, Any]] = []
    reason = {"length": "max_tokens", "refusal": "refusal"}.get(fate.outcome, "end_turn")
    if (body.get("thinking") or {}).get("type") == "enabled":
        content.append({"type": "thinking", "thinking": f"They ask: {prompt[:60]}", "signature": "test"})
    if body.get("tools") and reason == "end_turn":
        name = body["tools"][0]["name"]
        content.append({"type": "tool_use", "id": "toolu_test", "name": name, "input": json.loads(text)})
        reason = "tool_use"
    else:
        content.append({"type": "text", "text": text})
    answer: dict[str, Any] = {
        "id": "msg_test",
        "type": "message",
        "role": "assistant",
        "model": body.get("model", "test"),
        "content": [] if fate.outcome == "empty" else content,
        "stop_reason": reason,
    }
    if usage:
        answer["usage"] = {"input_tokens": count_tokens(prompt), "output_tokens": count_tokens(text)}
    return answer


def error_body(status: int) -> Any:
    """The JSON that goes with a status other than 200."""
    kinds = {400: "invalid_request_error", 401: "authentication_error", 429: "rate_limit_exceeded"}
    kind = kinds.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": f"the test server was told to answer {status}", "type": kind, "code": kind}}
