"""Events: every state change is one record, and none is made for nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from engine_helpers import Watched, config, grow, seed

from seedbed import Column, Permanent, Processor, RateLimited, Retryable
from seedbed.observe import events
from seedbed.observe.events import Event, Events

if TYPE_CHECKING:
    from trio.testing import MockClock


def short(event: Event) -> str:
    """An event in a word or two."""
    name = type(event).__name__
    if isinstance(event, events.TaskFinished):
        return f"{name} {event.column}{'' if event.row is None else event.row} {event.status}"
    if isinstance(event, events.TaskEvent):
        return f"{name} {event.column}{'' if event.row is None else event.row}"
    return name


@pytest.mark.parametrize("engine", ["concurrent", "sequential"])
async def test_a_small_run_from_beginning_to_end(autojump_clock: MockClock, engine: str) -> None:
    """One row, two columns: every record, in order."""
    seen: list[Event] = []
    await grow([seed(), Column("v", Watched(1.0))], rows=1, config=config(engine=engine), readers=[seen.append])
    assert [short(event) for event in seen] == [
        "BuildStarted",
        "RowGroupAdmitted",
        "TaskReady n",
        "TaskStarted n",
        "TaskFinished n success",
        "TaskReady v0",
        "TaskStarted v0",
        "TaskFinished v0 success",
        "RowGroupFinished",
        "BuildFinished",
    ]
    assert [event.time for event in seen] == sorted(event.time for event in seen)
    first, last = seen[0], seen[-1]
    assert isinstance(first, events.BuildStarted)
    assert (first.rows, first.row_groups, first.columns) == (1, 1, ("n", "v"))
    assert isinstance(last, events.BuildFinished)
    assert (last.rows, last.dropped, last.error) == (1, 0, None)


@pytest.mark.parametrize("engine", ["concurrent", "sequential"])
async def test_failures_rate_limits_and_retries_are_events(autojump_clock: MockClock, engine: str) -> None:
    """A rate limit, a deferral with its salvage round, and a drop, each once and in order."""
    seen: list[Event] = []
    script = iter([RateLimited("wait", retry_after=5), Retryable("again"), Permanent("enough")])

    async def v(n: int) -> int:
        raise next(script)

    await grow([seed(), Column("v", v, key="k")], rows=1, config=config(engine=engine), readers=[seen.append])
    assert [short(event) for event in seen if getattr(event, "column", "v") == "v"][2:-2] == [
        "TaskReady v0",
        "TaskStarted v0",
        "TaskFinished v0 rate_limited",
        "TaskRateLimited v0",
        "TaskStarted v0",
        "TaskFinished v0 retryable",
        "TaskDeferred v0",
        "SalvageStarted",
        "TaskStarted v0",
        "TaskFinished v0 permanent",
        "RowDropped",
    ]
    refused = next(event for event in seen if isinstance(event, events.TaskRateLimited))
    assert refused.key == "k"
    assert refused.eligible_at - refused.time == 5
    dropped = next(event for event in seen if isinstance(event, events.RowDropped))
    assert (dropped.row, dropped.column, dropped.attempts, dropped.error) == (0, "v", 2, "enough")
    finished = [event for event in seen if isinstance(event, events.TaskFinished) and event.column == "v"]
    assert [event.error for event in finished] == ["RateLimited: wait", "again", "enough"]
    assert [event.attempt for event in finished] == [1, 1, 2]


@pytest.mark.parametrize("engine", ["concurrent", "sequential"])
async def test_every_started_task_finishes(autojump_clock: MockClock, engine: str) -> None:
    """Whatever becomes of it, a start is followed by exactly one end, and every row by one fate."""
    seen: list[Event] = []

    def act(n: int, attempt: int) -> int:
        if n % 5 == 0:
            raise Permanent("no")
        if n % 3 == 0 and attempt == 1:
            raise Retryable("later")
        return n

    grown = await grow(
        [seed(), Column("a", Watched(1.0, act=act)), Column("b", Watched(2.0))],
        rows=30,
        config=config(buffer_size=8, engine=engine),
        readers=[seen.append],
    )
    started = [(e.column, e.row_group, e.row, e.attempt) for e in seen if isinstance(e, events.TaskStarted)]
    finished = [(e.column, e.row_group, e.row, e.attempt) for e in seen if isinstance(e, events.TaskFinished)]
    assert sorted(map(str, started)) == sorted(map(str, finished))
    assert len(set(started)) == len(started)
    drops = [event.row for event in seen if isinstance(event, events.RowDropped)]
    assert sorted(drops) == [drop.row for drop in grown.report.dropped]
    groups = [
        (event.row_group, event.rows, event.dropped) for event in seen if isinstance(event, events.RowGroupFinished)
    ]
    assert sorted(groups) == [(0, 6, 2), (1, 6, 2), (2, 7, 1), (3, 5, 1)]
    admitted = [event.row_group for event in seen if isinstance(event, events.RowGroupAdmitted)]
    assert admitted == [0, 1, 2, 3]
    assert sum(isinstance(event, events.TaskDeferred) for event in seen) == grown.report.errors["a"] - 6
    assert any(isinstance(event, events.SalvageStarted) for event in seen)


@pytest.mark.parametrize("engine", ["concurrent", "sequential"])
async def test_processors_are_events(autojump_clock: MockClock, engine: str) -> None:
    """Their tasks are tasks, and what they left is said."""
    seen: list[Event] = []
    await grow(
        [seed(), Column("v", Watched(1.0))],
        rows=3,
        config=config(engine=engine),
        processors=[
            Processor(stage="pre_batch", apply=lambda frame: frame.head(2), name="pre"),
            Processor(stage="post_batch", apply=lambda frame: frame, name="post"),
        ],
        readers=[seen.append],
    )
    rebuilt = next(event for event in seen if isinstance(event, events.RowsRebuilt))
    assert (rebuilt.before, rebuilt.after) == (3, 2)
    kinds = {event.column: event.kind for event in seen if isinstance(event, events.TaskFinished)}
    assert kinds == {"n": "from_scratch", "pre": "pre_batch", "v": "cell", "post": "post_batch"}


async def test_all_readers_get_all_records_in_order(autojump_clock: MockClock) -> None:
    """However many there are."""
    one: list[Event] = []
    two: list[Event] = []
    await grow([seed()], rows=4, config=config(buffer_size=2), readers=[one.append, two.append])
    assert one == two
    assert len(one) > 5


async def test_no_event_is_created_without_readers(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a reader no record is ever made."""

    def refuse(self: object, **_: object) -> None:
        raise AssertionError("a record was made although nobody reads")

    script = {0: Permanent("no"), 1: Retryable("later"), 2: RateLimited("wait", retry_after=1)}

    def act(n: int, attempt: int) -> int:
        if attempt == 1 and n in script:
            raise script[n]
        return n

    for name in dir(events):
        kind = getattr(events, name)
        if isinstance(kind, type) and issubclass(kind, Event):
            monkeypatch.setattr(kind, "__init__", refuse)
    for engine in ("concurrent", "sequential"):
        grown = await grow(
            [seed(), Column("v", Watched(1.0, act=act), key="k")],
            rows=6,
            config=config(engine=engine, buffer_size=2),
            processors=[Processor(stage="pre_batch", apply=lambda frame: frame)],
        )
        assert grown.report.written == 5


