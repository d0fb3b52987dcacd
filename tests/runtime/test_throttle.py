"""The throttle of a key in virtual time: permits, pauses, rates, statistics."""

from __future__ import annotations

import random
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from seedbed.errors import ConfigError, QuotaExhausted, RateLimited
from seedbed.runtime.throttle import KeyLimits, Permit, Throttle, open_throttles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KEY = "acme/small/chat"


def fill(throttle: Throttle, tokens: int = 0) -> list[Permit]:
    """Take all available permits."""
    return list(iter(partial(throttle.try_acquire, tokens), None))


async def acquire(throttle: Throttle, tokens: int = 0) -> Permit:
    """Wait for a permit, trying again whenever the throttle notifies."""
    while (permit := throttle.try_acquire(tokens)) is None:
        changed = trio.Event()
        unsubscribe = throttle.subscribe(changed.set)
        try:
            await changed.wait()
        finally:
            unsubscribe()
    return permit


def assert_idle(throttle: Throttle) -> None:
    """No permit is taken, and all permits of the limit are available."""
    statistics = throttle.statistics()
    assert (statistics.in_flight, statistics.held) == (0, 0)
    permits = fill(throttle)
    assert len(permits) == throttle.limit
    for permit in permits:
        permit.finished()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_parallel_requests": 0}, "max_parallel_requests must be a whole number, 1 or more, not 0"),
        ({"max_parallel_requests": 1.5}, "max_parallel_requests .* not 1.5"),
        ({"max_parallel_requests": True}, "max_parallel_requests .* not True"),
        ({"requests_per_minute": 0}, "requests_per_minute must be None for no limit, or a number above 0, not 0"),
        ({"requests_per_minute": False}, "requests_per_minute .* not False"),
        ({"tokens_per_minute": float("nan")}, "tokens_per_minute .* not nan"),
        ({"tokens_per_minute": float("inf")}, "tokens_per_minute .* not inf"),
        ({"tokens_per_minute": "60"}, "tokens_per_minute .* not '60'"),
        ({"latency_congestion": 1}, "latency_congestion must be True or False, not 1"),
    ],
)
def test_limits_are_checked(options: dict[str, Any], message: str) -> None:
    """A limit outside its range is an error that names the option and what was found."""
    with pytest.raises(ConfigError, match=message):
        KeyLimits(**options)


async def test_permits_up_to_the_limit(autojump_clock: MockClock) -> None:
    """The limit is the number of permits; one more is available whenever one ends."""
    async with open_throttles({KEY: KeyLimits(max_parallel_requests=3)}) as throttles:
        throttle = throttles.get(KEY)
        permits = fill(throttle)
        assert len(permits) == throttle.in_flight == 3
        permits[0].accepted()
        assert throttle.try_acquire() is not None
        assert throttle.try_acquire() is None


async def test_a_permit_ends_once(autojump_clock: MockClock) -> None:
    """Ending a permit twice is an error, whichever way, and frees nothing twice."""
    async with open_throttles() as throttles:
        throttle = throttles.get(KEY)
        permit = throttle.try_acquire()
        assert permit is not None
        permit.accepted()
        for end in (permit.accepted, permit.finished, lambda: permit.rate_limited(RateLimited(), 1)):
            with pytest.raises(RuntimeError, match="ended twice"):
                end()
        assert_idle(throttle)


async def test_listeners_are_called_for_free_permits(autojump_clock: MockClock) -> None:
    """A listener is called when a permit ends, and may take it, until it unsubscribes."""
    async with open_throttles({KEY: KeyLimits(max_parallel_requests=1)}) as throttles:
        throttle = throttles.get(KEY)
        taken: list[Permit | None] = []
        unsubscribe = throttle.subscribe(lambda: taken.append(throttle.try_acquire()))
        permit = await acquire(throttle)
        assert taken == []
        permit.finished()
        (second,) = taken
        assert second is not None
        unsubscribe()
        second.accepted()
        assert taken == [second]


async def test_time_at_the_limit_raises_it(autojump_clock: MockClock) -> None:
    """Where no call has been answered yet, time alone raises the limit, and listeners are called."""
    async with open_throttles({KEY: KeyLimits(max_parallel_requests=100)}) as throttles:
        throttle = throttles.get(KEY)
        taken = fill(throttle)
        throttle.subscribe(lambda: taken.extend(fill(throttle)))
        await trio.sleep(0.11)
        assert len(taken) == 32
        await trio.sleep(0.3)
        assert len(taken) == throttle.limit == 100
        for permit in taken[:50]:
            permit.accepted()


