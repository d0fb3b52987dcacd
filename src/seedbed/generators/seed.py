"""Rows of files and frames, read by DuckDB a batch at a time."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa

from ..errors import ConfigError, Permanent
from ..graph import Kind
from ..recipe.seed import Seed
from .column import Column
from .registry import Environment, maker
from .seed_source import SeedSource, first_lines, literal

if TYPE_CHECKING:
    from collections.abc import Iterator

# Rows that are taken from DuckDB at once: it works in vectors of 2,048.
_BATCH = 8_192
# Sorting spills to disk above this, so that a shuffle needs no more memory for a larger file.
_SORT_MEMORY = "512MB"
_NUMBER = "seedbed row number"


@maker(Seed)
def make_seed(spec: Seed, environment: Environment) -> Column:
    """The columns of a file or frame, all filled by one reader."""
    source = SeedSource(spec, environment)
    return Column(
        spec.name,
        SeedReader(source, environment.seed),
        kind=Kind.FROM_SCRATCH,
        outputs=source.outputs,
        dtype={**source.dtypes, **_dtypes(spec, source)},
        timeout=spec.timeout,
    )


def _dtypes(spec: Seed, source: SeedSource) -> dict[str, Any]:
    """The types that the spec says: by column, or one where there is one column."""
    if spec.dtype is None:
        return {}
    if isinstance(spec.dtype, Mapping):
        return dict(spec.dtype)
    if len(source.outputs) > 1:
        raise ConfigError(f"column {spec.name!r}: dtype must be a mapping from columns to types, not {spec.dtype!r}")
    return {source.outputs[0]: spec.dtype}


class SeedReader:
    """One cursor over the rows. The engine calls it in the order of row groups, one call at a time.

    A call for other rows than the next ones moves the cursor, so a resume gets exactly the rows that it would have got.
    """

    is_stateful = True
    replays = False

    def __init__(self, source: SeedSource, seed: int) -> None:
        self._source = source
        self._seed = seed
        # All changed by `generate` only.
        self._next: int | None = None  # the row of the dataset that the cursor is at, if it is anywhere
        self._stream: Iterator[pa.RecordBatch] = iter(())
        self._left: pa.RecordBatch | None = None  # what of the last batch is not handed out
        self._connection: duckdb.DuckDBPyConnection | None = None
        # What was read since the first row, as long as it is little: data that ends there is read once, however often
        # it begins again.
        self._read: list[pa.RecordBatch] | None = None
        self._whole: pa.Table | None = None
        self._shuffled: Path | None = None  # the temporary file, once there is one

    @property
    def available(self) -> int | None:
        """How many rows there can be; None if they begin again."""
        return None if self._source.spec.cycle else len(self._source.rows)

    def tell_content(self) -> str | None:
        """What stands for the data in the fingerprint of a build; None where the recipe itself holds it."""
        return self._source.content()

    def generate(self, rows: range) -> pl.DataFrame:
        """The values for these rows of the dataset."""
        try:
            if rows.start != self._next:
                self._seek(rows)
            # Where the cursor is while something may fail is not known.
            self._next = None
            batches = list(self._take(rows))
        except (duckdb.Error, pa.ArrowException, OSError) as error:  # arrow passes on what DuckDB met, in its own words
            raise Permanent(self._message(f"cannot be read: {first_lines(error)}")) from error
        self._next = rows.stop
        frame = pl.from_arrow(pa.Table.from_batches(batches))
        assert isinstance(frame, pl.DataFrame)
        return frame

    def _take(self, rows: range) -> Iterator[pa.RecordBatch]:
        missing = len(rows)
        is_fresh = False  # whether the cursor was put back to the beginning and gave nothing since
        while missing:
            batch = self._left if self._left is not None else self._read_batch()
            if batch is None:
                if not self._source.spec.cycle or is_fresh:
                    raise self._exhausted(rows)
                self._open(0)
                is_fresh = True
                continue
            taken = batch.slice(0, missing)
            self._left = batch.slice(taken.num_rows) if taken.num_rows < batch.num_rows else None
            missing -= taken.num_rows
            is_fresh = is_fresh and not taken.num_rows
            yield taken

    def _read_batch(self) -> pa.RecordBatch | None:
        batch = next(self._stream, None)
        if self._read is not None:
            if batch is None:
                self._whole, self._read = pa.Table.from_batches(self._read) if self._read else None, None
            elif batch.num_rows + sum(each.num_rows for each in self._read) > _BATCH:
                self._read = None
            else:
                self._read.append(batch)
        return batch

    def _seek(self, rows: range) -> None:
        row = rows.start
        # Only a resume, or a call made again, comes here with another row than the first: only then rows are counted.
        if row and self._source.spec.cycle:
            row %= len(self._source.rows)
        self._open(row)

    def _open(self, row: int) -> None:
        """Put the cursor on a row, counted from the first one that is used."""
        self._left = None
        if self._whole is not None:
            self._stream = iter(self._whole.slice(row).to_batches())
            return
        if self._connection is not None:
            self._connection.close()
        source = self._source
        if source.spec.order == "ordered":
            sql = source.query(row)
        else:
            sql = f"SELECT * FROM read_parquet({literal(self._shuffle())}) OFFSET {row}"
        self._read = None if row else []
        self._connection = source.connect()
        self._stream = iter(self._connection.sql(sql).to_arrow_reader(_BATCH))

    def _shuffle(self) -> Path:
        """The rows in another order, in a temporary file that is gone when the reader is.

        Sorted by a hash of the seed and the number of each row: md5, because DuckDB's own hash may be another one in
        its next version.
        """
        if self._shuffled is None:
            source = self._source
            folder = Path(tempfile.mkdtemp(prefix="seedbed-shuffle-"))
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            path = folder / "rows.parquet"
            key = f"md5_number_lower('{self._seed}:' || \"{_NUMBER}\")"
            numbered = f'SELECT *, row_number() OVER () AS "{_NUMBER}" FROM ({source.query(0)})'
            ordered = f'SELECT * EXCLUDE ("{_NUMBER}") FROM ({numbered}) ORDER BY {key}, "{_NUMBER}"'
            with source.connect() as connection:
                connection.execute(f"SET memory_limit = '{_SORT_MEMORY}'")
                connection.execute(f"SET temp_directory = {literal(folder / 'spill')}")
                connection.execute(f"COPY ({ordered}) TO {literal(path)} (FORMAT parquet, ROW_GROUP_SIZE 10240)")
                connection.execute("RESET memory_limit")
            self._shuffled = path
        return self._shuffled

    def _exhausted(self, rows: range) -> Permanent:
        return Permanent(
            self._message(f"has {len(self._source.rows)} rows for this column, and row {rows.stop - 1} is asked for")
            + ": ask for fewer rows, or set cycle to true"
        )

    def _message(self, problem: str) -> str:
        return f"column {self._source.spec.name!r}: {self._source.label} {problem}"
