"""Recipe files: `seedbed check`, `seedbed graph` and `seedbed init`, and how every command loads a recipe."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .exit_codes import ExitCode
from .options import Flag, Machine, RecipeChanges

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..engine.config import RunConfig
    from ..engine.source import Source
    from ..recipe.recipe import Recipe
    from .options import Permissions, RunOptions, Watching

_STARTER = Path(__file__).with_name("starter.yaml")


def check(recipe: Path, /, *, changes: RecipeChanges = RecipeChanges(), machine: Machine = Machine()) -> int:
    """Report every problem of a recipe at once, and list the URLs that it contacts; no model is called.

    Parameters
    ----------
    recipe
        A recipe file: YAML, TOML or JSON.

    """
    import attrs

    from . import output

    contacts: list[dict[str, Any]] = []

    def list_contacts(given: Recipe) -> None:
        for contact in given.contacts():
            contacts.append(attrs.asdict(contact))
            if not machine.json:
                output.print_line(f"contacts {contact}")

    source, problems = _find_problems(recipe, changes, list_contacts)
    columns = [] if source is None else [column.name for column in source.columns]
    if machine.json:
        output.print_json({"ok": not problems, "problems": problems, "columns": columns, "contacts": contacts})
    elif problems:
        for problem in problems:
            output.print_line(problem)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        output.print_line(f"{recipe}: {count}", error=True)
    else:
        output.print_line(f"{recipe}: no problems; {len(columns)} columns: {', '.join(columns)}")
    return ExitCode.BAD_INPUT if problems else ExitCode.OK


def _find_problems(
    path: Path, changes: RecipeChanges, on_recipe: Callable[[Recipe], None]
) -> tuple[Source | None, list[str]]:
    """What a recipe compiles to, or None and its problems, a sentence each.

    `on_recipe` is called with the recipe before it is compiled, because compiling reads its seeds.
    """
    from ..engine.source import make_source
    from ..errors import ConfigError, DatasetGenerationError
    from ..recipe.file import read_document

    try:
        recipe = read_recipe(path, changes)
    except DatasetGenerationError as error:
        return None, list(error.problems)
    except ConfigError as error:
        return None, str(error).splitlines()
    on_recipe(recipe)
    try:
        return make_source(recipe), []
    except DatasetGenerationError as error:
        # A recipe does not know its lines in the file; the document does.
        return None, [read_document(path).placed(problem) for problem in error.problems]
    except ConfigError as error:
        return None, str(error).splitlines()


def graph(
    recipe: Path,
    /,
    *,
    svg: Path | None = None,
    changes: RecipeChanges = RecipeChanges(),
    machine: Machine = Machine(),
) -> int:
    """Show the dependencies between columns: mermaid text, or a drawing.

    Parameters
    ----------
    recipe
        A recipe file: YAML, TOML or JSON.
    svg
        Write a drawing to this file instead; - for standard output.

    """
    from ..engine.source import make_source
    from ..graph import build_graph
    from ..observe.svg import draw_graph
    from . import output

    given = read_recipe(recipe, changes)
    found = build_graph(make_source(given).columns)
    if machine.json:
        nodes = [
            {
                "name": node.name,
                "kind": node.kind.value,
                "outputs": list(node.outputs),
                "requires": list(found.upstream(node.name)),
            }
            for node in found.nodes
        ]
        output.print_json({"columns": nodes})
        return ExitCode.OK
    text = found.mermaid() if svg is None else draw_graph(found, {spec.name: spec.type for spec in given.columns})
    if svg is None or str(svg) == "-":
        sys.stdout.write(text)
    else:
        svg.write_text(text, encoding="utf-8")
    return ExitCode.OK


def init(
    file: Path = Path("recipe.yaml"),
    /,
    *,
    force: Flag = False,
    debug: Flag = False,  # noqa: ARG001  `main` reads it for all commands
) -> int:
    """Write a commented starter recipe.

    Parameters
    ----------
    file
        The file to write.
    force
        Overwrite an existing file.
    debug
        Show the traceback of an error.

    """
    from ..errors import ConfigError

    if file.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"the starter recipe is YAML: {file} must end in .yaml")
    if file.exists() and not force:
        raise ConfigError(f"{file} exists; to overwrite it, pass --force")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(_STARTER.read_text(encoding="utf-8"), encoding="utf-8")
    sys.stdout.write(f"wrote {file}; try it: seedbed preview {file}\n")
    return ExitCode.OK


def read_recipe(path: Path, changes: RecipeChanges) -> Recipe:
    """Load a recipe file and apply the changes of the options."""
    import attrs

    from ..engine.config import RunConfig
    from ..recipe.file import load_recipe

    recipe = load_recipe(path, grants=changes.grants(), run_options=RunConfig)
    if changes.seed is not None:
        recipe = attrs.evolve(recipe, seed=changes.seed)
    if changes.model_override:
        recipe = attrs.evolve(recipe, models=_overridden(recipe.models, changes.model_override))
    return recipe


def _overridden(models: Mapping[str, Any], overrides: tuple[str, ...]) -> dict[str, Any]:
    from ..errors import ConfigError
    from ..graph import nearest
    from ..models import Local, Scripted

    kinds: dict[str, type] = {"scripted": Scripted, "local": Local}
    changed = dict(models)
    problems: list[str] = []
    for override in overrides:
        alias, equals, kind = override.rpartition("=")
        if kind not in kinds:
            problems.append(f"--model-override takes {' or '.join(kinds)}, or ALIAS= and one of them, not {override!r}")
        elif equals and alias not in models:
            problems.append(f"--model-override: unknown model {alias!r}{nearest(alias, models)}")
        else:
            for name in [alias] if equals else models:
                model, parameters = models[name], models[name].parameters
                if kind == "local":  # it decides itself how many requests it takes in parallel
                    new: Any = Local(parameters=parameters)
                else:  # under the same model name, so that models with different throttles still have different ones
                    limit = model.max_parallel_requests
                    new = Scripted(model=model.model, parameters=parameters, max_parallel_requests=limit)
                changed[name] = model if isinstance(model, kinds[kind]) else new
    if problems:
        raise ConfigError("\n".join(problems))
    return changed


def announce_contacts(recipe: Recipe) -> None:
    """List the servers that a recipe contacts, on standard error, before any of them is contacted."""
    from . import output

    for contact in recipe.contacts():
        output.print_line(f"contacts {contact}", error=True)


def needed_options(recipe: Recipe, changes: Permissions) -> list[str]:
    """The options that `resume` needs for a recipe that was run with these."""
    grants = changes.grants()
    if recipe.access is not None and recipe.reads_files():
        # A recipe file may read its own folder; the copy in the dataset directory needs a grant for it.
        grants = recipe.access.granting([recipe.access.folder]).grants
    return grants.options()


def make_config(recipe: Recipe, options: RunOptions, watching: Watching | None = None) -> RunConfig:
    """The run options of the recipe, overridden by those of the command line."""
    from ..engine.config import RunConfig

    traced = watching is not None and (watching.profile or watching.trace is not None)
    return RunConfig.from_mapping({**recipe.run, **options.given(), **({"trace": True} if traced else {})})
