"""What a viewer shows of a dataset directory besides its rows: read from files, also while a build writes them."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import msgspec

from ..columns.templates import compile_template
from ..errors import SeedbedError
from ..graph import Kind, build_graph
from ..observe.report import Usage
from ..observe.svg import layout_graph
from ..store.dataset import Dataset
from ..store.entries import Failed, Finished, Purpose
from ..store.history import history_runs, read_history
from ..store.journal import open_entries
from ..store.manifest import is_being_written, read

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from .queries import Table

# Rows of open row groups that are read from the journal, and drops that are listed.
_MAX_OPEN_ROWS = 20_000
_MAX_DROPS = 5_000
# Rows that give the distributions: fewer than for `Dataset.profile`, so that the page is quick.
_SAMPLE = 10_000
_MAX_GROUPS = 5_000
_MAX_COLUMNS = 1_000  # of a drawing


Signature: TypeAlias = tuple[int, ...]


def signatures(directory: Path) -> tuple[Signature, Signature]:
    """What changes when rows were added or the directory was replaced, and when only the journal grew; to compare."""
    manifests = _sizes(directory, "manifest.log", "stages/*/.seedbed/manifest.log")
    return manifests, _sizes(directory, "journal-*.log")


def _sizes(directory: Path, *patterns: str) -> Signature:
    found: list[int] = []
    for pattern in patterns:
        for path in sorted((directory / ".seedbed").glob(pattern)):
            with suppress(OSError):
                status = path.stat()
                found += [status.st_ino, status.st_size]
    return tuple(found)


@attrs.frozen(kw_only=True)
class Described:
    """The columns of a run, as the header of its event log has them."""

    header: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def columns(self) -> list[dict[str, Any]]:
        found = self.header.get("columns")
        listed = found if isinstance(found, list) else []
        return [each for each in listed if isinstance(each, dict) and isinstance(each.get("name"), str)]

    def outputs(self, column: str) -> list[str]:
        """The columns of the dataset that a column of the recipe fills."""
        for each in self.columns:
            if each["name"] == column and isinstance(each.get("outputs"), list):
                return [str(name) for name in each["outputs"]]
        return [column]

    def types(self) -> dict[str, str]:
        return {each["name"]: str(each.get("type") or "") for each in self.columns}

    def prompts(self, row: Mapping[str, Any]) -> dict[str, list[dict[str, str]]]:
        """The messages that each column's templates give for a row, as far as these can be rendered."""
        found: dict[str, list[dict[str, str]]] = {}
        for each in self.columns:
            messages = []
            for role, field in (("system", "system"), ("user", "prompt")):
                text = each.get(field)
                if isinstance(text, str):
                    with suppress(Exception):  # a value that the viewer has only the beginning of, say
                        template = compile_template(text, where=each["name"])
                        messages.append({"role": role, "content": template.render(row)})
            if messages:
                found[each["name"]] = messages
        return found


def describe(directory: Path) -> Described:
    """The columns as the last run that has a log had them."""
    runs = history_runs(directory)
    with suppress(OSError, SeedbedError):
        lines = read_history(directory, runs[-1]) if runs else []
        if lines and "columns" in lines[0]:
            return Described(header=lines[0])
    return Described()


def read_open_rows(directory: Path, described: Described, stage: str = "") -> list[dict[str, Any]]:
    """The rows of open row groups as far as they are generated, from the journal; `_row_group` is their row group."""
    rows: list[dict[str, Any]] = []
    with suppress(SeedbedError, OSError):
        for key, entries in sorted(open_entries(directory), key=lambda each: each[0].group):
            if key.purpose is not Purpose.BUILD or key.stage != stage:
                continue
            values: dict[int, dict[str, Any]] = {}
            dropped = set[int]()
            for entry in entries:
                if isinstance(entry, Failed) and entry.consequence == "dropped":
                    dropped.add(entry.row)
                elif isinstance(entry, Finished):
                    _take(values, entry, described.outputs(entry.column))
            rows += [values[at] | {"_row_group": key.group} for at in sorted(values.keys() - dropped)]
            if len(rows) >= _MAX_OPEN_ROWS:
                break
    return rows[:_MAX_OPEN_ROWS]


