"""What a generator can ask of the engine: calls under permits, usage, and who it is."""

from __future__ import annotations

import contextvars
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import trio
from engine_helpers import config, grow, seed

from seedbed import CellContext, Column, KeyLimits, Permanent, QuotaExhausted, RateLimited, Retryable

if TYPE_CHECKING:
    import polars as pl
    from trio.testing import MockClock

ENGINES = pytest.mark.parametrize("engine", ["concurrent", "sequential"])


class Server:
    """Answers calls, and refuses those that its script names by their number, counted from 1."""

    def __init__(self, *refused: int, retry_after: float | None = 5.0) -> None:
        self.refused = set(refused)
        self.retry_after = retry_after
        self.calls: list[tuple[str, float]] = []
        self.running = 0
        self.peak = 0

    async def send(self, what: str) -> str:
        """One call on the wire."""
        self.calls.append((what, trio.current_time()))
        number = len(self.calls)
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            await trio.sleep(1)
        finally:
            self.running -= 1
        if number in self.refused:
            raise RateLimited("busy", retry_after=self.retry_after)
        return what.upper()

    @property
    def sent(self) -> list[str]:
        return [what for what, _ in self.calls]


def two_calls(server: Server) -> Any:
    """A cell of two calls."""

    async def talk(n: int, context: CellContext) -> str:
        first = await context.call(partial(server.send, "first"))
        second = await context.call(partial(server.send, "second"))
        return first + second

    return talk


