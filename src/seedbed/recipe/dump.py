"""From a recipe back to what a recipe file holds, and to what determines its data."""

from __future__ import annotations

import enum
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import polars as pl
import yaml

from ..errors import ConfigError
from .code import is_generator_object, reference_to
from .document import add_scalars
from .dtypes import dtype_text
from .spec import HOW

if TYPE_CHECKING:
    from .recipe import Recipe

# Fields that say how data is made and not what it is, whichever spec has them: the fingerprint leaves them out, as it
# does those that a spec marks with `metadata=HOW`.
_HOW_FIELDS = frozenset(
    {
        "api_key_env",
        "base_url",
        "headers",
        "input_price",
        "max_parallel_requests",
        "output_price",
        "requests_per_minute",
        "timeout",
        "tokens_per_minute",
    }
)


def recipe_data(recipe: Recipe) -> dict[str, Any]:
    """What a recipe file that says the same holds; functions are named as `module:name`."""
    data = _data(recipe, what_only=False)
    if recipe.run:
        data["run"] = {name: plain(value) for name, value in recipe.run.items()}
    if recipe.base != Path():
        # Wherever the file is stored: relative paths begin where they began.
        data["base"] = str(recipe.base.resolve())
    return data


def dump_recipe(recipe: Recipe, path: Path) -> None:
    """Write a recipe file, YAML or JSON by its suffix."""
    if path.suffix.lower() == ".json":
        text = json.dumps(recipe_data(recipe), indent=2, ensure_ascii=False) + "\n"
    elif path.suffix.lower() in (".yaml", ".yml"):
        text = recipe_text(recipe)
    else:
        raise ConfigError(f"{path}: a recipe is written as .yaml or .json, not {path.suffix!r}")
    path.write_text(text, encoding="utf-8")


def recipe_text(recipe: Recipe) -> str:
    """The recipe as a YAML file has it."""
    return yaml.dump(recipe_data(recipe), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def fingerprint(
    recipe: Recipe, *, models: Iterable[str] | None = None, schemas: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What determines the data, as JSON values: two recipes with the same make parts of one dataset.

    Not in it: names of files and keys, limits, timeouts, prices, addresses, and the knobs of a run; nor what is told
    otherwise because it is somewhere else, the code of functions (`code_fields`) and the rows of files.

    `models` are the aliases that columns use (all if not given), `schemas` the JSON Schemas of columns that name one.
    """
    data = _data(recipe, what_only=True)
    data.pop("name", None)
    if models is not None and "models" in data:
        wanted = set(models)
        data["models"] = {alias: model for alias, model in data["models"].items() if alias in wanted}
    for column in data["columns"]:
        if column["name"] in (schemas or {}):
            column["schema"] = plain((schemas or {})[column["name"]])
    return data


def code_fields(spec: Any) -> dict[str, Any]:
    """The fields of a column, model or processor that hold code: a function, a class, an object, or its name."""
    named = set(spec.code()) if hasattr(spec, "code") else set()
    found = {field.name: getattr(spec, field.name) for field in attrs.fields(type(spec)) if not is_how(field)}
    found.pop("dtype", None)  # a class too, but one that says what values are
    return {name: value for name, value in found.items() if _is_code(value, named)}


def _is_code(value: Any, named: AbstractSet[str]) -> bool:
    if isinstance(value, str):
        return value in named
    return callable(value) or is_generator_object(value)


def is_how(field: attrs.Attribute[Any]) -> bool:
    """Whether a field says how data is made and not what it is."""
    return field.name in _HOW_FIELDS or HOW.items() <= field.metadata.items()


def _data(recipe: Recipe, *, what_only: bool) -> dict[str, Any]:
    data: dict[str, Any] = {} if recipe.name is None else {"name": recipe.name}
    data["seed"] = recipe.seed
    if recipe.models:
        data["models"] = {alias: _typed(model, what_only) for alias, model in recipe.models.items()}
    data["columns"] = [_typed(spec, what_only) for spec in recipe.columns]
    if recipe.processors:
        data["processors"] = [_typed(spec, what_only) for spec in recipe.processors]
    return data


def _typed(spec: Any, what_only: bool) -> dict[str, Any]:
    return {"type": type(spec).type, **_fields(spec, what_only)}


def _fields(value: Any, what_only: bool) -> dict[str, Any]:
    """The fields of an attrs instance that differ from their defaults."""
    found: dict[str, Any] = {}
    told_elsewhere = code_fields(value) if what_only else {}
    for field in attrs.fields(type(value)):
        if not field.init or (what_only and (is_how(field) or field.name in told_elsewhere)):
            continue
        given = plain(getattr(value, field.name), what_only=what_only)
        if given != plain(_default(field), what_only=what_only):
            found[field.alias or field.name] = given
    return found


# A class, whatever its annotations say.
_FACTORY: Any = attrs.Factory


def _default(field: attrs.Attribute[Any]) -> Any:
    if field.default is attrs.NOTHING:
        return attrs.NOTHING
    factory: Any = field.default
    if not isinstance(factory, _FACTORY):
        return field.default
    return None if factory.takes_self else factory.factory()


def plain(value: Any, *, what_only: bool = False) -> Any:
    """A value as JSON and YAML can hold it, as close as may be to how a recipe file would say it."""
    if value is attrs.NOTHING or value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if (text := dtype_text(value)) is not None:
        return text
    if isinstance(value, Mapping):
        return {str(name): plain(each, what_only=what_only) for name, each in value.items()}
    if isinstance(value, AbstractSet):
        return sorted((plain(each, what_only=what_only) for each in value), key=repr)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [plain(each, what_only=what_only) for each in value]
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Path):
        return str(value)
    if is_generator_object(value):  # before attrs: what it holds is its own affair
        return reference_to(value)
    if attrs.has(type(value)):
        return _fields(value, what_only)
    return reference_to(value) if callable(value) else _opaque(value)


def _opaque(value: Any) -> Any:
    """What stands for a value that no recipe file could hold; equal values have the same."""
    if isinstance(value, pl.DataFrame):
        types = {name: str(dtype) for name, dtype in value.schema.items()}
        # Polars has no JSON of bytes, not even inside of lists.
        told = repr(value.rows()) if "Binary" in str(types) else value.write_json()
        return {"frame": types, "sha256": hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()}
    if isinstance(value, bytes | bytearray):
        return {"bytes": hashlib.sha256(value).hexdigest()}
    if isinstance(value, pl.Expr):
        return str(value)
    raise ConfigError(f"a recipe cannot be stored with {value!r} in it: it is neither data nor a function")


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, and never an alias."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _text(dumper: _Dumper, value: str) -> yaml.ScalarNode:
    # What is neither seen nor a line's end, such as the line ends that only YAML knows, must be escaped to come back.
    plain_sight = value.replace("\n", "").isprintable()
    style = ("|" if "\n" in value else None) if plain_sight else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)
add_scalars(_Dumper)
