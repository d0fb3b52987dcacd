from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Literal

import polars as pl
import pydantic
import pytest
import trio
from chatting import FakeContext, Script, environment, fill, fill_in, grow_specs, numbers, served_by

import seedbed
from seedbed.columns.judge import Judge
from seedbed.columns.spec import Access, Environment, make_column
from seedbed.columns.structured import LLMStructured
from seedbed.columns.text import LLMCode, LLMText
from seedbed.errors import BadOutput, ConfigError, Permanent, Retryable
from seedbed.models import ChatAnswer, Scripted
from seedbed.models.answers import small_png
from seedbed.testing import ServerRequest, SimulatedOutcome, serve_openai

if TYPE_CHECKING:
    from pathlib import Path

    from seedbed.models import ModelSpec

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "age"],
}


def text(name: str = "answer", **options: Any) -> LLMText:
    """A text column of the model `writer`."""
    return LLMText(name, **({"model": "writer", "prompt": "Say {{ n }}"} | options))


def structured(schema: Any = PERSON, **options: Any) -> LLMStructured:
    """A structured column that needs no other."""
    return LLMStructured("person", model="writer", prompt="Invent somebody.", schema=schema, **options)


# Text


async def test_prompt_and_system_are_rendered() -> None:
    """A conversation starts with the system prompt and the prompt, rendered for the row."""
    script = Script("  fine\n")
    assert await fill(text(system="You are {{ who }}."), script, n=3, who="brief") == "fine"
    assert script.said() == [("system", "You are brief."), ("user", "Say 3")]


async def test_parameters_of_the_column_override_those_of_the_model() -> None:
    """Both reach the request; sampled parameters are drawn."""
    script = Script("fine")
    spec = text(prompt="Hello", parameters={"temperature": 0, "top_p": {"uniform": [0.5, 0.6]}})
    async with environment(
        {"writer": Scripted(answers=script, parameters={"temperature": 1, "max_tokens": 9})}
    ) as here:
        await fill_in(spec, here)
        column = make_column(spec, here)
    (request,) = script.requests
    assert {**request.parameters, "top_p": None} == {"temperature": 0, "max_tokens": 9, "top_p": None}
    assert 0.5 <= request.parameters["top_p"] <= 0.6
    assert column.tokens == 9


async def test_sampled_parameters_depend_on_seed_and_row() -> None:
    """Equal seeds and rows draw equal parameters, others draw different ones."""
    drawn = []
    for seed, row in ((1, 0), (1, 0), (2, 0), (1, 1)):
        script = Script("fine")
        spec = text(prompt="Hello", parameters={"temperature": {"uniform": [0.0, 1.0]}})
        async with environment({"writer": Scripted(answers=script)}, seed=seed) as here:
            await fill_in(spec, here, FakeContext(column="answer", row=row))
        drawn.append(script.requests[0].parameters["temperature"])
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) == 3


def test_requirements_come_from_all_templates_and_pictures() -> None:
    """The columns of prompt, system and images are required, each once."""
    here = Environment(models={"writer": Scripted()})
    spec = text(prompt="{{ a }} {% for x in b %}{{ x }}{% endfor %}", system="{{ c.field }} {{ a }}", images="photo")
    column = make_column(spec, here)
    assert column.requires == ("a", "b", "c", "photo")
    assert column.key == "scripted scripted chat"
    assert column.dtypes() == {"answer": pl.String}


async def test_an_empty_answer_is_retryable() -> None:
    """An answer of white space is not text."""
    with pytest.raises(Retryable, match="column 'answer': model 'writer' returned an empty answer"):
        await fill(text(prompt="Hello"), Script(ChatAnswer(text=" \n", finish_reason="length")))


async def test_a_text_at_its_token_limit_is_accepted() -> None:
    """The user set the limit, so the text up to it is the value."""
    assert await fill(text(prompt="Hello"), Script(ChatAnswer(text="It was", finish_reason="length"))) == "It was"


