from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest
import trio
from chatting import Script, fill, grow_specs, numbers, served_by
from hypothesis import given
from hypothesis import strategies as st

from seedbed.columns.expression import Expression
from seedbed.columns.judge import Judge, Score
from seedbed.columns.spec import Environment, make_column
from seedbed.columns.text import LLMText
from seedbed.errors import BadOutput
from seedbed.models import Scripted
from seedbed.testing import ServerRequest, serve_openai


def judge(scores: Any = None, **options: Any) -> Judge:
    """A judge of the column `answer`."""
    return Judge("quality", model="writer", **({"of": "answer", "scores": scores or {"clarity": "1 to 5"}} | options))


def said(**scores: Any) -> str:
    """An answer in the requested form."""
    return json.dumps({name: {"reasoning": f"so {score}", "score": score} for name, score in scores.items()})


async def test_scores_and_reasons_are_fields_of_the_cell() -> None:
    """Each score is a field, which expressions can read, with its reasoning in a second field."""
    script = Script(said(clarity=4, tone="formal"))
    scores = {"clarity": "1 to 5: how clear it is", "tone": {"options": {"formal": "as in a letter", "casual": ""}}}
    assert await fill(judge(scores), script, answer="Tea is wet.") == {
        "clarity": 4,
        "clarity_reasoning": "so 4",
        "tone": "formal",
        "tone_reasoning": "so formal",
    }
    ((role, prompt),) = script.said()
    assert role == "user"
    assert prompt == (
        "<answer>\nTea is wet.\n</answer>\n\n"
        "Judge answer by these scores:\n"
        "- clarity (a whole number from 1 to 5): how clear it is\n"
        "- tone (one of formal, casual)\n"
        "  - formal: as in a letter\n"
        'Answer with one JSON object: {"clarity": {"reasoning": "why, in a sentence or two", "score": …}, '
        '"tone": {"reasoning": "why, in a sentence or two", "score": …}}'
    )


async def test_the_schema_has_the_reasoning_before_the_score() -> None:
    """The provider gets a schema of closed objects whose reasoning comes before the score."""
    script = Script(said(clarity=4, mood=0.5, size=30))
    await fill(judge({"clarity": "1 to 5", "mood": "0.0 to 1.0", "size": "1 to 100"}), script, answer="x")
    schema: Any = script.requests[0].schema
    assert schema["required"] == ["clarity", "mood", "size"]
    assert schema["additionalProperties"] is False
    clarity, mood, size = (schema["properties"][name] for name in schema["required"])
    assert list(clarity["properties"]) == ["reasoning", "score"]
    assert clarity["properties"]["score"] == {"type": "integer", "enum": [1, 2, 3, 4, 5]}
    assert mood["properties"]["score"] == {"type": "number", "minimum": 0.0, "maximum": 1.0}
    assert size["properties"]["score"] == {"type": "integer", "minimum": 1, "maximum": 100}


async def test_explain_false_omits_reasoning() -> None:
    """Neither the prompt nor the cell has reasoning."""
    script = Script('{"clarity": 4}')
    spec = judge(explain=False)
    assert await fill(spec, script, answer="x") == {"clarity": 4}
    schema: Any = script.requests[0].schema
    assert schema["properties"] == {"clarity": {"type": "integer", "enum": [1, 2, 3, 4, 5]}}
    assert "reasoning" not in script.said()[0][1]
    column = make_column(spec, Environment(models={"writer": Scripted()}))
    assert column.dtypes() == {"quality": pl.Struct({"clarity": pl.Int64})}


async def test_a_custom_prompt_comes_first() -> None:
    """The columns of `of` and the rubric follow the prompt."""
    script = Script(said(clarity=4))
    await fill(judge(prompt="Asked: {{ question }}"), script, answer={"a": "ä"}, question="Why?")
    prompt = script.said()[0][1]
    assert prompt.startswith('Asked: Why?\n\n<answer>\n{"a": "ä"}\n</answer>\n\nJudge answer by')
    script = Script(said(clarity=4))
    await fill(judge(of=(), prompt="Asked: {{ question }}"), script, question="Why?")
    assert script.said()[0][1].startswith("Asked: Why?\n\nJudge by these scores:\n- clarity")


async def test_judged_values_are_not_templates() -> None:
    """Braces in a judged value are sent unchanged."""
    script = Script(said(clarity=4))
    await fill(judge(), script, answer="{{ 1 + 1 }} {% raw %}")
    assert "<answer>\n{{ 1 + 1 }} {% raw %}\n</answer>" in script.said()[0][1]


