"""The manifest: an append-only log of what the dataset directory holds.

A record of the log holds one record of the manifest as JSON: there is one class for each kind. A checkpoint appends
one, so it costs the same for the first row group and the millionth. Damage costs only the records that it hits. The
header, without which a directory is no dataset, is written twice, as are other records that later ones depend on.
"""

from __future__ import annotations

import base64
import functools
import json
import sys
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeAlias

import attrs
import msgspec
import pyarrow as pa

from ..errors import ManifestError, OutputDirectoryError
from ..observe.report import Count, Drop, Resized  # noqa: TC001 - msgspec reads the annotations
from ..runtime import faults
from . import log
from .children import Children, SourceSpec, Taken
from .entries import UsageEntries  # noqa: TC001 - as above
from .files import PRIVATE, create, exists, is_stage_name, open_file, read_file
from .parts import DROPPED, PartRecord, accepted_name, generated_name, internal_name, is_staged_name, part_name
from .provenance import provenance_name
from .schema import Conflict, canonical, distinct_conflicts, unify

if TYPE_CHECKING:
    import io
    from collections.abc import Iterable, Iterator
    from pathlib import Path

FORMAT = 2
MANIFEST_NAME = f"{PRIVATE}/manifest.log"
# An empty file that the process that writes the directory has locked. It is never removed: of two processes that lock
# it, both have the same file.
LOCK_NAME = f"{PRIVATE}/lock"
_VERSION_0_1 = "manifest.jsonl"
_RECORD = 1


@attrs.frozen(kw_only=True)
class Layout:
    """`rows` rows in groups of `size`; a dataset that was grown begins anew at each row of `segments`.

    Earlier groups keep their rows: the last one of a segment may be short, and rows that were requested later are in
    new groups.
    """

    rows: int
    size: int
    segments: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        return sum(map(len, self._runs()))

    def group_rows(self, index: int) -> range:
        left = index
        for run in self._runs():
            if left < len(run):
                return range(run[left], min(run[left] + self.size, run.stop))
            left -= len(run)
        raise IndexError(f"there is no row group {index}, only {self.count}")

    def index_of(self, row: int) -> int:
        """The row group that a row is in."""
        index = 0
        for run in self._runs():
            if row < run.stop:
                return index + (row - run.start) // self.size
            index += len(run)
        raise IndexError(f"there is no row {row}, only {self.rows}")

    def rows_of_others(self, done: Iterable[int], *, start: int = 0) -> list[range]:
        """Return the rows of all groups from `start` on that are not in `done`, as few ranges as possible."""
        ranges: list[range] = []
        for index in [*sorted(done), self.count]:
            if start < index:
                ranges.append(range(self.group_rows(start).start, self.group_rows(index - 1).stop))
            start = index + 1
        return ranges

    def grown(self, rows: int) -> Self:
        """Return the same groups, and others for the rows that were added."""
        last = self.segments[-1] if self.segments else 0
        is_short = (self.rows - last) % self.size > 0
        return attrs.evolve(self, rows=rows, segments=(*self.segments, self.rows) if is_short else self.segments)

    def _runs(self) -> list[range]:
        """The first rows of the groups of each segment."""
        return [range(*run, self.size) for run in pairwise((0, *self.segments, self.rows))]


class _Record(msgspec.Struct, frozen=True, tag_field="kind"):
    """The base of all records; a subclass gives its kind as `tag`."""


