"""Reading users' JSON documents: all problems are reported at once, with a code, a JSON path and what was expected.

`read_document` returns the root `Value`; its methods return a checked value, or None after adding a problem.
"""

from __future__ import annotations

import enum
import json
import math
import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import attrs

from ..checks import is_whole, parse_toml
from ..errors import InvalidPlan, problem_listing
from ..graph import nearest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

T = TypeVar("T")

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

# difflib compares a name with every known one, which would make a large document full of wrong names slow to reject.
_MAX_HINTS = 50
_MAX_HINT_NAME = 100
_MAX_HINT_NAMES = 2_000

_PLAIN_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ABSENT: Final = object()

# What documents can be read from: values already parsed, JSON text, its bytes, or the path of a file.
Source = Mapping[str, Any] | str | bytes | os.PathLike[str]


class Code(enum.StrEnum):
    """The stable codes; docs/reference/plan-format.md explains each."""

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


def shortened(text: str) -> str:
    """At most 80 characters of a text that may be of any length."""
    return text if len(text) <= 80 else f"{text[:77]}…"


def shown(value: object) -> str:
    """A value found in a document, for a message: short whatever the value, and always printable."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int):
        # Python raises for integers of thousands of digits.
        return str(value) if value.bit_length() <= 256 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return ascii(shortened(value)) if _has_surrogate(value) else repr(shortened(value))
    if isinstance(value, Mapping):
        return "an object"
    return "an array" if isinstance(value, list | tuple) else f"a value of type {type(value).__name__}"


def _has_surrogate(text: str) -> bool:
    """True if a text holds half of a surrogate pair, which JSON can spell but no encoder can write."""
    return any("\ud800" <= character <= "\udfff" for character in text)


@attrs.define(eq=False)
class Problems:
    """Everything found wrong so far with one document."""

    found: list[tuple[str, str, str]] = attrs.field(factory=list)  # code, path, message
    _hints_left: int = _MAX_HINTS

    def add(self, code: Code, path: str, message: str) -> None:
        self.found.append((code.value, path, message))

    def hint(self, name: str, known: Iterable[str]) -> str:
        """The known name that was probably meant, while the search is cheap."""
        names = list(known)
        if self._hints_left <= 0 or len(name) > _MAX_HINT_NAME or len(names) > _MAX_HINT_NAMES:
            return ""
        self._hints_left -= 1
        return nearest(name, names)

    def raise_invalid_plan(self) -> None:
        if self.found:
            raise InvalidPlan(self.found)

    def listing(self, subject: str) -> str:
        """All problems as the lines of one message."""
        return problem_listing(subject, self.found)


@attrs.define(eq=False)
class Value:
    """A value of a document and its JSON path.

    Every reading method returns None after adding a problem if the value is not as expected. An absent field reads as
    None without a problem, since `fields` has reported it if it is required.
    """

    _value: object
    path: str
    problems: Problems

    @property
    def raw(self) -> Any:
        """What was found; None if absent."""
        return None if self._value is _ABSENT else self._value

    def __bool__(self) -> bool:
        """True unless the field is absent."""
        return self._value is not _ABSENT

    # Generic, so that a reader of any type can return the None of this and of `expected`.
    def problem(self, code: Code, message: str, *, field: object = None) -> T | None:
        """Add a problem at this value, or at a field of it."""
        self.problems.add(code, self.path if field is None else self._under(field), message)
        return None

    def expected(self, what: str) -> T | None:
        """Add the problem of a value of the wrong type, unless it is absent."""
        return self.problem(Code.WRONG_TYPE, f"expected {what}, found {shown(self._value)}") if self else None

    def _under(self, field: object) -> str:
        if isinstance(field, str) and _PLAIN_FIELD.fullmatch(field):
            return f"{self.path}.{field}"
        return f"{self.path}[{json.dumps(shortened(field) if isinstance(field, str) else shown(field))}]"

    def fields(self, *required: str, optional: Sequence[str] = ()) -> dict[str, Value]:
        """The known fields of an object, absent ones too; unknown, missing and duplicate ones are problems."""
        given = self.entries()
        known = (*required, *optional)
        for name in given:
            if name not in known:
                hint = self.problems.hint(name, known)
                self.problem(Code.UNKNOWN_FIELD, f"unknown field {shown(name)}{hint}", field=name)
        if isinstance(self._value, Mapping):
            for name in required:
                if name not in given:
                    self.problem(Code.MISSING_FIELD, f"the field {name!r} is required", field=name)
        return {name: given.get(name) or Value(_ABSENT, self._under(name), self.problems) for name in known}

    def entries(self) -> dict[str, Value]:
        """All entries of an object whose field names are the user's; empty if there is a problem."""
        if not isinstance(self._value, Mapping):
            self.expected("an object")
            return {}
        for name in getattr(self._value, "duplicates", ()):
            self.problem(Code.DUPLICATE_FIELD, f"duplicate field {shown(name)}", field=name)
        entries: dict[str, Value] = {}
        for name, entry in self._value.items():
            if isinstance(name, str) and not _has_surrogate(name):
                entries[name] = Value(entry, self._under(name), self.problems)
            else:
                self.problem(Code.WRONG_TYPE, f"expected field names that are text, found {shown(name)}", field=name)
        return entries

    def items(self, what: str = "an array") -> list[Value] | None:
        if not isinstance(self._value, list | tuple):
            return self.expected(what)
        return [Value(item, f"{self.path}[{at}]", self.problems) for at, item in enumerate(self._value)]

    def text(self, what: str = "a string", *, like: re.Pattern[str] | None = None) -> str | None:
        """A string that UTF-8 can encode, all of which matches the pattern `like`."""
        value = self._value
        if not isinstance(value, str):
            return self.expected(what)
        if _has_surrogate(value):
            return self.problem(Code.INVALID_VALUE, f"expected text, found half of a surrogate pair in {shown(value)}")
        if like is not None and not like.fullmatch(value):
            return self.problem(Code.INVALID_VALUE, f"expected text like {like.pattern}, found {shown(value)}")
        return str.__str__(value)  # an enum of strings would not be written as its text everywhere

    def integer(self, low: int = INT64_MIN, high: int = INT64_MAX) -> int | None:
        """An integer within bounds; a boolean is none, and neither is 1.0."""
        value = self._value
        if not is_whole(value):
            return self.expected("an integer")
        if low <= value <= high:
            return int(value)
        allowed = f"an integer from {low} to {high}"
        if high == INT64_MAX:
            allowed = "an integer of 64 bits" if low == INT64_MIN else f"an integer of at least {low}"
        return self.problem(Code.INVALID_VALUE, f"expected {allowed}, found {shown(value)}")

    def number(self, what: str = "a number", *, low: float = -math.inf, high: float = math.inf) -> int | float | None:
        """A finite number within bounds; an integer stays one if it fits into 64 bits."""
        value = self._value
        if isinstance(value, bool) or not isinstance(value, int | float):
            return self.expected(what)
        if isinstance(value, int) and INT64_MIN <= value <= INT64_MAX:
            number: int | float = int(value)
        else:
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
            if not math.isfinite(number):
                return self.problem(Code.NOT_FINITE, f"expected a finite number, found {shown(value)}")
        if low <= number <= high:
            return number
        bound = f"at least {low}" if number < low else f"at most {high}"
        return self.problem(Code.INVALID_VALUE, f"expected a number of {bound}, found {shown(value)}")

    def boolean(self) -> bool | None:
        return self._value if isinstance(self._value, bool) else self.expected("true or false")

    def choice(self, allowed: Sequence[str]) -> str | None:
        text = self.text()
        if text is None or text in allowed:
            return text
        hint = self.problems.hint(text, allowed) if text else ""
        meant = hint if "did you mean" in hint else ""  # the message lists the allowed ones anyway
        names = ", ".join(map(repr, allowed))
        return self.problem(Code.INVALID_VALUE, f"expected one of {names}, found {shown(text)}{meant}")

    def reference(self, known: Collection[str], code: Code, complaint: str) -> str | None:
        """The name of something that is defined elsewhere."""
        name = self.text()
        if name is None or name in known:
            return name
        return self.problem(code, f"{complaint} {shown(name)}{self.problems.hint(name, known)}")