async def test_a_limit_below_the_calls_in_flight_revokes_nothing(autojump_clock: MockClock) -> None:
    """Calls in flight above a lowered limit continue; the next permit is granted when fewer are left."""
    async with open_throttles() as throttles:
        throttle = throttles.get(KEY)
        permits = fill(throttle)
        for permit in permits[4:10]:
            permit.rate_limited(RateLimited(), 1)
        assert throttle.limit == 4
        assert throttle.in_flight == 10
        left = [*permits[:4], *permits[10:]]
        await trio.sleep(2)
        while throttle.in_flight >= throttle.limit:
            assert throttle.try_acquire() is None
            left.pop().finished()
        permit = throttle.try_acquire()
        assert permit is not None
        for each in (permit, *left):
            each.accepted()


async def test_the_permit_of_a_rate_limited_call_may_be_held(autojump_clock: MockClock) -> None:
    """A permit rate-limited for its level is held for one mean latency."""
    async with open_throttles({KEY: KeyLimits(max_parallel_requests=4)}) as throttles:
        throttle = throttles.get(KEY)
        first = await acquire(throttle)
        await trio.sleep(0.5)
        first.accepted()
        permits = fill(throttle)
        permits[-1].rate_limited(RateLimited(), 1)
        assert throttle.statistics().held == 1
        assert throttle.try_acquire() is None
        start = trio.current_time()
        await acquire(throttle)
        assert trio.current_time() - start == pytest.approx(0.5)
        assert throttle.statistics().held == 0


async def test_retry_after_in_seconds_and_as_a_date(autojump_clock: MockClock) -> None:
    """A rate-limited call waits for Retry-After, in seconds or as a date, otherwise for a bounded backoff."""
    async with open_throttles(
        wall_clock=lambda: 1_700_000_000.0, backoff_base=0.5, backoff_max=3.0, rng=random.Random(1)
    ) as throttles:
        throttle = throttles.get(KEY)

        async def delay(error: RateLimited, attempt: int) -> float:
            permit = await acquire(throttle)
            seconds = permit.rate_limited(error, attempt)
            (await acquire(throttle)).accepted()
            return seconds

        assert await delay(RateLimited(retry_after=7), 1) == 7.0
        assert await delay(RateLimited(retry_after="2.5"), 1) == 2.5
        assert await delay(RateLimited(retry_after="Tue, 14 Nov 2023 22:14:20 GMT"), 1) == 60.0
        # The mean latency is 0 here, so the base is the shortest there is.
        for attempt, most in ((1, 0.02), (4, 0.16), (30, 3.0)):
            assert all([0 <= await delay(RateLimited(retry_after="soon"), attempt) <= most for _ in range(50)])


@pytest.mark.parametrize("reset", [30, "30s", "Tue, 14 Nov 2023 22:13:50 GMT"])
async def test_a_key_pauses_until_its_reset(autojump_clock: MockClock, reset: float | str) -> None:
    """If the server reports that nothing is left until a reset, no permit is granted before it; afterwards all are."""
    async with open_throttles(wall_clock=lambda: 1_700_000_000.0) as throttles, trio.open_nursery() as nursery:
        throttle = throttles.get(KEY)
        other, refused = fill(throttle)[:2]
        start = trio.current_time()
        refused.rate_limited(RateLimited(reset=reset), 1)
        instants = []
        throttle.subscribe(lambda: instants.append(trio.current_time() - start))

        async def enter() -> None:
            permit = await acquire(throttle)
            instants.append(trio.current_time() - start)
            permit.accepted()

        other.accepted()
        assert throttle.statistics().paused_until == pytest.approx(start + 30)
        assert throttle.limit == 0
        assert throttle.try_acquire() is None
        nursery.start_soon(enter)
        await trio.sleep(29.9)
        assert instants == []
        await trio.sleep(0.2)
        assert instants[0] == pytest.approx(30)
        assert len(instants) >= 2
        assert throttle.statistics().paused_until is None


async def test_a_later_reset_makes_the_pause_longer(autojump_clock: MockClock) -> None:
    """Of several resets the latest counts."""
    async with open_throttles() as throttles:
        throttle = throttles.get(KEY)
        permits = fill(throttle)
        start = trio.current_time()
        for permit, reset in zip(permits, (10, 40, 20), strict=False):
            permit.rate_limited(RateLimited(reset=reset), 1)
        for permit in permits[3:]:
            permit.accepted()
        await acquire(throttle)
        assert trio.current_time() - start == pytest.approx(40)


