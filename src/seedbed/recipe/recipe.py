"""A dataset as a user describes it, every problem that can be found before it runs, and its fingerprint."""

from __future__ import annotations

import enum
import hashlib
import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date, time, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
import polars as pl
import pyarrow as pa

from ..checks import is_whole
from ..columns.base import Column
from ..columns.code import is_generator_object, reference_to
from ..columns.dtypes import dtype_text
from ..columns.fields import (
    Shape,
    column_shapes,
    field_problems,
    item_type,
    not_a_list,
    schema_shape,
    type_shape,
)
from ..columns.seed import Seed
from ..columns.spec import Access, ColumnSpec, Environment, ProcessorSpec, make_column
from ..errors import ConfigError, DatasetGenerationError
from ..graph import Kind, check_columns, closest, nearest, topological_order
from ..models.base import NOT_IN_FINGERPRINT, ModelSpec
from .acceptance import RowRules, rule_problems
from .stages import PARENT, RESERVED, ROW, Inherited, K, stage_problems
from .stages import Stage as StageSpec

# Fields that determine how a build runs and not its data, in any spec: the fingerprint omits them, as it does
# those with the metadata `NOT_IN_FINGERPRINT`.
_OPERATIONAL = frozenset(
    {
        *("api_key_env", "base_url", "headers", "max_parallel_requests"),
        *("input_price", "output_price", "cached_price", "cache_write_price"),
        *("latency_congestion", "requests_per_minute", "timeout", "tokens_per_minute"),
    }
)


@attrs.frozen(kw_only=True)
class Contact:
    """A server that a recipe contacts, and the environment variables that are sent to it."""

    place: str
    url: str
    env: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.place}: {self.url}" + (f" (is sent {', '.join(self.env)})" if self.env else "")


def _columns(value: Iterable[ColumnSpec] | ColumnSpec) -> tuple[ColumnSpec, ...]:
    return (value,) if isinstance(value, ColumnSpec) else tuple(value)


# mypy does not infer what `tuple` returns as a converter.
def _processors(value: Iterable[ProcessorSpec]) -> tuple[ProcessorSpec, ...]:
    return tuple(value)


def _stages(value: Iterable[StageSpec]) -> tuple[StageSpec, ...]:
    return tuple(value)


def _models(value: Mapping[str, ModelSpec]) -> dict[str, ModelSpec]:
    return dict(value)


