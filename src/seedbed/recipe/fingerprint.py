"""A recipe as plain values: the file that is stored with its dataset, and the fingerprint that identifies it on resume.

Both are the fields that differ from their defaults, as JSON values. The file has all of them. The fingerprint has those
that determine the data; the code of functions (`code_fields`) and the rows of files are compared on their own.
"""

from __future__ import annotations

import enum
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import polars as pl
import yaml

from ..columns.code import is_generator_object, reference_to
from ..columns.dtypes import dtype_text
from ..errors import ConfigError
from ..models.base import NOT_IN_FINGERPRINT
from .file import add_scalars

if TYPE_CHECKING:
    from .recipe import Recipe

# Fields that determine how a build runs and not its data, in any spec: the fingerprint omits them, as it does
# those with the metadata `NOT_IN_FINGERPRINT`.
_OPERATIONAL = frozenset(
    {
        *("api_key_env", "base_url", "headers", "input_price", "max_parallel_requests", "output_price"),
        *("latency_congestion", "requests_per_minute", "timeout", "tokens_per_minute"),
    }
)


def recipe_data(recipe: Recipe) -> dict[str, Any]:
    """The content of a recipe file that loads as this recipe; functions are named as `module:name`."""
    data = _data(recipe, determining=False)
    if recipe.run:
        data["run"] = {name: plain(value) for name, value in recipe.run.items()}
    if recipe.base != Path():
        # Relative paths start at the same folder wherever the file is stored.
        data["base"] = str(recipe.base.resolve())
    return data


def recipe_text(recipe: Recipe) -> str:
    """The recipe as a YAML file."""
    return yaml.dump(recipe_data(recipe), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def fingerprint(
    recipe: Recipe, *, models: Iterable[str] | None = None, schemas: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The fields that determine the data, as JSON values: recipes with equal ones generate parts of one dataset.

    `models` are the aliases that columns use (default: all), `schemas` the JSON Schemas of columns that refer to one.
    """
    data = _data(recipe, determining=True)
    data.pop("name", None)
    if models is not None and "models" in data:
        used = set(models)
        data["models"] = {alias: model for alias, model in data["models"].items() if alias in used}
    for column in data["columns"]:
        if column["name"] in (schemas or {}):
            column["schema"] = plain((schemas or {})[column["name"]])
    return data


def code_fields(spec: Any) -> dict[str, Any]:
    """The fields of a column, model or processor that hold code: a function, a class, an object, or its name."""
    named = set(spec.code()) if hasattr(spec, "code") else set()
    found = {field.name: getattr(spec, field.name) for field in attrs.fields(type(spec)) if not is_operational(field)}
    found.pop("dtype", None)  # a class, but not code
    return {
        name: value
        for name, value in found.items()
        if (value in named if isinstance(value, str) else callable(value) or is_generator_object(value))
    }


def is_operational(field: attrs.Attribute[Any]) -> bool:
    """True if a field determines how a build runs and not its data."""
    return field.name in _OPERATIONAL or NOT_IN_FINGERPRINT.items() <= field.metadata.items()


def _data(recipe: Recipe, *, determining: bool) -> dict[str, Any]:
    def typed(spec: Any) -> dict[str, Any]:
        return {"type": type(spec).type, **_fields(spec, determining)}

    data: dict[str, Any] = {
        "name": recipe.name,
        "seed": recipe.seed,
        "models": {alias: typed(model) for alias, model in recipe.models.items()},
        "columns": [typed(spec) for spec in recipe.columns],
        "processors": [typed(spec) for spec in recipe.processors],
    }
    return {key: value for key, value in data.items() if value or key == "seed"}


def _fields(value: Any, determining: bool) -> dict[str, Any]:
    """The fields of an attrs instance that differ from their defaults; with `determining` those of the fingerprint."""
    found: dict[str, Any] = {}
    omitted = code_fields(value) if determining else {}
    for field in attrs.fields(type(value)):
        if not field.init or (determining and (is_operational(field) or field.name in omitted)):
            continue
        given = plain(getattr(value, field.name), determining=determining)
        if given != plain(_default(field), determining=determining):
            found[field.alias or field.name] = given
    return found


# A class, although its annotations describe a function.
_FACTORY: Any = attrs.Factory


def _default(field: attrs.Attribute[Any]) -> Any:
    default: Any = field.default
    if not isinstance(default, _FACTORY):
        return default
    return None if default.takes_self else default.factory()


def plain(value: Any, *, determining: bool = False) -> Any:
    """A value in the types of JSON and YAML, in the form that it has in a recipe file."""
    if value is attrs.NOTHING or value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if (text := dtype_text(value)) is not None:
        return text
    if isinstance(value, Mapping):
        return {str(name): plain(each, determining=determining) for name, each in value.items()}
    if isinstance(value, AbstractSet):
        return sorted((plain(each, determining=determining) for each in value), key=repr)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [plain(each, determining=determining) for each in value]
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Path):
        return str(value)
    if is_generator_object(value):  # before attrs: its fields are its own state
        return reference_to(value)
    if attrs.has(type(value)):
        return _fields(value, determining)
    return reference_to(value) if callable(value) else _digest(value)


def _digest(value: Any) -> Any:
    """A representation of a value that no recipe file can hold; equal values have the same."""
    if isinstance(value, pl.DataFrame):
        types = {name: str(dtype) for name, dtype in value.schema.items()}
        # Polars cannot write bytes as JSON, not even inside of lists.
        content = repr(value.rows()) if "Binary" in str(types) else value.write_json()
        return {"frame": types, "sha256": hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()}
    if isinstance(value, bytes | bytearray):
        return {"bytes": hashlib.sha256(value).hexdigest()}
    if isinstance(value, pl.Expr):
        return str(value)
    raise ConfigError(f"a recipe cannot be stored with {value!r} in it, which is neither data nor a function")


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, and never an alias."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _text(dumper: _Dumper, value: str) -> yaml.ScalarNode:
    # Invisible characters, such as the line ends that only YAML knows, are read back only if they are escaped.
    is_visible = value.replace("\n", "").isprintable()
    style = ("|" if "\n" in value else None) if is_visible else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)
add_scalars(_Dumper)
