"""Adaptive concurrency and rate limits, one throttle per (provider, model, domain)."""

from __future__ import annotations

import math
import random
import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import attrs
import trio

from .. import checks
from ..errors import QuotaExhausted
from .asyncio import anywhere_context
from .policy import RateBudget, ThrottlePolicy, backoff_base, backoff_delay, parse_retry_after
from .tasks import Timers, open_hidden_nursery

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from ..errors import RateLimited
    from .policy import Sent

T = TypeVar("T")

_rate = checks.optional(checks.above(0, "None for no limit, or a number"))


# Without slots: the specs of models extend it, and have several base classes.
@attrs.frozen(kw_only=True, slots=False)
class KeyLimits:
    """The limits of one key."""

    max_parallel_requests: int = attrs.field(default=32, validator=checks.whole(1))
    """The ceiling of calls in flight; below it the throttle finds what the server accepts."""
    requests_per_minute: float | None = attrs.field(default=None, validator=_rate)
    """How many calls may be sent in a minute."""
    tokens_per_minute: float | None = attrs.field(default=None, validator=_rate)
    """How many tokens of prompts and answers calls may use in a minute."""
    latency_congestion: bool = attrs.field(default=False, validator=checks.flag)
    """Treat rising latency as congestion: for a server that queues calls in place of rate-limiting them."""


@attrs.frozen(kw_only=True)
class ThrottleStatistics:
    """A throttle at one instant."""

    key: str
    """The throttle key."""
    limit: int
    """How many calls may be in flight now."""
    ceiling: int
    """The most that the limit may be."""
    in_flight: int
    """Calls that are in flight."""
    held: int
    """Permits of rate-limited calls that are not free yet."""
    sent: int
    """Calls that were sent."""
    accepted: int
    """Calls that the server answered."""
    rate_limited: int
    """Calls that it rate-limited."""
    failed: int
    """Calls that failed in another way."""
    tokens: int
    """Tokens that calls reported to have used."""
    paused_until: float | None
    """The instant of trio's clock until which nothing is sent; None if it does not pause."""
    mean_latency: float | None
    """The mean seconds of recent answers; None before the first."""


class Permit:
    """Permission to send one call, which counts as in flight from now on; exactly one of its methods ends it."""

    __slots__ = ("_throttle", "key", "sent", "tokens")

    def __init__(self, throttle: Throttle, tokens: int) -> None:
        self._throttle = throttle
        self.tokens = tokens  # the estimate
        self.key = throttle.key
        self.sent: Sent | None = None  # the policy's record, set by the throttle while the call is on the wire

    def accepted(self, tokens: int | None = None) -> None:
        """The server answered; `tokens` is the usage that it reported."""
        self._throttle.end_call(self, tokens, is_accepted=True)

    def finished(self, tokens: int | None = None) -> None:
        """The call ended otherwise: an error, a timeout, a cancellation."""
        self._throttle.end_call(self, tokens, is_accepted=False)

    def unused(self) -> None:
        """No call was sent."""
        self._throttle.end_unused(self)

    def rate_limited(self, error: RateLimited, attempt: int) -> float:
        """The server rate-limited the call for the `attempt`-th time (from 1): seconds to wait before the next attempt.

        Raises `QuotaExhausted` when the key has accepted nothing for as long as patience lasts.
        """
        return self._throttle.end_rate_limited(self, error, attempt)


