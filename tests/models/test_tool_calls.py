"""Tools in the requests and answers of both APIs and of the scripted model, against the server of `seedbed.testing`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from seedbed.errors import Permanent, Retryable
from seedbed.models import (
    Anthropic,
    ChatAnswer,
    ChatRequest,
    Message,
    OpenAICompatible,
    Scripted,
    Tool,
    ToolCall,
    open_models,
)
from seedbed.models.base import request_key
from seedbed.models.local import LocalClient
from seedbed.testing import Reply, ServerRequest, serve_openai

if TYPE_CHECKING:
    from seedbed.models import ModelSpec
    from seedbed.testing import OpenAIServer

PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
ADD = Tool(name="add", description="Adds one.", parameters=PARAMETERS)
CALLED = '{"tool_calls": [{"name": "add", "arguments": {"a": 1}}, {"name": "add", "arguments": {"a": 2}}]}'
APIS = ("openai", "anthropic")


def served(api: str, server: OpenAIServer) -> ModelSpec:
    """The model of an API behind the test server."""
    if api == "openai":
        return OpenAICompatible(base_url=server.url, model="test")
    return Anthropic(base_url=server.url, model="test", api_key_env=None)


async def ask(spec: ModelSpec, *messages: Message, **fields: Any) -> ChatAnswer:
    """One answer."""
    fields.setdefault("tools", (ADD,))
    async with open_models({"m": spec}) as clients:
        return await clients["m"].chat(ChatRequest(messages=messages, **fields))


QUESTION = Message(role="user", content="What is 1 + 1, and 2 + 1?")


@pytest.mark.parametrize("api", APIS)
async def test_calls_and_results_go_back_and_forth(api: str) -> None:
    """The definitions are sent, the calls are read, and the conversation with their results is in the API's format."""

    def script(request: ServerRequest) -> str:
        return "Two and three." if request.number > 1 else CALLED

    async with serve_openai(script=script, record=True) as server:
        spec = served(api, server)
        answer = await ask(spec, QUESTION)
        assert [(call.name, json.loads(call.arguments)) for call in answer.tool_calls] == [
            ("add", {"a": 1}),
            ("add", {"a": 2}),
        ]
        first, second = answer.tool_calls
        assert first.id != second.id
        said = Message(role="assistant", content=answer.text, tool_calls=answer.tool_calls)
        results = [
            Message(role="tool", content=text, tool_call_id=call.id) for call, text in ((first, "2"), (second, "3"))
        ]
        last = await ask(spec, QUESTION, said, *results)
    assert (last.text, last.tool_calls) == ("Two and three.", ())
    sent = server.requests[1].body
    if api == "openai":
        assert sent["tools"] == [
            {"type": "function", "function": {"name": "add", "description": "Adds one.", "parameters": PARAMETERS}}
        ]
        assert sent["messages"][1]["tool_calls"][0] == {
            "id": first.id,
            "type": "function",
            "function": {"name": "add", "arguments": first.arguments},
        }
        assert sent["messages"][2:] == [
            {"role": "tool", "tool_call_id": first.id, "content": "2"},
            {"role": "tool", "tool_call_id": second.id, "content": "3"},
        ]
    else:
        assert sent["tools"] == [{"name": "add", "description": "Adds one.", "input_schema": PARAMETERS}]
        assert [block["type"] for block in sent["messages"][1]["content"]] == ["tool_use", "tool_use"]
        # The results of one turn are one message.
        assert sent["messages"][2:] == [
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": first.id, "content": "2"},
                    {"type": "tool_result", "tool_use_id": second.id, "content": "3"},
                ],
            }
        ]


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("text", [CALLED, '{"a": 5}'], ids=["calls", "answers"])
async def test_tools_and_a_schema_are_sent_together(api: str, text: str) -> None:
    """A model with both may call a tool or give the answer that fits the schema."""
    async with serve_openai(answer=text) as server:
        answer = await ask(served(api, server), QUESTION, schema=PARAMETERS)
    assert len(answer.tool_calls) == (2 if text == CALLED else 0)
    assert answer.tool_calls or json.loads(answer.text) == {"a": 5}


