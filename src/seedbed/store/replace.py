"""Remove a dataset so that another one can take its place: only what seedbed wrote, and never half of a dataset.

First the folder `.seedbed` gets another name, which makes the directory no dataset any more; then the files of the root
are removed, and the folder. What a process that dies in between leaves is removed by the next build there.
"""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

from ..errors import OutputDirectoryError
from ..runtime import faults
from .files import PRIVATE, REPLACED, check_links, exists, is_temporary, remove, rename, sync_directory
from .manifest import is_being_written, is_dataset, lock
from .writer import check_output

if TYPE_CHECKING:
    from pathlib import Path

_PART = re.compile(r"batch_[0-9]{7,}\.parquet", re.ASCII)


def is_half_removed(directory: Path) -> bool:
    """True if a process died while it removed the dataset of this directory, and what is left is no dataset."""
    return exists(directory, REPLACED) and not is_dataset(directory)


def check_replaceable(directory: Path) -> None:
    """Raise `OutputDirectoryError` unless a new dataset can be written there after `remove_dataset`."""
    if not (is_dataset(directory) or exists(directory, REPLACED)):
        check_output(directory)
        return
    if is_being_written(directory):
        raise OutputDirectoryError(
            f"another process is writing {str(directory)!r}: wait for it or stop it; nothing was changed"
        )
    check_links(directory)
    found = sorted(path.name for path in directory.iterdir() if not _is_ours(path))
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise OutputDirectoryError(
            f"the dataset directory {str(directory)!r} holds {found[0]!r}{more}, which seedbed did not write: "
            "move it elsewhere, or pass another directory; nothing was changed"
        )


def _is_ours(path: Path) -> bool:
    return path.name in (PRIVATE, REPLACED) or _PART.fullmatch(path.name) is not None or is_temporary(path)


def remove_dataset(directory: Path) -> None:
    """Remove the dataset of a directory, if there is one; errors are those of `check_replaceable`."""
    check_replaceable(directory)
    try:
        if is_dataset(directory):
            with lock(directory):
                if exists(directory, REPLACED):  # of a process that died
                    shutil.rmtree(directory / REPLACED)
                rename(directory, PRIVATE, REPLACED)
                sync_directory(directory)
                faults.reach("dataset unlisted")
        if exists(directory, REPLACED):
            for path in directory.iterdir():
                if _PART.fullmatch(path.name):
                    remove(directory, path.name)
            sync_directory(directory)  # as long as there are rows, the folder says whose they are
            faults.reach("rows removed")
            shutil.rmtree(directory / REPLACED)
            sync_directory(directory)
    except OSError as error:
        raise OutputDirectoryError(f"the dataset in {str(directory)!r} cannot be removed: {error}") from error
