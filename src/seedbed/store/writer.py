"""The one writer of a dataset directory."""

from __future__ import annotations

import tempfile
import threading
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
from msgspec.structs import replace

from ..errors import OutputDirectoryError, PartError, StoreError
from ..runtime import faults
from .accepted import lose_group, lose_records, next_slices, read_kept, read_slice, repair_files
from .files import PRIVATE, check_links, copy, create, exists, is_temporary, open_file, remove, rename, sync_directory
from .manifest import (
    LOCK_NAME,
    MANIFEST_NAME,
    Abandoned,
    Decided,
    Finished,
    GroupRecord,
    Header,
    Manifest,
    Pending,
    Placed,
    Published,
    Record,
    Redo,
    States,
    Switched,
    UsageRecord,
    append,
    lock,
    read,
)
from .parts import (
    DROPPED,
    PARTS,
    PartRecord,
    accepted_name,
    damage,
    discard,
    generated_name,
    internal_name,
    part_name,
    place,
    place_all,
    read_table,
    stage,
    staged_name,
)
from .provenance import DROPPED_TYPES, is_provenance, joined, provenance_name, read_provenance
from .provenance import FOLDER as PROVENANCE
from .schema import Conflict, arrow_table, conform, distinct_conflicts, unify
from .values import python_values

if TYPE_CHECKING:
    import io
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import polars as pl

    from ..observe.report import Resized
    from .children import Taken
    from .entries import UsageEntries


_PREFIXES = ("accepted_", "batch_", "generated_")
_TEMPORARY = f"{PRIVATE}/.manifest.log.tmp"


def check_output(out: str | os.PathLike[str]) -> Path:
    """Return the output directory if a dataset can be written there, and leave nothing behind.

    `OutputDirectoryError` if it is not empty, not a directory or not writable, or is missing and cannot be created.
    """
    directory = Path(out)
    try:
        if not directory.exists():
            _probe(next(parent for parent in directory.absolute().parents if parent.exists()), directory)
        elif not directory.is_dir():
            raise OutputDirectoryError(f"the output {str(directory)!r} is a file: pass a new directory")
        else:
            _check_unused(directory)
            _probe(directory, directory)
    except OSError as error:
        raise _unwritable(directory, error) from error
    return directory


def _check_unused(directory: Path) -> None:
    # Files of a process that died before its first record do not count.
    found = sorted(path.name for path in directory.iterdir() if not is_temporary(path) and not _is_leftover(path))
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise OutputDirectoryError(
            f"the output directory {str(directory)!r} is not empty, it holds {found[0]!r}{more}: "
            "pass a new directory or an empty one"
        )


def _is_leftover(path: Path) -> bool:
    """True for a private folder in which nothing was ever finished."""
    if path.name != PRIVATE or not path.is_dir() or path.is_symlink():
        return False
    return all(f"{PRIVATE}/{inner.name}" == LOCK_NAME or is_temporary(inner) for inner in path.iterdir())


def _probe(existing: Path, directory: Path) -> None:
    # Permission bits are not enough (root, read-only mounts, quotas): only creating a file shows it.
    if not existing.is_dir():
        raise OutputDirectoryError(f"the output {str(directory)!r} cannot be created: {str(existing)!r} is a file")
    with tempfile.NamedTemporaryFile(dir=existing, prefix=".", suffix=".tmp"):
        pass


def _unwritable(directory: Path, error: OSError) -> OutputDirectoryError:
    return OutputDirectoryError(f"the output directory {str(directory)!r} is not writable: {error}")


@contextmanager
def _closed_on_error(directory: Path) -> Iterator[ExitStack]:
    """Yield a stack that closes what was opened if the block raises."""
    with ExitStack() as opened:
        try:
            yield opened
        except OSError as error:
            raise _unwritable(directory, error) from error
        opened.pop_all()


