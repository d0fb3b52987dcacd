"""What a generator can ask of the engine while it fills a cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import attrs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

T = TypeVar("T")


@attrs.define(eq=False)
class Usage:
    """What one task reported as used. Changed by `CellContext.report_usage` only."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    # The same by model, as (calls, input tokens, output tokens, cost).
    by_model: dict[str, tuple[int, int, int, float]] = attrs.field(factory=dict)
    # What of that was taken already.
    _taken: dict[str, tuple[int, int, int, float]] = attrs.field(factory=dict)

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def take(self) -> dict[str, tuple[int, int, int, float]]:
        """What was used of each model since this was last asked."""
        before, self._taken = self._taken, dict(self.by_model)
        if not before:
            return self._taken
        new = {}
        for model, (calls, input_tokens, output_tokens, cost) in self._taken.items():
            old = before.get(model, (0, 0, 0, 0.0))
            new[model] = (calls - old[0], input_tokens - old[1], output_tokens - old[2], cost - old[3])
        return new

    def add(self, model: str, calls: int, input_tokens: int, output_tokens: int, cost: float) -> None:
        """Count a call, or several."""
        self.calls += calls
        self.input_tokens += input_tokens
        self.output_tokens += output_tokens
        self.cost += cost
        before = self.by_model.get(model, (0, 0, 0, 0.0))
        self.by_model[model] = (
            before[0] + calls,
            before[1] + input_tokens,
            before[2] + output_tokens,
            before[3] + cost,
        )


@runtime_checkable
class CellContext(Protocol):
    """Handed to a generator that has a parameter of this type.

    `row` is the row's number in the whole dataset (None where the task is for a whole row group), `attempt` counts
    from 1.
    """

    @property
    def column(self) -> str: ...
    @property
    def row_group(self) -> int: ...
    @property
    def row(self) -> int | None: ...
    @property
    def attempt(self) -> int: ...
    @property
    def rows(self) -> Sequence[tuple[int, int]]:
        """Of a task for a whole row group: which rows its frame holds, in order: source row and copy (0: itself)."""
        ...

    def report_usage(
        self, *, calls: int = 1, input_tokens: int = 0, output_tokens: int = 0, cost: float = 0.0, model: str = ""
    ) -> None:
        """Add to what this task used, of which model; safe from a worker thread."""

    async def call(
        self,
        send: Callable[[], Awaitable[T]],
        *,
        key: str | None = None,
        tokens: int = 0,
        idempotency_key: Callable[[], bytes] | None = None,
    ) -> T:
        """Make one model call under a permit of `key` (the column's own if not given).

        The first call uses the permit that the task was started with. A `RateLimited` before any answer sends the cell
        back to its lane; after an answer it is waited out here, so that no answered call is ever repeated.

        `idempotency_key` identifies the call across attempts. Then its answer is stored when a
        later call of the cell fails, or the whole run dies, and is returned again without being sent.
        """

    def give_back(self) -> None:
        """Give the permit that the task was started with back: it makes no call with it, or none for now."""

    def run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Await an async function from a synchronous generator, in its worker thread."""
