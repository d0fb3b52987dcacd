"""What becomes of a row whose cell fails, and when the run gives up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio
from engine_helpers import Watched, config, grow, seed

from seedbed import BadOutput, CellContext, Column, EarlyShutdown, Permanent, RateLimited, Retryable, open_build
from seedbed.engine.failures import ErrorWindow
from seedbed.engine.row_group import RowGroup
from seedbed.observe import events

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl
    from trio.testing import MockClock


def raising(error: Callable[[], Exception], *rows: int) -> Watched:
    """A column that fails for these rows, or for all if none is named, each time."""

    def act(n: int, _: int) -> int:
        if not rows or n in rows:
            raise error()
        return n

    return Watched(0.1, act=act)


class Flaky(Exception):
    """An exception of a user's own."""


class TestClasses:
    @pytest.mark.parametrize(
        ("error", "attempts", "text"),
        [
            (lambda: Permanent("bad request"), 1, "bad request"),
            (lambda: Retryable("server error"), 3, "server error"),
            (lambda: ValueError("user code"), 1, "ValueError: user code"),
            (lambda: BadOutput("not a number"), 1, "BadOutput: not a number"),
            (lambda: Flaky("worth it"), 3, "Flaky: worth it"),
            (lambda: ExceptionGroup("mine", [Flaky("a"), Flaky("b")]), 3, "Flaky: a"),
            (lambda: ExceptionGroup("mine", [Retryable("r"), ExceptionGroup("", [KeyError("k")])]), 1, "KeyError: 'k'"),
            (lambda: ExceptionGroup("mine", [RateLimited("later"), Permanent("never")]), 1, "never"),
            (lambda: ExceptionGroup("mine", [RateLimited("later"), Retryable("soon")]), 3, "soon"),
            (lambda: ValueError("several\nlines  here"), 1, "ValueError: several lines here"),
            (ValueError, 1, "ValueError"),
        ],
    )
    @pytest.mark.parametrize("engine", ["concurrent", "sequential"])
    async def test_the_class_says_how_often_it_is_tried(
        self, autojump_clock: MockClock, error: Callable[[], Exception], attempts: int, text: str, engine: str
    ) -> None:
        """Retryable ones have rounds + 1 attempts, the rest one; the drop says column, attempts and error."""
        column = raising(error, 1)
        grown = await grow(
            [seed(), Column("v", column, retry_on=Flaky)], rows=3, config=config(engine=engine, salvage_max_rounds=2)
        )
        assert column.attempts == {0: 1, 1: attempts, 2: 1}
        (drop,) = grown.report.dropped
        assert (drop.row, drop.column, drop.attempts, drop.kind) == (1, "v", attempts, "failed")
        assert drop.error.partition(" (")[0] == text  # file and line of user code follow
        assert grown.column("v") == [0, 2]
        assert grown.report.errors == {"v": attempts}
        assert grown.report.attempts["v"] == attempts + 2

    async def test_a_group_from_a_real_nursery(self, autojump_clock: MockClock) -> None:
        """What a user's own nursery raises is classed by what is in it."""
        attempts = 0

        async def child() -> None:
            raise Retryable("inner")

        async def v(n: int) -> int:
            nonlocal attempts
            attempts += 1
            async with trio.open_nursery() as nursery:
                nursery.start_soon(child)
                nursery.start_soon(trio.sleep, 1)
            return n

        grown = await grow([seed(), Column("v", v)], rows=1)
        assert attempts == 3
        assert grown.report.drops_by_reason == {"v: inner": 1}

    async def test_a_rate_limit_in_an_exception_group_is_flow_control(self, autojump_clock: MockClock) -> None:
        """A nursery in which every child was rate-limited counts as a rate limit."""
        attempts = 0

        async def v(n: int) -> int:
            nonlocal attempts
            attempts += 1
            if attempts < 8:
                raise ExceptionGroup("all", [RateLimited("a", retry_after=1), RateLimited("b", retry_after=1)])
            return n

        grown = await grow([seed(), Column("v", v, key="k")], rows=1)
        assert grown.column("v") == [0]
        assert grown.report.errors == {}

    async def test_what_a_nursery_raises_while_it_is_cancelled_ends_its_cell_only(
        self, autojump_clock: MockClock
    ) -> None:
        """A child that fails in its clean-up, when its cell times out, is that cell's failure and not the run's."""

        async def unclean() -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("while cleaning up")

        async def v(n: int) -> int:
            if n == 0:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(unclean)
                    nursery.start_soon(trio.sleep_forever)
            return n

        grown = await grow([seed(), Column("v", v, timeout=1)], rows=2, config=config(salvage_max_rounds=0))
        assert grown.column("v") == [1]
        assert [drop.row for drop in grown.report.dropped] == [0]

    async def test_a_failed_whole_column_drops_its_group_and_counts_once(self, autojump_clock: MockClock) -> None:
        """It is salvaged like a cell; at last every row of its group goes with that reason, and no other group's."""
        calls = []

        def whole(frame: pl.DataFrame) -> list[int]:
            calls.append(frame["n"][0])
            if frame["n"][0] == 2:
                raise Retryable("flaky")
            return frame["n"].to_list()

        grown = await grow(
            [seed(), Column("w", whole, kind="full_column", requires=["n"])], rows=6, config=config(buffer_size=2)
        )
        assert sorted(calls) == [0, 2, 2, 2, 4]
        assert grown.column("n") == [0, 1, 4, 5]
        assert grown.report.drops_by_reason == {"w: flaky": 2}
        assert grown.report.errors == {"w": 3}

    async def test_a_failed_seed_drops_its_group(self, autojump_clock: MockClock) -> None:
        """Nothing else runs for rows that were never seeded."""
        after = Watched(0.1)

        async def numbers(rows: range) -> list[int]:
            if rows[0] == 0:
                raise Permanent("no seeds")
            return list(rows)

        grown = await grow(
            [Column("n", numbers, kind="from_scratch"), Column("v", after)], rows=4, config=config(buffer_size=2)
        )
        assert sorted(after.attempts) == [2, 3]
        assert grown.report.drops_by_reason == {"n: no seeds": 2}