class _Object(dict[str, Any]):
    """A JSON object that remembers which of its fields were given more than once."""

    duplicates: tuple[str, ...] = ()


def read_document(source: Source, problems: Problems) -> Value:
    """The root of a document; absent, with a problem, if it cannot be parsed. `OSError` if a file cannot be opened."""
    return Value(_parsed(source, problems), "$", problems)


def _parsed(source: Source, problems: Problems) -> Any:
    toml = False
    if isinstance(source, os.PathLike):
        path = Path(source)
        toml = path.suffix == ".toml"
        source = path.read_bytes()
    if not isinstance(source, str | bytes):
        return source
    try:
        text = source.decode("utf-8-sig") if isinstance(source, bytes) else source
        if toml:
            return parse_toml(text)
        return json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        found = f"{error.object[error.start]:#04x} at byte {error.start}"
        problems.add(Code.INVALID_JSON, "$", f"expected UTF-8, found {found}")
    except RecursionError:
        problems.add(Code.TOO_DEEP, "$", "expected a document that is not nested hundreds of levels deep")
    except ValueError as error:  # both decoders' errors, and integers of thousands of digits
        problems.add(Code.INVALID_JSON, "$", f"expected {'TOML' if toml else 'JSON'}: {error}")
    return _ABSENT


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    found = _Object(pairs)
    if len(found) != len(pairs):
        found.duplicates = tuple(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
