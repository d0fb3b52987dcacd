"""From a recipe to what the engine runs: its columns, its processors, the limits of its models and their clients."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from ..columns.custom import Custom, used_models
from ..columns.documents import MAX_BYTES
from ..columns.expression import Expression
from ..columns.spec import Grants, make_processor
from ..columns.tool_sources import MCPServer
from ..columns.tools import check_tools
from ..errors import ManifestError, StoreError
from ..graph import Stage
from ..models import open_http, open_models
from ..models.mcp import open_servers
from ..recipe.acceptance import make_acceptance
from ..recipe.file import load_recipe as load_file
from ..recipe.recipe import Recipe, stage_fields
from ..recipe.stages import Inherited
from ..runtime.throttle import KeyLimits
from ..store.children import SourceSpec
from ..store.files import PRIVATE, exists, read_file, write_file
from ..store.manifest import read as read_manifest
from .config import RunConfig
from .fingerprint import recipe_fingerprint
from .model_check import check_models
from .tasks import Processor

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from ..columns.base import Column
    from ..columns.spec import ColumnSpec, ProcessorSpec
    from ..models.base import ModelClient, ModelSpec
    from ..models.http import HttpClient
    from ..models.mcp import Address, OpenServer
    from ..observe.report import Usage
    from ..recipe.acceptance import Acceptance, Predicate
    from ..recipe.recipe import ResolvedStage
    from ..recipe.stages import Stage as StageSpec

RECIPE_NAME = f"{PRIVATE}/recipe.yaml"
DOMAINS = ("chat", "embedding", "image")


@attrs.frozen(kw_only=True)
class Source:
    """The input of a build, whether it was written as a recipe or as the engine's own columns.

    That of a recipe with stages has a source for each of them in `parts`, which differ in what belongs to one stage:
    `columns`, `processors`, `retyped`, `fingerprint`, `recipe` and the fields about the stage.
    """

    columns: tuple[Column, ...]
    processors: tuple[Processor, ...] = ()
    limits: Mapping[str, KeyLimits] = attrs.field(factory=dict)
    # Limits of keys that columns use inside, which no column names as its own.
    inner_limits: Mapping[str, KeyLimits] = attrs.field(factory=dict)
    config: RunConfig
    # The keys of models, whose calls use tokens, and those of models that have a price.
    metered: frozenset[str] = frozenset()
    priced: frozenset[str] = frozenset()
    # Columns that post-batch processors may give another type than the declared one; None: any.
    retyped: frozenset[str] | None = frozenset()
    # Opens what must be open while the build runs.
    resources: Callable[[], AbstractAsyncContextManager[object]] = nullcontext
    # What determines the data of a recipe; computed only on request, because files are read for it.
    fingerprint: Callable[[], Mapping[str, Any]] | None = None
    # Columns of users' async functions, which are watched for what blocks the loop.
    watched: frozenset[str] = frozenset()
    # By throttle key: the aliases of the models that share it.
    model_names: Mapping[str, str] = attrs.field(factory=dict)
    # Calls each model once, as `check_models` says; its resources must be open.
    check_models: Callable[[], Awaitable[list[tuple[str, Usage]]]] | None = None
    recipe: Recipe | None = None
    # Which candidates become rows; None if all of them do.
    acceptance: Acceptance | None = None
    parts: tuple[Source, ...] = ()
    output: str = ""  # the stage at the root of the dataset
    # Of a part: the stage, its number of rows in the recipe, what its rows have from others, and where they come from.
    stage: str = ""
    rows: int | None = None
    inherited: Inherited = attrs.field(factory=Inherited)
    rows_from: SourceSpec | None = None
    whole: Recipe | None = None  # the recipe of all stages, which is stored with the dataset
    spec: StageSpec | None = None

    @property
    def stages(self) -> tuple[Source, ...]:
        """One for each stage, each after the one that its rows come from."""
        return self.parts or (self,)

    @property
    def parent(self) -> str | None:
        """The stage that its rows come from, if it is another one."""
        return None if self.rows_from is None else self.rows_from.stage


def load_recipe(
    path: str | os.PathLike[str],
    *,
    allow_code: bool = False,
    allow_paths: Iterable[str | os.PathLike[str]] = (),
    allow_env: Iterable[str] = (),
) -> Recipe:
    """Read a recipe file (YAML, TOML or JSON); raises one error that lists everything that is wrong with it.

    Functions of the user's are imported only with `allow_code=True`. The recipe may read files below its own folder and
    below `allow_paths`; its headers may send the environment variables `allow_env` and those of an `api_key_env`.
    """
    return load_file(path, grants=Grants(code=allow_code, paths=allow_paths, env=allow_env), run_options=RunConfig)


def stored_recipe(directory: Path, grants: Grants) -> Recipe:
    """The recipe that is stored with a dataset. The folder that it came from grants nothing: anyone can name one."""
    manifest = read_manifest(directory)
    try:
        if manifest.pending is not None or not exists(directory, RECIPE_NAME):
            # The recipe of a revision, or a process died between two writes: the file follows later.
            header = manifest.working.header
            if header is None or header.recipe is None:
                raise ManifestError(
                    f"{str(directory)!r} holds no recipe: pass the recipe or the columns that it was built from"
                )
            content = header.recipe.encode("utf-8", "surrogatepass")
        else:
            content = read_file(directory, RECIPE_NAME, limit=MAX_BYTES + 1)
    except OSError as error:
        raise ManifestError(f"the recipe {str(directory / RECIPE_NAME)!r} cannot be read: {error}") from error
    return load_file(directory / RECIPE_NAME, grants=grants, content=content, run_options=RunConfig)


def store_recipe(directory: Path, text: str) -> None:
    """Write the recipe file of a dataset, as a whole or not at all."""
    try:
        write_file(directory, RECIPE_NAME, text.encode())
    except OSError as error:
        raise StoreError(f"the recipe cannot be stored in {str(directory)!r}: {error}") from error


def make_source(
    recipe: Recipe | Iterable[Column],
    *,
    config: RunConfig | None = None,
    limits: Mapping[str, KeyLimits] | None = None,
    processors: Iterable[Processor] = (),
    artifacts: Path | None = None,
    is_simulated: bool = False,
    draws: Mapping[str, int] | None = None,
) -> Source:
    """Compile what a user passes to what the engine runs; a recipe's problems are raised all at once."""
    more = tuple(processors)
    if not isinstance(recipe, Recipe):
        given: Any = recipe
        try:
            columns = tuple(given)
        except TypeError:  # one column, or something that the plan will report as none
            columns = (given,)
        return Source(
            columns=columns,
            processors=more,
            limits=dict(limits or {}),
            config=config or RunConfig(),
            retyped=_retyped((), more),
        )
    # Open while a build runs.
    clients: dict[str, ModelClient] = {}
    connections: list[HttpClient] = []
    servers: dict[Address, OpenServer] = {}
    environment = recipe.environment(
        clients=clients,
        connections=connections,
        servers=servers,
        artifacts=artifacts,
        is_simulated=is_simulated,
        draws=draws or {},
    )
    resolved = recipe.resolve_stages(environment)
    columns = tuple(column for stage in resolved for column in stage.columns)
    specs = recipe.all_columns
    named = [each.address for spec in specs for _, each in spec.sources() if isinstance(each, MCPServer)]
    in_use = [] if is_simulated else named
    used = used_models(specs, environment)
    known = {**_model_limits(used), **(limits or {})}
    keys = {column.key for column in columns if column.key is not None}

    @asynccontextmanager
    async def resources() -> AsyncIterator[None]:
        async with (
            open_models(used) as opened,
            open_http() as connected,
            open_servers(in_use, environment.path("", "tools") if in_use else environment.base) as open_tools,
        ):
            clients.update(opened)
            connections.append(connected)
            servers.update(open_tools)
            try:
                if in_use:
                    check_tools(specs, environment)
                yield
            finally:
                clients.clear()
                connections.clear()
                servers.clear()

    by_name = {column.name: column for column in columns}
    # What a function of the user's calls is not known.
    known_calls = [by_name[spec.name] for spec in specs if not isinstance(spec, Custom)]
    called = {key for column in known_calls for key in (column.key, *column.other_keys)}
    domains = [(spec, domain) for spec in used.values() for domain in DOMAINS]
    common = Source(
        columns=columns,
        processors=more,
        limits={key: each for key, each in known.items() if key in keys},
        inner_limits={key: each for key, each in known.items() if key not in keys},
        config=config or RunConfig.from_mapping(recipe.run),
        metered=frozenset(spec.key(domain) for spec, domain in domains),
        priced=frozenset(
            spec.key(domain)
            for spec, domain in domains
            if any((spec.input_price, spec.cached_price, spec.cache_write_price))
            or (spec.output_price and domain != "embedding")
        ),
        resources=resources,
        watched=frozenset(
            spec.name
            for spec in specs
            if isinstance(spec, Custom) and (call := by_name[spec.name].call) is not None and call.is_async
        ),
        model_names=_model_names(recipe.models),
        check_models=partial(check_models, used, clients, called),
        recipe=recipe,
        output=recipe.output_stage,
    )
    # Those that the caller passed belong to the dataset at the root.
    parts = tuple(_part(common, stage, more if stage.name == common.output else ()) for stage in resolved)
    if not recipe.stages:
        return parts[0]
    return attrs.evolve(common, processors=tuple(each for part in parts for each in part.processors), parts=parts)


