from __future__ import annotations

import base64
import json
import math
from typing import Any

import pytest
import trio
from model_helpers import ask, open_pair

from seedbed.errors import CellError, ConfigError, Permanent, RateLimited, Retryable
from seedbed.models import ChatRequest, Image, Message, OpenAICompatible, open_models
from seedbed.models.answers import small_png
from seedbed.testing import Reply, serve_openai

KEY = "sk-test-0123456789abcdef"


async def test_a_chat() -> None:
    """Messages and parameters go out as the API wants them; text, end and usage come back."""
    async with open_pair(record=True, answer="four") as (server, client):
        answer = await client.chat(
            ChatRequest(
                messages=(Message(role="system", text="Be brief."), Message(role="user", text="2+2?")),
                parameters={"temperature": 0.5, "max_tokens": 5},
            )
        )
        (request,) = server.requests
    assert request.path == "/v1/chat/completions"
    assert request.body == {
        "model": "small",
        "temperature": 0.5,
        "max_tokens": 5,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}],
    }
    assert (answer.text, answer.finish_reason, answer.reasoning) == ("four", "stop", None)
    assert (answer.tokens.input, answer.tokens.output) == (1, 1)


async def test_usage_is_estimated_where_the_server_does_not_say() -> None:
    """Without usage in the answer, tokens are estimated from the texts."""
    async with open_pair(usage=False, answer="x" * 40) as (_, client):
        answer = await client.chat(ask("y" * 80))
    assert (answer.tokens.input, answer.tokens.output) == (20, 10)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_reasoning(field: str) -> None:
    """What the model thought aloud is kept apart from what it said."""
    message = {"role": "assistant", "content": "4", field: "two and two"}
    reply = Reply(body={"choices": [{"message": message, "finish_reason": "stop"}]})
    async with open_pair(script=lambda _: reply) as (_, client):
        answer = await client.chat(ask("2+2?"))
    assert (answer.text, answer.reasoning) == ("4", "two and two")


async def test_a_schema_is_asked_for_and_kept_to() -> None:
    """A schema goes out as response_format, strict only where it may be, and the answer fits it."""
    loose = {"type": "object", "properties": {"score": {"type": "integer", "minimum": 1, "maximum": 5}}}
    strict = {**loose, "required": ["score"], "additionalProperties": False}
    async with open_pair(record=True) as (server, client):
        for schema in (loose, strict):
            answer = await client.chat(ask("Judge.", schema=schema))
            assert 1 <= json.loads(answer.text)["score"] <= 5
        first, second = (request.body["response_format"] for request in server.requests)
    assert first == {"type": "json_schema", "json_schema": {"name": "answer", "schema": loose}}
    assert second["json_schema"]["strict"] is True


@pytest.mark.parametrize(("how", "format_"), [("json_object", {"type": "json_object"}), ("prompt", None)])
async def test_a_schema_for_servers_that_take_none(how: str, format_: Any) -> None:
    """Where a server takes no schema it is said in words."""
    async with open_pair({"structured_output": how}, record=True) as (server, client):
        await client.chat(ask("Judge.", schema={"type": "object"}))
        (request,) = server.requests
    assert request.body.get("response_format") == format_
    assert request.body["messages"][0]["role"] == "system"
    assert '{"type": "object"}' in request.body["messages"][0]["content"]


async def test_images_go_as_data_urls() -> None:
    """A picture is sent within the message."""
    message = Message(role="user", text="What is it?", images=(Image(data=b"abc", media_type="image/jpeg"),))
    async with open_pair(record=True) as (server, client):
        await client.chat(ChatRequest(messages=(message,)))
        (request,) = server.requests
    assert request.body["messages"][0]["content"] == [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,YWJj"}},
    ]


