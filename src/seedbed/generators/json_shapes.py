"""JSON Schemas at work: what fits them, and the column type that they describe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import polars as pl

from ..errors import BadOutput, ConfigError

_SIMPLE: dict[object, pl.DataType] = {
    "boolean": pl.Boolean(),
    "integer": pl.Int64(),
    "number": pl.Float64(),
    "string": pl.String(),
}
_SHOWN = 5
"""So many errors are told at once."""


def schema_checker(schema: Mapping[str, Any], *, column: str) -> Callable[[Any], str | None]:
    """What says what is wrong with a value, None if it fits; the schema is checked and compiled here, once."""
    from jsonschema.exceptions import best_match  # noqa: PLC0415  slow to import, and few columns need it

    validator = schema_validator(schema, column=column)

    def check(value: Any) -> str | None:
        found = [best_match([error]) for error in validator.iter_errors(value)]
        return told([(error.json_path, error.message) for error in found if error is not None])

    return check


def schema_validator(schema: Mapping[str, Any], *, column: str) -> Any:
    """The compiled schema of a column; `ConfigError` if it is none, or refers to what is not in it."""
    from jsonschema import validators  # noqa: PLC0415
    from jsonschema.exceptions import SchemaError  # noqa: PLC0415
    from jsonschema_specifications import REGISTRY  # noqa: PLC0415

    cls: Any = validators.validator_for(schema, default=validators.Draft202012Validator)
    try:
        cls.check_schema(schema)
    except SchemaError as error:
        problem = f"column {column!r}: schema is no JSON Schema: {error.json_path}: {error.message}"
        raise ConfigError(problem) from error
    # With a registry of its own it fetches nothing: what is not in the schema is not there.
    validator = cls(schema, registry=REGISTRY)
    _check_references(schema, validator, column)
    return validator


def _check_references(schema: Mapping[str, Any], validator: Any, column: str) -> None:
    """Refuse a reference that leads nowhere or in a circle: it would fail every cell, after its call was paid for."""
    from referencing.exceptions import Unresolvable  # noqa: PLC0415

    pending: list[Any] = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, Mapping):
            if part is not schema and isinstance(part.get("$id"), str):
                continue  # references below it begin elsewhere
            if isinstance(part.get("$ref"), str):
                try:
                    validator.evolve(schema={"$ref": part["$ref"]}).is_valid(None)
                except Unresolvable:
                    problem = f"column {column!r}: schema refers to {part['$ref']!r}, which is not in it"
                    raise ConfigError(problem) from None
                except RecursionError:
                    problem = f"column {column!r}: schema refers to {part['$ref']!r}, which leads back to itself"
                    raise ConfigError(problem) from None
            pending.extend(part.values())
        elif isinstance(part, list):
            pending.extend(part)


def told(found: list[tuple[str, str]]) -> str | None:
    """Errors, each with its place, in a sentence; None if there are none."""
    if not found:
        return None
    lines = [f"{place}: {message[:300]}" for place, message in sorted(found)[:_SHOWN]]
    if len(found) > _SHOWN:
        lines.append(f"and {len(found) - _SHOWN} more")
    return "; ".join(lines)


def schema_dtype(schema: Mapping[str, Any]) -> pl.DataType | None:
    """The column type that a schema describes; None if some part of it is free to be anything."""
    return _Shapes(schema).dtype(schema, ())


class _Shapes:
    """Reads types out of one schema, whose definitions may be referred to."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def dtype(self, schema: Any, path: tuple[str, ...]) -> pl.DataType | None:
        """The type of a part; `path` are the references on the way to it, so that one that holds itself is noticed."""
        if not isinstance(schema, Mapping):
            return None
        if "$ref" in schema:
            reference = str(schema["$ref"])
            return None if reference in path else self.dtype(self._resolve(reference), (*path, reference))
        if "const" in schema or "enum" in schema:
            return _dtype_of_values([schema["const"]] if "const" in schema else schema["enum"])
        for key in ("anyOf", "oneOf", "allOf"):
            if key in schema:
                return self._one_of(schema[key], path) if "properties" not in schema else None
        kinds = schema.get("type")
        given = [kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if kind != "null"]
        if len(given) != 1:
            return pl.Float64() if set(given) == {"integer", "number"} else None
        if given[0] == "array":
            items = self.dtype(schema.get("items"), path) if "prefixItems" not in schema else None
            return None if items is None else pl.List(items)
        return self._object(schema, path) if given[0] == "object" else _SIMPLE.get(given[0])

    def _object(self, schema: Mapping[str, Any], path: tuple[str, ...]) -> pl.DataType | None:
        properties = schema.get("properties")
        is_open = schema.get("additionalProperties", False) is not False or "patternProperties" in schema
        if not isinstance(properties, Mapping) or not properties or is_open:
            return None
        fields: dict[str, pl.DataType] = {}
        for name, part in properties.items():
            field = self.dtype(part, path)
            if field is None or "\0" in name:
                return None
            fields[name] = field
        return pl.Struct(fields)

    def _one_of(self, parts: Any, path: tuple[str, ...]) -> pl.DataType | None:
        some = [part for part in parts if not (isinstance(part, Mapping) and part.get("type") == "null")]
        found = [self.dtype(part, path) for part in some]
        return found[0] if found and all(each == found[0] for each in found) else None

    def _resolve(self, reference: str) -> Any:
        found: Any = self._root
        for part in reference.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, Mapping) else None
        return found if reference.startswith("#") else None


def _dtype_of_values(values: list[Any]) -> pl.DataType | None:
    kinds = {type(value) for value in values if value is not None}
    known: dict[type, pl.DataType] = {bool: pl.Boolean(), int: pl.Int64(), float: pl.Float64(), str: pl.String()}
    if kinds == {int, float}:
        return pl.Float64()
    return known.get(kinds.pop()) if len(kinds) == 1 else None


def shaped(value: Any, dtype: Any) -> Any:
    """The value as a column of that type holds it: no property that the type does not have, null for each missing.

    Raises `BadOutput` for a number that the type cannot hold: one of them would cost all others their type.
    """
    if isinstance(dtype, pl.Struct) and isinstance(value, Mapping):
        return {field.name: shaped(value.get(field.name), field.dtype) for field in dtype.fields}
    if isinstance(dtype, pl.List) and isinstance(value, list):
        return [shaped(each, dtype.inner) for each in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _number(value, dtype)
    return value


def _number(value: float, dtype: Any) -> int | float:
    """The number as the type has it: JSON has but one kind, and 1.0 is a whole number."""
    try:
        if dtype == pl.Float64:
            return float(value)
        if dtype == pl.Int64 and not -(2**63) <= (value := int(value)) < 2**63:
            raise OverflowError
    except OverflowError:
        raise BadOutput(f"{str(value)[:40]} is too large a number") from None
    return value
