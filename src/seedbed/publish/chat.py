"""Rows as the chat formats of fine-tuning, one JSON object for each row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from ..errors import ConfigError
from ..graph import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Row = dict[str, Any]

# The columns that a field is read from if no other is named, the first that the dataset has.
_USUAL = {
    "messages": ("messages", "conversation", "chat"),
    "prompt": ("prompt", "instruction", "question"),
    "instruction": ("instruction", "prompt", "question"),
    "response": ("response", "answer", "completion", "output"),
    "output": ("output", "response", "answer", "completion"),
}
_SHAREGPT_ROLES = {"user": "human", "assistant": "gpt"}  # others keep their name


@attrs.frozen
class ChatFormat:
    """The fields that a format reads, and the object that it writes for the values of a row."""

    required: tuple[str, ...]
    optional: tuple[str, ...]
    write: Callable[[Row], Row]
    # What may take the place of the required fields: one column that holds the whole conversation.
    whole: str | None = None

    def mapping(self, columns: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
        """The column of each field. Raises `ConfigError` if a field is unknown or a required one has no column."""
        known = (*([self.whole] if self.whole else []), *self.required, *self.optional)
        for field, column in given.items():
            if field not in known:
                raise ConfigError(f"unknown field {field!r}{nearest(field, known)}; the format has {', '.join(known)}")
            if column not in columns:
                raise ConfigError(f"field {field!r}: unknown column {column!r}{nearest(column, columns)}")
        found = dict(given)
        for field in known:
            usual = next((name for name in _USUAL.get(field, (field,)) if name in columns), None)
            if field not in found and usual is not None:
                found[field] = usual
        if self.whole in given or (self.whole in found and not any(field in given for field in self.required)):
            return {name: column for name, column in found.items() if name not in self.required}
        missing = [field for field in self.required if field not in found]
        if missing:
            wanted = " and ".join(missing)
            instead = f", or {self.whole!r} to a column with whole conversations" if self.whole else ""
            raise ConfigError(
                f"no column for {wanted}: map each to a column ({missing[0]}=COLUMN){instead}; "
                f"the dataset has {', '.join(columns)}"
            )
        found.pop(self.whole or "", None)
        return found

    def convert(self, row: Row, mapping: Mapping[str, str]) -> Row | None:
        """The object of a row; None if a value that it needs is null."""
        values = {field: row[column] for field, column in mapping.items()}
        if any(values[field] is None for field in values if field not in self.optional):
            return None
        return self.write(values)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _messages(value: Any, role: str) -> list[Row]:
    """A text as one message of that role; messages as they are, without fields that are null."""
    if not isinstance(value, list | tuple):
        return [{"role": role, "content": _text(value)}]
    for each in value:
        if not (isinstance(each, dict) and isinstance(each.get("role"), str)):
            raise ConfigError(f"a conversation is a list of messages with role and content, not of {each!r:.80}")
    # The content of a message that only calls tools is null; the field is part of the format.
    return [{name: part for name, part in each.items() if part is not None or name == "content"} for each in value]


def _conversation(values: Row) -> list[Row]:
    system = _messages(values["system"], "system") if values.get("system") else []
    if "messages" in values:
        return [*system, *_messages(values["messages"], "user")]
    return [*system, *_messages(values["prompt"], "user"), *_messages(values["response"], "assistant")]


def _openai(values: Row) -> Row:
    return {"messages": _conversation(values)}


def _sharegpt(values: Row) -> Row:
    turns = [
        {"from": _SHAREGPT_ROLES.get(turn["role"], turn["role"]), "value": turn.get("content")}
        for turn in _conversation(values)
    ]
    return {"conversations": turns}


def _alpaca(values: Row) -> Row:
    system = {"system": _text(values["system"])} if values.get("system") else {}
    return {
        **system,
        "instruction": _text(values["instruction"]),
        "input": _text(values.get("input") or ""),
        "output": _text(values["output"]),
    }


def _dpo(values: Row) -> Row:
    system, names = values.get("system"), ("prompt", "chosen", "rejected")
    if not system and all(isinstance(values[name], str) for name in names):
        return {name: values[name] for name in names}
    before = _messages(system, "system") if system else []
    return {
        "prompt": [*before, *_messages(values["prompt"], "user")],
        "chosen": _messages(values["chosen"], "assistant"),
        "rejected": _messages(values["rejected"], "assistant"),
    }


CHAT_FORMATS = {
    "openai-chat": ChatFormat(("prompt", "response"), ("system",), _openai, whole="messages"),
    "sharegpt": ChatFormat(("prompt", "response"), ("system",), _sharegpt, whole="messages"),
    "alpaca": ChatFormat(("instruction", "output"), ("input", "system"), _alpaca),
    "dpo": ChatFormat(("prompt", "chosen", "rejected"), ("system",), _dpo),
}
