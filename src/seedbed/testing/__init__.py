"""Helpers for tests, ours and those of users: a model server on loopback, and virtual time.

Imports models and runtime; no package imports it.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import trio
from trio.testing import MockClock

from ..models.scripted import Behaviour, SimulatedOutcome
from ..runtime.threads import clocks_made_by
from .server import (
    OpenAIServer,
    Reply,
    ServerAnswer,
    ServerProcess,
    ServerRequest,
    ServerStatistics,
    serve_openai,
    serve_openai_process,
    serve_openai_sync,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

__all__ = [
    "Behaviour",
    "OpenAIServer",
    "Reply",
    "ServerAnswer",
    "ServerProcess",
    "ServerRequest",
    "ServerStatistics",
    "SimulatedOutcome",
    "VirtualTime",
    "serve_openai",
    "serve_openai_process",
    "serve_openai_sync",
    "virtual_time",
]

T = TypeVar("T")


class VirtualTime:
    """The clocks of the runs that start in a block of `virtual_time`, one after the other."""

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
        """The virtual time that the runs of this block took in total."""
        return sum(clock.current_time() - began for clock, began in self._clocks)

    def run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """`trio.run(function, *args)` in virtual time: for `build_async`, `open_build` and plans."""
        return trio.run(function, *args, clock=self.make_clock())


@contextmanager
def virtual_time(*, threshold: float = 0.0) -> Iterator[VirtualTime]:
    """Run builds and plans on a clock that jumps to the next instant at which something happens.

    In the block, `seedbed.build`, `preview` and `resume` run in virtual time, and so does what `VirtualTime.run` runs.
    The clock stands still while a worker thread runs. It does not see the network: with `threshold` it jumps only when
    nothing has happened for that many real seconds, so that a server on loopback has time to answer.
    """
    time = VirtualTime(threshold)
    with clocks_made_by(time.make_clock):
        yield time
