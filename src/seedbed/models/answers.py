"""Answers of scripted and simulated models: plausible text, and JSON that is valid for a schema.

Answers are a function of the prompt.
"""

from __future__ import annotations

import functools
import json
import random
import re
import struct
import tomllib
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .base import ToolCall
from .distributions import stable_seed

_SUBJECT = re.compile(
    r"\b(?:about|of|for|on|product:?|topic:?|item:?)\s+"
    r"(?:(?:a|an|the|this|that|product|item|topic)\s+)*+(?!review|customer|rating)[\"'“]?([\w][\w -]{2,40})",
    re.IGNORECASE,
)
_STOP = re.compile(r"\s+(?:in|with|that|which|and|from|by|to|as|is|was|written|who|using)\b.*", re.IGNORECASE)
# The sentiment of a prompt, by its words; without any of them it is positive.
_SENTIMENTS = (
    ("negative", r"disappointed|broke|sent it back|waste|sorry|angry|terrible"),
    ("mixed|neutral", r"rougher|not perfect|neither|undecided|mixed"),
    ("positive", r""),
)
_PHRASES = ("a sturdy handle", "easy to clean", "quick delivery", "a thin manual", "good value", "spare parts")
_FORMATS = {
    "date": "{year}-{month:02}-{day:02}",
    "date-time": "{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:00Z",
    "time": "{hour:02}:{minute:02}:00Z",
    "email": "user{minute}@example.org",
    "uri": "https://example.org/{minute}",
    "uuid": "{bits:08x}-0000-4000-8000-{bits:012x}",
}


@functools.cache
def _texts() -> list[tuple[re.Pattern[str], list[str]]]:
    """Patterns of prompts, each with the texts that answer them."""
    found = tomllib.loads(Path(__file__).with_name("texts.toml").read_text(encoding="utf-8"))
    return [(re.compile(each["pattern"], re.IGNORECASE | re.DOTALL), each["texts"]) for each in found["answers"]]


def plausible_text(prompt: str) -> str:
    """Return one or two sentences that could answer the prompt."""
    rng = random.Random(stable_seed("text", prompt))
    text = rng.choice(next(texts for pattern, texts in _texts() if pattern.search(prompt)))
    found = _SUBJECT.search(prompt)
    subject = _STOP.sub("", found.group(1)).strip() if found else ""
    named = f"the {subject}" if len(subject) > 2 else "this one"
    return text.replace("{subject}", named).replace("{Subject}", named[0].upper() + named[1:])


def fitting_json(schema: Mapping[str, Any], prompt: str) -> str:
    """Return JSON that is valid for the schema.

    Types, ranges and lengths are respected; patterns and conditions across properties are not.
    """
    return json.dumps(_Generator(schema, prompt).value(schema, "answer", 0), ensure_ascii=False)


# Objects and arrays below this level are as small as the schema allows: a schema may contain itself.
_DEEP = 4
# A schema that contains itself may have no finite value: beyond this level or number of values, parts are null.
_MAX_DEPTH = 50
_MAX_VALUES = 10_000


