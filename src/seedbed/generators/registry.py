"""From a recipe's spec to the engine's column: one maker per spec class, ours and those of plug-ins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import attrs

from ..errors import ConfigError
from ..graph import nearest
from ..recipe.code import import_object
from ..recipe.load import Vocabulary
from ..recipe.spec import ColumnSpec, skip_rule
from .plugins import load_own, load_plugins

if TYPE_CHECKING:
    import os

    from ..models.base import ModelClient, ModelSpec
    from ..models.http import HttpClient
    from ..recipe.access import Access
    from ..recipe.processors import ProcessorSpec
    from ..recipe.recipe import Recipe
    from .column import Column


def _no_client(alias: str) -> NoReturn:
    raise ConfigError(f"the client of model {alias!r} is open only while a build runs")


def _no_http() -> NoReturn:
    raise ConfigError("there are connections only while a build runs")


@attrs.frozen(kw_only=True)
class Environment:
    """What a maker may need besides the spec.

    `client` gives the open client of an alias while a build runs (not before), `http` connections to any other server.
    `base` is where relative paths of a recipe file begin; `artifacts` is the dataset's directory, where files such as
    images go (None in a preview: then bytes stay in the cell). `allow_code` is whether the user lets the recipe import
    code, `access` what a recipe from a file may reach (None: anything). Makers open paths of a recipe as `path` returns
    them.
    """

    seed: int = 0
    models: Mapping[str, ModelSpec] = attrs.field(factory=dict)
    client: Callable[[str], ModelClient] = _no_client
    http: Callable[[], HttpClient] = _no_http
    base: Path = Path()
    artifacts: Path | None = None
    allow_code: bool = False
    access: Access | None = None

    def path(self, given: str | os.PathLike[str], where: str) -> Path:
        """Where a path of the recipe leads. Raises `ConfigError` if the recipe may not read there."""
        path = self.base / Path(given).expanduser()
        if self.access is not None:
            self.access.check_path(path, where)
        return path

    def import_object(self, reference: str, where: str) -> Any:
        """What `module:name` is, in a module beside the recipe or in an installed one. Raises `ConfigError`."""
        return import_object(reference, base=self.path("", where), where=where)

    def model(self, alias: str) -> ModelSpec:
        """The model of an alias. Raises `ConfigError` for one that the recipe does not have."""
        if alias not in self.models:
            raise ConfigError(f"model {alias!r} is not in models{nearest(alias, self.models)}")
        return self.models[alias]


Maker = Callable[[Any, Environment], "Column"]
M = TypeVar("M", bound=Maker)
# A processor's stage as the engine names it, its label, and its function from frame to frame.
Processing = tuple[str, str, Callable[[Any], Any]]
ProcessorMaker = Callable[[Any, Environment], Callable[[Any], Any]]
PM = TypeVar("PM", bound=ProcessorMaker)

# Changed by `maker` and `processor_maker` only, while modules are imported.
_makers: dict[type, Maker] = {}
_types: dict[str, type] = {}
_processor_makers: dict[type, ProcessorMaker] = {}
_processor_types: dict[str, type] = {}


def maker(spec: type[ColumnSpec]) -> Callable[[M], M]:
    """Register the function that makes a column of a spec: `make(spec, environment) -> Column`."""

    def register(make: M) -> M:
        _register(spec, _types)
        _makers[spec] = make
        return make

    return register


def processor_maker(spec: type[ProcessorSpec]) -> Callable[[PM], PM]:
    """Register the function that makes a processor of a spec: `make(spec, environment) -> function of a frame`."""

    def register(make: PM) -> PM:
        _register(spec, _processor_types)
        _processor_makers[spec] = make
        return make

    return register


def _register(spec: type, types: dict[str, type]) -> None:
    name: str = spec.type  # type: ignore[attr-defined]  # every spec has one
    other = types.get(name)
    if other is not None and other is not spec:
        raise ConfigError(f"type {name!r} of {_full(spec)} is there already, from {_full(other)}")
    types[name] = spec


def _full(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


K = TypeVar("K")


def _maker_of(spec: type, makers: Mapping[type, K]) -> K | None:
    """What is registered for a spec class; a plug-in that is broken matters only to who needs one."""
    for load in (load_own, load_plugins):
        if spec in makers:
            break
        load()
    return makers.get(spec)


def make_column(spec: ColumnSpec, environment: Environment) -> Column:
    """The engine's column for a spec. Raises `ConfigError` (or `DatasetGenerationError`) for a spec that is wrong."""
    make = _maker_of(type(spec), _makers)
    if make is None:
        raise ConfigError(f"column {spec.name!r}: nothing is registered that makes a column of {_full(type(spec))}")
    column = make(spec, environment)
    # What all columns have in common; a maker may have said more about the type and the timeout than the spec does.
    return attrs.evolve(
        column,
        skip=skip_rule(spec),
        skip_policy=spec.skip_policy,
        timeout=spec.timeout if column.timeout is None else column.timeout,
        dtype=spec.dtype if column.dtype is None else column.dtype,
    )


def make_processor(spec: ProcessorSpec, environment: Environment) -> Processing:
    """The stage, label and function of a processor."""
    make = _maker_of(type(spec), _processor_makers)
    if make is None:
        raise ConfigError(f"{spec.label}: nothing is registered that makes a processor of {_full(type(spec))}")
    return spec.engine_stage, spec.label, make(spec, environment)


def spec_types() -> Mapping[str, type]:
    """The spec class of each type name of a column that a recipe file may use."""
    load_plugins()
    return dict(_types)


def processor_types() -> Mapping[str, type]:
    """The spec class of each type name of a processor that a recipe file may use."""
    load_plugins()
    return dict(_processor_types)


def planning_environment(recipe: Recipe, *, allow_code: bool = False) -> Environment:
    """What makers need to make the columns of a recipe that is looked at and not run: everything but clients."""
    models: Any = recipe.models  # whoever made the recipe gave specs
    return Environment(seed=recipe.seed, models=models, base=recipe.base, allow_code=allow_code, access=recipe.access)


def vocabulary(*, models: Mapping[str, type], run: type | None = None, allow_code: bool = False) -> Vocabulary:
    """Everything that a recipe file may be written with; model types and the class of run options are passed in."""

    def make(recipe: Recipe) -> Callable[[ColumnSpec], Column]:
        environment = planning_environment(recipe, allow_code=allow_code)
        return lambda spec: make_column(spec, environment)

    return Vocabulary(columns=spec_types(), models=models, processors=processor_types(), run=run, make=make)
