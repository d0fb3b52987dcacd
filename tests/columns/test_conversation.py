"""Conversations between scripted models, in real builds."""

from __future__ import annotations

from typing import Any

import pytest

import seedbed as sb
from seedbed.errors import ConfigError, DatasetGenerationError, Retryable
from seedbed.models import ChatRequest, Scripted
from seedbed.testing import virtual_time

CUSTOMER = {
    "name": "customer",
    "model": "customer",
    "prompt": "{{ mood }}: {% if turns %}{{ turns[-1].content }}{% else %}begin{% endif %}",
}
ASSISTANT = {
    "name": "assistant",
    "model": "assistant",
    "system": "You help somebody {{ mood }}, turn {{ turns | length }}.",
}


def side(prompt: str, model: str = "m") -> dict[str, Any]:
    """A speaker with a prompt."""
    return {"name": "a", "model": model, "prompt": prompt}


def talk(name: str = "chat", **options: Any) -> sb.Conversation:
    """A conversation of a customer and an assistant."""
    return sb.Conversation(name, **({"speakers": [CUSTOMER, ASSISTANT]} | options))


def build(*specs: Any, rows: int = 1, run: Any = None, **models: Any) -> list[dict[str, Any]]:
    """The rows of a recipe, in virtual time."""
    known: dict[str, Any] = {name: Scripted(model=name, answers=answers) for name, answers in models.items()}
    recipe = sb.Recipe(columns=[sb.Category("mood", values=["calm"]), *specs], models=known)
    with virtual_time():
        found: list[dict[str, Any]] = sb.preview(recipe, rows=rows, config=run).to_polars().to_dicts()
    return found


def test_speakers_take_turns_and_see_what_they_may() -> None:
    """A template sees the turns; a speaker without one gets them as a chat from its own side."""
    seen: list[list[tuple[str, str]]] = []

    def assist(request: ChatRequest) -> str:
        seen.append([(message.role, message.content) for message in request.messages])
        return f"answer {len(seen)}"

    (row,) = build(talk(max_turns=4), customer="said {prompt}", assistant=assist)
    assert row["chat"] == [
        {"role": "user", "content": "said calm: begin"},
        {"role": "assistant", "content": "answer 1"},
        {"role": "user", "content": "said calm: answer 1"},
        {"role": "assistant", "content": "answer 2"},
    ]
    assert seen[1] == [
        ("system", "You help somebody calm, turn 3."),
        ("user", "said calm: begin"),
        ("assistant", "answer 1"),
        ("user", "said calm: answer 1"),
    ]
    assert [(turn["speaker"], turn["model"]) for turn in row["chat__turns"]] == [
        *(("customer", "customer"), ("assistant", "assistant")) * 2
    ]
    assert all(turn["finish_reason"] == "stop" and turn["output_tokens"] for turn in row["chat__turns"])


def test_a_conversation_ends_when_until_is_true() -> None:
    """The expression is evaluated after each turn, over the turns and other columns."""
    spec = talk(max_turns=9, until='"answer 2" in turns[-1].content and mood == "calm" and turns[-1].number == 4')
    answers = iter(range(1, 9))
    (row,) = build(spec, customer="go on", assistant=lambda _: f"answer {next(answers)}")
    assert [message["content"] for message in row["chat"]] == ["go on", "answer 1", "go on", "answer 2"]


def test_three_speakers_may_have_one_model() -> None:
    """Each has its own role; turns with equal prompts still have seeds of their own."""
    one = {"model": "m", "prompt": "Say it."}
    speakers = [{**one, "name": "a"}, {**one, "name": "b", "role": "user"}, {**one, "name": "c"}]
    (row,) = build(talk(speakers=speakers, max_turns=5), m="{seed}")
    assert [turn["role"] for turn in row["chat"]] == ["user", "user", "assistant", "user", "user"]
    assert len({turn["content"] for turn in row["chat"]}) == 5
    assert [turn["speaker"] for turn in row["chat__turns"]] == ["a", "b", "c", "a", "b"]


