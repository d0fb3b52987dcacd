"""The error windows against a model that counts a list again each time."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from seedbed.build.shutdown import SALVAGE_MINIMUM, ErrorWindow, SalvageWindow

sizes = st.integers(1, 12)
thresholds = st.sampled_from([0.1, 0.25, 0.5, 0.8, 1.0])


class ErrorWindowMachine(RuleBasedStateMachine):
    """Outcomes come in with any number of tasks in flight."""

    @initialize(size=sizes, threshold=thresholds, salvage=st.booleans())
    def start(self, size: int, threshold: float, salvage: bool) -> None:
        self.window = SalvageWindow(size, threshold) if salvage else ErrorWindow(size, threshold)
        self.largest = self.size = size
        self.threshold = threshold
        self.kept: list[bool] = []

    @rule(error=st.booleans(), in_flight=st.integers(0, 20))
    def record(self, error: bool, in_flight: int) -> None:
        size = max(self.size, in_flight)
        self.kept = [*self.kept, error][-size:]
        full = self.window.record(error=error, in_flight=in_flight)
        assert full == (error and len(self.kept) == size and sum(self.kept) / size > self.threshold)

    @precondition(lambda self: isinstance(self.window, SalvageWindow))
    @rule(cells=st.integers(1, 20))
    def round_started(self, cells: int) -> None:
        assert isinstance(self.window, SalvageWindow)
        self.window.round_started(cells)
        self.size = min(self.largest, max(cells, SALVAGE_MINIMUM))

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.window) == len(self.kept)
        assert self.window.errors == sum(self.kept)


TestErrorWindow = ErrorWindowMachine.TestCase


def test_there_is_no_verdict_before_the_window_is_full() -> None:
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


def test_a_small_salvage_round_has_a_small_window() -> None:
    """A round of fewer cells than the window gets its verdict from those cells, but not from fewer than the minimum."""
    window = SalvageWindow(50, 0.8)
    window.round_started(20)
    assert [window.record(error=True) for _ in range(20)] == [False] * 19 + [True]
    window = SalvageWindow(50, 0.8)
    window.round_started(1)
    assert [window.record(error=True) for _ in range(SALVAGE_MINIMUM)] == [False] * (SALVAGE_MINIMUM - 1) + [True]
    window.round_started(500)
    assert window.size == 50
