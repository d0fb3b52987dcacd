"""A new dataset that takes over from another one what its recipe would generate alike.

`plan_reuse` decides by the headers: columns that did not change and depend on none that did. `take_over` copies their
cells: the new directory begins as a dataset whose row groups an earlier recipe wrote, with these columns alone, and the
build is a resume of it. The copy is prepared in a folder of its own and gets its name when it is whole.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import attrs
import msgspec

from ..columns.text import image_folder
from ..errors import ConfigError, OutputDirectoryError, StoreError
from ..graph import Kind, Stage
from ..runtime import faults
from ..store.entries import DroppedRows, Key, Purpose
from ..store.files import PRIVATE, exists, read_file, rename, sync_directory, write_file
from ..store.journal import Journal, inspect_journal, read_journal
from ..store.manifest import Manifest, read, shared_lock
from ..store.parts import damage, read_table
from ..store.provenance import read_provenance
from ..store.writer import DatasetWriter
from .changes import changed_columns
from .redo import cascade
from .stateful import stateful_nodes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from ..graph import Graph
    from ..store.entries import Entry
    from ..store.manifest import GroupRecord, Header, Layout
    from .plan import StagePlan
    from .tasks import Step

# Where the copy is prepared: loaders skip it, and a directory that holds nothing else counts as empty.
PREPARED = ".seedbed.reused.tmp"


@attrs.frozen(kw_only=True)
class Reuse:
    """What is taken over from the dataset in `source`: these columns, in these row groups."""

    source: Path
    manifest: Manifest = attrs.field(repr=False)
    columns: frozenset[str]
    groups: Mapping[int, GroupRecord] = attrs.field(repr=False)  # as the new directory begins with them


# A row group of the other dataset is of edition `WHOLE`, or `CUT` if it has fewer rows now, and the new dataset of
# edition `NEW`. So `Header.added` says which columns each kind of row group has.
CUT, WHOLE, NEW = 0, 1, 2


def plan_reuse(
    source: Path, out: Path, new: Header, *, graph: Graph, steps: Sequence[Step]
) -> tuple[Header, Manifest, Reuse]:
    """What a dataset takes over from another one: its header, and the manifest with which its directory begins."""
    if source.resolve() == out.resolve():
        raise ConfigError(f"reuse: {str(source)!r} is the directory to be written; to change it in place, use redo")
    manifest = read(source)
    old = manifest.header
    assert old is not None  # a manifest without one cannot be read
    if old.candidates is not None or new.candidates is not None:
        raise ConfigError("reuse: a dataset with accept, unique or near_duplicates cannot be taken over")
    layout = _layout(old.layout, new.rows)
    records = [record for record in manifest.groups.values() if record.index < layout.count]
    usable = [record for record in records if _is_usable(manifest, record, layout, new)]
    columns = _reusable(old, new, graph, steps)
    restarted = _restarted(
        _saved_states(source, manifest), manifest, layout, graph=graph, steps=steps, is_whole=usable == records
    )
    columns -= cascade(graph, steps, columns & restarted)
    # In a row group that has fewer rows now a whole column may differ, since it may depend on all of them.
    whole = cascade(graph, steps, {step.name for step in steps if step.kind is Kind.FULL_COLUMN})
    header = msgspec.structs.replace(
        new,
        buffer_size=layout.size,
        segments=layout.segments,
        edition=NEW,
        added={step.name: NEW if step.name not in columns else WHOLE if step.name in whole else CUT for step in steps},
        draws={name: count for name, count in old.draws.items() if name in {step.name for step in steps}},
        is_reusing=True,
    )
    barrier = len(new.fingerprint.get(Stage.PRE_BATCH.value, ()))
    groups = {record.index: _begun(record, layout, barrier) for record in usable} if columns else {}
    reuse = Reuse(source=source, manifest=manifest, columns=frozenset(columns), groups=groups)
    return header, Manifest(header=header, groups=dict(groups)), reuse


def _saved_states(source: Path, manifest: Manifest) -> dict[str, bytes]:
    """The states of stateful generators after all that the other dataset has."""
    journal = inspect_journal(source)
    states = {} if manifest.states is None else dict(manifest.states.states)
    return states if journal is None else {**states, **journal.states}


def _restarted(
    saved: Collection[str], manifest: Manifest, layout: Layout, *, graph: Graph, steps: Sequence[Step], is_whole: bool
) -> set[str]:
    """The stateful columns that cannot continue where the other dataset ended, and so begin anew.

    `is_whole` if all of its row groups are taken over.
    """
    assert manifest.header is not None  # a manifest without one cannot be read
    found: set[str] = set()
    for nodes in stateful_nodes(graph, steps).values():
        names = [steps[node].name for node in nodes]
        # The state that is saved is that after all rows. Without one a generator is called again for the rows of the
        # dataset, unless that is paid for; calls for dropped rows are not known once the dataset is finished.
        has_state = "+".join(names) in saved and layout.rows >= manifest.header.rows
        is_paid = any(steps[node].key is not None for node in nodes)
        is_unknown = manifest.finished is not None and any(group.drops for group in manifest.groups.values())
        if not is_whole or (not has_state and (is_paid or (is_unknown and layout.rows > manifest.header.rows))):
            found.update(names)
    return found


def _layout(old: Layout, rows: int) -> Layout:
    """The row groups of the other dataset, as far as there are rows, and more for those that it has not."""
    if rows >= old.rows:
        return old.grown(rows) if rows > old.rows else old
    return attrs.evolve(old, rows=rows, segments=tuple(each for each in old.segments if each < rows))


def _reusable(old: Header, new: Header, graph: Graph, steps: Sequence[Step]) -> set[str]:
    """The columns that a run of the new recipe would generate as the old one did."""
    changes = changed_columns(old, new)
    fresh = cascade(graph, steps, changes.columns)
    names = {step.name for step in steps}
    removed = {each["name"] for each in old.fingerprint.get("columns", ())} - names
    if changes.passes_barrier:
        return set()
    if new.fingerprint.get(Stage.PRE_BATCH.value):
        # The processors see every column from scratch, and a removed column may have been one.
        seen = {step.name for step in steps if step.kind is Kind.FROM_SCRATCH}
        if seen & fresh or removed or old.late:
            return set()
    return names - fresh


def _is_usable(manifest: Manifest, record: GroupRecord, layout: Layout, new: Header) -> bool:
    """True if the cells of a row group are all there, and known by row if it has fewer rows now."""
    barrier = len(new.fingerprint.get(Stage.PRE_BATCH.value, ()))
    is_whole = layout.group_rows(record.index) == range(record.start, record.stop)
    is_processed = len(record.resized) > barrier and record.generated is None
    return manifest.is_current(record) and record.skipped is None and not is_processed and (is_whole or not barrier)


def _begun(record: GroupRecord, layout: Layout, barrier: int) -> GroupRecord:
    """The record of a row group in the new directory, still without its file."""
    rows = layout.group_rows(record.index)
    return msgspec.structs.replace(
        record,
        start=rows.start,
        stop=rows.stop,
        part=None,
        generated=None,
        provenance=None,
        drops=tuple(drop for drop in record.drops if drop.row in rows),
        resized=record.resized[:barrier],
        conflicts=(),
        edition=WHOLE if rows.stop == record.stop else CUT,
        commits=0,
    )


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
            if entries := dict(_entries(plan, reuse)) if reuse.columns else {}:
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


def _entries(plan: StagePlan, reuse: Reuse) -> Iterator[tuple[Key, list[Entry]]]:
    """What the other journal has of row groups that are not finished, and of dropped rows."""
    groups, layout = reuse.manifest.groups, plan.layout
    for key, found in read_journal(reuse.source, trusted=plan.runs_own_code):
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
    states = _saved_states(reuse.source, reuse.manifest)
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
