"""What can be wrong with a document, and the checks of single JSON values that find it.

Plans, registries and requests are read by the same rules: every problem is collected with a code that stays the same,
the JSON path of the value and what was expected there; a value with a problem reads as None, so that nothing is said
twice.
"""

from __future__ import annotations

import enum
import json
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from ..graph import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

# difflib compares a name with every known one, which would make a large document full of wrong names slow to refuse.
_MAX_HINTS = 50
_MAX_HINT_NAME = 100
_MAX_HINT_NAMES = 2_000

_PLAIN_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Code(enum.StrEnum):
    """The stable codes; docs/reference/plan-format.md says what each means."""

    INVALID_JSON = "INVALID_JSON"
    WRONG_TYPE = "WRONG_TYPE"
    INVALID_VALUE = "INVALID_VALUE"
    MISSING_FIELD = "MISSING_FIELD"
    UNKNOWN_FIELD = "UNKNOWN_FIELD"
    DUPLICATE_FIELD = "DUPLICATE_FIELD"
    UNSUPPORTED_SCHEMA_VERSION = "UNSUPPORTED_SCHEMA_VERSION"
    UNSUPPORTED_CAPABILITY = "UNSUPPORTED_CAPABILITY"
    CAPABILITIES_NOT_SORTED = "CAPABILITIES_NOT_SORTED"
    CAPABILITY_NOT_REQUIRED = "CAPABILITY_NOT_REQUIRED"
    DUPLICATE_NODE_ID = "DUPLICATE_NODE_ID"
    UNKNOWN_OP = "UNKNOWN_OP"
    WRONG_INPUT_COUNT = "WRONG_INPUT_COUNT"
    UNKNOWN_NODE = "UNKNOWN_NODE"
    UNKNOWN_EXPR = "UNKNOWN_EXPR"
    UNKNOWN_PRED = "UNKNOWN_PRED"
    UNKNOWN_ENDPOINT = "UNKNOWN_ENDPOINT"
    WRONG_ENDPOINT_KIND = "WRONG_ENDPOINT_KIND"
    UNKNOWN_KEY = "UNKNOWN_KEY"
    WRONG_KEY_TYPE = "WRONG_KEY_TYPE"
    KEY_NOT_WRITABLE = "KEY_NOT_WRITABLE"
    UNKNOWN_PARAM = "UNKNOWN_PARAM"
    WRONG_PARAM_TYPE = "WRONG_PARAM_TYPE"
    UNKNOWN_TREE_OP = "UNKNOWN_TREE_OP"
    TYPE_MISMATCH = "TYPE_MISMATCH"
    NOT_FINITE = "NOT_FINITE"
    INVALID_REGEX = "INVALID_REGEX"
    TOO_DEEP = "TOO_DEEP"
    TOO_LARGE = "TOO_LARGE"
    CYCLE = "CYCLE"
    UNUSED_NODE = "UNUSED_NODE"  # only where a plan is written in Python
    DUPLICATE_ID = "DUPLICATE_ID"
    DUPLICATE_NAME = "DUPLICATE_NAME"


def under(path: str, field: object) -> str:
    """The JSON path of a field of the object at `path`."""
    if isinstance(field, str) and _PLAIN_FIELD.fullmatch(field):
        return f"{path}.{field}"
    return f"{path}[{json.dumps(shortened(str(field)) if isinstance(field, str) else shown(field))}]"


def shortened(text: str) -> str:
    """At most 80 characters of a text that may be of any length."""
    return text if len(text) <= 80 else f"{text[:77]}…"


