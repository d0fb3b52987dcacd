"""When each task was ready, submitted, started and finished."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class TaskTrace:
    """The life of one attempt of a task; instants of trio's clock, None where that step did not happen.

    `ready`: its inputs were there. `submitted`: the scheduler started it. `slot`, `permit`: it was granted one (tasks
    that need none have None). `started`: its generator was called. `finished`: its outcome was known.
    """

    kind: str
    column: str
    row_group: int
    row: int | None
    attempt: int
    status: str
    ready: float
    submitted: float
    slot: float | None
    permit: float | None
    started: float
    finished: float
    # Seconds inside of the model calls that it made through its context, and of waiting for permits to make them.
    called: float = 0.0
    waited: float = 0.0
