"""Which clock the runs have that synchronous calls start: trio's own, unless a test asks for another."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trio.abc import Clock

# Makes the clock of the next run; None for trio's own.
_make_clock: ContextVar[Callable[[], Clock] | None] = ContextVar("seedbed.make_clock", default=None)


def new_clock() -> Clock | None:
    """A clock for `trio.run`; ask in the thread of whoever called, who may have asked for another."""
    make = _make_clock.get()
    return None if make is None else make()


@contextmanager
def clocks_made_by(make: Callable[[], Clock]) -> Iterator[None]:
    """Let every run that is started in this block have a clock of `make`'s."""
    token = _make_clock.set(make)
    try:
        yield
    finally:
        _make_clock.reset(token)
