"""How many calls at once a key may have: the decision, without the waiting.

The policy tells three servers apart by one question, asked at each refusal of a request that was the n-th on the wire:
are requests sent at level n or above refused *because of the level*?

- A server that is full takes what is below its capacity and refuses what is above: the limit goes to n - 1.
- A server that refuses at random does so at every level: the limit stays.
- A server that takes nothing refuses at level 1: the limit goes to the floor, and before long the key should pause.

The answer is a sequential likelihood-ratio test. "Refused four times in five from this level on" stands against
"refused as often as calls of this key are anyway": each refusal at or above n is evidence for the first, each
acceptance for the second. The numbers below were chosen by the table of simulated servers in the tests.
"""

from __future__ import annotations

import math
from collections import deque

import attrs

from ..errors import ConfigError

HISTORY = 128
"""Sends that a refusal is judged by."""

_FULL_SHARE = 0.8  # what a server that is full refuses above its capacity
_EVIDENCE = 6.0  # logarithm of the likelihood ratio at which the server counts as full
_EVIDENCE_OF_CHANGE = 12.0  # the same since the likeliest of the instants at which it may have become full

# The share of calls that is refused whatever the level: where it starts, its bounds, the calls it remembers.
_BACKGROUND = 0.05
_BACKGROUND_MIN = 0.01
_BACKGROUND_MAX = 0.5
_BACKGROUND_CALLS = (20, 256)  # the start counts as so many calls; in the end it is a mean over about so many

_FAST_GROWTH_PERIOD = 0.1  # seconds at the limit without a refusal that double it, before the first congestion
_REST, _REST_MAX = 4, 16  # windows without growth after a decrease
_SAME_LEVEL = 0.15  # a decrease this near the one before shows that the level is the server's capacity

_LONGEST_HOLD = 1.0  # seconds
_SMOOTHING = 1 / 16  # weight of the latest call in the mean latency and in the share that is refused now
_NEARLY_ALL = 0.9
_FORGOTTEN = 1e-6
_CHANCE = 1e-3  # refusals in a row of one call that are likelier than this are chance

_LATENCY_RISE = 2.0
_LATENCY_DECREASE = 0.9

_PENDING, _ACCEPTED, _REFUSED, _NEITHER = range(4)


class Sent:
    """One request on the wire. The policy makes it, changes it and reads it; the caller only hands it back."""

    __slots__ = ("epoch", "level", "outcome", "sent_at")

    def __init__(self, level: int, epoch: int, sent_at: float) -> None:
        # Requests on the wire when it was sent, itself included; those that turn out to be refused are taken off again.
        self.level = level
        self.epoch = epoch
        self.sent_at = sent_at
        self.outcome = _PENDING


@attrs.frozen(kw_only=True)
class Refusal:
    """What to do about one refusal."""

    hold: float
    """Seconds that the refused permit stays taken; 0 releases it now."""
    pause: bool
    """Nearly everything is refused: the key as a whole should wait."""
    by_chance: int
    """Refusals in a row of one call that chance alone explains: its backoff need not grow for them."""