class DatasetWriter:
    """Writes row groups into a directory, each as a part and then a record of the manifest: without it no part exists.

    Row groups may come in any order and from several threads at once: parts are written side by side, only the manifest
    is written under a lock. No other process may write the directory as long as this one does (`close`, or the end of
    the process, releases it).
    """

    def __init__(self, directory: Path, owned: io.FileIO, file: io.FileIO, manifest: Manifest) -> None:
        assert manifest.header is not None, "read() refuses a manifest without a header"
        self.path = directory
        self._owned = owned  # the lock of the directory
        self._file = file
        # Guards the manifest, in the file and here.
        self._lock = threading.Lock()
        self._manifest = manifest
        self._closing = False

    @property
    def header(self) -> Header:
        found = self._manifest.working.header
        assert found is not None, "a manifest without a header cannot be read"
        return found

    @property
    def manifest(self) -> Manifest:
        """What is written: the pending revision, if there is one."""
        return self._manifest.working

    @property
    def is_revising(self) -> bool:
        """True if a revision is pending."""
        return self._manifest.pending is not None

    @property
    def dataset_groups(self) -> Mapping[int, GroupRecord]:
        """The row groups of the dataset that readers see; what they have stored is not freed."""
        return self._manifest.groups

    @property
    def column_editions(self) -> set[int]:
        """The editions in which columns were added, in the dataset and in the pending revision."""
        headers = [each.header for each in (self._manifest, self._manifest.working) if each.header is not None]
        return {0}.union(*(header.added.values() for header in headers))

    @property
    def declared(self) -> dict[str, pa.DataType]:
        return self.header.declared_types

    @property
    def groups(self) -> list[GroupRecord]:
        with self._lock:
            return self._manifest.working.in_order

    def group(self, index: int) -> GroupRecord | None:
        """What is listed of a row group."""
        with self._lock:
            return self._manifest.groups.get(index)

    @property
    def placed(self) -> list[tuple[int, PartRecord]]:
        """The files of rows that count, in order, each with its row group."""
        with self._lock:
            manifest = self._manifest
            found = (placed for _, placed in sorted(manifest.placed.items()))
            return [(manifest.decisions[each.decision].group, each.part) for each in found]

    def _part_name(self, index: int, edition: int | None = None) -> str:
        """The name of a row group's part: what an earlier recipe wrote is not in the root."""
        is_current = edition in (None, self.header.edition)
        in_root = is_current and not self.header.publishes_at_end and self.header.candidates is None
        return part_name(index) if in_root else internal_name(index)

    def _placed_name(self, number: int) -> str:
        """The name of a file of rows that count."""
        return accepted_name(number) if self.header.publishes_at_end else part_name(number)

    @classmethod
    def create(cls, out: str | os.PathLike[str], header: Header) -> DatasetWriter:
        """Make the directory, parents too, and start its manifest; `OutputDirectoryError` as in `check_output`."""
        directory = check_output(out)
        with _closed_on_error(directory) as opened:
            directory.mkdir(parents=True, exist_ok=True)
            check_links(directory)
            owned = opened.enter_context(lock(directory))
            _check_unused(directory)
            sync_directory(directory)
            manifest = Manifest(header=header)
            file = _write_manifest(directory, manifest)
        return cls(directory, owned, file, manifest)

    @classmethod
    def open(
        cls, out: str | os.PathLike[str], *, on_damage: Callable[[], None] = lambda: None
    ) -> tuple[DatasetWriter, Manifest, tuple[str, ...]]:
        """Open an existing directory; return the writer, what the directory holds, and what of it was damaged.

        Temporary files, parts that the manifest does not list and a half-written last record are removed. Every part is
        read: a row group whose part is damaged is taken out of the manifest, and damaged records are removed, so that a
        second time nothing is found damaged; `on_damage` is called before that. `ManifestError` if there is no
        manifest, `OutputDirectoryError` if another process writes it.
        """
        directory = Path(out)
        read(directory)  # raises for what is no dataset before anything is opened for writing
        with _closed_on_error(directory) as opened:
            check_links(directory)
            owned = opened.enter_context(lock(directory))
            file = opened.enter_context(open_file(directory, MANIFEST_NAME, writable=True))
            manifest = read(directory)
            file.truncate(manifest.length)
            _make_folders(directory)  # the process may have died before it had made them
            writer = cls(directory, owned, file, manifest)
            opened.enter_context(writer)
            lost = (*manifest.damage, *writer._check_groups())
            found = (*lost, *writer._check_others())
            if lost:
                # States of stateful generators include calls whose values are lost.
                manifest.states = manifest.working.states = None
                on_damage()
            if found:
                file.close()
                writer._file = _write_manifest(directory, manifest)
            writer._remove_leftovers()
            writer._move_parts()
        return writer, manifest.working, found

    def _check_groups(self) -> Iterator[str]:
        """Take row groups whose parts are damaged out of the manifest and describe each."""
        for group in self._manifest.in_order:
            wrong = None if group.part is None else damage(self.path, group.part)
            if wrong is not None:
                if self._manifest.working.groups.get(group.index) == group:
                    del self._manifest.working.groups[group.index]
                yield f"{wrong}; {lose_group(self._manifest, group)}"
        lose_records(self._manifest)
        yield from self._check_pending()

    def _check_pending(self) -> Iterator[str]:
        """Take row groups of the pending revision whose staged files are damaged out of it and describe each."""
        pending, groups = self._manifest.pending, self._manifest.groups
        for group in [] if pending is None else pending.in_order:
            parts = () if group == groups.get(group.index) else group.parts
            wrong = next(filter(None, (damage(self.path, part) for part in parts)), None)
            if pending is not None and wrong is not None:
                del pending.groups[group.index]
                pending.finished = pending.published = None
                if group.index in groups:
                    pending.groups[group.index] = groups[group.index]
                yield f"{wrong}; rows {group.start:,} to {group.stop - 1:,} are regenerated again"

    def _check_others(self) -> Iterator[str]:
        """Rename what is still staged; take damaged files that cost no rows out of the manifest and describe each."""
        manifest = self._manifest
        yield from repair_files(self.path, manifest)
        for group in manifest.in_order:
            before = group
            for name in ("generated", "provenance"):
                part = getattr(group, name)
                wrong = None if part is None else damage(self.path, part)
                if wrong is not None:
                    yield f"{wrong}; its row group is complete"
                    group = replace(group, **{name: None})  # noqa: PLW2901
            placed = self._placed(group)
            manifest.groups[group.index] = placed
            if manifest.working.groups.get(group.index) == before:
                manifest.working.groups[group.index] = placed
        if manifest.published is not None:
            found = [wrong for part in manifest.published.parts if (wrong := damage(self.path, part)) is not None]
            if found:
                manifest.published = manifest.finished = None
                yield from (f"{wrong}; the processors over the whole dataset run again" for wrong in found)
            else:
                self._place_published(manifest.published)
        dropped = None if manifest.finished is None else manifest.finished.dropped
        if dropped is not None:
            wrong = damage(self.path, dropped)
            if wrong is not None:
                manifest.finished = None
                yield f"{wrong}; it is written again"
            else:
                place(self.path, dropped)

    def _placed(self, group: GroupRecord) -> GroupRecord:
        """Rename the staged files of a listed group."""
        files = (group.part, group.generated, group.provenance)
        part, generated, provenance = (None if each is None else place(self.path, each) for each in files)
        return replace(group, part=part, generated=generated, provenance=provenance)

    def change(self, header: Header) -> None:
        """Replace the header: the dataset has more rows now, or its recipe changed.

        `publish` and `finish` are due again; published files stay in the root until then. Row groups of an earlier
        `edition` leave the root and are to be written anew, unless a revision is pending.
        """
        with self._alone():
            self._append(header)
            faults.reach("header replaced")
            self._remove_leftovers()
            self._move_parts()

    def begin_revision(self, header: Header, redo: Redo, *, states: Mapping[str, bytes]) -> None:
        """From now on everything that is written belongs to a revision, which `finish` puts in place of the dataset.

        Until then the dataset stays as it is, for readers and on disk. `states` are those of stateful generators that
        go on in the revision.
        """
        with self._alone():
            self._append(Pending(header=header, redo=redo, states=dict(states)))
            faults.reach("revision begun")

    def abandon_revision(self) -> None:
        """Forget the pending revision; the dataset is what it was before."""
        with self._alone():
            self._append(Abandoned())
            faults.reach("revision abandoned")
            self._remove_leftovers()

    def add_earlier(self, group: GroupRecord, table: pa.Table | None, provenance: pa.Table | None) -> None:
        """List a row group of an earlier edition, with the cells that it has, in a directory that begins with them."""
        name = self._part_name(group.index, group.edition)
        part = stage(self.path, name, table) if table is not None and table.num_rows else None
        if part is not None and provenance is not None:
            origins = stage(self.path, provenance_name(group.index), provenance)
            group = replace(group, provenance=replace(origins, schema=pa.schema([])))
        with self._alone():
            self._list(replace(group, part=part))

    def carry(self, group: GroupRecord) -> GroupRecord:
        """List a row group of the dataset in the pending revision as it is: nothing of it changes."""
        part, name = group.part, self._part_name(group.index)
        if part is not None and part.name != name:
            staged = staged_name(name)
            copy(self.path, part.name, staged)
            part = replace(part, name=name, staged=staged)
        with self._alone():
            return self._list(replace(group, part=part, edition=self.header.edition))

    def _move_parts(self) -> None:
        """Rename parts to where the header has them; a process that dies in between is followed by one that does."""
        if self._manifest.pending is not None:
            return
        for group in self._manifest.in_order:
            part = group.part
            name = self._part_name(group.index, group.edition)
            if part is None or part.name == name:
                continue
            staged = staged_name(name)
            copy(self.path, part.name, staged)
            faults.reach("part copied")
            self._list(replace(group, part=replace(part, name=name, staged=staged)))
        for number, placed in sorted(self._manifest.placed.items()):
            name = self._placed_name(number)
            if placed.part.name != name:
                staged = staged_name(name)
                copy(self.path, placed.part.name, staged)
                self._place(replace(placed, part=replace(placed.part, name=name, staged=staged)))

    @property
    def decisions(self) -> list[Decided]:
        with self._lock:
            return list(self._manifest.decisions)

    def decide(self, decision: Decided) -> None:
        """Record which rows of a row group count."""
        with self._alone():
            self._append(replace(decision, number=len(self._manifest.decisions)))
            faults.reach("rows decided")

    def read_rows(self, group: int, start: int, stop: int, columns: Sequence[str]) -> pa.Table:
        """Read columns of rows of a row group's part."""
        with self._lock:
            part = self._manifest.groups[group].part
        assert part is not None  # it has rows
        return read_table(self.path, part, columns).slice(start, stop - start)

    def kept_rows(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield columns of the rows that count, requested or not, in order."""
        with self._lock:
            decisions = list(self._manifest.decisions)
        for decision in decisions:
            yield read_kept(self.path, self._manifest, decision, columns)

    def place_rows(self, wanted: int) -> list[tuple[int, PartRecord]]:
        """Write rows that count to files of the dataset, in order, until it has `wanted` rows.

        Returns the new files, each with its row group.
        """
        found: list[tuple[int, PartRecord]] = []
        with self._alone():
            manifest = self._manifest
            for at, start, stop in list(next_slices(manifest, wanted)):
                number = len(manifest.placed)
                part = stage(self.path, self._placed_name(number), read_slice(self.path, manifest, at, start, stop))
                placed = self._place(Placed(number=number, decision=at, start=start, stop=stop, part=part))
                found.append((manifest.decisions[at].group, placed.part))
        return found

    def _place(self, placed: Placed) -> Placed:
        """List a file of rows that count, in place of what is listed, and rename it."""
        before = self._manifest.placed.get(placed.number)
        try:
            self._append(placed)
        except StoreError:
            discard(self.path, placed.part)
            raise
        faults.reach("rows listed")
        if before is not None and before.part.name != placed.part.name:
            remove(self.path, before.part.name)
        placed = self._manifest.placed[placed.number] = replace(placed, part=place(self.path, placed.part))
        return placed

    def write_group(
        self,
        group: GroupRecord,
        rows: Mapping[str, Sequence[Any]] | pl.DataFrame | None,
        *,
        order: Sequence[int] | None = None,
        generated: Mapping[str, Sequence[Any]] | None = None,
        declared: Mapping[str, pa.DataType] | None = None,
        provenance: pa.Table | None = None,
        abandoned: Callable[[], bool] = lambda: False,
    ) -> GroupRecord | None:
        """Write a finished row group: its part, if it has rows, then its record, which is returned.

        `group` describes it but for its files, which are added here. `generated` are its rows before post-batch
        processors, if it has such processors; `declared` has types of columns besides those of the header. With `order`
        the rows are added to a group that is listed: a new part replaces the old one as a whole, and `order` holds
        positions in what that held followed by the new rows.

        None if `abandoned()` turned true before the group counted: then it is as if it had not been written.
        """
        name = self._part_name(group.index)
        with self._alone():
            before = self._manifest.working.groups.get(group.index)
        group = replace(group, edition=self.header.edition)
        # A group that was skipped as a whole has no rows: it may be generated later.
        if order is None and before is not None and (before.skipped is None or before.edition < group.edition):
            if before.edition == group.edition:
                raise StoreError(f"row group {group.index} is already in {str(self.path)!r}")
            group = replace(group, revision=before.revision + 1)
        types = {**self.declared, **(declared or {})}
        table, conflicts = arrow_table({} if rows is None else rows, types, part=name)
        height = table.num_rows
        if order is not None and before is not None:
            if provenance is not None:
                known = None if before.provenance is None else self._read_provenance(before.provenance)
                provenance = joined(known, before.rows, provenance, height, order)
            if before.part is not None:
                old = read_table(self.path, before.part)
                if self.header.provenance:  # it is joined by itself
                    added = [name for name in old.column_names if name not in self.header.columns]
                    old = old.drop_columns([name for name in added if is_provenance(name)])
                table, more = _joined([old, table], self.declared, self.header.columns, name)
                conflicts = distinct_conflicts((*before.conflicts, *conflicts, *more))
            table = table.take(pa.array(order, pa.int64()))
            group = replace(group, revision=before.revision + 1)
        unprocessed, _ = arrow_table(generated or {}, self.declared)
        if provenance is not None and self.header.provenance:
            shown = provenance.slice(0, table.num_rows)
            for column in shown.column_names:
                if column not in table.column_names:  # rows of stages have their number in any case
                    table = table.append_column(column, shown[column])
        files = {name: table, generated_name(group.index): unprocessed}
        if provenance is not None:
            files[provenance_name(group.index)] = provenance
        staged: list[PartRecord | None] = []
        try:
            for file, each in files.items():
                staged.append(stage(self.path, file, each) if each.num_rows else None)
            with self._alone():
                if not abandoned():
                    part, unprocessed_part, *others = staged
                    staged = []
                    # Without the schema, which is known and would make up most of the record.
                    origins = None if not others or others[0] is None else replace(others[0], schema=pa.schema([]))
                    group = replace(group, part=part, generated=unprocessed_part, provenance=origins)
                    return self._list(replace(group, conflicts=conflicts))
        finally:
            discard(self.path, *staged)
        return None

    def _read_provenance(self, part: PartRecord) -> pa.Table | None:
        # It says nothing about rows that were lost: a row group is written anew without it.
        with suppress(PartError):
            return read_provenance(self.path, part)
        return None

    def _list(self, group: GroupRecord) -> GroupRecord:
        """List a group, in place of what is listed, and rename its staged files.

        Listed before the rename: at every instant the manifest names files that exist and are whole, and the root holds
        nothing else.
        """
        before = self._manifest.working.groups.get(group.index)
        try:
            self._append(group)
        except StoreError:
            discard(self.path, *group.parts)
            raise
        faults.reach("part listed")
        if self._manifest.pending is not None:  # its files stay staged, and those of the dataset where they are
            staged = {part.staged for part in group.parts}
            discard(self.path, *(part for part in (before.parts if before else ()) if part.staged not in staged))
            return group
        named = {part.name for part in group.parts}
        for part in before.parts if before is not None else ():
            if part.name not in named:
                remove(self.path, part.name)
        self._manifest.groups[group.index] = group = self._placed(group)
        return group

    def take(self, taken: Taken) -> None:
        """Record which rows of its parent the stage takes next, before anything is generated of them."""
        with self._alone():
            self._append(taken)
        faults.reach("rows taken")

    def write_usage(self, usage: UsageEntries) -> None:
        with self._lock:
            self._append(UsageRecord(entries=usage))

    def write_states(self, states: Mapping[str, bytes]) -> None:
        with self._lock:
            self._append(States(states=dict(states)))

    def finish(
        self,
        *,
        dropped: Mapping[str, Sequence[Any]] | None = None,
        abandoned: Callable[[], bool] = lambda: False,
    ) -> tuple[Conflict, ...]:
        """Give every part one schema and record that the build finished; return the columns that could not have one.

        `dropped` are the dropped rows. If `abandoned()` turns true before the record is written, the directory stays
        readable but unfinished. Where the root is published at the end, `publish` comes before this.
        """
        schema, conflicts = self.unify(abandoned=abandoned)
        with self._alone():
            if not abandoned():
                table, _ = arrow_table(dropped or {}, {**self.declared, **DROPPED_TYPES})
                part = stage(self.path, DROPPED, table) if table.num_rows else None
                if part is not None and self._manifest.pending is None:
                    part = place(self.path, part)
                self._append(Finished(schema=schema, conflicts=conflicts, dropped=part))
                if self._manifest.pending is not None:
                    self._switch()
                if part is None:
                    remove(self.path, DROPPED)
                self._remove_leftovers()
        return conflicts

    def _switch(self) -> None:
        """Put the pending revision in place of the dataset: one record, and then its files get their names.

        The files of the root that change are removed before the first is renamed, so that the root never holds rows of
        both revisions. A process that dies in between is followed by one that does the rest (`open`).
        """
        self._append(Switched())
        faults.reach("revision switched")
        manifest = self._manifest
        if manifest.published is not None:
            self._place_published(manifest.published)
        else:
            listed = {part.name: part for group in manifest.in_order for part in group.parts}
            for path in self.path.glob("batch_*.parquet"):
                if path.name not in listed or listed[path.name].staged is not None:
                    remove(self.path, path.name)
            faults.reach("old rows removed")
            place_all(self.path, [part for part in listed.values() if "/" not in part.name])
        for group in manifest.in_order:
            manifest.groups[group.index] = self._placed(group)
        if manifest.finished is not None and manifest.finished.dropped is not None:
            place(self.path, manifest.finished.dropped)

    def unify(self, *, abandoned: Callable[[], bool] = lambda: False) -> tuple[pa.Schema, tuple[Conflict, ...]]:
        """Give every part one schema, and return it with the columns that could not have one.

        Parts are rewritten one at a time and only where they differ, until `abandoned()` turns true.
        """
        with self._alone():
            schema, conflicts = self._manifest.working.unified()
            listed: list[GroupRecord | Placed] = [*self._manifest.working.in_order]
            if self.header.candidates is not None:  # the parts of row groups are not the dataset
                listed = [placed for _, placed in sorted(self._manifest.placed.items())]
            for record in listed:
                if abandoned():
                    break
                if record.part is not None and record.part.schema != schema:
                    conflicts += self._rewrite(record, record.part, schema, conflicts)
            return schema, distinct_conflicts(conflicts)

    def _rewrite(
        self, record: GroupRecord | Placed, part: PartRecord, schema: pa.Schema, known: Sequence[Conflict]
    ) -> tuple[Conflict, ...]:
        """Rewrite a file in the unified schema, but for columns in conflict; return conflicts that were not `known`."""
        own = {conflict.column for conflict in known}.intersection(part.schema.names)
        target = pa.schema([part.schema.field(field.name) if field.name in own else field for field in schema])
        if target == part.schema:
            return ()
        table, conflicts = conform(read_table(self.path, part), target, part=part.name)
        record = replace(record, part=stage(self.path, part.name, table))
        if isinstance(record, Placed):
            self._place(record)
        else:
            self._list(record)
        return conflicts

    def publish(
        self, frame: pl.DataFrame, *, resized: Resized = (), abandoned: Callable[[], bool] = lambda: False
    ) -> bool:
        """Replace the files of the root by the rows that after-generation processors returned; `finish` comes next.

        All files are written to `.seedbed/parts` and listed before the first is renamed: a process that dies in between
        loses no rows, and the next one renames the rest. False if `abandoned()` turned true before they were listed:
        then the root is as it was.
        """
        if not self.header.publishes_at_end:
            raise StoreError(
                f"the root of {str(self.path)!r} holds the row groups: nothing else can be published there"
            )
        table, conflicts = arrow_table(frame, {}, part="the processed rows")
        parts: list[PartRecord] = []
        try:
            for at, start in enumerate(range(0, table.num_rows, self.header.buffer_size)):
                if abandoned():
                    return False
                rows = table.slice(start, self.header.buffer_size)
                parts.append(stage(self.path, part_name(at), rows))
            with self._alone():
                if abandoned():
                    return False
                schema = table.schema.remove_metadata()
                self._append(Published(schema=schema, parts=tuple(parts), resized=resized, conflicts=conflicts))
                faults.reach("published listed")
                parts = []
                if self._manifest.pending is None:
                    assert self._manifest.published is not None  # it was just applied
                    self._place_published(self._manifest.published)
        finally:
            discard(self.path, *parts)
        return True

    def _place_published(self, published: Published) -> None:
        """Rename staged files to the root, after those of an earlier publication are removed.

        So the root never holds rows of both, only a part of the new ones if the process dies in between.
        """
        staged = {part.name for part in published.parts if part.staged is not None and exists(self.path, part.staged)}
        listed = {part.name for part in published.parts}
        for path in self.path.glob("batch_*.parquet"):
            if path.name in staged or path.name not in listed:
                remove(self.path, path.name)
        faults.reach("old rows removed")
        place_all(self.path, published.parts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the directory. Never waits: a thread that is writing releases it when it is done."""
        self._closing = True
        self._close_if_free()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        finally:
            if self._closing:
                self._close_if_free()

    def _close_if_free(self) -> None:
        # The owner of the lock checks `_closing` after releasing it, so one of the two closes the file.
        if self._lock.acquire(blocking=False):
            try:
                self._file.close()
                self._owned.close()
            finally:
                self._lock.release()

    def _append(self, record: Record) -> None:
        try:
            append(self._file, record)
        except OSError as error:
            raise StoreError(f"the manifest in {str(self.path)!r} cannot be written: {error}") from error
        self._manifest.apply(record)

    def _remove_leftovers(self) -> None:
        listed = {name for part in self._manifest.parts() for name in (part.name, part.staged)}
        for folder in ("", f"{PRIVATE}/", f"{PARTS}/", f"{PROVENANCE}/"):
            if not (self.path / folder).is_dir():
                continue
            for path in (self.path / folder).iterdir():
                ours = path.name.startswith(_PREFIXES) and path.suffix in (".parquet", ".part")
                if folder + path.name not in listed and ((is_temporary(path) and not path.is_dir()) or ours):
                    remove(self.path, folder + path.name)


def _write_manifest(directory: Path, manifest: Manifest) -> io.FileIO:
    """Write a new manifest, or replace a damaged one, and return it open."""
    with create(directory, _TEMPORARY) as file:
        append(file, *manifest.records())
    rename(directory, _TEMPORARY, MANIFEST_NAME)
    faults.reach("manifest renamed")
    _make_folders(directory)
    faults.reach("manifest directory synced")
    return open_file(directory, MANIFEST_NAME, writable=True)


def _make_folders(directory: Path) -> None:
    """Make the folders that staged files are renamed to."""
    for folder in (PARTS, PROVENANCE):
        (directory / folder).mkdir(exist_ok=True)
    sync_directory(directory / PRIVATE)


def _joined(
    tables: Sequence[pa.Table], declared: Mapping[str, pa.DataType], order: Sequence[str], part: str
) -> tuple[pa.Table, tuple[Conflict, ...]]:
    """Return the rows of several tables as one; a column without one type for all becomes what its values are."""
    schema, conflicts = unify(((part, table.schema) for table in tables), declared=declared, order=order)
    fitting = [conform(table, schema, part=part) for table in tables]
    misfits = {conflict.column for conflict in (*conflicts, *(each for _, more in fitting for each in more))}
    values: dict[str, list[Any]] = {
        name: [
            value
            for table in tables
            for value in (python_values(table.column(name)) if name in table.column_names else [None] * table.num_rows)
        ]
        for name in misfits
    }
    found, conflicts = arrow_table(values, declared, part=part)
    joined = pa.concat_tables([table.drop_columns([*misfits]) for table, _ in fitting])
    columns = [(found if name in misfits else joined).column(name) for name in schema.names]
    return pa.Table.from_arrays(columns, names=schema.names), conflicts
