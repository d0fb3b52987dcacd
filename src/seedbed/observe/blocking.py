"""Notices code that keeps the event loop from running, and says whose it is.

Everything on the loop waits while one task computes or sleeps without awaiting: an `async def` column that does so
slows every other column down. Switched on where users' async code runs: it costs two clock readings for each step of
a task.
"""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = logging.getLogger("seedbed")

THRESHOLD = 0.1
"""Seconds that are worth a warning."""


class _Watch(trio.abc.Instrument):
    """Times each step of each task."""

    def __init__(self, threshold: float, on_block: Callable[[str, float], None], clock: Callable[[], float]) -> None:
        self._threshold = threshold
        self._on_block = on_block
        self._clock = clock
        self._began = 0.0

    def before_task_step(self, _task: trio.lowlevel.Task) -> None:
        self._began = self._clock()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        took = self._clock() - self._began
        if took >= self._threshold:
            self._on_block(task.name, took)


@contextmanager
def watch_blocking(
    on_block: Callable[[str, float], None],
    *,
    threshold: float = THRESHOLD,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[None]:
    """Call `on_block(name, seconds)` for every step of a task that takes `threshold` or longer; inside of a trio run.

    `name` is the task's name, which for a cell is that of its column. `on_block` runs on the loop, between two steps.
    """
    watch = _Watch(threshold, on_block, clock)
    trio.lowlevel.add_instrument(watch)
    try:
        yield
    finally:
        with suppress(KeyError):  # trio takes out itself what raises
            trio.lowlevel.remove_instrument(watch)


class BlockWarning:
    """Logs a warning the first time that each column blocks the loop, and again when it is ten times as long."""

    def __init__(self, columns: frozenset[str], log: logging.Logger = logger) -> None:
        self._columns = columns
        self._log = log
        self._longest: dict[str, float] = {}

    def __call__(self, name: str, seconds: float) -> None:
        """A step of the task `name` took so long; tasks that are no columns are the engine's own affair."""
        if name not in self._columns or seconds < 10 * self._longest.get(name, 0.0):
            return
        self._longest[name] = seconds
        self._log.warning(
            "async code of column %r held up everything else for %.0f ms: use await for what waits, and a plain def, "
            "which gets a thread, for what computes (column=%s)",
            name,
            seconds * 1000,
            name,
        )
