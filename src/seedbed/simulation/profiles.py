"""How calls go in a simulation: how long they take, what they use, how often they are refused or fail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import yaml

from ..errors import ConfigError
from ..graph import nearest
from ..models.behaviour import Behaviour
from ..models.distributions import check_latency, is_distribution, parse_distribution

if TYPE_CHECKING:
    from pathlib import Path

_UNKNOWN = ("latency", "input_tokens", "output_tokens")


def _read(value: Any) -> Any:
    """Numbers and distributions, as mappings or as one writes them."""
    if isinstance(value, str):
        return parse_distribution(value)
    return dict(value) if isinstance(value, Mapping) else value


def _amount(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None:
        if isinstance(value, Mapping) and not is_distribution(value):
            raise ConfigError(f"{attribute.name}: {value!r} is no distribution")
        check_latency(attribute.name, value)


def _share(_: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1):
        raise ConfigError(f"{attribute.name} must be a share between 0 and 1, not {value!r}")


def _positive(_: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value < 1):
        raise ConfigError(f"{attribute.name} must be 1 or more, not {value!r}")


@attrs.frozen(kw_only=True)
class CallProfile:
    """How the calls of a model, or of one column, go; None where nothing is said, and something else decides.

    Amounts are constants or distributions: `{"lognormal": [0.8, 0.5]}` or `"lognormal(0.8, 0.5)"`, with the names that
    recipe files have for them.
    """

    # Seconds for an answer. Of a column without a model: seconds that its function takes.
    latency: Any = attrs.field(default=None, converter=_read, validator=_amount)
    # Tokens of one call; those of the prompt are counted in rendered prompts if they are not said.
    input_tokens: Any = attrs.field(default=None, converter=_read, validator=_amount)
    output_tokens: Any = attrs.field(default=None, converter=_read, validator=_amount)
    # Calls that one cell makes on average: more than 1 where answers are repaired or functions ask several times.
    calls: float | None = attrs.field(default=None, validator=_positive)
    # The share of calls that are refused (429), and that fail in a way that may pass (5xx).
    refused: float | None = attrs.field(default=None, validator=_share)
    failed: float | None = attrs.field(default=None, validator=_share)
    # Seconds for a refusal or a failure, and what a refusal says in Retry-After.
    refusal_latency: Any = attrs.field(default=None, converter=_read, validator=_amount)
    retry_after: float | None = None
    # Calls that the server works on at once; what comes above is refused.
    capacity: int | None = attrs.field(default=None, validator=_positive)
    # Of a column: the share of its cells that skip_when skips.
    skipped: float | None = attrs.field(default=None, validator=_share)

    def __attrs_post_init__(self) -> None:
        """Shares are of the same whole."""
        if (self.refused or 0.0) + (self.failed or 0.0) > 1:
            raise ConfigError(f"refused and failed are more than 1 together: {self.refused} and {self.failed}")

    def said(self) -> dict[str, Any]:
        """What is said, by name."""
        return {name: value for name in FIELDS if (value := getattr(self, name)) is not None}

    def over(self, other: CallProfile) -> CallProfile:
        """This, and what the other says where this says nothing."""
        return attrs.evolve(other, **self.said())


FIELDS = tuple(field.name for field in attrs.fields(CallProfile))

# What is assumed where nothing is known, by what is asked for. Somebody who reads the result must be told.
ASSUMED = {
    "chat": CallProfile(latency={"lognormal": [1.5, 0.5]}, output_tokens={"lognormal": [150, 0.5]}),
    # A function of the user's that asks a model: nobody knows its prompts.
    "function": CallProfile(
        latency={"lognormal": [1.5, 0.5]}, input_tokens=200, output_tokens={"lognormal": [150, 0.5]}
    ),
    "embedding": CallProfile(latency={"lognormal": [0.15, 0.3]}),
    "image": CallProfile(latency={"lognormal": [8.0, 0.3]}),
    "validation": CallProfile(latency={"lognormal": [0.1, 0.3]}),
    "code": CallProfile(latency=0.0),
}
_ALWAYS = CallProfile(output_tokens=0, calls=1.0, refused=0.0, failed=0.0, refusal_latency=0.05)


@attrs.frozen(kw_only=True)
class Measured:
    """How calls went in a real run, by column; `models` are the aliases that each column called then, where known."""

    profiles: Mapping[str, CallProfile] = attrs.field(factory=dict)
    models: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)

    def of(self, column: str, alias: str | None) -> CallProfile | None:
        """What is known of a column's calls; where it has another model now, what that one did for other columns."""
        known = self.models.get(column)
        if alias is None or known is None or alias in known:
            return self.profiles.get(column)
        others = (name for name, aliases in self.models.items() if alias in aliases)
        return next((self.profiles[name] for name in others if name in self.profiles), None)

    def over(self, other: Measured) -> Measured:
        """This, and what the other knows where this knows nothing."""
        both = {**other.profiles, **self.profiles}
        for name in other.profiles.keys() & self.profiles.keys():
            both[name] = self.profiles[name].over(other.profiles[name])
        return Measured(profiles=both, models={**other.models, **self.models})


