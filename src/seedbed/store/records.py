"""The records of the manifest, one frozen class for each kind, their JSON form, and which rows are in which group."""

from __future__ import annotations

import base64
import functools
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeAlias

import attrs
import msgspec
import pyarrow as pa

from ..observe.report import Drop  # noqa: TC001 - msgspec reads the annotations
from .schema import Conflict, canonical

if TYPE_CHECKING:
    from collections.abc import Mapping


@attrs.frozen(kw_only=True)
class Layout:
    """`rows` rows in groups of `size`; a dataset that was grown begins anew at each row of `segments`.

    Groups that were there before keep their rows: the last of those requested first may be short, and the rows
    that were requested later are in new groups.
    """

    rows: int
    size: int
    segments: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """How many groups there are."""
        return sum(self._groups(start, stop) for start, stop in self._runs())

    def group_rows(self, index: int) -> range:
        """The rows of a group."""
        first = 0
        for start, stop in self._runs():
            groups = self._groups(start, stop)
            if index < first + groups:
                begin = start + (index - first) * self.size
                return range(begin, min(begin + self.size, stop))
            first += groups
        raise IndexError(f"there is no row group {index}, only {first}")

    def grown(self, rows: int) -> Self:
        """The same groups, and others for the rows that come on top."""
        last = self.segments[-1] if self.segments else 0
        is_short = (self.rows - last) % self.size > 0
        return attrs.evolve(self, rows=rows, segments=(*self.segments, self.rows) if is_short else self.segments)

    def _runs(self) -> list[tuple[int, int]]:
        return list(zip((0, *self.segments), (*self.segments, self.rows), strict=True))

    def _groups(self, start: int, stop: int) -> int:
        return -(-(stop - start) // self.size)


FORMAT = 2

# Records are read from files that may come from someone else: msgspec refuses fields of other types and ranges.
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
# Rows are counted with `len(range(...))`.
_Rows: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Resized: TypeAlias = tuple[tuple[str, _Count, _Count], ...]  # `Resized` of `observe.report`, with ranges


@attrs.frozen(kw_only=True)
class PartRecord:
    """A parquet file of the dataset: how many rows, how many bytes, what they must hash to, and their types.

    `staged` is the name that the file has until it takes the place of one that was listed before under `name`.
    """

    name: str
    rows: _Rows
    size: _Count
    checksum: str
    schema: pa.Schema
    staged: str | None = None


@attrs.frozen(kw_only=True)
class Header:
    """What was requested. `declared` holds the columns whose type was declared; `created` is wall time.

    `segments` are the numbers of rows that were requested before the dataset was grown, as `Layout` has them.
    """

    rows: _Rows
    buffer_size: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    segments: tuple[_Rows, ...] = ()
    columns: tuple[str, ...]
    declared: pa.Schema = attrs.field(factory=lambda: pa.schema([]))
    fingerprint: dict[str, Any] = attrs.field(factory=dict)
    # The recipe file that is kept beside the manifest, should that be lost.
    recipe: str | None = None
    # The root is published from all row groups at the end, and these are stored in `.seedbed/parts` until then.
    publishes_at_end: bool = False
    created: float
    version: str
    format: int = FORMAT

    @property
    def layout(self) -> Layout:
        """Which rows belong to which row group."""
        return Layout(rows=self.rows, size=self.buffer_size, segments=self.segments)


@attrs.frozen(kw_only=True)
class GroupRecord:
    """A finished row group: source rows `start` to `stop` (not included), and what became of them.

    `part` is None when no row is left; `skipped` is why the whole group is not in the dataset, if it is not. `revision`
    counts how often its dropped rows were retried. `generated` holds the rows before post-batch processors, if there
    are such processors.
    """

    index: _Count
    start: _Count
    stop: _Count
    part: PartRecord | None = None
    generated: PartRecord | None = None
    drops: tuple[Drop, ...] = ()
    resized: _Resized = ()
    conflicts: tuple[Conflict, ...] = ()
    skipped: str | None = None
    revision: _Count = 0
    # The number of the last commit to the journal before this: a journal that ends earlier has lost something.
    commits: Annotated[int, msgspec.Meta(ge=0, lt=2**62)] = 0

    @property
    def rows(self) -> int:
        """Rows in the part."""
        return self.part.rows if self.part else 0

    @property
    def removed(self) -> int:
        """How many rows its processors removed."""
        return sum(removed for _, removed, _ in self.resized)

    @property
    def added(self) -> int:
        """How many rows its processors added."""
        return sum(added for _, _, added in self.resized)

    @property
    def parts(self) -> tuple[PartRecord, ...]:
        """The files that it has."""
        return tuple(part for part in (self.part, self.generated) if part is not None)


@attrs.frozen(kw_only=True)
class Finished:
    """Every part now has this schema, but for the columns in conflict; `dropped` holds the dropped rows, if any."""

    schema: pa.Schema
    conflicts: tuple[Conflict, ...] = ()
    dropped: PartRecord | None = None


@attrs.frozen(kw_only=True)
class Published:
    """The files of the root as after-generation processors returned them: (rows, size, checksum, staged name).

    File number n is `batch_n.parquet`, and all have one schema. It counts once the build has `Finished`; until then the
    files may be those of an earlier `Published`, or some of each. `resized` is how many rows the processors removed and
    added together, under all their names.
    """

    schema: pa.Schema
    entries: tuple[tuple[_Rows, _Count, str, str], ...]
    resized: _Resized = ()
    conflicts: tuple[Conflict, ...] = ()


@attrs.frozen(kw_only=True)
class Spending:
    """What all runs of this dataset have used up to here: (column, model, calls, input tokens, output tokens, cost)."""

    entries: tuple[tuple[str, str, _Count, _Count, _Count, float], ...]


@attrs.frozen(kw_only=True)
class States:
    """The states of stateful generators when everything was generated, by name, for a dataset that grows."""

    states: dict[str, bytes]


Record: TypeAlias = Header | GroupRecord | Finished | Published | Spending | States

_KINDS: dict[str, type[Any]] = {
    "header": Header,
    "group": GroupRecord,
    "finished": Finished,
    "published": Published,
    "spending": Spending,
    "states": States,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def record_to_dict(record: Record) -> dict[str, Any]:
    """Return the record as plain JSON values."""
    return {"kind": _NAMES[type(record)], **_plain(record)}


def record_from_dict(plain: Mapping[str, Any]) -> Record:
    """Return the record that `record_to_dict` wrote; `ValueError`, `KeyError` or `TypeError` if it is none."""
    fields = dict(plain)
    record: Record = msgspec.convert(fields, _KINDS[fields.pop("kind")], dec_hook=_convert_schema)
    return record


def _convert_schema(kind: type, value: Any) -> pa.Schema:
    if kind is not pa.Schema:
        raise NotImplementedError
    return _read_schema(value["ipc"])


def _plain(value: Any) -> Any:
    if isinstance(value, pa.Schema):
        # The text is for people; only the IPC message, which knows every type, is read back.
        ipc = base64.b64encode(value.serialize().to_pybytes()).decode()
        return {"text": {field.name: str(field.type) for field in value}, "ipc": ipc}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if attrs.has(type(value)):
        return {field.name: _plain(getattr(value, field.name)) for field in attrs.fields(type(value))}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value


@functools.lru_cache(maxsize=256)
def _read_schema(ipc: str) -> pa.Schema:
    # Nearly all parts have the same schema: it is decoded once and shared.
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(ipc)))
    if len(set(schema.names)) < len(schema.names):
        raise ValueError("a schema has two columns of one name")
    for field in schema:
        canonical(field.type)  # TypeError for what no writer stores: polars would panic
    return schema