async def test_embeddings() -> None:
    """Each text gets its vector, in order, whatever order the server answers in."""
    swapped = {"data": [{"index": 1, "embedding": [2, 0]}, {"index": 0, "embedding": [1, 0]}]}
    async with open_pair(script=lambda _: Reply(body=swapped)) as (_, client):
        answer = await client.embed(["first", "second"], {})
    assert answer.vectors == ((1.0, 0.0), (2.0, 0.0))
    async with open_pair() as (_, client):
        answer = await client.embed(["first", "second"], {"dimensions": 3})
        assert [len(vector) for vector in answer.vectors] == [3, 3]
        assert answer.tokens.input > 0
        with pytest.raises(Retryable, match="without 1 embeddings"):
            await client.embed(["[[empty]]"], {})


async def test_images_are_made() -> None:
    """A picture comes in the answer, as a data URL, or from where the answer points to."""
    picture = small_png("x")
    encoded = base64.b64encode(picture).decode()
    async with serve_openai(script=lambda _: None) as server:
        replies: list[Any] = [{"b64_json": encoded}, {"url": f"data:image/png;base64,{encoded}"}]
        for reply in replies:
            async with open_pair(script=lambda _, reply=reply: Reply(body={"data": [reply]})) as (_, client):
                (image,) = (await client.image("a cat", {})).images
            assert (image.data, image.media_type) == (picture, "image/png")
        elsewhere = {"data": [{"url": server.url + "/models"}]}
        async with open_pair(script=lambda _: Reply(body=elsewhere)) as (_, client):
            (image,) = (await client.image("a cat", {})).images
        assert b"object" in image.data
    async with open_pair() as (_, client):
        assert (await client.image("a cat", {})).images[0].data.startswith(b"\x89PNG")
        with pytest.raises(Retryable, match="without images"):
            await client.image("[[empty]]", {})


@pytest.mark.parametrize(
    ("prompt", "error", "message"),
    [
        *(
            (f"[[{status}]]", Retryable, f"model 'small' answered {status}: .*")
            for status in (408, 409, 425, 500, 502, 503, 529)
        ),
        *(
            (f"[[{status}]]", Permanent, f"model 'small' answered {status}: .*")
            for status in (400, 401, 403, 404, 413, 422)
        ),
        ("[[429]]", RateLimited, "model 'small' answered 429: .*rate_limit_exceeded"),
        ("[[malformed]]", Retryable, "model 'small' answered 200 with malformed JSON: .*choices"),
        ("[[truncated]]", Retryable, "model 'small': .* in the middle of its answer"),
        ("[[reset]]", Retryable, "model 'small': .*reset"),
        ("[[empty]]", Retryable, "model 'small' answered without choices"),
        ("[[refusal]]", Permanent, "model 'small' refused: I cannot help with that."),
        ("[[filter]]", Permanent, "model 'small' stopped at its provider's content filter"),
    ],
)
async def test_every_failure_of_a_server_is_of_its_class(prompt: str, error: type[Exception], message: str) -> None:
    """Statuses, broken answers and refusals are what the engine retries, waits for or gives up."""
    async with open_pair() as (_, client):
        with pytest.raises(error, match=message) as caught:
            await client.chat(ask(prompt))
    assert type(caught.value) is error


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ([], Retryable, "is not an object"),
        ({}, Retryable, "without choices"),
        ({"choices": [{}]}, Retryable, "without a message"),
        ({"choices": [{"message": {"content": None}, "finish_reason": "stop"}]}, Retryable, "without any text"),
        ({"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]}, Retryable, "without any text"),
        ({"error": {"message": "overloaded", "code": 502}}, Retryable, "with an error: overloaded"),
        ({"error": {"message": "slow down", "code": 429}}, RateLimited, "with an error: slow down"),
    ],
)
async def test_answers_that_are_none(body: Any, error: type[Exception], message: str) -> None:
    """A 200 that holds no answer is an error that says what is missing."""
    async with open_pair(script=lambda _: Reply(body=body)) as (_, client):
        with pytest.raises(error, match=message):
            await client.chat(ask("hello"))


async def test_an_answer_that_is_nested_too_deeply_is_malformed() -> None:
    """What no parser can follow is no answer; the server may do better next time."""
    deep: Any = b"[" * 100_000
    async with open_pair(script=lambda _: Reply(body=deep)) as (_, client):
        with pytest.raises(Retryable, match="model 'small' answered 200 with malformed JSON"):
            await client.chat(ask("hello"))