async def test_a_template_that_fails_is_permanent() -> None:
    """A missing field fails the cell before any call."""
    script = Script("fine")
    with pytest.raises(Permanent, match=r"column 'answer', prompt, line 1: .*no attribute 'b'"):
        await fill(text(prompt="{{ n.b }}"), script, n={"a": 1})
    assert not script.requests


@pytest.mark.parametrize("prompt", ["{% if n %}Go on.{% endif %}", " {{ n or '' }}\n"])
async def test_an_empty_prompt_is_not_sent(prompt: str) -> None:
    """It fails the cell before any call."""
    script = Script("fine")
    with pytest.raises(Permanent, match="column 'answer': its prompt is empty"):
        await fill(text(prompt=prompt), script, n=None)
    assert not script.requests


async def test_a_column_may_be_named_context() -> None:
    """Column names never collide with the parameters of the generator."""
    script = Script("fine")
    async with environment({"writer": Scripted(answers=script)}) as here:
        column = make_column(text(prompt="{{ context }}, {{ values }}"), here)
        assert column.problem is None
        assert column.call is not None
        await column.call.function(FakeContext(), context="c", values="v")
    assert script.said() == [("user", "c, v")]


async def test_trace_and_reasoning_are_side_effects() -> None:
    """The trace has the whole conversation with its repairs, the reasoning is that of the last answer."""
    script = Script(ChatAnswer(text="no idea", reasoning="first"), ChatAnswer(text="[1, 2]", reasoning="second"))
    spec = LLMStructured(
        "list", model="writer", prompt="Two numbers", schema={"type": "array"}, trace=True, reasoning=True
    )
    cell = await fill(spec, script)
    assert cell["list"] == [1, 2]
    assert cell["list__reasoning_content"] == "second"
    assert [turn["role"] for turn in cell["list__trace"]] == ["user", "assistant", "user", "assistant"]
    assert cell["list__trace"][1]["content"] == "no idea"
    assert "it is not JSON" in cell["list__trace"][2]["content"]


def test_side_effects_have_types() -> None:
    """The types of trace and reasoning are known before a run."""
    column = make_column(text(prompt="Hello", trace=True, reasoning=True), Environment(models={"writer": Scripted()}))
    assert column.side_effects == ("answer__trace", "answer__reasoning_content")
    assert column.dtypes() == {
        "answer": pl.String,
        "answer__trace": pl.List(pl.Struct({"role": pl.String, "content": pl.String})),
        "answer__reasoning_content": pl.String,
    }


async def test_thoughts_in_an_answer_are_its_reasoning() -> None:
    """The text is what follows them; thoughts alone are an empty answer."""
    cell = await fill(text(prompt="Hello", reasoning=True, trace=True), Script("<think>hm</think>\n\nfine"))
    assert (cell["answer"], cell["answer__reasoning_content"]) == ("fine", "hm")
    assert "hm" not in str(cell["answer__trace"])
    with pytest.raises(Retryable, match="returned an empty answer"):
        await fill(text(prompt="Hello"), Script("<think>and on"))


# Structured


async def test_an_answer_that_does_not_fit_is_repaired() -> None:
    """The model gets its answer and every error with its place, and answers again."""
    script = Script('{"name": 1, "age": -1}', '{"name": "Ada", "age": 36, "job": "x"}')
    assert await fill(structured(), script) == {"name": "Ada", "age": 36, "tags": None}
    first, second = script.requests
    assert first.schema == PERSON
    assert second.schema == PERSON
    assert second.messages[1].content == '{"name": 1, "age": -1}'
    correction = second.messages[2].content
    assert "$.age: -1 is less than the minimum of 0; $.name: 1 is not of type 'string'" in correction
    assert "one JSON value that fits the schema" in correction


