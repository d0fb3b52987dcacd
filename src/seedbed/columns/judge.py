"""Scores that a chat model gives by a rubric."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import polars as pl

from .. import checks
from ..checks import is_number
from ..errors import BadOutput, ConfigError, Permanent
from ..graph import nearest
from .chat import ChatSpec, as_text, chat_column, check_prompt
from .parse import extract_json

if TYPE_CHECKING:
    from .base import Column
    from .spec import Environment

_NUMBER = r"(-?\d+(?:\.\d+)?)"
_RANGE = re.compile(rf"{_NUMBER}\s*+(?:to|-|–|\.\.)\s*+{_NUMBER}\s*+(?:[:,;]\s*+(.+))?", re.DOTALL)
# Models write 4, "4", "4/5" and "4 out of 5".
_GIVEN_NUMBER = re.compile(rf"{_NUMBER}(?:\s*+(?:/|out of)\s*+\d+(?:\.\d+)?)?")
# Ranges of at most so many whole numbers are sent as a list: more providers enforce lists than bounds.
_LISTED = 20


def _number(text: str) -> int | float:
    return float(text) if "." in text else int(text)


def _options(value: Any) -> Any:
    """Descriptions by option, empty for a list; keys of a file that are numbers in quotes become numbers."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, Mapping):
        return dict.fromkeys(value, "") if isinstance(value, Iterable) else value
    if all(isinstance(key, str) and re.fullmatch(_NUMBER, key) for key in value):
        return {_number(key): meaning for key, meaning in value.items()}
    return dict(value)


def _is_range(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(map(is_number, value)) and value[0] < value[1]


def _check_options(_: object, __: object, given: Any) -> None:
    if not isinstance(given, Mapping) or len(given) < 2:
        raise ConfigError(f"options must be two or more, not {given!r}")
    if not (all(map(is_number, given)) or all(isinstance(key, str) and key for key in given)):
        raise ConfigError(f"options must be all numbers or all texts, not {list(given)!r}")
    if not all(isinstance(meaning, str) for meaning in given.values()):
        raise ConfigError(f"options must have texts as their meanings, not {list(given.values())!r}")


@attrs.frozen(kw_only=True)
class Score:
    """One score, by a `range` or by `options`."""

    description: str = attrs.field(default="", validator=checks.expect("text", lambda value: isinstance(value, str)))
    """What the score measures, for the model."""
    range: tuple[float, float] | None = attrs.field(
        default=None,
        converter=checks.as_names,
        validator=checks.optional(checks.expect("two numbers, the lower one first", _is_range)),
    )
    """The lowest and the highest score; whole numbers if both are."""
    options: Mapping[Any, str] | None = attrs.field(
        default=None, converter=_options, validator=checks.optional(_check_options)
    )
    """The possible scores, numbers or texts: a list, or a mapping from each to its meaning."""

    def __attrs_post_init__(self) -> None:
        if (self.range is None) == (self.options is None):
            raise ConfigError("needs either a range or options")

    @property
    def kind(self) -> type[int | float | str]:
        """The type of its values."""
        values: Any = self.range or tuple(self.options or ())
        if isinstance(values[0], str):
            return str
        return int if all(isinstance(value, int) for value in values) else float

    def allowed(self) -> str:
        """Its possible values, in words."""
        if self.range is not None:
            noun = "a whole number" if self.kind is int else "a number"
            return f"{noun} from {self.range[0]} to {self.range[1]}"
        return "one of " + ", ".join(str(option) for option in self.options or ())

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of its values."""
        kind = {int: "integer", float: "number", str: "string"}[self.kind]
        if self.range is None:
            return {"type": kind, "enum": list(self.options or ())}
        low, high = self.range
        if self.kind is int and high - low < _LISTED:
            return {"type": kind, "enum": list(range(int(low), int(high) + 1))}
        return {"type": kind, "minimum": low, "maximum": high}

    def read(self, given: Any) -> Any:
        """The score in a model's answer, None if it is not one of the possible values."""
        if self.kind is str:
            text = as_text(given).strip().casefold()
            return next((option for option in self.options or () if option.casefold() == text), None)
        if isinstance(given, str) and (found := _GIVEN_NUMBER.fullmatch(given.strip())) is not None:
            given = float(found.group(1))
        if not is_number(given):
            return None
        if self.options is not None:
            return next((self.kind(option) for option in self.options if option == given), None)
        assert self.range is not None
        if not self.range[0] <= given <= self.range[1] or (self.kind is int and given != int(given)):
            return None
        return self.kind(given)


def _score(given: Any) -> Score:
    """A score from a `Score`, a mapping of its fields, or a text such as "1 to 5: how clear it is"."""
    if isinstance(given, Score):
        return given
    if isinstance(given, str) and (found := _RANGE.fullmatch(given.strip())) is not None:
        low, high, description = found.groups()
        return Score(range=(_number(low), _number(high)), description=(description or "").strip())
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"must be a range such as '1 to 5' or '1 to 5: how clear it is', or a mapping with range or options, "
            f"not {given!r}"
        )
    known = [field.name for field in attrs.fields(Score)]
    for field in given:
        if field not in known:
            raise ConfigError(f"unknown field {field!r}{nearest(str(field), known)}")
    return Score(**given)