class TestEagerDrop:
    async def test_cells_in_flight_are_cancelled_and_others_never_start(self, autojump_clock: MockClock) -> None:
        """A failure of B drops the row at once: its cell of C in flight is cancelled and its D is never made."""
        c, d = Watched(10.0), Watched(1.0)

        def act(n: int, _: int) -> int:
            if n == 1:
                raise Permanent("bad")
            return n

        async def only_after_c(n: int, c: int) -> int:
            return await d.agenerate(n)

        start = trio.current_time()
        grown = await grow(
            [seed(), Column("b", Watched(2.0, act=act)), Column("c", c), Column("d", only_after_c)], rows=3
        )
        assert c.cancelled == [(start + 2.0, 1)]
        assert sorted(n for _, n in c.finished) == [0, 2]
        assert sorted(d.attempts) == [0, 2]
        assert grown.column("n") == [0, 2]

    async def test_queued_cells_of_the_row_are_not_started(self, autojump_clock: MockClock) -> None:
        """An independent column that did not come to the row yet passes it over."""
        c = Watched(1.0)

        def act(n: int, _: int) -> int:
            if n == 5:
                raise Permanent("bad")
            return n

        await grow(
            [seed(), Column("b", Watched(0.5, act=act)), Column("c", c, key="slow")],
            rows=6,
            config=config(max_parallel_requests=1),
        )
        assert sorted(c.attempts) == [0, 1, 2, 3, 4]

    async def test_a_whole_column_in_flight_is_left_alone(self, autojump_clock: MockClock) -> None:
        """It computes the row dropped in the meantime, but that is not written, and what needs it skips the row."""
        seen, after = [], []

        async def whole(frame: pl.DataFrame) -> list[int]:
            await trio.sleep(10)
            seen.append(frame["n"].to_list())
            return [n * 10 for n in frame["n"]]

        async def then(whole: int) -> int:
            after.append(whole)
            return whole

        grown = await grow(
            [
                seed(),
                Column("whole", whole, kind="full_column", requires=["n"]),
                Column("b", raising(lambda: Permanent("bad"), 1)),
                Column("then", then),
            ],
            rows=3,
        )
        assert seen == [[0, 1, 2]]
        assert sorted(after) == [0, 20]
        assert grown.frame.rows() == [(0, 0, 0, 0), (2, 20, 2, 20)]
        assert [(drop.row, drop.column) for drop in grown.report.dropped] == [(1, "b")]

    async def test_values_of_a_full_column_for_dropped_rows_are_not_written(self, autojump_clock: MockClock) -> None:
        """Not even into the buffer, where the row's place stays empty."""
        buffered: list[list[int | None]] = []

        async def whole(frame: pl.DataFrame) -> list[int]:
            await trio.sleep(10)
            return [n * 10 for n in frame["n"]]

        def look(event: events.Event) -> None:
            if isinstance(event, events.RowGroupFinished):
                assert build._run is not None
                buffered.append(list(build._run.output.groups[0].rows.buffer.values("whole")))

        async with open_build(
            [
                seed(),
                Column("whole", whole, kind="full_column", requires=["n"]),
                Column("b", raising(lambda: Permanent("bad"), 1)),
            ],
            rows=3,
            readers=[look],
        ) as build:
            await build.wait()
        assert buffered == [[0, None, 20]]

    async def test_a_whole_column_does_not_wait_for_a_dropped_row(self, autojump_clock: MockClock) -> None:
        """It is ready with the rows that are left, and is handed only those."""
        frames = []

        async def whole(frame: pl.DataFrame) -> list[int]:
            frames.append(frame["b"].to_list())
            return frame["b"].to_list()

        await grow(
            [
                seed(),
                Column("b", raising(lambda: Permanent("bad"), 1)),
                Column("whole", whole, kind="full_column", requires=["b"]),
            ],
            rows=3,
        )
        assert frames == [[0, 2]]

    async def test_a_full_column_is_cancelled_if_all_rows_are_dropped(self, autojump_clock: MockClock) -> None:
        """When the last row of a group is dropped, nothing is left to compute for."""
        start = trio.current_time()

        async def whole(frame: pl.DataFrame) -> list[int]:
            await trio.sleep(1_000)
            return frame["n"].to_list()

        grown = await grow(
            [
                seed(),
                Column("whole", whole, kind="full_column", requires=["n"]),
                Column("b", raising(lambda: Permanent("bad"))),
            ],
            rows=3,
        )
        assert trio.current_time() - start < 10
        assert grown.report.written == 0
        assert grown.report.wasted["whole"].calls == 1

    async def test_one_drop_a_row(self, autojump_clock: MockClock) -> None:
        """A row that two columns give up at one instant is dropped once."""
        grown = await grow(
            [
                seed(),
                Column("a", raising(lambda: Permanent("a"))),
                Column("b", raising(lambda: Permanent("b"))),
            ],
            rows=4,
        )
        assert [drop.row for drop in grown.report.dropped] == [0, 1, 2, 3]


