"""Base classes of specs, the environment that turns specs into columns, the access of recipe files, and plug-ins.

A file may come from someone else, so it reads below its own folder only, unless the user grants more. A recipe that is
written in Python has no `Access` and is not restricted: it is the user's own code.
"""

from __future__ import annotations

import functools
import importlib
import shlex
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import attrs

from .. import checks
from ..errors import ConfigError
from ..graph import Stage, name_problem, nearest
from ..models.distributions import stable_seed
from .code import import_object
from .dtypes import read_dtype
from .fields import Reference
from .templates import Condition, SkipRule, compile_condition

if TYPE_CHECKING:
    import os

    from ..models.base import Dedupe, ModelClient, ModelSpec
    from ..models.http import HttpClient
    from ..models.mcp import Address, OpenServer
    from .base import CellContext, Column, Model
    from .fields import Shape, Text
    from .tool_sources import MCPServer, ToolSource


# The filesystems of fsspec that a recipe file may name: reviewed ones, which cannot open local files as `file`, `zip`
# and `simplecache` can.
REMOTE_PROTOCOLS = frozenset(
    "abfs abfss adl az ftp gcs gs hdfs hf http https memory s3 s3a sftp webhdfs".split()  # noqa: SIM905  easier to read
)


def _paths(value: Iterable[Any]) -> tuple[Path, ...]:
    return tuple(Path(each).expanduser().absolute() for each in value)


def _names(value: Iterable[str]) -> frozenset[str]:
    return frozenset(value)


@attrs.frozen(kw_only=True)
class Grants:
    """The permissions of a recipe file: `--allow-code`, `--allow-path` and `--allow-env`."""

    code: bool = False
    paths: tuple[Path, ...] = attrs.field(default=(), converter=_paths)
    env: frozenset[str] = attrs.field(default=frozenset(), converter=_names)

    def options(self) -> list[str]:
        """The options of the command line that grant this."""
        return [
            *(["--allow-code"] if self.code else []),
            *(f"--allow-path {shlex.quote(str(path))}" for path in self.paths),
            *(f"--allow-env {name}" for name in sorted(self.env)),
        ]


@attrs.frozen(kw_only=True)
class Access:
    """The access of one recipe file: to files below its folder, and by what the user grants."""

    folder: Path
    grants: Grants = Grants()

    def allows(self, path: Path) -> bool:
        """True if the recipe may read a path; symbolic links are resolved."""
        found = path.resolve()
        return any(found.is_relative_to(allowed.resolve()) for allowed in (self.folder, *self.grants.paths))

    def check_path(self, path: Path, where: str) -> None:
        """Raise `ConfigError` for a path that the recipe may not read, with the option that would allow it."""
        if self.allows(path):
            return
        found = path.resolve()
        folder = shlex.quote(str(found if found.is_dir() else found.parent))
        raise ConfigError(
            f"{where}: {str(found)!r} is outside of the recipe's folder {str(self.folder.resolve())!r}; "
            f"to allow it, pass --allow-path {folder}"
        )

    def check_protocol(self, protocol: str, where: str) -> None:
        """Raise `ConfigError` for a filesystem that might open local files."""
        if protocol not in REMOTE_PROTOCOLS:
            known = ", ".join(sorted(REMOTE_PROTOCOLS))
            raise ConfigError(f"{where}: a recipe file may not use the protocol {protocol!r}, only {known}")

    def granting(self, paths: Iterable[Path]) -> Access:
        """A copy with more paths, such as one from the command line."""
        return attrs.evolve(self, grants=attrs.evolve(self.grants, paths=(*self.grants.paths, *paths)))


