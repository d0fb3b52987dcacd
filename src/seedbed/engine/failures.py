"""What failed attempts lead to: their class, retries in salvage rounds, waits after rate limits, the end of the run."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from ..errors import (
    BuildStopped,
    CellError,
    ModelMisconfigured,
    Permanent,
    QuotaExhausted,
    RateLimited,
    Retryable,
    SeedbedError,
)
from ..runtime.asyncio import looks_like_asyncio
from ..runtime.backoff import backoff_base, backoff_delay, parse_retry_after
from ..runtime.tasks import leaves
from .tasks import Status

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from .config import RunConfig
    from .tasks import Outcome, Step, Task

# A salvage round of fewer cells, or of a smaller share of its row group, says nothing about the run: rows that keep
# failing among others that do not are only rows.
SALVAGE_MINIMUM = 10
SALVAGE_SHARE = 0.1


def classify(step: Step, error: Exception) -> tuple[Status, Exception]:
    """What kind of failure this is, and the exception that says why."""
    if isinstance(error, ExceptionGroup):
        # A generator's own nursery raised it: the leaf that weighs most stands for all, of equals the first.
        error = max((leaf for leaf in leaves(error) if isinstance(leaf, Exception)), key=_weight)
    if isinstance(error, RateLimited):
        return Status.RATE_LIMITED, error
    if isinstance(error, Retryable) or (step.column is not None and isinstance(error, step.column.retry_on)):
        return Status.RETRYABLE, error
    if looks_like_asyncio(error):
        explained = Permanent(f"its code is written for asyncio: say runtime='asyncio' of the column ({error})")
        explained.__cause__ = error
        return Status.PERMANENT, explained
    return Status.PERMANENT, error


def _weight(error: Exception) -> int:
    if not isinstance(error, CellError):
        return 3
    return 2 if isinstance(error, Permanent) else 1 if isinstance(error, Retryable) else 0


def error_text(error: BaseException) -> str:
    """One line for reports: the class, unless it is one of ours, and the message."""
    # Without lone surrogates, which neither the journal nor a terminal can hold.
    message = " ".join(str(error).encode("utf-8", "backslashreplace").decode().split())
    if type(error) in (Permanent, Retryable, ModelMisconfigured) and message:
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def locate(error: Exception, row_group: int, task: Task | None = None, row: int | None = None) -> None:
    """Note on an unexpected exception what the engine was working on; our own errors contain it."""
    if isinstance(error, SeedbedError) or any(note.startswith("(column=") for note in getattr(error, "__notes__", ())):
        return
    column = None if task is None else task.step.name
    error.add_note(f"({column=}, {row_group=}, {row=})")


def is_panic(error: BaseException) -> bool:
    """Whether Rust code panicked, polars for example; pyo3 raises that as a BaseException that cannot be imported."""
    return type(error).__name__ == "PanicException"


def breakdown(error: BaseException, where: str = "") -> BuildStopped | None:
    """What ends a run where memory ran out or a library panicked; None for any other error."""
    if isinstance(error, MemoryError):
        said = f" ({error})" if str(error) else ""
        stopped = BuildStopped(
            f"{where}memory ran out{said}; what is finished is stored; resume with a smaller buffer_size, "
            "max_concurrent_row_groups or max_processes, or with more memory"
        )
    elif is_panic(error):
        said = str(error).partition("\n")[0]
        stopped = BuildStopped(f"{where}polars failed internally ({said}); what is finished is stored")
    else:
        return None
    stopped.__cause__ = error
    return stopped


class ErrorWindow:
    """A sliding window of outcomes; flow control never enters it.

    Failures are quicker than successes, so the first outcomes of many tasks in flight are mostly errors. The window is
    therefore never smaller than the number of tasks in flight, and there is no verdict before it is full.
    """

    def __init__(self, size: int, threshold: float) -> None:
        self.size = size
        self.threshold = threshold
        self._outcomes: deque[bool] = deque()
        self._errors = 0

    def __len__(self) -> int:
        return len(self._outcomes)

    @property
    def errors(self) -> int:
        return self._errors

    def record(self, *, error: bool, in_flight: int = 0) -> bool:
        """Enter an outcome; True when the share of errors has passed the threshold."""
        outcomes = self._outcomes
        outcomes.append(error)
        if error:
            self._errors += 1
        size = self.size if self.size > in_flight else in_flight
        while len(outcomes) > size:
            if outcomes.popleft():
                self._errors -= 1
        return error and len(outcomes) >= size and self._errors > self.threshold * len(outcomes)


class SalvageWindow:
    """Whether the salvage rounds of one row group show that trying again is no use now.

    Each round that can say something has a window of its own, at most as large as the round, and only its own cells
    enter it. A round of a few cells is about those rows and not about the run: they are dropped, and that is all.
    """

    def __init__(self, size: int, threshold: float) -> None:
        self._largest = size
        self.threshold = threshold
        self._round = 0
        self._window: ErrorWindow | None = None

    def round_started(self, number: int, cells: int, rows: int) -> None:
        """Salvage round `number` begins, with so many cells of a row group that has so many rows."""
        if cells >= SALVAGE_MINIMUM and cells >= SALVAGE_SHARE * rows:
            self._round = number
            self._window = ErrorWindow(min(self._largest, cells), self.threshold)

    def record(self, number: int, *, error: bool) -> ErrorWindow | None:
        """Enter the outcome of a cell of round `number`; gives the window when its errors have passed the threshold."""
        if self._window is None or number != self._round:
            return None
        return self._window if self._window.record(error=error) else None


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