def _part(common: Source, resolved: ResolvedStage, more: Sequence[Processor]) -> Source:
    """The source of one stage."""
    recipe, environment, spec = resolved.recipe, resolved.environment, resolved.stage
    own = (make_processor(each, environment) for each in recipe.processors)
    models = used_models(recipe.columns, environment)
    columns = tuple(column for column in resolved.columns if column is not resolved.inherited.column)

    def fingerprint() -> Mapping[str, Any]:
        found = recipe_fingerprint(recipe, environment, columns=columns, models=models, processors=more)
        return found if spec is None else {**found, "stage": stage_fields(spec)}

    rows_from = None
    if spec is not None and spec.from_ is not None:
        group = spec.group
        rows_from = SourceSpec(
            stage=spec.from_,
            each="" if spec.each is None else str(spec.each),
            by=None if group is None else group.by,
            size=None if group is None else group.size,
            remainder="keep" if group is None else group.remainder,
        )
    outputs = [name for each in resolved.columns for name in (*each.outputs, *each.side_effects)]
    acceptance = make_acceptance(recipe, outputs)
    accept = acceptance.predicate if acceptance is not None and not environment.is_simulated else None
    return attrs.evolve(
        common,
        columns=resolved.columns if accept is None else _decided_early(resolved.columns, recipe.columns, accept),
        processors=(*(Processor(stage=stage, name=label, apply=apply) for stage, label, apply in own), *more),
        retyped=_retyped(recipe.processors, more),
        fingerprint=fingerprint,
        recipe=recipe,
        whole=common.recipe,
        stage=resolved.name,
        rows=None if spec is None else spec.rows,
        inherited=resolved.inherited,
        rows_from=rows_from,
        spec=spec,
        acceptance=acceptance,
    )


