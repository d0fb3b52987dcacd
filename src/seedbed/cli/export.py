"""`seedbed export`."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import attrs
from cyclopts import Parameter

from .exit_codes import ExitCode
from .options import Flag, Machine, RowCount, Several, named_values, open_dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def export(
    directory: Path,
    target: str,
    /,
    *,
    format: str | None = None,  # noqa: A002 - the name of the option
    map: Several = (),  # noqa: A002 - the name of the option
    columns: Annotated[Several, Parameter(name=["--column", "-c"])] = (),
    rows_per_file: RowCount | None = None,
    partition_by: Several = (),
    stage: str | None = None,
    dropped: Flag = False,
    overwrite: Flag = False,
    storage: Several = (),
    machine: Machine = Machine(),
) -> int:
    """Write the rows of a dataset to a file, a folder of files or a URL such as s3://bucket/rows.parquet.

    The format follows from the ending: .jsonl, .csv, .parquet or .arrow. An export that ended early continues when the
    same command is run again.

    Parameters
    ----------
    directory
        The directory of a dataset, finished or not.
    target
        The file to write, or the folder with --rows-per-file or --partition-by; a local path or a URL of fsspec.
    format
        jsonl, csv, parquet, arrow, or a chat format for fine-tuning: openai-chat, sharegpt, alpaca, dpo.
    map
        FIELD=COLUMN, for chat formats: the column of a field such as prompt, response or messages. May be repeated.
    columns
        A column to write; all of them by default. May be repeated.
    rows_per_file
        Write a folder of files with so many rows each.
    partition_by
        Write a folder of parquet files with a subfolder for each value of this column. May be repeated.
    stage
        Take this stage of a dataset of several, and not that at its root.
    dropped
        Write the dropped rows in place of the dataset, with their reasons.
    overwrite
        Replace what an earlier export has written there.
    storage
        NAME=VALUE, an option of the file system of a URL, such as endpoint_url for S3. May be repeated.

    """
    from ..publish.export import export as write
    from . import output

    with _progress(quiet=machine.json) as on_progress:
        found = write(
            open_dataset(directory, stage),
            target,
            format=format,
            columns=columns or None,
            mapping={field: str(column) for field, column in named_values("--map", map)},
            rows_per_file=rows_per_file,
            partition_by=partition_by,
            dropped=dropped,
            overwrite=overwrite,
            storage_options=dict(named_values("--storage", storage)),
            on_progress=on_progress,
        )
    if machine.json:
        output.print_json(attrs.asdict(found))
        return ExitCode.OK
    where = found.files[0] if len(found.files) == 1 else f"{len(found.files):,} files, the first {found.files[0]}"
    output.print_line(f"{found.rows:,} rows in {where}")
    if found.left_out:
        output.print_line(f"{found.left_out:,} rows were left out: a field of the chat format is null there")
    return ExitCode.OK


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error while rows are written, if that is a terminal."""
    from rich.progress import Progress

    from . import output

    console = output.console(error=True)
    with Progress(console=console, transient=True, disable=quiet or not console.is_terminal) as progress:
        task = progress.add_task("rows", total=None)
        yield lambda done, rows: progress.update(task, completed=done, total=rows)
