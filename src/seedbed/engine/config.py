"""The options of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from .. import checks
from ..errors import ConfigError
from ..graph import nearest

if TYPE_CHECKING:
    from collections.abc import Mapping


@attrs.frozen(kw_only=True)
class RunConfig:
    """How a build runs; the rows that it generates do not depend on it. Times are seconds."""

    # Rows in a row group, the unit of checkpoints.
    buffer_size: int = attrs.field(default=1000, validator=checks.whole(1))
    # Row groups worked on at once.
    max_concurrent_row_groups: int = attrs.field(default=3, validator=checks.whole(1))
    # Tasks that exist at once.
    max_submitted_tasks: int = attrs.field(default=1024, validator=checks.whole(1))
    # Tasks that use a thread or a process at once.
    max_active_tasks: int = attrs.field(default=128, validator=checks.whole(1))
    # Ceiling of a throttle key that has no limits of its own.
    max_parallel_requests: int = attrs.field(default=32, validator=checks.whole(1))
    # Worker processes for columns with `process=True`; as many as there are processors if not given.
    max_processes: int | None = attrs.field(default=None, validator=checks.optional(checks.whole(1)))
    # How often a cell is retried after a failure that may be temporary.
    salvage_max_rounds: int = attrs.field(default=2, validator=checks.whole(0))
    salvage_error_threshold: float = attrs.field(default=0.8, validator=checks.above(0, at_most=1))
    # The run stops when more than this share of the window's outcomes are errors.
    shutdown_error_rate: float = attrs.field(default=0.5, validator=checks.above(0, at_most=1))
    shutdown_error_window: int = attrs.field(default=50, validator=checks.whole(1))
    # How long one cell, and how long the whole build, may take.
    cell_timeout: float | None = attrs.field(default=None, validator=checks.optional(checks.above(0)))
    deadline: float | None = attrs.field(default=None, validator=checks.optional(checks.above(0)))
    # Waits before another attempt: exponential with full jitter.
    backoff_base: float = attrs.field(default=1.0, validator=checks.above(0))
    backoff_max: float = attrs.field(default=60.0, validator=checks.above(0))
    # How long a key may rate-limit every call.
    throttle_patience: float = attrs.field(default=300.0, validator=checks.at_least(0))
    # How long calls in flight may continue after a stop.
    grace: float = attrs.field(default=5.0, validator=checks.at_least(0))
    # The run stops before the call that could exceed one of these, in the unit that columns report and in tokens.
    max_cost: float | None = attrs.field(default=None, validator=checks.optional(checks.at_least(0)))
    max_tokens: int | None = attrs.field(default=None, validator=checks.optional(checks.whole(0)))
    # What a crash may cost: with `cell` the cells since the last commit, with `row_group` those of open row groups.
    # Finished cells are committed to the journal after this interval, or sooner when this many are waiting.
    durability: str = attrs.field(default="cell", validator=checks.one_of("cell", "row_group"))
    commit_interval: float = attrs.field(default=0.05, validator=checks.at_least(0))
    commit_count: int = attrs.field(default=500, validator=checks.whole(1))
    engine: str = attrs.field(default="concurrent", validator=checks.one_of("concurrent", "sequential"))
    # Record a `TaskTrace` of every attempt in the report.
    trace: bool = attrs.field(default=False, validator=checks.flag)
    # Seeds the jitter of waits; nothing that is generated depends on it.
    jitter_seed: int | None = attrs.field(default=None, validator=checks.optional(checks.whole()))

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> RunConfig:
        """Create one from names and values, as a file has them."""
        known = [field.name for field in attrs.fields(cls)]
        unknown = [f"unknown option {name!r}{nearest(name, known)}" for name in options if name not in known]
        if unknown:
            raise ConfigError("; ".join(unknown))
        return cls(**options)