@attrs.frozen(kw_only=True)
class Environment:
    """The inputs of `to_column` besides the spec.

    The engine fills `clients`, by alias, `servers`, MCP servers by their addresses, and `connections`, for any
    other server, only while a build runs. Relative paths of a recipe file start at `base`. `artifacts` is the dataset's
    directory, to which files such as images are written (None in a preview: then cells hold the bytes). `access` is
    what a recipe from a file may reach (None: anything). Specs open only paths that `path` returned. `columns` are the
    specs of the recipe by name, None for one whose fields are invalid. In a simulation, whose answers are placeholders,
    `is_simulated` is true.
    """

    seed: int = 0
    models: Mapping[str, ModelSpec] = attrs.field(factory=dict)
    clients: Mapping[str, ModelClient] = attrs.field(factory=dict)
    connections: Sequence[HttpClient] = ()
    servers: Mapping[Address, OpenServer] = attrs.field(factory=dict)
    base: Path = Path()
    artifacts: Path | None = None
    access: Access | None = None
    columns: Mapping[str, ColumnSpec | None] = attrs.field(factory=dict)
    is_simulated: bool = False
    # How often a column was redone: each time its random values are others.
    draws: Mapping[str, int] = attrs.field(factory=dict)

    def of_column(self, name: str) -> Environment:
        """The environment of one column."""
        draw = self.draws.get(name, 0)
        return attrs.evolve(self, seed=stable_seed(self.seed, "redone", draw)) if draw else self

    @property
    def allow_code(self) -> bool:
        """True if the recipe may import code: one from a file needs a grant, one in Python none."""
        return self.access is None or self.access.grants.code

    def client(self, alias: str) -> ModelClient:
        """The open client of an alias. Raises `ConfigError` if no build runs."""
        if alias not in self.clients:
            raise ConfigError(f"the client of model {alias!r} is open only while a build runs")
        return self.clients[alias]

    def http(self) -> HttpClient:
        """Connections to other servers. Raises `ConfigError` if no build runs."""
        if not self.connections:
            raise ConfigError("connections are open only while a build runs")
        return self.connections[0]

    def server(self, source: MCPServer) -> OpenServer:
        """The open MCP server of a source of tools. Raises `ConfigError` if no build runs."""
        if source.address not in self.servers:
            raise ConfigError(f"MCP server {str(source.address)!r} is connected only while a build runs")
        return self.servers[source.address]

    def bind(self, context: CellContext, alias: str, dedupe: Dedupe | None = None) -> Model:
        """The model of an alias, for one cell."""
        return context.bind_model(alias, self.model(alias), self.client(alias), seed=self.seed, dedupe=dedupe)

    def path(self, given: str | os.PathLike[str], where: str) -> Path:
        """Resolve a path of the recipe. Raises `ConfigError` if the recipe may not read it."""
        path = self.base / Path(given).expanduser()
        if self.access is not None:
            self.access.check_path(path, where)
        return path

    def import_object(self, reference: str, where: str) -> Any:
        """Import `module:name` from a module beside the recipe or an installed one. Raises `ConfigError`."""
        if not self.allow_code:
            raise ConfigError(f"{where}: {reference!r} is user-defined code, which needs --allow-code")
        return import_object(reference, base=self.path("", where), where=where)

    def model(self, alias: str, error_prefix: str = "") -> ModelSpec:
        """The model of an alias. Raises `ConfigError` if the recipe has none of that name."""
        if alias not in self.models:
            raise ConfigError(f"{error_prefix}model {alias!r} is not in models{nearest(alias, self.models)}")
        return self.models[alias]


@checks.field_check
def _check_name(_: object, __: object, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"a column's name must be text, not {value!r}")
    if problem := name_problem(value):
        raise ConfigError(problem)


@checks.field_check
def _check_skip_when(spec: ColumnSpec, _: object, value: Any) -> None:
    compile_condition(value, where=f"column {spec.name!r}, skip_when")