async def test_a_null_is_not_judged() -> None:
    """If all judged values are null, the result is null and no call is made."""
    script = Script(said(clarity=4))
    assert await fill(judge(), script, answer=None) is None
    assert await fill(judge(trace=True), script, answer=None) == {"quality": None}
    assert not script.requests
    assert (await fill(judge(of=["answer", "other"]), script, answer=None, other="x"))["clarity"] == 4


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ('{"clarity": 4}', 4),
        ('{"clarity": "4"}', 4),
        ('{"clarity": {"score": "4/5"}}', 4),
        ('{"clarity": {"score": "4 out of 5", "reasoning": "x"}}', 4),
        ('{"clarity": 4.0}', 4),
        ('{"scores": {"clarity": 4}}', 4),
        ('Well:\n```json\n{"clarity": 4}\n```', 4),
    ],
)
async def test_common_spellings_of_scores_are_accepted(answer: str, score: int) -> None:
    """Numbers as text, fractions and wrapped objects need no repair."""
    script = Script(answer)
    cell = await fill(judge(), script, answer="x")
    assert cell["clarity"] == score
    assert type(cell["clarity"]) is int
    assert len(script.requests) == 1


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ('{"clarity": 6}', "clarity is 6 and must be a whole number from 1 to 5"),
        ('{"clarity": {"score": 0, "reasoning": "x"}}', "clarity is 0 and must be"),
        ('{"clarity": 3.5}', "clarity is 3.5 and must be"),
        ('{"clarity": true}', "clarity is true and must be"),
        ('{"clarity": "good"}', 'clarity is "good" and must be'),
        ('{"Clear": 4}', "clarity is missing and must be"),
        ("[4]", "it is not a JSON object of scores"),
        ("4 of 5", "it is not JSON"),
        ('{"clarity": 1e999}', "clarity is Infinity and must be"),
    ],
)
async def test_scores_outside_of_their_range_are_repaired(answer: str, problem: str) -> None:
    """The correction names the score, the found value and the allowed values."""
    script = Script(answer, said(clarity=5))
    assert (await fill(judge(), script, answer="x"))["clarity"] == 5
    correction = script.said()[-1]
    assert correction[0] == "user"
    assert problem in correction[1]
    assert "one JSON object that has clarity" in correction[1]


async def test_all_invalid_scores_are_in_one_correction() -> None:
    """One repair covers several invalid scores; the last error is in the failure."""
    script = Script('{"a": 9}')
    with pytest.raises(BadOutput, match=r"after 1 repair: a is 9 and must be .*; b is missing and must be one of 1, 3"):
        await fill(judge({"a": "1 to 5", "b": {"options": [1, 3]}}, max_repairs=1), script, answer="x")
    assert len(script.requests) == 2


@pytest.mark.parametrize(
    ("options", "given_", "score"),
    [
        (["formal", "casual"], " Formal ", "formal"),
        ([1, 3, 5], "3", 3),
        ([0.5, 1], 1, 1.0),
        ([0, 1], 2, None),
        (["yes", "no"], "maybe", None),
    ],
)
async def test_only_options_are_accepted_as_scores(options: list[Any], given_: Any, score: Any) -> None:
    """Numbers are compared by value, texts without regard to case."""
    spec = judge({"x": {"options": options}}, max_repairs=0)
    script = Script(json.dumps({"x": given_}))
    if score is None:
        with pytest.raises(BadOutput, match=r"x is .* and must be one of"):
            await fill(spec, script, answer="x")
    else:
        cell = await fill(spec, script, answer="x")
        assert cell["x"] == score
        assert type(cell["x"]) is type(score)


@given(st.integers(-3, 9) | st.floats(-3, 9) | st.text(alphabet="0123456789./- ", max_size=5))
def test_a_score_is_in_its_range_or_rejected(answer: Any) -> None:
    """For any answer, an accepted score is a whole number of the range."""

    async def main() -> Any:
        return await fill(judge(max_repairs=0), Script(json.dumps({"clarity": answer})), answer="x")

    try:
        cell = trio.run(main)
    except BadOutput:
        return
    assert cell["clarity"] in range(1, 6)
    assert type(cell["clarity"]) is int


async def test_a_judge_and_an_expression_over_its_scores() -> None:
    """Scores over HTTP, at first out of range, and a column that is computed from them."""

    def script(request: ServerRequest) -> str | None:
        messages = request.body["messages"]
        if "Judge answer" not in messages[0]["content"]:
            return None
        return said(clarity=7) if len(messages) == 1 else said(clarity=2 + int("row 1" in messages[0]["content"]) * 3)

    specs = [
        numbers(),
        LLMText("answer", model="writer", prompt="Answer row {{ n }}", skip_when="n == 2"),
        judge(prompt="row {{ n }}"),
        Expression("good", "quality.clarity >= 4", dtype=bool),
    ]
    async with serve_openai(script=script) as server:
        grown = await grow_specs(specs, {"writer": served_by(server)}, rows=3)
    assert grown.frame["good"].to_list() == [False, True, None]
    assert grown.frame["quality"].to_list()[1] == {"clarity": 5, "clarity_reasoning": "so 5"}
    assert grown.frame.schema["quality"] == pl.Struct({"clarity": pl.Int64, "clarity_reasoning": pl.String})


async def test_scores_may_be_given_as_objects() -> None:
    """A `Score` is equal to its text."""
    objects = judge({"clarity": Score(range=(1, 5), description="how clear")})
    assert objects == judge({"clarity": "1 to 5: how clear"})