class TestWastedWork:
    async def test_cancelled_failed_and_paid_work_is_counted(self, autojump_clock: MockClock) -> None:
        """Calls, tokens and seconds of everything whose result is not in the dataset, by column."""

        async def paid(n: int, context: CellContext) -> int:
            await trio.sleep(1)
            context.report_usage(input_tokens=10, output_tokens=5, cost=0.5)
            return n

        async def failing(n: int, context: CellContext) -> int:
            await trio.sleep(3)
            context.report_usage(input_tokens=7)
            if n == 0:
                raise Permanent("no")
            return n

        async def long(n: int, context: CellContext) -> int:
            context.report_usage(calls=2, input_tokens=100)
            await trio.sleep(10)
            return n

        grown = await grow(
            [
                seed(),
                Column("paid", paid, key="k"),
                Column("failing", failing, key="k"),
                Column("long", long, key="k"),
            ],
            rows=2,
        )
        wasted = grown.report.wasted
        assert (wasted["paid"].calls, wasted["paid"].tokens, wasted["paid"].seconds) == (1, 15, 1.0)
        assert (wasted["failing"].calls, wasted["failing"].tokens, wasted["failing"].seconds) == (1, 7, 3.0)
        assert (wasted["long"].calls, wasted["long"].tokens, wasted["long"].seconds) == (2, 100, 3.0)
        usage = grown.report.usage
        assert (usage["paid"].calls, usage["paid"].tokens, usage["paid"].cost) == (2, 30, 1.0)
        assert usage["failing"].tokens == 14
        assert usage["long"].calls == 4

    async def test_calls_of_a_paid_cell_are_counted_as_reported(self, autojump_clock: MockClock) -> None:
        """A finished cell of three calls in a row that is dropped later wasted three."""

        async def paid(n: int, context: CellContext) -> int:
            context.report_usage(calls=3, input_tokens=30)
            return n

        grown = await grow(
            [seed(), Column("paid", paid, key="k"), Column("bad", raising(lambda: Permanent("no")))], rows=1
        )
        assert (grown.report.wasted["paid"].calls, grown.report.wasted["paid"].tokens) == (3, 30)

    async def test_nothing_is_wasted_in_a_clean_run(self, autojump_clock: MockClock) -> None:
        """No entry without waste."""
        grown = await grow([seed(), Column("v", Watched(1.0), key="k")], rows=3)
        assert grown.report.wasted == {}