async def test_signed_thinking_goes_back_with_the_calls() -> None:
    """Anthropic's API wants the thinking that led to a call together with its result."""
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    called = {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}
    reply = Reply(body={"content": [thinking, called], "stop_reason": "tool_use"})
    async with serve_openai(script=lambda request: reply if request.number == 1 else "Two.", record=True) as server:
        spec = served("anthropic", server)
        answer = await ask(spec, QUESTION)
        said = Message(role="assistant", content="", tool_calls=answer.tool_calls, thinking=answer.thinking)
        await ask(spec, QUESTION, said, Message(role="tool", content="2", tool_call_id="t1"))
    assert server.requests[1].body["messages"][1]["content"] == [thinking, called]


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        (
            [{"function": {"name": "add", "arguments": {"a": 1}}}],
            [ToolCall(id="call_1", name="add", arguments='{"a": 1}')],
        ),
        ([{"id": "x", "function": {"name": "add", "arguments": ""}}], [ToolCall(id="x", name="add", arguments="{}")]),
        ([{"id": "x", "function": {"name": 7}}, "?", {"function": None}], None),
        ({"name": "add"}, None),
    ],
    ids=["no id, an object", "no arguments", "nonsense", "no list"],
)
async def test_calls_of_lenient_servers_are_read(calls: Any, expected: list[ToolCall] | None) -> None:
    """Missing ids and arguments that are objects are accepted; an answer of nothing but nonsense is a failed call."""
    body = {"choices": [{"message": {"content": None, "tool_calls": calls}, "finish_reason": "tool_calls"}]}
    async with serve_openai(script=lambda _: Reply(body=body)) as server:
        spec = served("openai", server)
        if expected is None:
            with pytest.raises(Retryable, match="without any text"):
                await ask(spec, QUESTION)
        else:
            assert list((await ask(spec, QUESTION)).tool_calls) == expected


@pytest.mark.parametrize("api", APIS)
async def test_the_test_server_calls_a_tool_and_then_answers(api: str) -> None:
    """Without a script: the first answer calls a tool with arguments that fit, the answer to its result is text."""
    async with serve_openai() as server:
        spec = served(api, server)
        answer = await ask(spec, QUESTION)
        (call,) = answer.tool_calls
        assert isinstance(json.loads(call.arguments)["a"], int)
        said = Message(role="assistant", content="", tool_calls=answer.tool_calls)
        last = await ask(spec, QUESTION, said, Message(role="tool", content="2", tool_call_id=call.id))
    assert last.text
    assert not last.tool_calls


async def test_a_scripted_model_calls_tools() -> None:
    """In a template, by a function, or generated where there is no script; a request without tools has none."""
    for answers in ('{"tool_calls": [{"name": "add", "arguments": {"text": "{prompt}"}}]}', None):
        answer = await ask(Scripted(answers=answers), Message(role="user", content='say "hi"'))
        (call,) = answer.tool_calls
        assert call.name == "add"
        assert answers is None or json.loads(call.arguments) == {"text": 'say "hi"'}
    called = ChatAnswer(text="", tool_calls=(ToolCall(id="1", name="add", arguments="{}"),))
    assert (await ask(Scripted(answers=lambda _: called), QUESTION)).tool_calls == called.tool_calls
    assert not (await ask(Scripted(), QUESTION, tools=())).tool_calls


def test_requests_differ_by_tools_and_calls() -> None:
    """What identifies a call has the tools, the calls and which call a result answers."""
    base = ChatRequest(messages=(QUESTION,))
    call = ToolCall(id="1", name="add", arguments="{}")
    others = [
        attrs.evolve(base, tools=(ADD,)),
        attrs.evolve(base, messages=(Message(role="user", content=QUESTION.content, tool_calls=(call,)),)),
        attrs.evolve(base, messages=(Message(role="user", content=QUESTION.content, tool_call_id="1"),)),
    ]
    assert len({request_key("m", request) for request in (base, *others)}) == 4


async def test_the_local_model_says_that_it_calls_no_tools() -> None:
    """The message names what to do; nothing is sent."""
    client = LocalClient(None, 100)  # type: ignore[arg-type]
    with pytest.raises(Permanent, match="use another model for columns with tools"):
        await client.chat(ChatRequest(messages=(QUESTION,), tools=(ADD,)))
