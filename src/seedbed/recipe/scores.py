"""The scores of a rubric: what a judge may give, and what it means."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from ..errors import ConfigError
from ..graph import nearest

_NUMBER = r"(-?\d+(?:\.\d+)?)"
_RANGE = re.compile(rf"\s*{_NUMBER}\s*(?:to|-|–|\.\.)\s*{_NUMBER}\s*(?:[:,;]\s*(.+))?", re.DOTALL)
_FIELDS = ("description", "range", "options")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _number(text: str) -> int | float:
    return float(text) if "." in text else int(text)


def _range(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _options(value: Any) -> Any:
    """Meanings by option; a list has none, and numbers that were keys of a file are numbers again."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, Mapping):
        return dict.fromkeys(value, "") if isinstance(value, Iterable) else value
    if all(isinstance(key, str) and re.fullmatch(_NUMBER, key) for key in value):
        return {_number(key): meaning for key, meaning in value.items()}
    return dict(value)


@attrs.frozen(kw_only=True)
class Score:
    """One score: a `range` such as `(1, 5)`, whole numbers if its bounds are, or `options` and what each means.

    Options are numbers or texts: `{1: "wrong", 3: "partly right", 5: "right"}`, `["formal", "casual"]`.
    """

    description: str = ""
    range: tuple[float, float] | None = attrs.field(default=None, converter=_range)
    options: Mapping[Any, str] | None = attrs.field(default=None, converter=_options)

    def __attrs_post_init__(self) -> None:
        given: Any = self.description
        if not isinstance(given, str):
            raise ConfigError(f"description must be text, not {given!r}")
        if (self.range is None) == (self.options is None):
            raise ConfigError("needs either a range or options")
        if self.range is not None:
            self._check_range(self.range)
        else:
            self._check_options(self.options)

    @staticmethod
    def _check_range(given: Any) -> None:
        if not isinstance(given, tuple) or len(given) != 2 or not all(map(_is_number, given)) or given[0] >= given[1]:
            raise ConfigError(f"range must be two numbers, the lower one first, not {given!r}")

    @staticmethod
    def _check_options(given: Any) -> None:
        if not isinstance(given, Mapping) or len(given) < 2:
            raise ConfigError(f"options must be two or more, not {given!r}")
        if not (all(map(_is_number, given)) or all(isinstance(key, str) and key for key in given)):
            raise ConfigError(f"options must be all numbers or all texts, not {list(given)!r}")
        if not all(isinstance(meaning, str) for meaning in given.values()):
            raise ConfigError(f"options must have texts as their meanings, not {list(given.values())!r}")

    @property
    def kind(self) -> type[int | float | str]:
        """The type of its values."""
        values: Any = self.range if self.range is not None else tuple(self.options or ())
        if isinstance(values[0], str):
            return str
        return int if all(isinstance(value, int) for value in values) else float

    def allowed(self) -> str:
        """What it may be, in words."""
        if self.range is not None:
            what = "a whole number" if self.kind is int else "a number"
            return f"{what} from {self.range[0]} to {self.range[1]}"
        return "one of " + ", ".join(str(option) for option in self.options or ())


def read_scores(value: Any) -> Any:
    """Scores by name, each a `Score`, a mapping of its fields, or a text such as "1 to 5: how clear it is"."""
    if not isinstance(value, Mapping):
        return value  # the spec says what is wrong with it, and of which column
    return {name: _score(name, given) for name, given in value.items()}


def _score(name: object, given: Any) -> Score:
    if isinstance(given, Score):
        return given
    if isinstance(given, str):
        found = _RANGE.fullmatch(given)
        if found is None:
            raise ConfigError(
                f"scores.{name} must be a range such as '1 to 5' or '1 to 5: how clear it is', not {given!r}"
            )
        low, high, description = found.groups()
        given = {"range": (_number(low), _number(high)), "description": (description or "").strip()}
    if not isinstance(given, Mapping):
        raise ConfigError(f"scores.{name} must be a range as text, or a mapping with range or options, not {given!r}")
    for field in given:
        if field not in _FIELDS:
            raise ConfigError(f"scores.{name}: there is no field {field!r}{nearest(str(field), _FIELDS)}")
    try:
        return Score(**given)
    except ConfigError as error:
        raise ConfigError(f"scores.{name}: {error}") from None
