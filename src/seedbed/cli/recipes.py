"""Recipe files: `seedbed check` and `seedbed graph`, and how every command loads a recipe."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from .exit_codes import ExitCode
from .options import Machine, RecipeChanges, RecipeFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..columns.base import Column
    from ..engine.config import RunConfig
    from ..engine.source import Source
    from ..recipe.recipe import Recipe
    from .options import Permissions, RunOptions, Watching


def check(recipe: RecipeFile, /, *, changes: RecipeChanges = RecipeChanges(), machine: Machine = Machine()) -> int:
    """Report every problem of a recipe at once, and list the URLs that it contacts; no model is called."""
    import attrs

    from ..columns.documents import read_document
    from ..engine.source import make_source
    from ..errors import ConfigError, DatasetGenerationError
    from . import output

    given, contacts, columns, problems = None, list[Any](), list[str](), list[str]()
    try:
        given = read_recipe(recipe, changes)
        contacts = list(given.contacts())
        if not machine.json:
            for contact in contacts:  # before the recipe is compiled, which reads its seeds
                output.print_line(f"contacts {contact}")
        columns = [name for stage in make_source(given).stages for name in _own_columns(stage)]
    except DatasetGenerationError as error:
        # A recipe does not know its lines in the file; the document does.
        place = str if given is None else read_document(recipe).placed
        problems = [place(problem) for problem in error.problems]
    except ConfigError as error:
        problems = str(error).splitlines()
    if machine.json:
        listed = [attrs.asdict(contact) for contact in contacts]
        output.print_json({"ok": not problems, "problems": problems, "columns": columns, "contacts": listed})
    elif problems:
        for problem in problems:
            output.print_line(problem)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        output.print_line(f"{recipe}: {count}", error=True)
    else:
        output.print_line(f"{recipe}: no problems; {len(columns)} columns: {', '.join(columns)}")
    return ExitCode.BAD_INPUT if problems else ExitCode.OK


def graph(
    recipe: RecipeFile,
    /,
    *,
    svg: Annotated[Path | None, Parameter(help="Write a drawing to this file; - for standard output.")] = None,
    changes: RecipeChanges = RecipeChanges(),
    machine: Machine = Machine(),
) -> int:
    """Show the dependencies between columns: mermaid text, or a drawing."""
    from ..engine.source import make_source
    from ..graph import build_graph
    from ..observe.svg import draw_graph
    from . import output

    given = read_recipe(recipe, changes)
    source = make_source(given)
    labels = {spec.name: spec.type for spec in given.all_columns}
    found = build_graph([column for stage in source.stages for column in _graph_columns(stage, labels)])
    if machine.json:
        nodes = [(node.name, node.kind.value, node.outputs, found.upstream(node.name)) for node in found.nodes]
        heads = ("name", "kind", "outputs", "requires")
        output.print_json({"columns": [dict(zip(heads, node, strict=True)) for node in nodes]})
        return ExitCode.OK
    text = found.mermaid() if svg is None else draw_graph(found, labels)
    if svg is None or str(svg) == "-":
        sys.stdout.write(text)
    else:
        svg.write_text(text, encoding="utf-8")
    return ExitCode.OK


def _own_columns(stage: Source) -> list[str]:
    return [column.name for column in stage.columns if column is not stage.inherited.column]


def _graph_columns(stage: Source, labels: dict[str, str]) -> list[Column]:
    """The columns of a stage for a graph of all stages, in which a node stands for its rows; that gets a label."""
    import attrs

    from ..columns.base import Column
    from ..recipe.stages import RESERVED

    inherited, spec = stage.inherited.column, stage.spec
    if spec is None:
        return list(stage.columns)
    stored = () if inherited is None else [name for name in inherited.outputs if name not in stage.inherited.owners]
    # Those names are in several stages, and a column may have the name of a stage or group by one of another.
    renamed = {name: f"{stage.stage}.{name}" for name in stored if name in (*RESERVED, *spec.needs, stage.parent)}
    node = f"stage {stage.stage}"
    rows = "given number of rows" if stage.parent is None else f"from {stage.parent}, {spec.how}"
    labels[node] = rows
    source = Column(
        node,
        lambda: None,
        kind="full_column" if stage.parent is not None else "from_scratch",
        outputs=(node, *(renamed.get(name, name) for name in stored)),
        requires=() if stage.parent is None else (f"stage {stage.parent}", *spec.needs),
    )
    own = [column for column in stage.columns if column is not inherited]
    return [
        source,
        *(attrs.evolve(each, requires=[renamed.get(name, name) for name in each.requires]) for each in own),
    ]


def read_recipe(path: Path, changes: RecipeChanges) -> Recipe:
    """Load a recipe file and apply the changes of the options."""
    import attrs

    from ..engine.config import RunConfig
    from ..recipe.file import load_recipe

    recipe = load_recipe(path, grants=changes.grants(), run_options=RunConfig)
    seed = recipe.seed if changes.seed is None else changes.seed
    return attrs.evolve(recipe, seed=seed, models=_overridden(recipe.models, changes.model_override))


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