class Header(_Record, frozen=True, kw_only=True, tag="header"):
    """What was requested. `declared` holds the columns whose type was declared; `created` is wall time.

    `segments` are the numbers of rows that were requested before the dataset was grown, as `Layout` has them.
    """

    rows: Count
    buffer_size: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    segments: tuple[Count, ...] = ()
    columns: tuple[str, ...]
    declared: pa.Schema = pa.schema([])
    fingerprint: dict[str, Any] = {}
    # A copy of the recipe file that is stored beside the manifest.
    recipe: str | None = None
    # The root is published from all row groups at the end, and these are stored in `.seedbed/parts` until then.
    publishes_at_end: bool = False
    # The columns of provenance are part of the dataset.
    provenance: bool = False
    # How often the recipe has changed so that row groups have to be written anew, and when each column was added.
    edition: Count = 0
    added: dict[str, Count] = {}
    # How often each column was redone: its random values are drawn anew each time.
    draws: dict[str, Count] = {}
    # Columns from scratch that were added when rows had passed the pre-batch processors, which do not see them.
    late: tuple[str, ...] = ()
    # It began with cells of another dataset; rows that this had dropped because of other columns are generated.
    is_reusing: bool = False
    # Not every row counts: how many candidates there may be. `rows` are those that count.
    candidates: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None
    # The stage of the recipe, and where its rows come from if that is another stage; `rows` is 0 then. The dataset at
    # the root names all stages.
    stage: str = ""
    source: SourceSpec | None = None
    stages: tuple[str, ...] = ()
    created: float
    version: str
    format: int = FORMAT

    @property
    def declared_types(self) -> dict[str, pa.DataType]:
        return {field.name: field.type for field in self.declared}

    @property
    def layout(self) -> Layout:
        rows = self.rows if self.candidates is None else self.candidates
        return Layout(rows=rows, size=self.buffer_size, segments=self.segments)


class GroupRecord(_Record, frozen=True, kw_only=True, tag="group"):
    """A finished row group: source rows `start` to `stop` (not included), and what became of them.

    `part` is None when no row is left; `skipped` is why the whole group is not in the dataset, if it is not. `revision`
    counts how often it was replaced: its dropped rows were retried, or the recipe changed. `generated` holds the rows
    before post-batch processors, if there are such processors, and `provenance` where the rows came from. `edition` is
    that of the header when it was written.
    """

    index: Count
    start: Count
    stop: Count
    part: PartRecord | None = None
    generated: PartRecord | None = None
    provenance: PartRecord | None = None
    drops: tuple[Drop, ...] = ()
    resized: Resized = ()
    conflicts: tuple[Conflict, ...] = ()
    skipped: str | None = None
    revision: Count = 0
    edition: Count = 0
    # The number of the last commit to the journal before this: a journal that ends earlier has lost something.
    commits: Count = 0

    @property
    def rows(self) -> int:
        return self.part.rows if self.part else 0

    @property
    def removed(self) -> int:
        return sum(removed for _, removed, _ in self.resized)

    @property
    def added(self) -> int:
        return sum(added for _, _, added in self.resized)

    @property
    def parts(self) -> tuple[PartRecord, ...]:
        return tuple(part for part in (self.part, self.generated, self.provenance) if part is not None)


class Decided(_Record, frozen=True, kw_only=True, tag="decided"):
    """Where not every row counts: which rows of a row group's part do, of those from `start` to `stop` (not included).

    Row groups are decided in order, so that the rows that these records keep, in the order of the records, do not
    depend on time: the dataset is the first of them. `rejected` are the others, with their positions in the part.
    """

    # Its place among these records, which the writer gives it: each is written twice, and counts once.
    number: Count = 0
    group: Count
    start: Count
    stop: Count
    rejected: tuple[tuple[Count, Drop], ...] = ()

    @property
    def kept(self) -> int:
        return self.stop - self.start - len(self.rejected)

    def positions(self) -> list[int]:
        """The positions of the rows that count."""
        out = {position for position, _ in self.rejected}
        return [position for position in range(self.start, self.stop) if position not in out]


class Placed(_Record, frozen=True, kw_only=True, tag="placed"):
    """A file of rows that count: those from `start` to `stop` (not included) of what the decision `decision` keeps.

    Files are never changed, but for their types; their numbers are in the order of their rows.
    """

    number: Count
    decision: Count
    start: Count
    stop: Count
    part: PartRecord