def shown(value: object) -> str:
    """What was found, for a message: short whatever the value, and always printable."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        # Python refuses to write integers of thousands of digits.
        return str(value) if value.bit_length() <= 256 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return ascii(shortened(value)) if has_surrogate(value) else repr(shortened(value))
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "an array"
    return f"a value of type {type(value).__name__}"


def has_surrogate(text: str) -> bool:
    """Whether a text holds half of a surrogate pair, which JSON can spell but no encoder can write."""
    return any("\ud800" <= character <= "\udfff" for character in text)


@attrs.define(eq=False)
class Problems:
    """Everything found wrong so far; whoever checks a document adds to it."""

    found: list[tuple[str, str, str]] = attrs.field(factory=list)
    _hints_left: int = _MAX_HINTS

    def add(self, code: Code, path: str, message: str) -> None:
        self.found.append((code.value, path, message))

    def expected(self, what: str, value: object, path: str) -> None:
        """A value of the wrong type."""
        self.add(Code.WRONG_TYPE, path, f"expected {what}, found {shown(value)}")

    def hint(self, name: str, known: Iterable[str]) -> str:
        """Which known name was probably meant, while looking is cheap."""
        names = list(known)
        if self._hints_left <= 0 or len(name) > _MAX_HINT_NAME or len(names) > _MAX_HINT_NAMES:
            return ""
        self._hints_left -= 1
        return nearest(name, names)

    def listing(self, subject: str) -> str:
        """All problems as the lines of one message."""
        count = len(self.found)
        lines = "\n".join(f"  - {path}: {message} [{code}]" for code, path, message in self.found)
        return f"{subject} invalid, {count} problem{'s' if count != 1 else ''}:\n{lines}"

    def fields(
        self, value: object, path: str, *, required: Sequence[str] = (), optional: Sequence[str] = ()
    ) -> dict[str, Any] | None:
        """The known fields of an object; unknown, missing and repeated ones are problems."""
        given = self.entries(value, path)
        if given is None:
            return None
        known = (*required, *optional)
        for name in given:
            if name not in known:
                message = f"unknown field {shown(name)}{self.hint(name, known)}"
                self.add(Code.UNKNOWN_FIELD, under(path, name), message)
        for name in required:
            if name not in given:
                self.add(Code.MISSING_FIELD, under(path, name), f"the field {name!r} is required")
        return {name: given[name] for name in known if name in given}

    def entries(self, value: object, path: str, what: str = "an object") -> dict[str, Any] | None:
        """All entries of an object whose field names are the user's."""
        if not isinstance(value, Mapping):
            self.expected(what, value, path)
            return None
        for name in getattr(value, "repeated", ()):
            self.add(Code.DUPLICATE_FIELD, under(path, name), f"the field {shown(name)} is there more than once")
        entries: dict[str, Any] = {}
        for name, entry in value.items():
            if isinstance(name, str) and not has_surrogate(name):
                entries[name] = entry
            else:
                self.add(Code.WRONG_TYPE, under(path, name), f"expected field names that are text, found {shown(name)}")
        return entries

    def items(self, value: object, path: str, what: str = "an array") -> list[Any] | None:
        if isinstance(value, list | tuple):
            return list(value)
        self.expected(what, value, path)
        return None

    def text(self, value: object, path: str, what: str = "a string") -> str | None:
        if not isinstance(value, str):
            self.expected(what, value, path)
            return None
        if has_surrogate(value):
            message = f"expected text, found half of a surrogate pair in {shown(value)}"
            self.add(Code.INVALID_VALUE, path, message)
            return None
        # An enum of strings would not be written as its text everywhere.
        return str.__str__(value)

    def integer(
        self, value: object, path: str, *, low: int | None = INT64_MIN, high: int | None = INT64_MAX
    ) -> int | None:
        """An integer within bounds; a boolean is none, and neither is 1.0."""
        if not isinstance(value, int) or isinstance(value, bool):
            self.expected("an integer", value, path)
            return None
        low = INT64_MIN if low is None else low
        high = INT64_MAX if high is None else high
        if not low <= value <= high:
            if high == INT64_MAX:
                allowed = "an integer of 64 bits" if low == INT64_MIN else f"an integer of at least {low}"
            else:
                allowed = f"an integer from {low} to {high}"
            self.add(Code.INVALID_VALUE, path, f"expected {allowed}, found {shown(value)}")
            return None
        return int(value)

    def number(self, value: object, path: str) -> int | float | None:
        """A finite number; an integer stays one if it has a place in 64 bits."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.expected("a number", value, path)
            return None
        if isinstance(value, int) and INT64_MIN <= value <= INT64_MAX:
            return int(value)
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            self.add(Code.NOT_FINITE, path, f"expected a finite number, found {shown(value)}")
            return None
        return number

    def boolean(self, value: object, path: str) -> bool | None:
        if not isinstance(value, bool):
            self.expected("true or false", value, path)
            return None
        return value

    def choice(self, value: object, path: str, allowed: Sequence[str]) -> str | None:
        """One of a few strings."""
        text = self.text(value, path)
        if text is None:
            return None
        if text not in allowed:
            names = ", ".join(repr(name) for name in allowed)
            self.add(
                Code.INVALID_VALUE, path, f"expected one of {names}, found {shown(text)}{self._meant(text, allowed)}"
            )
            return None
        return text

    def _meant(self, text: str, allowed: Sequence[str]) -> str:
        hint = self.hint(text, allowed) if text else ""
        # The list of what is allowed is in the message already.
        return hint if "did you mean" in hint else ""