def _run(value: Any) -> dict[str, Any]:
    """Options by name; of a `RunConfig` those that differ from their defaults."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return dict(value)
    if attrs.has(type(value)):
        fields = attrs.fields(type(value))
        return {each.name: getattr(value, each.name) for each in fields if getattr(value, each.name) != each.default}
    raise ConfigError(f"run must be a mapping of options or a RunConfig, not {value!r}")


@attrs.frozen(kw_only=True)
class Recipe(RowRules):
    """Columns, the models that they use, processors and which rows count; or several stages that have these."""

    columns: tuple[ColumnSpec, ...] = attrs.field(default=(), converter=_columns)
    """Specs, or functions with `@seedbed.column`, in any order."""
    models: Mapping[str, ModelSpec] = attrs.field(factory=dict, converter=_models)
    """Models by alias."""
    seed: int = 0
    """Random values are the same for the same seed."""
    processors: tuple[ProcessorSpec, ...] = attrs.field(default=(), converter=_processors)
    """Processors, applied in this order."""
    stages: tuple[StageSpec, ...] = attrs.field(default=(), converter=_stages)
    """In place of `columns` and `processors`: stages, which may take their rows from others."""
    output: str | None = None
    """The stage that is the dataset at the root of the directory; by default the last one."""
    run: Mapping[str, Any] = attrs.field(default=None, converter=_run)
    """Options of `RunConfig`; they determine how a build runs and not its data."""
    name: str | None = None
    """A name for readers."""
    base: Path = attrs.field(default=Path(), converter=Path, eq=False)
    """The folder where relative paths begin."""
    access: Access | None = attrs.field(default=None, eq=False, repr=False)
    """What a recipe from a file may read; one that is written in Python has none."""

    def __attrs_post_init__(self) -> None:
        """Reject parts of other types; `problems` validates the parts themselves."""
        stages: Sequence[object] = self.stages
        problems = [
            f"stages[{index}] is {each!r}, not a stage"
            for index, each in enumerate(stages)
            if not isinstance(each, StageSpec)
        ]
        parts: list[tuple[str, Recipe | StageSpec]] = [("", self)]
        parts += [(f"stages[{at}].", each) for at, each in enumerate(self.stages) if isinstance(each, StageSpec)]
        for place, part in parts:
            columns: Sequence[object] = part.columns
            processors: Sequence[object] = part.processors
            problems += [
                f"{place}columns[{index}] is {_described(each)}"
                for index, each in enumerate(columns)
                if not isinstance(each, ColumnSpec)
            ]
            problems += [
                f"{place}processors[{index}] is {each!r}, not a processor of a recipe"
                for index, each in enumerate(processors)
                if not isinstance(each, ProcessorSpec)
            ]
        problems += [
            f"models.{alias} is {each!r}, not a model"
            for alias, each in self.models.items()
            if not callable(getattr(each, "problems", None))
        ]
        if not self.columns and not self.stages:
            problems.append("the recipe has no columns")
        if self.stages and (self.columns or self.processors or self.limits_rows):
            problems.append("columns, processors and rules about rows of a recipe with stages belong to its stages")
        if self.output is not None and not self.stages:
            problems.append("output names a stage, and the recipe has no stages")
        if not is_whole(self.seed):
            problems.append(f"seed must be a whole number, not {self.seed!r}")
        if problems:
            raise DatasetGenerationError(problems)

    @property
    def all_columns(self) -> tuple[ColumnSpec, ...]:
        """The columns of all stages."""
        return tuple(column for stage in self.stages for column in stage.columns) if self.stages else self.columns

    @property
    def all_processors(self) -> tuple[ProcessorSpec, ...]:
        """The processors of all stages."""
        return tuple(each for stage in self.stages for each in stage.processors) if self.stages else self.processors

    @property
    def output_stage(self) -> str:
        """The name of the stage at the root of the dataset, empty without stages."""
        return (self.output or self.stages[-1].name) if self.stages else ""

    def of_stage(self, stage: StageSpec) -> Recipe:
        """The recipe of one stage, for itself."""
        rules: dict[str, Any] = {field.name: getattr(stage, field.name) for field in attrs.fields(RowRules)}
        return attrs.evolve(self, columns=stage.columns, processors=stage.processors, stages=(), output=None, **rules)

    def environment(self, **more: Any) -> Environment:
        """The environment of its specs; `more` has what columns need to run, such as open clients."""
        columns = {spec.name: spec for spec in self.columns}
        return Environment(
            seed=self.seed, models=self.models, base=self.base, access=self.access, columns=columns, **more
        )

    def resolve(self, environment: Environment) -> tuple[Column, ...]:
        """The engine's columns, of all stages. Raises one error that lists all problems."""
        return tuple(column for stage in self.resolve_stages(environment) for column in stage.columns)

    def resolve_stages(self, environment: Environment) -> tuple[ResolvedStage, ...]:
        """Its stages with the engine's columns, each after the one that its rows come from; without stages it is one.

        Raises one error that lists all problems.
        """
        resolved, problems = self._resolve_stages(environment, {})
        # A model that may not read its file is not checked further: that would open the file.
        in_models = self.access_problems() or [
            f"models.{alias}: {problem}" for alias, model in self.models.items() for problem in model.problems()
        ]
        if in_models or problems:
            raise DatasetGenerationError([*in_models, *problems])
        return resolved

    def problems(
        self,
        environment: Environment,
        *,
        unreadable: Mapping[int, Mapping[int, str]],
        invalid: Container[int] = (),
    ) -> list[str]:
        """The problems of its columns and processors, a sentence each.

        `unreadable` has the names of columns that are not in `columns`, because their fields are invalid, by position;
        by the position of their stage, which is 0 without stages. Stages at `invalid` positions lack fields.
        """
        return self._resolve_stages(environment, unreadable, invalid)[1]

    def _resolve_stages(
        self, environment: Environment, unreadable: Mapping[int, Mapping[int, str]], invalid: Container[int] = ()
    ) -> tuple[tuple[ResolvedStage, ...], list[str]]:
        if not self.stages:
            columns, problems, _ = self._resolve(environment, unreadable.get(0, {}), None, is_open=False)
            return (ResolvedStage(recipe=self, environment=environment, columns=tuple(columns)),), problems
        problems = stage_problems(self.stages, self.output, invalid=invalid)
        parents = {stage.from_ for stage in self.stages}
        found: dict[str, _Visible] = {}
        resolved: list[ResolvedStage] = []
        owners: dict[str, str] = {}  # of all outputs so far
        for at, stage in _in_order(self.stages):
            parent = found.get(stage.from_ or "")
            # What an invalid stage would hand on is not known; neither are the columns that it may have.
            is_open = at in invalid or any(each.startswith(f"stages[{at}].") for each in problems)
            is_open = is_open or (stage.from_ is not None and (parent is None or parent.is_open))
            problems += [f"stages[{at}].{each}" for each in _intake_problems(stage, parent)]
            if not stage.columns:
                if not unreadable.get(at):
                    problems.append(f"stages[{at}].columns: the stage has no columns")
                found[stage.name] = _Visible.of(stage, (), Inherited(), parent, is_open=True)
                continue
            recipe = self.of_stage(stage)
            own = attrs.evolve(environment, columns=recipe.environment().columns)
            inherited = _inherit(stage, parent, is_parent=stage.name in parents)
            clashes = _clashes(stage, inherited, owners)
            problems += [f"stages[{at}].{each}" for each in clashes.values()]
            usable, is_open = inherited.without(clashes), is_open or bool(clashes)
            columns, more, is_unknown = recipe._resolve(  # noqa: SLF001  of this class
                own,
                unreadable.get(at, {}),
                usable.column,
                # Processors see what its parts hold.
                stored=[each for each in [usable.only(()).column] if each is not None],
                is_open=is_open,
            )
            problems += [f"stages[{at}]{'.' if _FIELD.match(each) else ': '}{each}" for each in more]
            owners |= {name: stage.name for name in _outputs(columns) if name not in owners}
            found[stage.name] = _Visible.of(stage, columns, inherited, parent, is_open=is_open or is_unknown)
            used = inherited.only(name for column in columns for name in column.requires)
            everything = columns if used.column is None else [used.column, *columns]
            resolved.append(
                ResolvedStage(recipe=recipe, environment=own, columns=tuple(everything), stage=stage, inherited=used)
            )
        return tuple(resolved), problems

    def access_problems(self) -> list[str]:
        """Header variables, and paths of its models, that are not allowed; columns check their paths themselves."""
        if self.access is None:
            return []
        declared = {getattr(each, "api_key_env", None) for each in (*self.models.values(), *self.all_columns)}
        specs: list[tuple[str, object]] = [(f"models.{alias}", model) for alias, model in self.models.items()]
        specs += [(f"columns.{column.name}", column) for column in self.all_columns]
        problems = [
            f"{place}: headers send the environment variable {name}; to allow it, pass --allow-env {name}"
            for place, spec in specs
            for name in getattr(spec, "header_env", ())
            if name not in self.access.grants.env and name not in declared
        ]
        for alias, model in self.models.items():
            for path in _call(model, "paths"):
                try:
                    self.access.check_path(Path(path), f"models.{alias}")
                except ConfigError as error:
                    problems.append(str(error))
        return problems

    def contacts(self) -> list[Contact]:
        """The servers that it contacts: models, remote validation and remote seeds."""
        specs: list[tuple[str, object]] = [(f"models.{alias}", model) for alias, model in self.models.items()]
        specs += [(f"columns.{column.name}", column) for column in self.all_columns]
        return [
            Contact(place=place, url=_shown(url), env=_sent(spec))
            for place, spec in specs
            for url in _call(spec, "urls")
        ]

    def reads_files(self) -> bool:
        """True if it names local files or code, which are looked up below `base`."""
        return any(spec.paths() or spec.code() or getattr(spec, "images", ()) for spec in self.all_columns)

    def _resolve(
        self,
        environment: Environment,
        unreadable: Mapping[int, str],
        inherited: Column | None,
        *,
        stored: Sequence[Column] = (),
        is_open: bool,
    ) -> tuple[list[Column], list[str], bool]:
        """The engine's columns of a recipe without stages, its problems, and whether it may have other columns too.

        `inherited` has the columns of other stages, and `stored` those of them that its parts hold; with `is_open`
        there may be more.
        """
        made: list[Column] = []
        problems: list[str] = []
        failed = list(unreadable.values())
        environment = attrs.evolve(environment, columns={**environment.columns, **dict.fromkeys(failed)})
        has_unread_seed = False
        positions = [index for index in range(len(self.columns) + len(unreadable)) if index not in unreadable]
        for index, spec in zip(positions, self.columns, strict=True):
            try:
                if unknown := [alias for alias in spec.aliases() if alias not in self.models]:
                    raise DatasetGenerationError(
                        f"{spec.error_prefix}model {alias!r} is not in models{nearest(alias, self.models)}"
                        for alias in unknown
                    )
                # The rows of a file are read in the same order again.
                own = environment if isinstance(spec, Seed) else environment.of_column(spec.name)
                made.append(make_column(spec, own))
                continue
            except DatasetGenerationError as error:
                found = error.problems
            except ConfigError as error:
                found = (str(error),)
            except (RecursionError, MemoryError, ArithmeticError) as error:  # too deep or too large for a library
                found = (f"column {spec.name!r}: {type(error).__name__}: {error}",)
            problems += [f"columns[{index}]: {problem}" for problem in found]
            failed.append(spec.name)
            has_unread_seed = has_unread_seed or isinstance(spec, Seed)
        problems += [column.problem for column in made if column.problem is not None]
        known = made if inherited is None else [inherited, *made]
        shapes = column_shapes(known)
        for index, spec in zip(positions, self.columns, strict=True):
            visible = {**shapes, **spec.local_shapes()}
            for field, text in spec.texts().items():
                where = f"column {spec.name!r}, {field}"
                problems += [f"columns[{index}].{field}: {each}" for each in field_problems(text, visible, where=where)]
        placeholders: list[Column] = []
        if failed or is_open:
            # Others may refer to a column that could not be created, and its outputs are unknown: an unknown name is a
            # problem only if it looks like a typo. A seed that was not read may have any column.
            names = _outputs([*known, *map(_placeholder, failed)])
            named = {name for column in made for name in column.requires}
            named |= {name for processor in self.processors for name in processor.names()}
            is_any = has_unread_seed or is_open
            possible = {name for name in named - set(names) if is_any or closest(name, names) is None}
            first, *others = failed or [""]
            placeholders = [_placeholder(first, *possible), *map(_placeholder, others)]
        problems += check_columns([*known, *placeholders])
        problems += rule_problems(self, _outputs([*known, *placeholders]), shapes)
        problems += self._processor_problems([*made, *stored], placeholders, shapes)
        return made, problems, bool(placeholders)

    def _processor_problems(
        self, made: Sequence[Column], placeholders: Sequence[Column], shapes: Mapping[str, Shape]
    ) -> list[str]:
        problems: list[str] = []
        everything = _outputs([*made, *placeholders])
        scratch = _outputs([*(column for column in made if column.kind is Kind.FROM_SCRATCH), *placeholders])
        for stages, columns in ((("pre_batch",), scratch), (("post_batch", "after_generation"), everything)):
            seen: Sequence[str] = columns
            known = shapes
            listed = [
                (index, each) for stage in stages for index, each in enumerate(self.processors) if each.stage == stage
            ]
            for index, processor in listed:
                found = [*processor.problems(seen), *processor.field_problems(known)]
                problems += [f"processors[{index}]: {problem}" for problem in found]
                left = processor.columns_after(seen)
                if left is None:  # later processors cannot be checked
                    break
                if seen and not left:
                    problems.append(f"processors[{index}]: {processor.label}: removes the last column")
                seen, known = left, processor.shapes_after(known)
        return problems


