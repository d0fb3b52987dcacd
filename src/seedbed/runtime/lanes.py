"""Queues of ready work, served in turn, and a turnstile that admits row groups in order."""

from __future__ import annotations

import bisect
import heapq
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
        self._queues: dict[int, deque[T]] = {}
        self._order: list[int] = []  # a heap of the row groups in `_queues`
        self.size = 0  # changed by this lane only

    def push(self, row_group: int, item: T, *, first: bool = False) -> None:
        """Queue an item; without a sort key, `first=True` puts it in front of its row group's others."""
        queue = self._queues.get(row_group)
        if queue is None:
            queue = self._queues[row_group] = deque()
            heapq.heappush(self._order, row_group)
        if self._sort_key is not None:
            queue.insert(bisect.bisect(queue, self._sort_key(item), key=self._sort_key), item)
        elif first:
            queue.appendleft(item)
        else:
            queue.append(item)
        self.size += 1

    def pop(self) -> T:
        """Take the next item; the lane must not be empty."""
        row_group = self._order[0]
        queue = self._queues[row_group]
        item = queue.popleft()
        if not queue:
            heapq.heappop(self._order)
            del self._queues[row_group]
        self.size -= 1
        return item

    def peek(self) -> T:
        """The next item; the lane must not be empty."""
        return self._queues[self._order[0]][0]

    def discard(self, row_group: int) -> None:
        """Remove the items of a row group."""
        queue = self._queues.pop(row_group, None)
        if queue is not None:
            self._order.remove(row_group)
            heapq.heapify(self._order)
            self.size -= len(queue)


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

    def pop_and_block(self) -> T:
        """Take an item from the lane in turn, which is blocked until `unblock`."""
        return self.block().pop()

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
        self._up = 0
        self._left: set[int] = set()  # places that left before their turn
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
                # The callback may remove the lane at once; the loop continues at the position after that.
                callback()