@pytest.mark.parametrize("max_repairs", [0, 1, 3])
async def test_a_cell_fails_after_max_repairs(max_repairs: int) -> None:
    """The failure has the last error and the answer."""
    script = Script("{}")
    with pytest.raises(
        BadOutput, match=r"column 'person': the answer does not fit.*'name' is a required.*it was '\{\}'"
    ):
        await fill(structured(max_repairs=max_repairs), script)
    assert len(script.requests) == max_repairs + 1
    assert isinstance(BadOutput(), Permanent)


async def test_a_correction_mentions_the_token_limit() -> None:
    """An answer that was cut off is repaired; a part of it is never taken for the whole."""
    cut = ChatAnswer(text='{"friend": {"name": "Bo", "age": 3}, "na', finish_reason="length")
    script = Script(cut, '{"name": "Ada", "age": 36}')
    assert (await fill(structured(), script))["name"] == "Ada"
    assert "it was cut off at its token limit (it is not JSON: " in script.requests[1].messages[-1].content


async def test_a_long_answer_is_parsed_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing an answer of many values does not block the event loop."""
    threads: list[Any] = []
    run_sync = trio.to_thread.run_sync

    async def watched(function: Any, *args: Any, **options: Any) -> Any:
        threads.append(function)
        return await run_sync(function, *args, **options)

    monkeypatch.setattr(trio.to_thread, "run_sync", watched)
    numbers_ = list(range(10_000))
    spec = structured({"type": "array", "items": {"type": "integer"}})
    assert await fill(spec, Script(json.dumps(numbers_))) == numbers_
    assert len(threads) == 1
    assert await fill(spec, Script("[1]")) == [1]
    assert len(threads) == 1


class Pet(pydantic.BaseModel):
    """A pydantic model with a rule that no JSON Schema has."""

    name: str
    kind: Literal["cat", "dog"] = pydantic.Field(alias="type")
    legs: int = 4
    owner: str | None = None

    @pydantic.field_validator("name")
    @classmethod
    def _capital(cls, name: str) -> str:
        if not name[0].isupper():
            raise ValueError("a name begins with a capital")
        return name

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def label(self) -> str:
        """Written out, and never read in."""
        return f"{self.name} the {self.kind}"


async def test_a_pydantic_model_validates_and_completes() -> None:
    """Its rules are repaired like those of a schema; defaults and computed fields are in the cell, by alias."""
    script = Script('{"name": "rex", "type": "fox"}', '{"name": "Rex", "type": "dog"}')
    assert await fill(structured(Pet), script) == {
        "name": "Rex",
        "type": "dog",
        "legs": 4,
        "owner": None,
        "label": "Rex the dog",
    }
    correction = script.requests[1].messages[-1].content
    assert "$.name: Value error, a name begins with a capital; $.type: Input should be 'cat' or 'dog'" in correction
    assert script.requests[0].schema == Pet.model_json_schema()
    column = make_column(structured(Pet), Environment(models={"writer": Scripted()}))
    assert column.dtypes() == {
        "person": pl.Struct(
            {"name": pl.String, "type": pl.String, "legs": pl.Int64, "owner": pl.String, "label": pl.String}
        )
    }


def test_a_schema_may_be_a_file_beside_the_recipe(tmp_path: Path) -> None:
    """JSON and YAML files are read relative to the base folder."""
    (tmp_path / "person.json").write_text(json.dumps(PERSON))
    (tmp_path / "person.yaml").write_text("type: object\nproperties: {name: {type: string}}\n")
    here = Environment(models={"writer": Scripted()}, base=tmp_path)
    assert "age" in str(make_column(structured("person.json"), here).dtype)
    assert make_column(structured("person.yaml"), here).dtypes() == {"person": pl.Struct({"name": pl.String})}
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "broken.json").write_text("{")
    for name, reason in {
        "none": "cannot be read",
        "list": "a JSON Schema is a mapping, not list",
        "broken": ":1: ",
    }.items():
        with pytest.raises(ConfigError, match=f"column 'person', schema: .*{name}.json.*{reason}"):
            make_column(structured(f"{name}.json"), here)


def test_a_schema_file_is_read_within_the_limits_of_a_recipe(tmp_path: Path) -> None:
    """Aliases that would expand to very many values, a value that contains itself and a duplicate key are errors."""
    doubling = [f"a{number}: &a{number} [*a{number - 1}, *a{number - 1}]" for number in range(1, 40)]
    files = {
        "aliases": ("\n".join(["a0: &a0 []", *doubling]), r":\d+: a file has at most 100000 keys and values"),
        "itself": ("type: object\nproperties: &own {a: *own}\n", "nested more than 100 levels deep"),
        "duplicate": ("type: object\ntype: array\n", ":2: type: duplicate key"),
    }
    here = Environment(models={"writer": Scripted()}, base=tmp_path)
    for name, (text, problem) in files.items():
        (tmp_path / f"{name}.yaml").write_text(text)
        with pytest.raises(ConfigError, match=rf"column 'person', schema: .*{name}.yaml.*{problem}"):
            make_column(structured(f"{name}.yaml"), here)


def test_importing_a_pydantic_model_needs_permission(tmp_path: Path) -> None:
    """A class named as module:name is imported only if code is allowed."""
    (tmp_path / "my_shapes_of_people.py").write_text("NAME = {'type': 'string'}\nNUMBER = 1\n")
    here = Environment(models={"writer": Scripted()}, base=tmp_path, access=Access(folder=tmp_path))
    with pytest.raises(ConfigError, match="'my_shapes_of_people:NAME' is user-defined code, which needs --allow-code"):
        make_column(structured("my_shapes_of_people:NAME"), here)
    here = Environment(models={"writer": Scripted()}, base=tmp_path)
    assert make_column(structured("my_shapes_of_people:NAME"), here).dtypes() == {"person": pl.String}
    with pytest.raises(ConfigError, match="is neither a pydantic model nor a JSON Schema but 1"):
        make_column(structured("my_shapes_of_people:NUMBER"), here)


def test_an_invalid_schema_is_rejected() -> None:
    """It is rejected when the column is created."""
    with pytest.raises(ConfigError, match=r"column 'person': schema is no JSON Schema: .*type"):
        make_column(structured({"type": "strin"}), Environment(models={"writer": Scripted()}))


# Code


def code(language: str = "python", **options: Any) -> LLMCode:
    """A column of code that needs no other."""
    return LLMCode("code", model="writer", prompt="Write it.", language=language, **options)


async def test_code_is_the_content_of_its_fence() -> None:
    """The cell holds the code alone, and the prompt asks for a fence."""
    script = Script("Sure:\n```python\nx = 1\n```\nHave fun!")
    assert await fill(code(), script) == "x = 1"
    assert script.said() == [("user", "Write it.\n\nAnswer with one fenced code block of python.")]


@pytest.mark.parametrize(
    ("language", "answer"), [("python", "x = 1\n"), ("json", '{"a": 1}'), ("py", "<think>hm</think>\nx = 1")]
)
async def test_code_without_a_fence_may_be_the_whole_answer(language: str, answer: str) -> None:
    """If a parser accepts the whole answer, no fence is needed."""
    assert await fill(code(language), Script(answer)) == answer.removeprefix("<think>hm</think>").strip()


@pytest.mark.parametrize(
    ("language", "answer", "reason"),
    [
        ("python", "```python\nx = = 1\n```", "its code is not valid python: line 1: invalid syntax"),
        ("json", "```json\n{'a': 1}\n```", "its code is not valid json: Expecting property name"),
        ("python", "I would rather not.", "it has no code block of python"),
        ("sql", "SELECT 1", "it has no code block of sql"),
        ("sql", "```python\nx = 1\n```", "only of python"),
    ],
)
async def test_invalid_or_missing_code_is_repaired(language: str, answer: str, reason: str) -> None:
    """Syntax errors and answers without code are in the correction."""
    script = Script(answer, f"```{language}\n1\n```")
    assert await fill(code(language), script) == "1"
    assert reason in script.requests[1].messages[-1].content


def test_check_that_can_do_nothing_is_an_error() -> None:
    """`check=True` promises that code is checked: another language than those with a checker is rejected."""
    assert code("sql").check is None
    assert code("py", check=True).check
    with pytest.raises(ConfigError, match="'code': check is true, but code in 'sql' cannot be checked, only in python"):
        code("sql", check=True)


async def test_check_false_accepts_invalid_code() -> None:
    """Without `check` the content of the fence is not parsed."""
    assert await fill(code(check=False), Script("```python\nx = = 1\n```")) == "x = = 1"


# Pictures as context


async def test_pictures_are_sent_with_the_prompt(tmp_path: Path) -> None:
    """Bytes, data URLs, paths and lists of them are sent; a null is omitted."""
    png, jpeg = small_png("x"), b"\xff\xd8\xff" + b"0" * 20
    (tmp_path / "a.png").write_bytes(png)
    (tmp_path / "artifacts" / ".seedbed" / "images").mkdir(parents=True)
    (tmp_path / "artifacts" / ".seedbed" / "images" / "b.jpg").write_bytes(jpeg)
    script = Script("fine")
    url = "data:image/webp;base64," + base64.b64encode(b"whatever").decode()
    models: dict[str, ModelSpec] = {"writer": Scripted(answers=script)}
    async with environment(models, base=tmp_path, artifacts=tmp_path / "artifacts") as here:
        spec = text(prompt="Look", images=["a", "b", "c"])
        await fill_in(spec, here, a=["a.png", jpeg], b=None, c=[".seedbed/images/b.jpg", url])
    (message,) = script.requests[0].messages
    assert [(image.data, image.media_type) for image in message.images] == [
        (png, "image/png"),
        (jpeg, "image/jpeg"),
        (jpeg, "image/jpeg"),
        (b"whatever", "image/webp"),
    ]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("missing.png", "missing file 'missing.png'"),
        ("secret.txt", "6 bytes that are not a PNG, JPEG, GIF or WebP picture"),
        ("https://example.org/a.png", "is not fetched"),
        ("data:text/plain,hello", "is not a data URL of a picture in base64"),
        ("data:image/png;base64,?", "is not base64"),
        (17, "not a value of int"),
        ("a\0b", "cannot be read|missing file"),
        (b"text", "4 bytes that are no"),
    ],
)
async def test_values_that_are_not_pictures_are_not_sent(value: Any, reason: str, tmp_path: Path) -> None:
    """Only pictures are sent, none is fetched, and the cell fails permanently."""
    (tmp_path / "secret.txt").write_text("secret")
    script = Script("fine")
    async with environment({"writer": Scripted(answers=script)}, base=tmp_path) as here:
        with pytest.raises(Permanent, match=f"column 'answer', images: 'photo': .*({reason})"):
            await fill_in(text(prompt="Look", images="photo"), here, photo=value)
    assert not script.requests


# Dedupe


@pytest.mark.parametrize(
    ("dedupe", "parameters", "of_model", "calls"),
    [
        (True, {}, {}, 1),
        (False, {}, {}, 6),
        (True, {"temperature": 0}, {"temperature": 0.7}, 1),
        (True, {"temperature": 0.7}, {}, 6),
        (True, {}, {"temperature": {"uniform": [0.0, 0.0]}}, 6),
    ],
)
async def test_equal_requests_are_answered_once(
    dedupe: bool, parameters: dict[str, Any], of_model: dict[str, Any], calls: int, autojump_clock: Any
) -> None:
    """With dedupe one call answers them all, unless a temperature asks for variety."""
    script = Script("fine")
    writer = Scripted(answers=script, latency=1.0, parameters=of_model)
    spec = text(prompt="Hello", dedupe=dedupe, parameters=parameters)
    grown = await grow_specs([numbers(), spec], {"writer": writer}, rows=6)
    assert grown.frame["answer"].to_list() == ["fine"] * 6
    assert len(script.requests) == calls


async def test_cells_that_share_an_answer_repair_it_without_waiting_for_each_other(autojump_clock: Any) -> None:
    """With one permit, equal requests whose shared answer does not fit all complete."""

    def answer(request: Any) -> str:
        return "[1]" if len(request.messages) > 1 else "nothing"

    writer = Scripted(answers=answer, latency=1.0, max_parallel_requests=1)
    with trio.fail_after(60):
        grown = await grow_specs([structured({"type": "array"}, dedupe=True)], {"writer": writer}, rows=5)
    assert grown.frame["person"].ext.storage().to_list() == ["[1]"] * 5


# By the engine, over HTTP


async def test_a_rate_limit_during_a_repair_repeats_no_answered_call() -> None:
    """A 429 on the second turn is waited out: every first prompt reached the server once."""
    limited: set[str] = set()

    def script(request: ServerRequest) -> str | SimulatedOutcome:
        messages = request.body["messages"]
        first = messages[0]["content"]
        if len(messages) == 1:
            return "not JSON"
        if first not in limited:
            limited.add(first)
            return SimulatedOutcome(outcome="status", status=429, retry_after=0)
        return '{"name": "Ada", "age": 36}'

    spec = LLMStructured("person", model="writer", prompt="Person {{ n }}", schema=PERSON, trace=True)
    async with serve_openai(script=script) as server:
        grown = await grow_specs([numbers(), spec], {"writer": served_by(server)}, rows=4)
        assert [server.statistics.prompts[f"Person {n}"] for n in range(4)] == [1, 1, 1, 1]
        assert server.statistics.statuses == {200: 8, 429: 4}
    assert grown.frame["person"].to_list() == [{"name": "Ada", "age": 36, "tags": None}] * 4
    assert grown.frame["person__trace"].list.len().to_list() == [4] * 4


async def test_a_rate_limit_on_the_first_turn_loses_no_row() -> None:
    """A 429 before any answer sends the cell back to its lane."""
    async with serve_openai(answer="fine") as server:
        spec = text(prompt="[[429 x1 retry-after=0]] {{ n }}")
        grown = await grow_specs([numbers(), spec], {"writer": served_by(server)}, rows=3)
    assert grown.frame["answer"].to_list() == ["fine"] * 3


async def test_columns_of_every_kind_over_http() -> None:
    """Text, structured values, code and scores arrive with the types that were declared."""
    specs = [
        numbers(),
        text("question", prompt="Ask a question about tea, {{ n }}"),
        LLMStructured("person", model="writer", prompt="Who asks {{ question }}?", schema=PERSON),
        LLMCode("code", model="writer", prompt="Write a python function for {{ person.name }}", language="python"),
        Judge("quality", model="writer", of="code", scores={"clarity": "1 to 5", "mood": "0.0 to 1.0"}),
    ]
    async with serve_openai() as server:
        grown = await grow_specs(specs, {"writer": served_by(server)}, rows=10)
        assert server.statistics.requests == 40
    assert dict(grown.frame.schema) == {
        "n": pl.Int64,
        "question": pl.String,
        "person": pl.Struct({"name": pl.String, "age": pl.Int64, "tags": pl.List(pl.String)}),
        "code": pl.String,
        "quality": pl.Struct(
            {
                "clarity": pl.Int64,
                "clarity_reasoning": pl.String,
                "mood": pl.Float64,
                "mood_reasoning": pl.String,
            }
        ),
    }
    assert grown.frame.null_count().row(0) == (0,) * 5


@pytest.mark.parametrize(
    ("marker", "attempts"), [("[[refusal]]", 1), ("[[filter]]", 1), ("[[empty]]", 3), ("[[truncated]]", 3)]
)
async def test_refusals_are_permanent_and_lost_answers_retryable(marker: str, attempts: int) -> None:
    """A refusal is one call; an empty or lost answer is retried in each salvage round."""
    async with serve_openai() as server:
        specs = [numbers(), text(prompt="{% if n == 1 %}" + marker + "{% endif %} {{ n }}")]
        grown = await grow_specs(specs, {"writer": served_by(server)}, rows=3)
        assert server.statistics.prompts[f"{marker} 1"] == attempts
    assert grown.frame["n"].to_list() == [0, 2]


async def test_aliases_that_share_a_key_have_their_own_limits() -> None:
    """Two aliases of one model share its throttle, and each has its own limit of concurrent calls."""
    most: dict[str, int] = {"small": 0, "large": 0}
    running: dict[str, int] = {"small": 0, "large": 0}

    class Client:
        async def chat(self, request: Any) -> ChatAnswer:
            name = request.messages[0].content.split()[0]
            running[name] += 1
            most[name] = max(most[name], running[name])
            await trio.sleep(0.01)
            running[name] -= 1
            return ChatAnswer(text="fine")

    models: dict[str, ModelSpec] = {
        "small": Scripted(max_parallel_requests=2),
        "large": Scripted(max_parallel_requests=8),
    }
    here = Environment(models=models, clients=dict.fromkeys(models, Client()))  # type: ignore[arg-type, return-value]
    columns = [
        numbers(),
        *(make_column(LLMText(name, model=name, prompt=f"{name} {{{{ n }}}}"), here) for name in models),
    ]
    limits = {models["large"].key("chat"): models["large"].limits()}
    async with seedbed.open_build(columns, rows=30, limits=limits) as build:
        await build.wait()
    assert most["small"] == 2
    assert 2 < most["large"] <= 8


def test_an_alias_alone_on_its_key_needs_no_lane() -> None:
    """If no other alias shares the key, the limit of its throttle is that of the alias."""
    here = Environment(models={"writer": Scripted(), "other": Scripted(model="other")})
    column = make_column(text(), here)
    assert (column.lane, column.lane_limit) == (None, None)


def test_an_unknown_model_is_reported_with_its_column() -> None:
    """Only the recipe has the models, so the column is built before its alias is checked."""
    with pytest.raises(ConfigError, match=r"column 'answer': model 'wirter' is not in models.*did you mean 'writer'"):
        make_column(text(model="wirter"), Environment(models={"writer": Scripted()}))


def test_an_invalid_distribution_is_reported_with_its_column_and_parameter() -> None:
    """Distributions of inference parameters are checked when the spec is written."""
    with pytest.raises(ConfigError, match=r"column 'answer': parameters.top_p: uniform needs two numbers") as caught:
        text(parameters={"top_p": {"uniform": [1]}})
    assert caught.value.field == "parameters"


@pytest.mark.parametrize(
    "loop",
    [
        "{% for i in range(10**9) %}{{ i }}{% endfor %}",
        "{% for i in range(9999) %}{% for j in range(9999) %}x{% endfor %}{% endfor %}",
    ],
    ids=["one huge range", "nested loops"],
)
def test_a_prompt_that_loops_drops_its_row_and_no_other(loop: str) -> None:
    """A rendering without an end is stopped by its bound; only its row is dropped, and the reason names the column."""
    recipe = seedbed.Recipe(
        seed=1,
        models={"writer": Scripted()},
        columns=[
            seedbed.Category("topic", values=["loops", "ends"]),
            text(prompt="{% if topic == 'loops' %}" + loop + "{% endif %}Say {{ topic }}"),
        ],
    )
    preview = seedbed.preview(recipe, rows=6, config=seedbed.RunConfig(shutdown_error_rate=1.0))
    assert set(preview.frame["topic"]) == {"ends"}
    (reason,) = preview.report.drops_by_reason
    assert reason.startswith("answer: column 'answer', prompt")
    assert preview.report.written + len(preview.report.dropped) == 6
