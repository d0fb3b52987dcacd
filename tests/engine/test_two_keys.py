"""Cells whose calls use more than one key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

import seedbed as sb

if TYPE_CHECKING:
    from trio.testing import MockClock


def crossed(own: str, other: str) -> sb.Column:
    """A column that asks the other key first and then its own."""

    async def fill(context: sb.CellContext) -> int:
        async def send() -> int:
            await trio.sleep(1)
            return 1

        return await context.call(send, key=other) + await context.call(send)

    return sb.Column(own, fill, key=own, other_keys=(other,))


async def test_cells_that_ask_two_keys_crosswise_do_not_wait_for_each_other(autojump_clock: MockClock) -> None:
    """A permit that is not used is given back before another key is waited for."""
    limits = {key: sb.KeyLimits(max_parallel_requests=1) for key in ("x", "y")}
    with trio.fail_after(1000):
        async with sb.open_build([crossed("x", "y"), crossed("y", "x")], rows=3, limits=limits) as build:
            report = await build.wait()
    assert report.written == 3
    assert {key: throttle.in_flight for key, throttle in report.throttles.items()} == {"x": 0, "y": 0}
    assert {key: throttle.sent for key, throttle in report.throttles.items()} == {"x": 6, "y": 6}


async def test_a_permit_that_is_not_used_costs_no_request_of_the_rate(autojump_clock: MockClock) -> None:
    """A key of 60 requests a minute is not charged for calls that another key answered."""

    async def fill(context: sb.CellContext) -> int:
        async def send() -> int:
            return 1

        return await context.call(send, key="other")

    limits = {"own": sb.KeyLimits(requests_per_minute=1), "other": sb.KeyLimits()}
    started = trio.current_time()
    column = sb.Column("a", fill, key="own", other_keys="other")
    async with sb.open_build([column], rows=50, limits=limits) as build:
        report = await build.wait()
    assert report.written == 50
    assert report.throttles["own"].sent == 0
    assert trio.current_time() - started < 1


async def test_limits_may_be_given_for_keys_that_only_calls_use(autojump_clock: MockClock) -> None:
    """The ceiling of a key that a column names among its other keys holds."""
    in_flight = peak = 0

    async def fill(context: sb.CellContext) -> int:
        async def send() -> int:
            nonlocal in_flight, peak
            in_flight += 1
            peak = max(peak, in_flight)
            await trio.sleep(1)
            in_flight -= 1
            return 1

        return await context.call(send, key="inner")

    column = sb.Column("a", fill, other_keys=("inner",))
    async with sb.open_build([column], rows=20, limits={"inner": sb.KeyLimits(max_parallel_requests=3)}) as build:
        await build.wait()
    assert peak == 3
