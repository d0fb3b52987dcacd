"""The decisions of a throttle, without the waiting: how many calls at once, when the rates allow the next one, backoff.

The concurrency limit follows from one question, asked whenever the n-th request on the wire is rate-limited: are
requests sent at level n or above rate-limited *because of the level*?

- A server at capacity accepts what is below its capacity and rate-limits what is above: the limit becomes n - 1.
- A server that rate-limits at random does so at every level: the limit stays.
- A server that accepts nothing rate-limits at level 1: the limit becomes 1, and soon the key should pause.

The answer is a sequential likelihood-ratio test. "Four in five are rate-limited from this level on" stands against "as
many are rate-limited as at any level of this key": each rate-limited request at or above n is evidence for the first,
each accepted one for the second. The constants were chosen by the table of simulated servers in the tests.
"""

from __future__ import annotations

import math
import re
from collections import deque
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    import random

HISTORY = 128
"""Sends that the evidence is taken from."""

_START = 16
_FULL_SHARE = 0.8  # of the requests above its capacity that a server rate-limits
_EVIDENCE = 6.0  # logarithm of the likelihood ratio from which the server counts as at capacity
_EVIDENCE_OF_CHANGE = 12.0  # the same, since the likeliest instant at which the server reached its capacity

# The share of calls that is rate-limited at any level: initial value, bounds, and calls it is the mean of.
_BACKGROUND = 0.05
_BACKGROUND_MIN = 0.01
_BACKGROUND_MAX = 0.5
_BACKGROUND_CALLS = (20, 256)  # the initial value counts as 20 calls; later a mean over about 256

_FAST_GROWTH_PERIOD = 0.1  # seconds at the limit, nothing rate-limited, that double it before the first congestion
_REST, _REST_MAX = 4, 16  # windows without growth after a decrease
_SAME_LEVEL = 0.15  # a decrease this close to the previous one confirms the server's capacity

_LONGEST_HOLD = 1.0  # seconds
_SMOOTHING = 1 / 16  # weight of the latest call in the mean latency and in the share that is rate-limited now
_NEARLY_ALL = 0.9
_CHANCE = 1e-3  # a run of rate limits of one call that is likelier than this is chance

_LATENCY_RISE = 2.0
_LATENCY_DECREASE = 0.9

_PENDING, _ACCEPTED, _RATE_LIMITED, _NEITHER = range(4)

_BURST = 6.0
"""Seconds' worth of a rate that may be sent at once: no minute exceeds the rate by more than a tenth."""


class Sent:
    """One request on the wire: created, changed and read by the policy; the caller only passes it back."""

    __slots__ = ("epoch", "level", "outcome", "sent_at")

    def __init__(self, level: int, epoch: int, sent_at: float) -> None:
        # Requests on the wire when it was sent, itself included, without those that are rate-limited later.
        self.level = level
        self.epoch = epoch
        self.sent_at = sent_at
        self.outcome = _PENDING


@attrs.frozen(kw_only=True)
class Verdict:
    """The decision about one rate-limited request."""

    hold: float
    """Seconds for which its permit is held; 0 releases it now."""
    pause: bool
    """Nearly everything is rate-limited: the key as a whole should wait."""
    by_chance: int
    """Rate limits in a row of one call that chance alone explains: its backoff need not grow for them."""


