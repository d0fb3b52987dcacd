"""A dataset as a user describes it, every problem that can be found before it runs, and its fingerprint."""

from __future__ import annotations

import enum
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date, time, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
import polars as pl

from ..checks import is_whole
from ..columns.base import Column
from ..columns.code import is_generator_object, reference_to
from ..columns.dtypes import dtype_text
from ..columns.fields import Shape, column_shapes, field_problems
from ..columns.seed import Seed
from ..columns.spec import Access, ColumnSpec, Environment, ProcessorSpec, make_column
from ..errors import ConfigError, DatasetGenerationError
from ..graph import Kind, check_columns, closest, nearest
from ..models.base import NOT_IN_FINGERPRINT, ModelSpec
from .acceptance import RowRules, rule_problems

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
    """Columns, the models that they use, processors of their rows, and which rows count."""

    columns: tuple[ColumnSpec, ...] = attrs.field(converter=_columns)
    """Specs, or functions with `@seedbed.column`, in any order."""
    models: Mapping[str, ModelSpec] = attrs.field(factory=dict, converter=_models)
    """Models by alias."""
    seed: int = 0
    """Random values are the same for the same seed."""
    processors: tuple[ProcessorSpec, ...] = attrs.field(default=(), converter=tuple)
    """Processors, applied in this order."""
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
        columns: Sequence[object] = self.columns
        processors: Sequence[object] = self.processors
        problems = [
            f"columns[{index}] is {_described(each)}"
            for index, each in enumerate(columns)
            if not isinstance(each, ColumnSpec)
        ]
        problems += [
            f"processors[{index}] is {each!r}, not a processor of a recipe"
            for index, each in enumerate(processors)
            if not isinstance(each, ProcessorSpec)
        ]
        problems += [
            f"models.{alias} is {each!r}, not a model"
            for alias, each in self.models.items()
            if not callable(getattr(each, "problems", None))
        ]
        if not self.columns:
            problems.append("the recipe has no columns")
        if not is_whole(self.seed):
            problems.append(f"seed must be a whole number, not {self.seed!r}")
        if problems:
            raise DatasetGenerationError(problems)

    def environment(self, **more: Any) -> Environment:
        """The environment of its specs; `more` has what columns need to run, such as open clients."""
        columns = {spec.name: spec for spec in self.columns}
        return Environment(
            seed=self.seed, models=self.models, base=self.base, access=self.access, columns=columns, **more
        )

    def resolve(self, environment: Environment) -> tuple[Column, ...]:
        """The engine's columns. Raises one error that lists all problems."""
        columns, problems = self._resolve(environment, {})
        # A model that may not read its file is not checked further: that would open the file.
        in_models = self.access_problems() or [
            f"models.{alias}: {problem}" for alias, model in self.models.items() for problem in model.problems()
        ]
        if in_models or problems:
            raise DatasetGenerationError([*in_models, *problems])
        return tuple(columns)

    def problems(self, environment: Environment, *, unreadable: Mapping[int, str]) -> list[str]:
        """The problems of its columns and processors, a sentence each.

        `unreadable` has the names of columns that are not in `columns`, because their fields are invalid, by position.
        """
        return self._resolve(environment, unreadable)[1]

    def access_problems(self) -> list[str]:
        """Header variables, and paths of its models, that are not allowed; columns check their paths themselves."""
        if self.access is None:
            return []
        declared = {getattr(each, "api_key_env", None) for each in (*self.models.values(), *self.columns)}
        specs: list[tuple[str, object]] = [(f"models.{alias}", model) for alias, model in self.models.items()]
        specs += [(f"columns.{column.name}", column) for column in self.columns]
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
        specs += [(f"columns.{column.name}", column) for column in self.columns]
        return [
            Contact(place=place, url=_shown(url), env=_sent(spec))
            for place, spec in specs
            for url in _call(spec, "urls")
        ]

    def reads_files(self) -> bool:
        """True if it names local files or code, which are looked up below `base`."""
        return any(spec.paths() or spec.code() or getattr(spec, "images", ()) for spec in self.columns)

    def _resolve(self, environment: Environment, unreadable: Mapping[int, str]) -> tuple[list[Column], list[str]]:
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
        shapes = column_shapes(made)
        for index, spec in zip(positions, self.columns, strict=True):
            for field, text in spec.texts().items():
                where = f"column {spec.name!r}, {field}"
                problems += [f"columns[{index}].{field}: {each}" for each in field_problems(text, shapes, where=where)]
        placeholders: list[Column] = []
        if failed:
            # Others may refer to a column that could not be created, and its outputs are unknown: an unknown name is a
            # problem only if it looks like a typo. A seed that was not read may have any column.
            names = _outputs([*made, *map(_placeholder, failed)])
            named = {name for column in made for name in column.requires}
            named |= {name for processor in self.processors for name in processor.names()}
            possible = {name for name in named - set(names) if has_unread_seed or closest(name, names) is None}
            placeholders = [_placeholder(failed[0], *possible), *map(_placeholder, failed[1:])]
        problems += check_columns([*made, *placeholders])
        problems += rule_problems(self, _outputs([*made, *placeholders]), shapes)
        return made, [*problems, *self._processor_problems(made, placeholders, shapes)]

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
    }
    return {key: value for key, value in data.items() if value or key == "seed"}


def _rules(recipe: Recipe, determining: bool) -> dict[str, Any]:
    """The fields about which rows count that differ from their defaults."""
    found: dict[str, Any] = {}
    for field in attrs.fields(RowRules):
        given = getattr(recipe, field.name)
        if given != field.default and not (determining and is_operational(field)):
            # Whole, defaults of its fields included: they determine the data.
            found[field.name] = attrs.asdict(given) if attrs.has(type(given)) else plain(given)
    return found


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
