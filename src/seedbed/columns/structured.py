"""Structured values from a chat model, and JSON Schemas: validation, and the column type that a schema describes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import attrs
import polars as pl

from .. import checks
from ..errors import BadOutput, ConfigError
from ..store.values import JSON, is_json, json_text
from .chat import RepairedSpec, chat_column, check_prompt
from .documents import read_document
from .fields import resolve_reference
from .parse import extract_json

if TYPE_CHECKING:
    from .base import Column
    from .spec import Environment


_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
SCHEMA_FILES = (".json", ".yaml", ".yml")


# Errors in one message.
_SHOWN = 5
# References that are followed for one value (at start-up for a null), and parts of a schema that determine a type:
# `allOf` of two references to an `allOf` of two references and so on takes twice as long with each of them.
_MAX_REFERENCES = 100_000
_MAX_REFERENCES_AT_START = 5_000
_MAX_PARTS = 10_000
_left: ContextVar[Iterator[int]] = ContextVar("references that may still be followed for a value")


def _is_file(value: object) -> bool:
    return isinstance(value, str | Path) and Path(value).suffix.lower() in SCHEMA_FILES


def is_model_class(value: object) -> bool:
    """True for a class that has a schema and validates by it, as pydantic's models do."""
    return isinstance(value, type) and all(
        callable(getattr(value, name, None)) for name in ("model_json_schema", "model_validate")
    )


def _is_schema(value: object) -> bool:
    is_reference = isinstance(value, str) and _REFERENCE.fullmatch(value) is not None
    return isinstance(value, Mapping) or is_model_class(value) or _is_file(value) or is_reference


_check_schema = checks.expect(
    f"a JSON Schema, a pydantic model, the path of a {' or '.join(SCHEMA_FILES)} file, or 'module:name'", _is_schema
)


@attrs.frozen(kw_only=True)
class LLMStructured(RepairedSpec):
    """A value that fits a schema.

    The column has the type that the schema describes, and properties that the schema lacks are dropped. A schema of
    alternatives or open objects (`additionalProperties`, `patternProperties`, no `properties`) describes no type: such
    a column, or one with `dtype: json`, stores each value exactly. With `dtype: str` it stores the JSON text.
    """

    type: ClassVar[str] = "llm-structured"

    prompt: str = attrs.field(validator=check_prompt)
    """What is asked, a template over other columns."""
    schema: Any = attrs.field(validator=_check_schema)
    """The schema of the value: a mapping, the path of a JSON or YAML file, a pydantic model, or the `module:name` of
    one."""

    def code(self) -> tuple[str, ...]:
        return (self.schema,) if isinstance(self.schema, str) and not _is_file(self.schema) else ()

    def paths(self) -> tuple[str, ...]:
        return (str(self.schema),) if _is_file(self.schema) else ()

    def to_column(self, environment: Environment) -> Column:
        prompt = self.template("prompt")
        given = find_schema(self, environment)
        if is_model_class(given):
            schema = given.model_json_schema()
            # What the model writes may have more properties than what it reads, such as computed fields.
            written = given.model_json_schema(mode="serialization")
            fit = partial(_fit_model, given)
        else:
            schema = written = given
            fit = partial(fit_schema, schema_validator(schema, column=self.name))
        described = schema_dtype(written)
        dtype = self._declared() or described or JSON

        def read(text: str) -> Any:
            value = fit(extract_json(text))
            if is_json(dtype):
                return value
            return json_text(value) if dtype in (str, pl.String) and described != pl.String else shaped(value, dtype)

        column = chat_column(
            self,
            environment,
            ask=prompt.render,
            read=read,
            expected="one JSON value that fits the schema",
            requires=prompt.requires,
            dtype=dtype,
            schema=schema,
        )
        return attrs.evolve(
            column, schemas={self.name: written if self.n == 1 else {"type": "array", "items": written}}
        )

    def _declared(self) -> Any:
        """The declared type of one value, if there is one."""
        declared = self.dtype.get(self.name) if isinstance(self.dtype, Mapping) else self.dtype
        if self.n == 1 or declared is None or is_json(declared):
            return declared
        inner = declared.inner if isinstance(declared, pl.List) else next(iter(get_args(declared)), None)
        if inner is None:
            raise ConfigError(f"{self.error_prefix}with n: {self.n} its type is a list, not {declared!r}")
        return inner


def find_schema(spec: LLMStructured, environment: Environment) -> Any:
    """The schema or model class of a column, read from its file or imported if the spec names one."""
    where = f"column {spec.name!r}, schema"
    given = spec.schema
    if not isinstance(given, str | Path):
        return given
    if _is_file(given):
        return _read_schema(environment.path(given, where), where)
    found = environment.import_object(str(given), where)
    if not (is_model_class(found) or isinstance(found, dict)):
        raise ConfigError(f"{where}: {given!r} is neither a pydantic model nor a JSON Schema but {found!r}")
    return found


