"""Consequences of failed attempts: retries, waits, models that are passed over, the end of the run."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import TYPE_CHECKING

import attrs

from ..errors import (
    BuildStopped,
    CellError,
    ModelMisconfigured,
    Permanent,
    QuotaExhausted,
    RateLimited,
    Retryable,
    SeedbedError,
    ThreadsStuck,
    Unreachable,
    is_out_of_memory,
)
from ..observe.tracebacks import code_place
from ..runtime.asyncio import looks_like_asyncio
from ..runtime.policy import backoff_base, backoff_delay, parse_retry_after
from ..runtime.tasks import leaves
from .tasks import Status

if TYPE_CHECKING:
    import random
    from collections import Counter
    from collections.abc import Callable

    from .config import RunConfig
    from .stateful import Instance
    from .tasks import Outcome, Step, Task

# A salvage round of fewer cells, or of a smaller share of its row group, does not stop the run: a few rows that fail
# again and again only fail themselves.
SALVAGE_MINIMUM = 10
SALVAGE_SHARE = 0.1


def classify(step: Step, error: Exception) -> tuple[Status, Exception]:
    """The status of an attempt that raised, and the exception that explains it."""
    if isinstance(error, ExceptionGroup):
        # A generator's own nursery raised it: the leaf that weighs most stands for all, of equals the first.
        error = max((leaf for leaf in leaves(error) if isinstance(leaf, Exception)), key=_weight)
    if isinstance(error, RateLimited):
        return Status.RATE_LIMITED, error
    if isinstance(error, Retryable) or (step.column is not None and isinstance(error, step.column.retry_on)):
        return Status.RETRYABLE, error
    if looks_like_asyncio(error):
        explained = Permanent(f"its code is written for asyncio: pass runtime='asyncio' to the column ({error})")
        explained.__cause__ = error
        return Status.PERMANENT, explained
    return Status.PERMANENT, error


def _weight(error: Exception) -> int:
    if not isinstance(error, CellError):
        return 3
    return 2 if isinstance(error, Permanent) else 1 if isinstance(error, Retryable) else 0


def error_text(error: BaseException) -> str:
    """One line for reports: the class, unless it is one of ours, the message, and where a user's code raised it."""
    # Without lone surrogates, which neither the journal nor a terminal can hold.
    message = " ".join(str(error).encode("utf-8", "backslashreplace").decode().split())
    if type(error) in (Permanent, Retryable, Unreachable, ModelMisconfigured) and message:
        return message
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    place = code_place(error)
    return f"{text} ({place})" if place else text


def error_code(error: BaseException) -> str:
    """The stable word for the kind of a failure; `exception` for whatever a function of the user's raised."""
    return error.code if isinstance(error, CellError) else "exception"


def locate(error: Exception, row_group: int, task: Task | None = None, row: int | None = None) -> None:
    """Add a note to an unexpected exception: the column and row it is about, which our own errors contain."""
    if isinstance(error, SeedbedError) or any(note.startswith("(column=") for note in getattr(error, "__notes__", ())):
        return
    column = None if task is None else task.step.name
    error.add_note(f"({column=}, {row_group=}, {row=})")


def is_panic(error: BaseException) -> bool:
    """True if Rust code panicked, polars for example; pyo3 raises a BaseException that cannot be imported."""
    return type(error).__name__ == "PanicException"


def breakdown(error: BaseException, where: str = "") -> BuildStopped | None:
    """The error to stop with if memory ran out or a library panicked; None for any other error."""
    if is_out_of_memory(error):
        details = f" ({error})" if str(error) else ""
        stopped = BuildStopped(
            f"{where}memory ran out{details}; finished cells are stored; resume with a smaller buffer_size, "
            "max_concurrent_row_groups or max_processes, or with more memory"
        )
    elif is_panic(error):
        details = str(error).partition("\n")[0]
        stopped = BuildStopped(f"{where}polars failed internally ({details}); finished cells are stored")
    else:
        return None
    stopped.__cause__ = error
    return stopped


@attrs.define(eq=False)
class ErrorWindow:
    """A sliding window of outcomes; flow control never enters it.

    Failures are quicker than successes, so the first outcomes of many tasks in flight are mostly errors. The window is
    therefore never smaller than the number of tasks in flight, and there is no verdict before it is full.
    """

    size: int
    threshold: float
    errors: int = attrs.field(init=False, default=0)
    _outcomes: deque[bool] = attrs.field(init=False, factory=deque)

    def __len__(self) -> int:
        return len(self._outcomes)

    def record(self, *, error: bool, in_flight: int = 0) -> bool:
        """Enter an outcome; True if the share of errors now exceeds the threshold."""
        outcomes = self._outcomes
        outcomes.append(error)
        if error:
            self.errors += 1
        size = self.size if self.size > in_flight else in_flight
        while len(outcomes) > size:
            if outcomes.popleft():
                self.errors -= 1
        return error and len(outcomes) >= size and self.errors > self.threshold * len(outcomes)


