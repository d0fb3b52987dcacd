"""Requests and tokens per minute: when the next call may be sent."""

from __future__ import annotations

import attrs

_BURST = 6.0
"""Seconds' worth that may be sent at once: in no minute is more than a tenth above the rate sent."""


@attrs.define(eq=False)
class _Bucket:
    """Fills at `rate` a second up to `size`; below zero it holds a debt that must fill first."""

    rate: float
    size: float
    level: float  # at instant `filled`; changed by every method
    filled: float

    def fill(self, now: float) -> None:
        if now > self.filled:
            self.level = min(self.size, self.level + (now - self.filled) * self.rate)
            self.filled = now

    def ready_at(self, now: float, amount: float) -> float:
        self.fill(now)
        # More than fits may go when the bucket is full, else it could never go. The last part in 10⁹ is rounding.
        missing = min(amount, self.size) - self.level
        return now if missing <= self.size * 1e-9 else self.filled + missing / self.rate


class RateBudget:
    """Two token buckets, of requests and of tokens; one that is not limited is left out.

    A call is taken from the budget by its estimate when it is sent and settled by what it used when that is known, so
    an estimate that was too low delays the calls after it.
    """

    def __init__(self, requests_per_minute: float | None, tokens_per_minute: float | None, now: float) -> None:
        self._requests = _bucket(requests_per_minute, 1.0, now)
        self._tokens = _bucket(tokens_per_minute, 0.0, now)

    def ready_at(self, now: float, tokens: float) -> float:
        """The instant from which a call of so many tokens may be sent: `now` if it may at once."""
        ready = now if self._requests is None else self._requests.ready_at(now, 1.0)
        if self._tokens is not None:
            ready = max(ready, self._tokens.ready_at(now, tokens))
        return ready

    def take(self, now: float, tokens: float) -> None:
        """A call of so many tokens is sent."""
        if self._requests is not None:
            self._requests.fill(now)
            self._requests.level -= 1.0
        if self._tokens is not None:
            self._tokens.fill(now)
            self._tokens.level -= tokens

    def give_back(self, now: float, tokens: float) -> None:
        """A call that was taken as so many tokens was not sent after all."""
        if self._requests is not None:
            self._requests.fill(now)
            self._requests.level = min(self._requests.size, self._requests.level + 1.0)
        self.settle(now, tokens, 0.0)

    def settle(self, now: float, estimate: float, actual: float) -> None:
        """A call that was taken as `estimate` tokens used `actual`."""
        if self._tokens is not None:
            self._tokens.fill(now)
            self._tokens.level = min(self._tokens.size, self._tokens.level + estimate - actual)


def _bucket(per_minute: float | None, smallest: float, now: float) -> _Bucket | None:
    if per_minute is None:
        return None
    rate = per_minute / 60
    size = max(smallest, rate * _BURST)
    return _Bucket(rate=rate, size=size, level=size, filled=now)
