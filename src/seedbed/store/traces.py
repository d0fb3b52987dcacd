"""Task traces that are stored with a dataset, one file a run."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

import polars as pl

from ..errors import StoreError
from ..observe.profile import ColumnProfile, profile_frame, traces_frame
from .files import PRIVATE, read_file, write_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ..observe.trace import TaskTrace

# Not parquet, so that nobody who reads the directory's parquet files by a pattern takes them for rows.
DIRECTORY = f"{PRIVATE}/traces"
_NAME = re.compile(r"run_([0-9]{4,9})\.arrow", re.ASCII)


def save_traces(traces: Sequence[TaskTrace], dataset: Path) -> Path:
    """Store the traces of one run with its dataset; each run of a dataset has a file of its own."""
    number = 1 + max(_runs(dataset), default=0)
    name = f"{DIRECTORY}/run_{number:04}.arrow"
    content = io.BytesIO()
    traces_frame(traces).write_ipc(content, compression="zstd")
    try:
        write_file(dataset, name, content.getvalue())
    except OSError as error:
        raise StoreError(f"the traces cannot be stored in {str(dataset)!r}: {error}") from error
    return dataset / name


def load_profile(dataset: Path) -> list[ColumnProfile]:
    """The profile of a dataset's runs, as far as their traces were stored; empty if none were."""
    frame = load_traces(dataset)
    return [] if frame is None else profile_frame(frame)


def load_traces(dataset: Path) -> pl.DataFrame | None:
    """The traces of all runs of a dataset that were stored, a row for each task; None if none were."""
    frames = []
    for _, name in sorted(_runs(dataset).items()):
        try:
            frames.append(pl.read_ipc(io.BytesIO(read_file(dataset, f"{DIRECTORY}/{name}"))))
        except (OSError, pl.exceptions.PolarsError) as error:
            raise StoreError(f"the traces {name!r} in {str(dataset)!r} cannot be read: {error}") from error
    return pl.concat(frames, how="diagonal_relaxed") if frames else None


def _runs(dataset: Path) -> dict[int, str]:
    """The files of traces, by the number of the run."""
    folder = dataset / DIRECTORY
    names = [path.name for path in folder.iterdir()] if folder.is_dir() and not folder.is_symlink() else []
    return {int(found[1]): name for name in names if (found := _NAME.fullmatch(name))}
