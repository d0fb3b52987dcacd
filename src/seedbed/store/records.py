"""What the manifest says, one frozen record a line, and each as JSON and back."""

from __future__ import annotations

import base64
import functools
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import pyarrow as pa

from .layout import Layout
from .schema import Conflict

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = 1


@attrs.frozen(kw_only=True)
class Drop:
    """A row that is not in the dataset, and why.

    `row` is its number. Behind pre-batch processors rows are numbered by their position in what these returned;
    `copy` is 0, or 1, 2, … for rows that were added behind the last number of the row group.
    """

    row: int
    copy: int = 0
    column: str
    attempts: int
    error: str
    # `failed`: a cell failed for good; `skipped`: the pre-batch processor of its row group failed.
    kind: str

    @property
    def reason(self) -> str:
        """Column and error, as reports group them."""
        return f"{self.column}: {self.error}"


@attrs.frozen(kw_only=True)
class PartRecord:
    """A parquet file of the dataset: how many rows, how many bytes, what they must hash to, and their types.

    `staged` is the name that the file has until it takes the place of one that was listed before under `name`.
    """

    name: str
    rows: int
    size: int
    checksum: str
    schema: pa.Schema
    staged: str | None = None


@attrs.frozen(kw_only=True)
class Header:
    """What was asked for. `declared` holds the columns whose type was declared; `created` is wall time.

    `segments` are the numbers of rows that were asked for before the dataset was grown, as `Layout` has them.
    """

    rows: int
    buffer_size: int
    segments: tuple[int, ...] = ()
    columns: tuple[str, ...]
    declared: pa.Schema = attrs.field(factory=lambda: pa.schema([]))
    fingerprint: Mapping[str, Any] = attrs.field(factory=dict)
    # The recipe file that is kept beside the manifest, should that be lost.
    recipe: str | None = None
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
    counts how often dropped rows of it were tried again.
    """

    index: int
    start: int
    stop: int
    part: PartRecord | None = None
    drops: tuple[Drop, ...] = ()
    removed: int = 0
    added: int = 0
    conflicts: tuple[Conflict, ...] = ()
    skipped: str | None = None
    revision: int = 0

    @property
    def rows(self) -> int:
        """Rows in the part."""
        return self.part.rows if self.part else 0


@attrs.frozen(kw_only=True)
class Finished:
    """Every part now has this schema, but for the columns in conflict."""

    schema: pa.Schema
    conflicts: tuple[Conflict, ...] = ()


@attrs.frozen(kw_only=True)
class Processed:
    """The whole dataset as a processor after generation left it, beside the parts."""

    part: PartRecord
    conflicts: tuple[Conflict, ...] = ()


@attrs.frozen(kw_only=True)
class Spending:
    """What all runs of this dataset have used up to here: (column, model, calls, input tokens, output tokens, cost)."""

    entries: tuple[tuple[str, str, int, int, int, float], ...]


@attrs.frozen(kw_only=True)
class States:
    """The states of stateful generators when everything was made, for a dataset that grows: (name, base64)."""

    entries: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, states: Mapping[str, bytes]) -> States:
        """Return the record of these states."""
        return cls(entries=tuple((name, base64.b64encode(state).decode()) for name, state in states.items()))

    @property
    def states(self) -> dict[str, bytes]:
        """What was kept, by name."""
        return {name: base64.b64decode(state) for name, state in self.entries}


Record: TypeAlias = Header | GroupRecord | Finished | Processed | Spending | States

_KINDS: dict[str, type[Any]] = {
    "header": Header,
    "group": GroupRecord,
    "finished": Finished,
    "processed": Processed,
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
    kind = _KINDS[fields.pop("kind")]
    if kind is Header:
        # The header of a later format must still say which format it is, whatever else it says.
        fields = {field.name: fields[field.name] for field in attrs.fields(Header) if field.name in fields}
    for name in ("schema", "declared"):
        if name in fields:
            fields[name] = _read_schema(fields[name]["ipc"])
    if fields.get("part") is not None:
        part = dict(fields["part"])
        fields["part"] = PartRecord(**{**part, "schema": _read_schema(part["schema"]["ipc"])})
    if "drops" in fields:
        fields["drops"] = tuple(Drop(**drop) for drop in fields["drops"])
    if "conflicts" in fields:
        fields["conflicts"] = tuple(Conflict(**conflict) for conflict in fields["conflicts"])
    if "entries" in fields:
        fields["entries"] = tuple(tuple(entry) for entry in fields["entries"])
    for name in ("columns", "segments"):
        if name in fields:
            fields[name] = tuple(fields[name])
    record: Record = kind(**fields)
    return record


def _plain(value: Any) -> Any:
    if isinstance(value, pa.Schema):
        # The text is for people; only the IPC message, which knows every type, is read back.
        ipc = base64.b64encode(value.serialize().to_pybytes()).decode()
        return {"text": {field.name: str(field.type) for field in value}, "ipc": ipc}
    if attrs.has(type(value)):
        return {field.name: _plain(getattr(value, field.name)) for field in attrs.fields(type(value))}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


@functools.lru_cache(maxsize=256)
def _read_schema(ipc: str) -> pa.Schema:
    # Nearly all parts have the same schema: it is decoded once and shared.
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(ipc)))
