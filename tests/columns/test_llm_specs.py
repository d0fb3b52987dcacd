from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import cloudpickle
import pydantic
import pytest

from seedbed import load_recipe
from seedbed.columns.chat import ChatSpec
from seedbed.columns.judge import Judge, Score
from seedbed.columns.spec import Environment, make_column
from seedbed.columns.structured import LLMStructured
from seedbed.columns.text import Embedding, Image, LLMCode, LLMText
from seedbed.errors import ConfigError, DatasetGenerationError
from seedbed.models import Scripted
from seedbed.recipe.file import recipe_data, recipe_text
from seedbed.recipe.recipe import Recipe, fingerprint

if TYPE_CHECKING:
    from pathlib import Path

KINDS: dict[type, dict[str, Any]] = {
    LLMText: {"prompt": "Hello"},
    LLMCode: {"prompt": "Hello", "language": "sql"},
    LLMStructured: {"prompt": "Hello", "schema": {"type": "string"}},
    Judge: {"of": "answer", "scores": {"clarity": "1 to 5"}},
    Embedding: {"of": "answer"},
    Image: {"prompt": "Hello"},
}
CHATS = [kind for kind in KINDS if issubclass(kind, ChatSpec)]


class Shape(pydantic.BaseModel):
    """A model that a recipe names."""

    size: int


def spec(kind: type, **fields: Any) -> Any:
    """A spec called `x` of the model `writer`."""
    return kind("x", **({"model": "writer"} | KINDS[kind] | fields))


def test_every_kind_names_its_model() -> None:
    """Each spec reports the alias of its model, which the recipe checks."""
    assert [spec(kind).aliases() for kind in KINDS] == [("writer",)] * 6
    assert [kind.type for kind in KINDS] == [
        "llm-text",
        "llm-code",
        "llm-structured",
        "llm-judge",
        "embedding",
        "image",
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("model", "", "model must be the alias of a model, not ''"),
        ("model", None, "give the alias of a model in model, or several in models"),
        ("parameters", ["temperature"], "parameters must be a mapping of names to values"),
        ("parameters", {"messages": []}, "parameters cannot have 'messages', which is a field of the column"),
    ],
)
def test_shared_fields_are_checked_in_every_kind(kind: type, field: str, value: Any, problem: str) -> None:
    """Messages name the column."""
    with pytest.raises(ConfigError, match=f"column 'x': {problem}"):
        spec(kind, **{field: value})


@pytest.mark.parametrize("kind", CHATS)
@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("system", "{{ a", "column 'x', system, line 1: .*end of print statement"),
        ("system", 3, "column 'x': system must be text, not 3"),
        ("images", [1], "column 'x': images must be the name of a column, or a list of names"),
        ("max_repairs", -1, "column 'x': max_repairs must be a whole number, 0 or more, not -1"),
        ("max_repairs", True, "column 'x': max_repairs must be a whole number, 0 or more, not True"),
        ("trace", "yes", "column 'x': trace must be True or False, not 'yes'"),
        ("dedupe", 1, "column 'x': dedupe must be True or False, not 1"),
    ],
)
def test_conversation_fields_are_checked_in_every_chat_kind(kind: type, field: str, value: Any, problem: str) -> None:
    """Messages name the column and the field."""
    with pytest.raises(ConfigError, match=problem):
        spec(kind, **{field: value})


@pytest.mark.parametrize(
    ("kind", "fields", "problem"),
    [
        (LLMText, {"prompt": None}, "prompt must be text, not None"),
        (LLMText, {"prompt": " "}, "prompt must be text, not ' '"),
        (LLMText, {"prompt": "{% include 'x' %}"}, "'include' has no other template to read"),
        (LLMText, {"dtype": int}, "holds text and cannot have type <class 'int'>; use llm-structured"),
        (LLMCode, {"language": "two words"}, "language must be the name of a language as in code fences"),
        (LLMCode, {"check": 3}, "check must be True or False"),
        (LLMStructured, {"schema": 3}, "schema must be a JSON Schema, a pydantic model, the path of"),
        (LLMStructured, {"schema": "schema.txt"}, "schema must be a JSON Schema"),
        (LLMStructured, {"schema": int}, "schema must be a JSON Schema"),
        (Judge, {"of": ()}, "has nothing to judge"),
        (Judge, {"of": [""]}, "of must be the name of a column, or a list of names"),
        (Judge, {"scores": {}}, "scores must be a mapping of names to scores"),
        (Judge, {"scores": ["clarity"]}, "scores must be a mapping of names to scores"),
        (Judge, {"scores": {"a": "good"}}, "scores.a: must be a range such as '1 to 5'"),
        (Judge, {"scores": {"a": "5 to 1"}}, "scores.a: range must be two numbers, the lower one first"),
        (Judge, {"scores": {"a": 5}}, "scores.a: must be a range .*, or a mapping"),
        (Judge, {"scores": {"a": {}}}, "scores.a: needs either a range or options"),
        (Judge, {"scores": {"a": {"range": [1, 2], "options": [1, 2]}}}, "needs either a range or options"),
        (Judge, {"scores": {"a": {"option": [1, 2]}}}, "scores.a: unknown field 'option'.*'options'"),
        (Judge, {"scores": {"a": {"options": [1]}}}, "options must be two or more"),
        (Judge, {"scores": {"a": {"options": [1, "b"]}}}, "options must be all numbers or all texts"),
        (Judge, {"scores": {"a": {"options": {"b": 1, "c": "x"}}}}, "must have texts as their meanings"),
        (Judge, {"scores": {"a": {"options": "abc"}}}, "options must be two or more, not 'abc'"),
        (Judge, {"scores": {"a": {"range": [1, 2], "description": 3}}}, "description must be text"),
        (Judge, {"scores": {"a": "1 to 5", "a_reasoning": "1 to 5"}}, "which is the name of another score"),
        (Embedding, {"of": ("a", "b")}, "of must be the name of a column"),
        (Image, {"prompt": None}, "prompt must be text"),
    ],
)
def test_fields_of_one_kind_are_checked(kind: type, fields: dict[str, Any], problem: str) -> None:
    """Messages name the column and what is expected."""
    with pytest.raises(ConfigError, match=f"column 'x'.*{problem}"):
        spec(kind, **fields)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("1 to 5", Score(range=(1, 5))),
        ("1-5", Score(range=(1, 5))),
        ("-1 to 1", Score(range=(-1, 1))),
        ("0.0 to 1.0, how likely", Score(range=(0.0, 1.0), description="how likely")),
        ("1 – 10: two\nlines", Score(range=(1, 10), description="two\nlines")),
    ],
)
def test_scores_can_be_written_as_text(text: str, score: Score) -> None:
    """A range and its description, in one line."""
    assert spec(Judge, scores={"a": text}).scores == {"a": score}


