"""Any writes, stopped at any point: the directory at that instant is a dataset and can be resumed."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import msgspec
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from seedbed.observe.report import Drop
from seedbed.runtime import faults
from seedbed.store.dataset import Dataset
from seedbed.store.files import PRIVATE
from seedbed.store.manifest import GroupRecord, Header
from seedbed.store.parts import PARTS, internal_name, part_name
from seedbed.store.writer import DatasetWriter

if TYPE_CHECKING:
    from collections.abc import Callable

HEADER = Header(rows=8, buffer_size=2, columns=("a",), publishes_at_end=True, created=0.0, version="0")

DROP = Drop(row=0, column="a", attempts=1, error="no", kind="failed")

Rows = dict[int, list[Any]]


class Killed(BaseException):
    """Stands for the end of the process."""


@attrs.frozen
class Write:
    """A row group, with as many rows as values."""

    index: int
    values: list[Any]

    def change(self, rows: Rows) -> None:
        """Do it to the model."""
        rows.setdefault(self.index, self.values)

    def work(self, writer: DatasetWriter, rows: Rows) -> None:
        """Do it on disk."""
        if self.index not in rows:
            start = 2 * self.index
            drop = msgspec.structs.replace(DROP, row=start)
            writer.write_group(
                GroupRecord(index=self.index, start=start, stop=start + 2, drops=(drop,)), {"a": self.values}
            )


@attrs.frozen
class Add:
    """Rows before those that a group has."""

    index: int
    values: list[Any]

    def change(self, rows: Rows) -> None:
        """Do it to the model."""
        if self.index in rows:
            rows[self.index] = self.values + rows[self.index]

    def work(self, writer: DatasetWriter, rows: Rows) -> None:
        """Do it on disk."""
        if self.index in rows:
            old, new = len(rows[self.index]), len(self.values)
            order = [*range(old, old + new), *range(old)]
            start = 2 * self.index
            group = GroupRecord(index=self.index, start=start, stop=start + 2)
            writer.write_group(group, {"a": self.values}, order=order)


@attrs.frozen
class Finish:
    """Unify the schema and publish the output of a processor."""

    def change(self, rows: Rows) -> None:
        """Rows stay."""

    def work(self, writer: DatasetWriter, rows: Rows) -> None:
        """Do it on disk."""
        writer.unify()
        writer.publish(pl.DataFrame({"z": [len(rows)]}))
        writer.finish()


# Of several types, so that parts differ and are rewritten at the end.
values = st.lists(st.none() | st.integers(0, 9), min_size=1, max_size=3) | st.lists(
    st.sampled_from([0.5, 1.5]), max_size=3
)
indices = st.integers(0, 2)
# Each with the number of the point at which it is stopped; 0 is none, and so is one that it does not come to.
operations = st.lists(
    st.tuples(
        st.builds(Write, indices, values) | st.builds(Add, indices, values) | st.builds(Finish),
        st.integers(0, 8) | st.integers(0, 24),
    ),
    min_size=1,
    max_size=6,
)


def stop_at(number: int, directory: Path, copy: Path) -> Callable[[str], None]:
    """A hook that copies the directory as it is at the n-th point, and ends everything."""
    left = number

    def hook(_: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            shutil.copytree(directory, copy)
            raise Killed

    return hook


def rows_of(directory: Path) -> Rows:
    """The rows of each group, and nothing is damaged."""
    dataset = Dataset.open(directory).raw()
    assert dataset.damage() == ()
    found = iter(dataset.to_arrow().column("a").to_pylist() if dataset.columns else [])
    return {int(part.name[-12:-5]): [next(found) for _ in range(part.rows)] for part in dataset.parts}


def with_rows(rows: Rows) -> Rows:
    """The groups that have a part."""
    return {index: group for index, group in rows.items() if group}


@settings(max_examples=settings.default.max_examples // 4)
@given(values, values, operations)
def test_a_writer_that_is_stopped_anywhere_can_be_resumed(
    first: list[Any], second: list[Any], todo: list[tuple[Write | Add | Finish, int]]
) -> None:
    """Every write counts as a whole or not at all, however often the process dies, and nothing is left behind."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch, "0")
        writer = DatasetWriter.create(directory, HEADER)
        rows: Rows = {}
        try:
            for operation, stop in [(Write(0, first), 0), (Write(1, second), 0), *todo]:
                copy = Path(scratch, str(int(directory.name) + 1))
                after = dict(rows)
                operation.change(after)
                faults.hook = stop_at(stop, directory, copy)
                try:
                    operation.work(writer, rows)
                except Killed:
                    faults.hook = None
                    writer.close()
                    directory = copy
                    found = rows_of(directory)
                    assert found in (with_rows(rows), with_rows(after))
                    writer, manifest, damage = DatasetWriter.open(directory)
                    assert damage == ()
                    assert rows_of(directory) == found
                    # A group without rows has no part to be seen, so whether it is listed says the rest.
                    is_done = found == with_rows(after) and after.keys() == manifest.groups.keys()
                    rows = after if is_done else rows
                else:
                    rows = after
        finally:
            faults.hook = None
            writer.close()
        assert rows_of(directory) == with_rows(rows)
        listed = {internal_name(index) for index in with_rows(rows)}
        assert {f"{PARTS}/{path.name}" for path in (directory / PARTS).iterdir()} == listed
        assert {path.name for path in directory.iterdir()} <= {PRIVATE, part_name(0)}