def test_given_messages_keep_the_side_of_the_user() -> None:
    """Only the turns of the assistant are written, each after those before it; its old ones are left out."""
    speakers = [{"name": "assistant", "model": "m"}]
    given = sb.Expression(
        "given",
        expr='[{"role": "system", "content": "Be " ~ mood}, {"role": "user", "content": "one"}, '
        '{"role": "assistant", "content": "old"}, {"role": "user", "content": "two"}]',
    )

    def answer(request: ChatRequest) -> str:
        return " / ".join(f"{message.role} {message.content}" for message in request.messages)

    (row,) = build(given, talk(speakers=speakers, given="given"), m=answer)
    first = "system Be calm / user one"
    assert row["chat"] == [
        {"role": "system", "content": "Be calm"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": f"{first} / assistant {first} / user two"},
    ]
    assert len(row["chat__turns"]) == 2
    (row,) = build(given, talk(speakers=speakers, given="given", max_turns=1), m=answer)
    assert len(row["chat"]) == 3


def test_given_that_is_null_or_no_list_of_messages() -> None:
    """A null gives a null without a call; anything else drops the row with what was found."""
    speakers = [{"name": "assistant", "model": "m"}]
    spec = talk(speakers=speakers, given="mood")
    recipe = sb.Recipe(columns=[sb.Category("mood", values=["calm"]), spec], models={"m": Scripted(answers="never")})
    with virtual_time():
        (drop,) = sb.preview(recipe, rows=1).report.dropped
    assert "given is no list of messages with a role and content: calm" in drop.reason
    nothing = sb.Expression("nothing", expr="none", dtype="json")
    (row,) = build(nothing, talk(speakers=speakers, given="nothing"), m="never")
    assert (row["chat"], row["chat__turns"]) == (None, None)


def test_turns_that_fail_cost_no_turns_before_them() -> None:
    """A failed call is sent again; an empty answer is asked for again, and the turns before it stay."""
    calls: list[str] = []
    outcomes = iter(["", "fine", Retryable("later"), "good"])

    def assist(request: ChatRequest) -> str:
        outcome = next(outcomes)
        calls.append(request.messages[-1].content)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def ask(request: ChatRequest) -> str:
        calls.append(request.messages[-1].content)
        return f"question {len(calls)}"

    (row,) = build(talk(max_turns=4), customer=ask, assistant=assist)
    assert [message["content"] for message in row["chat"]] == ["question 1", "fine", "question 4", "good"]
    # Each call of the customer was made once.
    assert sum(call.startswith("calm: ") for call in calls) == 2


def test_a_side_of_the_user_gets_its_own_turns_as_those_of_the_assistant() -> None:
    """Whatever its role in the messages: to its model it is the one who answers."""
    seen: list[list[str]] = []

    def second(request: ChatRequest) -> str:
        seen.append([message.role for message in request.messages])
        return "well"

    speakers = [side("Begin.", model="m"), {"name": "b", "model": "n", "role": "user"}]
    (row,) = build(talk(speakers=speakers, max_turns=4), m="go on", n=second)
    assert seen == [["user"], ["user", "assistant", "user"]]
    assert [message["role"] for message in row["chat"]] == ["user"] * 4


def test_an_empty_answer_after_a_tool_runs_no_tool_again() -> None:
    """The model is asked again with the result that it has."""
    ran: list[int] = []

    def order(number: int) -> str:
        """Orders something."""
        ran.append(number)
        return "ordered"

    answers = iter(['{"tool_calls": [{"name": "order", "arguments": {"number": 1}}]}', "", "done"])
    tool = sb.FunctionTool(function=order, idempotent=False)
    speakers = [{**side("Begin."), "tools": [tool]}]
    (row,) = build(talk(speakers=speakers, max_turns=1), m=lambda _: next(answers))
    assert [message["content"] for message in row["chat"]] == [None, "ordered", "done"]
    assert ran == [1]


def lookup(order: int) -> str:
    """Looks up an order."""
    return f"order {order} is on its way"


def test_a_speaker_calls_tools_within_its_turn() -> None:
    """The calls and results are messages of the turn; the other side hears the answer only."""
    answers = {
        "on its way": "It is on its way.",
        "*": '{"tool_calls": [{"name": "lookup", "arguments": {"order": 5}}]}',
    }
    speakers = [CUSTOMER, {**ASSISTANT, "tools": [lookup]}]
    (row,) = build(talk(speakers=speakers, max_turns=3), customer="{prompt}", assistant=answers)
    assert [message["role"] for message in row["chat"]] == ["user", "assistant", "tool", "assistant", "user"]
    assert row["chat"][1]["tool_calls"][0]["function"] == {"name": "lookup", "arguments": '{"order": 5}'}
    assert row["chat"][2]["content"] == "order 5 is on its way"
    assert row["chat"][4]["content"] == "calm: It is on its way."
    assert len(row["chat__turns"]) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "column 'chat': max_turns is missing"),
        ({"speakers": [{"name": "a", "model": "m"}], "max_turns": 2}, "the prompt of 'a' is missing"),
        ({"speakers": []}, "speakers must be a list of speakers"),
        ({"speakers": {"a": {"model": "m"}}}, "speakers must be a list of speakers"),
        ({"speakers": [{"name": "a", "prompt": "x"}]}, "column 'chat': speakers[0]: model is missing"),
        ({"speakers": [{"modle": "x"}]}, "speakers[0]: unknown field 'modle'; did you mean 'model'"),
        ({"speakers": [CUSTOMER, CUSTOMER], "max_turns": 2}, "duplicate speaker 'customer'"),
        ({"speakers": [{**CUSTOMER, "tools": [5]}]}, "speakers[0]: tools[0]: a tool is a function"),
        ({"speakers": [{**CUSTOMER, "name": "system"}], "max_turns": 1}, "give the speaker another name"),
        ({"given": "x"}, "with given there is one speaker, the assistant, not customer, assistant"),
        ({"max_turns": 2, "until": "turns["}, "until"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], message: str) -> None:
    """By the column and the speaker."""
    with pytest.raises(ConfigError) as raised:
        talk(**options)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (talk(max_turns=2, until="turns[-1].contents == mood"), "unknown field 'contents' of 'turns[-1]'"),
        (
            talk(max_turns=2, speakers=[side("{% for t in turns %}{{ t.text }}{% endfor %}")]),
            "unknown field 'text' of 't'",
        ),
        (talk(max_turns=2, speakers=[side("x", model="n")]), "model 'n' is not in models"),
        (talk(max_turns=2, speakers=[side("{{ moood }}")]), "moood"),
        (talk("turns", max_turns=2), "the column 'turns' cannot be read here"),
    ],
)
def test_check_knows_turns_columns_and_models(spec: sb.Conversation, message: str) -> None:
    """A misspelled field of a turn, an unknown column and an unknown model are found before anything runs."""
    names = ("m", "customer", "assistant")
    with pytest.raises(DatasetGenerationError) as raised:
        build(spec, **dict.fromkeys(names, "never"))
    assert message in str(raised.value)