@attrs.frozen(kw_only=True)
class ColumnSpec:
    """Base of the frozen specs of columns; users write `Category("topic", values=[…])`.

    `type` is the name in a recipe file.
    """

    type: ClassVar[str]

    name: str = attrs.field(kw_only=False, validator=_check_name)
    """The name of the column in the dataset, and of its value in templates and expressions."""
    skip_when: str | None = attrs.field(default=None, validator=checks.optional(_check_skip_when))
    """An expression over other columns: where it is true, the cell is null and nothing is called."""
    skip_policy: str = attrs.field(default="run", validator=checks.one_of("run", "skip"))
    """Where a column that it requires was skipped: `run` with a null, or `skip` this cell too."""
    once_per: tuple[str, ...] = attrs.field(default=(), converter=checks.as_names, validator=checks.names)
    """Columns that make up a key: a cell runs once for each key, and all rows with that key have its value."""
    timeout: float | None = attrs.field(default=None, validator=checks.optional(checks.seconds))
    """How long one attempt at a cell may take."""
    dtype: Annotated[Any, "the name of a type"] = attrs.field(default=None, converter=read_dtype)
    """The type of the values if it should not be inferred: `int`, `list[str]`, `json` for values of any shape, or a
    polars type written as in Python without the `pl.`: `Int32`, `Datetime('us', 'UTC')`,
    `Struct({'name': String, 'marks': List(Int8)})`."""

    @property
    def error_prefix(self) -> str:
        """The start of messages about one of its fields."""
        return f"column {self.name!r}: "

    def aliases(self) -> tuple[str, ...]:
        """The aliases of the models that it calls; by default its field `model`."""
        alias = getattr(self, "model", None)
        return (alias,) if isinstance(alias, str) else ()

    def code(self) -> tuple[str, ...]:
        """The code that it runs, which the user has to allow: `module:name`s, and the commands of MCP servers.

        By default its field `function`, and what its tools run.
        """
        function = getattr(self, "function", None)
        own = (function,) if isinstance(function, str) else ()
        return (*own, *(code for _, source in self.sources() for code in source.code()))

    def paths(self) -> tuple[str, ...]:
        """The local files that it names."""
        return ()

    def urls(self) -> tuple[str, ...]:
        """The URLs that it contacts, which are listed before a run; by default its field `url`, and those of tools."""
        url = getattr(self, "url", None)
        own = (url,) if isinstance(url, str) else ()
        return (*own, *(url for _, source in self.sources() for url in source.urls()))

    @property
    def header_env(self) -> tuple[str, ...]:
        """The environment variables that its tools send in headers."""
        return tuple(name for _, source in self.sources() for name in source.header_env)

    def tool_sources(self) -> Mapping[str, tuple[ToolSource, ...]]:
        """The sources of tools that its models may call, by the field that has them."""
        return {}

    def sources(self) -> Iterator[tuple[str, ToolSource]]:
        """All sources of tools, each with its place in the spec."""
        for field, sources in self.tool_sources().items():
            yield from ((f"{field}[{index}]", source) for index, source in enumerate(sources))

    def to_column(self, environment: Environment) -> Column:  # noqa: ARG002
        """The column that the engine runs. Raises `ConfigError` (or `DatasetGenerationError`) for an invalid spec."""
        raise ConfigError(f"{self.error_prefix}{type(self).__name__} has no method to_column")

    def verifier(self, environment: Environment, column: str) -> Verifier:  # noqa: ARG002
        """How it judges a candidate for a cell of `column`, whose `repair_with` names it. Raises `ConfigError`."""
        raise ConfigError(f"{self.name!r} is a column of type {self.type}, not a validation")

    def texts(self) -> dict[str, Text]:
        """Its compiled templates and expressions, and its references, by field: the check looks for fields in them."""
        values = {field.name: getattr(self, field.name) for field in attrs.fields(type(self))}
        found: dict[str, Text] = {name: value for name, value in values.items() if isinstance(value, Reference)}
        return found if self.skip_when is None else {"skip_when": self._skip_condition(self.skip_when), **found}

    def _skip_condition(self, text: str) -> Condition:
        return compile_condition(text, where=f"column {self.name!r}, skip_when")

    def local_shapes(self) -> Mapping[str, Shape]:
        """The names that its templates and expressions have besides columns, with what is known of them."""
        return {}

    def skip_rule(self) -> SkipRule | None:
        """The compiled `skip_when`."""
        if self.skip_when is None:
            return None
        condition = self._skip_condition(self.skip_when)
        return SkipRule(requires=condition.requires, decide=condition.decide)