class Finished(_Record, frozen=True, kw_only=True, tag="finished"):
    """Every part now has this schema, but for the columns in conflict; `dropped` holds the dropped rows, if any."""

    schema: pa.Schema
    conflicts: tuple[Conflict, ...] = ()
    dropped: PartRecord | None = None


class Published(_Record, frozen=True, kw_only=True, tag="published"):
    """The files of the root as after-generation processors returned them, all of one schema.

    It counts once the build has `Finished`; until then the files may be those of an earlier `Published`, or some of
    each. `resized` is how many rows each processor removed and added.
    """

    schema: pa.Schema
    parts: tuple[PartRecord, ...]
    resized: Resized = ()
    conflicts: tuple[Conflict, ...] = ()


class UsageRecord(_Record, frozen=True, kw_only=True, tag="usage"):
    """What all runs of this dataset have used so far."""

    entries: UsageEntries


class States(_Record, frozen=True, kw_only=True, tag="states"):
    """The states of stateful generators when everything was generated, by name, for a dataset that grows."""

    states: dict[str, bytes]


class Redo(msgspec.Struct, frozen=True, kw_only=True):
    """What a revision regenerates: these columns, and what depends on them, in row groups of an earlier `edition`.

    `where` selects rows; without it all rows are regenerated. `everything` if no value of any column stays. `columns`
    are those that were named: the others were changed in the recipe.
    """

    columns: tuple[str, ...] = ()
    where: str | None = None
    everything: bool = False
    edition: Count = 0

    @property
    def text(self) -> str:
        """What is redone, in words: "'review' where score < 3"."""
        found = ", ".join(map(repr, self.columns)) or "what the recipe changed"
        return found if self.where is None else f"{found} where {self.where}"


class Pending(_Record, frozen=True, kw_only=True, tag="pending"):
    """A revision begins: the records that follow belong to it, and count once it is `Switched` to.

    `states` are those of the stateful generators that continue in it.
    """

    header: Header
    redo: Redo
    states: dict[str, bytes] = {}


class Switched(_Record, frozen=True, kw_only=True, tag="switched"):
    """The pending revision is complete and takes the place of the dataset. Its files may still be staged."""


class Abandoned(_Record, frozen=True, kw_only=True, tag="abandoned"):
    """The pending revision does not count."""


Record: TypeAlias = (
    Header
    | GroupRecord
    | Decided
    | Placed
    | Finished
    | Published
    | UsageRecord
    | States
    | Taken
    | Pending
    | Switched
    | Abandoned
)


def encode_record(record: Record) -> bytes:
    """Return the record as JSON."""
    # By the standard library, which writes and reads lone surrogates; msgspec refuses them.
    return json.dumps(msgspec.to_builtins(record, enc_hook=_plain_schema), separators=(",", ":")).encode()


def decode_record(data: bytes) -> Record | None:
    """Return the record that the log holds, or None if it is not one of this version."""
    try:
        record: Record = msgspec.convert(json.loads(data), Record, dec_hook=_convert_schema)
    except (msgspec.MsgspecError, ValueError, KeyError, TypeError, RecursionError, OSError, pa.ArrowException):
        # Whole but unknown: written by a later version of the format, whose header names its format.
        return None
    return record


def _plain_schema(value: Any) -> dict[str, Any]:
    if not isinstance(value, pa.Schema):
        raise NotImplementedError
    # The text is for people; only the IPC message, which knows every type, is read back.
    ipc = base64.b64encode(value.serialize().to_pybytes()).decode()
    return {"text": {field.name: str(field.type) for field in value}, "ipc": ipc}


def _convert_schema(kind: type, value: Any) -> pa.Schema:
    if kind is not pa.Schema:
        raise NotImplementedError
    return _read_schema(value["ipc"])


@functools.lru_cache(maxsize=256)
def _read_schema(ipc: str) -> pa.Schema:
    # Nearly all parts have the same schema: it is decoded once and shared.
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(ipc)))
    if len(set(schema.names)) < len(schema.names):
        raise ValueError("a schema has two columns of one name")
    for field in schema:
        canonical(field.type)  # TypeError for what no writer stores: polars would panic
    return schema