async def call_until_taken(throttle: Throttle, takes: Callable[[], bool], latency: float = 0.05) -> None:
    """One call, sent again after each rate limit, as a cell would be."""
    attempt = 0
    while True:
        permit = await acquire(throttle)
        await trio.sleep(latency)
        if takes():
            permit.accepted()
            return
        attempt += 1
        await trio.sleep(permit.rate_limited(RateLimited(f"no quota, time {attempt}"), attempt))


async def test_a_key_that_accepts_nothing_is_paused(autojump_clock: MockClock) -> None:
    """While everything is rate-limited, single probes are sent at growing intervals."""
    async with open_throttles(rng=random.Random(3)) as throttles, trio.open_nursery() as nursery:
        throttle = throttles.get(KEY)
        limits: list[int] = []
        throttles.watch(lambda _key, limit: limits.append(limit))
        for _ in range(200):
            nursery.start_soon(call_until_taken, throttle, lambda: False)
        await trio.sleep(60)
        limits.clear()
        early = throttle.statistics()
        await trio.sleep(60)
        late = throttle.statistics()
        assert early.limit == late.limit == 1
        assert 0 in limits
        assert early.sent < 120
        assert late.sent - early.sent <= 20
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("retry_after", [None, 1, 3_600])
async def test_patience_ends_in_an_error(autojump_clock: MockClock, retry_after: float | None) -> None:
    """If everything is rate-limited until patience ends, the error names the key and the last answer."""
    async with open_throttles(patience=100.0, rng=random.Random(5)) as throttles:
        throttle = throttles.get(KEY)
        start = trio.current_time()
        count = 0
        with pytest.raises(QuotaExhausted, match="'acme/small/chat': every call was rate-limited for 100 s") as caught:
            while True:
                permit = await acquire(throttle)
                count += 1
                delay = permit.rate_limited(RateLimited(f"quota {count}", retry_after=retry_after), count)
                assert trio.current_time() - start + delay <= 100.0 + 1e-6
                await trio.sleep(delay)
        assert trio.current_time() - start == pytest.approx(100.0)
        assert caught.value.key == KEY
        assert str(caught.value.last) == f"quota {count}"
        assert str(caught.value).endswith(f"last answer: quota {count}")
        assert (throttle.in_flight, throttle.statistics().held) == (0, 0)


async def test_pauses_end_when_patience_does(autojump_clock: MockClock) -> None:
    """A pause until a distant reset ends with patience: one last call is sent and decides."""
    async with open_throttles(patience=50.0) as throttles:
        throttle = throttles.get(KEY)
        start = trio.current_time()
        permit = await acquire(throttle)
        assert permit.rate_limited(RateLimited(reset=10_000), 1) <= 50.0
        permit = await acquire(throttle)
        assert trio.current_time() - start == pytest.approx(50.0)
        permit.accepted()
        assert_idle(throttle)


async def test_a_key_that_recovers_continues(autojump_clock: MockClock) -> None:
    """If a key accepts calls again before patience ends, every call succeeds and the ceiling is reached."""
    async with open_throttles({KEY: KeyLimits(max_parallel_requests=64)}, rng=random.Random(7)) as throttles:
        throttle = throttles.get(KEY)
        start = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(3_000):
                nursery.start_soon(call_until_taken, throttle, lambda: trio.current_time() - start > 200)
        statistics = throttle.statistics()
        assert statistics.accepted == 3_000
        assert statistics.limit == 64
        assert statistics.sent == statistics.accepted + statistics.rate_limited
        await trio.sleep(1)
        assert_idle(throttle)


async def test_rate_limits_before_a_long_idle_time_are_forgotten(autojump_clock: MockClock) -> None:
    """A rate limit before a long time without requests is forgotten at the next request."""
    async with open_throttles(patience=100.0, backoff_max=10.0) as throttles:
        throttle = throttles.get(KEY)
        (await acquire(throttle)).rate_limited(RateLimited(), 1)
        await trio.sleep(1_000)
        (await acquire(throttle)).rate_limited(RateLimited(), 1)
        # Within a streak the time between two calls counts, however few they are.
        await trio.sleep(49)
        (await acquire(throttle)).rate_limited(RateLimited(), 1)
        await trio.sleep(49)
        (await acquire(throttle)).rate_limited(RateLimited(), 1)
        await trio.sleep(3)
        with pytest.raises(QuotaExhausted):
            (await acquire(throttle)).rate_limited(RateLimited(), 1)


async def test_errors_are_no_signal(autojump_clock: MockClock) -> None:
    """Calls that fail otherwise do not change the limit and count as failed."""
    async with open_throttles() as throttles:
        throttle = throttles.get(KEY)
        for _ in range(100):
            for permit in fill(throttle):
                permit.finished()
        assert throttle.limit == 16
        assert throttle.statistics().failed == 1_600


