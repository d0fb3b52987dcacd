from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from model_helpers import ask

import seedbed as sb
from seedbed.errors import ConfigError, Permanent, RateLimited, Retryable
from seedbed.models import ChatAnswer, Scripted, open_models
from seedbed.models.answers import fitting_json, plausible_text
from seedbed.models.distributions import stable_seed

if TYPE_CHECKING:
    from seedbed.models import ChatRequest


async def say(spec: Scripted, prompt: str, **options: Any) -> ChatAnswer:
    """The answer of a scripted model to one prompt."""
    async with spec.open() as client:
        return await client.chat(ask(prompt, **options))


async def test_the_same_prompt_has_the_same_answer() -> None:
    """Answers depend only on the prompt, fit it, and count tokens."""
    prompt = "Write a review of the Copper Kettle by a customer."
    first, second = [await say(Scripted(), prompt) for _ in range(2)]
    assert first == second
    assert "Copper Kettle" in first.text
    assert first.tokens.input > 0
    assert first.tokens.output > 0
    many = {plausible_text(f"Write a review of the Copper Kettle, number {number}.") for number in range(50)}
    assert len(many) > 3


@pytest.mark.parametrize(
    ("answers", "prompt", "text"),
    [
        ("You said {prompt}.", "hello", "You said hello."),
        ("{choice:yes}", "hello", "yes"),
        ("On {after:Topic:}{after:missing:}", "Write.\nTopic: green tea \nNow.", "On green tea"),
        (["only"], "hello", "only"),
        ({"tea": "hot", "*": "other"}, "A cup of Tea?", "hot"),
        ({"tea": ["hot"], "*": "other"}, "rain", "other"),
        (lambda request: request.messages[-1].content.upper(), "hello", "HELLO"),
        (lambda _: ChatAnswer(text="whole", reasoning="why"), "hello", "whole"),
    ],
)
async def test_answers_can_be_templates_lists_mappings_or_functions(answers: Any, prompt: str, text: str) -> None:
    """Each form of `answers` determines the text."""
    assert (await say(Scripted(answers=answers), prompt)).text == text


async def test_inserted_text_is_escaped_where_json_is_requested() -> None:
    """Text inserted into an answer to a request with a schema is escaped."""
    said = await say(Scripted(answers='{"t": "{after:Topic:}"}'), 'Topic: "tea"', schema={"type": "object"})
    assert json.loads(said.text) == {"t": '"tea"'}


async def test_a_function_sees_the_whole_request() -> None:
    """A function gets messages, parameters, schema and the seed of the call."""
    seen: list[ChatRequest] = []

    def answer(request: ChatRequest) -> str:
        seen.append(request)
        return str(request.seed)

    said = await say(Scripted(answers=answer), "x", seed_parts=(17,), parameters={"temperature": 1})
    assert said.text == str(stable_seed(17))
    assert seen[0].parameters == {"temperature": 1}


async def test_latency_passes_in_virtual_time(autojump_clock: Any) -> None:
    """Latency, constant or drawn by prompt, passes on trio's clock."""
    await say(Scripted(latency=3600), "hello")
    assert trio.current_time() == pytest.approx(3600)
    begun = trio.current_time()
    await say(Scripted(latency={"uniform": [10, 20]}), "hello")
    assert 10 <= trio.current_time() - begun <= 20


@pytest.mark.parametrize(
    ("outcome", "error", "message"),
    [
        ("429 retry-after=2", RateLimited, "model 'scripted' answered 429"),
        ("500", Retryable, "model 'scripted' answered 500"),
        ("404", Permanent, "model 'scripted' answered 404"),
        ("hang", Retryable, "no answer within 120 s"),
        ("reset", Retryable, "reset"),
        ("malformed", Retryable, "malformed"),
        ("truncated", Retryable, "in the middle"),
        ("empty", Retryable, "without choices"),
        ("refusal", Permanent, "refused"),
    ],
)
async def test_scripts_of_failures(autojump_clock: Any, outcome: str, error: type[Exception], message: str) -> None:
    """The first calls end as the script lists, one by one; later calls succeed."""
    async with Scripted(first_outcomes=[outcome, "answer"]).open() as client:
        with pytest.raises(error, match=message) as caught:
            await client.chat(ask("hello"))
        assert (await client.chat(ask("hello"))).finish_reason == "stop"
        assert (await client.chat(ask("hello"))).finish_reason == "stop"
    assert not isinstance(caught.value, RateLimited) or caught.value.retry_after == "2"


