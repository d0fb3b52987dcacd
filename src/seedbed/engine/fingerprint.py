"""The fingerprint of a build: what determines its data, as JSON values that are stored with it.

Besides what a recipe says there are two sections of what is somewhere else and may change there: `code`, the functions
by name and digest, and `data`, the content of the files that rows come from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..generators.llm import find_schema
from ..recipe.code_digest import told_code
from ..recipe.custom import Custom
from ..recipe.dump import code_fields, fingerprint
from ..recipe.llm import LLMStructured, tells_schema
from ..store.dtypes import declared_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..generators import Column
    from ..generators.registry import Environment
    from ..recipe.recipe import Recipe
    from .processor import Processor

CODE, DATA = "code", "data"


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
    code = {f"columns.{column.name}.generator": told_code(column.generator) for column in columns}
    code |= {
        f"columns.{column.name}.skip": told_code(column.skip.decide) for column in columns if column.skip is not None
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
    """The JSON Schemas of structured columns, wherever they are: in a file, or told by a class."""
    found = {spec.name: find_schema(spec, environment) for spec in recipe.columns if isinstance(spec, LLMStructured)}
    return {name: each.model_json_schema() if tells_schema(each) else each for name, each in found.items()}


def _told(value: Any, environment: Environment, where: str) -> dict[str, str]:
    if isinstance(value, str):
        if not environment.allow_code:
            return {"name": value}
        found = environment.import_object(value, where)
        return {**told_code(found.function if isinstance(found, Custom) else found), "name": value}
    return told_code(value)


def _data(columns: Iterable[Column]) -> dict[str, str]:
    """What the data of columns is that come from files: their generators have a method `tell_content`."""
    found = {column.name: getattr(column.generator, "tell_content", None) for column in columns}
    told = {name: tell() for name, tell in found.items() if callable(tell)}
    return {f"columns.{name}.path": content for name, content in told.items() if content is not None}


def _stages(processors: Iterable[Processor]) -> list[dict[str, str]]:
    return [{"stage": each.stage.value, "name": each.label} for each in processors]


def _processor_code(place: str, processors: Iterable[Processor]) -> dict[str, dict[str, str]]:
    return {f"{place}[{index}].apply": told_code(each.apply) for index, each in enumerate(processors)}