@pytest.mark.parametrize("count", [-5, math.nan, math.inf])
async def test_usage_that_is_no_count_is_estimated(count: float) -> None:
    """A server cannot give tokens back to a budget, nor lose an answer by what it says of its use."""
    body = {
        "choices": [{"message": {"content": "x" * 40}}],
        "usage": {"prompt_tokens": count, "completion_tokens": count},
    }
    async with open_pair(script=lambda _: Reply(body=body)) as (_, client):
        answer = await client.chat(ask("y" * 80))
    assert (answer.tokens.input, answer.tokens.output) == (20, 10)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([{"b64_json": "***"}], "an image that is not base64"),
        ([{"url": 3}], "without images"),
        ([{"url": "ftp://example.org/cat.png"}], "without images"),
        (["cat"], "without images"),
        (None, "without images"),
    ],
)
async def test_pictures_that_are_none(data: Any, message: str) -> None:
    """An answer without a usable picture may come better the next time."""
    async with open_pair(script=lambda _: Reply(body={"data": data})) as (_, client):
        with pytest.raises(Retryable, match=f"model 'small' .*{message}"):
            await client.image("a cat", {})


@pytest.mark.parametrize("data", [None, [{"index": 0}], [{"embedding": ["x"]}], ["x"]])
async def test_vectors_that_are_none(data: Any) -> None:
    """An answer without numbers may come better the next time."""
    async with open_pair(script=lambda _: Reply(body={"data": data})) as (_, client):
        with pytest.raises(Retryable, match="model 'small' answered without embeddings"):
            await client.embed(["x"], {})


async def test_a_picture_that_cannot_be_fetched() -> None:
    """A link that leads nowhere is a failure by its own status."""
    async with serve_openai() as server:
        gone = {"data": [{"url": f"{server.url}/gone.png"}]}
        async with open_pair(script=lambda _: Reply(body=gone)) as (_, client):
            with pytest.raises(Permanent, match="model 'small' answered 404"):
                await client.image("a cat", {})


@pytest.mark.parametrize(
    ("data", "kind"),
    [(b"\xff\xd8..", "jpeg"), (b"GIF89a", "gif"), (b"RIFF....WEBP", "webp"), (b"\x89PNG", "png")],
)
async def test_kinds_of_pictures(data: bytes, kind: str) -> None:
    """The kind of a picture is told by how it begins."""
    body = {"data": [{"b64_json": base64.b64encode(data).decode()}]}
    async with open_pair(script=lambda _: Reply(body=body)) as (_, client):
        assert (await client.image("a cat", {})).images[0].media_type == f"image/{kind}"


async def test_an_answer_that_was_cut_off_is_an_answer() -> None:
    """The end "length" is noted and not an error, also where no text came before it."""
    async with open_pair() as (_, client):
        assert (await client.chat(ask("[[length]]"))).finish_reason == "length"
    nothing = {"choices": [{"message": {"content": None}, "finish_reason": "length"}]}
    async with open_pair(script=lambda _: Reply(body=nothing)) as (_, client):
        assert (await client.chat(ask("hello"))).text == ""


async def test_content_in_parts_is_put_together() -> None:
    """Text that comes in parts is one text."""
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    body = {"choices": [{"message": {"content": parts}}]}
    async with open_pair(script=lambda _: Reply(body=body)) as (_, client):
        assert (await client.chat(ask("hello"))).text == "one two"


async def test_a_content_part_without_text_adds_nothing() -> None:
    """A part whose text is null is no text, and not the word None."""
    parts = [{"type": "text", "text": None}, {"type": "text", "text": "one"}]
    body = {"choices": [{"message": {"content": parts}}]}
    async with open_pair(script=lambda _: Reply(body=body)) as (_, client):
        assert (await client.chat(ask("hello"))).text == "one"