async def test_calls_above_the_capacity_are_rate_limited(autojump_clock: Any) -> None:
    """Concurrent calls above the capacity fail at once, with the reset of the key."""
    refusals: list[RateLimited] = []

    async def call(client: Any, number: int) -> None:
        try:
            await client.chat(ask(f"hello {number}"))
        except RateLimited as error:
            refusals.append(error)

    async with Scripted(latency=1, capacity=3, reset_after="5s").open() as client, trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(call, client, number)
    assert [refusal.reset for refusal in refusals] == ["5s", "5s"]
    assert trio.current_time() == pytest.approx(1)


async def test_shares_of_failures_hold_and_every_prompt_succeeds(autojump_clock: Any) -> None:
    """About the configured share fails, each prompt at most twice."""
    outcomes: list[str] = []
    async with Scripted(error_share=0.2, rate_limit_share=0.3).open() as client:
        for number in range(300):
            for attempt in range(3):
                try:
                    await client.chat(ask(f"hello {number}"))
                except (RateLimited, Retryable) as error:
                    assert attempt < 2, f"prompt {number} failed three times"
                    if attempt == 0:
                        outcomes.append(type(error).__name__)
                else:
                    break
    assert 35 <= outcomes.count("Retryable") <= 85
    assert 60 <= outcomes.count("RateLimited") <= 120


async def test_shares_hold_for_one_prompt_too() -> None:
    """A repeated prompt is rate-limited as often as others, and never three times in a row."""
    outcomes = ""
    async with Scripted(rate_limit_share=0.4).open() as client:
        for _ in range(300):
            try:
                await client.chat(ask("hello"))
                outcomes += "."
            except RateLimited:
                outcomes += "x"
    assert 70 <= outcomes.count("x") <= 140
    assert "xx" in outcomes
    assert "xxx" not in outcomes


async def test_embeddings_and_images() -> None:
    """Vectors have length 1 and depend on the text; images are PNGs."""
    async with Scripted().open() as client:
        answer = await client.embed(["a", "b", "a"], {"dimensions": 8})
        assert answer.vectors[0] == answer.vectors[2] != answer.vectors[1]
        assert sum(number * number for number in answer.vectors[0]) == pytest.approx(1, abs=1e-5)
        (image,) = (await client.image("a cat", {})).images
    assert image.data.startswith(b"\x89PNG\r\n")
    assert image.data.endswith(b"IEND\xaeB`\x82")


SCHEMAS = st.recursive(
    st.one_of(
        st.just({"type": "string"}),
        st.just({"type": "string", "minLength": 30, "maxLength": 40}),
        st.just({"type": "boolean"}),
        st.just({"type": ["null", "integer"], "exclusiveMinimum": 2, "maximum": 3}),
        st.just({"type": "integer", "minimum": 3, "multipleOf": 5}),
        st.just({"type": "number", "minimum": -1.5, "exclusiveMaximum": -1.0}),
        st.just({"enum": ["red", 7, None]}),
        st.just({"const": {"a": 1}}),
        st.just({"$ref": "#/$defs/word"}),
    ),
    lambda inner: st.one_of(
        st.builds(lambda items, low: {"type": "array", "items": items, "minItems": low}, inner, st.integers(0, 3)),
        st.dictionaries(st.sampled_from(["name", "summary", "score"]), inner, max_size=3).map(
            lambda fields: {
                "type": "object",
                "properties": fields,
                "required": [*fields],
                "additionalProperties": False,
            }
        ),
        st.builds(lambda one: {"anyOf": [{"type": "null"}, one]}, inner),
        st.builds(lambda one: {"allOf": [one]}, inner),
    ),
    max_leaves=6,
)


@given(SCHEMAS, st.text())
def test_json_fits_its_schema(schema: dict[str, Any], prompt: str) -> None:
    """The value is valid for the schema and depends only on schema and prompt."""
    schema = {**schema, "$defs": {"word": {"type": "string", "format": "email"}}}
    text = fitting_json(schema, prompt)
    jsonschema.validate(json.loads(text), schema)
    assert text == fitting_json(schema, prompt)