class Throttle:
    """Decides how many calls of one key are in flight. Everything here is synchronous: check and action are one step.

    The limiter's `total_tokens` is the number of calls that may be in flight: the policy's limit, 0 during a pause.
    Permits are its borrowers. The manager holds the settings that all keys share.
    """

    def __init__(self, key: str, limits: KeyLimits, manager: ThrottleManager) -> None:
        self.key = key
        self.limits = limits
        self._manager = manager

        now = trio.current_time()
        self._policy = ThrottlePolicy(limits.max_parallel_requests, latency_congestion=limits.latency_congestion)
        self._limiter = trio.CapacityLimiter(self._policy.limit)
        self._tick_pending = False

        self._rates: RateBudget | None = None
        if limits.requests_per_minute is not None or limits.tokens_per_minute is not None:
            self._rates = RateBudget(limits.requests_per_minute, limits.tokens_per_minute, now)
        self._wake_at = math.inf  # when the listeners are called because the rates allow the next call
        self._paused_until: float | None = None
        self._pauses = 0  # since the last acceptance
        # The first rate limit since the last acceptance, and the instant by which a call should have been sent since.
        self._limited_since: float | None = None
        self._next_due = -math.inf

        self._listeners: list[Callable[[], None]] = []
        self._sent = self._accepted = self._rate_limited = self._failed = self._used_tokens = 0

    @property
    def mean_latency(self) -> float | None:
        """Mean seconds of an accepted call; None before the first."""
        return self._policy.mean_latency

    @property
    def limit(self) -> int:
        """Calls that may be in flight at once; 0 during a pause."""
        return int(self._limiter.total_tokens)

    @property
    def pause_left(self) -> float:
        """The seconds for which nothing will be sent, because the server said so or nearly everything was refused."""
        return 0.0 if self._paused_until is None else max(0.0, self._paused_until - trio.current_time())

    @property
    def limited_for(self) -> float:
        """The seconds for which every call has been rate-limited."""
        return 0.0 if self._limited_since is None else trio.current_time() - self._limited_since

    @property
    def full(self) -> bool:
        """True if `try_acquire` would fail now, whatever the rates allow."""
        return self._limiter.available_tokens <= 0

    @property
    def will_notify(self) -> bool:
        """True if something is under way that calls the listeners: a permit, a pause or a wait for the rates ends."""
        return self._limiter.borrowed_tokens > 0 or self._paused_until is not None or self._wake_at < math.inf

    @property
    def in_flight(self) -> int:
        return self._policy.in_flight

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` whenever `try_acquire` may succeed where it failed before; returns the unsubscribe function.

        It is called synchronously when a permit or a wait ends, and may itself acquire permits but not end them.
        """
        return _add(self._listeners, listener)

    def try_acquire(self, tokens: int = 0) -> Permit | None:
        """A permit for a call of about `tokens` tokens, or None; the listeners are called when to try again."""
        if self._limiter.available_tokens <= 0:
            return None
        now = trio.current_time()
        if self._rates is not None:
            ready = self._rates.ready_at(now, tokens)
            if ready > now:
                self._wake_at_latest(ready)
                return None
        idle_since = self._next_due + self._manager.patience / 2
        if self._limited_since is not None and not self._policy.in_flight and now > idle_since:
            # The rate limits before a long time without calls say nothing about now.
            self._limited_since = None
            self._pauses = 0
        permit = Permit(self, tokens)
        self._limiter.acquire_on_behalf_of_nowait(permit)
        self._sent += 1
        if self._rates is not None:
            self._rates.add(now, -1.0, -tokens)
        permit.sent = self._policy.sent(now)
        self._plan_tick()
        return permit

    def end_call(self, permit: Permit, tokens: int | None, *, is_accepted: bool) -> None:
        sent = self._settle(permit, tokens)
        if is_accepted:
            self._policy.accepted(sent, trio.current_time())
            self._accepted += 1
            self._limited_since = None
            self._pauses = 0
        else:
            self._policy.finished(sent)
            self._failed += 1
        self._release(permit)

    def end_unused(self, permit: Permit) -> None:
        self._policy.unsent(self._settle(permit, None))
        self._sent -= 1
        if self._rates is not None:
            self._rates.add(trio.current_time(), 1.0, permit.tokens)
        self._release(permit)

    def end_rate_limited(self, permit: Permit, error: RateLimited, attempt: int) -> float:
        settings = self._manager
        now = trio.current_time()
        # The server counted the request, but it used no tokens.
        verdict = self._policy.rate_limited(self._settle(permit, 0), now)
        self._rate_limited += 1
        if self._limited_since is None:
            self._limited_since = now
        # Nothing waits longer than patience lasts, so that one last call can decide.
        left = max(0.0, self._limited_since + settings.patience - now)
        base = backoff_base(self.mean_latency, settings.backoff_base)
        wall_now = settings.wall_clock()
        delay = parse_retry_after(error.retry_after, wall_now)
        reset = parse_retry_after(error.reset, wall_now)
        if reset is not None:
            self._pause(now, min(reset, left))
        elif verdict.pause and self._paused_until is None:
            self._pauses += 1
            pause = backoff_delay(self._pauses, base, settings.backoff_max, settings.rng) if delay is None else delay
            self._pause(now, min(pause, left))
        if delay is None:
            delay = backoff_delay(max(1, attempt - verdict.by_chance), base, settings.backoff_max, settings.rng)
        delay = min(delay, left)
        self._next_due = max(self._next_due, now + delay, self._paused_until or now)
        if verdict.hold and left:
            settings.timers.call_at(now + min(verdict.hold, left), partial(self._release, permit))
            self._update()
        else:
            self._release(permit)
        # The clock adds a rounding error to `left`.
        if left <= settings.patience * 1e-9:
            raise QuotaExhausted(self.key, settings.patience, error)
        return delay

    def statistics(self) -> ThrottleStatistics:
        in_flight = self._policy.in_flight
        return ThrottleStatistics(
            key=self.key,
            limit=self._policy.limit,
            ceiling=self.limits.max_parallel_requests,
            in_flight=in_flight,
            held=self._limiter.borrowed_tokens - in_flight,
            sent=self._sent,
            accepted=self._accepted,
            rate_limited=self._rate_limited,
            failed=self._failed,
            tokens=self._used_tokens,
            paused_until=self._paused_until,
            mean_latency=self.mean_latency,
        )

    def _plan_tick(self) -> None:
        if not self._tick_pending and (grows_at := self._policy.grows_at) is not None:
            self._tick_pending = True
            self._manager.timers.call_at(grows_at, self._tick)

    def _tick(self) -> None:
        self._tick_pending = False
        self._policy.tick(trio.current_time())
        self._update()
        self._plan_tick()

    def _settle(self, permit: Permit, tokens: int | None) -> Sent:
        """Take the record of a call from its permit, and replace the estimate by the usage if that is known."""
        sent, permit.sent = permit.sent, None
        if sent is None:
            raise RuntimeError("a permit was ended twice")
        if tokens is not None:
            self._used_tokens += tokens
            if self._rates is not None:
                self._rates.add(trio.current_time(), 0.0, permit.tokens - tokens)
        return sent

    def _release(self, permit: Permit) -> None:
        self._limiter.release_on_behalf_of(permit)
        self._update()

    def _pause(self, now: float, seconds: float) -> None:
        until = now + seconds
        if seconds > 0 and (self._paused_until is None or until > self._paused_until):
            self._paused_until = until
            self._manager.timers.call_at(until, self._wake)

    def _wake_at_latest(self, when: float) -> None:
        if when < self._wake_at:
            self._wake_at = when
            self._manager.timers.call_at(when, self._wake)

    def _wake(self) -> None:
        """End a pause or a wait for the rates, unless another instant has replaced this one."""
        now = trio.current_time()
        if self._paused_until is not None and now >= self._paused_until:
            self._paused_until = None
        if now >= self._wake_at:
            self._wake_at = math.inf
        self._update()

    def _update(self) -> None:
        """Apply the limit of the policy, and call the listeners if another call may be sent."""
        limit = 0 if self._paused_until is not None else self._policy.limit
        if limit != self._limiter.total_tokens:
            self._limiter.total_tokens = limit
            for watcher in tuple(self._manager.watchers):
                watcher(self.key, limit)
        if self._limiter.available_tokens > 0:
            for listener in tuple(self._listeners):
                listener()


@attrs.define(eq=False, kw_only=True)
class ThrottleManager:
    """The throttles of all keys, created on first use, and the settings that they share."""

    limits: Mapping[str, KeyLimits]
    default: KeyLimits = attrs.field(factory=KeyLimits)  # of keys that `limits` does not name
    timers: Timers
    patience: float
    backoff_base: float
    backoff_max: float
    rng: random.Random
    wall_clock: Callable[[], float] = time.time
    _throttles: dict[str, Throttle] = attrs.field(factory=dict, init=False)
    watchers: list[Callable[[str, int], None]] = attrs.field(factory=list, init=False)  # changed by `watch` only

    def get(self, key: str) -> Throttle:
        throttle = self._throttles.get(key)
        if throttle is None:
            throttle = self._throttles[key] = Throttle(key, self.limits.get(key, self.default), self)
        return throttle

    def keys(self) -> tuple[str, ...]:
        """The keys used so far."""
        return tuple(self._throttles)

    def statistics(self) -> dict[str, ThrottleStatistics]:
        return {key: throttle.statistics() for key, throttle in self._throttles.items()}

    def watch(self, watcher: Callable[[str, int], None]) -> Callable[[], None]:
        """Call `watcher` with key and limit whenever a limit changes (0 during a pause); returns what undoes it."""
        return _add(self.watchers, watcher)


@anywhere_context
@asynccontextmanager
async def open_throttles(
    limits: Mapping[str, KeyLimits] | None = None,
    *,
    patience: float = 300.0,
    backoff_base: float = 1.0,
    backoff_max: float = 60.0,
    rng: random.Random | None = None,
    default: KeyLimits | None = None,
    wall_clock: Callable[[], float] = time.time,
) -> AsyncIterator[ThrottleManager]:
    """Throttles with the timers that they need, for one build or for several that share keys."""
    manager = ThrottleManager(
        limits=dict(limits or {}),
        default=default or KeyLimits(),
        timers=Timers(),
        patience=patience,
        backoff_base=backoff_base,
        backoff_max=backoff_max,
        rng=rng or random.Random(),
        wall_clock=wall_clock,
    )
    async with open_hidden_nursery("the throttles are closed") as nursery:
        nursery.start_soon(manager.timers.run)
        yield manager


def _add(listeners: list[T], listener: T) -> Callable[[], None]:
    listeners.append(listener)

    def remove() -> None:
        if listener in listeners:
            listeners.remove(listener)

    return remove
