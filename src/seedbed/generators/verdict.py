"""What a validation says of one value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs
import polars as pl

from ..errors import BadOutput

_MESSAGE = pl.Struct(
    {
        "severity": pl.String,
        "code": pl.String,
        "message": pl.String,
        "line": pl.Int64,
        "column": pl.Int64,
        "path": pl.String,
    }
)
CHECKED = pl.Struct({"is_valid": pl.Boolean, "error": pl.String, "messages": pl.List(_MESSAGE)})
"""The type of what a parser or a schema says."""
TOLD = pl.Struct({"is_valid": pl.Boolean, "error": pl.String, "details": pl.String})
"""The type of what a function or a server says."""


@attrs.frozen(kw_only=True)
class Message:
    """One thing that was found; lines and columns count from 1, and `path` leads into a structured value."""

    severity: str = "error"
    code: str | None = None
    message: str
    line: int | None = None
    column: int | None = None
    path: str | None = None


def checked(messages: list[Message]) -> dict[str, Any]:
    """The verdict: invalid if one of the messages is an error."""
    error = next((each for each in messages if each.severity == "error"), None)
    text = None
    if error is not None:
        place = f"line {error.line}: " if error.line is not None else f"{error.path}: " if error.path else ""
        text = place + error.message
    return {"is_valid": error is None, "error": text, "messages": [attrs.asdict(each) for each in messages]}


def not_text(value: object) -> Message:
    """What is said of a value that should be text."""
    return Message(message=f"a value of type {type(value).__name__}, not text")


def told(column: str, said: Any) -> dict[str, Any]:
    """The verdict that a function or a server gave: true or false, an error or null, or a mapping with `is_valid`."""
    if said is None or isinstance(said, bool):
        is_valid = said is not False
        return {"is_valid": is_valid, "error": None if is_valid else "not valid", "details": None}
    if isinstance(said, str):
        return {"is_valid": not said, "error": said or None, "details": None}
    if not isinstance(said, Mapping) or not isinstance(said.get("is_valid"), bool):
        raise BadOutput(f"column {column!r}: a verdict must be a mapping with a boolean is_valid, not {said!r:.200}")
    error = said.get("error")
    if not said["is_valid"] and error is None:
        error = "not valid"
    rest = {key: value for key, value in said.items() if key not in ("is_valid", "error")}
    details = json.dumps(rest, default=str, ensure_ascii=False) if rest else None
    return {"is_valid": said["is_valid"], "error": None if error is None else str(error), "details": details}
