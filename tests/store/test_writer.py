"""The one writer of a dataset directory."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from seedbed.errors import ManifestError, OutputDirectoryError, StoreError
from seedbed.observe.report import Drop, Usage
from seedbed.runtime import faults
from seedbed.store.dataset import Dataset
from seedbed.store.files import PRIVATE
from seedbed.store.manifest import MANIFEST_NAME, GroupRecord, Header, encode, read
from seedbed.store.parts import PARTS, internal_name, part_name
from seedbed.store.writer import DatasetWriter, check_output

if TYPE_CHECKING:
    from pathlib import Path

HEADER = Header(rows=4, buffer_size=2, columns=("a", "b"), created=0.0, version="0")


def names(directory: Path) -> list[str]:
    """What is in the directory."""
    return sorted((path.name for path in directory.iterdir()), key=lambda name: (name == PRIVATE, name))


def two_groups(writer: DatasetWriter, first: dict[str, list[Any]], second: dict[str, list[Any]]) -> None:
    """Write two row groups of two source rows."""
    writer.write_group(GroupRecord(index=0, start=0, stop=2), first)
    writer.write_group(GroupRecord(index=1, start=2, stop=4), second)


class TestOutput:
    def test_a_new_directory_is_created_with_its_parents(self, tmp_path: Path) -> None:
        """A check leaves nothing behind; creation creates the parents too."""
        out = tmp_path / "x" / "y"
        check_output(out)
        assert names(tmp_path) == []
        with DatasetWriter.create(out, HEADER):
            assert names(out) == [PRIVATE]

    def test_an_empty_directory_can_be_used(self, tmp_path: Path) -> None:
        """An empty directory, or one that a process left before its first record, can be used."""
        (tmp_path / PRIVATE).mkdir()
        (tmp_path / PRIVATE / ".manifest.log.tmp").write_bytes(b"half a hea")
        check_output(tmp_path)
        with DatasetWriter.create(tmp_path, HEADER) as writer:
            writer.finish()
        assert names(tmp_path) == [PRIVATE]

    def test_a_directory_with_content_is_an_error(self, tmp_path: Path) -> None:
        """The error names the content and the next step, and nothing is written."""
        (tmp_path / "notes.txt").write_text("mine")
        (tmp_path / "other.txt").write_text("mine")
        for attempt in (check_output, lambda out: DatasetWriter.create(out, HEADER)):
            with pytest.raises(OutputDirectoryError, match=r"holds 'notes.txt' and 1 more: pass a new directory"):
                attempt(tmp_path)
        assert names(tmp_path) == ["notes.txt", "other.txt"]

    def test_a_file_is_an_error(self, tmp_path: Path) -> None:
        """Neither a file nor a place below a file can be the output."""
        file = tmp_path / "file"
        file.write_text("")
        with pytest.raises(OutputDirectoryError, match="is a file"):
            check_output(file)
        with pytest.raises(OutputDirectoryError, match=r"cannot be created|not writable"):
            check_output(file / "below")

    def test_a_directory_that_is_not_writable_is_an_error(self) -> None:
        """Where no file can be created, even as root, the output is not writable."""
        for place in ("/proc", "/proc/seedbed"):
            with pytest.raises(OutputDirectoryError, match=r"not writable|not empty"):
                check_output(place)

    def test_only_one_writer_at_a_time(self, tmp_path: Path) -> None:
        """A directory that is being written cannot be taken over until its writer lets go."""
        out = tmp_path / "out"
        with DatasetWriter.create(out, HEADER), pytest.raises(OutputDirectoryError, match="another process is writing"):
            DatasetWriter.open(out)
        writer, _, _ = DatasetWriter.open(out)
        writer.close()


def test_groups_are_parts_and_records(tmp_path: Path) -> None:
    """Groups come in any order, each recorded with its rows, drops and counts; one without rows has no file."""
    drop = Drop(row=1, column="b", attempts=3, error="no", kind="Permanent")
    with DatasetWriter.create(tmp_path, replace(HEADER, rows=6)) as writer:
        writer.write_group(GroupRecord(index=2, start=4, stop=6, skipped="the processor failed"), None)
        writer.write_group(GroupRecord(index=1, start=2, stop=4, resized=(("filter", 2, 0),)), {"a": [], "b": []})
        frame = pl.DataFrame({"a": [1], "b": ["x"]})
        group = writer.write_group(
            GroupRecord(index=0, start=0, stop=2, drops=(drop,), resized=(("copy", 0, 1),)), frame
        )
        assert names(tmp_path) == [part_name(0), PRIVATE]
        assert writer.finish() == ()
    manifest = read(tmp_path)
    assert manifest.complete
    assert group is not None
    assert replace(manifest.groups[0], part=group.part) == group  # the part was listed before it was renamed
    assert group is not None
    assert (group.rows, group.drops, group.added) == (1, (drop,), 1)
    assert (manifest.groups[1].part, manifest.groups[1].removed) == (None, 2)
    assert manifest.groups[2].skipped == "the processor failed"


def test_a_group_is_written_once(tmp_path: Path) -> None:
    """A second group of the same index is refused before it touches the part of the first."""
    with DatasetWriter.create(tmp_path, HEADER) as writer:
        writer.write_group(GroupRecord(index=0, start=0, stop=2), {"a": [1]})
        with pytest.raises(StoreError, match="row group 0 is already in"):
            writer.write_group(GroupRecord(index=0, start=0, stop=2), {"a": [2]})
    assert Dataset.open(tmp_path).to_polars()["a"].to_list() == [1]


def test_the_root_never_holds_a_part_that_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every step of writing a row group, each file of the root is listed in the manifest."""
    steps: list[str] = []

    def check(step: str) -> None:
        steps.append(step)
        listed = {part_name(index) for index in read(tmp_path).groups}
        assert listed.issuperset(path.name for path in tmp_path.glob("*.parquet"))

    with DatasetWriter.create(tmp_path, HEADER) as writer:
        monkeypatch.setattr(faults, "hook", check)
        two_groups(writer, {"a": [1, 2]}, {"a": [3, 4]})
    assert steps.count("part renamed") == 2


