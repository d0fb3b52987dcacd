"""The scheduler without trio: its promises hold after every decision, for all events in all orders."""

from __future__ import annotations

from typing import Any

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from scheduler_world import KEYS, LARGE, ColumnPlan, Plan, World

from seedbed.engine.config import RunConfig
from seedbed.engine.tasks import Status
from seedbed.graph import Kind

picks = st.integers(0, 7)
seldom = st.sampled_from([False] * 9 + [True])
LANES = ("m", "n")


@st.composite
def columns(draw: st.DrawFn, index: int) -> ColumnPlan:
    """One column that may require those before it."""
    kind = (
        draw(st.sampled_from([Kind.CELL, Kind.CELL, Kind.CELL, Kind.FROM_SCRATCH, Kind.FULL_COLUMN]))
        if index
        else (draw(st.sampled_from([Kind.FROM_SCRATCH, Kind.CELL])))
    )
    before = [f"c{n}" for n in range(index)]
    requires = ()
    if kind is not Kind.FROM_SCRATCH and before and draw(st.booleans()):
        requires = tuple(draw(st.lists(st.sampled_from(before), unique=True, max_size=2)))
    key = draw(st.sampled_from([None, None, *KEYS]))
    generator = draw(st.sampled_from([None, None, 0, 1]))
    runs_in = draw(st.sampled_from(["async", "thread"] if generator is not None else ["async", "thread", "process"]))
    return ColumnPlan(
        kind=kind,
        requires=requires,
        key=key,
        tokens=draw(st.sampled_from([0, 5, 10])),
        runs_in=runs_in,
        outputs=draw(st.sampled_from([1, 1, 2])),
        generator=generator,
        skips=kind is not Kind.FROM_SCRATCH and draw(st.booleans()) and draw(st.booleans()),
        skips_with_inputs=bool(requires) and draw(st.booleans()) and draw(st.booleans()),
        lane=draw(st.sampled_from([None, None, *LANES])),
    )


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """A graph of up to four columns, up to three small row groups, and tight limits."""
    config = RunConfig(
        max_concurrent_row_groups=draw(st.integers(1, 3)),
        max_submitted_tasks=draw(st.sampled_from([100, 100, 100, 3, 1])),
        max_active_tasks=draw(st.sampled_from([100, 100, 2, 1])),
        salvage_max_rounds=draw(st.integers(0, 2)),
        shutdown_error_window=draw(st.sampled_from([1000, 1000, 1000, 4])),
        max_tokens=draw(st.sampled_from([None, None, 100, 30])),
        max_cost=draw(st.sampled_from([None, None, 10.0, 2.0])),
        engine=draw(st.sampled_from(["concurrent", "concurrent", "concurrent", "sequential"])),
    )
    count = draw(st.sampled_from([3, 4, 2, 1]))
    made = tuple(draw(columns(index)) for index in range(count))
    has_seed = any(column.kind is Kind.FROM_SCRATCH for column in made)
    counts = draw(st.sampled_from(["all", "all", "accepted", "wanted"]))
    accept = tuple(
        draw(st.lists(st.sampled_from([f"c{n}" for n in range(count)]), min_size=1, max_size=2, unique=True))
    )
    return Plan(
        columns=made,
        rows=tuple(draw(st.lists(st.sampled_from([3, 4, 2, 1]), min_size=1, max_size=3))),
        pre_batch=draw(st.sampled_from([1, 2, 0])) if has_seed else 0,
        post_batch=draw(st.integers(0, 1)),
        config=config,
        lane_limits={lane: draw(st.integers(1, 2)) for lane in LANES},
        salt=draw(st.integers(0, 3)),
        accept=accept if counts == "accepted" else (),
        wanted=None if counts == "all" else draw(st.integers(0, 8)),
    )


settings = st.fixed_dictionaries(
    {
        "plan": plans(),
        "slow_groups": st.booleans(),
        "total": st.sampled_from([3, 2, 1, 0]),
        "small_only": st.booleans(),
    }
)


