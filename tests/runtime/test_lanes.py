"""Queues of ready work, served in turn."""

from __future__ import annotations

from seedbed.runtime.lanes import Lanes


def drain(lanes: Lanes[str]) -> list[str]:
    """Everything that can be taken, in the order of the turns."""
    taken = []
    while lanes.next() is not None:
        taken.append(lanes.pop())
    return taken


def test_lanes_are_served_in_turn() -> None:
    """However much is in one lane, the others come between."""
    lanes: Lanes[str] = Lanes()
    for n in range(4):
        lanes.push("a", 0, f"a{n}")
    lanes.push("b", 0, "b0")
    lanes.push("c", 0, "c0")
    lanes.push("c", 0, "c1")
    assert len(lanes) == 7
    assert drain(lanes) == ["a0", "b0", "c0", "a1", "c1", "a2", "a3"]
    assert len(lanes) == 0


def test_older_row_groups_go_first_within_a_lane() -> None:
    """A row group admitted earlier is finished earlier, whenever its cells became ready."""
    lanes: Lanes[str] = Lanes()
    lanes.push("a", 2, "new")
    lanes.push("a", 0, "old1")
    lanes.push("a", 1, "middle")
    lanes.push("a", 0, "old2")
    assert drain(lanes) == ["old1", "old2", "middle", "new"]


def test_one_that_had_its_turn_goes_in_front_of_its_group() -> None:
    """In front of its own row group's others, but not of an older row group."""
    lanes: Lanes[str] = Lanes()
    lanes.push("a", 1, "young")
    lanes.push("a", 0, "old")
    lanes.push("a", 1, "again", first=True)
    assert drain(lanes) == ["old", "again", "young"]


def test_a_blocked_lane_is_not_looked_at() -> None:
    """It delays no other lane, also when more is pushed, and returns behind the others."""
    lanes: Lanes[str] = Lanes()
    lanes.push("a", 0, "a0")
    lanes.push("b", 0, "b0")
    assert lanes.block().key == "a"
    lanes.push("a", 0, "a1")
    lane = lanes.next()
    assert lane is not None
    assert lane.key == "b"
    lanes.push("b", 0, "b1")
    lanes.unblock("a")
    assert drain(lanes) == ["b0", "a0", "b1", "a1"]


def test_unblocking_an_empty_or_unknown_lane_does_nothing() -> None:
    """Only a lane that holds something has a turn, and it has only one."""
    lanes: Lanes[str] = Lanes()
    lanes.unblock("never")
    lanes.push("a", 0, "a0")
    lanes.unblock("a")
    assert drain(lanes) == ["a0"]
    lanes.push("a", 0, "a1")
    lanes.block()
    lanes.discard(0)
    lanes.unblock("a")
    assert lanes.next() is None
    lanes.push("a", 0, "a2")
    assert drain(lanes) == ["a2"]


def test_skip_removes_one_item_and_keeps_the_turn() -> None:
    """Skipping the cell of a dropped row does not cost its lane the turn."""
    lanes: Lanes[str] = Lanes()
    lanes.push("a", 0, "dropped")
    lanes.push("a", 0, "a1")
    lanes.push("b", 0, "b0")
    lanes.skip()
    assert drain(lanes) == ["a1", "b0"]
    lanes.push("c", 0, "dropped")
    lanes.skip()
    assert lanes.next() is None


def test_discard_forgets_one_row_group_everywhere() -> None:
    """Items of other row groups stay in order, and an empty lane loses its turn."""
    lanes: Lanes[str] = Lanes()
    for group in (3, 0, 2, 1):
        lanes.push("a", group, f"a{group}")
    lanes.push("b", 2, "b2")
    lanes.discard(2)
    lanes.discard(7)
    assert len(lanes) == 3
    assert drain(lanes) == ["a0", "a1", "a3"]


def test_peek_shows_what_pop_takes() -> None:
    """Looking changes nothing."""
    lanes: Lanes[str] = Lanes()
    lanes.push("a", 1, "x")
    lanes.push("a", 0, "y")
    lane = lanes.next()
    assert lane is not None
    assert lane.peek() == "y"
    assert len(lanes) == 2
    assert lanes.pop() == "y"


def test_each_lane_knows_how_much_waits_in_it() -> None:
    """Blocked or not; an unused lane is empty."""
    lanes: Lanes[str] = Lanes()
    lanes.push("a", 0, "a0")
    lanes.push("a", 1, "a1")
    lanes.block()
    assert (lanes.size("a"), lanes.size("b")) == (2, 0)