@attrs.frozen(kw_only=True)
class ResolvedStage:
    """A stage with the engine's columns; that of a recipe without stages has no `stage` and no name."""

    recipe: Recipe
    environment: Environment
    columns: tuple[Column, ...]
    stage: StageSpec | None = None
    inherited: Inherited = attrs.field(factory=Inherited)

    @property
    def name(self) -> str:
        return "" if self.stage is None else self.stage.name


# The start of a problem that names a field of its recipe.
_FIELD = re.compile(r"(columns|processors)\[|(accept|unique|near_duplicates|max_candidates|on_exhausted)\b")


def _in_order(stages: Sequence[StageSpec]) -> list[tuple[int, StageSpec]]:
    """The stages with their positions, each after the one that its rows come from; those of a cycle last."""
    at = {stage.name: index for index, stage in enumerate(stages)}
    order = topological_order(
        [[at[stage.from_]] if stage.from_ in at and stage.from_ != stage.name else [] for stage in stages]
    )
    return [(index, stages[index]) for index in (*order, *sorted(set(range(len(stages))) - set(order)))]


@attrs.frozen(kw_only=True)
class _Visible:
    """The columns that a stage hands on to those that take its rows, each with the stage that stores it."""

    stage: str
    owners: Mapping[str, str]
    dtypes: Mapping[str, Any]
    schemas: Mapping[str, Mapping[str, Any]]
    is_open: bool

    @classmethod
    def of(
        cls,
        stage: StageSpec,
        columns: Sequence[Column],
        inherited: Inherited,
        parent: _Visible | None,
        *,
        is_open: bool,
    ) -> _Visible:
        given = [] if inherited.column is None else [inherited.column]
        owners = {name: stage.name for name in _outputs([*given, *columns]) if name not in RESERVED}
        if parent is not None and stage.group is None:
            owners = {**parent.owners, **{name: each for name, each in owners.items() if name not in inherited.owners}}
        dtypes = {name: dtype for column in (*given, *columns) for name, dtype in column.dtypes().items()}
        schemas = {name: schema for column in (*given, *columns) for name, schema in column.schemas.items()}
        return cls(stage=stage.name, owners=owners, dtypes=dtypes, schemas=schemas, is_open=is_open)

    @property
    def shapes(self) -> dict[str, Shape]:
        """What is known of the values of its columns."""
        return {name: type_shape(dtype) for name, dtype in self.dtypes.items()} | {
            name: schema_shape(schema) for name, schema in self.schemas.items()
        }


