from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest

from seedbed.columns.distributions import Bernoulli, Binomial, Gaussian, Poisson, Scipy, Uniform
from seedbed.columns.person import Person
from seedbed.columns.sampler import UUID, Category, Datetime, Reference, Sampler, Subcategory, Timedelta
from seedbed.errors import ConfigError
from seedbed.recipe.file import recipe_data
from seedbed.recipe.recipe import Recipe, plain


@pytest.mark.parametrize(
    ("spec", "fields", "message"),
    [
        (Category, {"values": []}, "values must be a list of at least one value, not \\[\\]"),
        (Category, {"values": "abc"}, "values must be a list of at least one value, not 'abc'"),
        (Category, {"values": ["a"], "weights": [-1]}, "weights of values must be numbers, 0 or more"),
        (Category, {"values": ["a"], "weights": [float("nan")]}, "weights of values must be numbers, 0 or more"),
        (Category, {"values": ["a", "b"], "weights": [1]}, "values has 2 values, but 1 weights"),
        (Category, {"values": ["a", "b"], "weights": [0, 0]}, "the weights of values are all 0"),
        (Category, {"values": {"fr": ["a"]}}, 'values by case need given="…"'),
        (Category, {"values": ["a"], "given": "x"}, "values must be a mapping from each case"),
        (Category, {"values": {"fr": []}, "given": "x"}, "values of 'fr' must be a list"),
        (Category, {"values": {"fr": [1]}, "given": "x", "weights": {"de": [1]}}, "weights are given for case 'de'"),
        (Category, {"values": {"fr": [1]}, "given": "x", "weights": [1]}, "weights must be a mapping"),
        (Category, {"values": {"fr": [1]}, "given": "x", "default": []}, "default must be a list of at least one"),
        (Category, {"values": ["a"], "default": ["b"]}, "default is for values by case"),
        (Category, {"values": ["a"], "given": ""}, "given must be the name of a column"),
        (Subcategory, {"category": "topic", "values": ["a"]}, "values must be a mapping from each case"),
        (Subcategory, {"category": 3, "values": {"a": [1]}}, "category must be the name of a column, not 3"),
        (Uniform, {"low": 2, "high": 1}, "low and high are in the wrong order: 2 is above 1"),
        (Uniform, {"low": "1"}, "low must be a number or {\"column\": …}, not '1'"),
        (Uniform, {"low": float("inf")}, "low must be a number"),
        (Uniform, {"low": True}, "low must be a number"),
        (Uniform, {"decimals": -1}, "decimals must be a whole number from 0 to 15"),
        (Uniform, {"low": 0.2, "high": 0.8, "decimals": 0}, "no number of 0 decimals lies between"),
        (Gaussian, {"std": -1}, "std must be a number, 0 or more, or"),
        (Gaussian, {"low": 3, "high": 2}, "wrong order"),
        (Bernoulli, {"p": 1.01}, "p must be a number from 0 to 1 or .*, not 1.01"),
        (Bernoulli, {"p": -0.1}, "p must be a number from 0 to 1"),
        (Binomial, {"n": 1.5}, "n must be a whole number from 0 to 1000000000 or"),
        (Binomial, {"n": -1}, "n must be a whole number"),
        (Binomial, {"n": 3, "p": 2}, "p must be a number from 0 to 1"),
        (Poisson, {"mean": -1}, "mean must be a number from 0 to 1000000000"),
        (Poisson, {"mean": 2e9}, "mean must be a number from 0 to 1000000000"),
        (UUID, {"prefix": 3}, "prefix must be text, not 3"),
        (UUID, {"short": 8}, "short must be True or False, not 8"),
        (Datetime, {"start": "2024-13-01", "end": "2024-01-01"}, "start must be a date, .*not '2024-13-01'"),
        (Datetime, {"start": "2024-02-01", "end": "2024-01-01"}, "start .* is after end"),
        (Datetime, {"start": "2024-01-01T00:00Z", "end": "2024-02-01"}, "must both have a time zone, or neither"),
        (Datetime, {"start": "2024-01-01", "end": "2024-02-01", "unit": "week"}, "unit must be one of day, hour"),
        (Datetime, {"start": "2024-01-01", "end": "2024-02-01", "as_date": True, "format": "%Y"}, "exclude each other"),
        (Timedelta, {"high": 1.5}, "high must be a whole number or"),
        (Timedelta, {"low": 2, "high": 1}, "wrong order"),
        (Person, {"age": (50, 20)}, "the two ages are in the wrong order"),
        (Person, {"age": 30}, "age must be the youngest and the oldest age"),
        (Person, {"age": (1, 200)}, "two whole numbers from 0 to 130"),
        (Person, {"sex": "x"}, "sex must be 'female' or 'male', not 'x'"),
        (Person, {"locale": []}, "locale must be a locale such as"),
        (Person, {"as_of": "soon"}, "as_of must be a date, not 'soon'"),
        (Scipy, {"dist": 3}, "dist must be a text"),
        (Scipy, {"dist": "beta", "params": [1]}, "params must be a mapping"),
    ],
)
def test_invalid_parameters_are_rejected(spec: type[Sampler], fields: dict[str, Any], message: str) -> None:
    """The message names the column, the field, the value found and what is expected."""
    with pytest.raises(ConfigError, match=f"column 'x': .*{message}"):
        spec("x", **fields)


def test_a_mapping_with_a_column_is_a_reference() -> None:
    """`references` lists the parameters that are taken from other columns; a dot selects a field."""
    spec = Gaussian("weight", mean={"column": "person.age"}, std=2)
    assert spec.references() == {"mean": Reference("person.age")}
    assert spec.references()["mean"].root == "person"
    assert plain(spec.mean) == {"column": "person.age"}
    assert Scipy("s", dist="beta", params={"a": {"column": "x"}, "b": 1}).references() == {"params.a": Reference("x")}
    assert Timedelta("t", high=3, of="day").references() == {"of": Reference("day")}


def test_instants_may_be_text() -> None:
    """ISO text, dates and datetimes mean the same; zones become UTC; short units are known."""
    spec = Datetime("d", start="2024-01-01", end=date(2024, 1, 2), unit="h")
    assert (spec.start, spec.end, spec.unit) == (datetime(2024, 1, 1), datetime(2024, 1, 2), "hour")  # noqa: DTZ001
    aware = Datetime("d", start="2024-01-01T02:00+02:00", end="2024-01-02T00:00Z")
    assert aware.start == datetime(2024, 1, 1, tzinfo=UTC)


def test_a_subcategory_is_a_category_by_case() -> None:
    """It has the fields that all columns have, such as a skip rule."""
    spec = Subcategory("kind", category="topic", values={"tea": ["green"]}, skip_when="topic == 'rain'")
    assert isinstance(spec, Category)
    assert (spec.name, spec.given, spec.skip_when) == ("kind", "topic", "topic == 'rain'")
    assert recipe_data(Recipe(columns=[spec]))["columns"] == [
        {
            "type": "subcategory",
            "name": "kind",
            "skip_when": "topic == 'rain'",
            "values": {"tea": ["green"]},
            "category": "topic",
        }
    ]
