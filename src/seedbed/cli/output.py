"""Output of the commands: lines, tables and records for people, JSON for machines, and log lines."""

from __future__ import annotations

import base64
import datetime
import json
import logging
import math
import os
import sys
from typing import TYPE_CHECKING, Any

import msgspec
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ..observe.log import missing_rows_logger
from ..observe.panel import PipeConsole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import Console

    from ..observe.preview import PreviewRow, Prompt
    from ..observe.report import BuildReport

# Longer cells of a record are cut; the dataset has all of their text.
_LONGEST = 1_000
_PIPE_WIDTH = 119


def console(*, error: bool = False) -> Console:
    """Standard output or standard error; a pipe, which has no width, gets tables of 119 characters.

    COLUMNS sets another width for both.
    """
    stream = sys.stderr if error else sys.stdout
    has_width = stream.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return PipeConsole(file=stream, highlight=False, soft_wrap=False, width=None if has_width else _PIPE_WIDTH)


def print_line(text: str, *, error: bool = False, style: str | None = None) -> None:
    """Print text as it is, to standard output or standard error; a terminal wraps it."""
    console(error=error).print(text, markup=False, soft_wrap=True, style=style)


def print_json(value: Any) -> None:
    """Write one JSON value as one line."""
    json.dump(_json(value), sys.stdout, ensure_ascii=False)
    sys.stdout.write("\n")


def _json(value: Any) -> Any:
    """Convert a value to what JSON can represent; NaN and infinity become null."""
    if isinstance(value, dict):
        return {name: _json(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_json(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value if value is None or isinstance(value, str | int) else str(value)


def print_records(rows: Iterable[Mapping[str, Any]]) -> None:
    """Show each row as a table with its columns as lines."""
    for number, row in enumerate(rows):
        _print_record(f"row {number}", row)


def print_preview_row(row: PreviewRow) -> None:
    """Show a row of a preview: what removed it, and the prompts of its cells before their values."""
    title = "a row" if row.number is None else f"row {row.number}"
    _print_record(title if row.removed is None else f"{title} {row.removed}", row.values, row.prompts)


def _print_record(title: str, row: Mapping[str, Any], prompts: Sequence[Prompt] = ()) -> None:
    print_line(title, style="bold")
    table = Table(show_header=False, expand=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for prompt in prompts:
        for role, content in prompt.messages:
            table.add_row(Text(f"{prompt.column} ← {role}", style="dim"), Text(content, style="dim"))
    for name, value in row.items():
        table.add_row(escape(name), _cell(value))
    console().print(table)


def _cell(value: Any) -> Text:
    if value is None:
        return Text("null", style="dim")
    text = value if isinstance(value, str) else json.dumps(_json(value), ensure_ascii=False)
    return Text(text if len(text) <= _LONGEST else text[:_LONGEST] + " …")


def print_table(
    heads: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None, error: bool = False
) -> None:
    """Show a table; columns of numbers are right-aligned."""
    listed = [tuple(row) for row in rows]
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for at, head in enumerate(heads):
        numbers = bool(listed) and all(isinstance(row[at], int | float) or row[at] is None for row in listed)
        table.add_column(head, justify="right" if numbers else "left", overflow="fold", header_style="dim")
    for row in listed:
        table.add_row(*(Text(_number(value)) for value in row))
    console(error=error).print(table)


def _number(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.3f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def counts_data(report: BuildReport) -> dict[str, Any]:
    """What became of the rows of a dataset, as JSON values; `removed` and `added` by processor."""
    return {
        "requested": report.requested,
        "candidates": report.candidates,
        "added": {name: added for name, _, added in report.resized if added},
        "written": report.written,
        "surplus": report.surplus,
        "rejected": report.rejected,
        "acceptance_rate": report.acceptance_rate,
        "cost_per_row": report.cost_per_row,
        "exhausted": report.exhausted,
        "removed": {name: removed for name, removed, _ in report.resized if removed},
        "dropped": len(report.dropped),
        "unfinished": sum(len(each) for each in report.unfinished),
        "drops_by_reason": report.drops_by_reason,
    }


def report_data(report: BuildReport) -> dict[str, Any]:
    """A report as JSON values."""
    return {
        **counts_data(report),
        **({"stages": {name: counts_data(each) for name, each in report.stages.items()}} if report.stages else {}),
        "skipped_row_groups": list(report.skipped_row_groups),
        "attempts": dict(report.attempts),
        "errors": dict(report.errors),
        "usage": {name: msgspec.structs.asdict(used) for name, used in report.usage.items()},
        "model_usage": {name: msgspec.structs.asdict(used) for name, used in report.model_usage.items()},
        "conflicts": list(report.conflicts),
        "damage": list(report.damage),
        "durable_cells": report.durable,
        "restored_cells": report.restored,
        "reused_cells": report.reused,
        "seconds": report.seconds,
    }


def print_drops(drops_by_reason: Mapping[str, int], *, most: int = 10) -> None:
    """Show the reasons of dropped rows, the most frequent first; nothing if no row was dropped."""
    if not drops_by_reason:
        return
    print_line(f"{sum(drops_by_reason.values()):,} rows dropped", style="bold")
    for reason, count in list(drops_by_reason.items())[:most]:
        print_line(f"  {count:,} × {reason}")
    if len(drops_by_reason) > most:
        print_line(f"  … and {len(drops_by_reason) - most} other reasons")


def print_tracebacks(report: BuildReport) -> None:
    """Show where the user's own code raised, once for each drop reason, on standard error."""
    for text in report.tracebacks.values():
        sys.stderr.write(text)


class _StderrHandler(logging.Handler):
    """Writes to the current `sys.stderr`: the panel replaces it to print log lines above itself."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(f"{self.format(record)}\n")
        except Exception:  # noqa: BLE001  as the handlers of `logging` do
            self.handleError(record)


def log_to_stderr(*, verbose: bool) -> None:
    """Write the log lines of seedbed to standard error: warnings and, if verbose, infos."""
    logger = logging.getLogger("seedbed")
    logger.setLevel(logging.INFO if verbose else logging.WARNING)
    if not logger.handlers:
        handler = _StderrHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        handler.addFilter(lambda record: record.name != missing_rows_logger.name)  # the command prints these itself
        logger.addHandler(handler)
