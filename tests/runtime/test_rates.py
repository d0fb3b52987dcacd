"""Rates: requests and tokens per minute as buckets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedbed.runtime.policy import RateBudget


def send_all(budget: RateBudget, sizes: list[int], gaps: list[float]) -> list[float]:
    """Send each call as soon as the budget allows; returns the instants."""
    now = 0.0
    instants = []
    for size, gap in zip(sizes, gaps, strict=True):
        now = budget.ready_at(now + gap, size)
        assert budget.ready_at(now, size) == now
        budget.add(now, -1, -size)
        instants.append(now)
    return instants


@given(
    st.integers(1, 6_000),
    st.lists(st.floats(0.0, 20.0) | st.just(0.0), min_size=1, max_size=300),
)
def test_requests_per_minute(per_minute: int, gaps: list[float]) -> None:
    """In no minute are more requests sent than the rate and a tenth, and one."""
    instants = send_all(RateBudget(per_minute, None, 0.0), [0] * len(gaps), gaps)
    for index, start in enumerate(instants):
        in_minute = sum(start <= instant < start + 60 for instant in instants[index:])
        assert in_minute <= per_minute * 1.1 + 1


@given(
    st.integers(10, 100_000),
    st.lists(st.tuples(st.integers(0, 50_000), st.floats(0.0, 5.0)), min_size=1, max_size=100),
)
def test_tokens_per_minute(per_minute: int, calls: list[tuple[int, float]]) -> None:
    """In no minute are more tokens sent than the rate, a tenth and the last call; and every call gets its turn."""
    sizes = [size for size, _ in calls]
    instants = send_all(RateBudget(None, per_minute, 0.0), sizes, [gap for _, gap in calls])
    for index, start in enumerate(instants):
        last = max(i for i, instant in enumerate(instants) if instant < start + 60)
        assert sum(sizes[index:last]) <= per_minute * 1.1 + 1e-3


def test_full_speed_is_the_rate() -> None:
    """With work always ready, the rate is reached in the long run."""
    instants = send_all(RateBudget(600, None, 0.0), [0] * 3_000, [0.0] * 3_000)
    assert instants[-1] == pytest.approx((3_000 - 60) / 10)


def test_a_call_larger_than_the_bucket_goes_when_it_is_full() -> None:
    """A call of two minutes' tokens is sent at once from a full bucket, and the next one waits for the debt."""
    budget = RateBudget(None, 60, 0.0)
    assert budget.ready_at(0.0, 120) == 0.0
    budget.add(0.0, -1, -120)
    assert budget.ready_at(0.0, 120) == pytest.approx(120.0)
    assert budget.ready_at(0.0, 1) == pytest.approx(115.0)


def test_adding_returns_and_takes_tokens() -> None:
    """A call that used less frees the rest at once; one that used more delays the calls after it."""
    budget = RateBudget(None, 600, 0.0)
    budget.add(0.0, -1, -60)
    assert budget.ready_at(0.0, 30) == pytest.approx(3.0)
    budget.add(0.0, 0, 40)
    assert budget.ready_at(0.0, 30) == 0.0
    budget.add(0.0, 0, -100)
    assert budget.ready_at(0.0, 30) == pytest.approx(9.0)


def test_refunds_do_not_overfill() -> None:
    """Tokens returned to a full bucket are lost."""
    budget = RateBudget(None, 600, 0.0)
    budget.add(0.0, 0, 1000)
    budget.add(0.0, -1, -60)
    assert budget.ready_at(0.0, 10) == pytest.approx(1.0)


def test_the_slower_of_both_decides() -> None:
    """With both limits a call waits for the later one."""
    budget = RateBudget(60, 600, 0.0)
    budget.add(0.0, -1, -60)
    assert budget.ready_at(0.0, 20) == pytest.approx(2.0)
    for _ in range(5):
        budget.add(0.0, -1, -0)
    assert budget.ready_at(0.0, 5) == pytest.approx(1.0)


def test_without_limits_nothing_waits() -> None:
    """A budget without rates does not limit."""
    budget = RateBudget(None, None, 0.0)
    budget.add(1.0, -1, -(10**9))
    assert budget.ready_at(1.0, 10**9) == 1.0
