"""The records of the manifest, one class for each kind, as JSON and back, and which rows are in which row group."""

from __future__ import annotations

import base64
import functools
import json
from itertools import pairwise
from typing import Annotated, Any, Self, TypeAlias

import attrs
import msgspec
import pyarrow as pa

from ..observe.report import Drop  # noqa: TC001 - msgspec reads the annotations
from .entries import Usage  # noqa: TC001 - as above
from .schema import Conflict, canonical


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
        """The number of groups."""
        return sum(map(len, self._runs()))

    def group_rows(self, index: int) -> range:
        """Return the rows of a group."""
        left = index
        for run in self._runs():
            if left < len(run):
                return range(run[left], min(run[left] + self.size, run.stop))
            left -= len(run)
        raise IndexError(f"there is no row group {index}, only {self.count}")

    def grown(self, rows: int) -> Self:
        """Return the same groups, and others for the rows that were added."""
        last = self.segments[-1] if self.segments else 0
        is_short = (self.rows - last) % self.size > 0
        return attrs.evolve(self, rows=rows, segments=(*self.segments, self.rows) if is_short else self.segments)

    def _runs(self) -> list[range]:
        """The first rows of the groups of each segment."""
        return [range(*run, self.size) for run in pairwise((0, *self.segments, self.rows))]


FORMAT = 2

# Records are read from files that may come from someone else: msgspec checks the types and ranges of fields.
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
# Rows are counted with `len(range(...))`.
_Rows: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Resized: TypeAlias = tuple[tuple[str, _Count, _Count], ...]  # `Resized` of `observe.report`, with ranges


class PartRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A parquet file of the dataset: how many rows, how many bytes, what they must hash to, and their types.

    `staged` is the name that the file has until it takes the place of one that was listed before under `name`.
    """

    name: str
    rows: _Rows
    size: _Count
    checksum: str
    schema: pa.Schema
    staged: str | None = None


class _Record(msgspec.Struct, frozen=True, tag_field="kind"):
    """The base of all records; a subclass gives its kind as `tag`."""


class Header(_Record, frozen=True, kw_only=True, tag="header"):
    """What was requested. `declared` holds the columns whose type was declared; `created` is wall time.

    `segments` are the numbers of rows that were requested before the dataset was grown, as `Layout` has them.
    """

    rows: _Rows
    buffer_size: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    segments: tuple[_Rows, ...] = ()
    columns: tuple[str, ...]
    declared: pa.Schema = pa.schema([])
    fingerprint: dict[str, Any] = {}
    # A copy of the recipe file that is stored beside the manifest.
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


class GroupRecord(_Record, frozen=True, kw_only=True, tag="group"):
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


class Finished(_Record, frozen=True, kw_only=True, tag="finished"):
    """Every part now has this schema, but for the columns in conflict; `dropped` holds the dropped rows, if any."""

    schema: pa.Schema
    conflicts: tuple[Conflict, ...] = ()
    dropped: PartRecord | None = None


class Published(_Record, frozen=True, kw_only=True, tag="published"):
    """The files of the root as after-generation processors returned them, all of one schema.

    It counts once the build has `Finished`; until then the files may be those of an earlier `Published`, or some of
    each. `resized` is how many rows the processors removed and added together, under all their names.
    """

    schema: pa.Schema
    parts: tuple[PartRecord, ...]
    resized: _Resized = ()
    conflicts: tuple[Conflict, ...] = ()


class UsageRecord(_Record, frozen=True, kw_only=True, tag="usage"):
    """What all runs of this dataset have used so far."""

    entries: Usage


class States(_Record, frozen=True, kw_only=True, tag="states"):
    """The states of stateful generators when everything was generated, by name, for a dataset that grows."""

    states: dict[str, bytes]


Record: TypeAlias = Header | GroupRecord | Finished | Published | UsageRecord | States


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