class TestCall:
    @ENGINES
    async def test_before_an_answer_the_cell_goes_back_to_its_lane(
        self, autojump_clock: MockClock, engine: str
    ) -> None:
        """A rate limit of the first call ends the task, which starts again later; it is no attempt."""
        server = Server(1, 2)
        grown = await grow(
            [seed(), Column("v", two_calls(server), key="k")], rows=1, config=config(trace=True, engine=engine)
        )
        assert server.sent == ["first", "first", "first", "second"]
        assert [trace.status for trace in grown.report.traces if trace.column == "v"] == [
            "rate_limited",
            "rate_limited",
            "success",
        ]
        assert grown.report.attempts["v"] == 1
        assert grown.column("v") == ["FIRSTSECOND"]

    @ENGINES
    async def test_after_an_answer_a_rate_limit_is_waited_for_inside_the_cell(
        self, autojump_clock: MockClock, engine: str
    ) -> None:
        """The answered call is never repeated, however often the second one is refused."""
        server = Server(2, 3, 4)
        grown = await grow(
            [seed(), Column("v", two_calls(server), key="k")], rows=1, config=config(trace=True, engine=engine)
        )
        assert server.sent == ["first", "second", "second", "second", "second"]
        assert [trace.status for trace in grown.report.traces if trace.column == "v"] == ["success"]
        instants = [when for _, when in server.calls]
        assert [later - earlier for earlier, later in pairwise(instants[1:])] == [6.0] * 3
        assert grown.column("v") == ["FIRSTSECOND"]

    async def test_permits_are_for_calls_and_not_for_cells(self, autojump_clock: MockClock) -> None:
        """Ten cells that think for long between two calls do not keep a key of two busy."""
        server = Server()

        async def think(n: int, context: CellContext) -> str:
            await context.call(partial(server.send, "first"))
            await trio.sleep(100)
            return await context.call(partial(server.send, "second"))

        start = trio.current_time()
        grown = await grow(
            [seed(), Column("v", think, key="k")],
            rows=10,
            limits={"k": KeyLimits(max_parallel_requests=2)},
        )
        assert server.peak == 2
        assert grown.report.throttles["k"].sent == 20
        assert trio.current_time() - start < 120

    async def test_another_key_has_its_own_limit(self, autojump_clock: MockClock) -> None:
        """A call of another key takes a permit there, also from a column without a key."""
        chat, embed = Server(), Server()

        async def v(n: int, context: CellContext) -> str:
            await context.call(partial(chat.send, "chat"))
            return await context.call(partial(embed.send, "embed"), key="embed")

        async def w(n: int, context: CellContext) -> str:
            return await context.call(partial(embed.send, "embed"), key="embed")

        await grow(
            [seed(), Column("v", v, key="chat"), Column("w", w)],
            rows=6,
            limits={"chat": KeyLimits(max_parallel_requests=6)},
            config=config(max_parallel_requests=2),
        )
        assert chat.peak == 6
        assert embed.peak == 2

    async def test_a_rate_limit_counts_for_its_own_key_only(self, autojump_clock: MockClock) -> None:
        """A first call of another key that is refused sends the cell back; the column's own key hears nothing of it."""
        other = Server(1, 2, 3, 4)

        async def v(n: int, context: CellContext) -> str:
            return await context.call(partial(other.send, "x"), key="other")

        grown = await grow([seed(), Column("v", v, key="own")], rows=1)
        assert grown.report.throttles["other"].rate_limited == 4
        assert grown.report.throttles["own"].rate_limited == 0
        assert grown.report.errors == {}

    async def test_without_any_key_it_says_so(self, autojump_clock: MockClock) -> None:
        """A call of no key is a mistake in the column."""

        async def v(n: int, context: CellContext) -> str:
            return await context.call(partial(Server().send, "x"))

        grown = await grow([seed(), Column("v", v)], rows=1)
        (drop,) = grown.report.dropped
        assert drop.error == "SeedbedError: column 'v' has no throttle key; give one to call() or to the column"

    @ENGINES
    async def test_patience_also_ends_inside_a_call(self, autojump_clock: MockClock, engine: str) -> None:
        """A key that refuses every second call for as long as patience lasts stops the run; no row is dropped."""

        async def refuse() -> str:
            raise RateLimited("quota", retry_after=10)

        async def v(n: int, context: CellContext) -> str:
            await context.call(partial(trio.sleep, 1), key="first")
            return await context.call(refuse, key="gone")

        with pytest.raises(QuotaExhausted, match="key 'gone': every call was rate-limited for 60 s") as raised:
            await grow([seed(), Column("v", v)], rows=2, config=config(throttle_patience=60, engine=engine))
        assert raised.value.report is not None
        assert raised.value.report.dropped == ()

    async def test_a_failed_call_gives_its_permit_back(self, autojump_clock: MockClock) -> None:
        """Errors, cancellations and answers leave nothing borrowed."""

        async def fail() -> None:
            await trio.sleep(0.5)
            raise Retryable("lost connection")

        async def v(n: int, context: CellContext) -> int:
            await context.call(partial(trio.sleep, 0.1))
            if n == 0:
                await context.call(fail)
            if n == 1:
                with trio.move_on_after(0.2):
                    await context.call(trio.sleep_forever)
            return n

        grown = await grow([seed(), Column("v", v, key="k")], rows=4)
        statistics = grown.report.throttles["k"]
        assert grown.column("v") == [1, 2, 3]
        assert (statistics.in_flight, statistics.held) == (0, 0)
        assert statistics.failed == 4

    async def test_from_a_thread(self) -> None:
        """A synchronous generator makes calls through `run`, under the same permits."""
        running, peak = 0, 0

        async def send() -> str:
            nonlocal running, peak
            running += 1
            peak = max(peak, running)
            await trio.lowlevel.checkpoint()
            running -= 1
            return "answer"

        def v(n: int, context: CellContext) -> str:
            return context.run(context.call, send)

        grown = await grow([seed(), Column("v", v, key="k")], rows=8, limits={"k": KeyLimits(max_parallel_requests=2)})
        assert grown.column("v") == ["answer"] * 8
        assert peak <= 2

    async def test_run_is_for_threads(self, autojump_clock: MockClock) -> None:
        """On the loop, awaiting is the way."""

        async def v(n: int, context: CellContext) -> None:
            context.run(trio.sleep, 0)

        grown = await grow([seed(), Column("v", v)], rows=1)
        assert "CellContext.run is for synchronous generators" in grown.report.dropped[0].error


class TestWhoItIs:
    @ENGINES
    async def test_column_group_row_and_attempt(self, autojump_clock: MockClock, engine: str) -> None:
        """The row is counted over the whole dataset, the attempt from 1."""
        seen = []

        async def v(n: int, context: CellContext) -> int:
            seen.append((context.column, context.row_group, context.row, context.attempt))
            if n == 3 and context.attempt < 3:
                raise Retryable("again")
            return n

        await grow([seed(), Column("v", v)], rows=4, config=config(buffer_size=2, engine=engine))
        assert sorted(seen) == [
            ("v", 0, 0, 1),
            ("v", 0, 1, 1),
            ("v", 1, 2, 1),
            ("v", 1, 3, 1),
            ("v", 1, 3, 2),
            ("v", 1, 3, 3),
        ]

    @ENGINES
    async def test_a_whole_group_has_no_row(self, autojump_clock: MockClock, engine: str) -> None:
        """Tasks for a group get a context too, wherever their parameter stands."""
        seen = []

        async def numbers(rows: range, *, context: CellContext) -> list[int]:
            seen.append((context.column, context.row_group, context.row))
            return list(rows)

        def whole(frame: pl.DataFrame, context: CellContext) -> list[int]:
            seen.append((context.column, context.row_group, context.row))
            context.report_usage(input_tokens=5)
            return frame["n"].to_list()

        grown = await grow(
            [Column("n", numbers, kind="from_scratch"), Column("w", whole, kind="full_column", requires=["n"])],
            rows=2,
            config=config(engine=engine),
        )
        assert seen == [("n", 0, None), ("w", 0, None)]
        assert grown.report.usage["w"].tokens == 5


