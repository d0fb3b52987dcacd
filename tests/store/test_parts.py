"""Parquet files that are either whole or not there."""

from __future__ import annotations

import io
import threading
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seedbed.errors import PartError
from seedbed.runtime import faults
from seedbed.store import parts
from seedbed.store.files import is_temporary, open_file
from seedbed.store.parts import PARTS, checksum, damage, discard, part_name, place, read_table, stage

if TYPE_CHECKING:
    from pathlib import Path

    from seedbed.store.parts import PartRecord

TABLE = pa.table({"a": [1, 2, 3], "s": [{"x": 1}, None, {"x": 2}]})


def names(directory: Path) -> list[str]:
    """The files below the directory."""
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())


def test_part_names_have_seven_digits() -> None:
    """Names sort as their numbers do."""
    assert part_name(0) == "batch_0000000.parquet"
    assert part_name(1_234_567) == "batch_1234567.parquet"


def write_part(directory: Path, index: int, table: pa.Table) -> PartRecord:
    """Stage a part and give it its name."""
    return place(directory, stage(directory, part_name(index), table))


def test_a_part_is_compressed_and_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record describes the file, which is zstd parquet and the only one."""
    steps: list[str] = []
    monkeypatch.setattr(faults, "hook", steps.append)
    record = write_part(tmp_path, 3, TABLE)
    path = tmp_path / "batch_0000003.parquet"
    assert names(tmp_path) == [path.name]
    assert (record.name, record.rows, record.size) == (path.name, 3, path.stat().st_size)
    with open_file(tmp_path, path.name) as file:
        assert record.checksum == checksum(file)
    assert record.schema == TABLE.schema
    assert record.staged is None
    assert damage(tmp_path, record) is None
    assert pq.read_metadata(path).row_group(0).column(0).compression == "ZSTD"
    assert read_table(tmp_path, record).equals(TABLE)
    assert steps == ["part written", "part synced", "part renamed", "part directory synced"]


def test_a_staged_part_is_found_before_and_after_its_rename(tmp_path: Path) -> None:
    """Staged content is read before its rename and after it."""
    old = write_part(tmp_path, 0, TABLE)
    staged = stage(tmp_path, part_name(0), TABLE.slice(1))
    assert staged.staged is not None
    assert is_temporary(tmp_path / staged.staged)
    for record, rows in ((old, 3), (staged, 2)):
        assert damage(tmp_path, record) is None
        assert read_table(tmp_path, record).num_rows == rows
    place(tmp_path, staged)
    assert read_table(tmp_path, staged).num_rows == 2
    assert damage(tmp_path, staged) is None
    assert "bytes and should have" in (damage(tmp_path, old) or "")


def test_a_discarded_part_is_removed(tmp_path: Path) -> None:
    """A staged file that is discarded leaves the part unchanged."""
    old = write_part(tmp_path, 0, TABLE)
    discard(tmp_path, stage(tmp_path, part_name(0), TABLE.slice(1)))
    assert names(tmp_path) == [old.name]
    assert damage(tmp_path, old) is None


@pytest.mark.parametrize("at", ["part written", "part synced"])
def test_an_error_leaves_no_temporary_file(tmp_path: Path, at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever raises before the file is staged, no file is left."""

    def hook(name: str) -> None:
        if name == at:
            assert all(is_temporary(tmp_path / name) for name in names(tmp_path))
            assert names(tmp_path)[0].startswith(PARTS)
            raise RuntimeError(at)

    monkeypatch.setattr(faults, "hook", hook)
    with pytest.raises(RuntimeError, match=at):
        write_part(tmp_path, 0, TABLE)
    assert names(tmp_path) == []


def test_damage_to_a_part_is_described(tmp_path: Path) -> None:
    """A part that is missing, too short or changed is named with what is wrong."""
    record = write_part(tmp_path, 0, TABLE)
    path = tmp_path / record.name
    data = bytearray(path.read_bytes())
    path.write_bytes(data[:-1])
    assert damage(tmp_path, record) == (
        f"part 'batch_0000000.parquet' is damaged: it has {len(data) - 1:,} bytes and should have {len(data):,}"
    )
    data[7] ^= 1
    path.write_bytes(data)
    assert damage(tmp_path, record) == "part 'batch_0000000.parquet' is damaged: its checksum differs"
    path.unlink()
    assert damage(tmp_path, record) == "part 'batch_0000000.parquet' is missing"


def test_reading_some_columns(tmp_path: Path) -> None:
    """Only columns asked for come, those the file lacks are left out, and a dot in a name is part of the name."""
    table = pa.table({"s": [{"x": 1}], "s.x": [2], "b": [3]})
    part = write_part(tmp_path, 0, table)
    assert read_table(tmp_path, part, ["s.x", "gone"]).to_pydict() == {"s.x": [2]}
    assert read_table(tmp_path, part, ["b", "s"]).to_pydict() == {"b": [3], "s": [{"x": 1}]}
    assert read_table(tmp_path, part, ["gone"]).num_rows == 1


class Watched(io.FileIO):
    """A file that notes which threads read it."""

    readers: ClassVar[set[int]] = set()

    def read(self, *arguments: Any) -> Any:
        self.readers.add(threading.get_ident())
        return super().read(*arguments)

    def readinto(self, *arguments: Any) -> Any:
        self.readers.add(threading.get_ident())
        return super().readinto(*arguments)


def test_a_part_is_read_by_the_thread_that_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of arrow that hold memory of Python abort a process that ends just then."""
    record = write_part(tmp_path, 0, TABLE)
    monkeypatch.setattr(parts, "open_part", lambda directory, part: Watched(directory / part.name))
    Watched.readers.clear()
    assert read_table(tmp_path, record).equals(TABLE)
    assert Watched.readers == {threading.get_ident()}


def test_parts_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing and a damaged part are named."""
    part = write_part(tmp_path, 0, TABLE)
    (tmp_path / part.name).unlink()
    with pytest.raises(PartError, match=r"'batch_0000000.parquet' is missing"):
        read_table(tmp_path, part)
    (tmp_path / part.name).write_bytes(b"no parquet")
    with pytest.raises(PartError, match=r"'batch_0000000.parquet' .* cannot be read"):
        read_table(tmp_path, part)