def _intake_problems(stage: StageSpec, parent: _Visible | None) -> Iterator[str]:
    """What is wrong with the columns of another stage that decide which rows this one has."""
    if parent is None:
        return
    field = "each" if stage.group is None else "group.by"
    for name in stage.needs:
        if name not in parent.owners and not parent.is_open:
            yield f"{field}: stage {parent.stage!r} has no column {name!r}{nearest(name, parent.owners)}"
    if isinstance(stage.each, str) and set(stage.needs) <= parent.owners.keys():
        condition = stage.condition
        yield from (f"each: {each}" for each in field_problems(condition, parent.shapes, where=repr(stage.each)))
        if problem := not_a_list(condition, parent.shapes):
            yield f"each: {stage.each!r} is {problem} and not a list"


def _inherit(stage: StageSpec, parent: _Visible | None, *, is_parent: bool) -> Inherited:
    """What the rows of a stage get from others, and their numbers."""
    outputs: dict[str, Any] = {ROW: pa.int64()} if is_parent else {}
    schemas: dict[str, Mapping[str, Any]] = {}
    owners: dict[str, str] = {}
    if stage.group is not None:
        outputs |= {PARENT: pa.large_list(pa.int64())}
        outputs |= {name: parent.dtypes.get(name) if parent is not None else None for name in stage.group.by}
        outputs |= {str(stage.from_): None}
    elif stage.from_ is not None:
        outputs |= {PARENT: pa.int64(), K: pa.int64()}
        if stage.item_column is not None:
            dtype = parent.dtypes.get(stage.condition.text.strip("{} ")) if parent is not None else None
            outputs[stage.item_column] = item_type(dtype)
        if parent is not None:
            owners = {name: owner for name, owner in parent.owners.items() if name not in outputs}
            outputs |= {name: parent.dtypes.get(name) for name in owners}
            schemas = {name: schema for name, schema in parent.schemas.items() if name in owners}
    if not outputs:
        return Inherited()
    column = Column(
        next(iter(outputs)),
        _handed_over,
        kind=Kind.FROM_SCRATCH,
        outputs=tuple(outputs),
        dtype={name: dtype for name, dtype in outputs.items() if dtype is not None},
        schemas=schemas,
    )
    return Inherited(column=column, owners=owners)


