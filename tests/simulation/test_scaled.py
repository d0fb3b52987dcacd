"""Runs that are too large to be simulated whole."""

from __future__ import annotations

from functools import partial

import pytest
from recipes import chain

import seedbed as sb

# Without the overhead of the engine, times are exact.
simulate = partial(sb.simulate, seeds=1, overhead=0.0, processes=1)
BILLION = 1_000_000_000
SECOND = {"writer": {"latency": 1.0, "tokens": "30/20"}}


def test_a_billion_rows_are_scaled() -> None:
    """Calls of a second, four at a time, take a quarter of a second each; usage grows with the rows."""
    recipe = chain("question", "answer", input_price=1.0, output_price=10.0)
    found = simulate(recipe, rows=BILLION, calls=SECOND)
    assert found.base.scaled_from is not None
    assert found.base.scaled_from < 10_000
    assert found.seconds == pytest.approx(2 * BILLION / 4, rel=0.01)
    assert found.base.written.mean == BILLION
    assert found.base.total.calls.mean == 2 * BILLION
    assert found.base.total.output_tokens.mean == 40 * BILLION
    assert found.cost == pytest.approx(2 * BILLION * (30 + 200) / 1e6)
    assert "scaled from " in str(found)
    assert found.bottleneck.startswith("writer: max_parallel_requests=4 is used up")


def test_the_start_of_a_run_counts_once() -> None:
    """What the first calls lose while the throttle finds what the server takes is not lost again in each part."""
    calls = {"writer": {"latency": 1.0, "capacity": 8}}
    recipe = chain("question", max_parallel_requests=64)
    found = simulate(recipe, rows=BILLION, calls=calls)
    assert found.seconds == pytest.approx(BILLION / 8, rel=0.15)


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"max_cost": 50.0}, "max_cost=50.0 is used up after about 217,391 rows"),
        ({"max_tokens": 5_000_000}, "max_tokens=5000000 is used up after about 100,000 rows"),
        ({"deadline": 86_400.0}, "the deadline of 24h00m is reached after about 345,6"),
    ],
)
def test_what_ends_the_whole_run_early(option: dict[str, float], reason: str) -> None:
    """Budgets and the deadline apply to the whole run, not to the smaller ones."""
    recipe = chain("question", input_price=1.0, output_price=10.0)
    found = simulate(recipe, rows=BILLION, calls=SECOND, config=sb.RunConfig(**option))
    assert found.base.stopped is not None
    assert found.base.stopped.startswith(reason)
    assert found.base.written.mean < 400_000


def test_a_run_that_fails_at_its_start_is_not_scaled() -> None:
    """A run that too many errors end is as short however many rows were requested."""
    calls = {"writer": {"latency": 1.0, "failed": 1.0}}
    found = simulate(chain("question"), rows=BILLION, calls=calls)
    assert found.base.stopped is not None
    assert found.base.written.mean == 0
