"""Datasets in which not every row counts: from the parts of row groups, and decisions about them, to the dataset.

The rows that decisions keep, in the order of the decisions, are the dataset as far as they are requested; the rest is
its surplus, which is used when it grows. Files of rows that count (`Placed`) are copies of rows of parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from msgspec.structs import replace

from ..errors import StoreError
from ..observe.report import Drop
from .manifest import MANIFEST_NAME, GroupRecord
from .parts import damage, place, read_table, stage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from .manifest import Decided, Manifest, Placed


def next_slices(manifest: Manifest, wanted: int) -> Iterator[tuple[int, int, int]]:
    """Yield what to place so that the dataset has `wanted` rows: a decision, and from which of its rows to which.

    Rows are placed in the order of decisions, so that only the decisions from the last placed row on are looked at.
    """
    first, start = 0, 0
    if manifest.placed:
        last = manifest.placed[len(manifest.placed) - 1]
        first, start = last.decision, last.stop
    room = wanted - manifest.placed_rows
    for at in range(first, len(manifest.decisions)):
        if room <= 0:
            return
        stop = min(manifest.decisions[at].kept, start + room)
        if start < stop:
            room -= stop - start
            yield at, start, stop
        start = 0


def read_slice(directory: Path, manifest: Manifest, at: int, start: int, stop: int) -> pa.Table:
    """Read rows that a decision keeps, from the part of its row group."""
    decision = manifest.decisions[at]
    part = manifest.groups[decision.group].part
    if part is None:
        raise StoreError(f"row group {decision.group} has lost its part: build the dataset again")
    return _take(read_table(directory, part), decision, start, stop)


def read_kept(directory: Path, manifest: Manifest, decision: Decided, columns: Sequence[str]) -> pa.Table:
    """Read columns of the rows that a decision keeps; where the part is lost these are in files."""
    part = manifest.groups[decision.group].part
    if part is not None:
        return _take(read_table(directory, part, columns), decision, 0, decision.kept)
    files = [each for _, each in sorted(manifest.placed.items()) if manifest.decisions[each.decision] == decision]
    tables = [read_table(directory, each.part, columns) for each in files]
    return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})


def _take(rows: pa.Table, decision: Decided, start: int, stop: int) -> pa.Table:
    """Rows from `start` to `stop` of those that a decision keeps, of the rows of its row group."""
    if decision.stop > rows.num_rows:
        raise StoreError(
            f"{MANIFEST_NAME!r} has a decision about row {decision.stop - 1:,} of row group {decision.group}, which "
            f"has {rows.num_rows:,} rows: it is damaged; build the dataset again"
        )
    return rows.take(pa.array(decision.positions()[start:stop], pa.int64()))


def lose_group(manifest: Manifest, group: GroupRecord) -> str:
    """The part of a row group is damaged: take it out of the manifest, and return what that means."""
    own = [at for at, decision in enumerate(manifest.decisions) if decision.group == group.index]
    done = _placed(manifest)
    if not own or own[0] > max(done, default=-1):
        del manifest.decisions[own[0] if own else len(manifest.decisions) :]
        manifest.groups.pop(group.index, None)
        return f"rows {group.start:,} to {group.stop - 1:,} are generated again"
    # Rows that are in files stay what they are: nothing of this row group is generated again.
    manifest.groups[group.index] = replace(group, part=None)
    lost = 0
    for at in own:
        decision = manifest.decisions[at]
        gone = decision.positions()[done.get(at, 0) :]
        lost += len(gone)
        rejected = (*decision.rejected, *((position, _lost_row(group, position)) for position in gone))
        manifest.decisions[at] = replace(decision, rejected=rejected)
    return f"{lost:,} rows of it that were to be used later are lost" if lost else "its rows are in the dataset"


def lose_records(manifest: Manifest) -> None:
    """Records of row groups are lost: what is decided of them counts only as far as it is in files."""
    assert manifest.header is not None  # a manifest without one cannot be read
    layout = manifest.header.layout
    for decision in list(manifest.decisions):
        if decision.group not in manifest.groups and decision in manifest.decisions:
            rows = layout.group_rows(decision.group)
            lose_group(manifest, GroupRecord(index=decision.group, start=rows.start, stop=rows.stop))


def repair_files(directory: Path, manifest: Manifest) -> Iterator[str]:
    """Rename staged files of rows that count, and write damaged ones again from parts; describe each of those."""
    for number, placed in sorted(manifest.placed.items()):
        wrong = damage(directory, placed.part)
        part = placed.part
        if wrong is not None:
            if manifest.groups[manifest.decisions[placed.decision].group].part is None:
                raise StoreError(f"{wrong}, and so is the file that its rows came from: build the dataset again")
            part = stage(directory, part.name, read_slice(directory, manifest, *_slice(placed)))
            yield f"{wrong}; it is written again"
        manifest.placed[number] = replace(placed, part=place(directory, part))


def unplaced_rows(manifest: Manifest) -> int:
    """How many finished rows may still come into the dataset, when it grows or more of it is decided."""
    decided: dict[int, int] = {}
    for decision in manifest.decisions:
        decided[decision.group] = max(decision.stop, decided.get(decision.group, 0))
    undecided = sum(max(0, group.rows - decided.get(index, 0)) for index, group in manifest.groups.items())
    return undecided + manifest.kept_rows - manifest.placed_rows


def _slice(placed: Placed) -> tuple[int, int, int]:
    return placed.decision, placed.start, placed.stop


def _placed(manifest: Manifest) -> dict[int, int]:
    """How many of the rows that each decision keeps are in files."""
    done: dict[int, int] = {}
    for placed in manifest.placed.values():
        done[placed.decision] = max(placed.stop, done.get(placed.decision, 0))
    return done


def _lost_row(group: GroupRecord, position: int) -> Drop:
    row = min(group.start + position, group.stop - 1)
    return Drop(
        row=row, kind="failed", column="", attempts=0, error="the file that held the row was damaged", code="damaged"
    )
