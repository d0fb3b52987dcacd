"""Which requests run now, which wait and which are rejected; docs/explanation/overload.md has the reasons.

`Admission` decides without waiting; only `wait` and `wait_idle` wait. All on trio's thread.
"""

from __future__ import annotations

import math
from collections import Counter
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import takewhile
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import trio

from ..errors import Overloaded
from ..runtime.threads import Lease

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


# The least weight of the last request in an average.
_RECENT: Final = 1 / 16
# The least time that requests took grows by this factor with each request, so that it can rise again.
_SLIP: Final = 1.005
# A request that is cut off at its deadline would have needed more, unknown how much. Chosen with the simulation in the
# tests: a smaller factor starts too many requests in vain.
_LATE: Final = 4.0
# The time left must be this many times the expected time; chosen with the simulation in the tests. A late response is
# wasted work, which is worse than a rejection, so a request starts only if it will probably be in time.
_MARGIN: Final = 1.08
# A request that waited takes the slot of one that is about to come with more time left, so it must have more to spare.
_SPARE: Final = 1.7
# Seconds after which a forecast may no longer hold: a plan that was not started since then is tried again, and the next
# measurement replaces the forecast.
_OUTDATED: Final = 0.25
# Seconds over which the loop is observed, and the share of them from which on it counts as busy.
_WINDOW: Final = 0.01
_BUSY: Final = 0.75
# A wait for I/O of so many seconds shows that no task was ready. A shorter one may only have collected an event.
_SLEPT: Final = 50e-6
# At least this share of a busy loop is assumed to be left for requests.
_LEAST_USEFUL: Final = 0.25
# The weight of one window whose share was larger, and of one whose share was smaller. The fewer requests run, the less
# they get beside rejections; a share that fell as fast as it rises would let fewer and fewer start.
_MORE_USEFUL: Final = 1 / 8
_LESS_USEFUL: Final = 1 / 64

PATIENCE: Final = 1.0
"""Seconds without a free thread after which a request that has no deadline is rejected."""

T = TypeVar("T")


@attrs.define(eq=False)
class Forecast:
    """The expected needs of a request of one plan, learnt from earlier ones. Changed by `Admission` only."""

    alone: float = 0.0  # seconds that a request takes at least, endpoints included; 0 if unknown
    cut: float = 0.0  # seconds after which the last was cut off, for as long as none was in time
    loop: float = 0.0  # seconds of the loop that a request uses; 0 if unknown
    threads: float = 0.0  # seconds of threads that a request uses
    used: float = 0.0  # seconds of the loop that all requests that have ended used
    started: float = -math.inf  # when the last request was started
    learnt: float = -math.inf  # when the last request ended in time

    def beside(self, others: Iterable[tuple[Forecast, int]]) -> tuple[float, float]:
        """How many of these requests compete for the loop and for threads with one of this plan.

        One that mostly waits for endpoints counts for less than one, compared with a request that seldom does.
        """
        loop = threads = 0.0
        share, thread_share = self.share_of(self.loop), self.share_of(self.threads)
        for forecast, count in others:
            loop += count * min(1.0, forecast.share_of(forecast.loop) / share)
            if self.threads and forecast.threads:
                threads += count * min(1.0, forecast.share_of(forecast.threads) / thread_share)
        return loop, threads

    def share_of(self, seconds: float) -> float:
        """The share of a request's time that these seconds are; all of it if nothing is known."""
        took = self.alone or self.cut
        return min(1.0, seconds / took) if seconds and took else 1.0

    def learn(self, claim: Claim, now: float, *, in_time: bool) -> None:
        """Learn from a request that has ended; if not `in_time`, it was cut off at its deadline."""
        assert claim.started is not None
        took = now - claim.started
        self.used += claim.loop
        if in_time:
            recent = max(_RECENT, min(1.0, (now - self.learnt) / _OUTDATED)) if self.alone else 1.0
            self.learnt = now
            self.loop += (claim.loop - self.loop) * recent
            self.threads += (claim.threads - self.threads) * recent
            self.alone = min(self.alone * _SLIP, took) if self.alone else took
        elif self.alone:
            self.loop += max(0.0, min(self.alone, claim.loop * _LATE) - self.loop) * _RECENT
            self.threads += max(0.0, claim.threads - self.threads) * _RECENT
        else:
            # The first requests delayed each other. Running one at a time will show what one takes.
            self.loop = max(self.loop, self.used - claim.used_before)
            self.cut = took
            self.threads = max(self.threads, claim.threads)