class TestUsage:
    @ENGINES
    async def test_it_is_summed_by_column(self, autojump_clock: MockClock, engine: str) -> None:
        """Failed attempts are paid for too; a column that reports nothing has no entry."""

        async def v(n: int, context: CellContext) -> int:
            context.report_usage(input_tokens=100, output_tokens=20, cost=0.25)
            context.report_usage(input_tokens=1)
            if n == 0 and context.attempt == 1:
                raise Retryable("x")
            return n

        grown = await grow([seed(), Column("v", v)], rows=2, config=config(engine=engine))
        spent = grown.report.usage["v"]
        assert (spent.calls, spent.tokens, spent.cost) == (6, 363, 0.75)
        assert list(grown.report.usage) == ["v"]

    @ENGINES
    async def test_it_settles_the_tokens_of_its_key(self, autojump_clock: MockClock, engine: str) -> None:
        """Calls that use more than their estimate delay the ones after them."""

        async def v(n: int, context: CellContext) -> int:
            context.report_usage(input_tokens=1_000)
            return n

        start = trio.current_time()
        grown = await grow(
            [seed(), Column("v", v, key="k", tokens=10)],
            rows=10,
            limits={"k": KeyLimits(max_parallel_requests=1, tokens_per_minute=6_000)},
            config=config(engine=engine),
        )
        assert grown.report.throttles["k"].tokens == 10_000
        assert trio.current_time() - start >= 80


async def test_context_variables_do_not_leak_between_cells(autojump_clock: MockClock) -> None:
    """What one cell sets, no other cell sees, whoever ended before it; what the caller set, all see."""
    mine: contextvars.ContextVar[int] = contextvars.ContextVar("mine", default=-1)
    outer: contextvars.ContextVar[str] = contextvars.ContextVar("outer", default="unset")
    seen = []

    async def v(n: int) -> int:
        seen.append((mine.get(), outer.get()))
        mine.set(n)
        await trio.sleep(n % 3)
        return n

    async def w(v: int) -> int:
        seen.append((mine.get(), outer.get()))
        mine.set(100 + v)
        return v

    outer.set("caller")
    await grow(
        [seed(), Column("v", v, key="k"), Column("w", w)],
        rows=12,
        config=config(max_parallel_requests=2, buffer_size=4),
    )
    assert seen == [(-1, "caller")] * 24


async def test_context_variables_do_not_leak_from_threads() -> None:
    """The same holds for cells in worker threads, which are used again and again."""
    mine: contextvars.ContextVar[int] = contextvars.ContextVar("mine", default=-1)
    seen = []

    def v(n: int) -> int:
        seen.append(mine.get())
        mine.set(n)
        return n

    await grow([seed(), Column("v", v)], rows=12, config=config(max_active_tasks=2))
    assert seen == [-1] * 12


async def test_a_dropped_row_cancels_what_its_thread_awaits() -> None:
    """A call that a synchronous cell awaits ends with its row, and the thread gets an error instead of an answer."""
    awaiting, errors = trio.Event(), []
    ended = trio.Event()
    token = trio.lowlevel.current_trio_token()

    async def hang() -> None:
        awaiting.set()
        await trio.sleep_forever()

    def v(n: int, context: CellContext) -> int:
        if n == 0:
            try:
                context.run(hang)
            except Permanent as error:
                errors.append(str(error))
            token.run_sync_soon(ended.set)
        return n

    async def fail(n: int) -> int:
        if n == 0:
            await awaiting.wait()
            raise Permanent("bad row")
        return n

    async def last(n: int) -> int:
        await ended.wait()
        return n

    grown = await grow([seed(), Column("v", v), Column("f", fail), Column("l", last)], rows=2)
    assert errors == ["the cell was cancelled"]
    assert grown.column("n") == [1]
