"""Read a dataset directory back as one table; store and read the task traces beside it."""

from __future__ import annotations

import importlib
import io
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
from polars.io.plugins import register_io_source

from ..errors import ConfigError, ManifestError, PartError, StoreError
from ..observe.html import rows_html
from ..observe.report import REJECTED, TRACE_SCHEMA, Ledger, drop_reasons, traces_frame
from .accepted import unplaced_rows
from .entries import Purpose
from .files import PRIVATE, STAGES, read_file, stage_folder, write_file
from .journal import inspect_journal
from .manifest import Manifest, read
from .parts import damage, open_part, part_errors, read_table
from .provenance import DROPPED_TYPES, IDENTITY, provenance_table, read_provenance
from .schema import Conflict, arrow_table, conflict_error, conform, stored_table
from .statistics import SAMPLE, Statistics, statistics
from .values import is_json, python_rows

# Rows that a notebook shows.
_SHOWN = 50

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from ..observe.report import BuildReport, Drop, TaskTrace
    from .manifest import GroupRecord, Header, Placed
    from .parts import PartRecord


class Dataset:
    """The finished rows of a directory, in declared row order and in one schema, as they were when it was opened.

    A directory whose build is still running, was stopped or was killed opens too and holds every finished row group.
    A complete dataset with after-generation processors has the rows that they returned, and `raw()` those before.
    """

    # The files that hold the rows, in row order.
    parts: tuple[PartRecord, ...]
    # The schema of all rows; a column in conflict has the type of the parts before the conflict.
    arrow_schema: pa.Schema
    # The columns whose values have no one type, and where.
    conflicts: tuple[Conflict, ...]

    def __init__(self, path: Path, manifest: Manifest, *, raw: bool = False, root: Path | None = None) -> None:
        self.path = path
        self.root = path if root is None else root  # of the directory, whose journal serves all stages
        self._manifest = manifest
        self._report: BuildReport | None = None
        # What was published before the dataset grew, or whose files are not all in the root yet, does not count.
        published = None if raw or manifest.finished is None else manifest.published
        if published is not None:
            self.parts, self.arrow_schema, self.conflicts = published.parts, published.schema, published.conflicts
            self._resized = published.resized
        else:
            self.parts = manifest.row_parts
            found = manifest.finished
            self.arrow_schema, self.conflicts = (found.schema, found.conflicts) if found else manifest.unified()
            self._resized = ()

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Dataset:
        """Open a directory; `ManifestError` if it holds no dataset."""
        return cls(Path(path), read(Path(path)))

    def raw(self) -> Dataset:
        """Return the dataset as generated, before the after-generation processors."""
        return Dataset(self.path, self._manifest, raw=True, root=self.root)

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages of its recipe, in order; empty if that has none."""
        return self._root_header.stages

    @property
    def _root_header(self) -> Header:
        header = (self._manifest if self.path == self.root else read(self.root)).header
        assert header is not None  # a manifest without one cannot be read
        return header

    @property
    def _header(self) -> Header:
        assert self._manifest.header is not None  # a manifest without one cannot be read
        return self._manifest.header

    @property
    def stage_name(self) -> str:
        """The stage that this is; empty if the recipe has none."""
        return self._header.stage

    @property
    def parent_stage(self) -> str | None:
        """The stage that its rows come from; None if they come from no other."""
        return None if self._header.source is None else self._header.source.stage

    def stage(self, name: str) -> Dataset:
        """The dataset of a stage, that of the root or another one; `KeyError` if the recipe has no such stage."""
        root = self._root_header
        if name not in root.stages:
            known = ", ".join(map(repr, root.stages)) or "none"
            raise KeyError(f"the dataset has no stage {name!r}; it has {known}")
        if name == root.stage:
            return Dataset.open(self.root)
        folder = stage_folder(name)
        for part in (STAGES, folder):
            if (self.root / part).is_symlink():
                raise StoreError(f"{part!r} in {str(self.root)!r} is a symbolic link, which is not followed")
        path = self.root / folder
        return Dataset(path, read(path), root=self.root)

    def joined(self) -> pl.DataFrame:
        """The rows with the columns of the rows that they were made from, and of those before.

        The numbers that join them are in `_row` and `_parent` of this stage, and `STAGE._row` and so on of the others.
        A row with several parents is there once for each. Without stages these are the rows.
        """
        return self._joined(())

    def _joined(self, below: tuple[str, ...]) -> pl.DataFrame:
        """The same for a stage from which those `below` are made."""
        if self.stage_name in below:
            raise ManifestError(f"the stages of {str(self.root)!r} are made from each other: no run wrote that")
        frame, source = self.to_polars(), self._header.source
        if source is None:
            return frame
        if source.stage not in self._root_header.stages:
            raise ManifestError(
                f"{str(self.root)!r} has rows of a stage {source.stage!r} that it lacks: no run wrote that"
            )
        parents = self.stage(source.stage)._joined((*below, self.stage_name))  # noqa: SLF001
        taken = {"_row", "_parent", "_k"}.union(frame.columns)
        parents = parents.rename({name: f"{source.stage}.{name}" for name in parents.columns if name in taken})
        if source.by is not None:
            parents = parents.drop(f"{source.stage}.{name}" for name in source.by)
            frame = frame.drop(source.stage).explode("_parent")
        number = f"{source.stage}._row"
        return frame.join(parents, left_on="_parent", right_on=number, how="left", maintain_order="left")

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(part.rows for part in self.parts)

    def __len__(self) -> int:
        return self.rows

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self.arrow_schema.names)

    @property
    def schema(self) -> pl.Schema:
        """The schema of all rows as polars has it."""
        return _frame(self.arrow_schema.empty_table()).schema

    @property
    def drops(self) -> tuple[Drop, ...]:
        """The rows that are not in the dataset and why, in row-group order; those that were rejected too."""
        dropped = (drop for group in self._manifest.current for drop in group.drops)
        duplicates = (drop for decision in self._manifest.decisions for _, drop in decision.rejected)
        return (*dropped, *duplicates)

    def dropped(self) -> pl.DataFrame:
        """Return the dropped rows in row order with the reasons and, once the build has finished, their finished cells.

        The columns `_row`, `_copy`, `_seed_row`, `_kind`, `_column`, `_reason`, `_code`, `_attempts` and `_cost` are
        those of `drops`; `_stage` is this stage, null if the recipe has none.
        """
        finished = self._manifest.finished
        if finished is None or finished.dropped is None:
            drops = sorted(self.drops, key=lambda drop: (drop.row, drop.copy))
            frame = _frame(arrow_table(dropped_columns(drops), DROPPED_TYPES)[0])
        else:
            frame = _frame(read_table(self.path, finished.dropped))
        stage = pl.repeat(self.stage_name or None, frame.height, dtype=pl.String, eager=True)
        return frame.insert_column(frame.get_column_index("_kind"), stage.alias("_stage"))

    def provenance(self) -> pl.DataFrame:
        """Return where each row came from: a row for each row of the dataset, in its order.

        `_row` is its number, `_copy` is above 0 for rows that a pre-batch processor added, `_seed_row` is the number of
        its row in the seed file. `NAME__provenance` has for each column that may call a model: the alias of the model
        that answered, attempts, calls, tokens, cost, seconds, and whether the answer is shared (`once_per`). Nulls are
        what cannot be known: rows that processors made, cells that were skipped.

        Of a dataset that after-generation processors returned it is that of the rows before them (`raw()`).
        """
        manifest = self._manifest
        if manifest.header is not None and manifest.header.candidates is not None:
            found = [self._provenance_of_placed(placed) for _, placed in sorted(manifest.placed.items())]
        else:
            found = [*map(self._provenance_of, manifest.current)]
        frame = _frame(pa.concat_tables([IDENTITY.empty_table(), *found], promote_options="default"))
        source = self.raw()
        names = [name for name in ("_parent", "_k") if name in source.columns]
        return frame.hstack(source.to_polars(names)) if names and source.rows == frame.height else frame

    def provenance_of(self, number: int) -> dict[str, Any]:
        """Return the row of `provenance` of one row, and read no more than its row group; empty if it is not known."""
        manifest = self._manifest
        if manifest.finished is not None and manifest.published is not None:
            return {}  # after-generation processors returned them
        left = number
        if manifest.header is not None and manifest.header.candidates is not None:
            for _, placed in sorted(manifest.placed.items()):
                if left < placed.stop - placed.start:
                    return dict(_frame(self._provenance_of_placed(placed).slice(left, 1)).row(0, named=True))
                left -= placed.stop - placed.start
        for group in manifest.current if manifest.header and manifest.header.candidates is None else ():
            if left < group.rows:
                return dict(_frame(self._provenance_of(group).slice(left, 1)).row(0, named=True))
            left -= group.rows
        return {}

    def _provenance_of(self, group: GroupRecord) -> pa.Table:
        if group.provenance is not None:
            return read_provenance(self.path, group.provenance).slice(0, group.rows)
        dropped = {drop.row for drop in group.drops}
        rows: list[int | None] = [row for row in range(group.start, group.stop) if row not in dropped]
        if len(rows) != group.rows:  # its file was damaged
            rows = [None] * group.rows
        return provenance_table([None if row is None else (row, 0) for row in rows], [None] * len(rows), {})

    def _provenance_of_placed(self, placed: Placed) -> pa.Table:
        decision = self._manifest.decisions[placed.decision]
        group = self._manifest.groups.get(decision.group)
        positions = decision.positions()[placed.start : placed.stop]
        if group is None or any(position >= group.rows for position in positions):  # its part was damaged
            count = placed.stop - placed.start
            return provenance_table([None] * count, [None] * count, {})
        return self._provenance_of(group).take(pa.array(positions, pa.int64()))

    @property
    def report(self) -> BuildReport:
        """The report of the build that returned this dataset, else what the directory has of it (see `BuildReport`)."""
        if self._report is None:
            self._report = self._stored_report()
        return self._report

    @report.setter
    def report(self, report: BuildReport | None) -> None:
        self._report = report

    def _stored_report(self) -> BuildReport:
        manifest, ledger = self._manifest, Ledger()
        header = manifest.header
        assert header is not None  # a manifest without one cannot be read
        ledger.drop(self.drops)
        for group in manifest.current:
            ledger.resize(group.resized)
            if group.skipped is not None:
                ledger.skipped.append(group.index)
        ledger.resize(self._resized)
        ledger.written = self.rows
        ledger.conflicts = list(map(str, self.conflicts))
        journal = inspect_journal(self.root, commits=manifest.commits)
        # The usage since the last checkpoint is in the journal only.
        used = (*manifest.usage, *(journal.usage if journal else ()))
        if self.path != self.root:
            # The latest figures of all stages are in the root; of this one they are those of its columns.
            own = header.fingerprint.get("uses", {})
            used = tuple(entry for entry in (*used, *read(self.root).usage) if entry[0] in own)
        ledger.take_over(used)
        layout = manifest.layout
        requested = header.rows if header.source is None else layout.rows
        if header.candidates is None:
            unfinished = layout.rows_of_others(group.index for group in manifest.current)
            return ledger.report(rows=requested, unfinished=unfinished)
        keys = () if journal is None else journal.groups
        recorded = {key.group for key in keys if key.purpose is Purpose.BUILD and key.stage == header.stage}
        begun = [layout.group_rows(index) for index in sorted(recorded - manifest.groups.keys())]
        candidates = sum(group.stop - group.start for group in manifest.groups.values()) + sum(map(len, begun))
        surplus = unplaced_rows(manifest)
        return ledger.report(rows=requested, candidates=candidates, surplus=surplus, unfinished=begun)

    @property
    def damaged_ranges(self) -> tuple[tuple[int, int], ...]:
        """The ranges of bytes of the manifest that cannot be read; row groups listed there are not in the dataset."""
        return self._manifest.damaged

    @property
    def complete(self) -> bool:
        """Whether the build finished and every row group is here."""
        return self._manifest.complete

    def __repr__(self) -> str:
        state = "complete" if self.complete else "incomplete"
        failed = [drop for drop in self.drops if drop.kind != REJECTED]
        by_reason = dict(Counter(drop.reason for drop in failed).most_common())
        drops = f", {len(failed)} dropped ({drop_reasons(by_reason)})" if by_reason else ""
        if rejected := len(self.drops) - len(failed):
            drops += f", {rejected} rejected"
        names = ", ".join(self.columns)
        return f"<Dataset {str(self.path)!r}: {self.rows} rows{drops}, {state}, columns {names}>"

    def _repr_html_(self) -> str:
        """The first rows, for notebooks."""
        conflicting = {conflict.column for conflict in self.conflicts}
        names = [name for name in self.columns if name not in conflicting]
        types = {name: "json" if is_json(dtype) else str(dtype) for name, dtype in self.schema.items() if name in names}
        rows = python_rows(self.head(_SHOWN, names)) if names else []
        return rows_html(types, rows, summary=repr(self).strip("<>"), total=self.rows)

    def scan(self, columns: Sequence[str] | None = None) -> pl.LazyFrame:
        """Return the rows as a lazy frame; `SchemaConflict` if a requested column has no one type."""
        schema = self._selected(columns)
        dtypes = _frame(schema.empty_table()).schema
        if not self.parts or not schema.names:
            return pl.LazyFrame(schema=dtypes)
        for part in self.parts:
            with part_errors(self.path, part):
                open_part(self.path, part).close()  # it is read later, while polars collects
        # Not `scan_parquet`: on some damaged files polars allocates what a length field says, which aborts the process.
        return register_io_source(
            lambda names, predicate, limit, _: self._batches(schema, names, predicate, limit), schema=dtypes
        )

    def to_polars(self, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Return the rows as a frame; `SchemaConflict` if a requested column has no one type."""
        return self._frame(columns)

    def iter_rows(self, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        """Yield each row as Python objects by column; `SchemaConflict` if a requested column has no one type.

        Documents of JSON columns are objects here; frames and arrow tables have their text.
        """
        schema = self._selected(columns)
        for part in self.parts if schema.names else ():
            with part_errors(self.path, part):
                rows = python_rows(_frame(self._read(part, schema)))
            yield from rows

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self.iter_rows()

    def head(self, count: int, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Return the first rows as a frame; errors are those of `to_polars`."""
        return self._frame(columns, limit=max(0, count))

    def profile(self) -> pl.DataFrame:
        """Return statistics of each column, a row for each, and of each number within a column of structs.

        Counts are those of all rows; distributions and diversity are those of an even sample of 20,000 rows. Columns
        whose values have no one type are left out.
        """
        return self.statistics().frame()

    def statistics(self, *, sample: int = SAMPLE) -> Statistics:
        """Return what `profile` shows, and the correlations of numbers; `sample` rows give the distributions."""
        conflicting = {conflict.column for conflict in self.conflicts}
        schema = self._selected([name for name in self.columns if name not in conflicting])
        frames = self._batches(schema, None, None, None) if schema.names else iter(())
        return statistics(frames, rows=self.rows, sample=sample)

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows as an arrow table; `SchemaConflict` if a requested column has no one type."""
        return pa.concat_tables([self._selected(columns).empty_table(), *self.tables(columns)])

    def tables(
        self, columns: Sequence[str] | None = None, *, start: int = 0, stop: int | None = None
    ) -> Iterator[pa.Table]:
        """Yield the rows from `start` to `stop` as arrow tables, one for each part; errors are those of `to_arrow`."""
        schema = self._selected(columns)
        first = 0  # row of the part
        for part in self.parts:
            low, high = max(start - first, 0), part.rows if stop is None else min(stop - first, part.rows)
            first += part.rows
            if low < high:
                yield self._read(part, schema).slice(low, high - low)

    def to_hf(self) -> Any:
        """Return the rows as a `datasets.Dataset` in memory, with JSON columns as text.

        `datasets.load_dataset(path)` reads the same rows from the files, for datasets larger than memory.
        """
        try:
            datasets: Any = importlib.import_module("datasets")
        except ImportError as error:
            raise ConfigError(f"to_hf needs the library datasets ({error}): install seedbed[hub]") from error
        return datasets.Dataset(stored_table(self.to_arrow()))

    def verify(self) -> None:
        """Read every file and compare it with its checksum; `PartError` names those that differ."""
        found = [wrong for part in self.parts if (wrong := self._wrong(part)) is not None]
        if found:
            raise PartError(f"in {str(self.path)!r}: {'; '.join(found)}")

    def damage(self) -> tuple[str, ...]:
        """Read every file, the manifest and the journal too; return one sentence for each damage and what it costs.

        Nothing is changed. `seedbed resume` generates again what is lost.
        """
        manifest = self._manifest
        found = list(manifest.damage)
        for group in manifest.in_order:
            if (wrong := self._wrong(group.part)) is not None:
                found.append(f"{wrong}; rows {group.start:,} to {group.stop - 1:,} are lost")
            others = map(self._wrong, (group.generated, group.provenance))
            found += [f"{wrong}; its row group is complete" for wrong in others if wrong]
        if manifest.placed:  # their rows are in the parts of row groups, too
            found += [f"{wrong}; it can be written again" for wrong in map(self._wrong, manifest.row_parts) if wrong]
        published = () if manifest.published is None else manifest.published.parts
        found += [f"{wrong}; the rows as generated are still there" for wrong in map(self._wrong, published) if wrong]
        if manifest.finished is not None and (wrong := self._wrong(manifest.finished.dropped)) is not None:
            found.append(f"{wrong}; the drop reasons are still there")
        is_root = self.path == self.root
        stages = [self.stage(name) for name in self.stages if name != self._header.stage] if is_root else []
        for stage in stages:
            found += [f"stage {stage._header.stage!r}: {each}" for each in stage.damage()]  # noqa: SLF001
        manifests = [manifest, *(stage._manifest for stage in stages)]  # noqa: SLF001
        journal = None
        if is_root:
            journal = inspect_journal(self.path, commits=max(each.commits for each in manifests))
        if journal is not None:
            is_damaged = any(each.damaged for each in manifests)
            lost = None if is_damaged else journal.missing_groups(sum(len(each.groups) for each in manifests))
            found += [*journal.damage, *([] if lost is None else [lost])]
        return tuple(found)

    def _wrong(self, part: PartRecord | None) -> str | None:
        try:
            return damage(self.path, part) if part is not None else None
        except OSError as error:
            return f"part {part.name!r} cannot be read: {error}" if part is not None else None

    def _selected(self, columns: Sequence[str] | None) -> pa.Schema:
        fields = {field.name: field for field in self.arrow_schema}
        names = list(fields if columns is None else columns)
        for name in names:
            if name not in fields:
                known = ", ".join(map(repr, fields))
                raise KeyError(f"the dataset has no column {name!r}; it has {known}")
        wanted = set(names)
        conflicts = [conflict for conflict in self.conflicts if conflict.column in wanted]
        if conflicts:
            raise conflict_error(conflicts)
        return pa.schema([fields[name] for name in names])

    def _read(self, part: PartRecord, schema: pa.Schema) -> pa.Table:
        table, conflicts = conform(read_table(self.path, part, schema.names), schema, part=part.name)
        if conflicts:
            raise conflict_error(conflicts)
        return table

    def _frame(self, columns: Sequence[str] | None, limit: int | None = None) -> pl.DataFrame:
        # Not `scan`: polars takes time quadratic in the number of columns to plan a query.
        schema = self._selected(columns)
        frames = [_frame(schema.empty_table())]
        if schema.names:
            frames += self._batches(schema, None, None, limit)
        return pl.concat(frames)

    def _batches(
        self, schema: pa.Schema, names: list[str] | None, predicate: pl.Expr | None, limit: int | None
    ) -> Iterator[pl.DataFrame]:
        """Yield part after part, cast, for polars, which leaves it to the source to select, limit and filter."""
        wanted = schema if names is None else pa.schema([schema.field(name) for name in names])
        for part in self.parts:
            if limit is not None and limit <= 0:
                return
            with part_errors(self.path, part):
                frame = _frame(self._read(part, wanted))
            if limit is not None:
                frame = frame.head(limit)
                limit -= frame.height
            yield frame if predicate is None else frame.filter(predicate)


def dropped_columns(drops: Sequence[Drop]) -> dict[str, list[Any]]:
    """Return what is known of every dropped row, as the columns of `Dataset.dropped`."""
    fields = {"_reason": "error"}
    return {name: [getattr(drop, fields.get(name, name[1:])) for drop in drops] for name in DROPPED_TYPES}


def _frame(table: pa.Table) -> pl.DataFrame:
    frame: Any = pl.from_arrow(table)
    return frame  # type: ignore[no-any-return]


# Not parquet, so that a pattern over the directory's parquet files does not match them.
TRACES = f"{PRIVATE}/traces"
_TRACE_NAME = re.compile(r"run_([0-9]{4,9})\.arrow", re.ASCII)


def save_traces(traces: Sequence[TaskTrace], dataset: Path) -> Path:
    """Store the traces of one run with its dataset; each run of a dataset has a file of its own."""
    number = 1 + max(_runs(dataset), default=0)
    name = f"{TRACES}/run_{number:04}.arrow"
    content = io.BytesIO()
    traces_frame(traces).write_ipc(content, compression="zstd")
    try:
        write_file(dataset, name, content.getvalue())
    except OSError as error:
        raise StoreError(f"the traces cannot be stored in {str(dataset)!r}: {error}") from error
    return dataset / name


def load_traces(dataset: Path) -> pl.DataFrame:
    """The traces of all runs of a dataset that were stored, a row for each task; empty if none were."""
    frames = [pl.DataFrame(schema=TRACE_SCHEMA)]
    for _, name in sorted(_runs(dataset).items()):
        try:
            found = pl.read_ipc(io.BytesIO(read_file(dataset, f"{TRACES}/{name}")))
        except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            # Polars panics on some damaged files, and a panic is no `Exception`.
            reason = str(error).partition("\n")[0]
            raise StoreError(f"the traces {name!r} in {str(dataset)!r} cannot be read: {reason}") from error
        if found.schema != TRACE_SCHEMA:
            raise StoreError(f"the traces {name!r} in {str(dataset)!r} have other columns than a run writes")
        frames.append(found)
    return pl.concat(frames)


def _runs(dataset: Path) -> dict[int, str]:
    """The files of traces, by the number of the run."""
    folder = dataset / TRACES
    names = [path.name for path in folder.iterdir()] if folder.is_dir() and not folder.is_symlink() else []
    return {int(found[1]): name for name in names if (found := _TRACE_NAME.fullmatch(name))}
