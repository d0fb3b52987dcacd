"""Distributions: parsing, formatting, means and draws."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedbed.errors import ConfigError
from seedbed.models.distributions import distribution_text, draw, drawer, mean, parse_distribution

VALUES: list[tuple[str, Any, float]] = [
    ("2.5", 2.5, 2.5),
    ("uniform(1, 3)", {"uniform": [1.0, 3.0]}, 2.0),
    ("normal(4, 0.5)", {"normal": [4.0, 0.5]}, 4.0),
    ("lognormal(0.8, 0.5)", {"lognormal": [0.8, 0.5]}, 0.9065),
    ("exponential(0.5)", {"exponential": 0.5}, 0.5),
    ("integer(1, 5)", {"integer": [1.0, 5.0]}, 3.0),
    ("choice(1, 2, 6)", {"choice": [1.0, 2.0, 6.0]}, 3.0),
]


@pytest.mark.parametrize(("text", "value", "average"), VALUES)
def test_distributions_are_parsed_and_formatted_and_have_a_mean(text: str, value: Any, average: float) -> None:
    """The command-line form parses to the form of recipe files, formats back to itself and has the right mean."""
    assert parse_distribution(text) == value
    assert distribution_text(value) == text
    assert mean(value) == pytest.approx(average, rel=1e-3)
    rng = random.Random(1)
    drawn = drawer(value, rng)
    assert sum(drawn() for _ in range(20_000)) / 20_000 == pytest.approx(average, rel=0.03)


@given(st.sampled_from([value for _, value, _ in VALUES]), st.integers())
def test_a_drawer_draws_the_same_values_as_draw(value: Any, seed: int) -> None:
    """Repeated draws from one drawer equal calls of draw with the same generator."""
    one, other = random.Random(seed), random.Random(seed)
    drawn = drawer(value, one)
    assert [drawn() for _ in range(5)] == [draw(value, other) for _ in range(5)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("soon", "neither a number nor a distribution"),
        ("uniform(1)", "uniform needs two numbers"),
        ("uniform(3, 1)", "lower bound first"),
        ("uniform(a, b)", "neither a number nor a distribution"),
        ("uniformm(1, 2)", "unknown distribution 'uniformm'; did you mean 'uniform'"),
    ],
)
def test_invalid_distributions_are_rejected(text: str, message: str) -> None:
    """The message names the problem."""
    with pytest.raises(ConfigError, match=message):
        parse_distribution(text)


def test_many_measured_values_are_summarised() -> None:
    """More than four values are shown as count and median."""
    assert distribution_text({"choice": [5.0, 1.0, 2.0, 9.0, 3.0]}) == "5 measured values, median 3"