def _take(values: dict[int, dict[str, Any]], entry: Finished, outputs: Sequence[str]) -> None:
    if entry.row < 0:
        rows, columns = entry.value
        for name, column in zip(outputs, columns, strict=False):
            for row, value in zip(rows, column, strict=True):
                values.setdefault(row, {})[name] = value
    elif len(outputs) == 1 or not isinstance(entry.value, list | tuple):
        values.setdefault(entry.row, {})[outputs[0]] = entry.value
    else:
        values.setdefault(entry.row, {}).update(zip(outputs, entry.value, strict=False))


def overview(directory: Path, table: Table, described: Described) -> dict[str, Any]:
    """What every page of a dataset shows at its top."""
    dataset = table.dataset
    report = dataset.report
    header = read(dataset.path).header
    return {
        "path": str(directory),
        "title": str(described.header.get("title") or directory.resolve().name),
        "complete": dataset.complete,
        "running": is_being_written(directory),
        "rows": dataset.rows,
        "requested": report.requested,
        "counts": report.counts,
        "dropped": len(report.dropped),
        "unfinished": sum(map(len, report.unfinished)),
        "created": None if header is None else header.created,
        "bytes": sum(part.size for part in dataset.parts),
        "tokens": sum(used.tokens for used in report.usage.values()),
        "cost": sum(used.cost for used in report.usage.values()),
        "rejected": report.rejected,
        "stage": dataset.stage_name,
        "stages": list(dataset.stages),
        "conflicts": list(map(str, dataset.conflicts)),
        "columns": [
            {"name": name, "type": str(dtype)[:200], "shown": table.kinds[name]} | _recipe_fields(described, name)
            for name, dtype in dataset.schema.items()
        ],
    }


def _recipe_fields(described: Described, name: str) -> dict[str, Any]:
    for each in described.columns:
        if each["name"] == name:
            return {"made_by": each.get("type") or each.get("kind"), "model": each.get("model")} | (
                {"language": each["language"]} if each.get("language") else {}
            )
    return {}


def open_stage(directory: Path, stage: str = "") -> Dataset:
    """The dataset of a directory, or that of one of its stages."""
    dataset = Dataset.open(directory)
    return dataset.stage(stage) if stage else dataset


def statistics(directory: Path, stage: str = "") -> dict[str, Any]:
    """The statistics of the columns as JSON values."""
    found = open_stage(directory, stage).statistics(sample=_SAMPLE)
    fields = [{**attrs.asdict(each), "duplicates": each.duplicates, "tokens": each.tokens} for each in found.fields]
    return {"rows": found.rows, "sampled": found.sampled, "fields": fields, "correlations": found.correlations}


def origin(table: Table, number: int) -> dict[str, Any] | None:
    """Where a stored row came from: its number, seed row, and by column the model, attempts, tokens and cost."""
    try:
        found = table.dataset.provenance_of(number)
    except (SeedbedError, OSError):
        return None
    if not found:
        return None
    facts = {"_row": "row {:,} of the run", "_seed_row": "row {:,} of the seed file", "_copy": "copy {:,}"}
    named = [text.format(found[name]) for name, text in facts.items() if found.get(name) or name == "_row"]
    cells = [
        {"column": name.removesuffix("__provenance"), **value}
        for name, value in found.items()
        if name.endswith("__provenance") and isinstance(value, dict)
    ]
    return {"facts": named if found.get("_row") is not None else [], "cells": cells}


def drops(directory: Path, dataset: Dataset) -> dict[str, Any]:
    """Dropped rows by reason and column, each with its error and attempts, and the command that retries them."""
    found = dataset.drops
    retried = any(drop.kind in ("failed", "skipped") for drop in found)
    return {
        "total": len(found),
        "reasons": [
            {"column": column, "error": error, "kind": kind, "rows": count}
            for (column, error, kind), count in Counter((d.column, d.error, d.kind) for d in found).most_common(500)
        ],
        "rows": [msgspec.structs.asdict(drop) for drop in found[:_MAX_DROPS]],
        "retry": ["seedbed", "resume", str(directory), "--retry-dropped"] if retried else None,
        "resume": None if dataset.complete else ["seedbed", "resume", str(directory)],
    }