@attrs.define(eq=False)
class Manifest:
    """What the records so far add up to: pure, changed by `apply` alone."""

    header: Header | None = None
    groups: dict[int, GroupRecord] = attrs.field(factory=dict)
    # Where not every row counts, in order.
    decisions: list[Decided] = attrs.field(factory=list)
    placed: dict[int, Placed] = attrs.field(factory=dict)
    placed_rows: int = 0
    finished: Finished | None = None
    # Also of a dataset that was grown since: these files are in the root until others replace them.
    published: Published | None = None
    usage: UsageEntries = ()
    states: States | None = None
    # A revision that is being generated, and what a pending one regenerates.
    pending: Manifest | None = None
    redo: Redo | None = None
    # The rows that the stage took from its parent, in this order.
    taken: list[Taken] = attrs.field(factory=list)
    is_gapless: bool = True  # no record of them is lost
    # Ranges of bytes of the file that cannot be read, and the length of what counts: what follows is a record that was
    # being written when the process died.
    damaged: tuple[tuple[int, int], ...] = ()
    length: int = 0

    def apply(self, record: Record) -> None:  # noqa: PLR0912  one branch per kind of record
        """Apply the next record; the last one of a kind counts."""
        match record:
            case Pending(header=header, redo=redo):
                states, groups = States(states=record.states), dict(self.groups)
                self.pending = Manifest(header=header, groups=groups, usage=self.usage, states=states, redo=redo)
            case Switched() if self.pending is not None:
                new, self.pending = self.pending, None
                self.header, self.groups, self.states = new.header, new.groups, new.states
                self.published, self.finished = new.published, new.finished
            case Abandoned() | Switched():
                self.pending = None
            case _ if self.pending is not None:
                self.pending.apply(record)
                self.usage = self.pending.usage  # it was spent, whatever becomes of the revision
            case Taken():
                self._take(record)
            case Header():
                if self.header is not None and self.header.source != record.source:
                    self.taken.clear()  # nothing was generated of these rows
                # The unified schema and the published files of a dataset that was grown cover only a part of it.
                self.header = record
                self.finished = None
                if not record.publishes_at_end:
                    self.published = None
            case GroupRecord(edition=edition) if self.header is not None and edition > self.header.edition:
                pass  # of a revision whose beginning is damaged
            case GroupRecord():
                before = self.groups.get(record.index)
                self.groups[record.index] = record
                # The unified schema, the published files and the states do not cover this row group.
                self.finished = None
                # Where only its files differ, or its columns and processors, no generator was called for its rows.
                if before is None or (record.revision > before.revision and record.edition == before.edition):
                    self.states = None
            case Decided():
                self._decide(record)
            case Placed():
                former = self.placed.get(record.number)
                self.placed_rows += record.part.rows - (0 if former is None else former.part.rows)
                self.placed[record.number] = record
                self.finished = None
            case Finished():
                self.finished = record
            case Published():
                self.published = record
                self.finished = None  # until its files are in the root
            case UsageRecord(entries=entries):
                self.usage = entries
            case States():
                self.states = record

    def _take(self, record: Taken) -> None:
        self.is_gapless = self.is_gapless and record.number <= len(self.taken)
        if record.number == len(self.taken):  # else it is the copy of one
            self.taken.append(record)
            self.finished = None

    def _decide(self, record: Decided) -> None:
        self.is_gapless = self.is_gapless and record.number <= len(self.decisions)
        if record.number == len(self.decisions):  # else it is the copy of one
            self.decisions.append(record)
            self.finished = None

    def lose_files_after_gap(self) -> None:
        """Take files of rows that count out if the record of one before them is lost: they are written again."""
        count = next((at for at in range(len(self.placed)) if at not in self.placed), len(self.placed))
        if count < len(self.placed):
            self.placed = {at: self.placed[at] for at in range(count)}
            self.placed_rows = sum(placed.part.rows for placed in self.placed.values())
            self.finished = None

    def records(self) -> Iterator[Record]:
        """Yield records that add up to this."""
        usage = UsageRecord(entries=self.usage) if self.usage else None
        decided: list[Record] = [*self.decisions, *self.placed.values()]
        last: tuple[Record | None, ...] = (usage, self.published, self.finished, self.states)
        found = (self.header, *self.taken, *self.groups.values(), *decided, *last)
        yield from (record for record in found if record is not None)
        if (new := self.pending) is not None:
            assert new.header is not None
            assert new.redo is not None
            states = {} if new.states is None else new.states.states
            yield Pending(header=new.header, redo=new.redo, states=states)
            yield from (group for index, group in new.groups.items() if group != self.groups.get(index))
            yield from (record for record in (new.published, new.finished, new.states) if record is not None)

    def parts(self) -> Iterator[PartRecord]:
        """Yield every file with rows that is listed, in the pending revision too."""
        for group in self.groups.values():
            yield from group.parts
        yield from (placed.part for placed in self.placed.values())
        yield from self.published.parts if self.published is not None else ()
        if self.finished is not None and self.finished.dropped is not None:
            yield self.finished.dropped
        if self.pending is not None:
            yield from self.pending.parts()

    @property
    def working(self) -> Manifest:
        """What a build works on: the pending revision, if there is one."""
        return self if self.pending is None else self.pending

    @property
    def in_order(self) -> list[GroupRecord]:
        return [group for _, group in sorted(self.groups.items())]

    def is_current(self, group: GroupRecord) -> bool:
        """True if a row group was written by the present recipe; one that was skipped has nothing to be rewritten."""
        if self.header is None or group.edition == self.header.edition:
            return True
        return group.skipped is not None and not (self.redo is not None and self.redo.everything)

    @property
    def current(self) -> list[GroupRecord]:
        """The row groups that the present recipe wrote, in the order of their rows."""
        return [*filter(self.is_current, self.in_order)]

    @property
    def row_parts(self) -> tuple[PartRecord, ...]:
        """The files with the rows of the dataset as generated, in their order."""
        if self.header is not None and self.header.candidates is not None:
            return tuple(placed.part for _, placed in sorted(self.placed.items()))
        # Row groups of an earlier recipe count again once they are written anew.
        return tuple(group.part for group in self.current if group.part is not None)

    @property
    def kept_rows(self) -> int:
        """Where not every row counts: how many do, those that were not requested included."""
        return sum(decision.kept for decision in self.decisions)

    def unified(self) -> tuple[pa.Schema, tuple[Conflict, ...]]:
        """Return the schema of all rows as generated, and the columns that cannot have one type."""
        groups = self.current
        schema, found = unify(
            ((part.name, part.schema) for part in self.row_parts),
            declared=self.header.declared_types if self.header else {},
            order=self.header.columns if self.header else (),
        )
        return schema, distinct_conflicts((*(conflict for group in groups for conflict in group.conflicts), *found))

    @property
    def damage(self) -> tuple[str, ...]:
        """One sentence for each damaged range, with what that costs."""
        return tuple(
            f"{MANIFEST_NAME!r} is damaged (bytes {start:,} to {end - 1:,}); a row group that was listed there is lost"
            for start, end in self.damaged
        )

    @property
    def commits(self) -> int:
        """The number of the last commit to the journal that must be there; 0 if none must."""
        return 0 if self.finished is not None else max((group.commits for group in self.groups.values()), default=0)

    @property
    def layout(self) -> Layout | Children:
        """The rows of each row group; of a stage that takes its rows from another as far as they were taken."""
        assert self.header is not None  # a manifest without one cannot be read
        return self.header.layout if self.header.source is None else children_of(self.header, self.taken)

    @property
    def expected_groups(self) -> int:
        return self.layout.count if self.header else 0

    @property
    def complete(self) -> bool:
        """True if the build finished and every row group is listed."""
        if self.header is not None and self.header.candidates is not None:
            return self.finished is not None
        return self.finished is not None and all(index in self.groups for index in range(self.expected_groups))


