"""Columns that a chat model fills: text, code, structured values, and scores by a rubric."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import attrs
import polars as pl

from ..errors import ConfigError
from .scores import Score, read_scores
from .spec import HOW, ColumnSpec
from .templates import Template, compile_template

# What a call has of its own, so that a column's parameters cannot say it again.
_TAKEN = frozenset({"images", "input", "messages", "model", "prompt", "schema", "stream", "system"})
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
SCHEMA_FILES = (".json", ".yaml", ".yml")


def _names(value: Any) -> Any:
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, Sequence) else value


def wrong(spec: ColumnSpec, field: str, wanted: str, value: object) -> ConfigError:
    """What is said of a field that is not what it must be."""
    return ConfigError(f"column {spec.name!r}: {field} must be {wanted}, not {value!r}")


def check_alias(spec: ColumnSpec, attribute: attrs.Attribute[Any], value: object) -> None:
    """Refuse what cannot be the alias of a model."""
    if not isinstance(value, str) or not value:
        raise wrong(spec, attribute.name, "the alias of a model", value)


def check_template(spec: ColumnSpec, attribute: attrs.Attribute[Any], value: object) -> None:
    """Refuse what is no template; none at all is fine."""
    if value is None:
        return
    if not isinstance(value, str) or not value.strip():
        raise wrong(spec, attribute.name, "text", value)
    compile_template(value, where=f"column {spec.name!r}, {attribute.name}")


def check_parameters(spec: ColumnSpec, attribute: attrs.Attribute[Any], value: object) -> None:
    """Refuse what is no mapping of parameters, or would say twice what the column says itself."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise wrong(spec, attribute.name, "a mapping of names to values", value)
    taken = sorted(_TAKEN.intersection(value))
    if taken:
        raise ConfigError(
            f"column {spec.name!r}: {attribute.name} cannot have {taken[0]!r}, which the column says itself"
        )


def _check_names(spec: ColumnSpec, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, tuple) or not all(isinstance(name, str) and name for name in value):
        raise wrong(spec, attribute.name, "the name of a column, or a list of names", value)


def _check_flag(spec: ColumnSpec, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, bool):
        raise wrong(spec, attribute.name, "true or false", value)