@attrs.frozen(kw_only=True)
class Verifier:
    """How a validation judges a candidate for a cell of another column, before that cell has a value.

    `validation` is its name, `requires` are the columns that it reads besides that one, `keys` the throttle keys of its
    calls. `find_error` gets the values of a row, the candidate among them, and returns what is wrong with it, or None.
    """

    validation: str
    requires: tuple[str, ...]
    find_error: Callable[[CellContext, Mapping[str, Any]], Awaitable[str | None]]
    keys: tuple[str, ...] = ()


@checks.field_check
def check_stage(spec: ProcessorSpec, _: object, value: Any) -> None:
    """The name of a stage."""
    try:
        Stage.named(value)
    except ConfigError as error:
        raise ConfigError(f"{spec.error_prefix}{error}") from None


@attrs.frozen(kw_only=True)
class ProcessorSpec:
    """Base of the frozen specs of processors. `type` is the name in a recipe file."""

    type: ClassVar[str]

    stage: Annotated[str, "the name of a stage"] = attrs.field(default="post_batch", validator=check_stage)
    """When it runs: `pre_batch`, on the columns that need no others, before the rest is generated; `post_batch`, on a
    finished row group, before it is written; `after_generation`, on the whole dataset."""
    name: str | None = None
    """Its name in messages and counts; by default its type."""

    @property
    def label(self) -> str:
        """Its name, or its type."""
        return self.name or self.type

    @property
    def error_prefix(self) -> str:
        """The start of messages about one of its fields."""
        return f"{self.label}: "

    def to_function(self, environment: Environment) -> Callable[[Any], Any]:  # noqa: ARG002
        """The function that it applies to a frame."""
        raise ConfigError(f"{self.label}: {type(self).__name__} has no method to_function")

    def needs(self) -> Iterable[str]:
        """The columns that it requires."""
        return ()

    def names(self) -> Iterable[str]:
        """All names that it reads, also of columns that it has added itself."""
        return self.needs()

    def columns_after(self, columns: Sequence[str]) -> Sequence[str] | None:
        """The columns after it; None if they are not known before it runs."""
        return columns

    def field_problems(self, shapes: Mapping[str, Shape]) -> list[str]:  # noqa: ARG002
        """The fields that it names and that no value has, if this is known of the columns before it."""
        return []

    def shapes_after(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:  # noqa: ARG002
        """What is known of the columns after it; by default nothing."""
        return {}

    def retypes(self) -> Iterable[str] | None:
        """The columns that may have another type after it; None, the default, for any."""
        return None

    def problems(self, columns: Sequence[str]) -> list[str]:
        """Its problems if these are the columns before it."""
        return [
            f"{self.label}: unknown column {name!r} at stage {self.stage}{nearest(name, columns)}"
            for name in dict.fromkeys(self.needs())
            if name not in columns
        ]

    def _reject_pre_batch(self, change: str) -> None:
        if self.stage == "pre_batch":
            raise ConfigError(
                f"{self.label}: cannot {change} at stage pre_batch, where other columns still require them; "
                "use post_batch or after_generation"
            )


# The modules of this package that define specs. They are imported when a type is looked up by its name.
_OWN = (
    *("best_of", "conversation", "custom", "distributions", "expression", "judge", "person", "processors"),
    *("sampler", "seed", "structured", "text", "validation"),
)
# An entry point of a plug-in names a module, whose specs are registered, or one spec.
GROUPS = ("seedbed.columns", "seedbed.processors")
# A processor's stage, its label, and its function from frame to frame.
Processing = tuple[str, str, Callable[[Any], Any]]


def make_column(spec: ColumnSpec, environment: Environment) -> Column:
    """The engine's column for a spec. Raises `ConfigError` (or `DatasetGenerationError`) for an invalid spec."""
    column = spec.to_column(environment)
    # Options of all columns: `dtype` overrides the types that `to_column` found.
    dtype = column.dtype
    if spec.dtype is not None:
        declared = spec.dtype if isinstance(spec.dtype, Mapping) else {column.outputs[0]: spec.dtype}
        dtype = {**column.dtypes(), **declared}
    return attrs.evolve(
        column,
        skip=spec.skip_rule(),
        skip_policy=spec.skip_policy,
        timeout=spec.timeout if column.timeout is None else column.timeout,
        once_per=spec.once_per or column.once_per,
        dtype=dtype,
    )


def make_processor(spec: ProcessorSpec, environment: Environment) -> Processing:
    """The stage, label and function of a processor."""
    return spec.stage, spec.label, spec.to_function(environment)


def spec_types() -> Mapping[str, type[ColumnSpec]]:
    """The spec class of each type name of a column that a recipe file may use."""
    return {name: cls for name, cls in _types().items() if issubclass(cls, ColumnSpec)}


def processor_types() -> Mapping[str, type[ProcessorSpec]]:
    """The spec class of each type name of a processor that a recipe file may use."""
    return {name: cls for name, cls in _types().items() if issubclass(cls, ProcessorSpec)}


Spec = type[ColumnSpec] | type[ProcessorSpec]


def _types() -> dict[str, Spec]:
    """Every type by name. Raises one `ConfigError` that names all plug-ins that cannot be loaded."""
    found = [entry for group in GROUPS for entry in entry_points(group=group)]
    # Each once: one that is on the path twice, or in both groups, is still one.
    types, problems = _load_types(tuple({entry.value: entry for entry in found}.values()))
    if problems:
        raise ConfigError("; ".join(problems))
    return types


@functools.lru_cache(maxsize=1)
def _load_types(plugins: tuple[EntryPoint, ...]) -> tuple[dict[str, Spec], list[str]]:
    """Every type by name, and the problems of the plug-ins; as modules, plug-ins are loaded once per process."""
    types: dict[str, Spec] = {}
    # First, so that a plug-in cannot replace a built-in type.
    for module in _OWN:
        _register(types, _specs_of(importlib.import_module(f"{__package__}.{module}")))
    problems: list[str] = []
    for entry in plugins:
        of = f" of {entry.dist.name} {entry.dist.version}" if entry.dist is not None else ""
        described = f"plug-in {entry.name!r}{of} ({entry.group}: {entry.value})"
        try:
            plugin = entry.load()
            if isinstance(plugin, ModuleType):
                _register(types, _specs_of(plugin))
            elif _is_spec(plugin):
                _register(types, [plugin])
            else:
                problems.append(f"{described} is neither a module nor a spec class but {plugin!r}")
        except Exception as error:  # noqa: BLE001  a plug-in may raise anything
            reason = f"{type(error).__name__}: {error}"
            problems.append(f"{described} cannot be loaded: {reason}; repair or uninstall it")
    return types, problems


def _specs_of(module: ModuleType) -> list[Spec]:
    """The specs that a module defines; those that it imports from another module are not its own."""
    return [each for each in vars(module).values() if _is_spec(each) and each.__module__ == module.__name__]


def _is_spec(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, ColumnSpec | ProcessorSpec) and "type" in vars(value)


def _register(types: dict[str, Spec], specs: list[Spec]) -> None:
    for spec in specs:
        other = types.setdefault(spec.type, spec)
        if other is not spec:
            names = " and ".join(f"{cls.__module__}.{cls.__qualname__}" for cls in (spec, other))
            raise ConfigError(f"duplicate type {spec.type!r}: {names}")
