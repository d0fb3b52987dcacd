"""Rate-limiting servers and a client with a throttle policy, as a discrete-event simulation."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import attrs

from seedbed.runtime.policy import backoff_base, backoff_delay

if TYPE_CHECKING:
    from collections.abc import Callable

    from seedbed.runtime.policy import Sent, ThrottlePolicy


def steps(*changes: tuple[float, float]) -> Callable[[float], float]:
    """A capacity that is set anew at each (instant, capacity)."""
    return lambda now: [capacity for since, capacity in changes if since <= now][-1]


@attrs.frozen(kw_only=True)
class Server:
    """A server that accepts and rate-limits calls; times are in seconds."""

    capacity: Callable[[float], float] = lambda now: math.inf
    """Calls processed at once, by instant; further calls are rate-limited."""
    random_share: float = 0.0
    """The share of calls that are rate-limited at random."""
    latency: float = 0.05
    spread: float = 0.3
    """Sigma of the logarithm of the latency."""
    refusal: float = 0.1
    """The duration of a rate-limited answer, as a share of the mean latency."""
    queues: bool = False
    """Accepts everything: calls beyond the capacity slow all down."""


@attrs.frozen(kw_only=True)
class Outcome:
    """The result of a simulated run."""

    wall: float
    sends: int
    refusals: int
    history: list[tuple[float, int]]

    @property
    def rate_limited_share(self) -> float:
        return self.refusals / self.sends

    def mean_limit(self, start: float = 0.0) -> float:
        """The mean over time of the limit from an instant to the end."""
        ends = [*self.history[1:], (self.wall, 0)]
        area = sum(
            limit * max(0.0, until - max(since, start))
            for (since, limit), (until, _) in zip(self.history, ends, strict=True)
        )
        return area / (self.wall - start)

    def limit_at(self, instant: float) -> int:
        return [limit for since, limit in self.history if since <= instant][-1]


def simulate(server: Server, policy: ThrottlePolicy, calls: int, seed: int) -> Outcome:
    """Send `calls` calls to `server`, each until it is accepted, as fast as `policy` allows."""
    return _Run(server, policy, calls, seed).run()


class _Run:
    def __init__(self, server: Server, policy: ThrottlePolicy, calls: int, seed: int) -> None:
        self.server = server
        self.policy = policy
        self.rng = random.Random(seed)
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.ready = deque([1] * calls)  # which attempt it is of each call that may be sent
        self.calls_left = calls
        self.in_service = 0
        self.held = 0
        self.sends = self.refusals = self.pauses = 0
        self.paused_until = 0.0

    def run(self) -> Outcome:
        policy = self.policy
        history = [(0.0, policy.limit)]
        ticks_at = None
        while self.calls_left:
            while self.ready and policy.in_flight + self.held < policy.limit and self.now >= self.paused_until:
                self.send(self.ready.popleft())
            if policy.grows_at is not None and policy.grows_at != ticks_at:
                ticks_at = policy.grows_at
                self.after(ticks_at - self.now, lambda: policy.tick(self.now))
            self.now, _, event = heapq.heappop(self.events)
            event()
            if policy.limit != history[-1][1]:
                history.append((self.now, policy.limit))
        return Outcome(wall=self.now, sends=self.sends, refusals=self.refusals, history=history)

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now + seconds, next(self.order), event))

    def send(self, attempt: int) -> None:
        self.sends += 1
        sent = self.policy.sent(self.now)
        server = self.server
        capacity = server.capacity(self.now)
        if self.rng.random() < server.random_share or (self.in_service >= capacity and not server.queues):
            self.after(server.latency * server.refusal, partial(self.refused, sent, attempt))
            return
        self.in_service += 1
        latency = server.latency * self.rng.lognormvariate(-(server.spread**2) / 2, server.spread)
        self.after(latency * max(1.0, self.in_service / capacity), partial(self.answered, sent))

    def answered(self, sent: Sent) -> None:
        self.in_service -= 1
        self.calls_left -= 1
        self.pauses = 0
        self.policy.accepted(sent, self.now)

    def refused(self, sent: Sent, attempt: int) -> None:
        self.refusals += 1
        refusal = self.policy.rate_limited(sent, self.now)
        base = backoff_base(self.policy.mean_latency, 1.0)
        if refusal.hold:
            self.held += 1
            self.after(refusal.hold, self.let_go)
        if refusal.pause and self.now >= self.paused_until:
            self.pauses += 1
            pause = backoff_delay(self.pauses, base, 60.0, self.rng)
            self.paused_until = self.now + pause
            self.after(pause, lambda: None)
        delay = backoff_delay(max(1, attempt - refusal.by_chance), base, 60.0, self.rng)
        self.after(delay, partial(self.ready.append, attempt + 1))

    def let_go(self) -> None:
        self.held -= 1
