"""The profile of simulated calls: given by the user, measured in an earlier run, or assumed."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import attrs
import polars as pl
import yaml

from .. import checks
from ..errors import ConfigError
from ..graph import nearest
from ..models.distributions import check_amount, parse_distribution
from ..models.scripted import Behaviour
from ..observe.report import Usage
from ..store.dataset import Dataset, load_traces
from ..store.manifest import is_dataset
from ..store.manifest import read as read_manifest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def _read(value: Any) -> Any:
    """Parse the text of a number or a distribution; anything else is returned for the validator."""
    return parse_distribution(value) if isinstance(value, str) else value


def _amount(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None:
        check_amount(attribute.name, value)


@attrs.frozen(kw_only=True)
class CallProfile:
    """How the calls of a model, or of one column, behave; a field that is None is measured or assumed.

    Amounts are constants or distributions: `{"lognormal": [0.8, 0.5]}` or `"lognormal(0.8, 0.5)"`, named as in recipe
    files.
    """

    latency: Annotated[Any, "an amount"] = attrs.field(default=None, converter=_read, validator=_amount)
    """Seconds for an answer; of a column without a model, seconds that its function takes."""
    input_tokens: Annotated[Any, "an amount"] = attrs.field(default=None, converter=_read, validator=_amount)
    """Tokens of the prompts of one call; if not given, those of rendered prompts are counted."""
    cached_tokens: Annotated[Any, "an amount"] = attrs.field(default=None, converter=_read, validator=_amount)
    """Tokens of the prompts of one call that the provider reads from its cache, never more than all of them."""
    output_tokens: Annotated[Any, "an amount"] = attrs.field(default=None, converter=_read, validator=_amount)
    """Tokens of one answer, which never has more than the `max_tokens` of its column."""
    calls: float | None = attrs.field(default=None, converter=_read, validator=checks.optional(checks.at_least(1)))
    """Calls that one cell makes on average, 1 or more: where answers are repaired or functions make several."""
    rate_limited: float | None = attrs.field(default=None, converter=_read, validator=checks.optional(checks.share))
    """The share of calls that are rate-limited (429)."""
    failed: float | None = attrs.field(default=None, converter=_read, validator=checks.optional(checks.share))
    """The share of calls that fail with an error that is retried (5xx)."""
    error_latency: Annotated[Any, "an amount"] = attrs.field(default=None, converter=_read, validator=_amount)
    """Seconds for a rate-limited or failed call."""
    retry_after: float | None = attrs.field(
        default=None, converter=_read, validator=checks.optional(checks.at_least(0))
    )
    """The `Retry-After` of a rate-limited call, in seconds."""
    capacity: int | None = attrs.field(default=None, converter=_read, validator=checks.optional(checks.whole(0)))
    """Calls that the server processes at once; further ones are rate-limited."""
    skipped: float | None = attrs.field(default=None, converter=_read, validator=checks.optional(checks.share))
    """Of a column: the share of its cells that `skip_when` skips."""

    def __attrs_post_init__(self) -> None:
        """Check that the shares of calls add up to at most 1."""
        if (self.rate_limited or 0.0) + (self.failed or 0.0) > 1:
            raise ConfigError(f"rate_limited and failed add up to more than 1: {self.rate_limited} and {self.failed}")

    def known(self) -> dict[str, Any]:
        """The fields that are not None."""
        return {name: value for name in FIELDS if (value := getattr(self, name)) is not None}

    def over(self, other: CallProfile) -> CallProfile:
        """This profile, with the fields of `other` where it has none."""
        return attrs.evolve(other, **self.known())


FIELDS = tuple(field.name for field in attrs.fields(CallProfile))

# By domain, for what is neither given nor measured; the result lists it.
_CHAT = CallProfile(latency={"lognormal": [1.5, 0.5]}, output_tokens={"lognormal": [150, 0.5]})
ASSUMED = {
    "chat": _CHAT,
    # A user's function that calls a model: its prompts are not known.
    "function": attrs.evolve(_CHAT, input_tokens=200),
    "embedding": CallProfile(latency={"lognormal": [0.15, 0.3]}),
    "image": CallProfile(latency={"lognormal": [8.0, 0.3]}),
    "validation": CallProfile(latency={"lognormal": [0.1, 0.3]}),
    "code": CallProfile(latency=0.0),
}
_DEFAULTS = CallProfile(output_tokens=0, cached_tokens=0, calls=1.0, rate_limited=0.0, failed=0.0, error_latency=0.05)


@attrs.frozen(kw_only=True)
class Measured:
    """The calls of a real run, by column; `models` has the aliases that each column called, where known.

    `accepted` is the share of candidates that it accepted, if not every row counted.
    """

    profiles: Mapping[str, CallProfile]
    models: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)
    accepted: float | None = None

    def of(self, column: str, alias: str | None) -> CallProfile | None:
        """The profile of a column; if it has another model now, that of another column that called this model."""
        aliases = self.models.get(column)
        if alias is None or aliases is None or alias in aliases:
            return self.profiles.get(column)
        others = (name for name, aliases in self.models.items() if alias in aliases)
        return next((self.profiles[name] for name in others if name in self.profiles), None)


def resolve_profile(
    column: str,
    alias: str | None,
    domain: str,
    *,
    given: Mapping[str, CallProfile],
    measured: Iterable[Measured],
    spec: object = None,
) -> tuple[CallProfile, dict[str, str]]:
    """The profile of a column's calls to the model `spec`, and the origin of each of its fields.

    A profile of the column precedes one of its model, a given one precedes those that were measured, in their order.
    """
    layers = [
        ("given", given.get(f"columns.{column}") or given.get(column)),
        ("given", given.get(alias) if alias is not None and alias != column else None),
        *(("measured", each.of(column, alias)) for each in measured),
        ("recipe", _of_behaviour(spec) if isinstance(spec, Behaviour) else None),
        ("assumed", ASSUMED[domain]),
        ("", _DEFAULTS),
    ]
    whole, origins = CallProfile(), dict[str, str]()
    for origin, layer in layers:
        if layer is not None:
            origins |= {name: origin for name in layer.known() if name not in origins}
            whole = whole.over(layer)
    return whole, origins


def _of_behaviour(spec: Behaviour) -> CallProfile:
    """The profile that a scripted model declares."""
    return CallProfile(
        latency=spec.latency,
        rate_limited=spec.rate_limit_share,
        failed=spec.error_share + spec.reset_share + spec.malformed_share + spec.truncated_share,
        error_latency=spec.error_latency,
        retry_after=spec.retry_after if isinstance(spec.retry_after, int | float) else None,
        capacity=spec.capacity,
    )


def check_names(given: Mapping[str, CallProfile], models: Mapping[str, object], columns: tuple[str, ...]) -> None:
    """Raise `ConfigError` for profiles of unknown models and columns."""
    known = (*models, *columns, *(f"columns.{name}" for name in columns))
    problems = []
    for name, profile in given.items():
        if name not in known:
            problems.append(f"the profile of {name!r} belongs to neither a model nor a column{nearest(name, known)}")
        elif name in models and name not in columns and profile.skipped is not None:
            problems.append(f"the profile of model {name!r} has skipped, which only columns have")
    if problems:
        raise ConfigError("\n".join(problems))


def as_profile(name: str, value: CallProfile | Mapping[str, Any]) -> CallProfile:
    """Read a profile as users write it; `tokens: 300/120` are those of prompt and answer, 120 those of the answer."""
    if isinstance(value, CallProfile):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(f"the profile of {name!r} must be a mapping such as latency: 0.8, not {value!r}")
    fields = dict(value)
    tokens = fields.pop("tokens", None)
    unknown = [f"{each!r}{nearest(str(each), (*FIELDS, 'tokens'))}" for each in fields if each not in FIELDS]
    if unknown:
        raise ConfigError(f"the profile of {name!r} has unknown {', '.join(unknown)}")
    if tokens is not None:
        prompt, slash, answer = str(tokens).rpartition("/")
        fields |= {"input_tokens": prompt, "output_tokens": answer} if slash else {"output_tokens": answer}
    try:
        return CallProfile(**fields)
    except ConfigError as error:
        raise ConfigError(f"the profile of {name!r}: {error}") from None


def load_profiles(path: Path) -> dict[str, CallProfile]:
    """The profiles of a YAML or JSON file: by model alias or column."""
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{str(path)!r} is neither YAML nor JSON: {error}") from error
    if not isinstance(found, Mapping):
        raise ConfigError(f"{str(path)!r} must map models and columns to profiles")
    return {str(name): as_profile(str(name), value) for name, value in found.items()}


# About the most measured latencies of a column that are stored; more would make no difference.
_SAMPLE = 2_000


def measure_path(path: Path) -> Measured:
    """The profiles of an earlier run: a dataset's directory, or a file that `--trace` wrote."""
    if path.is_dir():
        if not is_dataset(path):
            raise ConfigError(f"{str(path)!r} is not a dataset whose run could be measured")
        usage, models = defaultdict[str, Usage](Usage), dict[str, tuple[str, ...]]()
        for column, model, used in read_manifest(path).usage:
            usage[column] += used
            models[column] = (*models.get(column, ()), model)
        accepted = Dataset.open(path).report.acceptance_rate
        return Measured(profiles=measure(load_traces(path), usage), models=models, accepted=accepted)
    try:
        frame = _chrome_frame(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{str(path)!r} is neither a dataset nor a timeline that --trace wrote") from None
    return Measured(profiles=measure(frame, {}))


def _chrome_frame(document: Any) -> pl.DataFrame:
    """The tasks of a timeline. It has no times of calls within a task, so all of a task counts."""
    rows = [
        {name: bar["args"][name] for name in ("column", "status", "row_group", "row")}
        | {"started": bar["ts"] / 1e6, "finished": (bar["ts"] + bar["dur"]) / 1e6, "called": 0.0}
        for bar in document["traceEvents"]
        if bar["ph"] == "X" and bar["cat"] != "waiting"
    ]
    if not rows:
        raise ValueError("no tasks")
    return pl.DataFrame(rows)


def measure(frame: pl.DataFrame, usage: Mapping[str, Usage]) -> dict[str, CallProfile]:
    """Profiles by column: latencies and shares from traces, tokens and calls from the usage."""
    found: dict[str, CallProfile] = {}
    rows = frame.filter(pl.col("row").is_not_null()).select("row_group", "row").n_unique()
    for (column,), tasks in frame.group_by("column", maintain_order=True):
        found[str(column)] = _of_tasks(tasks, usage.get(str(column), Usage()).calls, rows)
    for column, used in usage.items():
        if used.calls:
            tokens = CallProfile(
                input_tokens=used.input_tokens / used.calls,
                cached_tokens=used.cached_tokens / used.calls,
                output_tokens=used.output_tokens / used.calls,
            )
            found[column] = tokens.over(found.get(column, CallProfile()))
    return found


def _of_tasks(tasks: pl.DataFrame, calls: int, rows: int) -> CallProfile:
    running = pl.col("finished") - pl.col("started")
    done = tasks.filter(pl.col("status") == "success")
    if not done.height:
        return CallProfile()
    # Of a cell with several calls only the sum of their times is known.
    each = max(1.0, calls / done.height)
    seconds = done.select(pl.when(pl.col("called") > 0).then("called").otherwise(running) / each).to_series()
    if seconds.len() > _SAMPLE:
        seconds = seconds.sort().gather_every(seconds.len() // _SAMPLE)
    rate_limited = tasks.filter(pl.col("status") == "rate_limited")
    is_cell = tasks["row"].is_not_null().all()
    return CallProfile(
        latency={"choice": [round(value, 6) for value in seconds]},
        calls=each if calls else None,
        rate_limited=rate_limited.height / tasks.height,
        failed=tasks.filter(pl.col("status") == "retryable").height / tasks.height,
        error_latency=rate_limited.select(running.median()).item() if rate_limited.height else None,
        # Read only for columns with skip_when.
        skipped=max(0.0, 1.0 - done.height / rows) if is_cell and rows else None,
    )
