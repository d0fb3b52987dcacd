"""The event logs of the runs of a dataset, `.seedbed/history/run_NNNN.jsonl`: one file for each run, the last few."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..observe.history import parse_history
from .files import PRIVATE, create, is_temporary, read_file, remove, rename, temporary_name

if TYPE_CHECKING:
    import io
    from pathlib import Path

_FOLDER = f"{PRIVATE}/history"
_NAME = re.compile(r"run_([0-9]{4,9})\.jsonl", re.ASCII)
# Logs of earlier runs that are preserved, and the most bytes that are read of one.
_RUNS = 20
_LIMIT = 64 << 20


class HistoryFile:
    """The log of a run that begins; the file is created when it is first replaced."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._name = ""
        self._file: io.FileIO | None = None

    def append(self, data: bytes) -> None:
        if self._file is not None:
            self._file.write(data)

    def replace(self, data: bytes) -> None:
        """Write the whole log: a reader has the old one or the new one."""
        runs = _runs(self._directory)
        if not self._name:
            self._name = f"{_FOLDER}/run_{1 + max(runs, default=0):04}.jsonl"
            obsolete = [runs[number] for number in sorted(runs)[: max(0, len(runs) + 1 - _RUNS)]]
            for name in (*obsolete, *_leftovers(self._directory)):
                remove(self._directory, name)
        temporary = temporary_name(self._name)
        file = create(self._directory, temporary)
        try:
            file.write(data)
            rename(self._directory, temporary, self._name)
        except OSError:
            file.close()
            with suppress(OSError):
                remove(self._directory, temporary)
            raise
        self.close()
        self._file = file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def history_runs(directory: Path) -> list[int]:
    """The numbers of the runs that have a log, in their order."""
    return sorted(_runs(directory))


def read_history(directory: Path, run: int) -> list[dict[str, Any]]:
    """The lines of the log of a run; `OSError` if it cannot be read."""
    return parse_history(read_file(directory, _runs(directory).get(run, f"{_FOLDER}/run_{run:04}.jsonl"), limit=_LIMIT))


def _leftovers(directory: Path) -> list[str]:
    """What a process left behind that died between two writes."""
    with suppress(OSError):
        return [f"{_FOLDER}/{path.name}" for path in (directory / _FOLDER).iterdir() if is_temporary(path)]
    return []


def _runs(directory: Path) -> dict[int, str]:
    folder = directory / _FOLDER
    try:
        names = [path.name for path in folder.iterdir()] if not folder.is_symlink() else []
    except OSError:
        return {}
    return {int(match[1]): f"{_FOLDER}/{name}" for name in names if (match := _NAME.fullmatch(name))}
