"""How long to wait before a call is sent again."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

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