@pytest.mark.parametrize(
    ("headers", "retry_after", "reset"),
    [
        ({}, None, None),
        ({"retry-after": "3"}, "3", None),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25, None),
        ({"retry-after-ms": "soon", "retry-after": "1"}, "1", None),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, "Wed, 21 Oct 2026 07:28:00 GMT", None),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"}, None, "6m0s"),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "1s"}, None, "1s"),
        ({"x-ratelimit-remaining-requests": "5", "x-ratelimit-reset-requests": "6m0s"}, None, None),
        (
            {
                "anthropic-ratelimit-input-tokens-remaining": "0",
                "anthropic-ratelimit-input-tokens-reset": "2026-11-16T05:00:00Z",
            },
            None,
            "2026-11-16T05:00:00Z",
        ),
        ({"x-ratelimit-reset-requests": "120ms"}, None, "120ms"),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "7"}, None, "7"),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "never"}, None, None),
        (
            {
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-requests": "1s",
                "x-ratelimit-remaining-tokens": "0",
                "x-ratelimit-reset-tokens": "6m0s",
                "retry-after-ms": "120",
            },
            0.12,
            "6m0s",
        ),
    ],
)
@pytest.mark.parametrize("status", [429, 503, 529])
async def test_what_a_refusal_asks_for(headers: dict[str, str], retry_after: Any, reset: Any, status: int) -> None:
    """A refusal carries how long to wait, and for the whole key only where the provider says it has nothing left.

    A server that is overloaded (503, 529) and does not say how long has failed.
    """
    reply = Reply(status=status, body={"error": {"message": "no", "code": "insufficient_quota"}}, headers=headers)
    is_refusal = status == 429 or retry_after is not None or reset is not None
    async with open_pair(script=lambda _: reply) as (_, client):
        with pytest.raises(CellError, match=rf"answered {status}: no \(insufficient_quota\)") as caught:
            await client.chat(ask("hello"))
    if is_refusal:
        assert isinstance(caught.value, RateLimited)
        assert (caught.value.retry_after, caught.value.reset) == (retry_after, reset)
    else:
        assert isinstance(caught.value, Retryable)


async def test_a_place_that_has_moved_is_permanent() -> None:
    """A redirect is not followed but told."""
    reply = Reply(status=308, body=b"", headers={"location": "https://example.org/v2"})
    async with open_pair(script=lambda _: reply) as (_, client):
        with pytest.raises(Permanent, match=r"answered 308: it has moved to https://example.org/v2"):
            await client.chat(ask("hello"))


async def test_hangs_end_by_the_timeout() -> None:
    """A call that takes too long is an error that names the model."""
    async with open_pair({"timeout": 0.05}) as (server, client):
        with pytest.raises(Retryable, match=r"model 'small': no answer from .* within 0.05 s"):
            await client.chat(ask("[[hang]]"))
        await server.wait_until(disconnects=1)


async def test_a_server_that_is_not_there_is_retryable() -> None:
    """A refused connection names the model."""
    async with OpenAICompatible(base_url="http://127.0.0.1:9", model="small").open() as client:
        with pytest.raises(Retryable, match=r"model 'small': no connection to 127.0.0.1:9: .*refused"):
            await client.chat(ask("hello"))


