"""Time: of a cell, of a column, of the whole build; and threads, which cannot be ended."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio
from engine_helpers import Watched, config, grow, seed

from seedbed import (
    CellContext,
    Column,
    Dataset,
    DeadlineExceeded,
    KeyLimits,
    Permanent,
    RateLimited,
    ThreadsStuck,
    build_async,
    open_build,
)
from seedbed.observe import events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import polars as pl
    from trio.testing import MockClock

ENGINES = pytest.mark.parametrize("engine", ["concurrent", "sequential"])


class TestCellTimeout:
    @ENGINES
    async def test_a_cell_that_hangs_is_retried_and_dropped(self, autojump_clock: MockClock, engine: str) -> None:
        """Each attempt ends at `cell_timeout`; the drop says so."""
        attempts = []

        async def v(n: int) -> int:
            if n == 1:
                started = trio.current_time()
                try:
                    await trio.sleep_forever()
                finally:
                    attempts.append(trio.current_time() - started)
            return n

        grown = await grow([seed(), Column("v", v)], rows=3, config=config(cell_timeout=7, engine=engine))
        assert attempts == pytest.approx([7.0, 7.0, 7.0])
        assert grown.column("v") == [0, 2]
        (drop,) = grown.report.dropped
        assert (drop.attempts, drop.error) == (3, "CellTimeout: no result after 7 s")

    async def test_a_columns_own_timeout_wins(self, autojump_clock: MockClock) -> None:
        """It may be shorter or longer than `cell_timeout`."""
        grown = await grow(
            [seed(), Column("short", Watched(3.0), timeout=2), Column("long", Watched(30.0), timeout=60)],
            rows=1,
            config=config(cell_timeout=10, salvage_max_rounds=0),
        )
        (drop,) = grown.report.dropped
        assert drop.reason == "short: CellTimeout: no result after 2 s"

    async def test_cell_timeout_is_for_cells_and_a_columns_own_for_all(self, autojump_clock: MockClock) -> None:
        """Tasks for whole groups have time unless their column says otherwise."""

        async def slow(frame: pl.DataFrame) -> list[int]:
            await trio.sleep(50)
            return frame["n"].to_list()

        grown = await grow(
            [
                seed(),
                Column("patient", slow, kind="full_column", requires=["n"]),
                Column("hasty", slow, kind="full_column", requires=["n"], timeout=5),
            ],
            rows=1,
            config=config(cell_timeout=1, salvage_max_rounds=0),
        )
        assert grown.report.drops_by_reason == {"hasty: CellTimeout: no result after 5 s": 1}

    async def test_waiting_for_a_permit_inside_call_is_not_the_cells_time(self, autojump_clock: MockClock) -> None:
        """Two seconds of sending fit into a timeout of three, however long the permit takes."""

        async def v(n: int, context: CellContext) -> int:
            await context.call(partial(trio.sleep, 1))
            await context.call(partial(trio.sleep, 1), key="narrow")
            return n

        start = trio.current_time()
        grown = await grow(
            [seed(), Column("v", v, key="wide", timeout=3), Column("w", Watched(0.0), key="narrow")],
            rows=20,
            limits={"narrow": KeyLimits(max_parallel_requests=1)},
        )
        assert grown.report.dropped == ()
        assert trio.current_time() - start >= 20

    async def test_waiting_after_a_rate_limit_inside_call_does_not_count_as_cell_time(
        self, autojump_clock: MockClock
    ) -> None:
        """After an answer a rate limit is waited for inside the call, while the timeout stands still."""
        refusals = 0

        async def second() -> str:
            nonlocal refusals
            refusals += 1
            if refusals == 1:
                raise RateLimited("later", retry_after=100)
            return "ok"

        async def v(n: int, context: CellContext) -> str:
            await context.call(partial(trio.sleep, 1))
            return await context.call(second)

        grown = await grow([seed(), Column("v", v, key="k", timeout=3)], rows=1)
        assert grown.column("v") == ["ok"]

    async def test_sending_is_the_cells_time(self, autojump_clock: MockClock) -> None:
        """A call that hangs is ended by the timeout, and its permit comes back."""

        async def v(n: int, context: CellContext) -> None:
            await context.call(partial(trio.sleep, 1))
            await context.call(trio.sleep_forever)

        grown = await grow([seed(), Column("v", v, key="k", timeout=3)], rows=2, config=config(salvage_max_rounds=0))
        assert grown.report.drops_by_reason == {"v: CellTimeout: no result after 3 s": 2}
        statistics = grown.report.throttles["k"]
        assert (statistics.in_flight, statistics.held, statistics.accepted, statistics.failed) == (0, 0, 2, 2)


class TestDeadline:
    @ENGINES
    async def test_it_ends_the_build_and_says_what_is_unfinished(
        self, autojump_clock: MockClock, tmp_path: Path, engine: str
    ) -> None:
        """The error carries the report with the ranges of rows that are not done; what is on disk stays."""

        async def v(n: int) -> int:
            await trio.sleep(1_000 if 4 <= n < 6 else 1)
            return n

        start = trio.current_time()
        with pytest.raises(DeadlineExceeded) as raised:
            await build_async(
                [seed(), Column("v", v)],
                rows=10,
                out=tmp_path,
                config=config(buffer_size=2, deadline=30, engine=engine),
            )
        assert str(raised.value) == "the build did not finish within deadline=30 s"
        assert trio.current_time() - start == 30
        report = raised.value.report
        assert report is not None
        done = Dataset.open(tmp_path).to_polars()["v"].to_list()
        if engine == "concurrent":
            assert report.unfinished == (range(4, 6),)
            assert done == [0, 1, 2, 3, 6, 7, 8, 9]
        else:  # the groups behind the one that hangs have not begun
            assert report.unfinished == (range(4, 10),)
            assert done == [0, 1, 2, 3]

    async def test_every_row_is_accounted_for(self, autojump_clock: MockClock) -> None:
        """Rows dropped in a group that is not done are unfinished, not dropped."""

        async def v(n: int) -> int:
            if n == 0:
                raise Permanent("no")
            await trio.sleep(1_000)
            return n

        with pytest.raises(DeadlineExceeded) as raised:
            await grow([seed(), Column("v", v)], rows=3, config=config(deadline=5))
        report = raised.value.report
        assert report is not None
        assert report.dropped == ()
        assert report.unfinished == (range(3),)

    async def test_a_build_within_it_is_not_touched(self, autojump_clock: MockClock) -> None:
        """A run that ends in time does not wait for its deadline."""
        start = trio.current_time()
        await grow([seed(), Column("v", Watched(2.0))], rows=2, config=config(deadline=1_000))
        assert trio.current_time() - start == 2.0


class Held:
    """A sync cell function whose calls for some rows stay in their thread until they are let go."""

    def __init__(self, *rows: int) -> None:
        self.rows = set(rows)
        self.entered = {row: threading.Event() for row in rows}
        self.let_go = threading.Event()
        self.calls: list[int] = []
        self.inside = 0
        self.overlaps = 0
        self.on_second: Callable[[], None] | None = None
        self._lock = threading.Lock()

    def generate(self, n: int) -> int:
        with self._lock:
            self.calls.append(n)
            first = self.calls.count(n) == 1
            self.inside += 1
            self.overlaps += self.inside > 1
        if not first and self.on_second is not None:
            self.on_second()
        try:
            if n in self.rows and first:
                self.entered[n].set()
                self.let_go.wait()
        finally:
            with self._lock:
                self.inside -= 1
        return n


@pytest.fixture
def held() -> Iterator[Any]:
    """Make functions that hold their thread, and let every thread go at the end."""
    made: list[Held] = []

    def make(*rows: int) -> Held:
        made.append(Held(*rows))
        return made[-1]

    yield make
    for each in made:
        each.let_go.set()


class TestThreads:
    """On the real clock: a thread that overran is let go by an event that the test sets."""

    async def test_the_result_of_a_late_thread_is_dropped_and_counted(self, held: Any) -> None:
        """The cell is retried and filled; what the first thread returns later changes nothing but the counts."""
        function = held(1)
        late = trio.Event()

        def read(event: events.Event) -> None:
            if isinstance(event, events.TaskDeferred):
                function.let_go.set()
            if isinstance(event, events.LateThread):
                assert event.column == "v"
                late.set()

        async def wait(v: int) -> int:
            await late.wait()
            return v

        grown = await grow(
            [seed(), Column("v", function, key="k", timeout=0.05), Column("w", wait)],
            rows=3,
            config=config(backoff_base=0.001),
            readers=[read],
        )
        assert grown.column("v") == [0, 1, 2]
        assert sorted(function.calls) == [0, 1, 1, 2]
        assert grown.report.late_threads == {"v": 1}
        assert grown.report.running_threads == {}
        assert grown.report.throttles["k"].in_flight == 0
        assert grown.report.wasted["v"].calls == 1

    async def test_its_slot_is_held_until_it_ends(self, held: Any, mock_clock: MockClock) -> None:
        """With two slots, a thread that overran leaves one, and the run continues with that."""
        function = held(0)
        others_done = trio.Event()
        finished: list[int | None] = []

        def read(event: events.Event) -> None:
            if isinstance(event, events.TaskFinished) and event.column == "v":
                finished.append(event.row)
                if len(finished) == 7:
                    others_done.set()

        def other(m: int) -> int:
            return m

        async with open_build(
            [seed(), seed("m"), Column("v", function, timeout=0.05), Column("other", other)],
            rows=8,
            config=config(max_active_tasks=2, salvage_max_rounds=0, grace=60),
            readers=[read],
        ) as build:
            await others_done.wait()  # no matter how busy the machine is: the clock stands still until then
            mock_clock.jump(0.05)
            report = await build.wait()
            assert build._run is not None
            assert build._run.scheduler.statistics().active == 1
            assert report.running_threads == {"v": 1}
        assert report.drops_by_reason == {"v: CellTimeout: no result after 0.05 s": 1}
        assert "threads still running: v (1)" in str(report)
        assert report.written == 7

    async def test_all_slots_held_stops_the_run(self, held: Any) -> None:
        """When threads that overran hold every slot for `grace`, the error names their columns."""
        function, second = held(0, 1), held(0, 1)
        with pytest.raises(ThreadsStuck) as raised:
            await grow(
                [seed(), Column("v", function, timeout=0.05), Column("w", second, timeout=0.05)],
                rows=2,
                config=config(max_active_tasks=2, grace=0.1),
            )
        names = set(raised.value.columns)
        assert names
        assert names <= {"v", "w"}
        assert str(raised.value).startswith(
            "threads that exceeded their timeout have held all 2 execution slots for 0.1 s; columns: "
        )
        assert raised.value.report is not None
        assert raised.value.report.unfinished == (range(2),)
        assert sum(raised.value.report.running_threads.values()) == 2

    async def test_a_thread_that_ends_in_time_stops_nothing(self, held: Any) -> None:
        """Slots that come free within `grace` are used again."""
        function = held(0)

        def read(event: events.Event) -> None:
            if isinstance(event, events.TaskFinished) and event.status == "retryable":
                function.let_go.set()

        grown = await grow(
            [seed(), Column("v", function, timeout=0.05)],
            rows=3,
            config=config(max_active_tasks=1, grace=30, backoff_base=0.001),
            readers=[read],
        )
        assert grown.column("v") == [0, 1, 2]
        assert grown.report.late_threads == {"v": 1}

    @ENGINES
    async def test_a_stateful_generator_is_never_overlapped(self, held: Any, engine: str) -> None:
        """The retry waits until the thread that overran has really left the generator."""
        function = held(0)
        function.is_stateful = True
        entered_again = trio.Event()
        function.on_second = partial(trio.lowlevel.current_trio_token().run_sync_soon, entered_again.set)
        async with open_build(
            [seed(), Column("v", function, timeout=0.02)],
            rows=3,
            config=config(backoff_base=0.001, grace=30, engine=engine),
        ) as build:
            # Far longer than timeout and backoff together: who does not wait for the thread comes in here.
            with trio.move_on_after(0.2):
                await entered_again.wait()
            assert function.calls == [0]
            function.let_go.set()
            report = await build.wait()
        assert function.overlaps == 0
        assert report.written == 3
        assert function.calls == [0, 0, 1, 2]

    @pytest.mark.parametrize("rounds", [0, 2])
    @ENGINES
    async def test_a_stateful_generator_held_for_grace_stops_the_run(self, held: Any, engine: str, rounds: int) -> None:
        """Tasks that wait for a generator in which an abandoned thread still works are named in the error."""
        function = held(0)
        function.is_stateful = True
        with pytest.raises(ThreadsStuck, match=r"have held a stateful generator that others need for 0\.1 s; .*'v'"):
            await grow(
                [seed(), Column("v", function, timeout=0.05)],
                rows=3,
                config=config(backoff_base=0.001, grace=0.1, salvage_max_rounds=rounds, engine=engine),
            )
        assert function.calls == [0]
        assert function.overlaps == 0

    async def test_a_dropped_row_leaves_its_thread_behind(self, held: Any) -> None:
        """A thread in a row that is dropped is abandoned: the run does not wait for it."""
        function = held(0)

        async def fail(n: int) -> int:
            if n == 0:
                await trio.to_thread.run_sync(function.entered[0].wait)
                raise Permanent("gone")
            return n

        grown = await grow([seed(), Column("v", function), Column("f", fail)], rows=2)
        assert grown.column("v") == [1]
        assert grown.report.running_threads == {"v": 1}
        assert grown.report.wasted["v"].calls == 1

    async def test_a_late_thread_keeps_its_permit(self, held: Any) -> None:
        """The call that a given-up thread makes is still on the wire, so its key has one permit less."""
        function = held(0)
        async with open_build(
            [seed(), Column("v", function, key="k", timeout=0.05)],
            rows=4,
            config=config(salvage_max_rounds=0, max_parallel_requests=2),
        ) as build:
            report = await build.wait()
            assert report.throttles["k"].in_flight == 1
        assert report.written == 3
