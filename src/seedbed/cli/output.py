"""What commands print: tables and records for people, JSON for machines."""

from __future__ import annotations

import base64
import datetime
import json
import math
import sys
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ..observe.panel import PipeConsole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import Console

    from ..observe.report import BuildReport, Spent

# A cell of a record is cut after so many characters; the dataset has it all.
_LONGEST = 1_000


def console(*, error: bool = False) -> Console:
    """Standard output, or standard error; wide where nobody sees it, so that nothing is folded for a pipe."""
    stream = sys.stderr if error else sys.stdout
    return PipeConsole(file=stream, highlight=False, soft_wrap=False, width=None if stream.isatty() else 160)


def print_json(value: Any) -> None:
    """Write one JSON value on a line of its own."""
    json.dump(value, sys.stdout, default=plain, ensure_ascii=False)
    sys.stdout.write("\n")


def plain(value: Any) -> Any:
    """What JSON has no word for, as text."""
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)


def finite(value: Any) -> Any:
    """The same value without numbers that JSON cannot hold: they are null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return value


def print_records(rows: Iterable[Mapping[str, Any]], *, first: int = 0) -> None:
    """Show rows one below the other, a line or more for each column."""
    out = console()
    for number, row in enumerate(rows, start=first):
        table = Table(show_header=False, title=f"row {number}", title_justify="left", title_style="bold", expand=False)
        table.add_column(style="cyan", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in row.items():
            table.add_row(escape(name), _cell(value))
        out.print(table)


def _cell(value: Any) -> Text:
    if value is None:
        return Text("null", style="dim")
    text = value if isinstance(value, str) else json.dumps(finite(value), default=plain, ensure_ascii=False)
    return Text(text if len(text) <= _LONGEST else text[:_LONGEST] + " …")


def print_table(heads: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
    """Show a table; columns of numbers are set to the right."""
    listed = [tuple(row) for row in rows]
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for at, head in enumerate(heads):
        numbers = bool(listed) and all(isinstance(row[at], int | float) or row[at] is None for row in listed)
        table.add_column(head, justify="right" if numbers else "left", overflow="fold", header_style="dim")
    for row in listed:
        table.add_row(*(Text(_number(value)) for value in row))
    console().print(table)


def _number(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.3f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def report_data(report: BuildReport) -> dict[str, Any]:
    """A report as JSON values."""
    return {
        "rows": report.rows,
        "written": report.written,
        "dropped": len(report.dropped),
        "drops_by_reason": report.drops_by_reason,
        "removed": report.removed,
        "added": report.added,
        "unfinished": sum(len(each) for each in report.unfinished),
        "skipped_row_groups": list(report.skipped_row_groups),
        "attempts": dict(report.attempts),
        "errors": dict(report.errors),
        "usage": {name: spent_data(spent) for name, spent in report.usage.items()},
        "model_usage": {name: spent_data(spent) for name, spent in report.model_usage.items()},
        "conflicts": list(report.conflicts),
        "damage": list(report.damage),
        "durable_cells": report.durable,
        "restored_cells": report.restored,
        "seconds": report.seconds,
    }


def spent_data(spent: Spent) -> dict[str, Any]:
    """What was used, as JSON values."""
    return {
        "calls": spent.calls,
        "input_tokens": spent.input_tokens,
        "output_tokens": spent.output_tokens,
        "cost": spent.cost,
    }


def print_drops(drops_by_reason: Mapping[str, int], *, most: int = 10) -> None:
    """Show why rows were dropped, the most frequent reasons first."""
    out = console()
    out.print(f"[bold]{sum(drops_by_reason.values()):,} rows dropped[/bold]")
    for reason, count in list(drops_by_reason.items())[:most]:
        out.print(Text(f"  {count:,} × {reason}"))
    if len(drops_by_reason) > most:
        out.print(f"  … and {len(drops_by_reason) - most} other reasons")


def print_nothing_made(report: BuildReport, hint: str | None = None) -> None:
    """Say on standard error that not one row is left of those that were asked for."""
    told = f"seedbed: nothing came out: of {report.rows:,} rows every one was dropped"
    console(error=True).print(Text("\n".join([told, *([] if hint is None else [hint])])), soft_wrap=True)
