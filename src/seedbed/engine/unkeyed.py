"""Latency and rate limits of steps without a throttle key."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ..errors import QuotaExhausted
from ..runtime.backoff import backoff_base, backoff_delay, parse_retry_after

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from ..errors import BuildStopped, RateLimited
    from .config import RunConfig
    from .tasks import Outcome, Step, Task


class UnkeyedSteps:
    """Latency and rate limits of steps that have no throttle key."""

    def __init__(
        self,
        config: RunConfig,
        rng: random.Random,
        now: Callable[[], float],
        *,
        mean_latency_of_key: Callable[[str], float | None],
        stop: Callable[[BuildStopped], None],
    ) -> None:
        self._config = config
        self._rng = rng
        self._now = now
        self._mean_latency_of_key = mean_latency_of_key
        self._stop = stop
        self._latency: dict[str, float] = {}
        # When a step was first rate-limited since it last succeeded.
        self._limited_since: dict[str, float] = {}

    def mean_latency(self, step: Step) -> float | None:
        """How long a call of the step's key takes, or an attempt of a step without one; None until one succeeded."""
        return self._latency.get(step.name) if step.key is None else self._mean_latency_of_key(step.key)

    def succeeded(self, outcome: Outcome) -> None:
        """An attempt succeeded."""
        name, seconds = outcome.task.step.name, outcome.seconds
        known = self._latency.get(name)
        self._latency[name] = seconds if known is None else known + 0.1 * (seconds - known)
        if self._limited_since:
            self._limited_since.pop(name, None)

    def rate_limited(self, task: Task, error: RateLimited) -> float:
        """How long a task waits that was rate-limited without a permit; stops the run when patience ends."""
        step, config, now = task.step, self._config, self._now()
        delay = parse_retry_after(error.retry_after, time.time())
        if delay is None:
            base = backoff_base(self.mean_latency(step), config.backoff_base)
            delay = backoff_delay(task.rate_limits + 1, base, config.backoff_max, self._rng)
        if step.key is not None:
            return delay
        until = self._limited_since.setdefault(step.name, now) + config.throttle_patience
        # The clock adds a rounding error to the last wait.
        if until - now <= config.throttle_patience * 1e-9:
            self._stop(QuotaExhausted(step.name, config.throttle_patience, error))
        return min(delay, max(0.0, until - now))
