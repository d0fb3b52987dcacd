"""What becomes of a task that failed in a way that may pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from ..runtime.backoff import backoff_base, backoff_delay
from .shutdown import SalvageWindow

if TYPE_CHECKING:
    import random

    from .config import RunConfig
    from .tasks import Cell, Group

G = TypeVar("G", bound="Group")


class Salvage(Generic[G]):
    """The deferred tasks of one row group. Synchronous; its row group is the only one to change it.

    A task is tried `salvage_max_rounds` + 1 times at most. Deferred tasks wait until their row group has nothing ready,
    and then all go out together, each not before its own backoff is over: one salvage round.
    """

    def __init__(self, config: RunConfig, rng: random.Random) -> None:
        self._max_attempts = config.salvage_max_rounds + 1
        self._base = config.backoff_base
        self._max = config.backoff_max
        self._rng = rng
        self._deferred: dict[Cell[G], float] = {}  # when each is eligible, in the order in which they failed
        self.rounds = 0
        self.window = SalvageWindow(config.shutdown_error_window, config.salvage_error_threshold)

    def __len__(self) -> int:
        return len(self._deferred)

    def defer(self, cell: Cell[G], now: float, mean_latency: float | None) -> float | None:
        """Keep a failed task for the next round and say when it is eligible; None when it has no attempts left."""
        if cell.attempt >= self._max_attempts:
            return None
        base = backoff_base(mean_latency, self._base)
        eligible_at = now + backoff_delay(cell.attempt, base, self._max, self._rng)
        self._deferred[cell] = eligible_at
        return eligible_at

    def start_round(self, rows: int) -> list[tuple[Cell[G], float]]:
        """Everything that is deferred, with when it is eligible; each begins its next attempt.

        `rows` is how many rows the row group has.
        """
        self.rounds += 1
        deferred, self._deferred = list(self._deferred.items()), {}
        self.window.round_started(self.rounds, len(deferred), rows)
        for cell, _ in deferred:
            cell.attempt += 1
            cell.salvage_round = self.rounds
            cell.refusals = 0
        return deferred

    def forget(self, cell: Cell[G]) -> None:
        """A deferred task's row was dropped, or an earlier run has tried the task again."""
        self._deferred.pop(cell, None)
