"""The fingerprint of a build: what determines its data, as JSON values that are stored with it.

Besides what a recipe says there are two sections of what is somewhere else and may change there: `code`, the functions
by name and digest, and `data`, the content of the files that rows come from. `check_resumable` compares it with the
fingerprint of a directory; docs/reference/resume.md has the table of what may change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from ..columns.code import describe_code, same_code
from ..columns.custom import Custom
from ..columns.structured import LLMStructured, find_schema, is_model_class
from ..errors import ManifestError
from ..recipe.fingerprint import code_fields, fingerprint
from ..store.schema import declared_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ..columns.base import Column
    from ..columns.spec import Environment
    from ..recipe.recipe import Recipe
    from ..store.records import Header
    from .tasks import Processor

CODE, DATA = "code", "data"

# Characters that are shown of a long value, and how many of them stand before the first that differs.
_SHOWN = 80
_BEFORE = 30
_NOTHING = object()


def recipe_fingerprint(
    recipe: Recipe,
    environment: Environment,
    *,
    columns: Sequence[Column],
    models: Mapping[str, Any],
    processors: Sequence[Processor],
) -> dict[str, Any]:
    """That of a recipe. `columns` are what it was compiled to, `models` those in use, `processors` come on top."""
    told = fingerprint(recipe, models=models, schemas=_schemas(recipe, environment))
    specs = [
        *((f"models.{alias}", spec) for alias, spec in models.items()),
        *((f"columns.{spec.name}", spec) for spec in recipe.columns),
        *((f"processors[{index}]", spec) for index, spec in enumerate(recipe.processors)),
    ]
    code = {
        f"{place}.{field}": _told(value, environment, f"{place}.{field}")
        for place, spec in specs
        for field, value in code_fields(spec).items()
    }
    if processors:
        told["more_processors"] = _stages(processors)
        code |= _processor_code("more_processors", processors)
    return {**told, CODE: code, DATA: _data(columns)}


def columns_fingerprint(columns: Sequence[Column], processors: Sequence[Processor]) -> dict[str, Any]:
    """That of columns as the engine takes them."""
    code = {f"columns.{column.name}.generator": describe_code(column.generator) for column in columns}
    code |= {
        f"columns.{column.name}.skip": describe_code(column.skip.decide)
        for column in columns
        if column.skip is not None
    }
    return {
        "columns": [
            {
                "name": column.name,
                "kind": column.kind.value,
                "requires": list(column.requires),
                "outputs": list(column.outputs),
                "side_effects": list(column.side_effects),
                "dtype": {name: str(declared_type(dtype)) for name, dtype in column.dtypes().items()},
                "is_stateful": column.is_stateful,
                "allow_resize": column.allow_resize,
                "skip_policy": column.skip_policy,
            }
            for column in columns
        ],
        "processors": _stages(processors),
        CODE: {**code, **_processor_code("processors", processors)},
        DATA: _data(columns),
    }


def _schemas(recipe: Recipe, environment: Environment) -> dict[str, Any]:
    """The JSON Schemas of structured columns, in the recipe, in a file or of a class."""
    found = {spec.name: find_schema(spec, environment) for spec in recipe.columns if isinstance(spec, LLMStructured)}
    return {name: each.model_json_schema() if is_model_class(each) else each for name, each in found.items()}


def _told(value: Any, environment: Environment, where: str) -> dict[str, str]:
    if isinstance(value, str):
        if not environment.allow_code:
            return {"name": value}
        found = environment.import_object(value, where)
        return {**describe_code(found.function if isinstance(found, Custom) else found), "name": value}
    return describe_code(value)


def _data(columns: Iterable[Column]) -> dict[str, str]:
    """The content of columns that come from files: their generators have a method `content_digest`."""
    found = {column.name: getattr(column.generator, "content_digest", None) for column in columns}
    told = {name: tell() for name, tell in found.items() if callable(tell)}
    return {f"columns.{name}.path": content for name, content in told.items() if content is not None}


def _stages(processors: Iterable[Processor]) -> list[dict[str, str]]:
    return [{"stage": each.stage.value, "name": each.label} for each in processors]


def _processor_code(place: str, processors: Iterable[Processor]) -> dict[str, dict[str, str]]:
    return {f"{place}[{index}].apply": describe_code(each.apply) for index, each in enumerate(processors)}


def check_resumable(
    header: Header, fingerprint: Mapping[str, Any], *, outputs: Sequence[str], rows: int, accept_changes: bool = False
) -> Header:
    """Return the header for a directory that this build may resume; `ManifestError` if not.

    It is another one if there are more rows, or if changes of code or data were accepted.
    """
    there, here = dict(header.fingerprint), json.loads(json.dumps(fingerprint))
    elsewhere = [*_code_differences(there.pop(CODE, {}), here.pop(CODE, {}))]
    elsewhere += _differences("", there.pop(DATA, {}), here.pop(DATA, {}))
    found = [*_differences("", there, here)]
    if not found:  # then it is code or data that makes other columns
        found += _differences("outputs", list(header.columns), list(outputs))
    if rows < header.rows:
        found.append(f"the dataset has {header.rows} rows, {rows} were requested; a dataset can grow but not shrink")
    if found or (elsewhere and not accept_changes):
        lines = "\n".join(f"  - {each}" for each in (*found, *elsewhere))
        hint = (
            ""
            if found
            else "\nto resume anyway and keep the existing rows, pass --accept-changes (accept_changes=True)"
        )
        raise ManifestError(f"the directory belongs to another build and cannot be resumed by this one:\n{lines}{hint}")
    if rows > header.rows:
        layout = header.layout.grown(rows)
        header = msgspec.structs.replace(header, rows=layout.rows, segments=layout.segments)
    return msgspec.structs.replace(header, fingerprint=dict(fingerprint)) if elsewhere else header


def _code_differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[str]:
    # What is code on one side only is said by the fields of the column itself.
    for place in here:
        if place in there and not same_code(there[place], here[place]):
            yield f"{place}: its code was edited: {_code(there[place])} there, {_code(here[place])} here"


def _code(told: Mapping[str, str]) -> str:
    return f"{told['name']} ({told.get('digest', 'not in Python')})"


def _differences(path: str, there: Any, here: Any) -> Iterator[str]:
    there, here = _by_name(there), _by_name(here)
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        if there.keys() == here.keys() and list(there) != list(here) and path == "columns":
            yield f"{path}: in the order {', '.join(there)} there, {', '.join(here)} here"
        for name in dict.fromkeys((*there, *here)):
            inner = f"{path}.{name}" if path else str(name)
            yield from _differences(inner, there.get(name, _NOTHING), here.get(name, _NOTHING))
    elif isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        for index, (old, new) in enumerate(zip(there, here, strict=True)):
            yield from _differences(f"{path}[{index}]", old, new)
    elif there != here:
        old, new = _shown(there, here)
        yield f"{path}: {old} there, {new} here"


def _by_name(value: Any) -> Any:
    """A list of things that have names, each its own, as a mapping; anything else as it is."""
    if not isinstance(value, list) or not all(isinstance(each, Mapping) and "name" in each for each in value):
        return value
    named = {each["name"]: each for each in value}
    return named if value and len(named) == len(value) else value


def _shown(there: Any, here: Any) -> tuple[str, str]:
    """Both sides; long ones only around the first character that differs."""
    old, new = (each if isinstance(each, str) else repr(each) for each in (there, here))
    pairs = enumerate(zip(old, new, strict=False))
    differs = next((at for at, (one, other) in pairs if one != other), min(len(old), len(new)))
    is_long = max(len(old), len(new)) > _SHOWN and _NOTHING not in (there, here)
    start = max(0, differs - _BEFORE) if is_long else 0
    return _excerpt(there, old, start), _excerpt(here, new, start)


def _excerpt(value: Any, text: str, start: int) -> str:
    if value is _NOTHING:
        return "nothing"
    shown = "…" * (start > 0) + text[start : start + _SHOWN] + "…" * (len(text) > start + _SHOWN)
    return repr(shown) if isinstance(value, str) else shown
