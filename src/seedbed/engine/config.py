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

    buffer_size: int = attrs.field(default=1000, validator=checks.whole(1))
    """Rows in a row group, the unit of checkpoints."""
    max_concurrent_row_groups: int = attrs.field(default=3, validator=checks.whole(1))
    """Row groups that are worked on at once."""
    max_submitted_tasks: int = attrs.field(default=1024, validator=checks.whole(1))
    """Tasks that exist at once; bounds memory."""
    max_active_tasks: int = attrs.field(default=128, validator=checks.whole(1))
    """Tasks that use a thread or a process at once."""
    max_parallel_requests: int = attrs.field(default=32, validator=checks.whole(1))
    """The ceiling of calls in flight of a throttle key that has no limits of its own."""
    max_processes: int | None = attrs.field(default=None, validator=checks.optional(checks.whole(1)))
    """Worker processes for columns with `process=True`; by default as many as there are processors."""
    salvage_max_rounds: int = attrs.field(default=2, validator=checks.whole(0))
    """How often a cell is retried after a failure that may be temporary."""
    salvage_error_threshold: float = attrs.field(default=0.8, validator=checks.above(0, at_most=1))
    """The share of errors that stops the run while it retries."""
    shutdown_error_rate: float = attrs.field(default=0.5, validator=checks.above(0, at_most=1))
    """The share of errors that stops the run."""
    shutdown_error_window: int = attrs.field(default=50, validator=checks.whole(1))
    """The number of outcomes over which that share is taken; no verdict before there are so many."""
    cell_timeout: float | None = attrs.field(default=None, validator=checks.optional(checks.above(0)))
    """How long one attempt at a cell may take, unless its column has its own `timeout`."""
    deadline: float | None = attrs.field(default=None, validator=checks.optional(checks.above(0)))
    """How long the build may take."""
    backoff_base: float = attrs.field(default=1.0, validator=checks.above(0))
    """The upper bound of the wait before the first retry; it doubles with each, and the wait is drawn below it."""
    backoff_max: float = attrs.field(default=60.0, validator=checks.above(0))
    """The upper bound of every such wait."""
    throttle_patience: float = attrs.field(default=300.0, validator=checks.at_least(0))
    """How long a throttle key may rate-limit every call before the run stops."""
    fallback_after: float = attrs.field(default=10.0, validator=checks.at_least(0))
    """How long a model must be rate-limited before the next one of a column's `models` is called. For as long, one that
    failed is passed over."""
    grace: float = attrs.field(default=5.0, validator=checks.at_least(0))
    """How long calls in flight may continue after a stop."""
    max_cost: float | None = attrs.field(default=None, validator=checks.optional(checks.at_least(0)))
    """Stop before the call that could exceed this cost, in the unit of the prices of models."""
    max_tokens: int | None = attrs.field(default=None, validator=checks.optional(checks.whole(0)))
    """Stop before the call that could exceed this number of tokens."""
    durability: str = attrs.field(default="cell", validator=checks.one_of("cell", "row_group"))
    """What a crash may cost: with `cell` the cells since the last commit, with `row_group` all cells of open row
    groups."""
    commit_interval: float = attrs.field(default=0.05, validator=checks.at_least(0))
    """Finished cells are committed to the journal after this time."""
    commit_count: int = attrs.field(default=500, validator=checks.whole(1))
    """They are committed sooner when so many are waiting."""
    engine: str = attrs.field(default="concurrent", validator=checks.one_of("concurrent", "sequential"))
    """`sequential` is the same scheduler with one task at a time, column by column and row by row."""
    provenance: bool = attrs.field(default=False, validator=checks.flag)
    """Add columns that say where each row came from: `_row`, `_copy`, `_seed_row`, and `NAME__provenance` for each
    column that calls a model. `Dataset.provenance()` has them in any case."""
    trace: bool = attrs.field(default=False, validator=checks.flag)
    """Record a `TaskTrace` of every attempt in the report."""
    jitter_seed: int | None = attrs.field(default=None, validator=checks.optional(checks.whole()))
    """Seeds the jitter of waits; nothing that is generated depends on it."""

    @property
    def admitted_at_once(self) -> int:
        """How many row groups may be open at once."""
        return 1 if self.engine == "sequential" else self.max_concurrent_row_groups

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> RunConfig:
        """Create one from names and values, as a file has them."""
        known = [field.name for field in attrs.fields(cls)]
        unknown = [f"unknown option {name!r}{nearest(name, known)}" for name in options if name not in known]
        if unknown:
            raise ConfigError("; ".join(unknown))
        return cls(**options)