async def test_a_schema_is_answered_with_json() -> None:
    """A request with a schema gets JSON, also one that contains itself."""
    tree = {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
                "required": ["children"],
            }
        },
        "$ref": "#/$defs/node",
    }
    answer = await say(Scripted(), "Draw a tree.", schema=tree)
    jsonschema.validate(json.loads(answer.text), tree)


@pytest.mark.parametrize(
    "child",
    [
        {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        {"anyOf": [{"$ref": "#"}, {"type": "string"}]},
        {"type": ["object", "null"], "allOf": [{"$ref": "#/$defs/next"}]},
    ],
)
def test_a_required_property_that_refers_to_its_own_schema_ends(child: dict[str, Any]) -> None:
    """Below a few levels the alternative that ends the recursion is taken."""
    inner = {"properties": {"left": child, "right": child}, "required": ["left", "right"]}
    schema = {"type": "object", **inner, "$defs": {"next": inner}}
    jsonschema.validate(json.loads(fitting_json(schema, "x")), schema)


def test_a_schema_without_a_finite_value_ends() -> None:
    """An array of at least three of itself has no finite value; the answer is finite and invalid."""
    schema = {"type": "array", "items": {"$ref": "#"}, "minItems": 3}
    assert isinstance(json.loads(fitting_json(schema, "x")), list)


@pytest.mark.parametrize(
    ("review", "sentiment", "again"),
    [
        ("Mine broke on the second day.", "negative", False),
        ("It is not perfect.", "mixed", False),
        ("The best thing this year.", "positive", True),
    ],
)
async def test_structured_answers_have_the_sentiment_of_the_prompt(review: str, sentiment: str, again: bool) -> None:
    """The words of the prompt determine the sentiment."""
    schema = {
        "type": "object",
        "properties": {"mood": {"enum": ["negative", "mixed", "positive"]}, "would_buy_again": {"type": "boolean"}},
    }
    answer = json.loads((await say(Scripted(), f"What does it say? {review}", schema=schema)).text)
    assert answer == {"mood": sentiment, "would_buy_again": again}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"answers": []}, "answers must be a template"),
        ({"answers": {"a": 3}}, "answers: 3 is not a template"),
        ({"latency": -1}, "latency must be seconds"),
        ({"latency": {"uniform": [3, 1]}}, "lower bound first"),
        ({"latency": {"exponential": 0}}, "exponential needs its mean"),
        ({"error_share": 2}, "error_share must be a number from 0 to 1"),
        ({"error_share": 0.7, "hang_share": 0.7}, "add up to more than 1"),
        ({"first_outcomes": ["explode"]}, "'explode' in 'explode' is not an outcome"),
        ({"first_outcomes": "500"}, "first_outcomes must be a list"),
        ({"capacity": -1}, "capacity must be a whole number"),
        ({"max_parallel_requests": 0}, "max_parallel_requests must be a whole number"),
    ],
)
def test_fields_are_validated(fields: dict[str, Any], message: str) -> None:
    """The message names the field and what is expected."""
    with pytest.raises(ConfigError, match=message):
        Scripted(**fields)


async def test_equal_scripts_share_their_state() -> None:
    """Two aliases with equal scripts are one model; different ones are two."""
    specs = {
        "a": Scripted(first_outcomes=["500"]),
        "b": Scripted(first_outcomes=["500"]),
        "c": Scripted(first_outcomes=["500"], seed=1),
    }
    async with open_models(specs) as clients:
        assert clients["a"] is clients["b"] is not clients["c"]
        with pytest.raises(Retryable):
            await clients["a"].chat(ask("x"))
        await clients["b"].chat(ask("x"))


async def test_503_with_retry_after_uses_no_attempt(autojump_clock: Any) -> None:
    """A cell whose calls get 503 or 529 with Retry-After waits that long, and its row is not dropped."""
    outcomes = ["503 retry-after=7", "529 retry-after=7", "503 retry-after=7", "answer"]
    recipe = sb.Recipe(
        columns=[sb.Category("topic", values=["tea"]), sb.LLMText("answer", prompt="{{ topic }}", model="small")],
        models={"small": sb.Scripted(first_outcomes=outcomes)},
    )
    started = trio.current_time()
    async with sb.open_build(recipe, rows=1, config=sb.RunConfig(salvage_max_rounds=0)) as build:
        report = await build.wait()
    assert (report.written, report.dropped, report.attempts["answer"]) == (1, (), 1)
    assert trio.current_time() - started >= 21