def _check_repairs(spec: ColumnSpec, attribute: attrs.Attribute[Any], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise wrong(spec, attribute.name, "a whole number, 0 or more", value)


@attrs.frozen
class ChatSpec(ColumnSpec):
    """What all columns of a chat model have in common.

    `prompt` and `system` are Jinja2 templates over other columns. `images` names columns that hold pictures: bytes, a
    data URL, or the path of a file. `parameters` are inference parameters that go before those of the model.

    Output that does not fit is answered with what is wrong with it, up to `max_repairs` times; then the cell fails.
    `trace` keeps the conversation in the column `<name>__trace`, `reasoning` what the model thought aloud in
    `<name>__reasoning_content`. With `dedupe` equal requests are answered once, unless a temperature asks for variety.
    """

    model: str = attrs.field(kw_only=True, validator=check_alias)
    system: str | None = attrs.field(default=None, kw_only=True, validator=check_template)
    images: tuple[str, ...] = attrs.field(default=(), kw_only=True, converter=_names, validator=_check_names)
    parameters: Mapping[str, Any] = attrs.field(factory=dict, kw_only=True, validator=check_parameters)
    max_repairs: int = attrs.field(default=2, kw_only=True, validator=_check_repairs, metadata=HOW)
    trace: bool = attrs.field(default=False, kw_only=True, validator=_check_flag)
    reasoning: bool = attrs.field(default=False, kw_only=True, validator=_check_flag)
    dedupe: bool = attrs.field(default=False, kw_only=True, validator=_check_flag)

    def template(self, field: str) -> Template | None:
        """The compiled template of a field; None where it is not given."""
        text = getattr(self, field)
        return None if text is None else compile_template(text, where=f"column {self.name!r}, {field}")

    @property
    def trace_name(self) -> str:
        return f"{self.name}__trace"

    @property
    def reasoning_name(self) -> str:
        return f"{self.name}__reasoning_content"

    @property
    def side_effects(self) -> tuple[str, ...]:
        """The columns that it makes besides its own."""
        asked = ((self.trace, self.trace_name), (self.reasoning, self.reasoning_name))
        return tuple(name for is_asked, name in asked if is_asked)


def check_prompt(spec: ColumnSpec, attribute: attrs.Attribute[Any], value: object) -> None:
    """Refuse what is no template."""
    if value is None:
        raise wrong(spec, attribute.name, "text", value)
    check_template(spec, attribute, value)


def _check_text_type(spec: ColumnSpec) -> None:
    if spec.dtype not in (None, str, pl.String):
        raise ConfigError(
            f"column {spec.name!r} holds text and cannot have the type {spec.dtype!r}; use llm-structured for others"
        )


@attrs.frozen
class LLMText(ChatSpec):
    """Text that a model writes; white space around it is dropped."""

    type: ClassVar[str] = "llm-text"

    prompt: str = attrs.field(kw_only=True, validator=check_prompt)

    def __attrs_post_init__(self) -> None:
        _check_text_type(self)


def _check_language(spec: ColumnSpec, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, str) or not re.fullmatch(r"[\w+#.-]+", value):
        raise wrong(spec, attribute.name, "the name of a language as code fences have it, such as python", value)


@attrs.frozen
class LLMCode(ChatSpec):
    """Code in one language that a model writes: what stands in the fence of its answer.

    With `check` (the default) Python and JSON must parse; what does not is repaired.
    """

    type: ClassVar[str] = "llm-code"

    prompt: str = attrs.field(kw_only=True, validator=check_prompt)
    language: str = attrs.field(kw_only=True, validator=_check_language)
    check: bool = attrs.field(default=True, kw_only=True, validator=_check_flag)

    def __attrs_post_init__(self) -> None:
        _check_text_type(self)


def _check_schema(spec: ColumnSpec, attribute: attrs.Attribute[Any], value: object) -> None:
    if isinstance(value, Mapping) or tells_schema(value):
        return
    if isinstance(value, Path | str) and (_is_file(value) or _REFERENCE.fullmatch(str(value))):
        return
    wanted = f"a JSON Schema, a pydantic model, the path of a {' or '.join(SCHEMA_FILES)} file, or 'module:name'"
    raise wrong(spec, attribute.name, wanted, value)


def _is_file(value: Path | str) -> bool:
    return Path(value).suffix.lower() in SCHEMA_FILES


def tells_schema(value: object) -> bool:
    """Whether it is a class that tells its own schema and validates by it, as pydantic's models do."""
    return isinstance(value, type) and all(
        callable(getattr(value, name, None)) for name in ("model_json_schema", "model_validate")
    )


@attrs.frozen
class LLMStructured(ChatSpec):
    """A value that fits `schema`: a JSON Schema, a pydantic model, or the path of a schema file.

    In a recipe file a pydantic model is `module:name`. Properties that a schema does not name are dropped, unless it
    says `additionalProperties`; the column has the type that the schema describes, where it describes one wholly.
    """

    type: ClassVar[str] = "llm-structured"

    prompt: str = attrs.field(kw_only=True, validator=check_prompt)
    schema: Any = attrs.field(kw_only=True, validator=_check_schema)

    def code(self) -> tuple[str, ...]:
        """The pydantic model, where it is named and not given."""
        return (self.schema,) if isinstance(self.schema, str) and not _is_file(self.schema) else ()

    def paths(self) -> tuple[str, ...]:
        """The schema file."""
        return (str(self.schema),) if isinstance(self.schema, str | Path) and _is_file(self.schema) else ()


def _scores(value: Any, spec: Any) -> Any:
    try:
        return read_scores(value)
    except ConfigError as error:
        raise ConfigError(f"column {spec.name!r}: {error}") from None


def _check_scores(spec: ColumnSpec, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, Mapping) or not value or not all(isinstance(name, str) and name for name in value):
        raise wrong(spec, attribute.name, "a mapping of names to scores, such as {'clarity': '1 to 5'}", value)
    clashes = [name for name in value if f"{name}_reasoning" in value]
    if clashes:
        raise ConfigError(
            f"column {spec.name!r}: the reasoning of score {clashes[0]!r} is kept as '{clashes[0]}_reasoning', "
            "which is the name of another score"
        )


@attrs.frozen
class Judge(ChatSpec):
    """Scores that a model gives by a rubric.

    It judges the columns `of`, or what `prompt` shows it, or both. The result has a field for each score, as in
    `quality.clarity >= 4`, and beside it the reasoning, `quality.clarity_reasoning`, unless `explain` is false. Where
    all columns `of` are null there is nothing to judge: null.
    """

    type: ClassVar[str] = "llm-judge"

    scores: Mapping[str, Score] = attrs.field(
        kw_only=True,
        # mypy does not know converters that look at their instance.
        converter=attrs.Converter(_scores, takes_self=True),  # type: ignore[misc]
        validator=_check_scores,
    )
    of: tuple[str, ...] = attrs.field(default=(), kw_only=True, converter=_names, validator=_check_names)
    prompt: str | None = attrs.field(default=None, kw_only=True, validator=check_template)
    explain: bool = attrs.field(default=True, kw_only=True, validator=_check_flag)

    def __attrs_post_init__(self) -> None:
        if not self.of and self.prompt is None:
            raise ConfigError(f"column {self.name!r} has nothing to judge: say which column with of, or write a prompt")
