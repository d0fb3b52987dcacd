"""Queues of ready work, served in turn, and a turnstile that admits row groups in order."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

T = TypeVar("T")


class Lane(Generic[T]):
    """One queue: older row groups first; within a row group first come, first served, or in the order of `sort_key`."""

    def __init__(self, key: Hashable, sort_key: Callable[[T], tuple[int, int]] | None) -> None:
        self.key = key
        self.blocked = False  # changed by Lanes only
        self._sort_key = sort_key
        # A heap of (row group, sort key, order, item); no two orders are equal, so items are not compared.
        self._heap: list[tuple[int, tuple[int, int] | None, int, T]] = []
        self._order = itertools.count(1)

    @property
    def size(self) -> int:
        return len(self._heap)

    def push(self, row_group: int, item: T, *, first: bool = False) -> None:
        """Queue an item; without a sort key, `first=True` puts it in front of its row group's others."""
        order = next(self._order)
        rank = None if self._sort_key is None else self._sort_key(item)
        heapq.heappush(self._heap, (row_group, rank, -order if first else order, item))

    def pop(self) -> T:
        """Take the next item; the lane must not be empty."""
        return heapq.heappop(self._heap)[3]

    def peek(self) -> T:
        """The next item; the lane must not be empty."""
        return self._heap[0][3]

    def discard(self, row_group: int) -> None:
        """Remove the items of a row group."""
        self._heap = [entry for entry in self._heap if entry[0] != row_group]
        heapq.heapify(self._heap)


class Lanes(Generic[T]):
    """All lanes, and the order in which those that hold something and are not blocked are served.

    A caller takes from the lane in turn; if it cannot (no permit, no slot), it blocks that lane until something
    changes. A lane that cannot be served is not even looked at and never delays another.
    """

    def __init__(self, sort_key: Callable[[T], tuple[int, int]] | None = None) -> None:
        self._sort_key = sort_key
        self._lanes: dict[Hashable, Lane[T]] = {}
        self._turn: deque[Lane[T]] = deque()  # not empty, not blocked; the next one to serve stands first

    def __len__(self) -> int:
        return sum(lane.size for lane in self._lanes.values())

    def size(self, key: Hashable) -> int:
        lane = self._lanes.get(key)
        return 0 if lane is None else lane.size

    def next(self) -> Lane[T] | None:
        """The lane in turn, or None if no lane can be served."""
        return self._turn[0] if self._turn else None

    def pop(self) -> T:
        """Take an item from the lane in turn, which then goes behind the others, or out if it is empty."""
        turn = self._turn
        lane = turn[0]
        item = lane.pop()
        if not lane.size:
            turn.popleft()
        elif len(turn) > 1:
            turn.rotate(-1)
        return item

    def skip(self) -> None:
        """Remove the next item of the lane in turn, which stays in turn."""
        lane = self._turn[0]
        lane.pop()
        if not lane.size:
            self._turn.popleft()

    def block(self) -> Lane[T]:
        """Block the lane in turn, which cannot be served, until `unblock`."""
        lane = self._turn.popleft()
        lane.blocked = True
        return lane

    def unblock(self, key: Hashable) -> None:
        """The lane of `key` may be served again."""
        lane = self._lanes.get(key)
        if lane is not None and lane.blocked:
            lane.blocked = False
            if lane.size:
                self._turn.append(lane)

    def push(self, key: Hashable, row_group: int, item: T, *, first: bool = False) -> None:
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(key, self._sort_key)
        if not lane.size and not lane.blocked:
            self._turn.append(lane)
        lane.push(row_group, item, first=first)

    def discard(self, row_group: int) -> None:
        """Remove the items of a row group that has ended."""
        for lane in self._lanes.values():
            lane.discard(row_group)
        self._turn = deque(lane for lane in self._turn if lane.size)


class Turnstile:
    """Admits places 0, 1, 2… one at a time.

    It gates readiness and is never awaited: a place whose turn has not come leaves a callback. Every place must call
    `leave` once, whether it used its turn, failed, was skipped or was cancelled before; only then the next one is up.
    """

    def __init__(self) -> None:
        self.up = 0  # the place whose turn it is
        self._left: set[int] = set()  # places that left before their turn
        self._waiting: dict[int, Callable[[], None]] = {}

    def enter(self, place: int, callback: Callable[[], None]) -> None:
        """Call `callback` when it is this place's turn: now, if it is."""
        if place == self.up:
            callback()
        else:
            self._waiting[place] = callback

    def leave(self, place: int) -> None:
        """This place is done with its turn, or will never take it. Leaving twice does nothing."""
        self._waiting.pop(place, None)
        if place < self.up:
            return
        self._left.add(place)
        while self.up in self._left:
            self._left.remove(self.up)
            self.up += 1
            callback = self._waiting.pop(self.up, None)
            if callback is not None:
                # The callback may remove the lane at once; the loop continues at the position after that.
                callback()
