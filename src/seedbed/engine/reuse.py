"""Which cells of another dataset a new one takes over: those that its recipe would generate alike.

`plan_reuse` decides by the headers: columns that did not change and depend on none that did. The new directory begins
as a dataset whose row groups an earlier recipe wrote, with these columns alone (`takeover` creates it), and is then
resumed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import msgspec

from ..errors import ConfigError
from ..graph import Kind, Stage
from ..store import codec
from ..store.journal import inspect_journal
from ..store.manifest import Manifest, read
from .changes import changed_columns
from .redo import cascade
from .stateful import stateful_nodes

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from ..graph import Graph
    from ..store.manifest import GroupRecord, Header, Layout
    from .tasks import Step


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
        saved_states(source, manifest), manifest, layout, graph=graph, steps=steps, is_whole=usable == records
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


def saved_states(source: Path, manifest: Manifest) -> dict[str, bytes]:
    """The states of stateful generators after all that the other dataset has.

    Without those of user-defined types: the dataset may come from someone else, and reading them would run code.
    """
    journal = inspect_journal(source)
    states = {} if manifest.states is None else dict(manifest.states.states)
    states |= {} if journal is None else journal.states
    return {name: state for name, state in states.items() if _is_plain(state)}


def _is_plain(state: bytes) -> bool:
    try:
        codec.decode(state, trusted=False)
    except codec.FAILED:
        return False
    return True


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