def _decided_early(columns: Sequence[Column], specs: Iterable[ColumnSpec], predicate: Predicate) -> tuple[Column, ...]:
    """The columns, with the expressions that decide whether a row is accepted computed row by row.

    For a whole row group they would be known only when all of its rows have what they need.
    """
    producers = {name: each for each in columns for name in (*each.outputs, *each.side_effects)}
    deciding, pending = set[str](), [*predicate.requires]
    while pending:
        column = producers.get(pending.pop())
        if column is not None and column.name not in deciding:
            deciding.add(column.name)
            pending += column.requires
    expressions = {spec.name: spec for spec in specs if isinstance(spec, Expression) and spec.name in deciding}
    return tuple(expressions[each.name].by_cell(each) if each.name in expressions else each for each in columns)


def _retyped(specs: Iterable[ProcessorSpec], more: Iterable[Processor]) -> frozenset[str] | None:
    """The columns to which post-batch processors may give another type; None: any, as a function may."""
    if any(isinstance(each, Processor) and each.stage is Stage.POST_BATCH for each in more):
        return None
    found = set[str]()
    for spec in specs:
        if spec.stage == Stage.POST_BATCH.value:
            names = spec.retypes()
            if names is None:
                return None
            found.update(names)
    return frozenset(found)


def _model_names(specs: Mapping[str, ModelSpec]) -> dict[str, str]:
    """What people call a throttle key: the aliases of its models, with what they do unless that is chat."""
    aliases: dict[str, list[str]] = {}
    for alias, spec in specs.items():
        for domain in DOMAINS:
            aliases.setdefault(spec.key(domain), []).append(alias if domain == "chat" else f"{alias} ({domain})")
    return {key: ", ".join(dict.fromkeys(names)) for key, names in aliases.items()}


def _model_limits(specs: Mapping[str, ModelSpec]) -> dict[str, KeyLimits]:
    """The limits of every key; aliases that share one have the largest of their caps and the lowest of their rates."""
    found: dict[str, KeyLimits] = {}
    for spec in specs.values():
        own = spec.limits()
        for domain in DOMAINS:
            key = spec.key(domain)
            other = found.get(key, own)
            found[key] = KeyLimits(
                max_parallel_requests=max(own.max_parallel_requests, other.max_parallel_requests),
                requests_per_minute=min(
                    filter(None, (own.requests_per_minute, other.requests_per_minute)), default=None
                ),
                tokens_per_minute=min(filter(None, (own.tokens_per_minute, other.tokens_per_minute)), default=None),
                latency_congestion=own.latency_congestion or other.latency_congestion,
            )
    return found