class ThrottlePolicy:
    """The concurrency limit of one key, moved by the outcomes of its requests.

    Every request is `sent`, then exactly one of `accepted`, `rate_limited`, `finished` and `unsent`. Nothing here reads
    a clock: `now` is passed in, and `tick` is due at `grows_at`.

    With `latency_congestion`, a window whose mean latency is more than twice the lowest one seen counts as congestion
    too and takes a tenth off the limit: for servers that queue requests in place of rate-limiting them.
    """

    def __init__(self, ceiling: int, *, latency_congestion: bool = False) -> None:
        self.ceiling = ceiling
        self.latency_congestion = latency_congestion
        self.in_flight = 0
        self.mean_latency: float | None = None
        # Incremented by each decrease. Requests sent in an earlier epoch are the same signal and decide nothing.
        self.epoch = 0
        # Fractions come from decreases by a share; `limit` is what counts.
        self._limit = float(min(_START, ceiling))
        self._sends: deque[Sent] = deque(maxlen=HISTORY)
        self._limited_share = 0.0  # of the latest outcomes
        self._background = _BACKGROUND
        self._background_calls = _BACKGROUND_CALLS[0]

        # Growth. Before the first congestion: fast, by acceptances and by time. After it: by windows.
        # Latency is compared from window to window, which needs windows from the start.
        self._fast = not latency_congestion
        self._quiet_since: float | None = None  # in fast growth: at the limit and nothing rate-limited since then
        self._window = 0  # acceptances in this window, which ends at `limit` of them
        self._reached = False  # the limit was reached in this window
        self._step = 1.0  # what the next window that reaches the limit adds
        self._resting = 0  # windows left without growth
        self._rest = _REST
        self._cut_to: float | None = None  # the limit after the last decrease
        self._grown = False  # since the last decrease

        # Only for latency as congestion.
        self._window_latency = 0.0
        self._lowest_latency = math.inf

    @property
    def limit(self) -> int:
        """Requests that may be on the wire at once."""
        return int(self._limit)

    @property
    def grows_at(self) -> float | None:
        """The instant at which `tick` is due, if nothing is rate-limited before."""
        return None if self._quiet_since is None else self._quiet_since + _FAST_GROWTH_PERIOD

    def sent(self, now: float) -> Sent:
        self.in_flight = level = self.in_flight + 1
        if level > self._limit - 1.0:
            self._reached = True
            if self._fast and self._quiet_since is None and self._limit < self.ceiling:
                self._quiet_since = now
        sent = Sent(level, self.epoch, now)
        self._sends.append(sent)
        return sent

    def accepted(self, sent: Sent, now: float) -> None:
        self.in_flight -= 1
        sent.outcome = _ACCEPTED
        latency = now - sent.sent_at
        mean = self.mean_latency
        self.mean_latency = latency if mean is None else mean + (latency - mean) * _SMOOTHING
        self._count(0.0)
        if self._fast and self._reached and self._limit < self.ceiling:
            self._limit = min(self._limit + 1.0, float(self.ceiling))
        self._window += 1
        self._window_latency += latency
        if self._window >= self._limit:
            self._end_window()

    def finished(self, sent: Sent) -> None:
        """The request ended without a signal about the limit: an error, a timeout, a cancellation."""
        self.in_flight -= 1
        sent.outcome = _NEITHER

    def unsent(self, sent: Sent) -> None:
        self.finished(sent)
        self._lower_levels_after(sent)

    def rate_limited(self, sent: Sent, now: float) -> Verdict:
        self.in_flight -= 1
        sent.outcome = _RATE_LIMITED
        self._count(1.0)
        if self._quiet_since is not None:
            self._quiet_since = now
        # It occupied no slot of the server, so requests sent meanwhile had one less beside them.
        self._lower_levels_after(sent)
        hold = min(self.mean_latency or 0.0, _LONGEST_HOLD)
        pause = self._limited_share >= _NEARLY_ALL
        if sent.epoch == self.epoch:
            background = min(self._background, _BACKGROUND_MAX)
            evidence, recent, share = self._judge(sent, background)
            if evidence >= _EVIDENCE or recent >= _EVIDENCE_OF_CHANGE:
                self._decrease(sent.level - 1, max(0.0, share - background))
            elif evidence <= 0 and not pause:
                # Not because of the level: the permit can be used at once, and only this call waits.
                return Verdict(hold=0.0, pause=False, by_chance=int(math.log(_CHANCE) / math.log(background)))
        return Verdict(hold=hold, pause=pause, by_chance=0)

    def tick(self, now: float) -> None:
        """Double the limit if that is due (see `grows_at`)."""
        if self._quiet_since is not None and now >= self._quiet_since + _FAST_GROWTH_PERIOD:
            self._quiet_since = None
            if self._reached:
                self._limit = min(self._limit * 2, float(self.ceiling))

    def _lower_levels_after(self, sent: Sent) -> None:
        for other in reversed(self._sends):
            if other is sent:
                break
            other.level -= 1

    def _count(self, limited: float) -> None:
        """Add one outcome, 1 if it was rate-limited, to the current share and to the background share."""
        self._limited_share += (limited - self._limited_share) * _SMOOTHING
        # While the limit grows step by step, rate limits may be due to the level and are no measure of the background.
        if self._fast or self._resting or self._limit >= self.ceiling:
            if self._background_calls < _BACKGROUND_CALLS[1]:
                self._background_calls += 1
            change = (limited - self._background) / self._background_calls
            self._background = max(_BACKGROUND_MIN, self._background + change)

    def _judge(self, sent: Sent, background: float) -> tuple[float, float, float]:
        """Evidence that the level is the cause, in the epoch and in its likeliest end; the rate-limited share."""
        for_full = math.log(_FULL_SHARE / background)
        for_chance = math.log((1 - _FULL_SHARE) / (1 - background))
        evidence = recent = 0.0
        limited = sends = 0
        later = True
        for other in reversed(self._sends):
            if other.epoch != self.epoch:
                break
            if other is sent:
                later = False
            outcome = other.outcome
            # Rate limits arrive in the order of sending: an older request that is still on the wire was accepted.
            if outcome == _NEITHER or (outcome == _PENDING and later):
                continue
            sends += 1
            limited += outcome == _RATE_LIMITED
            if other.level >= sent.level:
                evidence += for_full if outcome == _RATE_LIMITED else for_chance
                recent = max(recent, evidence)
        return evidence, recent, limited / max(1, sends)

    def _decrease(self, capacity: int, excess: float) -> None:
        """The server can take `capacity`; `excess` is the rate-limited share of this epoch without the background."""
        self.epoch += 1
        self._fast = False
        self._quiet_since = None
        self._step = 1.0
        self._restart_window()
        self._limit = max(1.0, min(float(capacity), self._limit * (1 - excess / 2)))
        if capacity < 1:
            # Rate-limited with nothing beside it: no concurrency is low enough, so there is no level to remember.
            self._rest = _REST
            self._cut_to = None
        else:
            if self._grown and self._cut_to is not None:
                same = abs(self._limit - self._cut_to) <= _SAME_LEVEL * self._cut_to
                self._rest = min(self._rest * 2, _REST_MAX) if same else _REST
            self._cut_to = self._limit
        self._grown = False
        self._resting = self._rest

    def _end_window(self) -> None:
        latency = self._window_latency / self._window
        reached = self._reached
        self._restart_window()
        if self.latency_congestion and self._is_slow(latency):
            self._decrease(max(1, int(self._limit * _LATENCY_DECREASE)), 0.0)
        elif self._resting:
            self._resting -= 1
        elif reached and not self._fast and self._limit < self.ceiling:
            self._limit = min(self._limit + self._step, float(self.ceiling))
            self._step *= 2
            self._grown = True

    def _restart_window(self) -> None:
        self._window = 0
        self._window_latency = 0.0
        self._reached = False

    def _is_slow(self, latency: float) -> bool:
        if latency < self._lowest_latency or self.limit == 1:
            # At a limit of 1 none of our requests queue: this is how long calls take now.
            self._lowest_latency = latency
        return latency > _LATENCY_RISE * self._lowest_latency


