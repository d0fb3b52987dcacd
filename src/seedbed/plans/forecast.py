"""How long the next request for a plan will take, learnt from those before."""

from __future__ import annotations

from typing import Final

# How much the last request counts.
_RECENT: Final = 1 / 16
# How much of what others cost is forgotten with a request that ran alone and so shows nothing of it. Without this, one
# bad moment would be believed for ever by an engine that since then runs one request after the other.
_FORGOTTEN: Final = 1 / 128
# How fast the least time that requests took is let slip.
_SLIP: Final = 1.005
# What is ended at its deadline would have taken longer, and nobody knows how much. As much as this, the simulation in
# the tests says: with less, too much is begun in vain.
_LATE: Final = 3.0


class Forecast:
    """What a plan's requests take alone, and beside others.

    Requests share the loop, so beside others each takes longer: not at all as long as all of them together leave the
    loop idle, in proportion to their number from there on. Hence two figures are enough. Both come from the clock
    alone, so they hold for whatever makes requests wait for each other: the loop, threads, a busy machine. Changed by
    the one who tells how requests ended.
    """

    __slots__ = ("alone", "share")

    def __init__(self) -> None:
        self.alone = 0.0  # seconds, the least of late; 0 if nothing is known
        self.share = 0.0  # the part of the loop that a request would use if it had it for itself

    def seconds(self, running: int) -> float:
        """What a request takes if so many run, itself included; 0 if nothing is known."""
        return self.alone * max(1.0, self.share * running)

    def learn(self, took: float, running: int, *, in_time: bool) -> None:
        """A request took so long; so many ran when it began, itself included. If not `in_time`, it was cut off then."""
        if in_time:
            self.alone = min(self.alone * _SLIP, took) if self.alone else took
        elif not self.alone:
            # The first ones made each other late. One at a time will show what one takes.
            self.alone, self.share = took, 1.0
        if running == 1:
            self.share -= self.share * _FORGOTTEN
        elif self.alone:
            # Nobody can use more than all of the loop. Whoever seems to was held up by something else, which running
            # fewer would not mend.
            share = min(1.0, (took if in_time else took * _LATE) / self.alone / running)
            if in_time or share > self.share:  # being late is no sign that it would have been quick
                self.share += (share - self.share) * _RECENT
