"""`seedbed inspect`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import attrs
import msgspec
from cyclopts import Parameter

from .options import Flag, Machine, open_dataset

if TYPE_CHECKING:
    import polars as pl

    from ..observe.report import ColumnProfile
    from ..store.dataset import Dataset
    from ..store.manifest import Manifest
    from ..store.statistics import Statistics


def inspect(
    directory: Path,
    /,
    *,
    stage: str | None = None,
    sample: Annotated[int, Parameter(name=["--sample", "-n"])] = 3,
    dropped: Flag = False,
    columns: Flag = False,
    profile: Flag = False,
    verify: Flag = False,
    machine: Machine = Machine(),
) -> int:
    """Show the rows, drops by reason, cost and schema of a dataset directory, and a sample.

    Parameters
    ----------
    directory
        The directory of a dataset, finished or not.
    stage
        Show this stage of a dataset of several, and not that at its root.
    sample
        The number of rows to show.
    dropped
        Show the dropped and rejected rows: why, after how many attempts, and what they cost; all of them with --json.
    columns
        Show statistics of each column: nulls, distinct values, lengths, diversity of texts, correlations.
    profile
        Show where the time went, for runs with --trace or --profile.
    verify
        Read every file, including the journal, and report damage and what it costs; nothing is changed.

    """
    from ..observe.report import profile_frame
    from ..store.dataset import load_traces
    from ..store.manifest import is_being_written, read
    from ..store.values import python_rows
    from . import output
    from .exit_codes import ExitCode

    dataset = open_dataset(directory, stage)
    found = _facts(dataset, read(dataset.path))
    found["running"] = is_being_written(directory)
    damage = dataset.damage() if verify else ()
    code = ExitCode.BAD_DATASET if damage else ExitCode.OK
    if verify:
        found["damage"] = list(damage)
    conflicting = {conflict.column for conflict in dataset.conflicts}
    usable = [name for name in dataset.columns if name not in conflicting]
    rows = [] if damage else python_rows(dataset.head(sample, usable))
    profiles = profile_frame(load_traces(directory)) if profile else []
    if machine.json:
        more: dict[str, Any] = {"profile": list(map(attrs.asdict, profiles))} if profile else {}
        more |= {"dropped_rows": dataset.dropped().to_dicts()} if dropped else {}
        more |= {"columns": attrs.asdict(dataset.statistics())} if columns else {}
        output.print_json({**found, "sample": rows, **more})
        return code
    _print_facts(found)
    output.print_records(rows)
    if dropped:
        _print_dropped(dataset.dropped())
    if columns:
        _print_statistics(dataset.statistics())
    if profile and not profiles:
        output.print_line("this directory has no traces: run with --profile or --trace FILE", error=True)
    elif profile:
        _print_profile(profiles)
    return code


def _facts(dataset: Dataset, manifest: Manifest) -> dict[str, Any]:
    from ..store.journal import inspect_journal
    from ..store.values import is_json
    from . import output

    assert manifest.header is not None  # a manifest without one cannot be read
    journal = inspect_journal(dataset.root, commits=manifest.commits)
    # The usage since the last checkpoint is in the journal only.
    used = {(column, model): each for column, model, each in manifest.usage}
    for column, model, each in journal.usage if journal else ():
        used[column, model] = max(each, used.get((column, model), each), key=lambda usage: usage.calls)
    usage: list[dict[str, Any]] = [
        {"column": column, "model": model, **msgspec.structs.asdict(each)} for (column, model), each in used.items()
    ]
    report = dataset.report
    return {
        "path": str(dataset.path),
        "complete": dataset.complete,
        "redoing": None if manifest.pending is None or manifest.pending.redo is None else manifest.pending.redo.text,
        "rows": dataset.rows,
        **output.counts_data(report),
        "summary": report.counts,
        "stages": {name: dataset.stage(name).report.counts for name in dataset.stages},
        "row_groups": len(manifest.current),
        "row_groups_requested": manifest.expected_groups,
        "bytes": sum(part.size for part in dataset.parts),
        "journal_entries": sum(journal.groups.values()) if journal else 0,
        "skipped_row_groups": {str(index): group.skipped for index, group in manifest.groups.items() if group.skipped},
        "usage": usage,
        "cost": sum(entry["cost"] for entry in usage),
        "schema": {name: "json" if is_json(dtype) else str(dtype) for name, dtype in dataset.schema.items()},
        "conflicts": [str(conflict) for conflict in dataset.conflicts],
        "damaged_manifest_bytes": list(map(list, dataset.damaged_ranges)),
    }


def _print_facts(found: dict[str, Any]) -> None:
    from rich.filesize import decimal

    from ..observe.progress import money
    from . import output
    from .run import resume_command

    print = output.console().print  # noqa: A001
    state = "complete" if found["complete"] else "not complete"
    print(f"{found['path']}: {state}", markup=False, style="bold")
    print(f"{found['summary']}, {decimal(found['bytes'])} of parquet", markup=False)
    for name, counts in found["stages"].items():
        print(f"stage {name}: {counts}", markup=False)
    print(f"{found['row_groups']:,} of {found['row_groups_requested']:,} row groups")
    if found["acceptance_rate"] is not None and found["cost_per_row"]:
        print(f"cost of a row, rejected candidates included: {money(found['cost_per_row'])}")
    if found["journal_entries"]:
        print(f"{found['journal_entries']:,} finished or failed tasks of open row groups in the journal")
    if found["running"]:
        print("a run is writing it now")
    elif found["redoing"] is not None:
        print(f"unfinished redo of {found['redoing']}; to resume: {resume_command(found['path'])}", markup=False)
        print(f"to take it back: seedbed redo {shlex.quote(found['path'])} --abandon", markup=False)
    elif not found["complete"]:
        print(f"to resume: {resume_command(found['path'])}", markup=False)
    for sentence in found.get("damage", ()):
        print(f"damage: {sentence}", markup=False, style="red")
    if found.get("damage"):
        print(f"to generate the lost rows again: {resume_command(found['path'])}", markup=False)
    elif "damage" in found:
        print("every file was read: no damage")
    for index, reason in found["skipped_row_groups"].items():
        print(f"row group {index} was skipped: {reason}", markup=False)
    if found["drops_by_reason"]:
        output.print_drops(found["drops_by_reason"])
    for conflict in found["conflicts"]:
        print(f"conflict: {conflict}", markup=False, style="yellow")
    if found["damaged_manifest_bytes"] and "damage" not in found:
        print(f"damaged bytes of the manifest: {found['damaged_manifest_bytes']}", style="red")
    if found["usage"]:
        rows = [list(entry.values()) for entry in found["usage"]]
        output.print_table([head.replace("_", " ") for head in found["usage"][0]], rows, title="usage")
    output.print_table(("column", "type"), found["schema"].items(), title="schema")


def _print_statistics(found: Statistics) -> None:
    from . import output

    def share(part: float, whole: float) -> str:
        return f"{part / whole:.1%}" if whole else "–"

    def figure(value: float | None) -> str:
        return "–" if value is None else f"{value:,.2f}".removesuffix(".00")

    rows = []
    for each in found.fields:
        texts = each.diversity
        rows.append(
            (
                each.name,
                each.kind,
                share(each.nulls, each.rows),
                each.distinct,
                figure(each.mean),
                figure(each.median),
                f"{figure(each.minimum)} to {figure(each.maximum)}" if each.minimum is not None else "–",
                "–" if texts is None else f"{texts.distinct_2:.0%}",
                "–" if texts is None else f"{texts.near_duplicates:.0%}",
                ", ".join(f"{value[:24]} ({count:,})" for value, count in each.top[:3]) or "–",
            )
        )
    heads = ("column", "kind", "nulls", "distinct", "mean", "median", "range", "pairs", "near-dup.", "most frequent")
    title = f"columns of {found.rows:,} rows; of texts and lists the length; distributions of {found.sampled:,} rows"
    output.print_table(heads, rows, title=title)
    if strong := [pair for pair in found.correlations if abs(pair[2]) >= 0.3]:
        strong.sort(key=lambda pair: -abs(pair[2]))
        output.print_table(("column", "with", "correlation"), strong[:20], title="correlations of at least 0.3")


# Dropped rows that are listed one by one.
_LISTED = 50


def _print_dropped(dropped: pl.DataFrame) -> None:
    """Dropped rows by kind of failure, and the first of them one by one."""
    import polars as pl

    from ..observe.progress import money
    from . import output

    if not dropped.height:
        output.print_line("no row was dropped")
        return
    kinds: dict[tuple[str, str, str], tuple[int, float]] = {}
    for kind, column, code, cost in dropped.select("_kind", "_column", "_code", "_cost").iter_rows():
        rows, total = kinds.get((kind, column, code), (0, 0.0))
        kinds[kind, column, code] = rows + 1, total + cost
    most = sorted(kinds.items(), key=lambda each: -each[1][0])
    heads = ("kind", "column", "code", "rows", "cost")
    lines = [(*names, rows, money(cost)) for names, (rows, cost) in most]
    output.print_table(heads, lines, title="dropped rows")
    names = ("_row", "_seed_row", "_stage", "_kind", "_column", "_code", "_attempts", "_cost", "_reason")
    titles = [name[1:].replace("_", " ") for name in names]
    shown = dropped.select(names).head(_LISTED).with_columns(pl.col("_cost").map_elements(money, pl.String))
    more = f", the first {_LISTED} of {dropped.height:,}" if dropped.height > _LISTED else ""
    output.print_table(titles, shown.iter_rows(), title=f"each of them{more}")


_PARTS = ("queue", "slot", "permit", "call", "parse")


def _print_profile(profiles: list[ColumnProfile]) -> None:
    from . import output

    rows = [
        (
            found.column,
            found.tasks,
            found.failed,
            *(f"{getattr(found, part):,.3f} ({getattr(found, part) / (found.total or 1):.0%})" for part in _PARTS),
            found.longest,
        )
        for found in profiles
    ]
    heads = ("column", "tasks", "failed", *_PARTS, "longest task")
    output.print_table(heads, rows, title="where time went, in seconds of all tasks together")
