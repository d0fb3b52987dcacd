"""Rows as the chat formats of fine-tuning."""

from __future__ import annotations

from typing import Any

import pytest

from seedbed.errors import ConfigError
from seedbed.publish.chat import CHAT_FORMATS

USER, ASSISTANT = {"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}
ROW = {"q": "2+2?", "a": "4", "worse": "5", "sys": "Be brief.", "talk": [USER, ASSISTANT], "nothing": None}


def convert(name: str, **mapping: str) -> Any:
    """The row above in a format."""
    chat = CHAT_FORMATS[name]
    return chat.convert(ROW, chat.mapping(list(ROW), mapping))


def test_openai_chat_has_messages() -> None:
    """A conversation is taken as it is; a prompt and a response become one, after the system prompt."""
    assert convert("openai-chat", messages="talk") == {"messages": [USER, ASSISTANT]}
    assert convert("openai-chat", prompt="q", response="a", system="sys") == {
        "messages": [{"role": "system", "content": "Be brief."}, USER, ASSISTANT]
    }
    assert convert("openai-chat", prompt="talk", response="a") == {"messages": [USER, ASSISTANT, ASSISTANT]}


def test_tool_calls_stay_in_messages() -> None:
    """Fields beside the content are kept unless they are null; the content of a message that calls tools is null."""
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}], "name": None}
    chat = CHAT_FORMATS["openai-chat"]
    found = chat.convert({"talk": [call]}, chat.mapping(["talk"], {"messages": "talk"}))
    assert found == {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]}


def test_sharegpt_has_its_own_roles() -> None:
    """Users are human, assistants gpt; other roles keep their name."""
    assert convert("sharegpt", messages="talk", system="sys") == {
        "conversations": [
            {"from": "system", "value": "Be brief."},
            {"from": "human", "value": "2+2?"},
            {"from": "gpt", "value": "4"},
        ]
    }


def test_alpaca_always_has_an_input() -> None:
    """The input is empty where no column is mapped to it."""
    assert convert("alpaca", instruction="q", output="a") == {"instruction": "2+2?", "input": "", "output": "4"}
    assert convert("alpaca", instruction="q", input="sys", output="a")["input"] == "Be brief."


def test_dpo_is_text_or_conversations() -> None:
    """Three texts stay texts; with a system prompt or a conversation all three are messages."""
    assert convert("dpo", prompt="q", chosen="a", rejected="worse") == {
        "prompt": "2+2?",
        "chosen": "4",
        "rejected": "5",
    }
    assert convert("dpo", prompt="q", chosen="a", rejected="worse", system="sys") == {
        "prompt": [{"role": "system", "content": "Be brief."}, USER],
        "chosen": [ASSISTANT],
        "rejected": [{"role": "assistant", "content": "5"}],
    }


def test_a_row_without_a_needed_value_is_left_out() -> None:
    """A null in a required field leaves the row out; in an optional one it does not."""
    assert convert("alpaca", instruction="q", output="nothing") is None
    assert convert("alpaca", instruction="q", input="nothing", output="a")["input"] == ""


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        (["messages", "prompt", "response"], {"messages": "messages"}),
        (["question", "answer"], {"prompt": "question", "response": "answer"}),
        (
            ["instruction", "completion", "system"],
            {"prompt": "instruction", "response": "completion", "system": "system"},
        ),
    ],
)
def test_usual_names_need_no_mapping(columns: list[str], found: dict[str, str]) -> None:
    """Columns of usual names are found; a whole conversation goes first."""
    assert CHAT_FORMATS["openai-chat"].mapping(columns, {}) == found


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("openai-chat", {}, "no column for prompt and response: map each to a column (prompt=COLUMN), or 'messages'"),
        ("alpaca", {"promt": "q"}, "unknown field 'promt'"),
        ("dpo", {"prompt": "question"}, "field 'prompt': unknown column 'question'"),
        ("dpo", {"prompt": "q", "chosen": "a"}, "no column for rejected: map each to a column (rejected=COLUMN); the"),
    ],
)
def test_a_missing_field_is_named(name: str, given: dict[str, str], message: str) -> None:
    """What cannot be mapped is an error that names the field and the columns."""
    with pytest.raises(ConfigError) as caught:
        CHAT_FORMATS[name].mapping(["q", "a"], given)
    assert message in str(caught.value)


def test_a_list_that_is_no_conversation_is_an_error() -> None:
    """A column of other lists is not written as messages."""
    chat = CHAT_FORMATS["openai-chat"]
    with pytest.raises(ConfigError, match="a conversation is a list of messages with role and content"):
        chat.convert({"talk": ["hello"]}, {"messages": "talk"})