@attrs.define(eq=False)
class Salvage:
    """The deferred tasks of one row group, which is the only one to change it.

    A task has `salvage_max_rounds` + 1 attempts. Deferred tasks wait until their row group has nothing ready; then all
    of them are retried, each not before the end of its backoff: one salvage round.

    A round has an error window of its own, at most as large as the round. One of a few cells is about those rows and
    not about the run: they are dropped, and nothing stops.
    """

    _config: RunConfig
    _rng: random.Random
    rounds: int = attrs.field(init=False, default=0)
    # When each task is eligible, in the order in which they failed.
    _deferred: dict[Task, float] = attrs.field(init=False, factory=dict)
    _judged_round: int = attrs.field(init=False, default=0)
    _window: ErrorWindow | None = attrs.field(init=False, default=None)

    def __len__(self) -> int:
        return len(self._deferred)

    def defer(self, task: Task, now: float, mean_latency: float | None) -> float | None:
        """Defer a failed task to the next round and return when it is eligible; None if it has no attempts left."""
        config = self._config
        if task.attempt > config.salvage_max_rounds:
            return None
        base = backoff_base(mean_latency, config.backoff_base)
        eligible_at = now + backoff_delay(task.attempt, base, config.backoff_max, self._rng)
        self._deferred[task] = eligible_at
        return eligible_at

    def start_round(self, rows: int) -> list[tuple[Task, float]]:
        """All deferred tasks of a row group of `rows` rows, each with its next attempt and when it is eligible."""
        self.rounds += 1
        deferred, self._deferred = list(self._deferred.items()), {}
        cells = len(deferred)
        if cells >= SALVAGE_MINIMUM and cells >= SALVAGE_SHARE * rows:
            self._judged_round = self.rounds
            size = min(self._config.shutdown_error_window, cells)
            self._window = ErrorWindow(size, self._config.salvage_error_threshold)
        for task, _ in deferred:
            task.attempt += 1
            task.salvage_round = self.rounds
            task.rate_limits = 0
        return deferred

    def record(self, number: int, *, error: bool) -> ErrorWindow | None:
        """Enter the outcome of a cell of round `number`; returns the window when its errors exceed the threshold."""
        window = self._window if number == self._judged_round else None
        return window if window is not None and window.record(error=error) else None

    def discard(self, task: Task) -> None:
        """A task is no longer deferred: its row was dropped, or an earlier run retried it."""
        self._deferred.pop(task, None)


@attrs.define(eq=False)
class Availability:
    """The keys that failed not long ago: cells with other models pass them over. Used on one thread."""

    _seconds: float
    _down_until: dict[str, float] = attrs.field(init=False, factory=dict)

    def failed(self, key: str, now: float) -> None:
        """Calls of a key failed, and another model was called."""
        self._down_until[key] = now + self._seconds

    def answered(self, key: str) -> None:
        """A key answers."""
        if self._down_until:
            self._down_until.pop(key, None)

    def passes_over(self, key: str, now: float) -> bool:
        """True if a cell should not call a key now; when the time is over, one cell tries it for all."""
        until = self._down_until.get(key)
        if until is None:
            return False
        if now >= until:
            self._down_until[key] = now + self._seconds
            return False
        return True


@attrs.define(eq=False)
class AbandonedThreads:
    """Threads of tasks that were cancelled or timed out, as long as they run: they hold their slots."""

    _slots: int
    _grace: float
    running: Counter[str]  # by column; changed by this class only
    _ended: int = attrs.field(init=False, default=0)
    # (when, how many had ended, column, its stateful generator)
    _checks: list[tuple[float, int, str, Instance | None]] = attrs.field(init=False, factory=list)

    def add(self, column: str, instance: Instance | None, now: float) -> None:
        """A thread was abandoned, in this stateful generator if its column has one."""
        self.running[column] += 1
        if instance is not None or self.running.total() >= self._slots:
            self._checks.append((now + self._grace, self._ended, column, instance))

    def ended(self, column: str) -> None:
        """An abandoned thread really ended."""
        self._ended += 1
        self.running[column] -= 1

    @property
    def next_check(self) -> float:
        """When `stuck` is to be asked next."""
        return min((when for when, *_ in self._checks), default=math.inf)

    def stuck(self, now: float) -> ThreadsStuck | None:
        """The error to stop with if abandoned threads held everything for `grace` and none of them ended."""
        due = [check for check in self._checks if check[0] <= now and check[1] == self._ended]
        self._checks = [check for check in self._checks if check[0] > now]
        for _, _, column, instance in due:
            if self.running.total() >= self._slots:
                columns = [name for name, count in self.running.items() if count]
                return ThreadsStuck(columns, f"all {self._slots} execution slots", self._grace)
            if instance is not None and instance.wanted:
                return ThreadsStuck([column], "a stateful generator that others need", self._grace)
        return None


@attrs.frozen(eq=False)
class UnkeyedSteps:
    """Latency and rate limits of steps that have no throttle key."""

    _config: RunConfig
    _rng: random.Random
    _now: Callable[[], float]
    _mean_latency_of_key: Callable[[str], float | None]
    _stop: Callable[[BuildStopped], None]
    _latency: dict[str, float] = attrs.field(init=False, factory=dict)
    # When a step was first rate-limited since it last succeeded.
    _limited_since: dict[str, float] = attrs.field(init=False, factory=dict)

    def mean_latency(self, step: Step) -> float | None:
        """Seconds of a call of the step's key, or of an attempt of a step without one; None until one succeeded."""
        return self._latency.get(step.name) if step.key is None else self._mean_latency_of_key(step.key)

    def succeeded(self, outcome: Outcome) -> None:
        name, seconds = outcome.task.step.name, outcome.seconds
        known = self._latency.get(name)
        self._latency[name] = seconds if known is None else known + 0.1 * (seconds - known)
        if self._limited_since:
            self._limited_since.pop(name, None)

    def rate_limited(self, task: Task, error: RateLimited) -> float:
        """Seconds that a task waits that was rate-limited without a permit; stops the run when patience ends."""
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