@attrs.frozen(kw_only=True)
class Resolved:
    """The profile of one column's calls of one model, and where each part of it comes from."""

    profile: CallProfile
    origins: Mapping[str, str]

    @property
    def assumed(self) -> tuple[str, ...]:
        """What nobody said and nobody measured."""
        return tuple(name for name in _UNKNOWN if self.origins.get(name) == "assumed")


def resolve_profile(
    column: str,
    alias: str | None,
    domain: str,
    *,
    given: Mapping[str, CallProfile],
    measured: Measured,
    script: CallProfile | None = None,
) -> Resolved:
    """What is said of a column goes before what is said of its model, what is given before what was measured.

    `script` is what the recipe itself says of a scripted model.
    """
    layers = [
        ("given", given.get(f"columns.{column}") or given.get(column)),
        ("given", given.get(alias) if alias is not None and alias != column else None),
        ("measured", measured.of(column, alias)),
        ("recipe", script),
        ("assumed", ASSUMED[domain]),
        ("", _ALWAYS),
    ]
    whole, origins = CallProfile(), dict[str, str]()
    for origin, layer in layers:
        if layer is not None:
            origins |= {name: origin for name in layer.said() if name not in origins}
            whole = whole.over(layer)
    return Resolved(profile=whole, origins=origins)


def of_script(spec: object) -> CallProfile | None:
    """What a scripted model says of itself; None of any other."""
    if not isinstance(spec, Behaviour):
        return None
    return CallProfile(
        latency=spec.latency,
        refused=spec.rate_limit_share,
        failed=spec.error_share + spec.reset_share + spec.malformed_share + spec.truncated_share,
        refusal_latency=spec.refusal_latency,
        retry_after=spec.retry_after if isinstance(spec.retry_after, int | float) else None,
        capacity=spec.capacity,
    )


def check_names(given: Mapping[str, CallProfile], models: Mapping[str, object], columns: tuple[str, ...]) -> None:
    """Refuse profiles of models and columns that there are not."""
    known = (*models, *columns, *(f"columns.{name}" for name in columns))
    problems = [
        f"a profile is given for {name!r}, which is neither a model nor a column{nearest(name, known)}"
        for name in given
        if name not in known
    ]
    problems += [
        f"a profile of model {name!r} has skipped, which is said of columns"
        for name in given
        if name in models and name not in columns and given[name].skipped is not None
    ]
    if problems:
        raise ConfigError("\n".join(problems))


def as_profile(name: str, value: CallProfile | Mapping[str, Any]) -> CallProfile:
    """A profile as users write it: `tokens: 300/120` stands for both kinds of tokens."""
    if isinstance(value, CallProfile):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(f"the profile of {name!r} must be a mapping such as latency: 0.8, not {value!r}")
    fields = dict(value)
    tokens = fields.pop("tokens", None)
    unknown = [f"{each!r}{nearest(str(each), (*FIELDS, 'tokens'))}" for each in fields if each not in FIELDS]
    if unknown:
        raise ConfigError(f"the profile of {name!r} has unknown {', '.join(unknown)}")
    try:
        if tokens is not None:
            fields |= parse_tokens(str(tokens))
        return CallProfile(**fields)
    except ConfigError as error:
        raise ConfigError(f"the profile of {name!r}: {error}") from None


def parse_tokens(text: str) -> dict[str, Any]:
    """`300/120`: tokens of the prompt and of the answer; `120`: of the answer alone."""
    asked, slash, answered = text.rpartition("/")
    return {"input_tokens": asked, "output_tokens": answered} if slash else {"output_tokens": answered}


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