def children_of(header: Header, taken: Iterable[Taken]) -> Children:
    """The rows of a stage that takes them from another."""
    assert header.source is not None
    children = Children(header.source, header.buffer_size)
    for each in taken:
        children.take(each)
    return children


_TWICE = Header | Pending | Taken | Decided | Placed


def encode(record: Record) -> bytes:
    """Return the record as it is appended to the log; what everything after it depends on is written twice."""
    return log.frame(_RECORD, encode_record(record)) * (2 if isinstance(record, _TWICE) else 1)


def _check_names(record: Record) -> None:
    """Raise `ManifestError` if a record names a file that no writer generates: it could be anywhere."""
    named: list[tuple[PartRecord | None, tuple[str, ...]]] = []
    match record:
        case GroupRecord(index=index, part=part, generated=generated, provenance=provenance):
            named = [
                (part, (part_name(index), internal_name(index))),
                (generated, (generated_name(index),)),
                (provenance, (provenance_name(index),)),
            ]
        case Placed(number=number, part=part):
            named = [(part, (part_name(number), accepted_name(number)))]
        case Published(parts=parts):
            named = [(part, (part_name(at),)) for at, part in enumerate(parts)]
        case Finished(dropped=dropped):
            named = [(dropped, (DROPPED,))]
    for found, names in named:
        if found is None or (
            found.name in names and (found.staged is None or is_staged_name(found.staged, found.name))
        ):
            continue
        wrong = found.staged if found.name in names else found.name
        raise ManifestError(f"{MANIFEST_NAME!r} names a file that no writer generates: {wrong!r}")


