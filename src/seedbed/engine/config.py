"""The options of a run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs

from ..errors import ConfigError
from ..graph import nearest

if TYPE_CHECKING:
    from collections.abc import Mapping


def _count(minimum: int) -> Any:
    def check(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        _whole(instance, attribute, value)
        if value < minimum:
            raise ConfigError(f"{attribute.name} must be at least {minimum}, not {value}")

    return check


def _number(low: float, *, above: bool = False, high: float = math.inf) -> Any:
    def check(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            raise ConfigError(f"{attribute.name} must be a number, not {value!r}")
        if value < low or value > high or (above and value == low) or (math.isinf(value) and high == math.inf):
            bound = f"above {low:g}" if above else f"at least {low:g}"
            upper = "" if high == math.inf else f" and at most {high:g}"
            raise ConfigError(f"{attribute.name} must be {bound}{upper}, not {value!r}")

    return check


def _one_of(*allowed: str) -> Any:
    def check(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if value not in allowed:
            names = " or ".join(repr(each) for each in allowed)
            raise ConfigError(f"{attribute.name} must be {names}, not {value!r}")

    return check


def _flag(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{attribute.name} must be True or False, not {value!r}")


def _whole(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{attribute.name} must be a whole number, not {value!r}")


def _optional(validator: Any) -> Any:
    return attrs.validators.optional(validator)


@attrs.frozen(kw_only=True)
class RunConfig:
    """How a build runs; what it makes does not depend on it. Times are seconds."""

    # Rows in a row group, the unit of checkpoints.
    buffer_size: int = attrs.field(default=1000, validator=_count(1))
    # Row groups worked on at once.
    max_concurrent_row_groups: int = attrs.field(default=3, validator=_count(1))
    # Tasks that exist at once.
    max_submitted_tasks: int = attrs.field(default=1024, validator=_count(1))
    # Tasks that use a thread or a process at once.
    max_active_tasks: int = attrs.field(default=128, validator=_count(1))
    # Ceiling of a throttle key that has no limits of its own.
    max_parallel_requests: int = attrs.field(default=32, validator=_count(1))
    # Worker processes for columns with `process=True`; as many as there are processors if not given.
    max_processes: int | None = attrs.field(default=None, validator=_optional(_count(1)))
    # A cell that fails in a way that may pass is tried again at most this often.
    salvage_max_rounds: int = attrs.field(default=2, validator=_count(0))
    salvage_error_threshold: float = attrs.field(default=0.8, validator=_number(0, above=True, high=1))
    # The run stops when more than this share of the window's outcomes are errors.
    shutdown_error_rate: float = attrs.field(default=0.5, validator=_number(0, above=True, high=1))
    shutdown_error_window: int = attrs.field(default=50, validator=_count(1))
    # How long one cell, and how long the whole build, may take.
    cell_timeout: float | None = attrs.field(default=None, validator=_optional(_number(0, above=True)))
    deadline: float | None = attrs.field(default=None, validator=_optional(_number(0, above=True)))
    # Waits before another attempt: exponential with full jitter.
    backoff_base: float = attrs.field(default=1.0, validator=_number(0, above=True))
    backoff_max: float = attrs.field(default=60.0, validator=_number(0, above=True))
    # How long a key may refuse everything.
    throttle_patience: float = attrs.field(default=300.0, validator=_number(0))
    # How long calls in flight may go on after a stop.
    grace: float = attrs.field(default=5.0, validator=_number(0))
    # The run stops before the call that would pass one of these, in the unit that columns report and in tokens.
    max_cost: float | None = attrs.field(default=None, validator=_optional(_number(0)))
    max_tokens: int | None = attrs.field(default=None, validator=_optional(_count(0)))
    # What a crash may cost: with `cell` the cells of the last commit, with `row_group` those of open row groups.
    # Finished cells are committed to the journal so often, or when there are so many of them.
    durability: str = attrs.field(default="cell", validator=_one_of("cell", "row_group"))
    commit_interval: float = attrs.field(default=0.05, validator=_number(0))
    commit_count: int = attrs.field(default=500, validator=_count(1))
    engine: str = attrs.field(default="concurrent", validator=_one_of("concurrent", "sequential"))
    # Keep a `TaskTrace` of every task in the report.
    trace: bool = attrs.field(default=False, validator=_flag)
    # Seeds the jitter of waits; nothing that is generated depends on it.
    jitter_seed: int | None = attrs.field(default=None, validator=_optional(_whole))

    @classmethod
    def from_mapping(cls, knobs: Mapping[str, Any]) -> RunConfig:
        """Make one from names and values, as they come from a file."""
        known = [field.name for field in attrs.fields(cls)]
        unknown = [f"there is no knob {name!r}{nearest(name, known)}" for name in knobs if name not in known]
        if unknown:
            raise ConfigError("; ".join(unknown))
        return cls(**knobs)
