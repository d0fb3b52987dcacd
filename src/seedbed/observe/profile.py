"""Where the time of a build went: what task traces add up to for each column."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import polars as pl

from .trace import TaskTrace

if TYPE_CHECKING:
    from collections.abc import Sequence


@attrs.frozen(kw_only=True)
class ColumnProfile:
    """Seconds of all tasks of a column together.

    `queue`: ready, and waiting for its turn. `slot`, `permit`: the same where the task needs a thread or process, or
    leave to send (and what a cell waited for leave of its further calls). `call`: inside of model calls, or of the
    generator where it makes none that the engine knows of. `parse`: the rest of the generator: rendering, parsing,
    repairing. `longest` is the longest single task from its start to its end.
    """

    column: str
    tasks: int
    failed: int
    queue: float
    slot: float
    permit: float
    call: float
    parse: float
    longest: float

    @property
    def total(self) -> float:
        return self.queue + self.slot + self.permit + self.call + self.parse


def profile(traces: Sequence[TaskTrace]) -> list[ColumnProfile]:
    """What traces add up to, column by column in the order of their first task."""
    return profile_frame(traces_frame(traces)) if traces else []


def traces_frame(traces: Sequence[TaskTrace]) -> pl.DataFrame:
    """Traces as a table: a column for each field, a row for each task."""
    fields = [field.name for field in attrs.fields(TaskTrace)]
    columns: dict[str, list[Any]] = {name: [getattr(trace, name) for trace in traces] for name in fields}
    instants = dict.fromkeys(("ready", "submitted", "slot", "permit", "started", "finished"), pl.Float64)
    return pl.DataFrame(columns, schema_overrides={**instants, "row": pl.Int64}, strict=False)


def profile_frame(frame: pl.DataFrame) -> list[ColumnProfile]:
    """What a table of traces adds up to, column by column in the order of their first task."""
    # Seconds inside of model calls and seconds of waiting between them, where the engine told them.
    told = [pl.col(name) if name in frame.columns else pl.lit(0.0).alias(name) for name in ("called", "waited")]
    wait = pl.col("submitted") - pl.col("ready")
    has_permit, has_slot = pl.col("permit").is_not_null(), pl.col("slot").is_not_null()
    running = pl.col("finished") - pl.col("started")
    calls = pl.col("called") > 0
    rows = (
        frame.with_columns(told)
        .select(
            "column",
            failed=~pl.col("status").is_in(["success", "rate_limited", "cancelled"]),
            queue=pl.when(has_permit | has_slot).then(0.0).otherwise(wait) + pl.col("started") - pl.col("submitted"),
            slot=pl.when(has_slot & ~has_permit).then(wait).otherwise(0.0),
            permit=pl.when(has_permit).then(wait).otherwise(0.0) + pl.col("waited"),
            call=pl.when(calls).then(pl.col("called")).otherwise(running),
            parse=pl.when(calls).then(running - pl.col("called") - pl.col("waited")).otherwise(0.0),
            running=running,
        )
        .group_by("column", maintain_order=True)
        .agg(
            pl.len().alias("tasks"),
            pl.col("failed", "queue", "slot", "permit", "call", "parse").sum(),
            pl.col("running").max().alias("longest"),
        )
    )
    return [ColumnProfile(**row) for row in rows.iter_rows(named=True)]
