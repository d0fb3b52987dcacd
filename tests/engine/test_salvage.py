"""Retries: when, how often, and in which order."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import trio
from engine_helpers import Watched, config, grow, seed

from seedbed import Column, Retryable
from seedbed.engine.failures import Salvage
from seedbed.engine.tasks import Task
from seedbed.observe import events

if TYPE_CHECKING:
    from trio.testing import MockClock


def fails(times: int, *rows: int) -> Watched:
    """A column whose first attempts for these rows fail in a way that may pass."""

    def act(n: int, attempt: int) -> int:
        if n in rows and attempt <= times:
            raise Retryable(f"attempt {attempt}")
        return n

    return Watched(1.0, act=act)


@pytest.mark.parametrize("engine", ["concurrent", "sequential"])
@pytest.mark.parametrize("rounds", [0, 1, 2, 5])
async def test_attempts_are_rounds_plus_one(autojump_clock: MockClock, rounds: int, engine: str) -> None:
    """A cell that succeeds on its last attempt is saved; one that would need one more is dropped."""
    saved, lost = fails(rounds, 1), fails(rounds + 1, 2)
    grown = await grow(
        [seed(), Column("saved", saved), Column("lost", lost)],
        rows=4,
        config=config(salvage_max_rounds=rounds, engine=engine, salvage_error_threshold=1.0),
    )
    assert saved.attempts[1] == rounds + 1
    assert lost.attempts[2] == rounds + 1
    assert grown.column("n") == [0, 1, 3]
    (drop,) = grown.report.dropped
    assert (drop.row, drop.column, drop.attempts, drop.error) == (2, "lost", rounds + 1, f"attempt {rounds + 1}")


async def test_a_salvaged_row_continues(autojump_clock: MockClock) -> None:
    """What depends on a retried cell is made once it succeeded."""
    after = Watched(1.0)

    async def then(flaky: int) -> int:
        return await after.agenerate(flaky)

    grown = await grow([seed(), Column("flaky", fails(2, 0)), Column("then", then)], rows=2)
    assert grown.column("then") == [0, 1]
    assert after.attempts == {0: 1, 1: 1}


async def test_retries_wait_for_what_is_ready(autojump_clock: MockClock) -> None:
    """Normal work goes first: a failed cell is retried only when its group has nothing queued."""
    watched = fails(1, 0)
    await grow([seed(), Column("v", watched, key="k")], rows=10, config=config(max_parallel_requests=1))
    assert [n for _, n in watched.started] == [0, *range(1, 10), 0]


async def test_a_round_starts_while_cells_are_in_flight(autojump_clock: MockClock) -> None:
    """Nothing queued is enough: a retry does not wait for the slowest call of its group."""

    def act(n: int, attempt: int) -> int:
        if n == 0 and attempt == 1:
            raise Retryable("x")
        return n

    start = trio.current_time()
    quick, slow = Watched(1.0, act=act), Watched(100.0)
    await grow([seed(), Column("quick", quick), Column("slow", slow)], rows=2)
    assert quick.finished[-1][0] - start < 10


async def test_each_waits_its_own_backoff(autojump_clock: MockClock) -> None:
    """A retry is not sent before it is eligible, and the wait has jitter and grows no further than its maximum."""
    deferred: dict[tuple[int, int], float] = {}
    started: dict[tuple[int, int], float] = {}

    def read(event: events.Event) -> None:
        if isinstance(event, events.TaskDeferred):
            assert event.row is not None
            deferred[event.row, event.attempt] = event.eligible_at - event.time
            deferred[event.row, -event.attempt] = event.eligible_at
        elif isinstance(event, events.TaskStarted) and event.column == "v":
            assert event.row is not None
            started[event.row, event.attempt] = event.time

    await grow(
        [seed(), Column("v", fails(4, *range(20)))],
        rows=40,
        config=config(salvage_max_rounds=4, backoff_base=2, backoff_max=5, salvage_error_threshold=1.0),
        readers=[read],
    )
    waits = {attempt: [deferred[row, attempt] for row in range(20)] for attempt in (1, 2, 3, 4)}
    for attempt, ceiling in ((1, 2.0), (2, 4.0), (3, 5.0), (4, 5.0)):
        assert 0 <= min(waits[attempt]) < max(waits[attempt]) <= ceiling
        assert len(set(waits[attempt])) == 20
        for row in range(20):
            assert started[row, attempt + 1] >= deferred[row, -attempt] - 1e-9
    assert max(waits[3]) > 4.0


async def test_a_cell_that_first_fails_late_still_has_its_rounds(autojump_clock: MockClock) -> None:
    """Attempts count per cell: rounds that others used up are not taken from it."""
    early, late = fails(2, 0), fails(2, 0)

    async def after(early: int) -> int:
        return await late.agenerate(early)

    grown = await grow([seed(), Column("early", early), Column("late", after)], rows=1)
    assert early.attempts[0] == late.attempts[0] == 3
    assert grown.report.written == 1


async def test_each_group_salvages_for_itself(autojump_clock: MockClock) -> None:
    """A group with retries to do does not hold back the others."""
    grown = await grow(
        [seed(), Column("v", fails(2, 0, 1))],
        rows=6,
        config=config(buffer_size=2, backoff_base=50, backoff_max=100),
    )
    assert [group.row_group for group in grown.groups][-1] == 0
    assert grown.report.written == 6


async def test_a_deferred_cell_of_a_dropped_row_is_not_retried(autojump_clock: MockClock) -> None:
    """Its row is gone, so the retry is not worth a call."""
    flaky = fails(5, 0)

    def act(n: int, _: int) -> int:
        if n == 0:
            raise ValueError("gone")
        return n

    grown = await grow(
        [seed(), Column("flaky", flaky), Column("fatal", Watched(3.0, act=act)), Column("slow", Watched(0.5), key="s")],
        rows=20,
        config=config(max_parallel_requests=1),
    )
    assert flaky.attempts[0] == 1
    assert [(drop.row, drop.column) for drop in grown.report.dropped] == [(0, "fatal")]


def test_the_core_defers_until_attempts_run_out() -> None:
    """Deferring says when, a round hands everything out with one attempt more, discarding takes one out."""
    salvage = Salvage(config(salvage_max_rounds=1, backoff_base=4), random.Random(1))
    step: Any = None
    first, second = Task(step, 0, 0), Task(step, 0, 1)
    eligible = salvage.defer(first, 100.0, None)
    assert eligible is not None
    assert 100.0 <= eligible <= 104.0
    assert salvage.defer(second, 100.0, 0.5) is not None
    salvage.discard(second)
    assert len(salvage) == 1
    assert salvage.start_round(rows=2) == [(first, eligible)]
    assert first.attempt == 2
    assert salvage.rounds == 1
    assert salvage.defer(first, 200.0, None) is None
