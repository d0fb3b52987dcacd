"""Builds that are disturbed at their n-th step, for every n, and what must hold afterwards."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING, Any

import attrs
import trio
from trio.testing import MockClock

import seedbed as sb
from seedbed.runtime import threads as runtime_threads
from seedbed.store.files import PRIVATE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from seedbed.engine.run import Run
    from seedbed.engine.services import OpenGroup


@attrs.define(eq=False)
class Probe(trio.abc.Instrument):
    """Calls `act` once, before the n-th step that any task makes from now on, and collects the row groups it sees."""

    at: int
    act: Callable[[], None]
    build: sb.Build | None = None
    steps: int = 0
    groups: set[OpenGroup] = attrs.Factory(set)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Count, and act in time."""
        if self.build is None:
            return
        if self.build._run is not None:
            self.groups.update(self.build._run.output.groups.values())
        if self.steps == self.at:
            self.act()
        self.steps += 1


@attrs.define(eq=False)
class Trial:
    """One build and how it is disturbed. `make` gives the columns of a fresh run and an event that drops row 0."""

    make: Callable[[trio.Event], list[sb.Column]]
    options: dict[str, Any] = attrs.Factory(dict)
    rows: int = 4
    processors: tuple[sb.Processor, ...] = ()
    limits: dict[str, sb.KeyLimits] = attrs.Factory(dict)
    out: Path | None = None

    def cancelled_at(self, step: int) -> bool:
        """Cancel the caller at that step; whether the run was through before."""
        scope = trio.CancelScope()
        return self._run(step, scope.cancel, scope)

    def dropped_at(self, step: int) -> bool:
        """Let a sibling column of row 0 fail at that step; whether the run was through before."""
        return self._run(step, None, None)

    def _run(self, step: int, act: Callable[[], None] | None, scope: trio.CancelScope | None) -> bool:
        over = []

        async def main() -> None:
            fail = trio.Event()
            async with sb.open_throttles(self.limits) as throttles:
                await trio.testing.wait_all_tasks_blocked()
                tasks = trio.lowlevel.current_statistics().tasks_living
                probe = Probe(step, act or fail.set)
                trio.lowlevel.add_instrument(probe)
                groups: list[sb.FinishedGroup] = []
                with scope or trio.CancelScope():
                    await self._grow(probe, fail, throttles, groups)
                trio.lowlevel.remove_instrument(probe)
                over.append(probe.steps <= step)
                await self._check(
                    probe, throttles, groups, tasks, cancelled=scope is not None and scope.cancelled_caught
                )

        trio.run(main, clock=MockClock(autojump_threshold=0))
        return over[0]

    async def _grow(self, probe: Probe, fail: trio.Event, throttles: Any, groups: list[sb.FinishedGroup]) -> None:
        config = sb.RunConfig(jitter_seed=1, shutdown_error_window=1_000, max_processes=1, **self.options)
        with trio.fail_after(10_000):
            async with sb.open_build(
                self.make(fail),
                rows=self.rows,
                config=config,
                processors=self.processors,
                throttles=throttles,
                out=self.out,
            ) as build:
                probe.build = build
                async for group in build:
                    groups.append(group)  # noqa: PERF401 - those before a cancellation count

    async def _check(
        self, probe: Probe, throttles: Any, groups: list[sb.FinishedGroup], tasks: int, *, cancelled: bool
    ) -> None:
        while runtime_threads._hold_count.get():  # abandoned threads end by themselves in these tests
            await trio.testing.wait_all_tasks_blocked(0.001)
        await trio.sleep(1_000)  # refused permits come back
        assert trio.lowlevel.current_clock().autojump_threshold == 0
        assert trio.lowlevel.current_statistics().tasks_living == tasks
        for key, statistics in throttles.statistics().items():
            assert (key, statistics.in_flight, statistics.held) == (key, 0, 0)
            assert not throttles.get(key)._listeners
        assert probe.build is not None
        run = probe.build._run
        if run is None:  # cancelled before it began
            assert cancelled
            return
        check_run(run)
        if self.out is not None:
            self._check_directory(self.out, groups)
        for group in probe.groups:
            assert group.rows.buffer is not None
            assert group.nursery.child_tasks == set()
        for group in groups:
            frame = group.to_polars()
            assert frame.height == group.rows
            assert set(frame["n"]) <= set(group.source_rows)
            assert frame.null_count().sum_horizontal().sum() == 0
        if not cancelled:
            report = probe.build.report
            assert report.written + len(report.dropped) == self.rows
            assert not report.unfinished
            assert {drop.row for drop in report.dropped} <= {0}

    def _check_directory(self, out: Path, groups: list[sb.FinishedGroup]) -> None:
        dataset = sb.Dataset.open(out)
        dataset.verify()
        names = {part.name for part in dataset.parts}
        assert {group.path.name for group in groups if group.path is not None} <= names
        assert {path.name for path in out.iterdir()} == {*names, PRIVATE}


def check_run(run: Run) -> None:
    """Nothing of a run that has ended is held, queued or waited for."""
    statistics = run.scheduler.statistics()
    assert (statistics.submitted, statistics.active, statistics.parked, statistics.waiting_calls) == (0, 0, 0, 0)
    assert statistics.queued == 0
    assert run.scheduler._active_processes == 0
    assert run.output.shared.budget._reserved == [0, 0]
    assert run.scheduler.groups == {}
    assert run.output.store_limiter.borrowed_tokens == 0
    assert run.timers._sleep is None
    assert run._send._closed
    assert run._receive._closed
    for instance in run.output.shared.instances.values():
        assert not instance.busy
        assert not instance.turnstile._waiting
    assert not any(run.ledger.running_threads.values())


def every_step(disturb: Callable[[int], bool]) -> int:
    """Disturb a run at step 0, 1, 2… until it is through before; returns how many steps that were."""
    step = 0
    while not disturb(step):
        step += 1
        assert step < 5_000, "the run never gets through"
    gc.collect()  # what is destroyed while it waits for something complains here
    return step


def threads() -> set[str]:
    """The names of the threads that run now."""
    return {thread.name for thread in threading.enumerate()}


def steady_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let trio run tasks of one instant in an order that is the same in every run."""
    monkeypatch.setattr(trio._core._run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