class _Generator:
    def __init__(self, root: Mapping[str, Any], prompt: str) -> None:
        self._root = root
        self._prompt = prompt
        self._rng = random.Random(stable_seed("schema", prompt))
        self._values = 0
        self._sentiment = next(name for name, words in _SENTIMENTS if re.search(words, prompt, re.IGNORECASE))

    def value(self, schema: Any, name: str, depth: int) -> Any:
        self._values += 1
        if depth > _MAX_DEPTH or self._values > _MAX_VALUES:
            return None
        # True and False are schemas too.
        schema = self._expanded(schema, depth) if isinstance(schema, Mapping) else {}
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            options = list(schema["enum"])
            fitting = [each for each in options if isinstance(each, str) and re.search(self._sentiment, each.lower())]
            return fitting[0] if fitting else self._rng.choice(options)
        kind = schema.get("type", "object" if "properties" in schema else "array" if "items" in schema else "string")
        if not isinstance(kind, str):
            is_null = depth >= _DEEP and "null" in kind
            kind = "null" if is_null else next((each for each in kind if each != "null"), "null")
        match kind:
            case "null":
                return None
            case "boolean":
                is_verdict = re.search(r"again|recommend|satisfied|positive", name)
                return self._sentiment == "positive" if is_verdict else self._rng.random() < 0.5
            case "integer" | "number":
                return self._number(schema, is_whole=kind == "integer")
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, name, depth)
            case _:
                return self._string(schema, name)

    def _expanded(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        """The schema with references, `allOf` and one alternative merged into it.

        The alternative is the first that is not null; deep down null, or else the first without a reference.
        """
        parts = [*schema.get("allOf", ())]
        for key in ("anyOf", "oneOf"):
            order = _recursion if depth >= _DEEP else _is_null
            parts += sorted(schema.get(key, ()), key=order)[:1]
        if "$ref" in schema:
            found: Any = self._root
            for part in filter(None, schema["$ref"].removeprefix("#").split("/")):
                found = found[part.replace("~1", "/").replace("~0", "~")]
            parts.append(found)
        merged = {name: value for name, value in schema.items() if name not in {"allOf", "anyOf", "oneOf", "$ref"}}
        for part in (self._expanded(each, depth) for each in parts):
            properties = {**merged.get("properties", {}), **part.get("properties", {})}
            required = [*merged.get("required", ()), *part.get("required", ())]
            merged = {**part, **merged}
            merged |= {"properties": properties} if properties else {}
            merged |= {"required": required} if required else {}
        return merged

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties, rest = schema.get("properties", {}), schema.get("additionalProperties", True)
        # A schema may contain itself: below a few levels only required properties are generated.
        names = dict.fromkeys([*(name for name in properties if depth < _DEEP), *schema.get("required", ())])
        return {name: self.value(properties.get(name, rest), name, depth + 1) for name in names}

    def _array(self, schema: Mapping[str, Any], name: str, depth: int) -> list[Any]:
        items = [self.value(each, name, depth + 1) for each in schema.get("prefixItems", ())]
        low = schema.get("minItems", 0 if depth >= _DEEP else min(2, schema.get("maxItems", 2)))
        length = self._rng.randint(low, max(low, min(schema.get("maxItems", low + 1), low + 1)))
        for _ in range(50):  # more attempts than items, because unique items may come twice
            if len(items) >= length:
                break
            item = self.value(schema.get("items", True), name, depth + 1)
            if not (schema.get("uniqueItems") and item in items):
                items.append(item)
        return items

    def _number(self, schema: Mapping[str, Any], *, is_whole: bool) -> float:
        low, high = _bounds(schema, 1 if is_whole else 1e-6)
        step = schema.get("multipleOf", 1 if is_whole else None)
        if step is None:
            return min(high, max(low, round(self._rng.uniform(low, high), 2)))
        first = int(-(-low // step))
        number = self._rng.randint(first, max(first, int(high // step))) * step
        return int(number) if is_whole else float(number)

    def _string(self, schema: Mapping[str, Any], name: str) -> str:
        rng = self._rng
        template = _FORMATS.get(schema.get("format", ""))
        if template is not None:
            date = {"year": rng.randint(2015, 2025), "month": rng.randint(1, 12), "day": rng.randint(1, 28)}
            time = {"hour": rng.randrange(24), "minute": rng.randrange(60)}
            return template.format(**date, **time, bits=rng.getrandbits(32))
        if re.search(r"reason|comment|explanation|summary|text|description|answer|title", name):
            text = plausible_text(f"{self._prompt} {rng.random()}")
        else:
            text = rng.choice(_PHRASES)
        while len(text) < schema.get("minLength", 0):
            text += " " + rng.choice(_PHRASES)
        return text[: schema.get("maxLength")]


def _is_null(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "null"


def _recursion(schema: Mapping[str, Any]) -> int:
    return 0 if _is_null(schema) else 2 if "$ref" in schema else 1


def _bounds(schema: Mapping[str, Any], step: float) -> tuple[float, float]:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is None and "exclusiveMinimum" in schema:
        low = schema["exclusiveMinimum"] + step
    if high is None and "exclusiveMaximum" in schema:
        high = schema["exclusiveMaximum"] - step
    if low is None:
        low = 0 if high is None or high >= 0 else high - 100
    return low, low + 100 if high is None else high


def fitting_call(name: str, parameters: Mapping[str, Any], prompt: str) -> str:
    """Return the text of a scripted answer that calls a tool with arguments that are valid for its schema."""
    arguments = json.loads(fitting_json(parameters, prompt))
    return json.dumps({"tool_calls": [{"name": name, "arguments": arguments}]}, ensure_ascii=False)


def split_calls(text: str, turn: int) -> tuple[str, tuple[ToolCall, ...]]:
    """Return the text and the tool calls of a scripted answer.

    It calls tools if it is JSON such as `{"tool_calls": [{"name": "add", "arguments": {"a": 1}}], "content": "…"}`.
    `turn` is part of the ids, which are unique in a conversation.
    """
    if not text.lstrip().startswith(CALLS):
        return text, ()
    found = json.loads(text)
    calls = tuple(
        ToolCall(id=f"call_{turn}_{number}", name=each["name"], arguments=_arguments(each.get("arguments", {})))
        for number, each in enumerate(found["tool_calls"], 1)
    )
    return str(found.get("content", "")), calls


CALLS = '{"tool_calls"'
"""The beginning of a scripted answer that calls tools."""


def _arguments(given: Any) -> str:
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)


def hash_vector(text: str, dimensions: int) -> tuple[float, ...]:
    """A unit vector that depends only on the text."""
    rng = random.Random(stable_seed("vector", text))
    numbers = [rng.gauss(0.0, 1.0) for _ in range(dimensions)]
    length = sum(number * number for number in numbers) ** 0.5 or 1.0
    return tuple(round(number / length, 7) for number in numbers)


def small_png(prompt: str, side: int = 8) -> bytes:
    """A tiny PNG whose colours depend on the prompt."""
    rng = random.Random(stable_seed("image", prompt))
    pixels = b"".join(b"\0" + rng.randbytes(3 * side) for _ in range(side))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")


def count_tokens(text: str) -> int:
    """Estimate the number of tokens of a text: four characters each."""
    return (len(text) + 3) // 4
