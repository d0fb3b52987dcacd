"""What a model's answer holds besides its words: JSON and code, in fences or without. Raises `BadOutput`.

The messages are meant for the model, which is asked again with them.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

import attrs

from ..errors import BadOutput

# A fence opens with three or more backticks or tildes and closes with as many of the same.
_FENCE = re.compile(
    r"^[ \t]*(?P<mark>`{3,}|~{3,})[ \t]*(?P<language>[\w+#.:-]*)[^\n]*\n"
    r"(?P<code>.*?)(?:^[ \t]*(?P=mark)[ \t]*$|(?P<open>\Z))",
    re.DOTALL | re.MULTILINE,
)
_THOUGHTS = re.compile(r"\s*<think(?:ing)?>(.*?)(?:</think(?:ing)?>|\Z)", re.DOTALL)
_OPENING = re.compile(r"[{\[]")
_BEGINS_JSON = re.compile(r"\{\s*\"|\[\s*[\[{\"\d-]")
_JSON = ("", "json", "jsonc")
# Of a text full of brackets only so many are tried: each try may read to the end.
_MAX_TRIES = 200
_ALIASES = (
    frozenset({"python", "python3", "py"}),
    frozenset({"javascript", "js", "jsx", "node"}),
    frozenset({"typescript", "ts", "tsx"}),
    frozenset({"bash", "sh", "shell", "zsh"}),
    frozenset({"c++", "cpp", "cxx"}),
    frozenset({"c#", "csharp", "cs"}),
    frozenset({"yaml", "yml"}),
    frozenset({"rust", "rs"}),
    frozenset({"go", "golang"}),
    frozenset({"ruby", "rb"}),
    frozenset({"markdown", "md"}),
    frozenset({"sql", "postgresql", "postgres", "sqlite", "mysql", "tsql", "plsql", "bigquery", "snowflake", "duckdb"}),
)


@attrs.frozen
class Block:
    """What stands in a fence."""

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
    """What a model thought aloud before its answer, if its server left that in, and the answer.

    Thoughts that never end are all that there is: the answer is empty.
    """
    found = _THOUGHTS.match(text)
    return (None, text) if found is None else (found.group(1).strip(), text[found.end() :])


def extract_json(text: str) -> Any:
    """The JSON value of an answer: the whole of it, in a fence, or in the middle of prose."""
    text = text.strip()
    fenced = [block.code for block in blocks(text) if block.language in _JSON]
    for candidate in (text, *fenced):
        try:
            return _loads(candidate)
        except ValueError as error:
            problem = str(error)
    if not fenced:
        try:
            return _from_prose(text)
        except ValueError as error:
            problem = str(error)
    raise BadOutput(f"it is not JSON: {problem}")


def _loads(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _from_prose(text: str) -> Any:
    """The largest value that begins with a bracket; an object goes before a list, as `[1]` may be a footnote.

    What begins like JSON and is broken is never looked into: a part of it is not what the model meant to say.
    """
    found: list[tuple[bool, int, Any]] = []
    position = 0
    for _ in range(_MAX_TRIES):
        opening = _OPENING.search(text, position)
        if opening is None:
            break
        try:
            value, end = _DECODER.raw_decode(text, opening.start())
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        except ValueError:
            if _BEGINS_JSON.match(text, opening.start()):
                raise
            position = opening.end()
        else:
            found.append((isinstance(value, dict), end - opening.start(), value))
            position = end
    if not found:
        raise ValueError("there is no JSON value in it")
    return max(found, key=lambda each: each[:2])[2]


def extract_code(text: str, language: str) -> str | None:
    """The code of a language in an answer: its longest fenced block, or that of a fence that names no language.

    None where there is no fence at all: then the whole text may be code. Raises `BadOutput` for a fence that is not
    closed and for fences of other languages only.
    """
    found = blocks(text)
    if not found:
        return None
    same = _same(language)
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


def _same(language: str) -> frozenset[str]:
    language = language.lower()
    return next((names for names in _ALIASES if language in names), frozenset({language}))
