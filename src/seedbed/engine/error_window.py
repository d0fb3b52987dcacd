"""When to stop a run: the share of errors among its last outcomes, and failures that are no fault of a row."""

from __future__ import annotations

from collections import deque

from ..errors import BuildStopped

# A salvage round of fewer cells, or of a smaller share of its row group, says nothing about the run: rows that keep
# failing among others that do not are only rows.
SALVAGE_MINIMUM = 10
SALVAGE_SHARE = 0.1


def is_panic(error: BaseException) -> bool:
    """Whether Rust code panicked, polars for example; pyo3 raises that as a BaseException that cannot be imported."""
    return type(error).__name__ == "PanicException"


def breakdown(error: BaseException, where: str = "") -> BuildStopped | None:
    """What ends a run where memory ran out or a library panicked; None for any other error."""
    if isinstance(error, MemoryError):
        said = f" ({error})" if str(error) else ""
        stopped = BuildStopped(
            f"{where}memory ran out{said}; what is finished is stored; resume with a smaller buffer_size, "
            "max_concurrent_row_groups or max_processes, or with more memory"
        )
    elif is_panic(error):
        said = str(error).partition("\n")[0]
        stopped = BuildStopped(f"{where}polars failed internally ({said}); what is finished is stored")
    else:
        return None
    stopped.__cause__ = error
    return stopped


class ErrorWindow:
    """A sliding window of outcomes; flow control never enters it.

    Failures are quicker than successes, so the first outcomes of many tasks in flight are mostly errors. The window is
    therefore never smaller than the number of tasks in flight, and there is no verdict before it is full.
    """

    def __init__(self, size: int, threshold: float) -> None:
        self.size = size
        self.threshold = threshold
        self._outcomes: deque[bool] = deque()
        self._errors = 0

    def __len__(self) -> int:
        return len(self._outcomes)

    @property
    def errors(self) -> int:
        return self._errors

    def record(self, *, error: bool, in_flight: int = 0) -> bool:
        """Enter an outcome; True when the share of errors has passed the threshold."""
        outcomes = self._outcomes
        outcomes.append(error)
        if error:
            self._errors += 1
        size = self.size if self.size > in_flight else in_flight
        while len(outcomes) > size:
            if outcomes.popleft():
                self._errors -= 1
        return error and len(outcomes) >= size and self._errors > self.threshold * len(outcomes)


class SalvageWindow:
    """Whether the salvage rounds of one row group show that trying again is no use now.

    Each round that can say something has a window of its own, at most as large as the round, and only its own cells
    enter it. A round of a few cells is about those rows and not about the run: they are dropped, and that is all.
    """

    def __init__(self, size: int, threshold: float) -> None:
        self._largest = size
        self.threshold = threshold
        self._round = 0
        self._window: ErrorWindow | None = None

    def round_started(self, number: int, cells: int, rows: int) -> None:
        """Salvage round `number` begins, with so many cells of a row group that has so many rows."""
        if cells >= SALVAGE_MINIMUM and cells >= SALVAGE_SHARE * rows:
            self._round = number
            self._window = ErrorWindow(min(self._largest, cells), self.threshold)

    def record(self, number: int, *, error: bool) -> ErrorWindow | None:
        """Enter the outcome of a cell of round `number`; gives the window when its errors have passed the threshold."""
        if self._window is None or number != self._round:
            return None
        return self._window if self._window.record(error=error) else None