def test_check_knows_the_fields_of_messages_and_metadata() -> None:
    """Templates of other columns that name a field that no message has are found too."""
    wrong = [
        sb.Expression("last", expr="chat[-1].text"),
        sb.Expression("who", expr="chat__turns[0].speakr"),
    ]
    with pytest.raises(DatasetGenerationError) as raised:
        build(talk(max_turns=2), *wrong, customer="x", assistant="y")
    assert "unknown field 'text' of 'chat[-1]'" in str(raised.value)
    assert "unknown field 'speakr' of 'chat__turns[0]'; did you mean 'speaker'" in str(raised.value)


def test_a_simulation_makes_the_calls_of_all_turns() -> None:
    """Each speaker's model has half of the calls; notes say what is not simulated."""
    models = {
        "customer": Scripted(model="customer", latency=1.0),
        "assistant": Scripted(model="assistant", latency=1.0),
    }
    recipe = sb.Recipe(columns=[sb.Category("mood", values=["calm"]), talk(max_turns=4, until="false")], models=models)
    result = sb.simulate(recipe, rows=100, seeds=1)
    calls = {(used.column, used.model): used.calls.mean for used in result.base.columns}
    assert calls == {("chat", "customer"): 200, ("chat", "assistant"): 200}
    assert "until reads placeholders" in str(result)
    # With a number of calls that is given or measured, the speakers share it.
    result = sb.simulate(recipe, rows=1000, seeds=1, calls={"chat": {"calls": 2}})
    calls = {used.model: used.calls.mean for used in result.base.columns}
    # The first cells have all their turns.
    assert 1000 <= calls["customer"] == calls["assistant"] < 1200
