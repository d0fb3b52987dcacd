"""When to give up: the share of errors among the last outcomes."""

from __future__ import annotations

from collections import deque

# A salvage round of fewer cells than this says nothing about the run: one row that keeps failing is only a row.
SALVAGE_MINIMUM = 10


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


class SalvageWindow(ErrorWindow):
    """The window of second and later attempts; a round that is smaller than the window sets its own size."""

    def __init__(self, size: int, threshold: float) -> None:
        super().__init__(size, threshold)
        self._largest = size

    def round_started(self, cells: int) -> None:
        """A salvage round of that many cells begins."""
        self.size = min(self._largest, max(cells, SALVAGE_MINIMUM))
