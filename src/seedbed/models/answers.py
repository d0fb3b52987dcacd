"""Plausible answers out of nothing: the same prompt gives the same text, and a schema gives JSON that fits it."""

from __future__ import annotations

import json
import random
import re
import struct
import zlib
from collections.abc import Mapping
from typing import Any

from .distributions import stable_seed

# Words of the prompt, and what is said then; the first that is found decides. `{subject}` is what the prompt is about.
_BANK: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        r"\b(sql|query)\b.*\b(write|code|select)\b|\bwrite\b.*\bsql\b",
        (
            "```sql\nSELECT name, COUNT(*) AS n\nFROM items\nGROUP BY name\nORDER BY n DESC;\n```",
            "```sql\nSELECT id, price\nFROM items\nWHERE price > 10\nORDER BY price;\n```",
        ),
    ),
    (
        r"\b(python|function|code|script)\b",
        (
            "```python\ndef total(values: list[float]) -> float:\n    return sum(values)\n```",
            "```python\ndef mean(values: list[float]) -> float:\n    return sum(values) / len(values)\n```",
            "```python\ndef longest(words: list[str]) -> str:\n    return max(words, key=len)\n```",
        ),
    ),
    (
        r"\b(summar|headline|title|name|slogan)\w*\b",
        (
            "{Subject}: better than expected",
            "Why {subject} is worth a second look",
            "{Subject}, and what it is really like",
        ),
    ),
    (
        r"\b(reply|respond|response|answer)\b",
        (
            "Thank you for writing to us about {subject}. We are glad that it serves you well every day.",
            "We are sorry that {subject} let you down. Please write to us, and we will replace it or refund you.",
            "Thanks for the honest words about {subject}. The next batch fixes exactly what you describe.",
            "In short: {subject} does what it should, as long as it is used as intended and cleaned now and then.",
        ),
    ),
    (
        r"\b(review|customer)\b.*\b(disappointed|unhappy|angry|negative|annoyed|[12] stars?)\b",
        (
            "Not for me. {Subject} broke on the second day and nobody answered my letter. I sent it back.",
            "I expected more. {Subject} looks fine in the pictures, but mine wobbles and its edges are rough.",
            "A waste of money: {subject} did half of what it promises, and that half it did badly.",
        ),
    ),
    (
        r"\b(review|customer)\b.*\b(fair|mixed|neutral|undecided|3 stars)\b",
        (
            "{Subject} arrived quickly, but the finish is rougher than in the pictures. It works, though.",
            "Good value. {Subject} is not perfect, the manual is thin, but for the price I would buy it again.",
            "It does its job. {Subject} is neither the best nor the worst that I have had in the house.",
        ),
    ),
    (
        r"\b(review|rating|customer|stars?)\b",
        (
            "I have used {subject} for three weeks now. It is sturdy, easy to clean and does what it promises.",
            "Five of five: {subject} is the best thing I bought this year, and my neighbours want one too.",
            "A present for my father, who now uses {subject} every morning. The handle could be longer.",
            "{Subject} is well made and simple to use. I was sceptical, and I have changed my mind.",
        ),
    ),
    (
        r"\b(question|ask)\b",
        (
            "What makes {subject} different from what people used before?",
            "How would you explain {subject} to a child of ten?",
            "Which mistake do most people make with {subject}, and why?",
        ),
    ),
    (
        r"\b(describe|description|advert|product)\b",
        (
            "{Subject}, made to last: simple, repairable, and at home in any kitchen or workshop.",
            "Meet {subject}. Light in the hand, quick to learn, and backed by a warranty of three years.",
            "{Subject} for every day: no gimmicks, good materials, and spare parts for ten years.",
        ),
    ),
)
_OTHERWISE = (
    "There is more to {subject} than one sees at first: it rewards patience and a second look.",
    "Most people meet {subject} by chance and keep to it by habit; both are good reasons.",
    "{Subject} is simple to begin with and hard to do well, which is why it stays interesting.",
    "If you only remember one thing about {subject}, remember that small steps are enough.",
)
_COMPILED = tuple((re.compile(pattern, re.IGNORECASE | re.DOTALL), texts) for pattern, texts in _BANK)
_SUBJECT = re.compile(
    r"\b(?:about|of|for|on|product:?|topic:?|item:?)\s+"
    r"(?:(?:a|an|the|this|that|product|item|topic)\s+)*+(?!review|customer|rating)[\"'“]?([\w][\w -]{2,40})",
    re.IGNORECASE,
)
_STOP = re.compile(r"\s+(?:in|with|that|which|and|from|by|to|as|is|was|written|who|using)\b.*", re.IGNORECASE)
_WORDS = ("amber", "basket", "candle", "ember", "garden", "harbour", "island", "kettle", "lantern", "meadow", "willow")
# What a text field holds, by what its name contains; the first that is found decides.
_FIELDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"first_?name", ("Ada", "Bruno", "Chen", "Dana", "Elif", "Femi")),
    (r"last_?name|surname", ("Albers", "Bianchi", "Castillo", "Dube", "Eriksen", "Fischer")),
    (r"city|town|place", ("Lisbon", "Kyoto", "Accra", "Leipzig", "Quito", "Tartu")),
    (r"country", ("Portugal", "Japan", "Ghana", "Germany", "Ecuador", "Estonia")),
    (r"colou?r", ("red", "blue", "green", "ochre", "grey")),
    (r"(?:^|_)(?:name|author|person)", ("Ada Albers", "Bruno Bianchi", "Chen Wei", "Dana Dube", "Elif Eriksen")),
)
_REASONS = (
    "It keeps to what was asked for and says it in plain words.",
    "It is correct as far as it goes, but leaves out what a reader would want next.",
    "It wanders off in the middle and comes back too late.",
    "Clear, to the point, and with an example that helps.",
)
# What a text feels like, by its words; what has none of them feels good.
_MOODS = (
    ("negative", r"disappointed|broke|sent it back|waste|wobbles|sorry|angry|terrible"),
    ("mixed|neutral", r"rougher|not perfect|neither|undecided|mixed"),
    ("positive", r""),
)
_PHRASES = (
    "a sturdy handle",
    "easy to clean",
    "quick delivery",
    "a thin manual",
    "good value",
    "a rough finish",
    "spare parts",
    "simple to use",
    "a loose lid",
    "light in the hand",
)