class TestEarlyShutdown:
    async def test_too_many_errors_stop_the_run(self, autojump_clock: MockClock) -> None:
        """The error says how many of how many failed, the option and the last cause; finished groups are stored."""

        def act(n: int, _: int) -> int:
            if n >= 40:
                raise Permanent("server is down")
            return n

        broken = Watched(1.0, act=act)
        with pytest.raises(EarlyShutdown) as raised:
            await grow(
                [seed(), Column("v", broken)],
                rows=1_000,
                config=config(
                    buffer_size=40, max_concurrent_row_groups=1, shutdown_error_window=20, max_submitted_tasks=10
                ),
            )
        assert str(raised.value) == (
            "11 of the last 20 attempts failed, more than shutdown_error_rate=0.5; "
            "the last one: column 'v': server is down"
        )
        report = raised.value.report
        assert report is not None
        assert report.written == 40
        assert report.dropped == ()
        assert report.unfinished == (range(40, 1_000),)
        assert len(broken.attempts) < 80

    async def test_no_run_stops_before_its_error_window_is_full(self, autojump_clock: MockClock) -> None:
        """Ten failures of ten say nothing where the window is fifty."""
        grown = await grow([seed(), Column("v", raising(lambda: Permanent("all")))], rows=10)
        assert len(grown.report.dropped) == 10

    async def test_fast_failures_of_many_in_flight_do_not_stop_a_good_run(self, autojump_clock: MockClock) -> None:
        """With 1,024 in flight and a true error rate of 5 %, failures that come first do not stop the run."""

        async def v(n: int) -> int:
            if n % 20 == 0:
                await trio.sleep(0.001)
                raise Permanent("fast")
            await trio.sleep(1)
            return n

        grown = await grow(
            [seed(), Column("v", v, key="k")],
            rows=4_000,
            config=config(max_parallel_requests=1_024, buffer_size=4_000),
        )
        assert len(grown.report.dropped) == 200
        assert grown.report.written == 3_800

    async def test_salvage_has_its_own_threshold(self, autojump_clock: MockClock) -> None:
        """Retries that all fail again stop the run by their own window, and say so."""

        def act(n: int, _: int) -> int:
            if n % 3 == 0:
                raise Retryable("still down")
            return n

        with pytest.raises(EarlyShutdown, match=r"more than salvage_error_threshold=0\.8; .*column 'v': still down"):
            await grow([seed(), Column("v", Watched(0.1, act=act))], rows=300, config=config(shutdown_error_rate=1.0))

    async def test_rows_that_keep_failing_among_good_ones_are_only_dropped(self, autojump_clock: MockClock) -> None:
        """One row in a hundred whose retries always fail costs that row and never the run."""

        def act(n: int, _: int) -> int:
            if n % 100 == 50:
                raise Retryable("always times out")
            return n

        grown = await grow([seed(), Column("v", Watched(0.1, act=act))], rows=3000, config=config(buffer_size=100))
        assert grown.report.written == 2970
        assert grown.report.drops_by_reason == {"v: always times out": 30}

    async def test_many_failing_retries_are_fine_below_the_threshold(self, autojump_clock: MockClock) -> None:
        """Half of the retries failing again is expected in salvage and stops nothing."""

        def act(n: int, attempt: int) -> int:
            if n % 3 == 0 and attempt <= 1 + n % 2:
                raise Retryable("later")
            return n

        grown = await grow(
            [seed(), Column("v", Watched(0.1, act=act))], rows=300, config=config(shutdown_error_rate=1.0)
        )
        assert grown.report.written == 300

    async def test_a_stop_gives_what_is_in_flight_its_grace(self, autojump_clock: MockClock) -> None:
        """Cells under way when the run stops may end within `grace`, and are cancelled after it."""
        good, stuck = Watched(4.0), Watched(1_000.0)

        async def good_or_quick(n: int) -> int:
            return await good.agenerate(n) if n < 2 else n

        async def stuck_or_quick(n: int) -> int:
            return await stuck.agenerate(n) if n < 2 else n

        start = trio.current_time()
        with pytest.raises(EarlyShutdown):
            await grow(
                [
                    seed(),
                    Column("bad", raising(lambda: Permanent("x"), *range(2, 40))),
                    Column("good", good_or_quick),
                    Column("stuck", stuck_or_quick),
                ],
                rows=40,
                config=config(shutdown_error_window=5, grace=5, shutdown_error_rate=0.1),
            )
        assert sorted(n for _, n in good.finished) == [0, 1]
        assert [when - start for when, _ in stuck.cancelled] == pytest.approx([5.1, 5.1])
        assert trio.current_time() - start == pytest.approx(5.1)


