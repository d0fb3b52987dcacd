"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import attrs
from cyclopts import Group, Parameter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from cyclopts import Token

    from ..columns.spec import Grants
    from ..observe.events import Event
    from ..store.dataset import Dataset


RecipeFile = Annotated[Path, Parameter(help="A recipe file: YAML, TOML or JSON.")]
Flag = Annotated[bool, Parameter(negative="", show_default=False)]
_SEVERAL = Parameter(negative="", show_default=False, consume_multiple=False)
Several = Annotated[tuple[str, ...], _SEVERAL]


def row_counts(given: Sequence[str] | None) -> Any:
    """Convert the texts of `-n`: one number, or STAGE=N for each stage; None if there are none."""
    from ..checks import row_count
    from ..errors import ConfigError

    if not given:
        return None
    named = [each.partition("=") for each in given]
    counts = {name.strip() if equals else "": number if equals else name for name, equals, number in named}
    if len(counts) < len(given) or ("" in counts and len(counts) > 1):
        raise ConfigError(f"-n takes one number, or STAGE=N once for each stage, not {' '.join(given)!r}")
    found = {name: row_count(value, where="-n takes") for name, value in counts.items()}
    return found.get("", found)


def _row_count(_type: Any, tokens: Sequence[Token]) -> int:
    """Convert the text of a row count: 1000, 1_000, 1e6, 100k or 1.5M."""
    from ..checks import row_count
    from ..errors import ConfigError

    try:
        return row_count(tokens[0].value, where=f"{tokens[0].keyword} takes")
    except ConfigError as error:
        raise ValueError(str(error)) from None  # of which the parser of the command line makes a message


def open_dataset(directory: Path, stage: str | None) -> Dataset:
    """The dataset of a directory or, for `--stage`, that of one of its stages."""
    from ..errors import ConfigError
    from ..store.dataset import Dataset

    dataset = Dataset.open(directory)
    try:
        return dataset if stage is None else dataset.stage(stage)
    except KeyError as error:
        raise ConfigError(error.args[0]) from None


RowCount = Annotated[int, Parameter(converter=_row_count)]
Rows = Annotated[
    list[str] | None,
    Parameter(name=["--rows", "-n"], negative="", consume_multiple=False, show_default=False),
]


@Parameter(name="*", group=Group("For machines and for debugging", sort_key=4))
@attrs.frozen(kw_only=True)
class Machine:
    """The form of the output."""

    json: Flag = False
    """Write one JSON value to standard output."""
    debug: Flag = False
    """Show the traceback of an error."""


_ALLOWED = Group("Permissions of the recipe", sort_key=2)


@Parameter(name="*", group=_ALLOWED)
@attrs.frozen(kw_only=True)
class Permissions:
    """What a recipe file may do beyond reading below its own folder; see docs/explanation/security.md."""

    allow_code: Annotated[Flag, Parameter(group=_ALLOWED)] = False
    """Allow the recipe to import the code that it names as module:name."""
    allow_path: Annotated[tuple[Path, ...], _SEVERAL, Parameter(group=_ALLOWED)] = ()
    """Allow the recipe to read files below this folder too. May be repeated."""
    allow_env: Annotated[Several, Parameter(group=_ALLOWED)] = ()
    """Allow the headers of the recipe's models to send this environment variable. May be repeated."""

    def grants(self) -> Grants:
        """The permissions as the library takes them."""
        from ..columns.spec import Grants

        return Grants(code=self.allow_code, paths=self.allow_path, env=self.allow_env)


@Parameter(name="*", group=Group("Changes to the recipe", sort_key=1))
@attrs.frozen(kw_only=True)
class RecipeChanges(Permissions):
    """Changes to a recipe for this command."""

    model_override: Several = ()
    """ALIAS=MODEL, or MODEL for all: `scripted` or `local` in place of the recipe's own. May be repeated."""
    seed: int | None = None
    """The random seed, in place of the recipe's."""


