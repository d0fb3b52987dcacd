"""Which rows are duplicates of earlier ones, exactly or almost."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seedbed.engine.duplicates import Duplicates
from seedbed.errors import ConfigError
from seedbed.recipe.acceptance import RowRules

LONG = "The committee will meet again on Thursday to discuss the budget for the new library in the old town"


def found(rules: RowRules, values: list[Any], column: str = "v") -> list[int]:
    """The positions of duplicates."""
    return [at for at, _ in Duplicates(rules).add({column: values}, len(values))]


def near(threshold: float = 0.85) -> RowRules:
    """A rule about almost equal values."""
    return RowRules(near_duplicates={"of": "v", "threshold": threshold})


def test_equal_values_are_duplicates() -> None:
    """Of any type; null is equal to null, nan to nan and 1 to 1.0, and long texts are compared as a whole."""
    rules = RowRules(unique="v")
    assert found(rules, ["a", "b", "a", None, None, ""]) == [2, 4]
    assert found(rules, [1, 1.0, 2, math.nan, math.nan]) == [1, 4]
    assert found(rules, [[1, {"a": 2}], [1, {"a": 2}], [1, {"a": 3}], []]) == [1]
    assert found(rules, [LONG, LONG + ".", LONG]) == [2]


def test_several_columns_are_compared_together() -> None:
    """Rows that differ in one of them are different."""
    index = Duplicates(RowRules(unique=["a", "b"]))
    assert [at for at, _ in index.add({"a": [1, 1, 1], "b": [1, 2, 1]}, 3)] == [2]
    assert index.add({"a": [1], "b": [2]}, 1) == [(0, "unique")]


def test_texts_that_differ_in_a_word_are_near_duplicates() -> None:
    """Whatever their case and white space; a null, and another text, are not."""
    texts = [
        LONG,
        LONG.upper().replace(" ", "\n  "),
        LONG.replace("Thursday", "Thursdays"),
        LONG[::-1],
        None,
        None,
        "",
        "",
    ]
    assert found(near(), texts) == [1, 2, 7]
    assert found(near(0.99), texts) == [1, 7]


def test_vectors_are_compared_by_their_cosine() -> None:
    """Whatever their length; those of other dimensions, of length zero and null are no duplicates."""
    vectors = [[1.0, 0.0], [5.0, 0.1], [0.0, 1.0], None, [0.0, 0.0], [0.0, 0.0], [1.0, 0.0, 0.0], np.array([0.0, 9.0])]
    assert found(near(), vectors) == [1, 7]
    assert found(near(0.9999), vectors) == [7]


def test_other_values_are_an_error_that_names_the_column() -> None:
    """A number has no near duplicate."""
    with pytest.raises(
        ConfigError, match="near_duplicates compares texts and vectors; column 'v' has a value of type int"
    ):
        found(near(), [1])


@settings(max_examples=settings.default.max_examples // 10, deadline=None)
@given(
    values=st.lists(st.sampled_from([LONG, LONG + "!", LONG[:50], "tea", "bread", None]), max_size=12),
    cut=st.integers(0, 12),
)
def test_an_index_of_known_rows_decides_as_the_one_that_saw_them(values: list[Any], cut: int) -> None:
    """Built again from the rows that count, it finds the same duplicates among those that follow."""
    rules = RowRules(unique="v", near_duplicates={"of": "v"})
    whole = Duplicates(rules)
    first = [at for at, _ in whole.add({"v": values[:cut]}, len(values[:cut]))]
    rest = values[cut:]
    kept = [value for at, value in enumerate(values[:cut]) if at not in first]
    again = Duplicates(rules)
    again.add({"v": kept}, len(kept), known=True)
    assert again.add({"v": rest}, len(rest)) == whole.add({"v": rest}, len(rest))