def cost(directory: Path, dataset: Dataset) -> dict[str, Any]:
    """Calls, tokens and cost by column, model and stage, of all runs, and wasted work of those that have a log.

    They are those of the whole directory for each of its stages; the dataset at the root has them all.
    """
    dataset = Dataset.open(directory) if dataset.path != dataset.root else dataset
    report = dataset.report
    lost: dict[str, dict[str, float]] = {}
    for run in history_runs(directory):
        with suppress(OSError, SeedbedError):
            for line in read_history(directory, run)[-1:]:
                ended = line.get("report")
                found = ended.get("wasted") if isinstance(ended, dict) else None
                for column, each in found.items() if isinstance(found, dict) else ():
                    total = lost.setdefault(column, {"calls": 0, "tokens": 0, "seconds": 0.0})
                    for name in total:
                        value = each.get(name) if isinstance(each, dict) else None
                        total[name] += value if isinstance(value, int | float) else 0
    rows = max(1, dataset.rows)

    def listed(usage: Mapping[str, Any], heading: str) -> list[dict[str, Any]]:
        return [
            {heading: name, **msgspec.structs.asdict(used), "per_1000_rows": used.cost / rows * 1000}
            for name, used in sorted(usage.items(), key=lambda item: -item[1].cost)
        ]

    stages: dict[str, Usage] = {}
    if dataset.stages:
        of_column = {each["name"]: each.get("stage") for each in describe(directory).columns}
        for column, used in report.usage.items():
            stage = of_column.get(column)
            if isinstance(stage, str) and stage in dataset.stages:
                stages[stage] = stages.get(stage, Usage()) + used
    return {
        "columns": listed(report.usage, "column"),
        "models": listed(report.model_usage, "model"),
        "stages": listed(stages, "stage"),
        "wasted": [{"column": name, **figures} for name, figures in lost.items()],
        "rows": dataset.rows,
    }


@attrs.frozen(kw_only=True)
class _Column:
    """What the graph reads of a column."""

    name: str
    kind: Kind
    requires: tuple[str, ...]
    outputs: tuple[str, ...]
    side_effects: tuple[str, ...] = ()
    allow_resize: bool = False
    repaired_by: str | None = None


def graph(directory: Path, dataset: Dataset, described: Described) -> dict[str, Any] | None:
    """The recipe as a drawing: boxes, with their figures, and edges with their places; None if no run has a log."""
    runs = history_runs(directory)
    figures: dict[str, Any] = {}
    for line in run_lines(directory, runs[-1]) if runs else []:
        if isinstance(line.get("columns"), dict):
            figures = line["columns"]
    for name, used in dataset.report.usage.items():
        figures[name] = {**figures.get(name, {}), "calls": used.calls, "tokens": used.tokens, "cost": used.cost}
    columns = []
    known = {output for each in described.columns for output in (each["name"], *described.outputs(each["name"]))}
    for each in described.columns[:_MAX_COLUMNS]:
        with suppress(ValueError, TypeError):
            kind = Kind(each.get("kind"))
            requires, outputs = (tuple(map(str, each.get(name) or ())) for name in ("requires", "outputs"))
            requires = tuple(name for name in requires if name in known)
            columns.append(_Column(name=each["name"], kind=kind, requires=requires, outputs=outputs or (each["name"],)))
    if not columns:
        return None
    try:
        found = build_graph(columns)
    except SeedbedError:
        return None
    labels = {}
    for each in described.columns:
        words = each.get("type") or str(each.get("kind", "")).replace("_", " ")
        labels[each["name"]] = f"{words} · {each['model']}" if each.get("model") else str(words)
    drawing = layout_graph(found, labels)
    for box in drawing["boxes"]:
        box["figures"] = figures.get(box["name"], {})
    return drawing


def run_lines(directory: Path, run: int) -> list[dict[str, Any]]:
    """The lines of a run's log; empty if there is none that can be read."""
    with suppress(OSError, SeedbedError):
        lines = read_history(directory, run)
        return [line for line in lines if isinstance(line.get("t", 0), int | float)]
    return []


def state(directory: Path) -> dict[str, Any]:
    """What of a live page is in the manifest and not in the event log: which row groups are finished."""
    try:
        manifest = read(directory)
    except SeedbedError as error:
        return {"exists": False, "why": str(error)}
    groups = [[group.index, group.rows, len(group.drops)] for group in manifest.current]
    count = manifest.expected_groups
    return {
        "exists": True,
        "running": is_being_written(directory),
        "complete": manifest.complete,
        "row_groups": count,
        # Beyond that many a strip has no room for each.
        "finished_groups": groups[-_MAX_GROUPS:],
        "written": sum(rows for _, rows, _ in groups),
        "dropped": sum(dropped for _, _, dropped in groups),
    }
