"""The fingerprint of a build: what determines its data, as JSON values that are stored with it.

Besides the recipe it has two sections about things outside of it that may change: `code`, the functions by name and
digest, and `data`, the content of the files that rows come from. `check_resumable` compares it with the fingerprint of
a directory; docs/reference/resume.md has the table of what may change.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from ..columns.code import describe_code, same_code
from ..columns.custom import Custom
from ..columns.structured import LLMStructured, find_schema, is_model_class
from ..errors import ManifestError
from ..recipe.recipe import code_fields, fingerprint
from ..store.schema import declared_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ..columns.base import Column
    from ..columns.spec import Environment
    from ..recipe.recipe import Recipe
    from ..store.manifest import Header
    from .tasks import Processor

CODE, DATA = "code", "data"

# How many characters of a long value a message shows, and how many of them before the first difference.
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
    """The fingerprint of a recipe with the columns and models it was compiled to, and with further `processors`."""
    schemas = {spec.name: find_schema(spec, environment) for spec in recipe.columns if isinstance(spec, LLMStructured)}
    found = fingerprint(
        recipe,
        models=models,
        schemas={name: each.model_json_schema() if is_model_class(each) else each for name, each in schemas.items()},
    )
    specs = [
        *((f"models.{alias}", spec) for alias, spec in models.items()),
        *((f"columns.{spec.name}", spec) for spec in recipe.columns),
        *((f"processors[{index}]", spec) for index, spec in enumerate(recipe.processors)),
    ]
    code = {
        f"{place}.{field}": _describe(value, environment, f"{place}.{field}")
        for place, spec in specs
        for field, value in code_fields(spec).items()
    }
    if processors:
        found["more_processors"], more = _describe_processors("more_processors", processors)
        code |= more
    return {**found, CODE: code, DATA: _data(columns)}


def columns_fingerprint(columns: Sequence[Column], processors: Sequence[Processor]) -> dict[str, Any]:
    """The fingerprint of columns that were written in Python."""
    code = {f"columns.{column.name}.generator": describe_code(column.generator) for column in columns}
    code |= {f"columns.{each.name}.skip": describe_code(each.skip.decide) for each in columns if each.skip is not None}
    stages, processor_code = _describe_processors("processors", processors)
    described = [
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
    ]
    return {"columns": described, "processors": stages, CODE: {**code, **processor_code}, DATA: _data(columns)}


def _describe(value: Any, environment: Environment, where: str) -> dict[str, str]:
    if not isinstance(value, str):
        return describe_code(value)
    if not environment.allow_code:
        return {"name": value}
    found = environment.import_object(value, where)
    return {**describe_code(found.function if isinstance(found, Custom) else found), "name": value}


def _describe_processors(
    place: str, processors: Sequence[Processor]
) -> tuple[list[dict[str, str]], dict[str, dict[str, str]]]:
    """The stages and names of processors, and their code by place."""
    stages = [{"stage": each.stage.value, "name": each.label} for each in processors]
    return stages, {f"{place}[{at}].apply": describe_code(each.apply) for at, each in enumerate(processors)}


def _data(columns: Iterable[Column]) -> dict[str, str]:
    """The content of columns that come from files: their generators have a method `content_digest`."""
    found = {column.name: getattr(column.generator, "content_digest", None) for column in columns}
    digests = {name: digest() for name, digest in found.items() if callable(digest)}
    return {f"columns.{name}.path": content for name, content in digests.items() if content is not None}


def check_resumable(
    header: Header, fingerprint: Mapping[str, Any], *, outputs: Sequence[str], rows: int, accept_changes: bool = False
) -> Header:
    """Return the header of a directory that this build may resume; `ManifestError` if not.

    The header is a new one if the dataset grows, or if changes of code or data were accepted.
    """
    before, now = dict(header.fingerprint), json.loads(json.dumps(fingerprint))
    code_before, code_now = before.pop(CODE, {}), now.pop(CODE, {})
    outside = [
        f"{place}: its code was edited: {_code(code_before[place])} before, {_code(code)} now"
        for place, code in code_now.items()  # fields of the column itself differ where only one side has code
        if place in code_before and not same_code(code_before[place], code)
    ]
    outside += _differences("", before.pop(DATA, {}), now.pop(DATA, {}))
    found = [*_differences("", before, now)]
    if not found:  # then code or data changed which columns exist
        found += _differences("outputs", list(header.columns), list(outputs))
    if rows < header.rows:
        found.append(f"the dataset has {header.rows} rows, {rows} were requested; a dataset can grow but not shrink")
    if found or (outside and not accept_changes):
        lines = "\n".join(f"  - {each}" for each in (*found, *outside))
        hint = "\nto resume anyway and keep the existing rows, pass --accept-changes (accept_changes=True)"
        raise ManifestError(
            f"the directory belongs to another build and cannot be resumed by this one:\n{lines}{'' if found else hint}"
        )
    if rows > header.rows:
        layout = header.layout.grown(rows)
        header = msgspec.structs.replace(header, rows=layout.rows, segments=layout.segments)
    return msgspec.structs.replace(header, fingerprint=dict(fingerprint)) if outside else header


def _code(described: Mapping[str, str]) -> str:
    return f"{described['name']} ({described.get('digest', 'not in Python')})"


def _differences(path: str, before: Any, now: Any) -> Iterator[str]:
    before, now = _by_name(before), _by_name(now)
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        if before.keys() == now.keys() and list(before) != list(now) and path == "columns":
            yield f"{path}: in the order {', '.join(before)} before, {', '.join(now)} now"
        for name in dict.fromkeys((*before, *now)):
            inner = f"{path}.{name}" if path else str(name)
            yield from _differences(inner, before.get(name, _NOTHING), now.get(name, _NOTHING))
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for index, (old, new) in enumerate(zip(before, now, strict=True)):
            yield from _differences(f"{path}[{index}]", old, new)
    elif before != now:
        old, new = _shown(before, now)
        yield f"{path}: {old} before, {new} now"


def _by_name(value: Any) -> Any:
    """A list of mappings with unique names as one mapping by name; any other value unchanged."""
    if not isinstance(value, list) or not all(isinstance(each, Mapping) and "name" in each for each in value):
        return value
    named = {each["name"]: each for each in value}
    return named if value and len(named) == len(value) else value


def _shown(before: Any, now: Any) -> tuple[str, str]:
    """Both values as text; long ones only around the first difference."""
    old, new = (each if isinstance(each, str) else repr(each) for each in (before, now))
    is_long = max(len(old), len(new)) > _SHOWN and _NOTHING not in (before, now)
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))
    start = max(0, same - _BEFORE) if is_long else 0
    return _excerpt(before, old, start), _excerpt(now, new, start)


def _excerpt(value: Any, text: str, start: int) -> str:
    if value is _NOTHING:
        return "nothing"
    shown = "…" * (start > 0) + text[start : start + _SHOWN] + "…" * (len(text) > start + _SHOWN)
    return repr(shown) if isinstance(value, str) else shown
