"""Flow control: rate limits delay only the cell that was rate-limited."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any

import pytest
import trio
from engine_helpers import Watched, config, grow, seed

from seedbed import AllRowsDropped, Column, KeyLimits, QuotaExhausted, RateLimited, open_build, open_throttles
from seedbed.observe import events

if TYPE_CHECKING:
    from trio.testing import MockClock


@pytest.mark.parametrize("budget", [1, 2, 8, 1024])
@pytest.mark.parametrize("limit", [1, 2, 8])
async def test_a_rate_limited_key_does_not_stall_another(autojump_clock: MockClock, budget: int, limit: int) -> None:
    """While key A, declared first, refuses everything, key B runs as if it were alone, whatever the budget."""
    start = trio.current_time()
    open_at = start + 500.0

    async def a(n: int) -> int:
        if trio.current_time() < open_at:
            raise RateLimited("later", retry_after=2.0)
        return n

    def columns() -> tuple[Watched, Column]:
        watched = Watched(1.0)
        return watched, Column("b", watched, key="B")

    options = config(max_submitted_tasks=budget, throttle_patience=1_000)
    limits = {"B": KeyLimits(max_parallel_requests=limit)}
    alone, column = columns()
    await grow([seed(), column], rows=40, config=options, limits=limits)
    alone_took = max(when for when, _ in alone.finished) - start

    start = trio.current_time()
    open_at = start + 500.0
    beside, column = columns()
    grown = await grow([seed(), Column("a", a, key="A"), column], rows=40, config=options, limits=limits)
    assert max(when for when, _ in beside.finished) - start == alone_took
    assert grown.report.written == 40
    assert grown.report.dropped == ()
    assert grown.report.throttles["A"].rate_limited > 0
    assert grown.report.throttles["B"].rate_limited == 0


async def test_a_hanging_key_does_not_stall_another(autojump_clock: MockClock) -> None:
    """A key at its limit with calls that take for ever leaves the rest of the budget to the other."""
    hanging, quick = Watched(1_000.0), Watched(1.0)
    await grow(
        [seed(), Column("a", hanging, key="A"), Column("b", quick, key="B")],
        rows=30,
        config=config(max_submitted_tasks=4),
        limits={"A": KeyLimits(max_parallel_requests=2), "B": KeyLimits(max_parallel_requests=2)},
    )
    assert max(when for when, _ in quick.finished) < min(when for when, _ in hanging.finished)


async def test_a_rate_limit_is_neither_an_error_nor_an_attempt(autojump_clock: MockClock) -> None:
    """A cell refused more often than it has attempts is filled all the same, and no window hears of it."""

    def act(n: int, attempt: int) -> int:
        if attempt <= 10:
            raise RateLimited("busy", retry_after=1)
        return n

    busy = Watched(0.1, act=act)
    grown = await grow(
        [seed(), Column("v", busy, key="k")],
        rows=6,
        config=config(salvage_max_rounds=0, shutdown_error_window=1, shutdown_error_rate=0.01),
    )
    assert grown.column("v") == list(range(6))
    assert grown.report.attempts["v"] == 6
    assert grown.report.errors == {}
    assert set(busy.attempts.values()) == {11}
    assert grown.report.throttles["k"].rate_limited == 60


async def waits(header: Any, *, reset: Any = None) -> list[float]:
    """How long each of two cells waited after the first of them was refused once, with that header."""
    start, instants = trio.current_time(), {0: [], 1: []}

    async def v(n: int) -> int:
        await trio.sleep(0.5 * n)
        instants[n].append(trio.current_time() - start)
        if n == 0 and len(instants[0]) == 1:
            raise RateLimited("wait", retry_after=header, reset=reset)
        return n

    await grow([seed(), Column("v", v, key="k")], rows=2, limits={"k": KeyLimits(max_parallel_requests=1)})
    return [instants[0][-1], instants[1][-1]]


@pytest.mark.parametrize("header", [30, 30.0, "30", "30s"])
async def test_retry_after_seconds(autojump_clock: MockClock, header: Any) -> None:
    """The rate-limited cell waits as long as the server asked, and the others continue."""
    assert await waits(header) == [30.0, 0.5]


async def test_retry_after_date(autojump_clock: MockClock) -> None:
    """An HTTP date is waited for; it has whole seconds, so the wait is known to a second and a little."""
    date = datetime.now(UTC) + timedelta(seconds=100)
    refused, other = await waits(format_datetime(date, usegmt=True))
    assert 95 < refused <= 100
    assert other == 0.5


async def test_reset_pauses_the_whole_key(autojump_clock: MockClock) -> None:
    """Where the provider says that nothing is left, nobody of that key is sent before the reset."""
    refused, other = await waits(None, reset=20)
    assert refused >= 20.0
    assert other == pytest.approx(20.5)


async def test_patience_ends_the_run_and_drops_nothing(autojump_clock: MockClock) -> None:
    """A key that refuses everything stops the run with an error that names it; its rows are unfinished, not dropped."""

    def act(n: int, _: int) -> int:
        raise RateLimited("quota is gone until next month")

    start = trio.current_time()
    with pytest.raises(QuotaExhausted) as raised:
        await grow(
            [seed(), Column("v", Watched(0.1, act=act), key="provider/model")],
            rows=10,
            config=config(throttle_patience=60, buffer_size=5),
        )
    assert str(raised.value) == (
        "key 'provider/model': every call was rate-limited for 60 s (throttle_patience); "
        "last answer: quota is gone until next month"
    )
    assert raised.value.key == "provider/model"
    report = raised.value.report
    assert report is not None
    assert report.dropped == ()
    assert report.unfinished == (range(10),)
    assert report.errors == {}
    assert 60 <= trio.current_time() - start <= 60 + 5 + 1


async def test_patience_is_renewed_by_an_answer(autojump_clock: MockClock) -> None:
    """A key that answers now and then is not abandoned, however long it takes in all."""
    start = trio.current_time()
    last = start

    async def v(n: int) -> int:
        nonlocal last
        if trio.current_time() < last + 40:
            raise RateLimited("slowly", retry_after=5)
        last = trio.current_time()
        return n

    grown = await grow([seed(), Column("v", v, key="k")], rows=6, config=config(throttle_patience=60))
    assert grown.report.written == 6
    assert trio.current_time() - start >= 6 * 40


async def test_a_rate_limited_cell_without_a_key_waits_too(autojump_clock: MockClock) -> None:
    """Where no throttle is in between, a rate limit still waits as long as asked, or backs off."""
    seen: list[tuple[int, float]] = []

    async def v(n: int) -> int:
        seen.append((n, trio.current_time() - start))
        if len([each for each, _ in seen if each == n]) < 3:
            raise RateLimited("wait", retry_after=10 if n == 0 else None)
        return n

    start = trio.current_time()
    with trio.fail_after(1_000):
        grown = await grow([seed(), Column("v", v)], rows=2)
    assert [when for n, when in seen if n == 0] == [0.0, 10.0, 20.0]
    assert len({when for n, when in seen if n == 1}) == 3
    assert grown.report.attempts["v"] == 2


async def test_patience_holds_for_columns_without_a_key(autojump_clock: MockClock) -> None:
    """Patience also holds for a column without a key, so that no run continues for ever."""

    async def v(n: int) -> int:
        raise RateLimited("never")

    with trio.fail_after(10_000), pytest.raises(QuotaExhausted, match="key 'v': every call was rate-limited for 60 s"):
        await grow([seed(), Column("v", v)], rows=2, config=config(throttle_patience=60))


@pytest.mark.parametrize(
    ("limits", "rows", "tokens", "at_least"),
    [
        # A tenth of a minute's worth may go at once; the rest comes at the rate.
        (KeyLimits(requests_per_minute=60), 126, 0, 120.0),
        (KeyLimits(tokens_per_minute=6_000), 126, 100, 120.0),
    ],
)
async def test_rates_per_minute_are_respected(
    autojump_clock: MockClock, limits: KeyLimits, rows: int, tokens: int, at_least: float
) -> None:
    """A run that could end at once takes as long as its rate says, and no longer; in no minute is more sent."""
    quick = Watched(0.0)
    start = trio.current_time()
    await grow([seed(), Column("v", quick, key="k", tokens=tokens)], rows=rows, limits={"k": limits})
    took = trio.current_time() - start
    assert took == pytest.approx(at_least)
    starts = sorted(when for when, _ in quick.started)
    for first in starts:
        assert sum(first <= when < first + 60 for when in starts) <= 66


async def test_two_builds_may_share_throttles(autojump_clock: MockClock) -> None:
    """Throttles opened outside are respected over all builds that use them."""
    server = Watched(1.0)
    async with (
        open_throttles({"k": KeyLimits(max_parallel_requests=3)}) as throttles,
        trio.open_nursery() as nursery,
    ):

        async def one() -> None:
            await grow([seed(), Column("v", server, key="k")], rows=9, throttles=throttles)

        nursery.start_soon(one)
        nursery.start_soon(one)
    assert server.peak == 3
    assert len(server.finished) == 18


async def test_readers_get_changes_of_the_limit(autojump_clock: MockClock) -> None:
    """Every change of a key's limit is an event, in the order of the report's history."""
    told: list[tuple[float, int]] = []

    def listen(event: events.Event) -> None:
        if isinstance(event, events.ThrottleChanged):
            assert event.key == "k"
            told.append((event.time, event.limit))

    served = 0

    async def v(n: int) -> int:
        nonlocal served
        served += 1
        try:
            await trio.sleep(1)
            if served > 8:
                raise RateLimited("full")
        finally:
            served -= 1
        return n

    grown = await grow([seed(), Column("v", v, key="k")], rows=100, readers=[listen])
    limits = [limit for _, limit in told]
    assert len(limits) > 1
    assert all(before != after for before, after in itertools.pairwise(limits))
    assert limits[-1] == grown.report.throttles["k"].limit


async def test_a_parked_cell_of_a_dropped_row_is_not_sent_again(autojump_clock: MockClock) -> None:
    """A cell that waits for its retry is forgotten with its row."""
    sent = []

    async def refused(n: int) -> int:
        sent.append(n)
        raise RateLimited("later", retry_after=100)

    def act(n: int, _: int) -> int:
        raise ValueError("bad row")

    async with open_build(
        [seed(), Column("a", refused, key="k"), Column("b", Watched(5.0, act=act))], rows=1, config=config()
    ) as build:
        with pytest.raises(AllRowsDropped):
            await build.wait()
    assert sent == [0]
    assert [drop.column for drop in build.report.dropped] == ["b"]