class SchedulerMachine(RuleBasedStateMachine):
    """Datasets, each from its first run to its last; a rule is an event that the trio side reports."""

    @initialize(setting=settings, crashes_at_the_end=st.booleans())
    def begin(self, setting: dict[str, Any], crashes_at_the_end: bool) -> None:
        self.crashes_at_the_end = crashes_at_the_end
        self._open(**setting)

    def _open(self, plan: Plan, slow_groups: bool, total: int, small_only: bool) -> None:
        self.world = World(plan)
        self.world.throttles["k"].total, self.world.throttles["k"].small_only = total, small_only
        self.slow_groups = slow_groups  # opening and closing row groups are steps of their own
        self.decide()

    @precondition(lambda self: self.is_complete())
    @rule(setting=settings)
    def begin_another(self, setting: dict[str, Any]) -> None:
        """The dataset is complete: check its end, and begin another one."""
        self.world.run_to_end()
        self._open(**setting)

    def is_complete(self) -> bool:
        return self.world.is_complete

    def decide(self, batch: bool = False) -> None:
        """Events are often reported in batches: then one decision follows several of them."""
        world = self.world
        if not batch:
            world.decide()
        while not self.slow_groups and not batch and not world.ended and (world.admitting or world.closing):
            if world.admitting:
                world.open_group()
            else:
                world.close_group(next(iter(world.closing)))
            world.decide()

    def is_running(self) -> bool:
        return not self.world.done

    @precondition(lambda self: self.world.admitting is not None and not self.world.ended)
    @rule()
    def open_group(self) -> None:
        self.world.open_group()
        self.decide()

    @precondition(lambda self: self.world.closing and not self.world.ended)
    @rule(pick=picks)
    def close_group(self, pick: int) -> None:
        closing = list(self.world.closing)
        self.world.close_group(closing[pick % len(closing)])
        self.decide()

    @precondition(lambda self: self.world.attempts)
    @rule(
        pick=picks,
        count=st.integers(1, 4),
        result=st.fixed_dictionaries(
            {
                "tokens": st.integers(0, 10),
                "cost": st.sampled_from([0.0, 0.5, 1.0]),
                "bad_rows": st.sampled_from([0, 0, 0, 1, 4]),
                "rows_after": st.integers(0, 2),
            }
        ),
        batch=st.booleans(),
    )
    def succeed(self, pick: int, count: int, result: dict[str, Any], batch: bool) -> None:
        for _ in range(count):
            running = list(self.world.attempts.values())
            if running:
                self.world.finish(running[pick % len(running)], Status.SUCCESS, **result)
        self.decide(batch)

    @precondition(lambda self: self.world.sendable())
    @rule(decisions=st.integers(1, 6), spared=st.integers(0, 2), rows_after=st.sampled_from([1, 2, 0]))
    def work(self, decisions: int, spared: int, rows_after: int) -> None:
        """All running tasks but a few succeed, several times: the other rules meet row groups at all stages."""
        for _ in range(decisions):
            for attempt in list(self.world.attempts.values())[spared:]:
                if attempt.request is None and attempt.task in self.world.attempts:
                    self.world.finish(attempt, Status.SUCCESS, rows_after=rows_after)
            self.decide()

    @precondition(lambda self: self.world.attempts)
    @rule(pick=picks, delay=st.sampled_from([0.0, 1.0, 10.0]), batch=st.booleans())
    def rate_limit(self, pick: int, delay: float, batch: bool) -> None:
        running = list(self.world.attempts.values())
        self.world.finish(running[pick % len(running)], Status.RATE_LIMITED, delay=delay)
        self.decide(batch)

    @precondition(lambda self: self.world.attempts)
    @rule(
        pick=picks,
        status=st.sampled_from([Status.RETRYABLE, Status.RETRYABLE, Status.PERMANENT]),
        tokens=st.integers(0, 10),
        abandon=st.booleans(),
        batch=st.booleans(),
    )
    def fail(self, pick: int, status: Status, tokens: int, abandon: bool, batch: bool) -> None:
        """An error, or a timeout that leaves the thread behind."""
        running = list(self.world.attempts.values())
        self.world.finish(running[pick % len(running)], status, tokens=tokens, abandon=abandon)
        self.decide(batch)

    @precondition(lambda self: any(attempt.thread for attempt in self.world.attempts.values()))
    @rule(pick=picks, batch=st.booleans())
    def time_out(self, pick: int, batch: bool) -> None:
        """A cell exceeds its timeout, and its thread is abandoned."""
        threads = [attempt for attempt in self.world.attempts.values() if attempt.thread]
        self.world.finish(threads[pick % len(threads)], Status.RETRYABLE, abandon=True)
        self.decide(batch)

    @precondition(lambda self: self.world.beside_others())
    @rule(pick=picks, count=st.sampled_from([2, 1, 3]), batch=st.booleans())
    def fail_beside_others(self, pick: int, count: int, batch: bool) -> None:
        """Rows are dropped while other cells of them run, which are cancelled."""
        for _ in range(count):
            running = self.world.beside_others()
            if running:
                self.world.finish(running[pick % len(running)], Status.PERMANENT)
        self.decide(batch)

    @precondition(lambda self: any(attempt.cancelled for attempt in self.world.attempts.values()))
    @rule(pick=picks, abandon=st.booleans(), batch=st.booleans())
    def cancel(self, pick: int, abandon: bool, batch: bool) -> None:
        cancelled = [attempt for attempt in self.world.attempts.values() if attempt.cancelled]
        self.world.finish(cancelled[pick % len(cancelled)], Status.CANCELLED, abandon=abandon)
        self.decide(batch)

    @precondition(lambda self: self.world.threads and not self.world.ended)
    @rule(pick=picks)
    def end_thread(self, pick: int) -> None:
        self.world.end_thread(self.world.threads[pick % len(self.world.threads)])
        self.decide()

    @precondition(lambda self: self.world.sendable())
    @rule(
        count=st.integers(1, 4),
        key=st.sampled_from(KEYS),
        tokens=st.sampled_from([0, 5, LARGE + 1, LARGE + 1]),
        batch=st.booleans(),
    )
    def call_again(self, count: int, key: str, tokens: int, batch: bool) -> None:
        for attempt in self.world.sendable()[:count]:
            if attempt.task in self.world.attempts:
                self.world.call(attempt, key, tokens)
        self.decide(batch)

    @precondition(is_running)
    @rule(
        key=st.sampled_from(KEYS),
        total=st.sampled_from([3, 2, 1, 3, 0]),
        paused=seldom,
        small_only=st.booleans(),
    )
    def change_permits(self, key: str, total: int, paused: bool, small_only: bool) -> None:
        throttle = self.world.throttles[key]
        throttle.total, throttle.paused, throttle.small_only = total, paused, small_only
        if throttle.grants():
            throttle.notify()
        self.decide()

    @precondition(lambda self: self.world.wakes)
    @rule()
    def wake(self) -> None:
        world = self.world
        world.now = max(world.now, min(world.wakes))
        world.wakes = [when for when in world.wakes if when > world.now]
        self.decide()

    def _end_wait(self) -> None:
        """While nothing runs, let the event happen that the run waits for."""
        world = self.world
        if world.attempts or world.done:
            return
        if world.admitting:
            world.open_group()
        elif world.closing:
            world.close_group(next(iter(world.closing)))
        elif world.wakes:
            self.wake()
        for throttle in world.throttles.values():
            throttle.total, throttle.paused = max(2, throttle.total), False
            throttle.notify()
        self.decide()

    @precondition(is_running)
    @rule(really=seldom, batch=st.booleans())
    def stop(self, really: bool, batch: bool) -> None:
        if really:
            self.world.stop()
            self.decide(batch)
        else:
            self._end_wait()

    @precondition(lambda self: not self.is_complete())
    @rule(really=seldom, keep=st.sampled_from([1.0, 1.0, 0.9, 0.5, 0.2, 0.0]))
    def crash_and_resume(self, really: bool, keep: float) -> None:
        """The process ends, or has ended, and a prefix of the journal is left."""
        world = self.world
        if really or world.done:
            self._resume(round(len(world.log) * keep))
        else:
            self._end_wait()

    @precondition(lambda self: self.world.rebuilt() is not None)
    @rule(really=st.booleans(), more=st.integers(0, 20))
    def crash_after_rebuild(self, really: bool, more: int) -> None:
        """The process ends after pre-batch processors ran: the next run takes over the rows that they returned."""
        entries = self.world.rebuilt()
        if really and entries is not None:
            self._resume(entries + more)

    @precondition(lambda self: len(self.world.log) > 1 and not self.is_complete())
    @rule(really=seldom, data=st.data())
    def crash_with_damage(self, really: bool, data: st.DataObject) -> None:
        """The process ends, and entries in the middle of the journal are damaged: their cells run again."""
        world = self.world
        if really:
            first = data.draw(st.integers(0, len(world.log) - 1))
            if not world.ended:
                world.end_run()
            del world.log[first : first + data.draw(st.integers(1, 4))]
            world.is_damaged = True
            self._resume(len(world.log))

    def _resume(self, entries: int) -> None:
        """Begin another run with the first entries of the journal."""
        world = self.world
        if not world.ended:
            world.end_run()
        del world.log[entries:]
        world.start_run(world.config)
        self.decide()

    def teardown(self) -> None:
        """Whatever happened before, the run ends, and another run without a budget finishes the dataset."""
        if not hasattr(self, "world") or self.world.failed:
            return
        world = self.world
        if self.crashes_at_the_end and not self.is_complete():
            self._resume(len(world.log))
        world.run_to_end()
        if not world.is_complete:
            world.start_run(attrs.evolve(world.config, max_tokens=None, max_cost=None, shutdown_error_window=100_000))
            world.run_to_end()
        assert world.is_complete
        if world.plan.wanted is not None:
            self._check_accepted()

    def _check_accepted(self) -> None:
        """The decided row groups are the first ones, and they have as many rows as are wanted, if all together do."""
        world = self.world
        assert world.decided == list(range(len(world.decided)))
        assert world.kept >= (world.plan.wanted or 0) or len(world.decided) == len(world.plan.rows)


