"""Numbers that are drawn: how they are written, told and averaged."""

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
def test_distributions_are_read_told_and_averaged(text: str, value: Any, average: float) -> None:
    """What one writes is what a recipe file has, is written the same way again, and has the mean that it has."""
    assert parse_distribution(text) == value
    assert distribution_text(value) == text
    assert mean(value) == pytest.approx(average, rel=1e-3)
    rng = random.Random(1)
    drawn = drawer(value, rng)
    assert sum(drawn() for _ in range(20_000)) / 20_000 == pytest.approx(average, rel=0.03)


@given(st.sampled_from([value for _, value, _ in VALUES]), st.integers())
def test_drawing_again_and_again_is_drawing_once_each(value: Any, seed: int) -> None:
    """The quick way gives the same numbers as the plain one."""
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
        ("uniformm(1, 2)", "there is no distribution 'uniformm'; did you mean 'uniform'"),
    ],
)
def test_what_is_no_distribution_is_refused(text: str, message: str) -> None:
    """With what is wrong with it."""
    with pytest.raises(ConfigError, match=message):
        parse_distribution(text)


def test_many_measured_values_are_told_by_their_median() -> None:
    """Nobody wants to read them all."""
    assert distribution_text({"choice": [5.0, 1.0, 2.0, 9.0, 3.0]}) == "5 measured values, median 3"