def _handed_over(rows: range) -> Any:  # noqa: ARG001  it stands for the values in the graph
    raise AssertionError("rows get their numbers and the values of their parents when they are admitted")


def _clashes(stage: StageSpec, inherited: Inherited, owners: Mapping[str, str]) -> dict[str, str]:
    """Names that more than one column of the recipe would have, each with the problem."""
    given = () if inherited.column is None else inherited.column.outputs
    problems: dict[str, str] = {}
    for at, spec in enumerate(stage.columns):
        name = spec.name
        if name in RESERVED:
            problems[name] = f"columns[{at}]: column {name!r}: this name is for a column of seedbed's own"
        elif name in owners:
            problems[name] = (
                f"columns[{at}]: column {name!r} is also a column of stage {owners[name]!r}; "
                "a name belongs to one column of one stage"
            )
        elif name in given:
            of = "with the item of each; 'item' names it otherwise" if name == stage.item_column else "of the group"
            problems[name] = f"columns[{at}]: column {name!r} is also the column {of}"
    if stage.item_column is not None and stage.item_column in owners:
        problems[stage.item_column] = (
            f"item: {stage.item_column!r} is also a column of stage {owners[stage.item_column]!r}; "
            "name the column with the item otherwise, as in item: question"
        )
    return problems


