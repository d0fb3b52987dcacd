"""Row groups pass one by one, in order."""

from __future__ import annotations

from seedbed.runtime.lanes import Turnstile


def test_the_first_place_is_up_at_once() -> None:
    """Place 0 need not wait; place 1 is called when 0 has left."""
    turnstile, up = Turnstile(), []
    turnstile.enter(0, lambda: up.append(0))
    turnstile.enter(1, lambda: up.append(1))
    assert up == [0]
    turnstile.leave(0)
    assert up == [0, 1]
    assert turnstile.up == 1


def test_turns_are_taken_in_order_of_position_not_of_arrival() -> None:
    """Turns follow the order of places, not of arrival."""
    turnstile, up = Turnstile(), []
    for place in (2, 1, 0):
        turnstile.enter(place, lambda place=place: up.append(place))
    turnstile.leave(0)
    turnstile.leave(1)
    assert up == [0, 1, 2]


def test_a_place_may_leave_before_its_turn() -> None:
    """A group that left before its turn is skipped, and its callback is not called."""
    turnstile, up = Turnstile(), []
    for place in (0, 1, 2):
        turnstile.enter(place, lambda place=place: up.append(place))
    turnstile.leave(1)
    assert up == [0]
    turnstile.leave(0)
    assert up == [0, 2]


def test_a_place_that_never_entered_may_leave() -> None:
    """A place that never enters does not delay those after it once it left."""
    turnstile, up = Turnstile(), []
    turnstile.leave(0)
    turnstile.enter(1, lambda: up.append(1))
    assert up == [1]


def test_leaving_twice_does_nothing() -> None:
    """The second call does not end the turn of another position."""
    turnstile = Turnstile()
    turnstile.leave(0)
    turnstile.leave(0)
    assert turnstile.up == 1


def test_a_callback_may_leave_at_once() -> None:
    """Places that have nothing to do pass on in one go, each called once."""
    turnstile, up = Turnstile(), []

    def pass_on(place: int) -> None:
        up.append(place)
        turnstile.leave(place)

    for place in (1, 2, 3):
        turnstile.enter(place, lambda place=place: pass_on(place))
    turnstile.leave(0)
    assert up == [1, 2, 3]
    assert turnstile.up == 4