def _read_schema(path: Path, where: str) -> Any:
    try:
        document = read_document(path, expected="a JSON Schema is a mapping")
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    if document.problems:
        raise ConfigError(f"{where}: {document.problems[0]}")
    return document.data


def fit_schema(validator: Any, value: Any) -> Any:
    """The value if it fits a compiled schema. Raises `BadOutput` with what does not fit."""
    if errors := schema_errors(validator, value):
        from jsonschema.exceptions import best_match  # noqa: PLC0415  slow to import, and few columns need it

        # Of an error about alternatives the one of the closest alternative.
        found = filter(None, (best_match([error]) for error in errors))
        raise _misfit((error.json_path, error.message) for error in found)
    return value


def schema_errors(validator: Any, value: Any, *, limit: int = _MAX_REFERENCES) -> list[Any]:
    """The errors of a value by a compiled schema, of which at most `limit` references are followed."""
    _left.set(iter(range(limit)))
    return list(validator.iter_errors(value))


def _follow(keyword: Any, validator: Any, reference: Any, value: Any, schema: Any) -> Iterator[Exception]:
    """As `keyword`, which refers to another part of the schema, but an error in place of too many references."""
    from jsonschema.exceptions import ValidationError  # noqa: PLC0415

    if next(_left.get(), None) is not None:
        yield from keyword(validator, reference, value, schema)
    else:
        yield ValidationError("the schema has too many references to be followed for this value")


def _fit_model(model: Any, value: Any) -> Any:
    """The value as the pydantic model writes it, in the types of JSON."""
    try:
        return model.model_validate(value).model_dump(mode="json", by_alias=True)
    except ValueError as error:  # pydantic's ValidationError is one
        errors = getattr(error, "errors", None)
        if not callable(errors):
            raise
        raise _misfit(("$" + "".join(f".{part}" for part in each["loc"]), each["msg"]) for each in errors()) from None


def _misfit(errors: Iterable[tuple[str, str]]) -> BadOutput:
    """The exception for errors, each a place and a message: it lists the first ones by their places."""
    lines = [f"{place}: {message[:300]}" for place, message in sorted(errors)]
    more = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return BadOutput(f"it does not fit the schema: {'; '.join([*lines[:_SHOWN], *more])}")


def schema_validator(schema: Mapping[str, Any], *, column: str) -> Any:
    """The compiled schema of a column. Raises `ConfigError` if it is invalid, or refers to what is not in it."""
    from jsonschema import validators  # noqa: PLC0415
    from jsonschema.exceptions import SchemaError  # noqa: PLC0415
    from jsonschema_specifications import REGISTRY  # noqa: PLC0415

    cls: Any = validators.validator_for(schema, default=validators.Draft202012Validator)
    try:
        cls.check_schema(schema)
    except SchemaError as error:
        problem = f"column {column!r}: schema is no JSON Schema: {error.json_path}: {error.message}"
        raise ConfigError(problem) from error
    keywords = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        **{name: partial(_follow, cls.VALIDATORS[name]) for name in _REFERENCES if name in cls.VALIDATORS},
    }
    # Without "$schema", by which a reference to the whole schema would find the class without these keywords. With a
    # registry of its own the validator fetches nothing.
    own = {name: value for name, value in schema.items() if name != "$schema"}
    extend: Any = validators.extend
    validator = extend(cls, keywords)(own, registry=REGISTRY)
    for found in filter(None, (_problem(part, validator) for part in _parts(own))):
        raise ConfigError(f"column {column!r}: schema {found}")
    return validator


