"""Simulated calls: they take their time and their tokens, are refused and fail, and nothing leaves the process."""

from __future__ import annotations

import math
import random
import sys
from typing import TYPE_CHECKING

import attrs
import trio

from ..errors import RateLimited, Retryable
from ..models.distributions import drawer, stable_seed
from ..runtime.timers import Timers

if TYPE_CHECKING:
    from .profiles import CallProfile


class Waits:
    """Waiting on a grid, so that what ends at about the same time ends in one step of the loop.

    An instant is rounded up or down by chance, by how near it is, so that on average nothing takes longer or shorter.
    Changed by the tasks that wait and by `run`, on one thread.
    """

    def __init__(self, grid: float, rng: random.Random) -> None:
        self._grid = grid
        self._chance = rng.random
        self._timers = Timers()
        self._due: dict[int, set[trio.lowlevel.Task]] = {}

    async def run(self) -> None:
        """Wake whoever is due, until cancelled."""
        await self._timers.run()

    async def sleep(self, seconds: float) -> None:
        """As `trio.sleep`, a third quicker: no scope and no exception for each wait."""
        now = trio.current_time()
        tick = math.floor((now + seconds) / self._grid + self._chance())
        if tick * self._grid <= now:
            await trio.lowlevel.checkpoint()
            return
        tasks = self._due.get(tick)
        if tasks is None:
            tasks = self._due[tick] = set()
            self._timers.call_at(tick * self._grid, lambda: self._wake(tick))
        task = trio.lowlevel.current_task()
        tasks.add(task)

        def abort(_: object) -> trio.lowlevel.Abort:
            tasks.discard(task)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def _wake(self, tick: int) -> None:
        for task in self._due.pop(tick):
            trio.lowlevel.reschedule(task)


class Processor:
    """The one thread that makes all calls of a run: each takes it for a little while, one after the other."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._busy_until = 0.0  # changed by `take` only

    def take(self) -> float:
        """How long a call that begins now waits for the thread, its own share of it included."""
        now = trio.current_time()
        self._busy_until = max(now, self._busy_until) + self._seconds
        return self._busy_until - now


@attrs.define(eq=False)
class Line:
    """What all calls of one throttle key share. Changed by their callers."""

    in_flight: int = 0


class Caller:
    """Makes the calls of one column to one model, as their profile says."""

    def __init__(
        self,
        column: str,
        alias: str,
        profile: CallProfile,
        *,
        line: Line,
        waits: Waits,
        processor: Processor,
        seed: int,
        timeout: float,
        max_tokens: int | None,
    ) -> None:
        rng = random.Random(stable_seed(seed, column, alias))
        self.alias = alias
        self.profile = profile
        self._name = f"model {alias!r}"
        self._line = line
        self._sleep = waits.sleep
        self._processor = processor
        self._timeout = timeout
        self.chance = rng.random
        self._latency = drawer(profile.latency, rng)
        self._quick = drawer(profile.refusal_latency, rng)
        self._input = None if profile.input_tokens is None else drawer(profile.input_tokens, rng)
        self._output = drawer(profile.output_tokens, rng)
        self._most = max_tokens or sys.maxsize
        self._refused = profile.refused or 0.0
        self._fails = self._refused + (profile.failed or 0.0)
        calls = profile.calls or 1.0
        self._whole_calls, self._more = int(calls), calls - int(calls)
        # Tokens of prompts that were really rendered, for those that are not.
        self.rendered: list[int] = []

    def count(self) -> int:
        """How many calls the next cell makes."""
        return self._whole_calls + (self._more > 0 and self.chance() < self._more)

    def tokens(self, rendered: int | None = None) -> tuple[int, int]:
        """What a call uses; the prompt's own number counts where nothing else is said."""
        if self._input is not None:
            asked = self._input()
        elif rendered is not None:
            self.rendered.append(rendered)
            asked = rendered
        else:
            asked = self.rendered[int(self.chance() * len(self.rendered))] if self.rendered else 0
        return max(0, round(asked)), min(self._most, max(0, round(self._output())))

    async def call(self) -> None:
        """Take as long as a call takes; raises what becomes of it, if that is no answer."""
        line, profile = self._line, self.profile
        if profile.capacity is not None and line.in_flight >= profile.capacity:
            await self._refuse()
        if self._fails:
            chance = self.chance()
            if chance < self._refused:
                await self._refuse()
            if chance < self._fails:
                await self._sleep(max(0.0, self._quick()))
                raise Retryable(f"{self._name}: answered 503 (simulated)")
        seconds = max(0.0, self._latency())
        line.in_flight += 1
        try:
            await self._sleep(min(seconds, self._timeout) + self._processor.take())
        finally:
            line.in_flight -= 1
        if seconds > self._timeout:
            raise Retryable(f"{self._name}: no answer within {self._timeout:g} s (simulated)")

    async def _refuse(self) -> None:
        await self._sleep(max(0.0, self._quick()))
        raise RateLimited(f"{self._name}: answered 429 (simulated)", retry_after=self.profile.retry_after)