def _outputs(columns: Iterable[Column]) -> list[str]:
    return [name for column in columns for name in (*column.outputs, *column.side_effects)]


def _placeholder(name: str, *outputs: str) -> Column:
    """A column in the graph in place of one that could not be created, with outputs that it may have."""
    side_effects = (f"{name}__trace", f"{name}__reasoning_content", *outputs)
    return Column(name, lambda: None, requires=(), side_effects=side_effects)


def _call(spec: object, method: str) -> tuple[str, ...]:
    """The result of a method of a spec; user-defined models need not have it."""
    found = getattr(spec, method, None)
    return tuple(found()) if callable(found) else ()


def _sent(spec: object) -> tuple[str, ...]:
    """The environment variables that a spec sends."""
    key = getattr(spec, "api_key_env", None)
    return tuple(dict.fromkeys([*([key] if key else []), *getattr(spec, "header_env", ())]))


def _shown(url: str) -> str:
    """A URL without its password and its query, which may hold a signature: it ends up in logs."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=host, query="…" if parts.query else "", fragment="").geturl()


def _described(value: object) -> str:
    name = getattr(value, "__name__", None)
    if callable(value) and name is not None and not isinstance(value, type):
        return f"the plain function {name!r}; decorate it with @seedbed.column"
    return f"{value!r}, not a column of a recipe"


def fingerprint(
    recipe: Recipe, *, models: Iterable[str] | None = None, schemas: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The fields that determine the data, as JSON values: recipes with equal ones generate parts of one dataset.

    `models` are the aliases that columns use (default: all), `schemas` the JSON Schemas of columns that refer to one.
    """
    data = recipe_fields(recipe, determining=True)
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


def recipe_fields(recipe: Recipe, *, determining: bool) -> dict[str, Any]:
    """The fields that differ from their defaults, as JSON values: all, or with `determining` those of the fingerprint.

    The fingerprint has the fields that determine the data; the code of functions (`code_fields`) and the rows of files
    are compared on their own.
    """

    def typed(spec: Any) -> dict[str, Any]:
        return {"type": type(spec).type, **_fields(spec, determining)}

    data: dict[str, Any] = {
        "name": recipe.name,
        "seed": recipe.seed,
        "models": {alias: typed(model) for alias, model in recipe.models.items()},
        "columns": [typed(spec) for spec in recipe.columns],
        "processors": [typed(spec) for spec in recipe.processors],
        **_rules(recipe, determining),
        "stages": [
            {
                **stage_fields(stage),
                **({} if stage.rows is None else {"rows": stage.rows}),
                "columns": [typed(spec) for spec in stage.columns],
                **({"processors": [typed(spec) for spec in stage.processors]} if stage.processors else {}),
                **_rules(stage, determining),
            }
            for stage in recipe.stages
        ],
        "output": recipe.output,
    }
    return {key: value for key, value in data.items() if value or key == "seed"}


def _rules(recipe: RowRules, determining: bool) -> dict[str, Any]:
    """The fields about which rows count that differ from their defaults."""
    found: dict[str, Any] = {}
    for field in attrs.fields(RowRules):
        given = getattr(recipe, field.name)
        if given != field.default and not (determining and is_operational(field)):
            # Whole, defaults of its fields included: they determine the data.
            found[field.name] = attrs.asdict(given) if attrs.has(type(given)) else plain(given)
    return found


def stage_fields(stage: StageSpec) -> dict[str, Any]:
    """The name of a stage and where its rows come from, as JSON values."""
    named = {"name": stage.name, "from": stage.from_, "each": stage.each, "item": stage.item}
    found = {name: value for name, value in named.items() if value is not None}
    return found if stage.group is None else {**found, "group": _fields(stage.group, determining=False)}


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
