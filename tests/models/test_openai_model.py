from __future__ import annotations

import base64
import json
import math
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import trio
from model_helpers import ask, open_pair

import seedbed
from seedbed.errors import BuildStopped, CellError, ConfigError, ModelMisconfigured, Permanent, RateLimited, Retryable
from seedbed.models import ChatRequest, Image, Message, OpenAICompatible, open_models
from seedbed.models.answers import small_png
from seedbed.testing import Reply, serve_openai

if TYPE_CHECKING:
    from pathlib import Path

    from seedbed.testing import ServerRequest

KEY = "sk-test-0123456789abcdef"


async def test_a_chat() -> None:
    """Messages and parameters are sent as the API expects them; text, finish reason and usage are returned."""
    async with open_pair(record=True, answer="four") as (server, client):
        answer = await client.chat(
            ChatRequest(
                messages=(Message(role="system", content="Be brief."), Message(role="user", content="2+2?")),
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


async def test_missing_usage_is_estimated() -> None:
    """Without usage in the answer, tokens are estimated from the texts."""
    async with open_pair(usage=False, answer="x" * 40) as (_, client):
        answer = await client.chat(ask("y" * 80))
    assert (answer.tokens.input, answer.tokens.output) == (20, 10)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_reasoning(field: str) -> None:
    """Reasoning is separate from the text."""
    message = {"role": "assistant", "content": "4", field: "two and two"}
    reply = Reply(body={"choices": [{"message": message, "finish_reason": "stop"}]})
    async with open_pair(script=lambda _: reply) as (_, client):
        answer = await client.chat(ask("2+2?"))
    assert (answer.text, answer.reasoning) == ("4", "two and two")


async def test_a_schema_is_sent_as_the_response_format() -> None:
    """`strict` is set only for schemas that OpenAI accepts in strict mode."""
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
async def test_a_schema_for_servers_without_schema_support(how: str, format_: Any) -> None:
    """The schema is described in the prompt."""
    async with open_pair({"structured_output": how}, record=True) as (server, client):
        await client.chat(ask("Judge.", schema={"type": "object"}))
        (request,) = server.requests
    assert request.body.get("response_format") == format_
    assert request.body["messages"][0]["role"] == "system"
    assert '{"type": "object"}' in request.body["messages"][0]["content"]


async def test_images_are_sent_as_data_urls() -> None:
    """An image is part of its message."""
    message = Message(role="user", content="What is it?", images=(Image(data=b"abc", media_type="image/jpeg"),))
    async with open_pair(record=True) as (server, client):
        await client.chat(ChatRequest(messages=(message,)))
        (request,) = server.requests
    assert request.body["messages"][0]["content"] == [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,YWJj"}},
    ]


async def test_embeddings() -> None:
    """Vectors are in the order of the texts, whatever order the server sends."""
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


async def test_images_are_generated() -> None:
    """An image is in the answer, as base64 or a data URL, or is fetched from the URL in it."""
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
        *((f"[[{status}]]", Permanent, f"model 'small' answered {status}: .*") for status in (400, 413, 422)),
        *(
            (f"[[{status}]]", ModelMisconfigured, f"model 'small' answered {status}: .*; check ")
            for status in (401, 403, 404)
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
async def test_failures_are_classified(prompt: str, error: type[Exception], message: str) -> None:
    """Statuses, broken answers and refusals are retryable, rate-limited or permanent."""
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
async def test_a_200_without_an_answer_is_an_error(body: Any, error: type[Exception], message: str) -> None:
    """The error names what is missing."""
    async with open_pair(script=lambda _: Reply(body=body)) as (_, client):
        with pytest.raises(error, match=message):
            await client.chat(ask("hello"))


async def test_json_that_is_nested_too_deeply_is_malformed() -> None:
    """JSON that exceeds the recursion limit is a retryable error."""
    deep: Any = b"[" * 100_000
    async with open_pair(script=lambda _: Reply(body=deep)) as (_, client):
        with pytest.raises(Retryable, match="model 'small' answered 200 with malformed JSON"):
            await client.chat(ask("hello"))


@pytest.mark.parametrize("count", [-5, math.nan, math.inf])
async def test_invalid_usage_is_estimated(count: float) -> None:
    """Negative and non-finite counts neither refund a budget nor fail the call."""
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
async def test_invalid_images_are_retryable(data: Any, message: str) -> None:
    """An answer without a usable image is a retryable error."""
    async with open_pair(script=lambda _: Reply(body={"data": data})) as (_, client):
        with pytest.raises(Retryable, match=f"model 'small' .*{message}"):
            await client.image("a cat", {})


@pytest.mark.parametrize("data", [None, [{"index": 0}], [{"embedding": ["x"]}], ["x"]])
async def test_invalid_embeddings_are_retryable(data: Any) -> None:
    """An answer without vectors is a retryable error."""
    async with open_pair(script=lambda _: Reply(body={"data": data})) as (_, client):
        with pytest.raises(Retryable, match="model 'small' answered without embeddings"):
            await client.embed(["x"], {})


async def test_an_image_that_cannot_be_fetched() -> None:
    """The error names the status of the image server, which may be any server."""
    async with serve_openai() as server:
        gone = {"data": [{"url": f"{server.url}/gone.png"}]}
        async with open_pair(script=lambda _: Reply(body=gone)) as (_, client):
            with pytest.raises(Permanent, match="model 'small': the server of its image answered 404"):
                await client.image("a cat", {})


@pytest.mark.parametrize(
    ("data", "kind"),
    [(b"\xff\xd8..", "jpeg"), (b"GIF89a", "gif"), (b"RIFF....WEBP", "webp"), (b"\x89PNG", "png")],
)
async def test_media_types_of_images(data: bytes, kind: str) -> None:
    """The media type is derived from the first bytes."""
    body = {"data": [{"b64_json": base64.b64encode(data).decode()}]}
    async with open_pair(script=lambda _: Reply(body=body)) as (_, client):
        assert (await client.image("a cat", {})).images[0].media_type == f"image/{kind}"


async def test_a_truncated_answer_is_an_answer() -> None:
    """The finish reason "length" is not an error, also without any text."""
    async with open_pair() as (_, client):
        assert (await client.chat(ask("[[length]]"))).finish_reason == "length"
    nothing = {"choices": [{"message": {"content": None}, "finish_reason": "length"}]}
    async with open_pair(script=lambda _: Reply(body=nothing)) as (_, client):
        assert (await client.chat(ask("hello"))).text == ""


async def test_content_parts_are_joined() -> None:
    """The texts of all parts form the answer."""
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    body = {"choices": [{"message": {"content": parts}}]}
    async with open_pair(script=lambda _: Reply(body=body)) as (_, client):
        assert (await client.chat(ask("hello"))).text == "one two"


async def test_a_content_part_without_text_adds_nothing() -> None:
    """A part whose text is null or no text is skipped."""
    parts = [{"type": "text", "text": None}, {"type": "text", "text": "one"}, {"type": "x", "text": {"value": "two"}}]
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
async def test_waits_that_a_rate_limit_requests(
    headers: dict[str, str], retry_after: Any, reset: Any, status: int
) -> None:
    """The failure has the wait of the call, and that of the whole key only if its quota is exhausted.

    503 and 529 without a wait are retryable errors.
    """
    reply = Reply(status=status, body={"error": {"message": "no", "code": "rate_limit_exceeded"}}, headers=headers)
    is_rate_limited = status == 429 or retry_after is not None or reset is not None
    async with open_pair(script=lambda _: reply) as (_, client):
        with pytest.raises(CellError, match=rf"answered {status}: no \(rate_limit_exceeded\)") as caught:
            await client.chat(ask("hello"))
    if is_rate_limited:
        assert isinstance(caught.value, RateLimited)
        assert (caught.value.retry_after, caught.value.reset) == (retry_after, reset)
    else:
        assert isinstance(caught.value, Retryable)


async def test_a_redirect_is_an_error() -> None:
    """A redirect is not followed; the error names its target."""
    reply = Reply(status=308, body=b"", headers={"location": "https://example.org/v2"})
    async with open_pair(script=lambda _: reply) as (_, client):
        with pytest.raises(Permanent, match=r"answered 308: it has moved to https://example.org/v2"):
            await client.chat(ask("hello"))


async def test_a_call_that_hangs_ends_with_the_timeout() -> None:
    """The error names the model."""
    async with open_pair({"timeout": 0.05}) as (server, client):
        with pytest.raises(Retryable, match=r"model 'small': no answer from .* within 0.05 s"):
            await client.chat(ask("[[hang]]"))
        await server.wait_until(disconnects=1)


async def test_a_refused_connection_is_retryable() -> None:
    """The error names the model and the address."""
    async with OpenAICompatible(base_url="http://127.0.0.1:9", model="small").open() as client:
        with pytest.raises(Retryable, match=r"model 'small': no connection to 127.0.0.1:9: .*refused"):
            await client.chat(ask("hello"))


async def test_the_key_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """No repr, error or id contains the key, even if the server echoes it."""
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


async def test_a_missing_key_is_reported_before_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """problems() and open() name the missing environment variable."""
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
        ({"timeout": 0}, "timeout must be seconds above 0"),
        ({"input_price": -1}, "input_price must be money"),
        ({"max_parallel_requests": 0}, "max_parallel_requests must be a whole number"),
        ({"requests_per_minute": 0}, "requests_per_minute must be None for no limit, or a number above 0"),
        ({"parameters": {"temperature": {"uniform": [1]}}}, r"parameters.temperature: uniform needs two numbers"),
        ({"parameters": [1]}, "parameters must be a mapping"),
        ({"headers": {"authorization": "Bearer hidden"}}, "'authorization' looks like a secret"),
        ({"api_key_env": "sk-hidden-key"}, "api_key_env must be the name of an environment variable"),
        ({"structured_output": "magic"}, "structured_output must be 'json_schema' or 'json_object' or 'prompt'"),
    ],
)
def test_fields_are_validated(fields: dict[str, Any], message: str) -> None:
    """The message names the field and what is expected, and shows no secret."""
    with pytest.raises(ConfigError, match=message) as caught:
        OpenAICompatible(**{"base_url": "http://127.0.0.1:9", "model": "small", **fields})
    assert "hidden" not in str(caught.value)


async def test_aliases_of_one_provider_share_a_client() -> None:
    """Two models of one server share connections; each call names its own model."""
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
    """The query follows the path of the API, and invalid characters are percent-encoded."""
    async with serve_openai(record=True) as server:
        spec = OpenAICompatible(base_url=f"{server.url}/deploy é?api-version=2", model="small")
        async with spec.open() as client:
            await client.chat(ask("hello"))
        assert server.requests[0].path == "/v1/deploy%20%C3%A9/chat/completions?api-version=2"


async def test_cancelling_a_call_closes_it() -> None:
    """The server sees the disconnect."""
    async with open_pair() as (server, client), trio.open_nursery() as nursery:
        nursery.start_soon(client.chat, ask("[[hang]]"))
        await server.wait_until(requests=1)
        nursery.cancel_scope.cancel()
    assert server.statistics.max_in_flight == 1


QUOTA = {"error": {"message": "You exceeded your current quota.", "type": "insufficient_quota", "code": None}}
UNKNOWN = {"error": {"message": "The model 'small' does not exist.", "code": "model_not_found"}}
PAGE = b"<!doctype html><title>Sign in</title>"


@pytest.mark.parametrize(
    ("status", "body", "cause", "fix", "answer"),
    [
        (401, {"error": "no such key"}, "answered 401", "check the key in the environment variable", "no such key"),
        (403, {"error": "not yours"}, "answered 403", "and whether it may use this model", "not yours"),
        (404, UNKNOWN, "answered 404", "check the name of the model and its base_url", "does not exist"),
        (400, UNKNOWN, "answered 400", "check the name of the model", "does not exist"),
        (404, PAGE, "answered 404", "check the name of the model and its base_url", "Sign in"),
        (200, PAGE, "answered 200 with a page in place of JSON", "check its base_url", "Sign in"),
        (429, QUOTA, "answered 429, the quota of its key is used up", "raise the limit or pay", "your current quota"),
        (
            200,
            {"error": {"code": "insufficient_quota", "message": "pay"}},
            "the quota of its key",
            "pay the bill",
            "pay",
        ),
        (402, {"error": "pay"}, "answered 402, the quota of its key is used up", "raise the limit or pay", "pay"),
    ],
)
async def test_a_model_that_is_misconfigured(
    *, status: int, body: Any, cause: str, fix: str, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong key, name or URL and a used-up quota are one class, with cause, fix and the text of the server."""
    monkeypatch.setenv("TEST_KEY", KEY)
    reply = Reply(status=status, body=body)
    async with open_pair({"api_key_env": "TEST_KEY"}, script=lambda _: reply) as (_, client):
        with pytest.raises(ModelMisconfigured) as caught:
            await client.chat(ask("hello"))
    found = pickle.loads(pickle.dumps(caught.value))
    assert "model 'small'" in found.cause
    assert cause in found.cause
    assert fix in found.fix
    assert answer in found.answer
    assert all(part in str(found) for part in (found.cause, found.fix, found.answer))
    assert found.blames_no_row is ("quota" in cause)


def two_columns(url: str) -> seedbed.Recipe:
    """A sampled column and one of a model at that URL."""
    model = OpenAICompatible(base_url=url, model="small", max_parallel_requests=2)
    columns = [
        seedbed.Uniform("x", low=0, high=1),
        seedbed.LLMText("answer", model="m", prompt="Say {{ x }}."),
    ]
    return seedbed.Recipe(columns=columns, models={"m": model})


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (401, {"error": "no such key"}, "answered 401: no such key; check its key"),
        (404, UNKNOWN, "answered 404: .*; check the name of the model"),
        (200, PAGE, "with a page in place of JSON: .*; check its base_url"),
        (429, QUOTA, "the quota of its key is used up: .*; raise the limit"),
    ],
)
async def test_a_misconfigured_model_stops_the_build_and_drops_nothing(
    status: int, body: Any, message: str, tmp_path: Path
) -> None:
    """The build stops at the first such answer that a small call confirms; a resume generates the rows."""
    is_fixed = False

    def script(_: object) -> Reply | None:
        return None if is_fixed else Reply(status=status, body=body)

    async with serve_openai(script=script) as server:
        recipe = two_columns(server.url)
        with pytest.raises(BuildStopped, match=f"column 'answer': model 'small' .*{message}") as caught:
            await seedbed.build_async(recipe, rows=20, out=tmp_path / "out")
        assert server.statistics.requests <= 4
        assert caught.value.report is not None
        assert caught.value.report.dropped == ()
        is_fixed = True
        dataset = await seedbed.build_async(recipe, rows=20, out=tmp_path / "out", resume=True)
        assert len(dataset) == 20


async def test_a_row_that_is_rejected_alone_does_not_stop_the_build(tmp_path: Path) -> None:
    """If the small call succeeds, the 403 was about the content of one row, which is dropped."""
    rejected: list[str] = []

    def script(request: ServerRequest) -> Reply | None:
        if request.prompt != "Say OK." and not rejected:
            rejected.append(request.prompt)
        return Reply(status=403, body={"error": "flagged"}) if request.prompt in rejected else None

    async with serve_openai(script=script) as server:
        dataset = await seedbed.build_async(two_columns(server.url), rows=20, out=tmp_path / "out")
    assert len(dataset) == 19
    assert dataset.report is not None
    assert "answered 403: flagged" in str(dataset.report.dropped)


async def test_cached_tokens() -> None:
    """Tokens of the prompt that the server read from its cache are counted, whatever else it sends in their place."""
    for details, cached in (({"cached_tokens": 90}, 90), ({"cached_tokens": 900}, 100), ({}, 0), ([1], 0), (None, 0)):
        usage = {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": details}
        message = {"role": "assistant", "content": "4"}
        reply = Reply(body={"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})
        async with open_pair(script=lambda _, reply=reply: reply) as (_, client):
            answer = await client.chat(ask("2+2?"))
        assert (answer.tokens.input, answer.tokens.cached, answer.tokens.cache_written) == (100, cached, 0)