_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def _parts(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The schemas in a schema, and its mappings of schemas; not those with an `$id`, which resolve references anew."""
    pending: list[Any] = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            pending += part
        elif isinstance(part, Mapping) and (part is schema or not isinstance(part.get("$id"), str)):
            yield part
            pending += [each for key, each in part.items() if key not in ("const", "enum", "default", "examples")]


def _problem(part: Mapping[str, Any], validator: Any) -> str | None:
    """A problem that would fail every cell, or hang, after its call was paid for."""
    from referencing.exceptions import Unresolvable  # noqa: PLC0415

    reference, pattern, by_pattern = part.get("$ref"), part.get("pattern"), part.get("patternProperties")
    if isinstance(reference, str):
        try:
            schema_errors(validator.evolve(schema={"$ref": reference}), None, limit=_MAX_REFERENCES_AT_START)
        except Unresolvable:
            return f"refers to {reference!r}, which is not in it"
        except RecursionError:
            return f"refers to {reference!r}, which leads back to itself"
        if next(_left.get(), None) is None:
            return f"refers to {reference!r}, which leads to more than {_MAX_REFERENCES_AT_START} references"
    by_pattern = by_pattern if isinstance(by_pattern, Mapping) else {}
    for each in (*([pattern] if isinstance(pattern, str) else ()), *by_pattern):
        try:
            _matches(each, "")
        except pl.exceptions.PolarsError as error:
            reason = next((line for line in str(error).splitlines() if line.startswith("error:")), str(error))
            return f"has the pattern {each!r}, which cannot be matched in linear time: {reason.removeprefix('error: ')}"
    if by_pattern and "unevaluatedProperties" in part:
        return "has unevaluatedProperties beside patternProperties; use additionalProperties"
    return None


def _matches(pattern: str, text: str) -> bool:
    """True if a pattern is found in a text, by the engine of polars: its time is linear in the text.

    Python's own engine backtracks: on `^(a+)+$` a text of 40 characters, which a model wrote, keeps it busy for days.
    """
    return bool(pl.Series([text]).str.contains(pattern)[0])


def _pattern(validator: Any, pattern: str, value: Any, _: Any) -> Iterator[Exception]:
    from jsonschema.exceptions import ValidationError  # noqa: PLC0415

    if validator.is_type(value, "string") and not _matches(pattern, value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Mapping[str, Any], value: Any, _: Any) -> Iterator[Exception]:
    for pattern, schema in patterns.items() if validator.is_type(value, "object") else ():
        for key, each in value.items():
            if _matches(pattern, key):
                yield from validator.descend(each, schema, path=key, schema_path=pattern)


def _additional_properties(validator: Any, allowed: Any, value: Any, schema: Mapping[str, Any]) -> Iterator[Exception]:
    from jsonschema.exceptions import ValidationError  # noqa: PLC0415

    if not validator.is_type(value, "object"):
        return
    patterns = schema.get("patternProperties", {})
    known = schema.get("properties", {})
    extra = [key for key in value if key not in known and not any(_matches(pattern, key) for pattern in patterns)]
    if allowed is False and extra:
        yield ValidationError(f"additional properties are not allowed: {', '.join(map(repr, extra))}")
    elif isinstance(allowed, Mapping):
        for key in extra:
            yield from validator.descend(value[key], allowed, path=key)


_SIMPLE: dict[object, pl.DataType] = {
    "boolean": pl.Boolean(),
    "integer": pl.Int64(),
    "number": pl.Float64(),
    "string": pl.String(),
    bool: pl.Boolean(),
    int: pl.Int64(),
    float: pl.Float64(),
    str: pl.String(),
}


def schema_dtype(schema: Mapping[str, Any]) -> pl.DataType | None:
    """The column type that a schema describes; None if a part of it may be anything."""
    return _dtype(schema, schema, (), itertools.count(1))


def _dtype(
    schema: Any, root: Mapping[str, Any], path: tuple[str, ...], parts_so_far: Iterator[int]
) -> pl.DataType | None:
    """The type of a part; `path` has the references that lead to it, by which one that contains itself is noticed."""
    if not isinstance(schema, Mapping) or next(parts_so_far) > _MAX_PARTS:
        return None
    if "$ref" in schema:
        reference = str(schema["$ref"])
        return (
            None
            if reference in path
            else _dtype(resolve_reference(root, reference), root, (*path, reference), parts_so_far)
        )
    if "const" in schema or "enum" in schema:
        values = [schema["const"]] if "const" in schema else schema["enum"]
        return _simple({type(value) for value in values if value is not None})
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            parts = [part for part in schema[key] if not (isinstance(part, Mapping) and part.get("type") == "null")]
            found = [_dtype(part, root, path, parts_so_far) for part in parts]
            return found[0] if found and found.count(found[0]) == len(found) and "properties" not in schema else None
    kinds = schema.get("type")
    given = {kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if kind != "null"}
    if given == {"array"}:
        items = _dtype(schema.get("items"), root, path, parts_so_far) if "prefixItems" not in schema else None
        return None if items is None else pl.List(items)
    if given != {"object"}:
        return _simple(given)
    properties = schema.get("properties")
    is_open = schema.get("additionalProperties", False) is not False or "patternProperties" in schema
    if not isinstance(properties, Mapping) or not properties or is_open:
        return None
    fields = {name: _dtype(part, root, path, parts_so_far) for name, part in properties.items()}
    known = {name: field for name, field in fields.items() if field is not None and "\0" not in name}
    return pl.Struct(known) if len(known) == len(fields) else None


def _simple(kinds: set[Any]) -> pl.DataType | None:
    if kinds in ({"integer", "number"}, {int, float}):
        return pl.Float64()
    return _SIMPLE.get(kinds.pop()) if len(kinds) == 1 else None


def shaped(value: Any, dtype: Any) -> Any:
    """The value as a column of that type holds it: without properties that the type lacks, null for missing ones.

    Raises `BadOutput` for a number that the type cannot hold: it would change the type of all others.
    """
    if isinstance(dtype, pl.Struct) and isinstance(value, Mapping):
        return {field.name: shaped(value.get(field.name), field.dtype) for field in dtype.fields}
    if isinstance(dtype, pl.List) and isinstance(value, list):
        return [shaped(each, dtype.inner) for each in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            if dtype == pl.Float64:
                return float(value)
            if dtype == pl.Int64 and not -(2**63) <= (value := int(value)) < 2**63:  # 1.0 is a whole number in JSON
                raise OverflowError
        except OverflowError:
            raise BadOutput(f"{str(value)[:40]} is too large a number") from None
    return value