class ThrottlePolicy:
    """The limit of one key, moved by what happens to its requests.

    Every request is `sent` and then exactly one of `accepted`, `refused` and `finished`. Nothing here reads a clock:
    `now` is always passed in, and `tick` is owed at `grows_at`. All but `refused`, which looks through the last 128
    sends, cost the same whatever came before.

    With `latency_congestion` a window whose mean latency is over twice the lowest one seen counts as congestion too and
    takes a tenth off the limit: for servers that queue where others refuse.
    """

    def __init__(self, ceiling: int, floor: int = 1, start: int = 16, *, latency_congestion: bool = False) -> None:
        if not 1 <= floor <= ceiling:
            raise ConfigError(f"the floor of a throttle must be from 1 to its ceiling ({ceiling}), not {floor}")
        self.ceiling = ceiling
        self.floor = floor
        self.latency_congestion = latency_congestion
        self.in_flight = 0
        self.mean_latency: float | None = None
        # Grows by one at each decrease. What was sent in an earlier epoch is the same signal and decides nothing.
        self.epoch = 0
        # Fractions come from decreases by a share; `limit` is what counts.
        self._limit = float(min(max(start, floor), ceiling))
        self._sends: deque[Sent] = deque(maxlen=HISTORY)
        self._refusing = 0.0  # share of the latest outcomes that were refusals
        self._background = _BACKGROUND
        self._background_calls = _BACKGROUND_CALLS[0]

        # Growth. Before the first congestion: fast, by acceptances and by time. After it: by windows.
        # Latency is compared from window to window, which needs windows from the start.
        self._fast = not latency_congestion
        self._quiet_since: float | None = None  # in fast growth: since when the limit is reached and nothing refused
        self._window = 0  # acceptances in this window, which is full at `limit` of them
        self._reached = False  # the limit was reached in this window
        self._step = 1.0  # what the next window that reaches the limit adds
        self._resting = 0  # windows left without growth
        self._rest = _REST
        self._cut_to: float | None = None  # where the last decrease led
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
        """The instant at which `tick` is owed, if nothing is refused before."""
        return None if self._quiet_since is None else self._quiet_since + _FAST_GROWTH_PERIOD

    def sent(self, now: float) -> Sent:
        """A request goes on the wire."""
        self.in_flight = level = self.in_flight + 1
        if level > self._limit - 1.0:
            self._reached = True
            if self._fast and self._quiet_since is None and self._limit < self.ceiling:
                self._quiet_since = now
        sent = Sent(level, self.epoch, now)
        self._sends.append(sent)
        return sent

    def accepted(self, sent: Sent, now: float) -> None:
        """The server took the request and answered it."""
        self.in_flight -= 1
        sent.outcome = _ACCEPTED
        latency = now - sent.sent_at
        mean = self.mean_latency
        self.mean_latency = latency if mean is None else mean + (latency - mean) * _SMOOTHING
        if self._refusing or self._background > _BACKGROUND_MIN:
            self._count(0.0)
        if self._fast and self._reached and self._limit < self.ceiling:
            self._limit = min(self._limit + 1.0, float(self.ceiling))
        self._window += 1
        self._window_latency += latency
        if self._window >= self._limit:
            self._end_window()

    def finished(self, sent: Sent) -> None:
        """The request left the wire and says nothing about the limit: an error, a timeout, a cancellation."""
        self.in_flight -= 1
        sent.outcome = _NEITHER

    def unsent(self, sent: Sent) -> None:
        """The request was never made after all: it is as if there had been none."""
        self.in_flight -= 1
        sent.outcome = _NEITHER
        for other in reversed(self._sends):
            if other is sent:
                break
            other.level -= 1

    def refused(self, sent: Sent, now: float) -> Refusal:
        """The server refused the request for now."""
        self.in_flight -= 1
        sent.outcome = _REFUSED
        self._count(1.0)
        if self._quiet_since is not None:
            self._quiet_since = now
        # It took no place at the server: what was sent while it was on the wire had one less beside it than it seemed.
        for other in reversed(self._sends):
            if other is sent:
                break
            other.level -= 1
        hold = min(self.mean_latency or 0.0, _LONGEST_HOLD)
        pause = self._refusing >= _NEARLY_ALL
        if sent.epoch == self.epoch:
            background = min(max(self._background, _BACKGROUND_MIN), _BACKGROUND_MAX)
            evidence, recent, share = self._judge(sent, background)
            if evidence >= _EVIDENCE or recent >= _EVIDENCE_OF_CHANGE:
                self._decrease(sent.level - 1, max(0.0, share - background))
            elif evidence <= 0 and not pause:
                # Not for the level: the permit is as good as any other, and the call was unlucky.
                return Refusal(hold=0.0, pause=False, by_chance=int(math.log(_CHANCE) / math.log(background)))
        return Refusal(hold=hold, pause=pause, by_chance=0)

    def tick(self, now: float) -> None:
        """Time passed: double the limit if it is due (see `grows_at`)."""
        if self._quiet_since is not None and now >= self._quiet_since + _FAST_GROWTH_PERIOD:
            self._quiet_since = None
            if self._reached:
                self._limit = min(self._limit * 2, float(self.ceiling))

    def _count(self, refused: float) -> None:
        """Count one outcome, 1 for a refusal, in the shares that are refused now and that are refused anyway."""
        self._refusing += (refused - self._refusing) * _SMOOTHING
        if self._refusing < _FORGOTTEN:
            self._refusing = 0.0  # so that a key that refuses nothing has nothing to count
        # While the limit is on its way up, refusals may well be for the level: they are no measure of the background.
        if self._fast or self._resting or self._limit >= self.ceiling:
            if self._background_calls < _BACKGROUND_CALLS[1]:
                self._background_calls += 1
            self._background += (refused - self._background) / self._background_calls

    def _judge(self, sent: Sent, background: float) -> tuple[float, float, float]:
        """Evidence that the level is why, over the epoch and over its likeliest end part; the epoch's refused share."""
        for_full = math.log(_FULL_SHARE / background)
        for_chance = math.log((1 - _FULL_SHARE) / (1 - background))
        evidence = recent = 0.0
        refusals = sends = 0
        later = True
        for other in reversed(self._sends):
            if other.epoch != self.epoch:
                break
            if other is sent:
                later = False
            outcome = other.outcome
            # Refusals come about in the order of sending: what is older and still on the wire was taken.
            if outcome == _NEITHER or (outcome == _PENDING and later):
                continue
            refused = outcome == _REFUSED
            sends += 1
            refusals += refused
            if other.level >= sent.level:
                evidence += for_full if refused else for_chance
                recent = max(recent, evidence)
        return evidence, recent, refusals / max(1, sends)

    def _decrease(self, capacity: int, excess: float) -> None:
        """The server has room for `capacity`; `excess` is the refused share of this epoch that is not background."""
        self.epoch += 1
        self._fast = False
        self._quiet_since = None
        self._step = 1.0
        self._restart_window()
        self._limit = max(float(self.floor), min(float(capacity), self._limit * (1 - excess / 2)))
        if capacity < 1:
            # Refused with nothing beside it: no concurrency is low enough, so there is no level to remember.
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
        if latency < self._lowest_latency or self.limit == self.floor:
            # At the floor nothing of ours queues: this is how long calls take now.
            self._lowest_latency = latency
        return latency > _LATENCY_RISE * self._lowest_latency
