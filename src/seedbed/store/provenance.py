"""Where the rows of a dataset came from: the tables of `.seedbed/provenance/`, one for each row group.

The first rows of a table are those of the part, in its order; rows that post-batch processors removed follow. A row
that such a processor made, or changed so much that it cannot be recognised, has nulls.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

import attrs
import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from ..observe.report import Origin
from .files import PRIVATE
from .parts import part_errors, read_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from .entries import Identity
    from .parts import PartRecord

FOLDER = f"{PRIVATE}/provenance"
# Of each row: its number and copy as `Drop` has them, and the number of its row in the seed file.
IDENTITY = pa.schema([("_row", pa.int64()), ("_copy", pa.int64()), ("_seed_row", pa.int64())])
_TYPES: dict[str, pa.DataType] = {
    "model": pa.large_string(),
    "attempts": pa.int64(),
    "calls": pa.int64(),
    "input_tokens": pa.int64(),
    "output_tokens": pa.int64(),
    "cached_tokens": pa.int64(),
    "cost": pa.float64(),
    "seconds": pa.float64(),
    "shared": pa.bool_(),
}
ORIGIN = pa.struct([pa.field(name, _TYPES[name]) for name in Origin.__struct_fields__])
# The columns of `Dataset.dropped` that are not cells.
DROPPED_TYPES: dict[str, pa.DataType] = {
    "_row": pa.int64(),
    "_copy": pa.int64(),
    "_seed_row": pa.int64(),
    **dict.fromkeys(("_kind", "_column", "_reason", "_code"), pa.large_string()),
    "_attempts": pa.int64(),
    "_cost": pa.float64(),
}
_NONE = Origin("", 0, 0, 0, 0, 0, 0.0, 0.0)
_SUFFIX = "__provenance"


def provenance_name(index: int) -> str:
    """Return the file name of the provenance of a row group."""
    return f"{FOLDER}/batch_{index:07d}.part"


def column_name(column: str) -> str:
    """Return the name of the provenance of a column."""
    return f"{column}{_SUFFIX}"


def provenance_columns(columns: Iterable[str]) -> dict[str, pa.DataType]:
    """Return the columns that a dataset has in addition with the option `provenance`, of these that make calls."""
    return {**{field.name: field.type for field in IDENTITY}, **{column_name(each): ORIGIN for each in columns}}


def provenance_table(
    identities: Sequence[Identity | None],
    seed_rows: Sequence[int | None],
    origins: Mapping[str, Sequence[Origin | None]],
) -> pa.Table:
    """Return the provenance of rows: which they are, their rows of the seed file, the origins of cells by column."""
    arrays: dict[str, Any] = {
        "_row": pa.array([None if each is None else each[0] for each in identities], pa.int64()),
        "_copy": pa.array([None if each is None else each[1] for each in identities], pa.int64()),
        "_seed_row": pa.array(seed_rows, pa.int64()),
    }
    for column, values in origins.items():
        arrays[column_name(column)] = _origin_array(values)
    return pa.table(arrays)


def _origin_array(values: Sequence[Origin | None]) -> pa.StructArray:
    # By field, because a conversion of each value takes ten times as long.
    rows = [msgspec.structs.astuple(_NONE if each is None else each) for each in values]
    fields = [*zip(*rows, strict=True)] or [()] * len(_TYPES)
    arrays = [pa.array(found, _TYPES[name]) for name, found in zip(Origin.__struct_fields__, fields, strict=True)]
    seconds = Origin.__struct_fields__.index("seconds")
    # To the millisecond: the digits beyond it would be most of the file.
    arrays[seconds] = pc.round(arrays[seconds], ndigits=3)
    missing = pa.array([each is None for each in values], pa.bool_())
    return pa.StructArray.from_arrays(arrays, fields=list(ORIGIN), mask=missing)


def joined(old: pa.Table | None, old_rows: int, new: pa.Table, new_rows: int, order: Sequence[int]) -> pa.Table:
    """Return the provenance of a part with its `old_rows` and `new_rows` that were added, in this `order`."""
    before = IDENTITY.empty_table() if old is None else old.slice(0, old_rows)
    if before.num_rows < old_rows:
        missing = old_rows - before.num_rows
        nulls = {field.name: pa.nulls(missing, field.type) for field in before.schema}
        before = pa.concat_tables([before, pa.table(nulls)])
    both = pa.concat_tables([before, new.slice(0, new_rows)], promote_options="default")
    rest = new.slice(new_rows)
    return pa.concat_tables([both.take(pa.array(order, pa.int64())), rest], promote_options="default")


def is_provenance(name: str) -> bool:
    """True if a column is one that the option `provenance` adds."""
    return name in IDENTITY.names or name.endswith(_SUFFIX)


def read_provenance(directory: Path, part: PartRecord) -> pa.Table:
    """Return a table of provenance; `PartError` if it cannot be read or is none."""
    table = read_table(directory, part)
    columns = []
    with part_errors(directory, part):
        names = [*IDENTITY.names, *(each for each in table.column_names if each not in IDENTITY.names)]
        for name in names:
            if not is_provenance(name):
                raise ValueError(f"it has the column {name!r}")
            # Parquet has no large lists and texts: what is read may differ in that.
            columns.append(table[name].cast(IDENTITY.field(name).type if name in IDENTITY.names else ORIGIN))
        return pa.Table.from_arrays(columns, names=names)


@attrs.frozen(kw_only=True)
class Provenance:
    """The provenance of a row group, by the identity of its rows."""

    _origins: Mapping[str, Mapping[Identity, Origin]] = attrs.field(factory=dict)
    seed_rows: Mapping[Identity, int | None] = attrs.field(factory=dict)

    @classmethod
    def of(cls, table: pa.Table) -> Provenance:
        """Read a table."""
        pairs = zip(table["_row"].to_pylist(), table["_copy"].to_pylist(), strict=True)
        identities = [None if row is None or copy is None else (row, copy) for row, copy in pairs]
        seeds = zip(identities, table["_seed_row"].to_pylist(), strict=True)
        origins: dict[str, dict[Identity, Origin]] = {}
        for name in table.column_names:
            if name not in IDENTITY.names:
                found = zip(identities, table[name].to_pylist(), strict=True)
                origins[name.removesuffix(_SUFFIX)] = {
                    identity: msgspec.convert([value[field] for field in Origin.__struct_fields__], Origin)
                    for identity, value in found
                    if identity is not None and value is not None
                }
        return cls(origins=origins, seed_rows={each: seed for each, seed in seeds if each is not None})

    def origins_of(self, column: str, identities: Sequence[Identity]) -> list[Origin | None]:
        """The origins of the cells of a column in these rows; empty if it has none."""
        known = self._origins.get(column)
        return [] if known is None else [known.get(each) for each in identities]


def match_rows(before: pl.DataFrame, after: pl.DataFrame) -> list[int | None]:
    """Return for each row that a processor returned its position before, or None if that cannot be known.

    Rows are recognised by their values in the columns that both have. Of rows that are equal there, each counts once.
    """
    columns = [
        name for name, dtype in after.schema.items() if before.schema.get(name) == dtype and not dtype.is_object()
    ]
    try:
        old, new = row_hashes(before, columns), row_hashes(after, columns)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):  # of a type that has no hash
        columns = []
    if not columns:
        return [None] * after.height
    return match_hashes(old, new, are_whole=len(columns) == before.width)


def match_hashes(old: Sequence[int], new: Sequence[int], *, are_whole: bool) -> list[int | None]:
    """As `match_rows`, by hashes of the rows; `are_whole` if these are of all columns that the rows had before."""
    if old == new:
        return [*range(len(old))]
    places: defaultdict[int, deque[int]] = defaultdict(deque)
    for at, value in enumerate(old):
        places[value].append(at)
    found: list[int | None] = []
    for value in new:
        equal = places.get(value)
        if not equal or (len(equal) > 1 and not are_whole):
            found.append(None)
        else:
            # The last one stands for copies too.
            found.append(equal.popleft() if len(equal) > 1 else equal[0])
    return found


def row_hashes(frame: pl.DataFrame, columns: Sequence[str]) -> list[int]:
    """Return a hash of each row in these columns: equal for equal rows, whichever frame of these types they are in."""
    return frame.select(columns).hash_rows(0).to_list()