def parse(data: bytes) -> Manifest:
    """Read the bytes of a manifest, whatever happened to them."""
    found = log.scan(data)
    manifest = Manifest(length=found.end)
    damaged = list(found.damaged)
    for each in found.records:
        record = decode_record(each.payload)
        if record is None:
            damaged.append((each.start, each.end))
        else:
            _check_names(record)
            manifest.apply(record)
    manifest.lose_files_after_gap()
    manifest.damaged = tuple(sorted(damaged))
    return manifest


def is_dataset(directory: Path) -> bool:
    """True if there is a manifest in this directory."""
    return (directory / MANIFEST_NAME).is_file()


def read(directory: Path) -> Manifest:
    """Read the manifest of a dataset directory; `ManifestError` if it is missing or unusable."""
    path = directory / MANIFEST_NAME
    try:
        data = read_file(directory, MANIFEST_NAME)
    except (FileNotFoundError, NotADirectoryError) as error:
        if exists(directory, _VERSION_0_1):
            raise ManifestError(
                f"{str(directory)!r} was written by seedbed 0.1 (format 1), which this version does not read: "
                "use seedbed 0.1, or build the dataset again"
            ) from error
        found = "it has no " + MANIFEST_NAME if directory.is_dir() else "there is no such directory"
        raise ManifestError(f"{str(directory)!r} is not a dataset: {found}") from error
    except OSError as error:
        raise ManifestError(f"{str(path)!r} cannot be read: {error}") from error
    manifest = parse(data)
    header = manifest.header
    if header is None:
        raise ManifestError(f"{str(path)!r} has no header that can be read: it is damaged or not a manifest")
    if header.format != FORMAT:
        raise ManifestError(f"{str(path)!r} has format {header.format}, this version reads format {FORMAT}")
    _check_layout(path, header, manifest)
    if manifest.pending is not None and manifest.pending.header is not None:
        _check_layout(path, manifest.pending.header, manifest.pending)
    return manifest