class _Bucket:
    """A token bucket that fills at `per_minute`, infinite without a rate; a level below zero is a debt."""

    def __init__(self, per_minute: float | None, smallest: float, now: float) -> None:
        self._rate = math.inf if per_minute is None else per_minute / 60
        self._size = self._level = max(smallest, self._rate * _BURST)
        self._filled = now  # the instant of `_level`

    def add(self, now: float, amount: float) -> None:
        """Fill for the time that passed, then add `amount`, which may be negative."""
        if now > self._filled:
            self._level = min(self._size, self._level + (now - self._filled) * self._rate)
            self._filled = now
        self._level = min(self._size, self._level + amount)

    def ready_at(self, now: float, amount: float) -> float:
        self.add(now, 0.0)
        # A call larger than the bucket may be sent when that is full. The last part in 10⁹ is rounding.
        missing = min(amount, self._size) - self._level
        return now if missing <= self._size * 1e-9 else self._filled + missing / self._rate


class RateBudget:
    """Requests and tokens per minute, each a token bucket.

    A call takes its estimated tokens when it is sent and is settled when its usage is known, so an estimate that was
    too low delays the calls after it.
    """

    def __init__(self, requests_per_minute: float | None, tokens_per_minute: float | None, now: float) -> None:
        self._requests = _Bucket(requests_per_minute, 1.0, now)
        self._tokens = _Bucket(tokens_per_minute, 0.0, now)

    def ready_at(self, now: float, tokens: float) -> float:
        """The instant from which a call of `tokens` tokens may be sent: `now` if it may be sent at once."""
        return max(self._requests.ready_at(now, 1.0), self._tokens.ready_at(now, tokens))

    def add(self, now: float, requests: float, tokens: float) -> None:
        """Return requests and tokens, or take them with negative numbers."""
        self._requests.add(now, requests)
        self._tokens.add(now, tokens)


