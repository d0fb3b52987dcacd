"""What a generator can ask of the engine while it fills a cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import attrs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


@attrs.define(eq=False)
class Usage:
    """What one task reported as used. Changed by `CellContext.report_usage` only."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


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

    def report_usage(self, *, calls: int = 1, input_tokens: int = 0, output_tokens: int = 0, cost: float = 0.0) -> None:
        """Add to what this task used; safe from a worker thread."""

    async def call(self, send: Callable[[], Awaitable[T]], *, key: str | None = None, tokens: int = 0) -> T:
        """Make one model call under a permit of `key` (the column's own if not given).

        The first call uses the permit that the task was started with. A `RateLimited` before any answer sends the cell
        back to its lane; after an answer it is waited out here, so that no answered call is ever repeated.
        """

    def run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Await an async function from a synchronous generator, in its worker thread."""