def _check_layout(path: Path, header: Header, manifest: Manifest) -> None:
    """Raise `ManifestError` if the rows of a row group are not those of its number."""
    rows = header.rows if header.candidates is None else header.candidates
    if any(before > after for before, after in pairwise((*header.segments, rows))):
        raise ManifestError(f"{str(path)!r} has a header whose segments are not in order")
    if not manifest.is_gapless:
        lost = f"stage {header.stage!r} took from another stage" if header.source is not None else "count"
        raise ManifestError(f"{str(path)!r} has lost which rows {lost}: build the dataset again")
    for name in (*header.stages, *(() if header.source is None else (header.source.stage,))):
        if not is_stage_name(name):
            raise ManifestError(f"{str(path)!r} names a stage that no recipe has: {name!r}")
    try:
        layout = manifest.layout
    except ValueError as error:  # as many numbers as rows
        raise ManifestError(f"{str(path)!r} holds rows of a stage that no run wrote: {error}") from error
    count = layout.count
    for index, group in manifest.groups.items():
        if index >= count or layout.group_rows(index) != range(group.start, group.stop):
            raise ManifestError(f"{str(path)!r} lists row group {index} with rows that are not those of that group")
        if any(drop.row not in range(group.start, group.stop) for drop in group.drops):
            raise ManifestError(f"{str(path)!r} lists a dropped row in row group {index} that is not one of its rows")
    if header.candidates is None and (manifest.decisions or manifest.placed):
        raise ManifestError(f"{str(path)!r} lists decisions, but every one of its rows counts")
    for decision in manifest.decisions:
        rejected = [position for position, _ in decision.rejected]
        inside = all(position in range(decision.start, decision.stop) for position in rejected)
        decided = manifest.groups.get(decision.group)
        inside = inside and (decided is None or decided.part is None or decision.stop <= decided.rows)
        if decision.group >= count or decision.start > decision.stop or not inside or len({*rejected}) < len(rejected):
            raise ManifestError(f"{str(path)!r} lists a decision about row group {decision.group} that is not possible")
    ends: dict[int, int] = {}
    last = 0
    for number, placed in sorted(manifest.placed.items()):
        known = last <= placed.decision < len(manifest.decisions)
        if not known or placed.start != ends.get(placed.decision, 0) or placed.part.rows != placed.stop - placed.start:
            raise ManifestError(
                f"{str(path)!r} lists a file {number} of rows that are not those after the file before it"
            )
        ends[placed.decision], last = placed.stop, placed.decision


def lock(directory: Path) -> io.FileIO:
    """Lock a dataset directory until the returned file is closed, at the latest by the end of the process.

    `OutputDirectoryError` if another process has it.
    """
    with suppress(FileExistsError):
        create(directory, LOCK_NAME, replace=False).close()
    file = open_file(directory, LOCK_NAME, writable=True)
    if not _lock_file(file):
        file.close()
        raise OutputDirectoryError(
            f"another process is writing {str(directory)!r}: wait for it or stop it; nothing was changed"
        )
    return file


@contextmanager
def shared_lock(directory: Path) -> Iterator[None]:
    """Keep others from writing a dataset directory during the block; `OutputDirectoryError` if one does already."""
    with ExitStack() as opened:
        with suppress(FileNotFoundError):  # it is created with the first writer
            if not _lock_file(opened.enter_context(open_file(directory, LOCK_NAME)), shared=True):
                raise OutputDirectoryError(f"another process is writing {str(directory)!r}: wait for it or stop it")
        yield


def is_being_written(directory: Path) -> bool:
    """True if a process is writing the dataset in this directory."""
    try:
        with open_file(directory, LOCK_NAME) as file:
            return not _lock_file(file, shared=True)
    except OSError:
        return False


def _lock_file(file: io.FileIO, *, shared: bool = False) -> bool:
    if sys.platform == "win32":
        return True
    import fcntl  # noqa: PLC0415 - not there on Windows

    try:
        fcntl.flock(file.fileno(), (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def append(file: io.FileIO, *records: Record) -> None:
    """Append records as one and wait until they are on disk; after an error the file ends where it ended before."""
    log.append(file, b"".join(map(encode, records)), written="record written")
    faults.reach("record synced")
