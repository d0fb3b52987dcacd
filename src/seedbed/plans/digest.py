"""The digest of a plan: SHA-256 of its canonical JSON (RFC 8785), the same for every spelling of the same document."""

from __future__ import annotations

import hashlib
import json
import re
from decimal import Decimal
from typing import Any, Final

_EXPONENT = re.compile(r"e([+-])0*([0-9]+)")
# Below and from these on, ECMAScript writes numbers with an exponent.
_SMALLEST_PLAIN: Final = 1e-6
_LARGEST_PLAIN: Final = 1e21


def canonical_json(value: Any) -> str:
    """The canonical form of a JSON value: no spaces, keys in the order of UTF-16, numbers as ECMAScript writes them.

    Integers that a double cannot hold, which RFC 8785 leaves out, are written with all their digits.
    """
    if isinstance(value, dict):
        ordered = sorted(value.items(), key=lambda entry: str(entry[0]).encode("utf-16-be", "surrogatepass"))
        return "{" + ",".join(f"{_text(name)}:{canonical_json(each)}" for name, each in ordered) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(canonical_json, value)) + "]"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return _number(value)
    return json.dumps(value)


def plan_digest(document: Any) -> str:
    """The digest of a plan's document, in hexadecimal."""
    return hashlib.sha256(canonical_json(document).encode("utf-8", "surrogatepass")).hexdigest()


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _number(value: float) -> str:
    size = abs(value)
    if value == 0:
        return "0"
    if size < _SMALLEST_PLAIN or size >= _LARGEST_PLAIN:
        return _EXPONENT.sub(lambda found: f"e{found[1]}{found[2]}", repr(value).replace(".0e", "e"))
    return format(Decimal(repr(value)), "f").removesuffix(".0")
