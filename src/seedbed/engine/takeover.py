"""Create the directory of a dataset that begins with cells of another one, whole or not at all.

It is prepared in a folder of its own, which loaders skip, and gets its name when it is complete.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import msgspec

from ..columns.text import image_folder
from ..errors import OutputDirectoryError, StoreError
from ..runtime import faults
from ..store.entries import DroppedRows, Key, Purpose
from ..store.files import PRIVATE, exists, read_file, rename, sync_directory, write_file
from ..store.journal import Journal, read_journal
from ..store.manifest import Manifest, read, shared_lock
from ..store.parts import damage, read_table
from ..store.provenance import read_provenance
from ..store.writer import DatasetWriter
from .reuse import WHOLE, Reuse, saved_states

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from ..store.entries import Entry
    from ..store.manifest import GroupRecord
    from .plan import StagePlan

# A directory that holds nothing else counts as empty.
PREPARED = ".seedbed.reused.tmp"


def take_over(plan: StagePlan, out: Path) -> Manifest:
    """Create the directory with the cells that are taken over, whole or not at all; returns its manifest."""
    reuse = plan.reuse
    assert reuse is not None
    prepared = out / PREPARED
    try:
        out.mkdir(parents=True, exist_ok=True)
        discard_prepared(out)
        with shared_lock(reuse.source), DatasetWriter.create(prepared, plan.header) as writer:
            for record in reuse.groups.values():
                origins = reuse.manifest.groups[record.index].provenance
                provenance = None if origins is None else read_provenance(reuse.source, origins)
                writer.add_earlier(record, _table(plan, reuse, record), provenance)
            if entries := {**_shared(plan, reuse), **dict(_entries(plan, reuse))} if reuse.columns else {}:
                journal = Journal.create(prepared)
                journal.commit(entries)
                journal.close()
            if states := _states(plan, reuse):
                writer.write_states(states)
            _copy_images(plan, reuse, prepared)
        faults.reach("reused prepared")
        rename(out, f"{PREPARED}/{PRIVATE}", PRIVATE)
        sync_directory(out)
        faults.reach("reused named")
        discard_prepared(out)
    except OSError as error:
        raise OutputDirectoryError(f"{str(reuse.source)!r} cannot be taken over to {str(out)!r}: {error}") from error
    return read(out)


def discard_prepared(out: Path) -> None:
    """Remove what a process that died had prepared."""
    if exists(out, PREPARED):
        shutil.rmtree(out / PREPARED)


def _table(plan: StagePlan, reuse: Reuse, record: GroupRecord) -> pa.Table | None:
    """The cells of a row group that are taken over."""
    found = reuse.manifest.groups[record.index]
    part = found.generated or found.part
    if part is None:
        return None
    if (wrong := damage(reuse.source, part)) is not None:
        raise StoreError(f"in {str(reuse.source)!r} {wrong}: repair it first with seedbed resume")
    added = plan.header.added
    names = [name for step in plan.steps if added[step.name] <= record.edition for name in step.outputs]
    table = read_table(reuse.source, part, names)
    if record.stop == found.stop:
        return table
    gone = {drop.row for drop in found.drops}
    return table.slice(0, sum(row not in gone for row in range(record.start, record.stop)))


def _shared(plan: StagePlan, reuse: Reuse) -> dict[Key, list[Entry]]:
    """The answers of columns with `once_per` that are taken over: other rows with their keys share them."""
    assert reuse.manifest.header is not None  # a manifest without one cannot be read
    before = reuse.manifest.header.added
    found: dict[Key, list[Entry]] = {}
    for key, entries in read_journal(reuse.source, trusted=False):
        for entry in entries if key.purpose is Purpose.SHARED else ():
            column = getattr(entry, "column", "")
            if column in reuse.columns and key.revision == before.get(column, 0):
                found.setdefault(plan.shared_key(column), []).append(entry)
    return found


def _entries(plan: StagePlan, reuse: Reuse) -> Iterator[tuple[Key, list[Entry]]]:
    """What the other journal has of row groups that are not finished, and of dropped rows."""
    groups, layout = reuse.manifest.groups, plan.layout
    for key, found in read_journal(reuse.source, trusted=False):
        if key.purpose is Purpose.SHARED:
            continue
        before = groups.get(key.group)
        entries = [entry for entry in found if getattr(entry, "column", None) in (None, *reuse.columns)]
        if before is None:
            old = reuse.manifest.header
            assert old is not None
            is_whole = key.group < layout.count and layout.group_rows(key.group) == old.layout.group_rows(key.group)
            if key.purpose is Purpose.BUILD and is_whole:
                yield key, entries
            continue
        begun = reuse.groups.get(key.group)
        if (
            begun is None
            or begun.edition != WHOLE
            or key.purpose not in {Purpose.DROPPED, Purpose.RETRY, Purpose.CALLS}
        ):
            continue
        if key.purpose is not Purpose.CALLS and key.revision != before.revision:
            continue
        if entries and isinstance(entries[0], DroppedRows):
            entries[0] = msgspec.structs.replace(entries[0], count=len(entries) - 1)
        yield key, entries


def _states(plan: StagePlan, reuse: Reuse) -> dict[str, bytes]:
    """The states of stateful generators that continue where the other dataset ended."""
    assert reuse.manifest.header is not None  # a manifest without one cannot be read
    if plan.rows < reuse.manifest.header.rows:
        return {}
    states = saved_states(reuse.source, reuse.manifest)
    names = {
        plan.state_names[identity]
        for identity, nodes in plan.instances.items()
        if all(plan.steps[node].name in reuse.columns for node in nodes)
    }
    return {name: state for name, state in states.items() if name in names}


def _copy_images(plan: StagePlan, reuse: Reuse, prepared: Path) -> None:
    """Copy the pictures of columns that are taken over; their names begin with the number of their row."""
    for name in reuse.columns:
        folder = image_folder(name)
        if not exists(reuse.source, folder):
            continue
        for path in (reuse.source / folder).iterdir():
            number = path.name.partition("_")[0]
            if number.isdecimal() and int(number) < plan.rows:
                write_file(prepared, f"{folder}/{path.name}", read_file(reuse.source, f"{folder}/{path.name}"))