TestScheduler = SchedulerMachine.TestCase


def test_a_granted_call_that_would_exceed_the_budget_ends_the_run() -> None:
    """The last task that runs waits for a permit of a call for which nothing is left."""
    column = ColumnPlan(kind=Kind.FROM_SCRATCH)
    world = World(Plan(columns=(column,), rows=(1,), config=RunConfig(max_tokens=30)))
    for _ in range(2):
        world.decide()
        if world.admitting is not None:
            world.open_group()
    [attempt] = world.attempts.values()
    world.call(attempt, "k", 11)
    world.call(attempt, "k", 11)
    world.throttles["k"].total = 0
    world.call(attempt, "k", 11)
    world.run_to_end()
    assert "max_tokens=30" in str(world.scheduler.stopping)
    assert not world.written


def test_a_stateful_cell_of_a_dropped_row_runs_once_after_damage() -> None:
    """Where an earlier call of its generator is lost, a cell of a dropped row is not known: its turn comes later."""
    columns = (ColumnPlan(), ColumnPlan(generator=0))
    world = World(Plan(columns=columns, rows=(3,)))
    world.decide()
    world.open_group()
    world.decide()
    while world.attempts:
        attempt = min(world.attempts.values(), key=lambda each: (each.task.step.node, each.task.row))
        is_last = (attempt.task.step.node, attempt.task.row) == (0, 2)
        world.finish(attempt, Status.PERMANENT if is_last else Status.SUCCESS)
        world.decide()
    world.end_run()
    world.log.remove((0, ("finished", "c1", 0, 0, None)))
    world.is_damaged = True
    world.start_run(world.config)
    world.run_to_end()
    assert [row for _, _, row in next(iter(world.order.values()))] == [0, 1, 2]
    assert len(world.written) == 1
