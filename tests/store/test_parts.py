"""Parquet files that are either whole or not there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seedbed.errors import PartError
from seedbed.store.parts import checksum, is_temporary, part_name, read_table, write_part

if TYPE_CHECKING:
    from pathlib import Path

TABLE = pa.table({"a": [1, 2, 3], "s": [{"x": 1}, None, {"x": 2}]})


def names(directory: Path) -> list[str]:
    """What is in the directory."""
    return sorted(path.name for path in directory.iterdir())


def test_part_names_have_seven_digits() -> None:
    """Names sort as their numbers do."""
    assert part_name(0) == "batch_0000000.parquet"
    assert part_name(1_234_567) == "batch_1234567.parquet"


def test_a_part_is_compressed_and_described(tmp_path: Path) -> None:
    """The record says what the file holds; the file is zstd parquet and the only one there."""
    steps: list[str] = []
    record = write_part(tmp_path, 3, TABLE, abandoned=lambda: False, step=steps.append)
    assert record is not None
    path = tmp_path / "batch_0000003.parquet"
    assert names(tmp_path) == [path.name]
    assert (record.name, record.rows, record.size) == (path.name, 3, path.stat().st_size)
    assert record.checksum == checksum(path)
    assert record.schema == TABLE.schema
    assert pq.read_metadata(path).row_group(0).column(0).compression == "ZSTD"
    assert read_table(path).equals(TABLE)
    assert steps == ["written", "synced", "committed", "renamed", "directory-synced"]


def test_an_abandoned_part_is_not_there(tmp_path: Path) -> None:
    """The flag is asked after all the work, directly before the rename, and then nothing is left."""
    steps: list[str] = []
    record = write_part(tmp_path, 0, TABLE, abandoned=lambda: "synced" in steps, step=steps.append)
    assert record is None
    assert steps[-1] == "synced"
    assert names(tmp_path) == []


@pytest.mark.parametrize("at", ["written", "synced", "committed"])
def test_an_error_leaves_no_temporary_file(tmp_path: Path, at: str) -> None:
    """Whatever raises before the rename, no file is left."""

    def step(name: str) -> None:
        if name == at:
            assert all(is_temporary(path) for path in tmp_path.iterdir())
            raise RuntimeError(at)

    with pytest.raises(RuntimeError, match=at):
        write_part(tmp_path, 0, TABLE, abandoned=lambda: False, step=step)
    assert names(tmp_path) == []


def test_reading_some_columns(tmp_path: Path) -> None:
    """Only columns asked for come, those the file lacks are left out, and a dot in a name is part of the name."""
    table = pa.table({"s": [{"x": 1}], "s.x": [2], "b": [3]})
    write_part(tmp_path, 0, table, abandoned=lambda: False)
    path = tmp_path / part_name(0)
    assert read_table(path, ["s.x", "gone"]).to_pydict() == {"s.x": [2]}
    assert read_table(path, ["b", "s"]).to_pydict() == {"b": [3], "s": [{"x": 1}]}
    assert read_table(path, ["gone"]).num_rows == 1


def test_parts_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing and a damaged part are named."""
    with pytest.raises(PartError, match=r"'batch_0000000.parquet' is missing"):
        read_table(tmp_path / part_name(0))
    (tmp_path / part_name(1)).write_bytes(b"no parquet")
    with pytest.raises(PartError, match=r"'batch_0000001.parquet' .* cannot be read"):
        read_table(tmp_path / part_name(1))
