"""Options that several of the plan commands share."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  cyclopts reads the annotations
from typing import Annotated, Literal

import attrs
from cyclopts import Group, Parameter

RequestText = Annotated[str, Parameter(name=["--request", "-r"], allow_leading_hyphen=True)]


@Parameter(name="*", group=Group("Where a plan comes from", sort_key=1))
@attrs.frozen(kw_only=True)
class PlanSource:
    """What a plan is read with."""

    registries: Path | None = None
    """Keys, params and endpoints: a TOML or JSON file instead of the embedded ones."""
    allow_code: Annotated[bool, Parameter(negative="", show_default=False)] = False
    """Let a plan be FILE.py:FUNCTION, which runs that file."""


@Parameter(name="*", group=Group("How a request is run", sort_key=2))
@attrs.frozen(kw_only=True)
class RequestLimits:
    """Limits and modes of a request."""

    deadline_ms: float | None = None
    """Milliseconds that a request may take, its wait for a place included."""
    node_timeout_ms: float | None = None
    """Milliseconds that each node may take."""
    fusion: Literal["off", "chain", "auto"] = "auto"
    """Whether chains of CPU nodes run as one; auto: on the loop if that is quicker than a thread."""
    partial: Annotated[bool, Parameter(negative="", show_default=False)] = False
    """Answer with what is done by the deadline, and say what is missing."""
    cpu_threads: int | None = None
    """Threads for CPU nodes; as many as there are cores if not given."""

    @property
    def deadline(self) -> float | None:
        """In seconds, as the engine takes it."""
        return None if self.deadline_ms is None else self.deadline_ms / 1000

    @property
    def node_timeout(self) -> float | None:
        """In seconds, as the engine takes it."""
        return None if self.node_timeout_ms is None else self.node_timeout_ms / 1000
