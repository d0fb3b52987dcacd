"""The fingerprint of a build: what determines its data, as JSON values that are stored with it.

Besides the recipe, with its processors by stage, it has two sections about things outside of it that may change:
`code`, the functions by name and digest, and `data`, the content of the files that rows come from. A third, `uses`,
names the models that each column calls. `changes` compares it with the fingerprint of a directory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..columns.code import describe_code
from ..columns.custom import Custom, used_models
from ..columns.structured import LLMStructured, find_schema, is_model_class
from ..graph import Stage
from ..recipe.recipe import code_fields, fingerprint
from ..store.schema import declared_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..columns.base import Column
    from ..columns.spec import Environment
    from ..recipe.recipe import Recipe
    from .tasks import Processor

CODE, DATA, USES = "code", "data", "uses"


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
    ]
    stages: dict[str, list[dict[str, Any]]] = {stage.value: [] for stage in Stage}
    for spec, fields in zip(recipe.processors, found.pop("processors", ()), strict=True):
        listed = stages[spec.stage]
        specs.append((f"{spec.stage}[{len(listed)}]", spec))
        listed.append({name: value for name, value in fields.items() if name != "stage"})
    code = {
        f"{place}.{field}": _describe(value, environment, f"{place}.{field}")
        for place, spec in specs
        for field, value in code_fields(spec).items()
    }
    code |= {
        f"columns.{spec.name}.{place}": _describe(value, environment, place)
        for spec in recipe.columns
        for place, tool in spec.sources()
        for value in code_fields(tool).values()
    }
    code |= _describe_processors(processors, stages)
    uses = {spec.name: sorted(used_models([spec], environment)) for spec in recipe.columns}
    return {**found, **_not_empty(stages), CODE: code, DATA: _data(columns), USES: uses}


def columns_fingerprint(columns: Sequence[Column], processors: Sequence[Processor]) -> dict[str, Any]:
    """The fingerprint of columns that were written in Python."""
    code = {f"columns.{column.name}.generator": describe_code(column.generator) for column in columns}
    code |= {f"columns.{each.name}.skip": describe_code(each.skip.decide) for each in columns if each.skip is not None}
    stages: dict[str, list[dict[str, Any]]] = {stage.value: [] for stage in Stage}
    code |= _describe_processors(processors, stages)
    described = [
        {
            "name": column.name,
            "kind": column.kind.value,
            "requires": list(column.requires),
            "outputs": list(column.outputs),
            "side_effects": list(column.side_effects),
            "dtype": {name: str(declared_type(dtype)) for name, dtype in column.dtypes().items()},
            "is_stateful": column.is_stateful,
            "once_per": list(column.once_per),
            "allow_resize": column.allow_resize,
            "skip_policy": column.skip_policy,
        }
        for column in columns
    ]
    return {"columns": described, **_not_empty(stages), CODE: code, DATA: _data(columns)}


def _describe(value: Any, environment: Environment, where: str) -> dict[str, str]:
    if not isinstance(value, str):
        return describe_code(value)
    if not environment.allow_code:
        return {"name": value}
    found = environment.import_object(value, where)
    return {**describe_code(found.function if isinstance(found, Custom) else found), "name": value}


def _describe_processors(
    processors: Iterable[Processor], stages: dict[str, list[dict[str, Any]]]
) -> dict[str, dict[str, str]]:
    """Add the names of processors to their stages; returns their code by place."""
    code: dict[str, dict[str, str]] = {}
    for each in processors:
        listed = stages[each.stage.value]
        code[f"{each.stage.value}[{len(listed)}].apply"] = describe_code(each.apply)
        listed.append({"name": each.label})
    return code


def _not_empty(stages: Mapping[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    return {stage: listed for stage, listed in stages.items() if listed}


def _data(columns: Iterable[Column]) -> dict[str, str]:
    """The content of columns that come from files: their generators have a method `content_digest`."""
    found = {column.name: getattr(column.generator, "content_digest", None) for column in columns}
    digests = {name: digest() for name, digest in found.items() if callable(digest)}
    return {f"columns.{name}.path": content for name, content in digests.items() if content is not None}