async def test_requests_per_minute(autojump_clock: MockClock) -> None:
    """A caller that tries again when notified respects the rate and nearly reaches it."""
    async with open_throttles({KEY: KeyLimits(requests_per_minute=60)}) as throttles:
        throttle = throttles.get(KEY)
        instants: list[float] = []
        start = trio.current_time()
        while (now := trio.current_time() - start) < 300:
            (await acquire(throttle)).accepted()
            instants.append(now)
        assert 300 <= len(instants) <= 307
        for begin in instants:
            assert sum(begin <= instant < begin + 60 for instant in instants) <= 67


async def test_tokens_per_minute_are_settled(autojump_clock: MockClock) -> None:
    """Fewer tokens than estimated let the next call go sooner, more later; rate-limited calls use none."""
    async with open_throttles({KEY: KeyLimits(tokens_per_minute=600)}) as throttles:
        throttle = throttles.get(KEY)

        async def wait_after(tokens: int | None) -> float:
            await trio.sleep(1_000)
            permit = await acquire(throttle, 60)
            if tokens is None:
                permit.rate_limited(RateLimited(), 1)
                await trio.sleep(1)
            else:
                permit.accepted(tokens)
            start = trio.current_time()
            (await acquire(throttle, 60)).finished()
            return trio.current_time() - start

        assert await wait_after(60) == pytest.approx(6)
        assert await wait_after(0) == 0
        assert await wait_after(120) == pytest.approx(12)
        assert await wait_after(None) == 0
        assert throttle.statistics().tokens == 180


async def test_a_refund_notifies_listeners(autojump_clock: MockClock) -> None:
    """A task that waits for tokens goes as soon as another call turns out to have used few."""
    async with open_throttles({KEY: KeyLimits(tokens_per_minute=600)}) as throttles, trio.open_nursery() as nursery:
        throttle = throttles.get(KEY)
        first = await acquire(throttle, 60)
        start = trio.current_time()

        async def end_first() -> None:
            await trio.sleep(1)
            first.accepted(5)

        nursery.start_soon(end_first)
        await acquire(throttle, 60)
        assert trio.current_time() - start == pytest.approx(1)


async def test_statistics_are_a_snapshot(autojump_clock: MockClock) -> None:
    """Statistics do not change after they were taken."""
    async with open_throttles({KEY: KeyLimits(max_parallel_requests=8)}) as throttles:
        throttle = throttles.get(KEY)
        first, second, third, fourth = fill(throttle)[:4]
        await trio.sleep(0.25)
        first.accepted(100)
        second.rate_limited(RateLimited(), 1)
        third.finished(10)
        statistics = throttle.statistics()
        fourth.accepted(1)
        assert attrs.asdict(statistics) == {
            "key": KEY,
            "limit": 8,
            "ceiling": 8,
            "in_flight": 5,
            "held": 1,
            "sent": 8,
            "accepted": 1,
            "rate_limited": 1,
            "failed": 1,
            "tokens": 110,
            "paused_until": None,
            "mean_latency": pytest.approx(0.25),
        }
        assert throttle.mean_latency == pytest.approx(0.25)


async def test_the_manager_makes_throttles_on_first_use(autojump_clock: MockClock) -> None:
    """A key has one throttle, with its own or default limits, and watchers are notified of every change."""
    own = KeyLimits(max_parallel_requests=5)
    async with open_throttles({"a": own}, default=KeyLimits(max_parallel_requests=2)) as throttles:
        assert throttles.keys() == ()
        assert throttles.get("a") is throttles.get("a")
        assert throttles.get("a").limits is own
        assert throttles.get("b").limits.max_parallel_requests == 2
        assert throttles.keys() == ("a", "b")
        assert {key: each.ceiling for key, each in throttles.statistics().items()} == {"a": 5, "b": 2}
        heard: list[tuple[str, int]] = []
        unwatch = throttles.watch(lambda key, limit: heard.append((key, limit)))
        (await acquire(throttles.get("b"))).rate_limited(RateLimited(reset=1), 1)
        assert heard == [("b", 0)]
        (await acquire(throttles.get("b"))).accepted()
        assert heard == [("b", 0), ("b", 2)]
        unwatch()
        (await acquire(throttles.get("b"))).rate_limited(RateLimited(reset=1), 1)
        assert heard == [("b", 0), ("b", 2)]