@pytest.mark.parametrize("at", ["part written", "part synced"])
def test_an_abandoned_group_does_not_exist(tmp_path: Path, at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that was abandoned before it listed its part leaves neither file nor record."""
    steps: list[str] = []
    with DatasetWriter.create(tmp_path, HEADER) as writer:
        monkeypatch.setattr(faults, "hook", steps.append)
        assert (
            writer.write_group(GroupRecord(index=0, start=0, stop=2), {"a": [1]}, abandoned=lambda: at in steps) is None
        )
        assert names(tmp_path) == [PRIVATE]
        assert read(tmp_path).groups == {}
        assert writer.write_group(GroupRecord(index=0, start=0, stop=2), {"a": [2]}) is not None
    assert Dataset.open(tmp_path).to_polars()["a"].to_list() == [2]


def test_checkpoints_of_several_threads(tmp_path: Path) -> None:
    """Row groups that several threads write at once are all listed, in order."""
    groups = 24
    barrier = threading.Barrier(4)

    def write(worker: int) -> None:
        barrier.wait()
        for index in range(worker, groups, 4):
            writer.write_group(GroupRecord(index=index, start=index * 2, stop=index * 2 + 2), {"a": [index] * 2})

    with DatasetWriter.create(tmp_path, replace(HEADER, rows=groups * 2, columns=("a",))) as writer:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(write, range(4)))
        writer.finish()
    dataset = Dataset.open(tmp_path)
    dataset.verify()
    assert dataset.complete
    assert dataset.to_polars()["a"].to_list() == [index for index in range(groups) for _ in range(2)]


def test_a_checkpoint_writes_the_same_amount_whatever_came_before(tmp_path: Path) -> None:
    """The hundredth checkpoint appends as many bytes to the manifest as the first, and touches no other file."""
    sizes = []
    with DatasetWriter.create(tmp_path, replace(HEADER, rows=200)) as writer:
        path = tmp_path / MANIFEST_NAME
        for index in range(100, 200):
            before = path.stat().st_size
            writer.write_group(
                GroupRecord(index=index, start=index * 2, stop=index * 2 + 2), {"a": [1, 2], "b": ["x", "y"]}
            )
            sizes.append(path.stat().st_size - before)
    assert len(set(sizes)) == 1


class TestAddRows:
    def test_rows_are_added_in_order(self, tmp_path: Path) -> None:
        """New rows are put between those that were there, and drops, revision and the content of the part follow."""
        drops = tuple(Drop(row=row, column="b", attempts=3, error="no", kind="failed") for row in (0, 2))
        with DatasetWriter.create(tmp_path, replace(HEADER, buffer_size=4)) as writer:
            lost = GroupRecord(index=0, start=0, stop=4, drops=drops, resized=(("copy", 5, 6),))
            writer.write_group(lost, {"a": [1, 3], "b": ["x", "y"]})
            group = writer.write_group(replace(lost, drops=drops[:1]), {"a": [2.5], "b": [None]}, order=[0, 2, 1])
            assert group is not None
            assert (group.revision, group.rows, group.drops) == (1, 3, drops[:1])
            assert (group.start, group.stop, group.removed, group.added) == (0, 4, 5, 6)
            assert names(tmp_path) == [part_name(0), PRIVATE]
        dataset = Dataset.open(tmp_path)
        dataset.verify()
        assert dataset.to_polars().rows() == [(1.0, "x"), (2.5, None), (3.0, "y")]

    def test_groups_that_had_no_rows_or_get_none(self, tmp_path: Path) -> None:
        """A group without a part gets one, and one that gets no rows is unchanged."""
        with DatasetWriter.create(tmp_path, replace(HEADER, rows=6)) as writer:
            two_groups(writer, {"a": []}, {"a": [1, 2]})
            writer.write_group(GroupRecord(index=0, start=0, stop=2), {"a": [5]}, order=[0])
            assert writer.write_group(GroupRecord(index=1, start=2, stop=4), None, order=[0, 1]) is not None
            writer.write_group(GroupRecord(index=2, start=4, stop=6, skipped="the processor failed"), None)
            writer.write_group(GroupRecord(index=2, start=4, stop=6), {"a": [6]})
            assert writer.write_group(GroupRecord(index=2, start=4, stop=6), None, order=[]) is not None
            assert names(tmp_path) == [part_name(0), part_name(1), PRIVATE]
        assert Dataset.open(tmp_path).to_polars()["a"].to_list() == [5, 1, 2]

    def test_values_of_another_type(self, tmp_path: Path) -> None:
        """A value that the column of the part cannot hold turns the column into text, as in a part written at once."""
        with DatasetWriter.create(tmp_path, HEADER) as writer:
            writer.write_group(GroupRecord(index=0, start=0, stop=3), {"a": [1, 2], "b": [1, 2]})
            group = writer.write_group(GroupRecord(index=0, start=0, stop=2), {"a": ["x"], "b": [3]}, order=[0, 1, 2])
            assert group is not None
            assert [conflict.column for conflict in group.conflicts] == ["a"]
        assert pq.read_table(tmp_path / part_name(0)).to_pydict() == {"a": ["1", "2", '"x"'], "b": [1, 2, 3]}

    def test_an_abandoned_addition(self, tmp_path: Path) -> None:
        """An abandoned addition changes nothing."""
        with DatasetWriter.create(tmp_path, HEADER) as writer:
            writer.write_group(GroupRecord(index=0, start=0, stop=2), {"a": [1]})
            assert (
                writer.write_group(
                    GroupRecord(index=0, start=0, stop=2), {"a": [2]}, order=[0, 1], abandoned=lambda: True
                )
                is None
            )
            assert names(tmp_path) == [part_name(0), PRIVATE]
        assert Dataset.open(tmp_path).to_polars()["a"].to_list() == [1]

    def test_a_record_that_cannot_be_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """If the new record cannot be written, the old content counts and no file is left."""

        def hook(name: str) -> None:
            if name == "record written":
                raise OSError(28, "no space left on device")

        with DatasetWriter.create(tmp_path, HEADER) as writer:
            writer.write_group(GroupRecord(index=0, start=0, stop=2), {"a": [1]})
            with monkeypatch.context() as patch, pytest.raises(StoreError, match="no space"):
                patch.setattr(faults, "hook", hook)
                writer.write_group(GroupRecord(index=0, start=0, stop=2), {"a": [2]}, order=[0, 1])
            assert names(tmp_path) == [part_name(0), PRIVATE]
            assert Dataset.open(tmp_path).to_polars()["a"].to_list() == [1]
            writer.write_group(GroupRecord(index=0, start=0, stop=2), {"a": [2]}, order=[0, 1])
        assert Dataset.open(tmp_path).to_polars()["a"].to_list() == [1, 2]


class TestFinish:
    def test_parts_that_differ_are_rewritten(self, tmp_path: Path) -> None:
        """After finishing, every file has the unified schema, and a part that had it already is not touched."""
        with DatasetWriter.create(tmp_path, HEADER) as writer:
            two_groups(writer, {"a": [1, 2], "b": [None, None]}, {"a": [1.5, None], "b": [{"x": 1}, {"y": "z"}]})
            untouched = (tmp_path / part_name(1)).stat()
            assert writer.finish() == ()
        schema = read(tmp_path).finished
        assert schema is not None
        assert [pq.read_table(tmp_path / part_name(index)).schema for index in (0, 1)] == [schema.schema] * 2
        assert (tmp_path / part_name(1)).stat().st_ino == untouched.st_ino
        Dataset.open(tmp_path).verify()

    def test_a_conflict_changes_no_part(self, tmp_path: Path) -> None:
        """A column that cannot be unified is reported and keeps its types in each part; other columns are unified."""
        with DatasetWriter.create(tmp_path, HEADER) as writer:
            two_groups(writer, {"a": [1, 2], "b": [1, 2]}, {"a": ["x", "y"], "b": [0.5, 1]})
            (conflict,) = writer.finish()
        assert (conflict.column, conflict.part) == ("a", part_name(1))
        tables = [pq.read_table(tmp_path / part_name(index)).to_pydict() for index in (0, 1)]
        assert tables == [{"a": [1, 2], "b": [1.0, 2.0]}, {"a": ["x", "y"], "b": [0.5, 1.0]}]
        Dataset.open(tmp_path).verify()

    def test_a_conflict_of_values_found_on_the_way(self, tmp_path: Path) -> None:
        """A part with an integer that no double holds is unchanged."""
        with DatasetWriter.create(tmp_path, HEADER) as writer:
            two_groups(writer, {"a": [2**60 + 1, 2], "b": [1, 2]}, {"a": [0.5, 1.5], "b": [0.5, 1]})
            (conflict,) = writer.finish()
        assert (conflict.column, conflict.part) == ("a", part_name(0))
        assert pq.read_table(tmp_path / part_name(0)).to_pydict() == {"a": [2**60 + 1, 2], "b": [1.0, 2.0]}

    def test_a_conflict_inside_a_part_stays_reported(self, tmp_path: Path) -> None:
        """Mixed values, stored as text, are a conflict at the end too, even where every other part has strings."""
        with DatasetWriter.create(tmp_path, HEADER) as writer:
            two_groups(writer, {"a": [1, "x"]}, {"a": ["x", "y"]})
            (conflict,) = writer.finish()
        assert "values of int and str (stored as JSON text)" in str(conflict)

    def test_an_abandoned_finish(self, tmp_path: Path) -> None:
        """An abandoned finish leaves an unfinished directory with the same rows."""
        with DatasetWriter.create(tmp_path, HEADER) as writer:
            two_groups(writer, {"a": [1, 2]}, {"a": [0.5, 1]})
            writer.finish(abandoned=lambda: True)
        dataset = Dataset.open(tmp_path)
        assert not dataset.complete
        assert dataset.to_polars()["a"].to_list() == [1.0, 2.0, 0.5, 1.0]

    def test_leftovers_are_removed(self, tmp_path: Path) -> None:
        """Temporary files and unlisted parts are removed at the end; other files stay."""
        with DatasetWriter.create(tmp_path, HEADER) as writer:
            two_groups(writer, {"a": [1, 2]}, {"a": [3, 4]})
            for name in (".batch_0000009.parquet.abc.tmp", part_name(9), "readme.txt"):
                (tmp_path / name).write_bytes(b"x")
            writer.finish()
        assert names(tmp_path) == [part_name(0), part_name(1), "readme.txt", PRIVATE]


class TestOpen:
    def test_resume_after_a_kill(self, tmp_path: Path) -> None:
        """Unfinished work of a killed process is removed, finished work counts, and the rest can be written."""
        with DatasetWriter.create(tmp_path, HEADER) as writer:
            writer.write_group(GroupRecord(index=1, start=2, stop=4), {"a": [3, 4]})
        (tmp_path / part_name(0)).write_bytes(b"renamed, but never listed")
        (tmp_path / ".batch_0000000.parquet.abc.tmp").write_bytes(b"")
        with (tmp_path / MANIFEST_NAME).open("ab") as file:
            file.write(encode(HEADER)[:40])
        writer, manifest, damage = DatasetWriter.open(tmp_path)
        with writer:
            assert damage == ()
            assert set(manifest.groups) == {1}
            assert names(tmp_path) == [part_name(1), PRIVATE]
            writer.write_group(GroupRecord(index=0, start=0, stop=2), {"a": [1, None]})
            assert writer.finish() == ()
        dataset = Dataset.open(tmp_path)
        assert (dataset.complete, dataset.damaged_ranges) == (True, ())
        assert dataset.to_polars()["a"].to_list() == [1, None, 3, 4]

    def test_damaged_parts_do_not_count(self, tmp_path: Path) -> None:
        """A part that was changed, cut off or removed is named, and its row group can be written again."""
        with DatasetWriter.create(tmp_path, replace(HEADER, rows=8, publishes_at_end=True)) as writer:
            for index in range(4):
                writer.write_group(GroupRecord(index=index, start=2 * index, stop=2 * index + 2), {"a": [index, index]})
            assert writer.publish(pl.DataFrame({"z": [1]}))
            writer.finish()
        data = (tmp_path / internal_name(0)).read_bytes()
        (tmp_path / internal_name(0)).write_bytes(data[:9] + bytes([data[9] ^ 1]) + data[10:])
        (tmp_path / internal_name(1)).write_bytes(data[:-1])
        (tmp_path / internal_name(2)).unlink()
        (tmp_path / part_name(0)).write_bytes(b"")
        writer, manifest, damage = DatasetWriter.open(tmp_path)
        with writer:
            assert [sentence.partition("; ")[2] for sentence in damage] == [
                "rows 0 to 1 are generated again",
                "rows 2 to 3 are generated again",
                "rows 4 to 5 are generated again",
                "the processors over the whole dataset run again",
            ]
            assert (set(manifest.groups), manifest.complete, manifest.published) == ({3}, False, None)
            with pytest.raises(OutputDirectoryError, match="another process is writing"):
                DatasetWriter.open(tmp_path)
            assert Dataset.open(tmp_path).damage() == ()
            assert names(tmp_path) == [PRIVATE]
            assert names(tmp_path / PARTS) == ["batch_0000003.part"]
            for index in range(3):
                writer.write_group(GroupRecord(index=index, start=2 * index, stop=2 * index + 2), {"a": [index, index]})
            writer.finish()
        dataset = Dataset.open(tmp_path)
        dataset.verify()
        assert dataset.complete
        assert dataset.to_polars()["a"].to_list() == [0, 0, 1, 1, 2, 2, 3, 3]

    def test_damaged_records_are_removed(self, tmp_path: Path) -> None:
        """A damaged manifest is replaced by one of what is left, and a second time nothing is damaged."""
        with DatasetWriter.create(tmp_path, HEADER) as writer:
            two_groups(writer, {"a": [1, 2]}, {"a": [3, 4]})
            writer.write_usage((("a", "small", Usage(calls=1, input_tokens=2, output_tokens=3, cost=0.5)),))
            writer.finish()
        path = tmp_path / MANIFEST_NAME
        before = read(tmp_path)
        groups = {at: replace(group, part=replace(group.part, staged=None)) for at, group in before.groups.items()}
        path.write_bytes(path.read_bytes().replace(b'"small"', b'"smell"'))
        writer, manifest, damage = DatasetWriter.open(tmp_path)
        with writer:
            (sentence,) = damage
            assert sentence.startswith("'.seedbed/manifest.log' is damaged (bytes ")
            assert (manifest.groups, manifest.finished, manifest.usage) == (groups, before.finished, ())
        content = read(tmp_path)
        assert (content.damaged, content.groups, content.complete) == ((), groups, True)
        writer, _, damage = DatasetWriter.open(tmp_path)
        writer.close()
        assert damage == ()
        assert names(tmp_path) == [part_name(0), part_name(1), PRIVATE]

    @pytest.mark.parametrize("cut", range(1, 8))
    def test_a_manifest_cut_near_its_end_is_whole_after_a_resume(self, tmp_path: Path, cut: int) -> None:
        """However few bytes of the last record are lost, nothing is damaged once the build has resumed."""
        with DatasetWriter.create(tmp_path, HEADER) as writer:
            writer.write_group(GroupRecord(index=0, start=0, stop=2), {"a": [1, 2], "b": ["x", "y"]})
        path = tmp_path / MANIFEST_NAME
        path.write_bytes(path.read_bytes()[:-cut])
        writer, _, damage = DatasetWriter.open(tmp_path)
        assert damage == ()
        with writer:
            writer.write_group(GroupRecord(index=0, start=0, stop=2), {"a": [1, 2], "b": ["x", "y"]})
            writer.write_group(GroupRecord(index=1, start=2, stop=4), {"a": [3, 4], "b": ["z", "w"]})
            writer.finish()
        dataset = Dataset.open(tmp_path)
        assert dataset.damage() == ()
        assert dataset.to_polars()["a"].to_list() == [1, 2, 3, 4]

    def test_conflicts_are_stored(self, tmp_path: Path) -> None:
        """A conflict that was found before the process died is reported at the end."""
        with DatasetWriter.create(tmp_path, HEADER) as writer:
            writer.write_group(GroupRecord(index=0, start=0, stop=2), {"a": [1, "x"]})
        writer, _, _ = DatasetWriter.open(tmp_path)
        with writer:
            assert [conflict.column for conflict in writer.finish()] == ["a"]

    def test_a_directory_of_another_program_is_an_error(self, tmp_path: Path) -> None:
        """Without a manifest nothing is opened and nothing removed."""
        (tmp_path / part_name(0)).write_bytes(b"someone's")
        with pytest.raises(ManifestError, match="is not a dataset"):
            DatasetWriter.open(tmp_path)
        assert names(tmp_path) == [part_name(0)]


def test_declared_types_come_from_the_header(tmp_path: Path) -> None:
    """A part is written in the declared types whatever its values look like."""
    header = replace(HEADER, declared=pa.schema({"a": pa.float64()}))
    with DatasetWriter.create(tmp_path, header) as writer:
        two_groups(writer, {"a": [1, 2]}, {"a": [None, None]})
        assert pq.read_table(tmp_path / part_name(0)).schema == pa.schema({"a": pa.float64()})
        assert writer.finish() == ()
    assert Dataset.open(tmp_path).to_polars()["a"].to_list() == [1.0, 2.0, None, None]
