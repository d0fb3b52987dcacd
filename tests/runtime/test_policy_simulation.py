"""Where the throttle policy settles against simulated servers: the table by which its constants were chosen."""

from __future__ import annotations

import pytest
from simulated_servers import Outcome, Server, simulate, steps

from seedbed.runtime.policy import ThrottlePolicy

SEEDS = range(5)


def run(server: Server, ceiling: int, seed: int, calls: int = 3_000) -> Outcome:
    """One run below a ceiling."""
    return simulate(server, ThrottlePolicy(ceiling), calls, seed)


def late_limits(outcome: Outcome) -> list[int]:
    """Every limit in the second half of a run."""
    middle = outcome.wall / 2
    return [outcome.limit_at(middle), *(limit for since, limit in outcome.history if since > middle)]


@pytest.mark.parametrize("refusal", [0.02, 0.1, 0.4, 1.0])
@pytest.mark.parametrize("ceiling", [32, 128])
@pytest.mark.parametrize("seed", SEEDS)
def test_full_at_16(ceiling: int, refusal: float, seed: int) -> None:
    """Against a capacity of 16 the limit settles from 14 to 17 with under 5 % rate-limited, however slowly."""
    server = Server(capacity=steps((0, 16)), refusal=refusal)
    outcome = run(server, ceiling, seed)
    assert 14 <= outcome.mean_limit(outcome.wall / 2) <= 17
    assert min(late_limits(outcome)) >= 14
    assert outcome.rate_limited_share < 0.05
    assert outcome.wall < 1.1 * 3_000 * server.latency / 16


@pytest.mark.parametrize("latency", [0.005, 0.5])
@pytest.mark.parametrize("spread", [0.0, 1.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_full_at_16_with_any_latency(latency: float, spread: float, seed: int) -> None:
    """The limit also settles there when calls take 5 ms or half a second, all the same or with a long tail."""
    outcome = run(Server(capacity=steps((0, 16)), latency=latency, spread=spread), 128, seed, calls=2_000)
    assert 14 <= outcome.mean_limit(outcome.wall / 2) <= 17
    assert outcome.rate_limited_share < 0.05


@pytest.mark.parametrize("capacity", [2, 5, 40, 60, 80, 100])
@pytest.mark.parametrize("seed", SEEDS)
def test_other_capacities(capacity: int, seed: int) -> None:
    """The limit settles at any capacity with little throughput lost on the way."""
    calls = 3_000 if capacity > 10 else 600
    outcome = run(Server(capacity=steps((0, capacity))), 128, seed, calls)
    assert capacity * 0.9 <= outcome.mean_limit(outcome.wall / 2) <= capacity * 1.05 + 1
    assert outcome.rate_limited_share < (0.05 if capacity > 10 else 0.15)
    assert outcome.wall < 1.15 * calls * 0.05 / capacity


@pytest.mark.parametrize(("share", "slowdown"), [(0.1, 1.2), (0.3, 2.2)])
@pytest.mark.parametrize("refusal", [0.1, 0.4])
@pytest.mark.parametrize("seed", SEEDS)
def test_random_rate_limits(share: float, slowdown: float, refusal: float, seed: int) -> None:
    """With random rate limits, one in ten or three, the limit stays at the ceiling: sending less gains nothing."""
    outcome = run(Server(random_share=share, refusal=refusal), 32, seed)
    assert outcome.mean_limit() >= 0.9 * 32
    assert outcome.wall < slowdown * 3_000 * 0.05 / 32


@pytest.mark.parametrize("seed", SEEDS)
def test_random_rate_limits_below_a_high_ceiling(seed: int) -> None:
    """The limit reaches a ceiling of 128 and stays there although one call in ten is rate-limited."""
    outcome = run(Server(random_share=0.1), 128, seed, calls=12_000)
    assert outcome.mean_limit() >= 0.9 * 128


@pytest.mark.parametrize("seed", SEEDS)
def test_full_and_random_at_once(seed: int) -> None:
    """A capacity of 16 is detected although one call in ten is also rate-limited at random."""
    outcome = run(Server(capacity=steps((0, 16)), random_share=0.1), 32, seed)
    assert 14 <= outcome.mean_limit(outcome.wall / 2) <= 17
    assert outcome.rate_limited_share < 0.15


@pytest.mark.parametrize("seed", SEEDS)
def test_capacity_that_changes(seed: int) -> None:
    """The limit follows a capacity from 16 up to 64 and down to 8."""
    server = Server(capacity=steps((0, 16), (4, 64), (11, 8)))
    outcome = run(server, 128, seed, calls=10_500)
    assert 14 <= outcome.limit_at(4) <= 19
    assert 60 <= outcome.limit_at(11) <= 68
    assert outcome.wall > 14
    assert 7 <= outcome.mean_limit(12.5) <= 9
    assert outcome.rate_limited_share < 0.05


@pytest.mark.parametrize("ceiling", [32, 128])
@pytest.mark.parametrize("outage", [(0.0, 3.0), (1.0, 1.5), (0.5, 20.0)])
@pytest.mark.parametrize("seed", SEEDS)
def test_recovering(ceiling: int, outage: tuple[float, float], seed: int) -> None:
    """After an outage in which everything is rate-limited the limit returns to the ceiling, with few calls wasted."""
    start, end = outage
    outcome = run(Server(capacity=steps((-1, 1_000), (start, 0), (end, 1_000))), ceiling, seed, calls=6_000)
    assert outcome.history[-1][1] == ceiling
    assert min(limit for _, limit in outcome.history) == 1
    assert outcome.rate_limited_share < 0.05


@pytest.mark.parametrize("seed", SEEDS)
def test_queueing_instead_of_rate_limiting(seed: int) -> None:
    """If a server queues, rising latency lowers the limit only with latency_congestion."""
    server = Server(capacity=steps((0, 16)), queues=True)
    by_latency = simulate(server, ThrottlePolicy(128, latency_congestion=True), 3_000, seed)
    plain = simulate(server, ThrottlePolicy(128), 3_000, seed)
    assert 16 <= by_latency.mean_limit(by_latency.wall / 2) <= 48
    assert plain.limit_at(plain.wall / 2) == 128
    assert by_latency.wall <= plain.wall * 1.1
