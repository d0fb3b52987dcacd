"""Backoff: waits that servers send, and delays without one."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seedbed.runtime.policy import backoff_base, backoff_delay, parse_retry_after

NOW = 1_700_000_000.0  # 2023-11-14 22:13:20 UTC


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        (3, 3.0),
        (0.25, 0.25),
        ("7", 7.0),
        (" 1.5 ", 1.5),
        (-2, 0.0),
        ("-2", 0.0),
        (math.nan, None),
        ("nan", None),
        (math.inf, None),
        ("-inf", None),
        ("250ms", 0.25),
        ("1m30s", 90.0),
        ("6m0s", 360.0),
        ("1h 2m 3.5s", 3723.5),
        ("1d", 86400.0),
        ("Tue, 14 Nov 2023 22:14:20 GMT", 60.0),
        ("Tue, 14 Nov 2023 22:14:20 -0000", 60.0),
        ("Tue, 14 Nov 2023 22:10:00 GMT", 0.0),
        ("2023-11-14T22:14:20Z", 60.0),
        ("2023-11-14T22:14:20", 60.0),
        (NOW + 5, 5.0),
        (str(int(NOW + 5)), 5.0),
        ((NOW + 5) * 1000, 5.0),
        (NOW - 5, 0.0),
        ("soon", None),
        ("", None),
        ("5 parsecs", None),
        ("s", None),
        ("Tue, 99 Nov 2023 22:14:20 GMT", None),
    ],
)
def test_waits_of_servers_are_parsed(value: float | str | None, seconds: float | None) -> None:
    """Seconds, durations, dates and Unix time become seconds from now; anything else is None."""
    assert parse_retry_after(value, NOW) == (None if seconds is None else pytest.approx(seconds))


@given(st.one_of(st.text(), st.floats(), st.integers(), st.text("0123456789msdh.:-TZ GMonue,", max_size=30)))
@example("0, 0 0 0 0:0")
@example("1 1 1 9999999999")
def test_never_raises(value: float | str) -> None:
    """For any input the result is None or a finite number of seconds."""
    seconds = parse_retry_after(value, NOW)
    assert seconds is None or 0.0 <= seconds < math.inf


@given(st.integers(0, 10**8))
def test_http_dates_are_exact(ahead: int) -> None:
    """An HTTP date so many seconds ahead means so many seconds."""
    date = format_datetime(datetime.fromtimestamp(NOW + ahead, UTC), usegmt=True)
    assert parse_retry_after(date, NOW) == ahead


@pytest.mark.parametrize(
    ("mean_latency", "upper", "base"),
    [
        (None, 1.0, 1.0),
        (0.001, 1.0, 0.02),
        (0.1, 1.0, 0.2),
        (30.0, 1.0, 1.0),
        (0.1, 0.005, 0.005),
        (None, 0.005, 0.005),
    ],
)
def test_base_follows_the_latency(mean_latency: float | None, upper: float, base: float) -> None:
    """The base is twice the mean latency, at least 20 ms, and never above the option."""
    assert backoff_base(mean_latency, upper) == pytest.approx(base)


@given(st.integers(1, 10**6), st.floats(0.0, 10.0), st.floats(0.0, 100.0), st.randoms(use_true_random=False))
def test_delay_is_bounded(attempt: int, base: float, maximum: float, rng: random.Random) -> None:
    """A delay is never negative, never above the maximum and never above the base doubled once per attempt."""
    delay = backoff_delay(attempt, base, maximum, rng)
    assert 0.0 <= delay <= maximum
    assert delay <= base * 2.0 ** min(attempt - 1, 1000)


def test_delay_has_full_jitter_and_doubles() -> None:
    """Delays spread over the whole interval, and the interval doubles with each attempt."""
    rng = random.Random(1)
    for attempt, top in [(1, 1.0), (2, 2.0), (3, 4.0), (10, 60.0)]:
        delays = [backoff_delay(attempt, 1.0, 60.0, rng) for _ in range(2_000)]
        assert min(delays) < 0.02 * top
        assert 0.98 * top < max(delays) <= top
        assert sum(delays) / len(delays) == pytest.approx(top / 2, rel=0.1)
