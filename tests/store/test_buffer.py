"""The columnar buffer of one row group."""

from __future__ import annotations

import polars as pl
import pytest

from seedbed.store.values import Buffer


def test_undefined_cells_are_none() -> None:
    """A cell that nobody wrote is None, and one write changes one cell."""
    buffer = Buffer(["a", "b"], 3)
    buffer.update_cell(1, "b", "x")
    assert buffer.columns == ("a", "b")
    assert buffer.values("a") == [None, None, None]
    assert buffer.values("b") == [None, "x", None]


def test_frame_takes_only_the_given_rows_in_their_order() -> None:
    """A frame has the columns asked for and only the local rows asked for."""
    buffer = Buffer(["a", "b", "c"], 4)
    for row in range(4):
        buffer.update_cell(row, "a", row)
        buffer.update_cell(row, "b", str(row))
    assert buffer.frame(["b", "a"], [3, 1]).to_dict(as_series=False) == {"b": ["3", "1"], "a": [3, 1]}
    assert buffer.frame(["a"]).to_dict(as_series=False) == {"a": [0, 1, 2, 3]}
    assert buffer.frame(["a", "c"], []).schema == {"a": pl.Null, "c": pl.Null}


def test_struct_keys_seen_late_are_kept() -> None:
    """A key that first appears after row 100 is in the frame."""
    buffer = Buffer(["s"], 300)
    for row in range(300):
        buffer.update_cell(row, "s", {"a": row} if row < 250 else {"a": row, "late": "x"})
    frame = buffer.frame(["s"])
    assert frame["s"][299] == {"a": 299, "late": "x"}
    assert frame["s"][0] == {"a": 0, "late": None}


def test_values_without_one_type_stay_objects() -> None:
    """A column of mixed values gives a frame that still holds the very values."""
    buffer = Buffer(["m"], 3)
    things = [1, "one", {1}]
    for row, thing in enumerate(things):
        buffer.update_cell(row, "m", thing)
    frame = buffer.frame(["m"])
    assert frame.schema == {"m": pl.Object}
    assert frame["m"].to_list() == things


def test_from_frame_fills_what_the_frame_has() -> None:
    """After a processor changed the rows, its columns are filled, the others are empty and foreign ones left out."""
    frame = pl.DataFrame({"a": [1, 2], "new": ["x", "y"], "s": [{"k": 1}, None]})
    buffer = Buffer.from_frame(frame, ["a", "b", "s"])
    assert buffer.rows == 2
    assert buffer.take(buffer.columns) == {"a": [1, 2], "b": [None, None], "s": [{"k": 1}, None]}


def test_free_lets_go_of_the_values() -> None:
    """After `free` there are no columns to read."""
    buffer = Buffer(["a"], 1)
    buffer.free()
    assert buffer.columns == ()
    with pytest.raises(KeyError):
        buffer.values("a")
