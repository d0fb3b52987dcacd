"""The error windows against a model that counts a list again each time."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from seedbed.engine.config import RunConfig
from seedbed.engine.failures import SALVAGE_MINIMUM, SALVAGE_SHARE, ErrorWindow, Salvage
from seedbed.engine.tasks import Task

sizes = st.integers(1, 12)
thresholds = st.sampled_from([0.1, 0.25, 0.5, 0.8, 1.0])


def new_salvage(size: int, threshold: float) -> Salvage:
    """The salvage rounds of one row group."""
    return Salvage(RunConfig(shutdown_error_window=size, salvage_error_threshold=threshold), random.Random(0))


def start_round(salvage: Salvage, cells: int, rows: int) -> None:
    """Start a round of that many new tasks."""
    step: Any = None
    for row in range(cells):
        salvage.defer(Task(step, 0, row), 0.0, None)
    salvage.start_round(rows)


class ErrorWindowMachine(RuleBasedStateMachine):
    """Outcomes come in with any number of tasks in flight."""

    @initialize(size=sizes, threshold=thresholds)
    def start(self, size: int, threshold: float) -> None:
        self.window = ErrorWindow(size, threshold)
        self.size = size
        self.threshold = threshold
        self.kept: list[bool] = []

    @rule(error=st.booleans(), in_flight=st.integers(0, 20))
    def record(self, error: bool, in_flight: int) -> None:
        size = max(self.size, in_flight)
        self.kept = [*self.kept, error][-size:]
        full = self.window.record(error=error, in_flight=in_flight)
        assert full == (error and len(self.kept) == size and sum(self.kept) / size > self.threshold)

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.window) == len(self.kept)
        assert self.window.errors == sum(self.kept)


TestErrorWindow = ErrorWindowMachine.TestCase


class SalvageMachine(RuleBasedStateMachine):
    """Rounds of any size start while cells of earlier rounds still run."""

    @initialize(size=st.integers(1, 30), threshold=thresholds)
    def start(self, size: int, threshold: float) -> None:
        self.salvage = new_salvage(size, threshold)
        self.largest = size
        self.threshold = threshold
        self.number = 0
        self.judged: tuple[int, int] | None = None  # the round that has a window, and how large that is
        self.kept: list[bool] = []

    @rule(cells=st.integers(1, 40), rows=st.integers(1, 300))
    def round_started(self, cells: int, rows: int) -> None:
        self.number += 1
        start_round(self.salvage, cells, rows)
        if cells >= SALVAGE_MINIMUM and cells / rows >= SALVAGE_SHARE:
            self.judged = (self.number, min(self.largest, cells))
            self.kept = []

    @rule(error=st.booleans(), back=st.integers(0, 3))
    def record(self, error: bool, back: int) -> None:
        number = self.number - back
        full = self.salvage.record(number, error=error)
        if self.judged is None or number != self.judged[0]:
            assert full is None
            return
        size = self.judged[1]
        self.kept = [*self.kept, error][-size:]
        exceeds = error and len(self.kept) == size and sum(self.kept) / size > self.threshold
        assert (full is not None) == exceeds


TestSalvage = SalvageMachine.TestCase


def test_no_run_stops_before_its_error_window_is_full() -> None:
    """Nothing but errors stops a run only once there are as many outcomes as the window is large."""
    window = ErrorWindow(5, 0.5)
    assert [window.record(error=True) for _ in range(6)] == [False, False, False, False, True, True]


def test_a_share_at_the_threshold_is_not_past_it() -> None:
    """Half of the outcomes may be errors where the threshold is a half; one more may not."""
    window = ErrorWindow(4, 0.5)
    assert [window.record(error=error) for error in (True, False, True, False)] == [False] * 4
    assert window.record(error=True) is False  # the error that came first went out: still two and two
    assert window.record(error=True) is True


def test_quick_failures_of_many_in_flight_are_no_verdict() -> None:
    """Of 1,000 tasks in flight the 50 that failed quickly say nothing: the window waits for the other 950."""
    window = ErrorWindow(50, 0.5)
    for done in range(50):
        assert not window.record(error=True, in_flight=1_000 - done)
    for done in range(50, 1_000):
        assert not window.record(error=False, in_flight=1_000 - done)


@pytest.mark.parametrize("in_flight", [0, 3, 200])
def test_a_threshold_of_one_never_stops_a_run(in_flight: int) -> None:
    """More than all of the outcomes cannot be errors."""
    window = ErrorWindow(3, 1.0)
    assert not any(window.record(error=True, in_flight=in_flight) for _ in range(500))


def test_a_salvage_round_is_judged_by_its_own_cells() -> None:
    """A round of fewer cells than the window gets its verdict when all of them have ended."""
    salvage = new_salvage(50, 0.8)
    start_round(salvage, cells=20, rows=100)
    assert [salvage.record(1, error=True) is not None for _ in range(20)] == [False] * 19 + [True]


@pytest.mark.parametrize(("cells", "rows"), [(SALVAGE_MINIMUM - 1, 20), (30, 1000)])
def test_a_few_rows_that_keep_failing_stop_nothing(cells: int, rows: int) -> None:
    """A round of few cells, or of few among many rows, gives no verdict however it ends."""
    salvage = new_salvage(50, 0.8)
    start_round(salvage, cells=cells, rows=rows)
    assert not any(salvage.record(1, error=True) for _ in range(cells))