@pytest.mark.parametrize(
    ("score", "kind", "allowed"),
    [
        (Score(range=(1, 5)), int, "a whole number from 1 to 5"),
        (Score(range=(0, 1.5)), float, "a number from 0 to 1.5"),
        (Score(options=[1, 3]), int, "one of 1, 3"),
        (Score(options={"1": "bad", "2.5": "good"}), float, "one of 1, 2.5"),
        (Score(options={"no": "", "yes": ""}), str, "one of no, yes"),
    ],
)
def test_type_and_allowed_values_of_a_score(score: Score, kind: type, allowed: str) -> None:
    """The bounds or options determine the type and the description of allowed values."""
    assert score.kind is kind
    assert score.allowed() == allowed


def test_a_pydantic_model_by_name_is_code() -> None:
    """A file and a schema are not."""
    assert spec(LLMStructured, schema="shapes:Person").code() == ("shapes:Person",)
    assert spec(LLMStructured, schema="shapes.json").code() == ()
    assert spec(LLMStructured).code() == ()
    assert spec(LLMStructured, schema=Shape).code() == ()


@pytest.mark.parametrize("kind", KINDS)
def test_columns_survive_cloudpickle(kind: type) -> None:
    """A cluster sends columns to its workers with their templates and skip rules."""
    made = make_column(spec(kind, skip_when="n > 1"), Environment(models={"writer": Scripted()}))
    again = cloudpickle.loads(cloudpickle.dumps(made))
    assert (again.name, again.requires, again.key) == (made.name, made.requires, made.key)
    assert again.skip.decide({"n": 2})
    assert not again.skip.decide({"n": 1})


RECIPE = """
seed: 1
models:
  writer: {type: scripted}
columns:
  - {name: topic, type: category, values: [tea, bread]}
  - {name: question, type: llm-text, model: writer, prompt: "About {{ topic }}", system: Be brief, trace: true}
  - {name: code, type: llm-code, model: writer, prompt: "For {{ question }}", language: python, max_repairs: 0}
  - name: person
    type: llm-structured
    model: writer
    prompt: Who?
    schema: {type: object, properties: {name: {type: string}}}
  - name: quality
    type: llm-judge
    model: writer
    of: question
    scores:
      clarity: "1 to 5"
      depth: {range: [0.0, 1.0], description: how deep}
      tone: {options: {1: bad, 2: good}}
  - {name: vector, type: embedding, model: writer, of: question}
  - {name: cover, type: image, model: writer, prompt: "{{ topic }}"}
"""


def test_a_recipe_file_with_every_kind_round_trips(tmp_path: Path) -> None:
    """A recipe that is read, written and read again is equal, and its columns can be created."""
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    recipe = load_recipe(tmp_path / "recipe.yaml")
    environment = recipe.environment()
    assert len(recipe.resolve(environment)) == 7
    for name, text in (("again.yaml", recipe_text(recipe)), ("again.json", json.dumps(recipe_data(recipe)))):
        (tmp_path / name).write_text(text)
        again = load_recipe(tmp_path / name)
        assert again.columns == recipe.columns
        assert fingerprint(again) == fingerprint(recipe)


def test_a_pydantic_model_is_stored_by_its_name(tmp_path: Path) -> None:
    """A recipe with a class in it is written with the `module:name` of the class."""
    recipe = Recipe(columns=[spec(LLMStructured, schema=Shape)], models={"writer": Scripted()})
    (tmp_path / "recipe.yaml").write_text(recipe_text(recipe))
    again = load_recipe(tmp_path / "recipe.yaml", allow_code=True)
    assert again.columns[0].code() == (f"{__name__}:Shape",)
    with pytest.raises(DatasetGenerationError, match="which needs --allow-code"):
        load_recipe(tmp_path / "recipe.yaml")


def test_all_problems_of_a_file_are_in_one_error(tmp_path: Path) -> None:
    """Invalid fields of several columns and an unreadable model are reported together."""
    text = RECIPE.replace("type: scripted", "type: scripted, error_share: 2").replace(
        "max_repairs: 0", "max_repairs: -1"
    )
    text = text.replace('clarity: "1 to 5"', 'clarity: "good"').replace("of: question}", "of: qestion}")
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(DatasetGenerationError) as caught:
        load_recipe(tmp_path / "recipe.yaml")
    listed = "\n".join(caught.value.problems)
    assert "error_share must be a number from 0 to 1" in listed
    assert "column 'code': max_repairs must be" in listed
    assert "column 'quality': scores.clarity: must be a range" in listed
    assert "'qestion'" in listed
    assert len(caught.value.problems) == 4