def _no_waiter() -> None:
    pass


@attrs.define(eq=False)
class Claim:
    """A request that asked for a slot. Changed by `Admission` and `LoopMeter`, `threads` by the thread pool."""

    deadline: float
    forecast: Forecast
    meter: LoopMeter
    started: float | None = None  # when it got its slot
    used_before: float = 0.0  # what its plan had used of the loop by then
    loop: float = 0.0  # seconds of the loop that it has used
    threads: float = 0.0  # seconds of threads
    wake: Callable[[], object] = _no_waiter  # called when it gets its slot after waiting

    def has_slot(self) -> bool:
        """True if it runs, or has run."""
        return self.started is not None


current_claim: ContextVar[Claim | None] = ContextVar("seedbed.plans.current_claim", default=None)
"""The claim of the request that the current task works for."""


class LoopMeter(trio.abc.Instrument):
    """Measures how busy the loop is, and with what. Time between two task steps belongs to the first of them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = clock()  # when the current task step, or the current wait for I/O, began
        self._waits = True  # for I/O
        self._claim: Claim | None = None  # of the current task
        self._slept = 0.0  # seconds that the loop waited for I/O
        self._own = 0.0  # seconds of the tasks of requests
        self._window = self._last, 0.0, 0.0  # its start, and `_slept` and `_own` then
        self.woke = self._last  # the last time at which no task was ready
        self.is_saturated = False
        self.useful = 1.0  # the share of a busy loop that requests get; the rest goes to clients, rejections, the host

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.step(self._clock(), task.context.get(current_claim))

    def before_io_wait(self, timeout: float) -> None:  # noqa: ARG002  trio's interface
        self.pause(self._clock())

    def step(self, now: float, claim: Claim | None) -> None:
        """A task step begins, for that request or for none."""
        before = self._claim
        if before is not None:
            used = now - self._last
            before.loop += used
            self._own += used
        elif self._waits:
            self._waits = False
            slept = now - self._last
            self._slept += slept
            if slept > _SLEPT:
                self.woke = now
                self._observe(now)
        self._last = now
        self._claim = claim if claim is None or claim.meter is self else None

    def pause(self, now: float) -> None:
        """The loop looks for I/O before the next task step."""
        self.step(now, None)
        self._waits = True
        self._observe(now)

    def _observe(self, now: float) -> None:
        start, slept, own = self._window
        seconds = now - start
        if seconds < _WINDOW:
            return
        busy, own = seconds - (self._slept - slept), self._own - own
        self._window = now, self._slept, self._own
        self.is_saturated = busy >= _BUSY * seconds
        if self.is_saturated:
            useful = max(_LEAST_USEFUL, own / busy)
            self.useful += (useful - self.useful) * (_MORE_USEFUL if useful > self.useful else _LESS_USEFUL)


class ThreadPool:
    """A fixed number of threads, first come, first served.

    A thread whose caller was cancelled continues and occupies its slot: it is *late*. A request waits for a thread as
    long as it can still finish; one without a deadline until no thread has become free for `PATIENCE` seconds.
    """

    def __init__(self, size: int, clock: Callable[[], float]) -> None:
        self.limiter = trio.CapacityLimiter(size)  # held by leases until their threads end
        self.late = 0
        self.late_completions = 0
        self._clock = clock
        self._patient: set[trio.CancelScope] = set()  # of requests without a deadline that wait
        self._idle = trio.Event()

    @property
    def size(self) -> int:
        return int(self.limiter.total_tokens)

    @property
    def busy(self) -> int:
        """Threads that work, late ones included."""
        return self.limiter.borrowed_tokens

    async def run(self, function: Callable[[], T], claim: Claim | None = None) -> T:
        """Run `function` in a thread; when cancelled, the thread is abandoned and this raises at once."""
        lease = Lease(lambda: self._release(lease))
        await self._acquire(lease, claim)
        started = False
        began = self._clock()

        def work() -> T:
            nonlocal started
            started = True
            return function()

        try:
            return await lease.run(work)
        except trio.Cancelled:
            if lease.abandoned:
                self.late += 1
            elif started:  # it ended in the instant between the cancellation and now
                self.late_completions += 1
            raise
        finally:
            if claim is not None:
                claim.threads += self._clock() - began

    async def wait_idle(self) -> None:
        while self.busy:
            self._idle = trio.Event()
            await self._idle.wait()

    async def _acquire(self, lease: Lease, claim: Claim | None) -> None:
        try:
            return self.limiter.acquire_on_behalf_of_nowait(lease)
        except trio.WouldBlock:
            pass
        ends = math.inf if claim is None else claim.deadline - claim.forecast.threads
        patient = ends == math.inf
        with trio.CancelScope(deadline=self._clock() + PATIENCE if patient else ends) as scope:
            if patient:
                self._patient.add(scope)
            try:
                return await self.limiter.acquire_on_behalf_of(lease)
            finally:
                self._patient.discard(scope)
        raise Overloaded(
            f"none of {self.size} threads (cpu_threads) became free in time; "
            f"{self.late} work on nodes whose requests have ended"
        )

    def _release(self, lease: Lease) -> None:
        if lease.abandoned:
            self.late -= 1
            self.late_completions += 1
        for scope in self._patient:
            scope.deadline = self._clock() + PATIENCE
        self.limiter.release_on_behalf_of(lease)
        if not self.busy:
            self._idle.set()


class Admission:
    """The slots of an engine: at most `limit` requests run and `max_queue` wait; all others are rejected at once.

    A request with a deadline is started beside others only if it is expected to be in time: an overloaded engine that
    started everything would finish nothing. Otherwise it waits, if there is time to spare and no more requests wait
    before it than are expected to end until then. Of those that wait, the first that fits is next. A request that comes
    when nothing runs, or when loop and threads are idle, always fits.
    """

    def __init__(
        self, limit: int, max_queue: int, *, meter: LoopMeter, pool: ThreadPool, clock: Callable[[], float]
    ) -> None:
        self._limit = limit
        self._max_queue = max_queue
        self._meter = meter
        self._clock = clock
        self._pool = pool
        self._running: dict[Claim, None] = {}  # in the order in which they started
        self._by_plan: Counter[Forecast] = Counter()  # the number of running requests of each plan
        self._queue: list[Claim] = []  # in the order in which they came
        self._closed = False
        self._idle = trio.Event()

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def queued(self) -> int:
        return len(self._queue)

    def ask(self, deadline: float, forecast: Forecast) -> Claim:
        """Ask for a slot: the claim has started, or `wait` for it. Raises Overloaded if it can do neither in time."""
        if self._closed:
            raise _closing()
        now = self._clock()
        claim = Claim(deadline, forecast, self._meter)
        is_probe = len(self._running) < self._limit and now - forecast.started >= _OUTDATED
        if is_probe or self._fits(claim, now, _MARGIN):
            self._start(claim, now)
            return claim
        if len(self._queue) >= self._max_queue:
            raise Overloaded(f"{self.running} requests run and {self.queued} wait (max_queue)")
        if deadline < math.inf and not self._can_wait(claim, now):
            raise Overloaded(
                f"its deadline could not be met: {self.running} requests run and {self.queued} wait before it"
            )
        self._queue.append(claim)
        return claim

    async def wait(self, claim: Claim) -> None:
        """Wait for a slot, until less is left before the deadline than a request takes at least."""
        woken = trio.Event()
        claim.wake = woken.set
        try:
            with trio.CancelScope(deadline=claim.deadline - claim.forecast.alone):
                await woken.wait()
        except BaseException:
            self.withdraw(claim)
            raise
        if not claim.has_slot():
            self.withdraw(claim)
            raise _closing() if self._closed else Overloaded("its deadline could not be met any more while it waited")

    def withdraw(self, claim: Claim) -> None:
        """End a request that has done nothing yet, with or without a slot."""
        if claim in self._running:
            self.leave(claim, in_time=None)
        elif claim in self._queue:
            self._queue.remove(claim)

    def leave(self, claim: Claim, *, in_time: bool | None) -> None:
        """Free the slot of a request that has ended: done, cut off at its deadline, or otherwise (None)."""
        now = self._clock()
        if in_time is not None:
            claim.forecast.learn(claim, now, in_time=in_time)
        del self._running[claim]
        self._by_plan[claim.forecast] -= 1
        if not self._by_plan[claim.forecast]:
            del self._by_plan[claim.forecast]
        for waiting in tuple(self._queue):
            if len(self._running) >= self._limit:
                break
            if self._fits(waiting, now, _SPARE):
                self._queue.remove(waiting)
                self._start(waiting, now)
                waiting.wake()
        if not self._running:
            self._idle.set()

    @contextmanager
    def work_for(self, claim: Claim) -> Iterator[None]:
        """Attribute the work of the current task and its children to that claim."""
        outer = current_claim.set(claim)
        self._meter.step(self._clock(), claim)
        try:
            yield
        finally:
            self._meter.step(self._clock(), None)
            current_claim.reset(outer)

    def close(self) -> None:
        """Reject the requests that wait, and all that come."""
        self._closed = True
        for claim in tuple(self._queue):
            # At once: otherwise a slot that becomes free before it has woken would still be given to it.
            self.withdraw(claim)
            claim.wake()

    async def wait_idle(self) -> None:
        while self._running:
            self._idle = trio.Event()
            await self._idle.wait()

    def _start(self, claim: Claim, now: float) -> None:
        claim.started = claim.forecast.started = now
        claim.used_before = claim.forecast.used
        self._running[claim] = None
        self._by_plan[claim.forecast] += 1

    def _fits(self, claim: Claim, now: float, margin: float) -> bool:
        if not self._running:
            return True
        if len(self._running) >= self._limit:
            return False
        if claim.deadline == math.inf:
            return True
        loop, threads = self._competitors(claim.forecast)
        needed = self._seconds(claim.forecast, 1 + loop, 1 + threads)
        return not (loop or threads) or now + margin * needed <= claim.deadline

    def _can_wait(self, claim: Claim, now: float) -> bool:
        """True if it can be in time after those that wait before it."""
        loop, threads = self._competitors(claim.forecast)
        needed = self._seconds(claim.forecast, max(1.0, loop), max(1.0, threads))
        if len(self._running) >= self._limit:
            needed = max(needed, claim.forecast.alone)
        if not needed:
            return True
        needed *= _SPARE
        slack = claim.deadline - now - needed
        # The next slot is for the first that waits; and in the time that it needs, as many end as run.
        return slack >= 0 and len(self._queue) < 1 + len(self._running) * slack / needed

    def _competitors(self, forecast: Forecast) -> tuple[float, float]:
        """How many requests compete with one more of that plan, for the loop and for threads."""
        loop = threads = 0.0
        threads_busy = self._pool.busy >= self._pool.size
        if self._meter.is_saturated or threads_busy:
            loop, threads = forecast.beside(self._by_plan.items())
            threads = threads if threads_busy else 0.0
        if not self._meter.is_saturated:
            # All that started before the loop last slept wait for endpoints now.
            woke = self._meter.woke
            fresh = takewhile(lambda claim: (claim.started or 0.0) >= woke, reversed(self._running))
            loop, _ = forecast.beside((claim.forecast, 1) for claim in fresh)
        return loop, threads

    def _seconds(self, forecast: Forecast, at_loop: float, at_threads: float) -> float:
        """The loop and thread time of a request if so many compete, itself included."""
        return forecast.loop * at_loop / self._meter.useful + forecast.threads * max(1.0, at_threads / self._pool.size)


def _closing() -> Overloaded:
    return Overloaded("the engine is closing")
