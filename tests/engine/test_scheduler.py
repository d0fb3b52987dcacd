"""The principles of the scheduler, one by one, without trio."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from scheduler_world import LARGE, ColumnPlan, Plan, World

import seedbed as sb
from seedbed.engine.config import RunConfig
from seedbed.engine.scheduler import SLICE
from seedbed.engine.tasks import Close, PermitRequest, Status, WakeAt
from seedbed.errors import Stalled
from seedbed.graph import Kind

if TYPE_CHECKING:
    from scheduler_world import Attempt


def open_world(*columns: ColumnPlan, rows: tuple[int, ...] = (4,), **options: object) -> World:
    """A world whose first row group is admitted; no action has been asked for since."""
    world = World(Plan(columns=columns, rows=rows, config=RunConfig(**options)))
    world.decide()
    world.open_group()
    return world


def running(world: World, key: str | None) -> list[Attempt]:
    """The running tasks of a key."""
    return [attempt for attempt in world.attempts.values() if attempt.task.step.key == key]


def test_a_further_call_of_a_running_task_goes_before_new_tasks() -> None:
    """A permit that becomes free goes to the running task that waits for one, and not to a task of the same lane."""
    world = open_world(ColumnPlan(key="k"), ColumnPlan())
    world.throttles["k"].total = 1
    world.decide()
    (first,), (other, *_) = running(world, "k"), running(world, None)
    request = PermitRequest(other.task, "k", 0, lambda: None)
    world.scheduler.request_permit(request)
    assert request.permit is None
    other.request = request
    world.finish(first, Status.SUCCESS)
    world.scheduler.decide()
    assert request.permit is not None
    assert not running(world, "k")


def test_new_tasks_do_not_overtake_a_large_call_of_a_running_task() -> None:
    """While the rates allow small calls only, new tasks wait behind the large call of a running task."""
    world = open_world(ColumnPlan(key="k"), ColumnPlan())
    throttle = world.throttles["k"]
    throttle.small_only, throttle.total = True, 1
    world.decide()
    (first,), (other, *_) = running(world, "k"), running(world, None)
    world.call(other, "k", LARGE + 1)
    world.finish(first, Status.SUCCESS)
    world.decide()
    assert not running(world, "k")
    throttle.small_only = False
    throttle.notify()
    world.decide()
    assert other.permit is not None


def test_new_tasks_start_again_when_the_call_before_them_is_withdrawn() -> None:
    """A task that waited behind a request is started when the request is withdrawn."""
    world = open_world(ColumnPlan(key="k"), ColumnPlan())
    throttle = world.throttles["k"]
    throttle.paused = True
    world.decide()
    (other, *_) = running(world, None)
    world.call(other, "k", 0)
    world.decide()
    throttle.paused = False  # without a notification, as when rates allow a smaller call only
    world.withdraw(other)
    world.decide()
    assert len(running(world, "k")) == throttle.total


def test_a_throttled_key_holds_nothing_and_delays_no_other_key() -> None:
    """Tasks of a key without permits hold no slot, and those of another key use all of them."""
    world = open_world(ColumnPlan(key="k", runs_in="thread"), ColumnPlan(key="l", runs_in="thread"), max_active_tasks=2)
    world.throttles["k"].total = 0
    world.decide()
    assert not running(world, "k")
    assert len(running(world, "l")) == world.scheduler.statistics().active == 2
    assert world.scheduler.statistics().blocked["k", "thread"] == "a permit"


def test_tasks_that_need_no_slot_do_not_wait_for_one() -> None:
    """Threads of a key that wait for a slot do not delay async calls of the same key."""
    world = open_world(
        ColumnPlan(key="k", runs_in="thread"), ColumnPlan(key="k"), ColumnPlan(runs_in="thread"), max_active_tasks=1
    )
    world.throttles["k"].total = 8
    world.decide()
    assert len([attempt for attempt in running(world, "k") if not attempt.thread]) == 4


def test_a_large_row_group_is_taken_in_slices() -> None:
    """One decision moves at most SLICE tasks of a row group into lanes, and asks to be called at once for the rest."""
    rows = 100_000
    world = open_world(ColumnPlan(key="k"), rows=(rows,))
    world.throttles["k"].total = 0
    decisions = 0
    while True:
        before = world.scheduler.statistics().queued
        actions = world.scheduler.decide()
        decisions += 1
        moved = world.scheduler.statistics().queued - before
        assert moved <= SLICE
        if before + moved == rows:
            break
        assert WakeAt(world.now) in actions
    assert decisions == -(-rows // SLICE)


def test_a_run_that_stops_closes_its_row_groups_when_nothing_is_in_flight() -> None:
    """After a stop nothing starts; a row group is closed, not checkpointed, when its last attempt has ended."""
    world = open_world(ColumnPlan(key="k"))
    world.decide()
    first, second = running(world, "k")
    world.stop()
    world.finish(first, Status.SUCCESS)
    assert [action for action in world.scheduler.decide() if not isinstance(action, WakeAt)] == []
    world.finish(second, Status.SUCCESS)
    assert world.scheduler.decide() == [Close(0, is_complete=False)]


def test_nothing_follows_a_processor_of_a_row_group_that_is_not_needed_any_more() -> None:
    """Enough rows are accepted while a pre-batch processor runs: it may succeed, but the next one is not started."""
    column = ColumnPlan(kind=Kind.FROM_SCRATCH)
    config = RunConfig(max_concurrent_row_groups=3, max_submitted_tasks=1)
    world = World(Plan(columns=(column,), rows=(3, 3, 3), pre_batch=2, config=config, salt=3, accept=("c0",), wanted=2))
    for _ in range(12):
        world.decide()
        while not world.ended and (world.admitting or world.closing):
            if world.admitting:
                world.open_group()
            else:
                world.close_group(next(iter(world.closing)))
            world.decide()  # checks that nothing starts in a row group that closes
        for attempt in list(world.attempts.values()):
            world.finish(attempt, Status.SUCCESS, rows_after=2)
    assert world.is_complete


def test_a_run_that_stops_still_checkpoints_what_is_complete() -> None:
    """A row group whose last cell succeeds after the stop is checkpointed."""
    world = open_world(ColumnPlan(), rows=(1,))
    world.decide()
    (attempt,) = world.attempts.values()
    world.stop()
    world.finish(attempt, Status.SUCCESS)
    assert Close(0, is_complete=True) in world.scheduler.decide()


def test_a_parked_task_is_due_when_the_scheduler_asked_to_be_called() -> None:
    """A rate-limited task returns to its lane at the instant of `WakeAt`, not before."""
    world = open_world(ColumnPlan(key="k"), rows=(1,))
    world.decide()
    (attempt,) = world.attempts.values()
    world.finish(attempt, Status.RATE_LIMITED, delay=7.0)
    assert world.scheduler.decide() == [WakeAt(7.0)]
    world.now = 6.0
    world.decide()
    assert not world.attempts
    world.now = 7.0
    world.decide()
    assert list(world.attempts) == [attempt.task]


def test_the_grace_of_a_stopped_run_ends() -> None:
    """A stopped run asks to be called when its grace ends, and is cancelled then."""
    world = open_world(ColumnPlan(), rows=(1,), grace=5.0)
    world.decide()
    world.stop()
    world.decide()
    assert world.wakes[-1] == 5.0
    world.now = 5.0
    world.decide()
    assert world.ended


def test_a_stall_is_an_error_that_says_what_waits_for_what() -> None:
    """Permits that never come are an error with the row group, the column and the lane, and not a hang."""
    world = open_world(ColumnPlan(key="k"))
    world.throttles["k"].broken = True
    with pytest.raises(Stalled) as caught:
        for _ in range(3):
            world.scheduler.decide()
    assert "row group 0 has 4 cells left and waits for 'c0' queued" in str(caught.value)
    assert "lane 'k' waits for a permit" in str(caught.value)


def test_a_throttle_that_will_call_is_no_stall() -> None:
    """A key that is paused for a while is waited for."""
    world = open_world(ColumnPlan(key="k"))
    world.throttles["k"].paused = True
    for _ in range(3):
        world.decide()
    world.throttles["k"].paused = False
    world.throttles["k"].notify()
    world.decide()
    assert len(world.attempts) == 2


def test_a_sequential_run_reconsiders_when_another_task_comes_first() -> None:
    """A retry that goes before a task without a permit is started, and does not wait for that permit."""
    seed = ColumnPlan(kind=Kind.FROM_SCRATCH)
    world = open_world(seed, ColumnPlan(key="k"), rows=(1,), engine="sequential")
    world.throttles["k"].total = 0
    world.decide()
    (attempt,) = world.attempts.values()
    world.finish(attempt, Status.RATE_LIMITED, delay=1.0)
    world.decide()
    assert not world.attempts
    world.now = 1.0
    world.decide()
    assert list(world.attempts) == [attempt.task]


def test_a_skip_rule_that_raises_drops_the_row_with_its_other_cells() -> None:
    """Cells that became ready together with one whose skip rule raises are not started."""
    columns = (ColumnPlan(skips=True), ColumnPlan())
    plans = (Plan(columns=columns, rows=(8,), salt=salt) for salt in range(100))
    for world in map(World, plans):
        world.decide()
        world.open_group()
        world.decide()
        dropped = set(world.groups[0].rows.dropped)
        if dropped:
            break
    assert dropped
    assert not dropped & {task.row for task in world.attempts}


def test_tasks_of_the_whole_group_end_with_its_last_row() -> None:
    """A column whose every value is an error drops all rows, and no other column is generated for them."""
    seed = ColumnPlan(kind=Kind.FROM_SCRATCH)
    world = open_world(seed, seed, rows=(2,), max_submitted_tasks=1)
    world.decide()
    (attempt,) = world.attempts.values()
    world.finish(attempt, Status.SUCCESS, bad_rows=2)
    world.decide()
    assert not world.attempts
    assert world.closing == {0: True}


def test_columns_from_scratch_have_the_first_turns_with_a_stateful_generator() -> None:
    """Cells that share a generator with a column from scratch do not keep it from its turn before the barrier."""
    columns = (ColumnPlan(generator=0), ColumnPlan(kind=Kind.FROM_SCRATCH, generator=0))
    world = World(Plan(columns=columns, rows=(2, 2), pre_batch=1))
    world.run_to_end()
    assert set(world.written) == {0, 1}


def test_a_resume_knows_which_rows_a_whole_column_skipped() -> None:
    """Cells that are skipped with a row of a whole column are skipped too if the column is from an earlier run."""
    columns = (
        ColumnPlan(kind=Kind.FULL_COLUMN, skips=True),
        ColumnPlan(requires=("c0",), skips_with_inputs=True),
    )
    world = World(Plan(columns=columns, rows=(16,)))
    world.decide()
    world.open_group()
    world.decide()
    (whole,) = world.attempts.values()
    world.finish(whole, Status.SUCCESS)
    world.decide()
    started = {task.row for task in world.attempts}
    assert 0 < len(started) < 16
    world.end_run()
    world.start_run(world.config)
    world.decide()
    world.open_group()
    world.decide()
    assert {task.row for task in world.attempts} == started


def test_the_first_reason_to_stop_counts() -> None:
    """A second stop changes nothing."""
    world = open_world(ColumnPlan())
    first = sb.BuildStopped("first")
    world.scheduler.stop(first)
    world.scheduler.stop(sb.BuildStopped("second"))
    assert world.scheduler.stopping is first


def test_a_whole_column_that_lacks_a_row_is_generated_again() -> None:
    """If the record of a dropped row is damaged, the row runs again, and so does a column without a value for it."""
    world = open_world(ColumnPlan(), ColumnPlan(), ColumnPlan(kind=Kind.FULL_COLUMN, requires=("c1",)), rows=(2,))
    world.decide()
    cells = {(each.task.step.name, each.task.row): each for each in world.attempts.values()}
    world.finish(cells["c1", 0], Status.SUCCESS)
    world.finish(cells["c0", 0], Status.PERMANENT)  # its record is lost below
    world.finish(cells["c0", 1], Status.SUCCESS)
    world.finish(cells["c1", 1], Status.SUCCESS)
    world.decide()
    (whole,) = world.attempts.values()
    assert whole.rows == (1,)
    world.finish(whole, Status.SUCCESS)
    world.end_run()
    world.log = [(of, entry) for of, entry in world.log if entry[0] != "failed"]
    world.is_damaged = True
    world.start_run(world.config)
    world.run_to_end()
    assert list(world.written) == [0]