@Parameter(name="*", group=Group("Options of the run", sort_key=3))
@attrs.frozen(kw_only=True)
class RunOptions:
    """Options of the run, in place of the recipe's; see docs/reference/run-config.md."""

    buffer_size: int | None = None
    """Rows in a row group, the unit of checkpoints."""
    max_concurrent_row_groups: int | None = None
    """Row groups that are open at once."""
    max_parallel_requests: int | None = None
    """Calls in flight for an endpoint that has no limit of its own."""
    max_cost: float | None = None
    """Stop before a call that could exceed this cost."""
    max_tokens: int | None = None
    """Stop before a call that could exceed this number of tokens."""
    deadline: float | None = None
    """Stop after this number of seconds."""
    cell_timeout: float | None = None
    """Seconds that one cell may take."""
    salvage_max_rounds: int | None = None
    """Salvage rounds: how often a cell with a retryable failure is retried."""
    shutdown_error_rate: float | None = None
    """Stop when more than this share of the last attempts failed."""
    throttle_patience: float | None = None
    """Stop when an endpoint rate-limits every call for this number of seconds."""
    provenance: Flag | None = None
    """Add columns that say where each row came from: its seed row, and the model, attempts and cost of its cells."""
    engine: Literal["concurrent", "sequential"] | None = None
    """Run cells concurrently, or one after another."""
    option: Several = ()
    """NAME=VALUE, any other option. May be repeated."""

    def given(self) -> dict[str, Any]:
        """The options that were passed, by name; values of --option are parsed as YAML."""
        found = attrs.asdict(self, filter=lambda field, value: field.name != "option" and value is not None)
        return found | {name.replace("-", "_"): value for name, value in named_values("--option", self.option)}


def named_values(option: str, given: Iterable[str]) -> list[tuple[str, Any]]:
    """Parse the texts of an option that takes NAME=VALUE; values are YAML."""
    import yaml

    from ..errors import ConfigError

    pairs = []
    for each in given:
        name, _, value = map(str.strip, each.partition("="))
        if not name or not value:
            raise ConfigError(f"{option} takes NAME=VALUE, not {each!r}")
        try:
            pairs.append((name, yaml.safe_load(value)))
        except yaml.YAMLError as error:
            raise ConfigError(f"{option} {name}: {value!r} is not YAML: {error}") from None
    return pairs


@Parameter(name="*", group=Group("Output of the run", sort_key=2))
@attrs.frozen(kw_only=True)
class Watching:
    """Progress, traces and the rows shown at the end."""

    progress: Literal["auto", "panel", "lines", "none"] = "auto"
    """A live panel, a line every 10 seconds, or neither; auto: the panel if standard error is a terminal."""
    trace: Path | None = None
    """Write a timeline of all tasks to this file, for Perfetto or chrome://tracing."""
    profile: Flag = False
    """Store what `inspect --profile` needs; so does --trace."""
    head: int = 5
    """The number of first rows to print at the end."""
    view: Flag = False
    """Show the run as a web page while it runs, as `seedbed view` does."""
    report: Path | None = None
    """Write one self-contained page about the dataset to this file at the end."""
    verbose: Annotated[Flag, Parameter(name=["--verbose", "-v"])] = False
    """Also log salvage rounds and checkpoints."""
    metrics_port: int | None = None
    """Serve metrics for Prometheus at this port of 127.0.0.1 while the run lasts."""
    telemetry: Flag = False
    """Report spans and metrics to OpenTelemetry, whose SDK `opentelemetry-instrument` sets up."""
    telemetry_prompts: Flag = False
    """With --telemetry: also the text of prompts and answers."""

    def readers(self) -> list[Callable[[Event], None]]:
        """The readers of events that these options ask for."""
        found: list[Callable[[Event], None]] = []
        if self.metrics_port is not None:
            from ..observe.metrics import BuildMetrics

            found.append(BuildMetrics(self.metrics_port))
        if self.telemetry or self.telemetry_prompts:
            from ..observe.telemetry import Telemetry

            found.append(Telemetry(prompts=self.telemetry_prompts))
        return found


@Parameter(name="*", group=Group("Source of the plan", sort_key=1))
@attrs.frozen(kw_only=True)
class PlanSource:
    """The registries of a plan, and the permission to run its file."""

    registries: Path | None = None
    """Keys, params and endpoints: a TOML or JSON file instead of the embedded ones."""
    allow_code: Flag = False
    """Allow FILE.py:FUNCTION as a plan, which runs that file."""


@Parameter(name="*", group=Group("Limits and modes of a request", sort_key=2))
@attrs.frozen(kw_only=True)
class RequestLimits:
    """Limits and modes of a request."""

    deadline_ms: float | None = None
    """Milliseconds that a request may take, its wait in the queue included."""
    node_timeout_ms: float | None = None
    """Milliseconds that each node may take."""
    fusion: Literal["off", "auto"] = "auto"
    """auto: chains of CPU nodes run as one, on the loop if that is quicker than a thread; off: each node alone."""
    partial: Flag = False
    """Answer with the nodes that are done by the deadline, and list those that are missing."""
    cpu_threads: int | None = None
    """Threads for CPU nodes; by default one per core."""

    def options(self, *, trace: bool = False) -> dict[str, Any]:
        """Options of `PlanEngine.execute`, which takes seconds."""
        limits = {"deadline": self.deadline_ms, "node_timeout": self.node_timeout_ms}
        seconds = {name: None if ms is None else ms / 1000 for name, ms in limits.items()}
        return {**seconds, "trace": trace, "partial": self.partial}
