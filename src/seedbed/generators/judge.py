"""Scores that a chat model gives by a rubric."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import polars as pl

from ..errors import BadOutput
from ..recipe.llm import Judge
from .binding import as_text
from .conversation import chat_column
from .parse import extract_json
from .registry import Environment, maker

if TYPE_CHECKING:
    from ..recipe.scores import Score
    from .column import Column

_DTYPES: dict[type, Any] = {int: pl.Int64, float: pl.Float64, str: pl.String}
# Models write 4, "4", "4/5" and "4 out of 5".
_NUMBER = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*(?:(?:/|out of)\s*\d+(?:\.\d+)?)?\s*")
# Ranges of at most so many whole numbers are told as a list, which more providers keep to than to bounds.
_LISTED = 20


@maker(Judge)
def make_judge(spec: Judge, environment: Environment) -> Column:
    """A column of scores."""
    prompt = spec.template("prompt")
    rubric = _rubric(spec)

    def ask(values: Mapping[str, Any]) -> str | None:
        if spec.of and all(values[name] is None for name in spec.of):
            return None
        shown = [] if prompt is None else [prompt.render(values)]
        shown += [f"<{name}>\n{as_text(values[name])}\n</{name}>" for name in spec.of]
        return "\n\n".join([*shown, rubric])

    def read(text: str) -> dict[str, Any]:
        return _read_scores(spec, extract_json(text))

    return chat_column(
        spec,
        environment,
        requires=(*spec.of, *(prompt.requires if prompt else ())),
        ask=ask,
        read=read,
        wanted=f"one JSON object that has {', '.join(spec.scores)}",
        dtype=_dtype(spec) if spec.dtype is None else spec.dtype,
        schema=_schema(spec),
    )


def _rubric(spec: Judge) -> str:
    what = f" {' and '.join(spec.of)}" if spec.of else ""
    lines = [f"Judge{what} by these scores:"]
    for name, score in spec.scores.items():
        about = f": {score.description}" if score.description else ""
        lines.append(f"- {name} ({score.allowed()}){about}")
        lines += [f"  - {option}: {meaning}" for option, meaning in (score.options or {}).items() if meaning]
    each = '{"reasoning": "why, in a sentence or two", "score": …}' if spec.explain else "…"
    shape = ", ".join(f"{json.dumps(name, ensure_ascii=False)}: {each}" for name in spec.scores)
    return "\n".join([*lines, f"Answer with one JSON object: {{{shape}}}"])


def _dtype(spec: Judge) -> pl.Struct:
    fields: dict[str, Any] = {}
    for name, score in spec.scores.items():
        fields[name] = _DTYPES[score.kind]
        if spec.explain:
            fields[f"{name}_reasoning"] = pl.String
    return pl.Struct(fields)


def _schema(spec: Judge) -> dict[str, Any]:
    """The JSON that is asked for: reasons come before the score, so that they are what it is given by."""
    properties: dict[str, Any] = {}
    for name, score in spec.scores.items():
        properties[name] = _score_schema(score)
        if spec.explain:
            properties[name] = _closed({"reasoning": {"type": "string"}, "score": properties[name]})
    return _closed(properties)


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _score_schema(score: Score) -> dict[str, Any]:
    kind = {int: "integer", float: "number", str: "string"}[score.kind]
    if score.options is not None:
        return {"type": kind, "enum": list(score.options)}
    assert score.range is not None
    low, high = score.range
    if score.kind is int and high - low < _LISTED:
        return {"type": kind, "enum": list(range(int(low), int(high) + 1))}
    return {"type": kind, "minimum": low, "maximum": high}


def _read_scores(spec: Judge, value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping) and set(value) == {"scores"} and "scores" not in spec.scores:
        value = value["scores"]
    if not isinstance(value, Mapping):
        raise BadOutput("it is not a JSON object of scores")
    scores: dict[str, Any] = {}
    problems: list[str] = []
    for name, score in spec.scores.items():
        given = value.get(name)
        reasoning = None
        if isinstance(given, Mapping):
            reasoning = given.get("reasoning")
            given = given.get("score")
        scores[name] = _score(score, given)
        if scores[name] is None:
            found = "is missing" if given is None else f"is {json.dumps(given, ensure_ascii=False)}"
            problems.append(f"{name} {found} and must be {score.allowed()}")
        if spec.explain:
            scores[f"{name}_reasoning"] = reasoning if reasoning is None else as_text(reasoning)
    if problems:
        raise BadOutput("; ".join(problems))
    return scores


def _score(score: Score, given: Any) -> Any:
    """The score that was given, None if it is not one of those that may be."""
    if score.kind is str:
        wanted = as_text(given).strip().casefold()
        return next((option for option in score.options or () if option.casefold() == wanted), None)
    if isinstance(given, str) and (found := _NUMBER.fullmatch(given)) is not None:
        given = float(found.group(1))
    if isinstance(given, bool) or not isinstance(given, int | float) or math.isnan(given):
        return None
    if score.options is not None:
        return next((score.kind(option) for option in score.options if option == given), None)
    assert score.range is not None
    if not score.range[0] <= given <= score.range[1] or (score.kind is int and given != int(given)):
        return None
    return score.kind(given)
