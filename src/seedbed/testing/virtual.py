"""Time that does not pass: what waits an hour in a test is over at once, and still took an hour."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import trio
from trio.testing import MockClock

from ..runtime.clocks import clocks_made_by

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

T = TypeVar("T")


class VirtualTime:
    """What `virtual_time` gives. Changed by the runs that start in its block, one after the other."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._clocks: list[tuple[MockClock, float]] = []

    def make_clock(self) -> MockClock:
        """A clock for `trio.run`; its time is counted in `seconds`."""
        clock = MockClock(autojump_threshold=self._threshold)
        self._clocks.append((clock, clock.current_time()))
        return clock

    @property
    def seconds(self) -> float:
        """How much time the runs of this block took, all together, if it had passed."""
        return sum(clock.current_time() - began for clock, began in self._clocks)

    def run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """`trio.run(function, *args)` in virtual time: for `build_async`, `open_build` and plans."""
        return trio.run(function, *args, clock=self.make_clock())


@contextmanager
def virtual_time(*, threshold: float = 0.0) -> Iterator[VirtualTime]:
    """Run builds and plans on a clock that jumps to the next instant at which something happens.

    In the block `seedbed.build`, `preview` and `resume` wait for nothing, and `VirtualTime.run` runs async functions in
    the same way. Worker threads are waited for and their time is not counted. The clock does not see the network: with
    `threshold` it jumps only when nothing has happened for so many real seconds, so that a server on loopback gets its
    chance to answer.
    """
    time = VirtualTime(threshold)
    with clocks_made_by(time.make_clock):
        yield time
