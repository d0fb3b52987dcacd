"""Adaptive concurrency and rate limits, one throttle per (provider, model, domain)."""

from __future__ import annotations

import math
import random
import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import trio

from ..embed import anywhere_context
from ..errors import ConfigError, QuotaExhausted
from .backoff import backoff_base, backoff_delay, parse_retry_after
from .exceptions import open_hidden_nursery
from .policy import ThrottlePolicy
from .rates import RateBudget
from .timers import Timers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from ..errors import RateLimited
    from .policy import Sent

_MAX_HISTORY = 1_000


def _at_least_one(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{attribute.name} must be a whole number, 1 or more, not {value!r}")


def _rate(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigError(f"{attribute.name} must be a number above 0, or None for no limit, not {value!r}")


def _flag(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{attribute.name} must be True or False, not {value!r}")


@attrs.frozen(kw_only=True)
class KeyLimits:
    """What one key may be asked for."""

    # Ceiling of the calls in flight; how many there are at a time the server decides by what it refuses.
    max_parallel_requests: int = attrs.field(default=32, validator=_at_least_one)
    requests_per_minute: float | None = attrs.field(default=None, validator=_rate)
    tokens_per_minute: float | None = attrs.field(default=None, validator=_rate)
    # Rising latency counts as congestion: for a server that queues where others refuse.
    latency_congestion: bool = attrs.field(default=False, validator=_flag)


@attrs.frozen(kw_only=True)
class ThrottleStatistics:
    """A throttle at one instant."""

    key: str
    limit: int
    ceiling: int
    in_flight: int
    held: int
    """Permits of refused calls that are not free yet."""
    waiting: int
    sent: int
    accepted: int
    refused: int
    failed: int
    tokens: int
    """Tokens that calls reported to have used."""
    paused_until: float | None
    mean_latency: float | None
    history: tuple[tuple[float, int], ...]
    """(instant, limit) at each change, 0 in a pause; thinned when there are many."""


class Permit:
    """Leave for one call, which is on the wire from now on; exactly one of its methods ends it."""

    __slots__ = ("_throttle", "sent", "tokens")

    def __init__(self, throttle: Throttle, tokens: int) -> None:
        self._throttle = throttle
        self.tokens = tokens  # the estimate
        # The policy's ticket, kept by the throttle while the call is on the wire.
        self.sent: Sent | None = None

    def accepted(self, tokens: int | None = None) -> None:
        """The server answered; `tokens` is what it says the call used."""
        self._throttle.end_accepted(self, tokens)

    def finished(self, tokens: int | None = None) -> None:
        """The call ended otherwise: an error, a timeout, a cancellation."""
        self._throttle.end_finished(self, tokens)

    def unused(self) -> None:
        """No call was made."""
        self._throttle.end_unused(self)

    def refused(self, error: RateLimited, attempt: int) -> float:
        """The server refused the call for the `attempt`-th time (from 1): seconds after which it may be sent again.

        Raises `QuotaExhausted` when the key has accepted nothing for as long as patience lasts.
        """
        return self._throttle.end_refused(self, error, attempt)


class Throttle:
    """How many calls of one key are in flight, and which may go next.

    The limiter's `total_tokens` is how many calls may be in flight: the policy's limit, 0 in a pause; `_total` mirrors
    it. Permits are its borrowers. Everything here is synchronous but `acquire`, so nothing changes between a check and
    what follows.
    """

    def __init__(
        self,
        key: str,
        limits: KeyLimits,
        *,
        timers: Timers,
        patience: float,
        backoff_base: float,
        backoff_max: float,
        rng: random.Random,
        wall_clock: Callable[[], float] = time.time,
        on_limit: Callable[[str, int], None] | None = None,
    ) -> None:
        self.key = key
        self.limits = limits
        self._timers = timers
        self._patience = patience
        self._backoff_base = backoff_base
        self._backoff_max = backoff_max
        self._rng = rng
        self._wall_clock = wall_clock
        self._on_limit = on_limit

        # What `trio.current_time` reads, without its detours: every call asks for it.
        self._now = trio.lowlevel.current_clock().current_time
        now = self._now()
        self._policy = ThrottlePolicy(limits.max_parallel_requests, latency_congestion=limits.latency_congestion)
        self._limiter = trio.CapacityLimiter(self._policy.limit)
        self._total = self._policy.limit  # the limiter's total_tokens, which is slower to ask
        self._history = [(now, self._policy.limit)]
        self._tick_pending = False

        self._rates: RateBudget | None = None
        if limits.requests_per_minute is not None or limits.tokens_per_minute is not None:
            self._rates = RateBudget(limits.requests_per_minute, limits.tokens_per_minute, now)
        # With rates, `acquire` lets one task at a time wait for them, so that a large call is not overtaken for ever.
        self._turn = trio.Lock()
        self._refunded = trio.Event()  # set and replaced when a settled call gives tokens back
        self._wake_at = math.inf  # when the listeners are called because the rates allow the next call
        # Tasks in `acquire`, which go first, and whether somebody who did not wait was held back for them.
        self._waiting = 0
        self._held_back = False

        self._paused_until: float | None = None
        self._pauses = 0  # since the last acceptance
        # The first refusal since the last acceptance, and the instant by which some call should have been sent since.
        self._refusing_since: float | None = None
        self._next_due = -math.inf

        self._listeners: tuple[Callable[[], None], ...] = ()
        self._notifying = False
        self._notify_again = False

        self._sent = self._accepted = self._refused = self._failed = self._used_tokens = 0

    @property
    def mean_latency(self) -> float | None:
        """Seconds that an accepted call takes; None until there was one."""
        return self._policy.mean_latency

    @property
    def limit(self) -> int:
        """Calls that may be in flight at once; 0 in a pause."""
        return int(self._limiter.total_tokens)

    @property
    def full(self) -> bool:
        """Whether `try_acquire` would find no place now, whatever the rates say."""
        return self._waiting > 0 or self._limiter.borrowed_tokens >= self._total

    @property
    def will_notify(self) -> bool:
        """True if something is under way that calls the listeners: a permit, a pause or a wait for the rates ends."""
        return (
            self._limiter.borrowed_tokens > 0
            or self._waiting > 0
            or self._paused_until is not None
            or self._wake_at < math.inf
        )

    @property
    def in_flight(self) -> int:
        """Calls on the wire."""
        return self._policy.in_flight

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` whenever `try_acquire` may succeed where it did not; returns what undoes it.

        It is called synchronously, from whatever ended a permit or a wait, and may itself acquire and end permits.
        """
        self._listeners = (*self._listeners, listener)

        def unsubscribe() -> None:
            self._listeners = tuple(each for each in self._listeners if each is not listener)

        return unsubscribe

    def try_acquire(self, tokens: int = 0) -> Permit | None:
        """A permit for a call of about so many tokens, or None; the listeners hear when to try again."""
        if self._waiting:
            self._held_back = True
            return None
        if self._limiter.available_tokens <= 0:
            return None
        now = trio.current_time()
        if self._rates is not None:
            ready = self._rates.ready_at(now, tokens)
            if ready > now:
                self._wake_listeners_at(ready)
                return None
        permit = Permit(self, tokens)
        self._limiter.acquire_on_behalf_of_nowait(permit)
        self._grant(permit, now)
        return permit

    async def acquire(self, tokens: int = 0) -> Permit:
        """Wait for a permit for a call of about so many tokens; in order of coming."""
        permit = Permit(self, tokens)
        self._waiting += 1
        try:
            if self._rates is None:
                await self._enter(permit)
            else:
                async with self._turn:
                    await self._enter(permit)
        finally:
            self._waiting -= 1
            if self._held_back and not self._waiting:
                self._held_back = False
                self._notify()
        return permit

    def end_accepted(self, permit: Permit, tokens: int | None) -> None:
        """What `Permit.accepted` does."""
        sent = _take_ticket(permit)
        now = self._now()
        self._accepted += 1
        self._refusing_since = None
        self._pauses = 0
        self._policy.accepted(sent, now)
        if tokens is not None:
            self._settle(permit, tokens, now)
        self._release(permit)

    def end_finished(self, permit: Permit, tokens: int | None) -> None:
        """What `Permit.finished` does."""
        sent = _take_ticket(permit)
        self._failed += 1
        self._policy.finished(sent)
        if tokens is not None:
            self._settle(permit, tokens, self._now())
        self._release(permit)

    def end_unused(self, permit: Permit) -> None:
        """What `Permit.unused` does."""
        self._sent -= 1
        self._policy.unsent(_take_ticket(permit))
        if self._rates is not None:
            self._rates.give_back(self._now(), permit.tokens)
        self._release(permit)

    def end_refused(self, permit: Permit, error: RateLimited, attempt: int) -> float:
        """What `Permit.refused` does."""
        sent = _take_ticket(permit)
        now = trio.current_time()
        self._refused += 1
        verdict = self._policy.refused(sent, now)
        if self._rates is not None:
            # A refused call was counted by the server but used no tokens.
            self._refund(permit.tokens, 0, now)
        if self._refusing_since is None:
            self._refusing_since = now
        # Nothing waits for longer than patience lasts, so that one last call can decide.
        left = max(0.0, self._refusing_since + self._patience - now)
        base = backoff_base(self.mean_latency, self._backoff_base)
        wall_now = self._wall_clock()
        delay = parse_retry_after(error.retry_after, wall_now)
        reset = parse_retry_after(error.reset, wall_now)
        if reset is not None:
            self._pause(now, min(reset, left))
        elif verdict.pause and self._paused_until is None:
            self._pauses += 1
            pause = backoff_delay(self._pauses, base, self._backoff_max, self._rng) if delay is None else delay
            self._pause(now, min(pause, left))
        if delay is None:
            delay = backoff_delay(max(1, attempt - verdict.by_chance), base, self._backoff_max, self._rng)
        delay = min(delay, left)
        self._next_due = max(self._next_due, now + delay, self._paused_until or now)
        if verdict.hold and left:
            self._timers.call_at(now + min(verdict.hold, left), partial(self._release, permit))
            self._set_limit()
            self._notify()
        else:
            self._release(permit)
        # The clock adds a rounding error to `left`.
        if left <= self._patience * 1e-9:
            raise QuotaExhausted(self.key, self._patience, error)
        return delay

    def statistics(self) -> ThrottleStatistics:
        in_flight = self._policy.in_flight
        return ThrottleStatistics(
            key=self.key,
            limit=self._policy.limit,
            ceiling=self.limits.max_parallel_requests,
            in_flight=in_flight,
            held=self._limiter.borrowed_tokens - in_flight,
            waiting=self._waiting,
            sent=self._sent,
            accepted=self._accepted,
            refused=self._refused,
            failed=self._failed,
            tokens=self._used_tokens,
            paused_until=self._paused_until,
            mean_latency=self.mean_latency,
            history=tuple(self._history),
        )

    async def _enter(self, permit: Permit) -> None:
        while True:
            await self._limiter.acquire_on_behalf_of(permit)
            now = trio.current_time()
            ready = now if self._rates is None else self._rates.ready_at(now, permit.tokens)
            # A token is handed over before its task runs; since then the limit may have been lowered or the key paused.
            if ready <= now and self._limiter.available_tokens >= 0:
                self._grant(permit, now)
                return
            self._limiter.release_on_behalf_of(permit)
            if ready > now:
                refunded = self._refunded
                with trio.move_on_at(ready):
                    await refunded.wait()

    def _grant(self, permit: Permit, now: float) -> None:
        if (
            self._refusing_since is not None
            and not self._policy.in_flight
            and now > self._next_due + self._patience / 2
        ):
            # Nobody asked for long: what the key refused then says nothing about now.
            self._refusing_since = None
            self._pauses = 0
        self._sent += 1
        if self._rates is not None:
            self._rates.take(now, permit.tokens)
        permit.sent = self._policy.sent(now)
        if not self._tick_pending and self._policy.grows_at is not None:
            self._plan_tick()

    def _plan_tick(self) -> None:
        grows_at = self._policy.grows_at
        if grows_at is not None and not self._tick_pending:
            self._tick_pending = True
            self._timers.call_at(grows_at, self._tick)

    def _tick(self) -> None:
        self._tick_pending = False
        self._policy.tick(trio.current_time())
        self._set_limit()
        self._notify()
        self._plan_tick()

    def _settle(self, permit: Permit, tokens: int, now: float) -> None:
        self._used_tokens += tokens
        if self._rates is not None:
            self._refund(permit.tokens, tokens, now)

    def _refund(self, estimate: int, actual: int, now: float) -> None:
        assert self._rates is not None
        self._rates.settle(now, estimate, actual)
        if actual < estimate and self._turn.locked():
            self._refunded.set()
            self._refunded = trio.Event()

    def _release(self, permit: Permit) -> None:
        # First the limit: a permit that comes back to a limit that was lowered wakes nobody.
        if self._paused_until is not None or self._policy.limit != self._total:
            self._set_limit()
        self._limiter.release_on_behalf_of(permit)
        self._notify()

    def _pause(self, now: float, seconds: float) -> None:
        until = now + seconds
        if seconds <= 0 or (self._paused_until is not None and until <= self._paused_until):
            return
        self._paused_until = until
        self._timers.call_at(until, self._end_pause)

    def _end_pause(self) -> None:
        # A pause that was made longer has a later call of this.
        if self._paused_until is not None and trio.current_time() >= self._paused_until:
            self._paused_until = None
            self._set_limit()
            self._notify()

    def _set_limit(self) -> None:
        limit = 0 if self._paused_until is not None else self._policy.limit
        if limit == self._total:
            return
        self._total = limit
        self._limiter.total_tokens = limit
        self._history.append((trio.current_time(), limit))
        if len(self._history) > _MAX_HISTORY:
            del self._history[1:-1:2]
        if self._on_limit is not None:
            self._on_limit(self.key, limit)

    def _wake_listeners_at(self, when: float) -> None:
        # One wake at a time counts; an earlier one takes its place, and the callback that was late then does nothing.
        if when < self._wake_at:
            self._wake_at = when
            self._timers.call_at(when, self._wake_listeners)

    def _wake_listeners(self) -> None:
        if trio.current_time() >= self._wake_at:
            self._wake_at = math.inf
            self._notify()

    def _notify(self) -> None:
        if self._waiting:
            self._held_back = True
            return
        if not self._listeners or self._limiter.available_tokens <= 0:
            return
        # A listener that ends a permit comes back here: go round once more instead of deeper.
        self._notify_again = True
        if self._notifying:
            return
        self._notifying = True
        try:
            while self._notify_again:
                self._notify_again = False
                for listener in self._listeners:
                    listener()
        finally:
            self._notifying = False


class ThrottleManager:
    """The throttles of all keys, made on first use."""

    def __init__(
        self,
        limits: Mapping[str, KeyLimits],
        *,
        timers: Timers,
        patience: float,
        backoff_base: float,
        backoff_max: float,
        rng: random.Random,
        default: KeyLimits | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._limits = dict(limits)
        self._default = KeyLimits() if default is None else default
        self._throttles: dict[str, Throttle] = {}
        self._watchers: tuple[Callable[[str, int], None], ...] = ()
        self._make = partial(
            Throttle,
            timers=timers,
            patience=patience,
            backoff_base=backoff_base,
            backoff_max=backoff_max,
            rng=rng,
            wall_clock=wall_clock,
            on_limit=self._tell_watchers,
        )

    def get(self, key: str) -> Throttle:
        """The throttle of `key`; a key without limits of its own gets the default ones."""
        throttle = self._throttles.get(key)
        if throttle is None:
            throttle = self._throttles[key] = self._make(key, self._limits.get(key, self._default))
        return throttle

    def keys(self) -> tuple[str, ...]:
        """The keys used so far."""
        return tuple(self._throttles)

    def statistics(self) -> dict[str, ThrottleStatistics]:
        return {key: throttle.statistics() for key, throttle in self._throttles.items()}

    def watch(self, watcher: Callable[[str, int], None]) -> Callable[[], None]:
        """Call `watcher` with key and limit whenever a limit changes (0 in a pause); returns what undoes it."""
        self._watchers = (*self._watchers, watcher)

        def unwatch() -> None:
            self._watchers = tuple(each for each in self._watchers if each is not watcher)

        return unwatch

    def _tell_watchers(self, key: str, limit: int) -> None:
        for watcher in self._watchers:
            watcher(key, limit)


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
    timers = Timers()
    manager = ThrottleManager(
        limits or {},
        timers=timers,
        patience=patience,
        backoff_base=backoff_base,
        backoff_max=backoff_max,
        rng=random.Random() if rng is None else rng,
        default=default,
        wall_clock=wall_clock,
    )
    async with open_hidden_nursery("the throttles are closed") as nursery:
        nursery.start_soon(timers.run)
        yield manager


def _take_ticket(permit: Permit) -> Sent:
    sent = permit.sent
    if sent is None:
        raise RuntimeError("a permit was ended twice")
    permit.sent = None
    return sent