async def test_exceptions_of_the_block_are_not_wrapped(autojump_clock: MockClock) -> None:
    """An exception or a group raised inside `open_throttles` is raised unchanged."""
    with pytest.raises(KeyError, match="mine"):
        async with open_throttles():
            raise KeyError("mine")
    group = ExceptionGroup("two", [KeyError("a"), KeyError("b")])
    with pytest.raises(ExceptionGroup) as caught:
        async with open_throttles():
            raise group
    assert caught.value is group


@attrs.frozen(kw_only=True)
class Call:
    """One call of a scenario."""

    start: float
    waits: bool
    latency: float
    outcomes: list[str]
    cancel_after: float | None
    tokens: int


instants = st.integers(0, 40).map(lambda ticks: ticks / 8)
calls = st.builds(
    Call,
    start=instants,
    waits=st.booleans(),
    latency=instants,
    outcomes=st.lists(st.sampled_from(["accepted", "refused", "refused", "reset", "finished"]), max_size=4),
    cancel_after=st.none() | instants,
    tokens=st.integers(0, 100),
)


@given(
    st.lists(calls, max_size=40),
    st.builds(
        KeyLimits,
        max_parallel_requests=st.integers(1, 40),
        requests_per_minute=st.none() | st.integers(30, 6_000),
        tokens_per_minute=st.none() | st.integers(600, 60_000),
        latency_congestion=st.booleans(),
    ),
    st.integers(0, 2**32),
)
def test_random_runs_respect_the_limits_and_end(calls: list[Call], limits: KeyLimits, seed: int) -> None:
    """For random calls, no permit is granted at the limit or in a pause, and every call ends or is cancelled."""
    trio.run(run_scenario, calls, limits, seed, clock=MockClock(autojump_threshold=0))


async def run_scenario(calls: list[Call], limits: KeyLimits, seed: int) -> None:
    """Run the calls, half of them in tasks that wait and half from a lane, and check every grant."""
    async with open_throttles({KEY: limits}, patience=1e6, rng=random.Random(seed)) as throttles:
        throttle = throttles.get(KEY)
        ended = trio.Semaphore(0)
        # The lane: calls that do not wait in a task of their own; the listener starts them.
        lane: list[tuple[Call, Iterator[str]]] = []

        def granted(permit: Permit) -> Permit:
            statistics = throttle.statistics()
            assert statistics.paused_until is None
            assert statistics.in_flight + statistics.held <= statistics.limit <= limits.max_parallel_requests
            return permit

        async def run(call: Call, outcomes: Iterator[str], permit: Permit) -> float | None:
            """Use a permit; seconds to wait if the call must be sent again."""
            try:
                await trio.sleep(call.latency)
            except trio.Cancelled:
                permit.finished()
                raise
            match next(outcomes, "accepted"):
                case "refused":
                    return permit.rate_limited(RateLimited(), 1)
                case "reset":
                    return permit.rate_limited(RateLimited(reset=2.0), 1)
                case "finished":
                    permit.finished()
                case _:
                    permit.accepted(call.tokens * 2)
            ended.release()
            return None

        async def in_task(call: Call) -> None:
            await trio.sleep(call.start)
            outcomes = iter(call.outcomes)
            with ExitStack() as stack:
                if call.cancel_after is not None:
                    stack.enter_context(trio.move_on_after(call.cancel_after))
                delay: float | None = 0.0
                while delay is not None:
                    await trio.sleep(delay)
                    delay = await run(call, outcomes, granted(await acquire(throttle, call.tokens)))
                return
            ended.release()

        async def from_lane(call: Call, outcomes: Iterator[str], permit: Permit) -> None:
            delay = await run(call, outcomes, permit)
            if delay is not None:
                await trio.sleep(delay)
                lane.append((call, outcomes))
                pump()

        def pump() -> None:
            while lane:
                call, outcomes = lane[0]
                permit = throttle.try_acquire(call.tokens)
                if permit is None:
                    return
                del lane[0]
                nursery.start_soon(from_lane, call, outcomes, granted(permit))

        async def into_lane(call: Call) -> None:
            await trio.sleep(call.start)
            lane.append((call, iter(call.outcomes)))
            pump()

        throttle.subscribe(pump)
        with trio.fail_after(100_000):
            async with trio.open_nursery() as nursery:
                for call in calls:
                    nursery.start_soon(in_task if call.waits else into_lane, call)
                # Keeps the nursery open for the lane while only a pause or the rate is waited for.
                for _ in calls:
                    await ended.acquire()
        await trio.sleep(1_000)
        statistics = throttle.statistics()
        assert statistics.sent == statistics.accepted + statistics.rate_limited + statistics.failed
        assert (statistics.in_flight, statistics.held) == (0, 0)
        assert statistics.paused_until is None
        assert throttle.try_acquire() is not None
