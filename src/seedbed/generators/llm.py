"""Text, code and structured values from a chat model."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import yaml

from ..errors import BadOutput, ConfigError
from ..recipe.llm import SCHEMA_FILES, LLMCode, LLMStructured, LLMText, tells_schema
from ..recipe.validation import Validation
from .conversation import chat_column
from .json_shapes import schema_checker, schema_dtype, shaped, told
from .parse import extract_code, extract_json
from .python_checks import python_checker
from .registry import Environment, maker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..recipe.llm import ChatSpec
    from ..recipe.templates import Template
    from .column import Column
    from .conversation import Read


def _prompt(spec: ChatSpec) -> Template:
    template = spec.template("prompt")
    assert template is not None  # these specs insist on one
    return template


@maker(LLMText)
def make_text(spec: LLMText, environment: Environment) -> Column:
    """A column of texts."""
    prompt = _prompt(spec)
    return chat_column(
        spec,
        environment,
        requires=prompt.requires,
        ask=prompt.render,
        read=str.strip,
        wanted="text",
        dtype=pl.String,
    )


@maker(LLMCode)
def make_code(spec: LLMCode, environment: Environment) -> Column:
    """A column of code."""
    prompt = _prompt(spec)
    wanted = f"one fenced code block of {spec.language}"

    def ask(values: Mapping[str, Any]) -> str:
        return f"{prompt.render(values)}\n\nAnswer with {wanted}."

    return chat_column(
        spec,
        environment,
        requires=prompt.requires,
        ask=ask,
        read=_code_reader(spec),
        wanted=wanted,
        dtype=pl.String,
    )


def _code_reader(spec: LLMCode) -> Read:
    problem_of = _code_checker(spec)

    def read(text: str) -> str:
        code = extract_code(text, spec.language)
        if code is None:
            # Without a fence only a parser can tell code from prose.
            code = text.strip()
            if problem_of is None or problem_of(code) is not None:
                raise BadOutput(f"it has no code block of {spec.language}")
        elif spec.check and problem_of is not None and (problem := problem_of(code)) is not None:
            raise BadOutput(f"its code is not valid {spec.language}: {problem}")
        return code

    return read


def _code_checker(spec: LLMCode) -> Callable[[str], str | None] | None:
    """What says what is wrong with code of the language; None where there is no parser for it."""
    if spec.language.lower() == "json":
        return _json_problem
    if spec.language.lower() not in ("python", "python3", "py"):
        return None
    check = python_checker(Validation(spec.name, of=(spec.name,), kind="python", lint=False))
    return lambda code: check([code])[0]["error"]


def _json_problem(code: str) -> str | None:
    try:
        json.loads(code)
    except (ValueError, RecursionError) as error:
        return str(error)
    return None


@maker(LLMStructured)
def make_structured(spec: LLMStructured, environment: Environment) -> Column:
    """A column of values that fit a schema."""
    prompt = _prompt(spec)
    given = find_schema(spec, environment)
    if tells_schema(given):
        schema = given.model_json_schema()
        # What the model writes out may have more to it than what is read in, such as computed fields.
        dtype = schema_dtype(given.model_json_schema(mode="serialization"))
        fit = partial(_fit_model, given)
    else:
        schema = given
        dtype = schema_dtype(schema)
        fit = partial(_fit_schema, schema_checker(schema, column=spec.name))

    def read(text: str) -> Any:
        return shaped(fit(extract_json(text)), dtype)

    return chat_column(
        spec,
        environment,
        requires=prompt.requires,
        ask=prompt.render,
        read=read,
        wanted="one JSON value that fits the schema",
        dtype=dtype if spec.dtype is None else spec.dtype,
        schema=schema,
    )


def find_schema(spec: LLMStructured, environment: Environment) -> Any:
    """The schema or the class, wherever it is."""
    where = f"column {spec.name!r}, schema"
    given = spec.schema
    if not isinstance(given, str | Path):
        return given
    if Path(given).suffix.lower() in SCHEMA_FILES:
        return _read_schema(environment.path(given, where), where)
    if not environment.allow_code:
        raise ConfigError(f"{where}: {given!r} is code, which is allowed only with --allow-code")
    found = environment.import_object(str(given), where)
    if not (tells_schema(found) or isinstance(found, dict)):
        raise ConfigError(f"{where}: {given!r} is neither a pydantic model nor a JSON Schema but {found!r}")
    return found


def _read_schema(path: Path, where: str) -> Any:
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))  # JSON is YAML too
    except OSError as error:
        raise ConfigError(f"{where}: {str(path)!r} cannot be read: {error.strerror}") from error
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{where}: {str(path)!r} is neither JSON nor YAML: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{where}: {str(path)!r} holds no JSON Schema")
    return found


def _fit_schema(problem_of: Callable[[Any], str | None], value: Any) -> Any:
    problem = problem_of(value)
    if problem is not None:
        raise BadOutput(f"it does not fit the schema: {problem}")
    return value


def _fit_model(model: Any, value: Any) -> Any:
    """The value as the pydantic model has it, in the types of JSON."""
    try:
        return model.model_validate(value).model_dump(mode="json", by_alias=True)
    except ValueError as error:  # pydantic's own is one
        tell = getattr(error, "errors", None)
        if not callable(tell):
            raise
        found = [("$" + "".join(f".{part}" for part in each["loc"]), each["msg"]) for each in tell()]
        raise BadOutput(f"it does not fit the schema: {told(found)}") from None
