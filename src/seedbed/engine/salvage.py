"""Salvage rounds: retries of the failed tasks of one row group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..runtime.backoff import backoff_base, backoff_delay
from .error_window import SalvageWindow

if TYPE_CHECKING:
    import random

    from .config import RunConfig
    from .tasks import Task


class Salvage:
    """The deferred tasks of one row group, which is the only one to change it.

    A task has `salvage_max_rounds` + 1 attempts. Deferred tasks wait until their row group has nothing ready; then all
    of them are retried, each not before the end of its backoff: one salvage round.
    """

    def __init__(self, config: RunConfig, rng: random.Random) -> None:
        self._max_attempts = config.salvage_max_rounds + 1
        self._base = config.backoff_base
        self._max = config.backoff_max
        self._rng = rng
        self._deferred: dict[Task, float] = {}  # when each is eligible, in the order in which they failed
        self.rounds = 0
        self.window = SalvageWindow(config.shutdown_error_window, config.salvage_error_threshold)

    def __len__(self) -> int:
        return len(self._deferred)

    def defer(self, task: Task, now: float, mean_latency: float | None) -> float | None:
        """Keep a failed task for the next round and return when it is eligible; None if it has no attempts left."""
        if task.attempt >= self._max_attempts:
            return None
        base = backoff_base(mean_latency, self._base)
        eligible_at = now + backoff_delay(task.attempt, base, self._max, self._rng)
        self._deferred[task] = eligible_at
        return eligible_at

    def start_round(self, rows: int) -> list[tuple[Task, float]]:
        """All deferred tasks, with when each is eligible; each begins its next attempt.

        `rows` is how many rows the row group has.
        """
        self.rounds += 1
        deferred, self._deferred = list(self._deferred.items()), {}
        self.window.round_started(self.rounds, len(deferred), rows)
        for task, _ in deferred:
            task.attempt += 1
            task.salvage_round = self.rounds
            task.rate_limits = 0
        return deferred

    def discard(self, task: Task) -> None:
        """A task is no longer deferred: its row was dropped, or an earlier run retried it."""
        self._deferred.pop(task, None)