class TestErrorWindow:
    def test_it_speaks_only_at_an_error_when_full_and_above(self) -> None:
        """Exactly the threshold is not above it, and a success never tips it."""
        window = ErrorWindow(4, 0.5)
        assert [window.record(error=error) for error in (True, True, False)] == [False, False, False]
        assert not window.record(error=False)
        assert not window.record(error=True)
        assert window.errors == 2
        assert len(window) == 4
        assert not window.record(error=False)
        assert not window.record(error=True)
        assert window.record(error=True)

    def test_it_grows_with_what_is_in_flight_and_shrinks_back(self) -> None:
        """The window is never smaller than the number of tasks in flight."""
        window = ErrorWindow(2, 0.5)
        assert not any(window.record(error=True, in_flight=10) for _ in range(9))
        assert window.record(error=True, in_flight=10)
        window.record(error=False, in_flight=1)
        assert len(window) == 2


async def test_a_failure_of_the_engine_ends_the_run(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that is no cell's outcome surfaces as itself."""

    def broken(*_: Any) -> None:
        raise RuntimeError("engine in doubt")

    monkeypatch.setattr(RowGroup, "_write_group", broken)
    with pytest.raises(RuntimeError, match="engine in doubt"):
        await grow([seed(), Column("v", Watched(1.0))], rows=2)