def test_a_hub_without_readers_is_not_active() -> None:
    """That is what the engine asks before it makes a record."""
    assert not Events().active
    assert Events([print]).active


class TestTraces:
    @pytest.mark.parametrize("engine", ["concurrent", "sequential"])
    async def test_each_attempt_has_its_instants(self, autojump_clock: MockClock, engine: str) -> None:
        """Ready, submitted, permit, started, finished; None where there is no such step."""

        def act(n: int, attempt: int) -> int:
            if attempt == 1:
                raise Retryable("x")
            return n

        grown = await grow(
            [seed(), Column("v", Watched(2.0, act=act), key="k")], rows=1, config=config(trace=True, engine=engine)
        )
        root, first, second = grown.report.traces
        assert (root.kind, root.column, root.row_group, root.row) == ("from_scratch", "n", 0, None)
        assert (root.slot, root.permit) == (None, None)
        assert (first.kind, first.column, first.row, first.attempt, first.status) == ("cell", "v", 0, 1, "retryable")
        assert (second.attempt, second.status) == (2, "success")
        for trace in (first, second):
            assert trace.permit is not None
            assert trace.slot is None
            assert trace.ready <= trace.submitted <= trace.permit <= trace.started
            assert trace.finished - trace.started == pytest.approx(2.0)
        assert second.ready >= first.finished

    async def test_waiting_for_a_permit_shows(self, autojump_clock: MockClock) -> None:
        """A cell that was ready long before it got its permit has both instants."""
        grown = await grow(
            [seed(), Column("v", Watched(1.0), key="k")],
            rows=3,
            config=config(trace=True, max_parallel_requests=1),
        )
        traces = [trace for trace in grown.report.traces if trace.column == "v"]
        waits = [trace.permit - trace.ready for trace in traces if trace.permit is not None]
        assert waits == [0.0, 1.0, 2.0]

    async def test_threads_have_a_slot(self) -> None:
        """A sync column's trace says when it got one."""

        def v(n: int) -> int:
            return n

        grown = await grow([seed(), Column("v", v)], rows=1, config=config(trace=True))
        trace = next(trace for trace in grown.report.traces if trace.column == "v")
        assert trace.slot is not None
        assert trace.permit is None

    async def test_no_traces_are_recorded_by_default(self, autojump_clock: MockClock) -> None:
        """A trace of every task costs memory, so it is off."""
        grown = await grow([seed()], rows=3)
        assert grown.report.traces == ()


async def test_a_stop_is_an_event(autojump_clock: MockClock) -> None:
    """The reason is a record, and the last one says how the build ended."""
    seen: list[Event] = []

    async def v(n: int) -> int:
        raise Permanent("all")

    with pytest.raises(Exception, match="of the last 5 attempts failed"):
        await grow(
            [seed(), Column("v", v)],
            rows=50,
            config=config(shutdown_error_window=5, max_submitted_tasks=2),
            readers=[seen.append],
        )
    stop = next(event for event in seen if isinstance(event, events.StopRequested))
    assert "attempts failed" in stop.reason
    last = seen[-1]
    assert isinstance(last, events.BuildFinished)
    assert last.error is not None
    assert last.error.startswith("EarlyShutdown: ")


async def test_time_is_the_runs_own(autojump_clock: MockClock) -> None:
    """Instants are of trio's clock."""
    seen: list[Event] = []
    start = trio.current_time()
    await grow([seed(), Column("v", Watched(7.0))], rows=1, readers=[seen.append])
    assert seen[0].time == start
    assert seen[-1].time == start + 7.0
