"""From a recipe file and the options of a command to a recipe and what the engine makes of it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import attrs

from ..engine.config import RunConfig
from ..engine.source import load_granted, make_source
from ..errors import ConfigError, DatasetGenerationError
from ..generators.registry import make_column, planning_environment
from ..graph import nearest
from ..models import Local, Scripted
from ..recipe.document import read_document
from . import output

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from ..engine.source import Source
    from ..generators import Column
    from ..recipe.recipe import Recipe
    from .options import Knobs, Permissions, RecipeChanges, Watching

_OVERRIDES = {"scripted": Scripted, "local": Local}


def read_recipe(path: Path, changes: RecipeChanges) -> Recipe:
    """Load a recipe file and make the changes that were asked for."""
    recipe = load_granted(path, changes.grants())
    if changes.seed is not None:
        recipe = attrs.evolve(recipe, seed=changes.seed)
    if changes.model_override:
        recipe = attrs.evolve(recipe, models=_overridden(recipe.models, changes.model_override))
    return recipe


def _overridden(models: Mapping[str, Any], overrides: tuple[str, ...]) -> dict[str, Any]:
    changed = dict(models)
    problems: list[str] = []
    for override in overrides:
        alias, equals, model = override.rpartition("=")
        if model not in _OVERRIDES:
            allowed = " or ".join(_OVERRIDES)
            problems.append(f"--model-override takes {allowed}, or ALIAS= and one of them, not {override!r}")
        elif equals and alias not in models:
            problems.append(f"--model-override: there is no model {alias!r}{nearest(alias, models)}")
        else:
            for name in [alias] if equals else models:
                changed[name] = _stand_in(models[name], _OVERRIDES[model])
    if problems:
        raise ConfigError("\n".join(problems))
    return changed


def _stand_in(model: Any, kind: type) -> Any:
    """Another kind of model under the same name, so that what was apart stays apart."""
    if isinstance(model, kind):
        return model
    if kind is Local:  # it says itself how much it can do at once
        return Local(parameters=model.parameters)
    return kind(model=model.model, parameters=model.parameters, max_parallel_requests=model.max_parallel_requests)


def announce_contacts(recipe: Recipe) -> None:
    """List the servers that a recipe contacts, on standard error, before any of them is contacted."""
    for contact in recipe.contacts():
        output.console(error=True).print(f"contacts {contact}", markup=False, soft_wrap=True)


def needed_options(recipe: Recipe, changes: Permissions) -> list[str]:
    """The options that `resume` needs for a recipe that was run with these."""
    grants = changes.grants()
    if recipe.access is not None and recipe.reads_files():
        # Beside the recipe nothing had to be granted; the copy in the dataset is beside something else.
        grants = recipe.access.granting([recipe.access.folder]).grants
    return grants.options()


def compile_recipe(recipe: Recipe, *, allow_code: bool) -> Source:
    """What the engine runs. Raises one error that lists every problem of the recipe, its models included."""
    return make_source(recipe, allow_code=allow_code)


def make_config(recipe: Recipe, knobs: Knobs, watching: Watching | None = None) -> RunConfig:
    """The knobs of the recipe, with those of the command line in their place."""
    traced = watching is not None and (watching.profile or watching.trace is not None)
    return RunConfig.from_mapping({**recipe.run, **knobs.given(), **({"trace": True} if traced else {})})


def find_problems(
    path: Path, changes: RecipeChanges, on_recipe: Callable[[Recipe], None]
) -> tuple[Source | None, list[str]]:
    """What a recipe is compiled to, if it can be, and everything that is wrong with it, a sentence each.

    `on_recipe` is called with the recipe before it is compiled, which reads its seeds.
    """
    try:
        recipe = read_recipe(path, changes)
    except DatasetGenerationError as error:
        return None, list(error.problems)
    except ConfigError as error:
        return None, str(error).splitlines()
    on_recipe(recipe)
    try:
        return compile_recipe(recipe, allow_code=changes.allow_code), []
    except DatasetGenerationError as error:
        # A recipe does not know where it was read from; the file still does.
        return None, [read_document(path).placed(problem) for problem in error.problems]
    except ConfigError as error:
        return None, str(error).splitlines()


def planned_columns(recipe: Recipe, *, allow_code: bool) -> list[Column]:
    """The columns that can be made, whatever is wrong with the others or with the models."""
    environment = planning_environment(recipe, allow_code=allow_code)
    made: list[Column] = []
    for spec in recipe.columns:
        with suppress(ConfigError, DatasetGenerationError):
            made.append(make_column(spec, environment))
    return made