def plausible_text(prompt: str) -> str:
    """A sentence or two that could be an answer to the prompt."""
    rng = random.Random(stable_seed("text", prompt))
    texts = next((texts for pattern, texts in _COMPILED if pattern.search(prompt)), _OTHERWISE)
    text = rng.choice(texts)
    if text.startswith("```"):
        return text
    found = _SUBJECT.search(prompt)
    subject = _STOP.sub("", found.group(1)).strip() if found else ""
    if not subject or len(subject) < 3:
        return text.replace("{subject}", "this one").replace("{Subject}", "This one")
    named = f"the {subject}"
    return text.replace("{subject}", named).replace("{Subject}", named[0].upper() + named[1:])


def fitting_json(schema: Mapping[str, Any], prompt: str) -> str:
    """JSON that fits the schema."""
    return json.dumps(fitting_value(schema, prompt), ensure_ascii=False)


def fitting_value(schema: Mapping[str, Any], prompt: str) -> Any:
    """A value that fits the schema, the same one for the same prompt.

    Patterns and conditions across properties are not looked at; everything that says type, range or length is.
    """
    return _Fit(schema, prompt).value(schema, "answer", 0)


class _Fit:
    def __init__(self, root: Mapping[str, Any], prompt: str) -> None:
        self._root = root
        self._prompt = prompt
        self._rng = random.Random(stable_seed("schema", prompt))

    def value(self, schema: Any, name: str, depth: int) -> Any:
        if not isinstance(schema, Mapping):  # True and False are schemas too
            return self._text({}, name)
        if "$ref" in schema:
            return self.value({**self._resolve(schema["$ref"]), **_without(schema, "$ref")}, name, depth)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            options = list(schema["enum"])
            fitting = [each for each in options if isinstance(each, str) and re.search(self._mood(), each.lower())]
            return fitting[0] if fitting else self._rng.choice(options)
        if "allOf" in schema:
            return self.value(self._merged(schema), name, depth)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                chosen = next((each for each in schema[key] if each.get("type") != "null"), schema[key][0])
                return self.value({**_without(schema, key), **chosen}, name, depth)
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = next((each for each in kind if each != "null"), "null")
        if kind is None:
            kind = "object" if "properties" in schema else "array" if "items" in schema else "string"
        return getattr(self, f"_{kind}")(schema, name, depth)

    def _mood(self) -> str:
        return next(mood for mood, words in _MOODS if re.search(words, self._prompt, re.IGNORECASE))

    def _resolve(self, reference: str) -> Mapping[str, Any]:
        found: Any = self._root
        for part in reference.removeprefix("#").strip("/").split("/"):
            if part:
                found = found[part.replace("~1", "/").replace("~0", "~")]
        return dict(found)

    def _merged(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        merged: dict[str, Any] = _without(schema, "allOf")
        for part in schema["allOf"]:
            given = self._resolve(part["$ref"]) if "$ref" in part else part
            for key, value in given.items():
                if key == "properties":
                    merged["properties"] = {**merged.get("properties", {}), **value}
                elif key == "required":
                    merged["required"] = [*merged.get("required", []), *value]
                else:
                    merged[key] = value
        return merged

    def _object(self, schema: Mapping[str, Any], _name: str, depth: int) -> dict[str, Any]:
        properties = schema.get("properties", {})
        required = schema.get("required", ())
        # A schema may contain itself: below a few levels only what must be there is.
        names = [name for name in properties if depth < 4 or name in required]
        value = {name: self.value(properties[name], name, depth + 1) for name in names}
        for name in required:
            if name not in value:
                value[name] = self.value(schema.get("additionalProperties", True), name, depth + 1)
        return value

    def _array(self, schema: Mapping[str, Any], name: str, depth: int) -> list[Any]:
        first = [self.value(each, name, depth + 1) for each in schema.get("prefixItems", ())]
        low = schema.get("minItems", 0 if depth >= 4 else min(2, schema.get("maxItems", 2)))
        high = min(schema.get("maxItems", low + 1), low + 1)
        wanted = max(self._rng.randint(low, max(low, high)), len(first))
        items = first
        for _ in range(50):
            if len(items) >= wanted:
                break
            item = self.value(schema.get("items", True), name, depth + 1)
            if not (schema.get("uniqueItems") and item in items):
                items.append(item)
        return items

    def _string(self, schema: Mapping[str, Any], name: str, _depth: int) -> str:
        return self._text(schema, name)

    def _integer(self, schema: Mapping[str, Any], _name: str, _depth: int) -> int:
        low, high = _bounds(schema, 1)
        step = int(schema.get("multipleOf", 1))
        return self._rng.randint(-(-int(low) // step), max(-(-int(low) // step), int(high) // step)) * step

    def _number(self, schema: Mapping[str, Any], _name: str, _depth: int) -> float:
        low, high = _bounds(schema, 1e-6)
        if "multipleOf" in schema:
            step = schema["multipleOf"]
            return float(self._rng.randint(-(-low // step), high // step) * step)
        return min(high, max(low, round(self._rng.uniform(low, high), 2)))

    def _boolean(self, _schema: Mapping[str, Any], name: str, _depth: int) -> bool:
        if re.search(r"again|recommend|satisfied|positive", name):
            return self._mood() == "positive"
        return self._rng.random() < 0.5

    def _null(self, _schema: Mapping[str, Any], _name: str, _depth: int) -> None:
        return None

    def _text(self, schema: Mapping[str, Any], name: str) -> str:
        rng = self._rng
        day = f"20{rng.randint(15, 25)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
        formats = {
            "date": day,
            "date-time": f"{day}T{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:00Z",
            "time": f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:00Z",
            "email": f"{rng.choice(_WORDS)}@example.org",
            "uri": f"https://example.org/{rng.choice(_WORDS)}",
            "uuid": f"{rng.getrandbits(32):08x}-0000-4000-8000-{rng.getrandbits(48):012x}",
        }
        if schema.get("format") in formats:
            return formats[schema["format"]]
        low, high = schema.get("minLength", 0), schema.get("maxLength", 10_000)
        if re.search(r"reason|comment|explanation|justification|critique", name):
            text = rng.choice(_REASONS)
        elif re.search(r"summary|text|description|answer|title|headline", name):
            text = plausible_text(f"{name} {self._prompt} {rng.random()}")
        else:
            text = rng.choice(next((texts for pattern, texts in _FIELDS if re.search(pattern, name.lower())), _PHRASES))
        while len(text) < low:
            text += " " + rng.choice(_WORDS)
        return text[:high]


def _bounds(schema: Mapping[str, Any], step: float) -> tuple[float, float]:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is None and "exclusiveMinimum" in schema:
        low = schema["exclusiveMinimum"] + step
    if high is None and "exclusiveMaximum" in schema:
        high = schema["exclusiveMaximum"] - step
    if low is None:
        low = 0 if high is None or high >= 0 else high - 100
    return low, low + 100 if high is None else high


def _without(schema: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name != key}


def hash_vector(text: str, dimensions: int) -> tuple[float, ...]:
    """A vector of length 1 that depends on the text alone."""
    rng = random.Random(stable_seed("vector", text))
    numbers = [rng.gauss(0.0, 1.0) for _ in range(dimensions)]
    length = sum(number * number for number in numbers) ** 0.5 or 1.0
    return tuple(round(number / length, 7) for number in numbers)


def small_png(prompt: str, side: int = 8) -> bytes:
    """A tiny picture whose colours depend on the prompt."""
    rng = random.Random(stable_seed("image", prompt))
    pixels = b"".join(b"\0" + rng.randbytes(3 * side) for _ in range(side))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")


def count_tokens(text: str) -> int:
    """About how many tokens a text has, where nobody counts them: four characters each."""
    return (len(text) + 3) // 4
