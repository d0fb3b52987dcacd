from __future__ import annotations

import numpy as np
import pytest

from seedbed.plans.registries import COUNTRY, ID, Key, KeyType, default_registries
from seedbed.plans.rowset import NO_ROWS, Column, RowSet, concat, make_column, new_rows, order_of, string_column

KEYS = default_registries().keys
SCORE = KEYS[2001]
NAME = KEYS[COUNTRY]


def scored(*scores: float) -> RowSet:
    """Rows 1, 2, 3, … with these scores."""
    return new_rows(range(1, len(scores) + 1)).with_column(SCORE.id, Column(np.array(scores, dtype=float)))


def test_unchanged_columns_are_shared() -> None:
    """Filtering, ordering, taking and adding a column do not copy the other columns."""
    rows = scored(3, 1, 2)
    changed = (
        rows.where(np.array([True, False, True]))
        .at(np.array([1, 0]))
        .head(1)
        .with_column(1001, Column(np.array([9.0])))
    )
    assert changed.columns[ID] is rows.columns[ID]
    assert changed.columns[SCORE.id] is rows.columns[SCORE.id]
    assert changed.ids().tolist() == [3]
    assert changed.to_list(KEYS[1001]) == [9.0]
    assert 1001 not in rows.columns


def test_columns_cannot_be_changed() -> None:
    """Writing into a column or a mask of nulls raises."""
    rows = scored(1, 2)
    with pytest.raises(ValueError, match="read-only"):
        rows.columns[SCORE.id].values[0] = 5
    names = string_column(["a", None])
    assert names.nulls is not None
    with pytest.raises(ValueError, match="read-only"):
        names.nulls[0] = True


def test_a_key_that_nothing_wrote_reads_as_its_default_or_null() -> None:
    """A key that is not nullable reads as its default, a nullable one as null."""
    rows = new_rows([1, 2])
    assert rows.to_list(SCORE) == [0.0, 0.0]
    assert rows.to_list(NAME) == [None, None]


def test_a_column_can_be_added_to_a_selection() -> None:
    """Values for a selection reach its rows in its order, nulls too."""
    rows = scored(1, 2, 3, 4).at(np.array([3, 0, 2]))
    key = Key(id=9, name="x", type=KeyType.FLOAT, nullable=True)
    added = rows.with_column(9, Column(np.array([40.0, 10.0, 0.0]), np.array([False, False, True])))
    assert added.ids().tolist() == [4, 1, 3]
    assert added.to_list(key) == [40.0, 10.0, None]
    with pytest.raises(ValueError, match="2 values does not fit 3 rows"):
        rows.with_column(9, Column(np.array([1.0, 2.0])))


def test_concat_has_the_columns_of_all_and_fills_what_is_missing() -> None:
    """A missing column is filled with its default or null, whichever side lacks it."""
    left = scored(5, 6)
    right = RowSet({ID: Column(np.array([7, 8])), COUNTRY: string_column(["US", None])}).head(2)
    both = concat([left, right, NO_ROWS], KEYS)
    assert both.ids().tolist() == [1, 2, 7, 8]
    assert both.to_list(SCORE) == [5.0, 6.0, 0.0, 0.0]
    assert both.to_list(NAME) == [None, None, "US", None]
    assert both.columns[SCORE.id].nulls is None


@pytest.mark.parametrize(("descending", "expected"), [(False, [2, 5, 1, 4, 3, 6]), (True, [1, 4, 2, 5, 3, 6])])
def test_sorting_is_stable_and_puts_nulls_last(expected: list[int], *, descending: bool) -> None:
    """Equal values stay in their order and nulls come last, in both orders."""
    rows = new_rows([1, 2, 3, 4, 5, 6], {COUNTRY: string_column(["b", "a", None, "b", "a", None])})
    order = order_of(rows, NAME, descending=descending)
    assert order is not None
    assert rows.at(order).ids().tolist() == expected


def test_sorting_by_an_unwritten_key_changes_nothing() -> None:
    """A key that nothing wrote gives no order."""
    assert order_of(new_rows([2, 1]), SCORE, descending=True) is None


@pytest.mark.parametrize(
    ("key", "values", "message"),
    [
        (SCORE, [1.0, None], "'final_score' is not nullable"),
        (SCORE, [1.0, float("nan")], "not finite"),
        (SCORE, ["x"], "'final_score' is of type float"),
        (NAME, ["x", 3], "'country' is of type string"),
        (KEYS[ID], [2**70], "'id' is of type int"),
    ],
)
def test_a_value_that_does_not_fit_its_key_is_rejected(key: Key, values: list[object], message: str) -> None:
    """The error names the key and the reason."""
    with pytest.raises(ValueError, match=message):
        make_column(key, values)
