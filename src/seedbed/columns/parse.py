"""What the text of an answer holds: JSON, fenced code, and reasoning before it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NoReturn

import attrs

from ..errors import BadOutput

if TYPE_CHECKING:
    from collections.abc import Callable

# A fence opens with three or more backticks or tildes and closes with as many of the same.
_FENCE = re.compile(
    r"^[ \t]*(?P<mark>`{3,}|~{3,})[ \t]*(?P<language>[\w+#.:-]*)[^\n]*\n"
    r"(?P<code>.*?)(?:^[ \t]*(?P=mark)[ \t]*$|(?P<open>\Z))",
    re.DOTALL | re.MULTILINE,
)
_THOUGHTS = re.compile(r"\s*<think(?:ing)?>(.*?)(?:</think(?:ing)?>|\Z)", re.DOTALL)
_OPENING = re.compile(r"[{\[]")
_BEGINS_JSON = re.compile(r"\{\s*\"|\[\s*[\[{\"\d-]")
# At most so many brackets of one text are tried: each try may read to the end.
_MAX_TRIES = 200
# The names of each language.
_LANGUAGES = [
    frozenset(names.split())
    for names in (
        *("python python3 py", "javascript js jsx node", "typescript ts tsx", "bash sh shell zsh", "c++ cpp cxx"),
        *("c# csharp cs", "yaml yml", "rust rs", "go golang", "ruby rb", "markdown md"),
        "sql postgresql postgres sqlite mysql tsql plsql bigquery snowflake duckdb",
    )
]


@attrs.frozen
class Block:
    """The content of a fence."""

    language: str
    code: str
    is_closed: bool


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a text, in order; the last may lack its closing fence."""
    return [
        Block(found["language"].lower(), found["code"].rstrip("\n"), found["open"] is None)
        for found in _FENCE.finditer(text)
    ]


def split_thoughts(text: str) -> tuple[str | None, str]:
    """The reasoning before an answer, if the server did not remove it, and the answer.

    With reasoning that never ends the answer is empty.
    """
    found = _THOUGHTS.match(text)
    return (None, text) if found is None else (found.group(1).strip(), text[found.end() :])


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


_DECODER = json.JSONDecoder(parse_constant=_reject_constant)


def extract_json(text: str) -> Any:
    """The JSON value of an answer: all of it, in a fence, or within prose."""
    text = text.strip()
    parse: Callable[[str], Any] = _DECODER.decode
    fenced = [(parse, block.code) for block in blocks(text) if block.language in ("", "json", "jsonc")]
    problem = ""
    for decode, part in ((parse, text), *(fenced or [(_from_prose, text)])):
        try:
            return decode(part)
        except ValueError as error:
            problem = str(error)
        except RecursionError:
            problem = "it is nested too deeply"
    raise BadOutput(f"it is not JSON: {problem}")


def _from_prose(text: str) -> Any:
    """The largest value that starts with a bracket; an object goes before a list, as `[1]` may be a footnote.

    Raises for a value that is broken: a part of it is not what the model meant.
    """
    found: list[tuple[bool, int, Any]] = []
    position = 0
    for _ in range(_MAX_TRIES):
        opening = _OPENING.search(text, position)
        if opening is None:
            break
        try:
            value, end = _DECODER.raw_decode(text, opening.start())
        except ValueError:
            if _BEGINS_JSON.match(text, opening.start()):
                raise
            position = opening.end()
        else:
            found.append((isinstance(value, dict), end - opening.start(), value))
            position = end
    if not found:
        raise ValueError("it contains no JSON value")
    return max(found, key=lambda each: each[:2])[2]


def extract_code(text: str, language: str) -> str | None:
    """The code of a language in an answer: its longest fenced block, or that of a fence that names no language.

    None if there is no fence: then all of the text may be code. Raises `BadOutput` for a fence that is not closed and
    if all fences have other languages.
    """
    found = blocks(text)
    if not found:
        return None
    wanted = language.lower()
    same = next((names for names in _LANGUAGES if wanted in names), {wanted})
    fitting = [block for block in found if block.language.partition(":")[0] in same]
    fitting = fitting or [block for block in found if not block.language]
    if not fitting:
        others = ", ".join(dict.fromkeys(block.language for block in found))
        raise BadOutput(f"it has no code block of {language}, only of {others}")
    chosen = max(fitting, key=lambda block: len(block.code))
    if not chosen.is_closed:
        raise BadOutput("its code block is not closed: the answer is not complete")
    if not chosen.code.strip():
        raise BadOutput("its code block is empty")
    return chosen.code
