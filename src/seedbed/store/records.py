"""What the manifest says, one frozen class for each kind of record, and each as JSON and back."""

from __future__ import annotations

import base64
import functools
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import pyarrow as pa
from attrs.validators import and_, deep_iterable, ge, instance_of, lt, optional

from .dtypes import canonical
from .layout import Layout
from .schema import Conflict

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = 2

# Records are read from files of strangers: a field of another type must not get further than this.
_TEXT = instance_of(str)
_NAME = optional(_TEXT)
_COUNT = and_(instance_of(int), ge(0))
# Rows are counted with `len(range(...))`.
_ROWS = and_(_COUNT, lt(2**63))
_NUMBER = instance_of((int, float))
_SCHEMA = instance_of(pa.Schema)


def _all(each: Any) -> Any:
    return deep_iterable(each, instance_of(tuple))


def entry_of(*fields: Any) -> Any:
    """Return a validator of a tuple with one for each of its values."""

    def check(record: Any, attribute: Any, value: Any) -> None:
        if not isinstance(value, tuple) or len(value) != len(fields):
            raise ValueError(f"{attribute.name} has an entry that is not {len(fields)} values")
        for field, each in zip(fields, value, strict=True):
            field(record, attribute, each)

    return check


_CONFLICTS = _all(instance_of(Conflict))
# Column, model, calls, input tokens, output tokens, cost.
SPENT = _all(entry_of(_TEXT, _TEXT, _COUNT, _COUNT, _COUNT, _NUMBER))


@attrs.frozen(kw_only=True)
class Drop:
    """A row that is not in the dataset, and why.

    `row` is its number. Behind pre-batch processors rows are numbered by their position in what these returned;
    `copy` is 0, or 1, 2, … for rows that were added behind the last number of the row group.
    """

    row: int = attrs.field(validator=_COUNT)
    copy: int = attrs.field(default=0, validator=_COUNT)
    column: str = attrs.field(validator=_TEXT)
    attempts: int = attrs.field(validator=_COUNT)
    error: str = attrs.field(validator=_TEXT)
    # `failed`: a cell failed for good; `skipped`: the pre-batch processor of its row group failed.
    kind: str = attrs.field(validator=_TEXT)

    @property
    def reason(self) -> str:
        """Column and error, as reports group them."""
        return f"{self.column}: {self.error}"


@attrs.frozen(kw_only=True)
class PartRecord:
    """A parquet file of the dataset: how many rows, how many bytes, what they must hash to, and their types.

    `staged` is the name that the file has until it takes the place of one that was listed before under `name`.
    """

    name: str = attrs.field(validator=_TEXT)
    rows: int = attrs.field(validator=_ROWS)
    size: int = attrs.field(validator=_COUNT)
    checksum: str = attrs.field(validator=_TEXT)
    schema: pa.Schema = attrs.field(validator=_SCHEMA)
    staged: str | None = attrs.field(default=None, validator=_NAME)


@attrs.frozen(kw_only=True)
class Header:
    """What was asked for. `declared` holds the columns whose type was declared; `created` is wall time.

    `segments` are the numbers of rows that were asked for before the dataset was grown, as `Layout` has them.
    """

    rows: int = attrs.field(validator=_ROWS)
    buffer_size: int = attrs.field(validator=and_(_ROWS, ge(1)))
    segments: tuple[int, ...] = attrs.field(default=(), validator=_all(_ROWS))
    columns: tuple[str, ...] = attrs.field(validator=_all(_TEXT))
    declared: pa.Schema = attrs.field(factory=lambda: pa.schema([]), validator=_SCHEMA)
    fingerprint: Mapping[str, Any] = attrs.field(factory=dict, validator=instance_of(dict))
    # The recipe file that is kept beside the manifest, should that be lost.
    recipe: str | None = attrs.field(default=None, validator=_NAME)
    created: float = attrs.field(validator=_NUMBER)
    version: str = attrs.field(validator=_TEXT)
    format: int = attrs.field(default=FORMAT, validator=instance_of(int))

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

    index: int = attrs.field(validator=_COUNT)
    start: int = attrs.field(validator=_COUNT)
    stop: int = attrs.field(validator=_COUNT)
    part: PartRecord | None = attrs.field(default=None, validator=optional(instance_of(PartRecord)))
    drops: tuple[Drop, ...] = attrs.field(default=(), validator=_all(instance_of(Drop)))
    removed: int = attrs.field(default=0, validator=_COUNT)
    added: int = attrs.field(default=0, validator=_COUNT)
    conflicts: tuple[Conflict, ...] = attrs.field(default=(), validator=_CONFLICTS)
    skipped: str | None = attrs.field(default=None, validator=_NAME)
    revision: int = attrs.field(default=0, validator=_COUNT)
    # The number of the last commit to the journal before this: a journal that ends earlier has lost something.
    commits: int = attrs.field(default=0, validator=and_(_COUNT, lt(2**62)))

    @property
    def rows(self) -> int:
        """Rows in the part."""
        return self.part.rows if self.part else 0


@attrs.frozen(kw_only=True)
class Finished:
    """Every part now has this schema, but for the columns in conflict."""

    schema: pa.Schema = attrs.field(validator=_SCHEMA)
    conflicts: tuple[Conflict, ...] = attrs.field(default=(), validator=_CONFLICTS)


@attrs.frozen(kw_only=True)
class Processed:
    """The whole dataset as a processor after generation left it, beside the parts."""

    part: PartRecord = attrs.field(validator=instance_of(PartRecord))
    conflicts: tuple[Conflict, ...] = attrs.field(default=(), validator=_CONFLICTS)


@attrs.frozen(kw_only=True)
class Spending:
    """What all runs of this dataset have used up to here: (column, model, calls, input tokens, output tokens, cost)."""

    entries: tuple[tuple[str, str, int, int, int, float], ...] = attrs.field(validator=SPENT)


@attrs.frozen(kw_only=True)
class States:
    """The states of stateful generators when everything was made, for a dataset that grows: (name, base64)."""

    entries: tuple[tuple[str, str], ...] = attrs.field(validator=_all(entry_of(_TEXT, _TEXT)))

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
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(ipc)))
    if len(set(schema.names)) < len(schema.names):
        raise ValueError("a schema has two columns of one name")
    for field in schema:
        canonical(field.type)  # TypeError for what no writer stores: polars would panic
    return schema