def _scores(value: Any, spec: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    scores: dict[Any, Score] = {}
    for name, given in value.items():
        try:
            scores[name] = _score(given)
        except ConfigError as error:
            raise ConfigError(f"{spec.error_prefix}scores.{name}: {error}", field="scores") from None
    return scores


_check_scores = checks.expect(
    "a mapping of names to scores, such as {'clarity': '1 to 5'}",
    lambda value: isinstance(value, Mapping) and bool(value) and all(isinstance(name, str) and name for name in value),
)


@attrs.frozen(kw_only=True)
class Judge(ChatSpec):
    """Scores that a model gives by a rubric, for columns, for its own prompt, or for both.

    The result has a field for each score, as in `quality.clarity >= 4`, and its reasoning, `quality.clarity_reasoning`.
    """

    type: ClassVar[str] = "llm-judge"

    scores: Mapping[str, Score] = attrs.field(
        # mypy does not know converters that get their instance.
        converter=attrs.Converter(_scores, takes_self=True),  # type: ignore[misc]
        validator=_check_scores,
    )
    """The scores by name."""
    of: tuple[str, ...] = attrs.field(default=(), converter=checks.as_names, validator=checks.names)
    """The columns that are judged; where all of them are null, the result is null."""
    prompt: str | None = attrs.field(default=None, validator=checks.optional(check_prompt))
    """What to judge, or how: a template, in front of the columns."""
    each: str | None = attrs.field(default=None, validator=checks.optional(checks.name))
    """A column that holds a list, such as the answers of a column with `n`: each item is judged by itself, in a call of
    its own, and the result is a list."""
    explain: bool = attrs.field(default=True, validator=checks.flag)
    """Ask for the reasoning of each score and store it as `NAME_reasoning`."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if not self.of and self.prompt is None and self.each is None:
            raise ConfigError(f"column {self.name!r} has nothing to judge: name a column with of, or write a prompt")
        if self.each is not None and (self.n > 1 or self.each in self.of):
            problem = "n" if self.n > 1 else f"of: {self.each}, whose items it judges"
            raise ConfigError(f"{self.error_prefix}each cannot be combined with {problem}", field="each")
        for name in self.scores:
            if f"{name}_reasoning" in self.scores:
                raise ConfigError(
                    f"{self.error_prefix}the reasoning of score {name!r} is stored as '{name}_reasoning', "
                    "which is the name of another score"
                )

    @property
    def is_list(self) -> bool:
        return super().is_list or self.each is not None

    def to_column(self, environment: Environment) -> Column:
        prompt = None if self.prompt is None else self.template("prompt")
        rubric = self._rubric()

        def ask(values: Mapping[str, Any]) -> str | list[str] | None:
            if self.each is None:
                if self.of and all(values[name] is None for name in self.of):
                    return None
                return show(values, self.of)
            items = values[self.each]
            if items is not None and not isinstance(items, list):
                raise Permanent(f"{self.error_prefix}each: {self.each!r} is no list but {as_text(items)[:100]!r}")
            shown = (*self.of, self.each)
            return None if items is None else [show({**values, self.each: item}, shown) for item in items]

        def show(values: Mapping[str, Any], names: Iterable[str]) -> str:
            shown = [] if prompt is None else [prompt.render(values)]
            shown += [f"<{name}>\n{as_text(values[name])}\n</{name}>" for name in names]
            return "\n\n".join([*shown, rubric])

        return chat_column(
            self,
            environment,
            ask=ask,
            read=lambda text: self._read(extract_json(text)),
            expected=f"one JSON object that has {', '.join(self.scores)}",
            requires=(*self.of, *((self.each,) if self.each else ()), *(prompt.requires if prompt else ())),
            dtype=self._struct(),
            schema=self._schema(),
        )

    def _rubric(self) -> str:
        names = self.of if self.each is None else (self.each, *self.of)
        what = f" {' and '.join(names)}" if names else ""
        lines = [f"Judge{what} by these scores:"]
        for name, score in self.scores.items():
            about = f": {score.description}" if score.description else ""
            lines.append(f"- {name} ({score.allowed()}){about}")
            lines += [f"  - {option}: {meaning}" for option, meaning in (score.options or {}).items() if meaning]
        each = '{"reasoning": "why, in a sentence or two", "score": …}' if self.explain else "…"
        shape = ", ".join(f"{json.dumps(name, ensure_ascii=False)}: {each}" for name in self.scores)
        return "\n".join([*lines, f"Answer with one JSON object: {{{shape}}}"])

    def _struct(self) -> pl.Struct:
        dtypes: dict[type, Any] = {int: pl.Int64, float: pl.Float64, str: pl.String}
        fields: dict[str, Any] = {}
        for name, score in self.scores.items():
            fields[name] = dtypes[score.kind]
            if self.explain:
                fields[f"{name}_reasoning"] = pl.String
        return pl.Struct(fields)

    def _schema(self) -> dict[str, Any]:
        """The expected JSON: the reasoning comes before the score, so that the score follows from it."""
        scores = {name: score.schema() for name, score in self.scores.items()}
        if self.explain:
            scores = {name: _closed({"reasoning": {"type": "string"}, "score": each}) for name, each in scores.items()}
        return _closed(scores)

    def _read(self, value: Any) -> dict[str, Any]:
        if isinstance(value, Mapping) and set(value) == {"scores"} and "scores" not in self.scores:
            value = value["scores"]
        if not isinstance(value, Mapping):
            raise BadOutput("it is not a JSON object of scores")
        scores: dict[str, Any] = {}
        problems: list[str] = []
        for name, score in self.scores.items():
            given = value.get(name)
            reasoning = None
            if isinstance(given, Mapping):
                reasoning = given.get("reasoning")
                given = given.get("score")
            scores[name] = score.read(given)
            if scores[name] is None:
                found = "is missing" if given is None else f"is {json.dumps(given, ensure_ascii=False)}"
                problems.append(f"{name} {found} and must be {score.allowed()}")
            if self.explain:
                scores[f"{name}_reasoning"] = None if reasoning is None else as_text(reasoning)
        if problems:
            raise BadOutput("; ".join(problems))
        return scores


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
