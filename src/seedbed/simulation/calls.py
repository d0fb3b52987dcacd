"""Simulated calls: they take their time and their tokens, are rate-limited and fail, and nothing leaves the process."""

from __future__ import annotations

import math
import random
import sys
from functools import partial
from typing import TYPE_CHECKING

import attrs
import trio

from ..errors import RateLimited, Retryable
from ..models.distributions import drawer, stable_seed

if TYPE_CHECKING:
    from ..generators import CellContext
    from .profiles import CallProfile


class Grid:
    """Rounds instants, so that calls of a large simulation that end at about the same time end in one step of the loop.

    Up or down by chance, by how near each is, so that on average nothing takes longer or shorter. Without it a large
    simulation takes a third longer (benchmarks/simulation.py).
    """

    def __init__(self, seconds: float, rng: random.Random) -> None:
        """With 0 seconds nothing is rounded."""
        self._seconds = seconds
        self._chance = rng.random

    async def sleep(self, seconds: float) -> None:
        """As `trio.sleep`, until the rounded instant."""
        until = trio.current_time() + seconds
        if self._seconds:
            until = math.floor(until / self._seconds + self._chance()) * self._seconds
        await trio.sleep_until(until)


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
        grid: Grid,
        processor: Processor,
        seed: int,
        timeout: float,
        max_tokens: int | None,
        prices: tuple[float, float],
    ) -> None:
        """Prices are those of one token, of the prompt and of the answer."""
        rng = random.Random(stable_seed(seed, column, alias))
        self.alias = alias
        self.profile = profile
        self._name = f"model {alias!r}"
        self._line = line
        self._sleep = grid.sleep
        self._processor = processor
        self._timeout = timeout
        self._prices = prices
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
        self._rendered: list[int] = []  # tokens of prompts that were rendered, for calls whose prompt is not

    def tokens(self, rendered: int | None = None) -> tuple[int, int]:
        """The usage of a call; the tokens of its prompt count unless the profile has others."""
        if self._input is not None:
            asked = self._input()
        elif rendered is not None:
            self._rendered.append(rendered)
            asked = rendered
        else:
            asked = self._rendered[int(self.chance() * len(self._rendered))] if self._rendered else 0
        return max(0, round(asked)), min(self._most, max(0, round(self._output())))

    async def call(self) -> None:
        """Take as long as a call takes; raises its error, if it has no answer."""
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

    async def make_calls(self, context: CellContext, *, key: str | None = None) -> None:
        """Make the calls of one cell that its generator is not run for, under permits of `key` (None: the column's)."""
        count = self._whole_calls + (self._more > 0 and self.chance() < self._more)
        if count == 1 and key is None:
            # Most cells: under the permit that the task was started with, as it settles it (benchmarks/simulation.py).
            await self._send(context)
            return
        for _ in range(count):
            await context.call(partial(self._send, context), key=key)

    async def _send(self, context: CellContext) -> None:
        await self.call()
        asked, answered = self.tokens()
        cost = asked * self._prices[0] + answered * self._prices[1]
        context.report_usage(model=self.alias, input_tokens=asked, output_tokens=answered, cost=cost)

    async def _refuse(self) -> None:
        await self._sleep(max(0.0, self._quick()))
        raise RateLimited(f"{self._name}: answered 429 (simulated)", retry_after=self.profile.retry_after)
