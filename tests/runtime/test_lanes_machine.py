"""The lanes against a model of plain lists and numbered turns."""

from __future__ import annotations

import itertools

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from seedbed.runtime.lanes import Lanes

keys = st.sampled_from(["a", "b", "c"])
row_groups = st.integers(0, 3)


@attrs.define
class LaneModel:
    items: list[tuple[int, int]] = attrs.field(factory=list)  # (row group, item) in the order of coming
    blocked: bool = False
    turn: int | None = None  # a number drawn when it began to wait to be served

    @property
    def next(self) -> tuple[int, int]:
        oldest = min(row_group for row_group, _ in self.items)
        return next(entry for entry in self.items if entry[0] == oldest)


class LanesMachine(RuleBasedStateMachine):
    """The lane that waited longest is served; within it the oldest row group, and in that the first item."""

    def __init__(self) -> None:
        super().__init__()
        self.lanes: Lanes[int] = Lanes()
        self.model: dict[str, LaneModel] = {}
        self.numbers = itertools.count()
        self.turns = itertools.count()

    @property
    def first(self) -> str | None:
        """The lane in turn, by the model."""
        waiting = [(lane.turn, key) for key, lane in self.model.items() if lane.turn is not None]
        return min(waiting)[1] if waiting else None

    def settle(self, lane: LaneModel) -> None:
        """A lane that can be served waits for its turn from now on; one that cannot has none."""
        if not lane.items or lane.blocked:
            lane.turn = None
        elif lane.turn is None:
            lane.turn = next(self.turns)

    @rule(key=keys, row_group=row_groups, first=st.booleans())
    def push(self, key: str, row_group: int, first: bool) -> None:
        item = next(self.numbers)
        self.lanes.push(key, row_group, item, first=first)
        lane = self.model.setdefault(key, LaneModel())
        if first:
            lane.items.insert(0, (row_group, item))
        else:
            lane.items.append((row_group, item))
        self.settle(lane)

    @precondition(lambda self: self.first is not None)
    @rule()
    def pop(self) -> None:
        lane = self.model[self.first]
        entry = lane.next
        assert self.lanes.pop() == entry[1]
        lane.items.remove(entry)
        lane.turn = None  # behind all others
        self.settle(lane)

    @precondition(lambda self: self.first is not None)
    @rule()
    def pop_and_block(self) -> None:
        lane = self.model[self.first]
        entry = lane.next
        assert self.lanes.block().pop() == entry[1]
        lane.items.remove(entry)
        lane.blocked = True
        self.settle(lane)

    @precondition(lambda self: self.first is not None)
    @rule()
    def skip(self) -> None:
        lane = self.model[self.first]
        lane.items.remove(lane.next)
        self.lanes.skip()
        self.settle(lane)

    @precondition(lambda self: self.first is not None)
    @rule()
    def block(self) -> None:
        key = self.first
        assert self.lanes.block().key == key
        self.model[key].blocked = True
        self.settle(self.model[key])

    @rule(key=keys)
    def unblock(self, key: str) -> None:
        self.lanes.unblock(key)
        if key in self.model:
            self.model[key].blocked = False
            self.settle(self.model[key])

    @rule(row_group=row_groups)
    def discard(self, row_group: int) -> None:
        self.lanes.discard(row_group)
        for lane in self.model.values():
            lane.items = [entry for entry in lane.items if entry[0] != row_group]
            self.settle(lane)

    @invariant()
    def agrees(self) -> None:
        assert len(self.lanes) == sum(len(lane.items) for lane in self.model.values())
        lane, key = self.lanes.next(), self.first
        if key is None:
            assert lane is None
        else:
            assert lane is not None
            assert lane.key == key
            assert lane.size == len(self.model[key].items)
            assert lane.peek() == self.model[key].next[1]

    def teardown(self) -> None:
        """Everything comes out once nothing is blocked."""
        for key in self.model:
            self.unblock(key)
        while self.first is not None:
            self.agrees()
            self.pop()
        assert len(self.lanes) == 0


TestLanes = LanesMachine.TestCase