SHORTEST_BASE = 0.02
"""Seconds; below this a retry is only another call in the same burst."""

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION_PART = re.compile(r"(\d+(?:\.\d*)?)\s*(ms|s|m|h|d)\s*", re.ASCII)
_DURATION = re.compile(rf"(?:{_DURATION_PART.pattern})+", re.ASCII)

# Numbers this large are instants and not delays: some providers send Unix time, in seconds or in milliseconds.
_UNIX_SECONDS = 1e9
_UNIX_MILLISECONDS = 1e12


def parse_retry_after(value: float | str | None, wall_now: float) -> float | None:
    """The seconds to wait that a server sent; None if it sent none that can be understood.

    Understood: a number of seconds (also as text), a duration such as `1m30s` or `250ms`, an HTTP date, an ISO date and
    Unix time. Dates are compared with `wall_now`; an instant in the past is 0.
    """
    if value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        text = str(value).strip()
        if not _DURATION.fullmatch(text):
            instant = _date(text)
            return None if instant is None else max(0.0, instant - wall_now)
        number = sum(float(amount) * _UNITS[unit] for amount, unit in _DURATION_PART.findall(text))
    if not math.isfinite(number):
        return None
    if number >= _UNIX_MILLISECONDS:
        number = number / 1000 - wall_now
    elif number >= _UNIX_SECONDS:
        number -= wall_now
    return max(0.0, number)


def backoff_base(mean_latency: float | None, upper: float) -> float:
    """The first backoff of a key: twice its mean latency, at least 20 ms and at most `upper`, which always wins."""
    if mean_latency is None:
        return upper
    return min(upper, max(SHORTEST_BASE, 2 * mean_latency))


def backoff_delay(attempt: int, base: float, maximum: float, rng: random.Random) -> float:
    """Seconds to wait after failure number `attempt` (from 1): exponential, with full jitter."""
    # 2**1000 is far past any maximum, and the largest power a float is sure to hold.
    return rng.uniform(0.0, min(maximum, base * 2.0 ** min(attempt - 1, 1000)))


def _date(text: str) -> float | None:
    for parse in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            date = parse(text)
            # Both formats may leave the zone out, and then mean UTC.
            return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
        except (ValueError, TypeError, IndexError, OverflowError):
            continue
    return None
