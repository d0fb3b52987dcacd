"""Row groups pass one by one, in order, however they end."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Turnstile:
    """Lets places 0, 1, 2… through one at a time.

    It gates readiness and is never awaited: a place that is not up yet leaves a callback. Every place must call `leave`
    once, whether it used its turn, failed, was skipped or was cancelled before; only then the next one is up.
    """

    def __init__(self) -> None:
        self._up = 0
        self._left: set[int] = set()  # places that left before they were up
        self._waiting: dict[int, Callable[[], None]] = {}

    @property
    def up(self) -> int:
        """The place whose turn it is."""
        return self._up

    def enter(self, place: int, callback: Callable[[], None]) -> None:
        """Call `callback` when it is this place's turn: now, if it is."""
        if place == self._up:
            callback()
        else:
            self._waiting[place] = callback

    def leave(self, place: int) -> None:
        """This place is done with its turn, or will never take it. Leaving twice does nothing."""
        self._waiting.pop(place, None)
        if place < self._up:
            return
        self._left.add(place)
        while self._up in self._left:
            self._left.remove(self._up)
            self._up += 1
            callback = self._waiting.pop(self._up, None)
            if callback is not None:
                # The callback may leave at once; the loop goes on from where that put us.
                callback()
