"""The columnar buffer of one row group."""

from __future__ import annotations

import polars as pl
import pytest

from seedbed.store.values import Buffer, make_frame


def test_undefined_cells_are_none() -> None:
    """A cell that was not written is None, and one write changes one cell."""
    buffer = Buffer(["a", "b"], 3)
    buffer.update_cell(1, "b", "x")
    assert buffer.values("a") == [None, None, None]
    assert buffer.values("b") == [None, "x", None]


def test_take_returns_only_the_given_rows_in_their_order() -> None:
    """The columns that are requested, and only the local rows that are requested."""
    buffer = Buffer(["a", "b", "c"], 4)
    for row in range(4):
        buffer.update_cell(row, "a", row)
        buffer.update_cell(row, "b", str(row))
    assert buffer.take(["b", "a"], [3, 1]) == {"b": ["3", "1"], "a": [3, 1]}
    assert buffer.take(["a"]) == {"a": [0, 1, 2, 3]}
    assert make_frame(buffer.take(["a", "c"], []), 0).schema == {"a": pl.Null, "c": pl.Null}


def test_a_frame_has_struct_keys_that_are_seen_late() -> None:
    """A key that first appears after row 100 is in the frame."""
    frame = make_frame({"s": [{"a": row} if row < 250 else {"a": row, "late": "x"} for row in range(300)]}, 300)
    assert frame["s"][299] == {"a": 299, "late": "x"}
    assert frame["s"][0] == {"a": 0, "late": None}


def test_values_without_one_type_stay_objects() -> None:
    """A column of mixed values gives a frame that holds the same values."""
    things = [1, "one", {1}]
    frame = make_frame({"m": things}, 3)
    assert frame.schema == {"m": pl.Object}
    assert frame["m"].to_list() == things


def test_from_frame_fills_what_the_frame_has() -> None:
    """Columns of the frame are filled, the others are empty, and columns that only the frame has are left out."""
    frame = pl.DataFrame({"a": [1, 2], "new": ["x", "y"], "s": [{"k": 1}, None]})
    buffer = Buffer.from_frame(frame, ["a", "b", "s"])
    assert buffer.rows == 2
    assert buffer.take(["a", "b", "s"]) == {"a": [1, 2], "b": [None, None], "s": [{"k": 1}, None]}


def test_free_forgets_the_values() -> None:
    """After `free` there are no columns to read."""
    buffer = Buffer(["a"], 1)
    buffer.free()
    with pytest.raises(KeyError):
        buffer.values("a")