async def test_the_key_comes_from_the_environment_and_goes_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key reaches the server and no repr, no error and no id, even if the server sends it back."""
    monkeypatch.setenv("SEEDBED_TEST_KEY", KEY)
    monkeypatch.setenv("SEEDBED_TEST_OTHER", "another-secret-value")
    async with serve_openai(api_key=KEY, record=True) as server:
        spec = OpenAICompatible(
            base_url=server.url,
            model="small",
            api_key_env="SEEDBED_TEST_KEY",
            headers={"x-api-key": "${SEEDBED_TEST_OTHER}"},
        )
        async with spec.open() as client:
            await client.chat(ask("hello"))
            shown = f"{spec!r} {spec.provider_id} {spec.key('chat')} {client!r} {vars(client)!r} {server.requests!r}"
    async with serve_openai(
        script=lambda request: Reply(
            status=401, body={"error": f"bad key {request.headers['authorization']} {KEY[:12]}"}
        )
    ) as server:
        echoing = OpenAICompatible(base_url=server.url, model="small", api_key_env="SEEDBED_TEST_KEY")
        async with echoing.open() as client:
            with pytest.raises(Permanent, match="answered 401: bad key") as caught:
                await client.chat(ask("hello"))
    shown += repr(caught.value)
    assert KEY not in shown
    assert KEY[:12] not in shown
    assert "another-secret-value" not in shown


async def test_a_missing_key_is_told_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable that is missing is named, by problems() and by open()."""
    monkeypatch.delenv("SEEDBED_TEST_KEY", raising=False)
    spec = OpenAICompatible(
        base_url="http://127.0.0.1:9/v1",
        model="small",
        api_key_env="SEEDBED_TEST_KEY",
        headers={"x-org": "${SEEDBED_TEST_ORG}"},
    )
    assert [problem.split()[-5] for problem in spec.problems()] == ["SEEDBED_TEST_KEY,", "SEEDBED_TEST_ORG,"]
    with pytest.raises(ConfigError, match="SEEDBED_TEST_KEY, which is not set"):
        async with spec.open():
            pass


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"base_url": "example.org"}, "base_url must be an http or https URL"),
        ({"base_url": "http://me:pass@example.org"}, "must not contain a user name"),
        ({"base_url": "http://example.org/v1?api-key=hidden"}, "must not contain a key"),
        ({"model": ""}, "model must be a text"),
        ({"timeout": 0}, "timeout must be seconds, above 0"),
        ({"input_price": -1}, "input_price must be money"),
        ({"max_parallel_requests": 0}, "max_parallel_requests must be a whole number"),
        ({"requests_per_minute": 0}, "requests_per_minute must be a number above 0"),
        ({"parameters": {"temperature": {"uniform": [1]}}}, r"parameters.temperature: uniform needs two numbers"),
        ({"parameters": [1]}, "parameters must be a mapping"),
        ({"headers": {"authorization": "Bearer hidden"}}, "'authorization' looks like a secret"),
        ({"api_key_env": "sk-hidden-key"}, "api_key_env must be the name of an environment variable"),
        ({"structured_output": "magic"}, "structured_output must be one of 'json_schema'"),
    ],
)
def test_fields_are_checked(fields: dict[str, Any], message: str) -> None:
    """A wrong field is told with what is allowed, and without what may be a secret."""
    with pytest.raises(ConfigError, match=message) as caught:
        OpenAICompatible(**{"base_url": "http://127.0.0.1:9", "model": "small", **fields})
    assert "hidden" not in str(caught.value)


async def test_aliases_of_one_provider_share_a_client() -> None:
    """Two models of one server use the same connections and are asked for by their own names."""
    async with serve_openai(record=True) as server:
        specs = {
            name: OpenAICompatible(base_url=f"{server.url}/", model=name, max_parallel_requests=number)
            for number, name in enumerate(("small", "large"), start=1)
        }
        async with open_models(specs) as clients:
            await clients["small"].chat(ask("hello"))
            await clients["large"].chat(ask("hello"))
            await clients["small"].chat(ask("hello"))
        assert [request.body["model"] for request in server.requests] == ["small", "large", "small"]
        assert server.statistics.connections == 1
    assert specs["small"].key("chat") != specs["large"].key("chat") != specs["large"].key("image")


async def test_a_query_in_the_base_url_stays_at_the_end() -> None:
    """What some providers want in the query goes behind the path, and characters that may not are written as %xx."""
    async with serve_openai(record=True) as server:
        spec = OpenAICompatible(base_url=f"{server.url}/deploy é?api-version=2", model="small")
        async with spec.open() as client:
            await client.chat(ask("hello"))
        assert server.requests[0].path == "/v1/deploy%20%C3%A9/chat/completions?api-version=2"


async def test_cancelling_a_call_closes_it() -> None:
    """The server sees that nobody waits for the answer any more."""
    async with open_pair() as (server, client), trio.open_nursery() as nursery:
        nursery.start_soon(client.chat, ask("[[hang]]"))
        await server.wait_until(requests=1)
        nursery.cancel_scope.cancel()
    assert server.statistics.max_in_flight == 1
