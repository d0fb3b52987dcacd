"""The scheduler of a build: it decides everything, synchronously, and performs nothing.

Principles
1. Events in, actions out. A caller reports events (`admitted`, `finished`, `permits_available`, `thread_ended`, `stop`,
   …) and then gets actions from `decide`: start, cancel, grant, admit, close, wake, cancel the run.
2. A task starts only when it has everything it needs: inputs, permit, slot, its part of the usage budget. So a
   throttled key holds nothing and delays no other key.
3. Tasks start in one place (`_start_tasks`), once per batch of events, and every task that can start is started.
4. A lane that cannot be served has exactly one recorded reason (`Blocked`), and the end of that reason unblocks it.
5. Calls of running tasks go before new tasks, so that open cells are finished first.
6. If nothing runs and nothing can run before the build is finished, it raises `Stalled` instead of hanging.

It imports neither trio nor the store; clocks, random numbers, throttles, values and the journal are handed in.
"""

from __future__ import annotations

import enum
import heapq
import itertools
import math
from collections import Counter, deque
from typing import TYPE_CHECKING

import attrs

from ..errors import BudgetExceeded, BuildStopped, EarlyShutdown, Stalled
from ..observe import events
from ..runtime.lanes import Lanes
from .failures import AbandonedThreads, ErrorWindow, error_text
from .row_group import Phase
from .tasks import (
    PROCESS_LANE,
    THREAD_LANE,
    Admit,
    Cancel,
    CancelRun,
    Close,
    Grant,
    Outcome,
    PermitRequest,
    Start,
    State,
    Status,
    Take,
    Task,
    WakeAt,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from ..observe.report import Usage
    from ..runtime.throttle import Permit, Throttle
    from .admission import Admission
    from .intake import Intake
    from .row_group import RowGroup, Shared
    from .stateful import Instance
    from .tasks import Action, Step, TaskUsage

# The stage of a row group and its index in it.
GroupKey = tuple[str, int]
# Tasks that one decision moves into lanes: a row group of 100,000 rows must not hold the loop.
SLICE = 4_096


class Blocked(enum.Enum):
    """Why a lane is not served; behind each, the event that unblocks it."""

    PERMIT = "a permit"  # `permits_available`
    SLOT = "an execution slot"  # a task or an abandoned thread ends
    BUDGET = "the usage of calls in flight"  # a task ends
    LANE_LIMIT = "its lane limit"  # a task of the lane ends
    FOR_GOOD = "nothing: the run stops"


@attrs.frozen(kw_only=True)
class SchedulerStatistics:
    """A snapshot of the limits of a run."""

    submitted: int
    active: int
    queued: int
    parked: int
    waiting_calls: int
    blocked: Mapping[Hashable, str]


@attrs.define(eq=False)
class StageState:
    """A stage of a run, as the scheduler has it, which alone changes it."""

    shared: Shared
    admission: Admission
    intake: Intake | None = None
    """Of a stage that takes its rows from another."""
    admitting: bool = False
    turn: int = 0  # of the row group that is admitted next, with stateful generators

    @property
    def name(self) -> str:
        return self.shared.stage


class Scheduler:
    """Owns row groups, lanes, slots, the usage budget, error windows, admission and the decision to stop.

    All fields are changed by these methods only, on one thread.
    """

    def __init__(self, stages: Sequence[StageState], *, throttle: Callable[[str], Throttle], processes: int) -> None:
        """`stages` are in the order of the recipe, each after the one that it takes its rows from."""
        shared = stages[0].shared  # what does not belong to a stage is the same in all of them
        config = shared.config
        self._shared = shared
        self._now = shared.now
        self._budget = shared.budget
        self._throttle = throttle
        self.stages = {stage.name: stage for stage in stages}
        sequential = config.engine == "sequential"
        self._max_submitted = 1 if sequential else config.max_submitted_tasks
        self._max_active = config.max_active_tasks
        self._max_processes = processes
        self._sequential = sequential
        self._lanes: Lanes[Task] = Lanes(sort_key=_column_major if sequential else None)
        # Why each blocked lane is blocked; a lane is blocked if and only if it is here.
        self._blocked: dict[Hashable, Blocked] = {}
        self._lanes_of_key: dict[str, set[Hashable]] = {}
        self._fallback_lanes: dict[str, set[Hashable]] = {}  # lanes of other keys, whose tasks may use this one
        for step in (step for stage in stages for step in stage.shared.steps):
            if step.key is not None:
                self._lanes_of_key.setdefault(step.key, set()).add(self._lane(step))
            for key in step.fallback_keys:
                self._fallback_lanes.setdefault(key, set()).add(self._lane(step))
        # Calls of running tasks that wait for a permit, by key, in order.
        self._requests: dict[str, deque[PermitRequest]] = {}
        self._submitted = 0  # running tasks
        self._active = 0  # slots that tasks and abandoned threads hold
        self._active_processes = 0
        self._in_lane: Counter[Hashable] = Counter()  # running tasks of lanes that have a limit
        # Tasks that return to their lane later: (when, order, task).
        self._parked: list[tuple[float, int, Task]] = []
        self._order = itertools.count()
        self._woken_at = math.inf  # the earliest instant that the caller was asked to call at
        self.window = ErrorWindow(config.shutdown_error_window, config.shutdown_error_rate)

        self.groups: dict[GroupKey, RowGroup] = {}
        self._touched = shared.touched

        self.stopping: BuildStopped | None = None
        self._cancel_at = math.inf
        self._dead = False  # an exception ended the run: nothing starts any more
        self._abandoned = AbandonedThreads(config.max_active_tasks, config.grace, shared.ledger.running_threads)
        self._actions: list[Action] = []

    # Events.

    def admitted(self, group: RowGroup) -> None:
        """An `Admit` was performed: the row group is open and has taken in what earlier runs recorded of it."""
        stage = self.stages[group.stage]
        stage.admitting = False
        stage.admission.opened(group.index, group)
        group.rank = next(self._order)
        self.groups[group.stage, group.index] = group
        self._touched.add(group)

    def passed_over(self, index: int, stage: str = "") -> None:
        """An `Admit` was performed and the row group needs nothing more."""
        self.stages[stage].admitting = False
        self.stages[stage].admission.left(index)

    def closed(self, index: int, stage: str = "") -> None:
        """A row group was checkpointed, left unfinished or ended by an exception; its tasks will not run."""
        group = self.groups.pop((stage, index), None)
        if group is None:
            return
        self.stages[stage].admission.left(index)
        group.close()
        self._touched.discard(group)
        self._lanes.discard(group.rank)
        # Those in `cancelled` were not taken over yet if an exception ends the run.
        for task in [*group.unfinished_tasks(), *(task for task, _ in group.cancelled)]:
            task.state = State.DONE  # a parked one stays in the heap until it is due, and is ignored then

    def taken(self, stage: str) -> None:
        """A `Take` was performed: the stage may have more rows now."""
        found = self.stages[stage]
        assert found.intake is not None
        found.intake.taking = False
        found.admission.group_count = found.intake.children.count

    def finished(self, outcome: Outcome) -> None:
        """An attempt ended: release what it held, and let its row group take in the outcome."""
        task = outcome.task
        self._release(task, outcome.usage, sent=outcome.status is not Status.RATE_LIMITED)
        if self._shared.notify.events.active:
            self._notify_finished(outcome)
        group = self.groups.get((task.step.stage, task.group))
        usage = outcome.usage
        if usage is not None:
            self._shared.ledger.spend(task.step.name, usage.take())
        if group is None:
            return
        group.in_flight -= 1
        self._touched.add(group)
        status = outcome.status
        if status is Status.RATE_LIMITED and task.step.fallback_keys:
            # Its key may be paused for so long now that the others are used.
            self._unblock(self._lane(task.step), Blocked.PERMIT)
        if status is not Status.RATE_LIMITED and status is not Status.CANCELLED and task.step.node >= 0:
            self._count_outcome(group, outcome)
        group.apply(outcome, stopping=self.stopping is not None)

    def _notify_finished(self, outcome: Outcome) -> None:
        error, usage = outcome.error, outcome.usage
        self.stages[outcome.task.step.stage].shared.notify.emit_task(
            events.TaskFinished,
            outcome.task,
            status=outcome.status.value,
            error=None if error is None else error_text(error),
            seconds=outcome.seconds,
            tokens=0 if usage is None else usage.total.tokens,
            cached_tokens=0 if usage is None else usage.total.cached_tokens,
            cost=0.0 if usage is None else usage.total.cost,
        )

    def aborted(self, task: Task, usage: TaskUsage | None = None) -> None:
        """An attempt ended without an outcome, because the run ends: start nothing more."""
        self._dead = True
        self._release(task, usage)
        group = self.groups.get((task.step.stage, task.group))
        if group is not None:
            group.in_flight -= 1

    def permits_available(self, key: str) -> None:
        """The throttle of `key` may grant a permit that it did not grant before."""
        for lanes in (self._lanes_of_key, self._fallback_lanes):
            for lane in lanes.get(key, ()):
                self._unblock(lane, Blocked.PERMIT)

    def request_permit(self, request: PermitRequest) -> Permit | None:
        """A running task wants to send another call; returns its permit, or None if it comes with a later `Grant`."""
        queue = self._requests.setdefault(request.key, deque())
        if not queue and not self._dead:
            request.permit = self._throttle(request.key).try_acquire(request.tokens)
        if request.permit is None:
            queue.append(request)
        return request.permit

    def withdraw_request(self, request: PermitRequest) -> None:
        """The task that waited for a permit was cancelled; new tasks may have waited behind its request."""
        if request.permit is None:
            self._requests[request.key].remove(request)
        else:
            request.permit.unused()
        self.permits_available(request.key)

    def reserve(self, task: Task, usage: Usage, tokens: int, key: str) -> BudgetExceeded | None:
        """A running task is about to send a call: reserve its expected usage, or stop the run and return why."""
        reserved = self._budget.extend(task.step, task.reserved, usage, tokens, key)
        if isinstance(reserved, BudgetExceeded):
            self.stop(reserved)
            return reserved
        task.reserved = reserved
        return None

    def _instance_of(self, step: Step) -> Instance | None:
        return self.stages[step.stage].shared.instance_of(step)

    def thread_started(self, task: Task) -> bool:
        """A thread takes over the task's slot until it ends; False if the task had none."""
        had_slot, task.has_slot = task.has_slot, False
        instance = self._instance_of(task.step)
        if instance is not None:
            instance.thread_started()
        return had_slot

    def thread_abandoned(self, step: Step) -> None:
        """The task of a thread was cancelled or timed out; the thread runs on."""
        self._abandoned.add(step.name, self._instance_of(step), self._now())

    def thread_ended(self, step: Step, *, had_slot: bool, late: bool) -> None:
        """A thread really ended; `late` if it had been abandoned."""
        if late:
            self._abandoned.ended(step.name)
        if had_slot:
            self._free_slot(process=False)
        instance = self._instance_of(step)
        if instance is not None:
            instance.thread_ended()

    def stop(self, reason: BuildStopped) -> None:
        """End early: start nothing more, and cancel tasks in flight after `grace`. The first reason counts."""
        if self.stopping is not None:
            return
        self.stopping = reason
        if isinstance(reason, EarlyShutdown):
            for group in self.groups.values():
                group.forgive()
        self._cancel_at = self._now() + self._shared.config.grace
        self._shared.notify.emit(events.StopRequested, reason=str(reason))
        self._touched.update(self.groups.values())

    def die(self) -> None:
        """An exception ends the run: nothing starts any more."""
        self._dead = True

    # Actions.

    @property
    def done(self) -> bool:
        """True if there is nothing left to visit, or the run stopped and everything is closed."""
        stages = self.stages.values()
        if self.stopping is not None:
            return not any(stage.admission.visited or (stage.intake and stage.intake.taking) for stage in stages)
        return all(map(self._has_ended, stages))

    def decide(self) -> list[Action]:
        """The actions that follow from all events so far."""
        now = self._now()
        self._return_parked(now)
        if (stuck := self._abandoned.stuck(now)) is not None:
            self.stop(stuck)
        for stage in self.stages.values():
            if stage.admission.enough:
                for group in self.groups.values():
                    if group.stage == stage.name and not stage.admission.finishes(group.index):
                        group.abandon()
        more = self._turn_over_groups()
        if not self._dead and self.stopping is None:
            self._take_rows()
            self._admit()
        if not self._dead:
            self._grant_requests()
            self._start_tasks(now)
            if self._touched and not more:  # the usage budget stopped the run
                more = self._turn_over_groups()
        if now >= self._cancel_at:
            self._cancel_at = math.inf
            self._actions.append(CancelRun())
        actions, self._actions = self._actions, []
        if not actions and not more and not self._dead:
            self._check_progress()
        wake_at = now if more else self._next_instant()
        if wake_at < self._woken_at or self._woken_at <= now:
            self._woken_at = wake_at
            if wake_at < math.inf:
                actions.append(WakeAt(wake_at))
        return actions

    def statistics(self) -> SchedulerStatistics:
        return SchedulerStatistics(
            submitted=self._submitted,
            active=self._active,
            queued=len(self._lanes),
            parked=sum(task.state is State.PARKED for _, _, task in self._parked),
            waiting_calls=sum(map(len, self._requests.values())),
            blocked={lane: reason.value for lane, reason in self._blocked.items()},
        )

    def waiting(self, key: str) -> int:
        """Tasks that are ready and wait for a permit of `key`."""
        return sum(self._lanes.size(lane) for lane in self._lanes_of_key.get(key, ()))

    # Row groups.

    def _turn_over_groups(self) -> bool:
        """Apply what each touched row group decided; True if some of it is left for the next decision."""
        room = SLICE
        left: list[RowGroup] = []
        # A row group may touch another one: the turn of a stateful generator passes on.
        while self._touched:
            for group in sorted(self._touched, key=lambda each: each.rank):
                self._touched.discard(group)
                if self._dead or (group.stage, group.index) not in self.groups:
                    continue
                room = self._take_effects(group, room)
                if group.ready:
                    left.append(group)
                    continue
                group.turn_over(stopping=self.stopping is not None)
                room = self._take_effects(group, room)
                self._next_phase(group)
        self._touched.update(left)
        return bool(left)

    def _take_effects(self, group: RowGroup, room: int) -> int:
        for task, reason in group.cancelled:
            if task.state is State.QUEUED:
                group.queued -= 1
                self._next_changed(self._lane(task.step))
            elif task.state is State.RUNNING:
                self._actions.append(Cancel(task, reason))
                continue
            task.state = State.DONE  # a parked one stays in the heap until it is due, and is ignored then
        group.cancelled.clear()
        for task, when in group.parked:
            if task.state is not State.DONE:  # else its row was dropped in the meantime
                task.state = State.PARKED
                heapq.heappush(self._parked, (when, next(self._order), task))
        group.parked.clear()
        count = min(max(room, 1), len(group.ready))
        now, notify = self._now(), self.stages[group.stage].shared.notify
        for _ in range(count):
            task = group.ready.popleft()
            if task.state is State.NEW:  # else its row was dropped in the meantime
                task.ready_at = now
                self._enqueue(task, first=False)
                if notify.events.wants_ready:
                    notify.emit_task(events.TaskReady, task)
        return room - count

    def _next_phase(self, group: RowGroup) -> None:
        is_complete = group.phase is Phase.COMPLETE
        is_ending = self.stopping is not None or group.is_abandoned
        has_ended = is_ending and not group.in_flight and group.phase is not Phase.CLOSING
        if is_complete or has_ended:
            group.phase = Phase.CLOSING
            self._actions.append(Close(group.index, is_complete, group.stage))

    def _take_rows(self) -> None:
        """Take the next rows of each stage that has them from another, as soon as they are settled there."""
        for stage in self.stages.values():
            intake = stage.intake
            if intake is None or intake.taking:
                continue
            index = intake.next()
            if index is not None or (intake.children.has_waiting and self._has_all(stage)):
                intake.taking = True
                self._actions.append(Take(stage.name, index))

    def _has_all(self, stage: StageState) -> bool:
        """True if a stage has taken all rows of its parent, and the parent will have no more."""
        intake = stage.intake
        if intake is None:
            return True
        parent = self.stages[intake.parent]
        return not intake.taking and self._has_ended(parent) and intake.has_all

    def _has_ended(self, stage: StageState) -> bool:
        """True if no row group of a stage is open and none will be."""
        if not stage.admission.done or not self._has_all(stage):
            return False
        return stage.intake is None or not stage.intake.children.has_waiting

    def _admit(self) -> None:
        # Those behind go first: what is nearly done does not wait for what only begins.
        for stage in reversed(self.stages.values()):
            if stage.admitting or (self._sequential and any(each.admission.visited for each in self.stages.values())):
                continue
            index = stage.admission.admit()
            if index is not None:
                stage.admitting = True
                self._actions.append(Admit(index, stage.turn, stage.name))
                stage.turn += 1

    # Lanes, permits, slots and the usage budget.

    def _lane(self, step: Step) -> Hashable:
        """Tasks with the same needs share a lane: one that waits for a slot does not delay one that needs none."""
        if self._sequential:
            return "sequential"
        if not step.needs_slot or step.lane in (THREAD_LANE, PROCESS_LANE):
            return step.lane
        return step.lane, "process" if step.process else "thread"

    def _enqueue(self, task: Task, *, first: bool) -> None:
        task.state = State.QUEUED
        group = self.groups[task.step.stage, task.group]
        group.queued += 1
        lane = self._lane(task.step)
        self._lanes.push(lane, group.rank, task, first=first)
        self._next_changed(lane)

    def _next_changed(self, lane: Hashable) -> None:
        """Another task may be the next of a lane, with another usage or, in a sequential run, with any other needs."""
        why = self._blocked.get(lane)
        if why is Blocked.BUDGET or (why is not None and self._sequential):
            self._unblock(lane, why)

    def _return_parked(self, now: float) -> None:
        while self._parked and self._parked[0][0] <= now:
            task = heapq.heappop(self._parked)[2]
            if task.state is State.PARKED:
                task.ready_at = now
                # It had its turn before, so it goes in front of its row group's others.
                self._enqueue(task, first=True)

    def _grant_requests(self) -> None:
        for key, queue in self._requests.items():
            while queue:
                queue[0].permit = self._throttle(key).try_acquire(queue[0].tokens)
                if queue[0].permit is None:
                    break
                self._actions.append(Grant(queue.popleft()))

    def _start_tasks(self, now: float) -> None:
        """Start every task that can start, lanes in turn: the one place where tasks start."""
        lanes = self._lanes
        while self._submitted < self._max_submitted and self.stopping is None:
            lane = lanes.next()
            if lane is None:
                return
            task = lane.peek()
            if task.state is not State.QUEUED:  # its row was dropped
                lanes.skip()
                continue
            missing = self._take(task)
            if missing is Blocked.FOR_GOOD:
                return
            if missing is not None:
                self._blocked[lanes.block().key] = missing
                continue
            key = task.step.key
            is_alone = not task.step.fallback_keys  # others may start with another permit
            if key is not None and is_alone and not self._sequential and self._throttle(key).full:
                # The next task of the lane has the same key and would find no permit.
                lanes.block().pop()
                self._blocked[lane.key] = Blocked.PERMIT
            else:
                lanes.pop()
            self._start(task, now)

    def _take(self, task: Task) -> Blocked | None:
        """Take everything that the task needs; or take nothing and return the reason."""
        step = task.step
        if step.needs_slot and (
            self._active >= self._max_active or (step.process and self._active_processes >= self._max_processes)
        ):
            return Blocked.SLOT
        if step.lane_limit is not None and self._in_lane[step.lane] >= step.lane_limit:
            return Blocked.LANE_LIMIT
        if step.key is not None:
            budget = self._budget
            if budget.limited:
                exceeded = budget.would_exceed(step)
                if budget.must_wait(step) or (exceeded is not None and budget.in_flight):
                    # Calls in flight may use less than expected; that is known when they end.
                    return Blocked.BUDGET
                if exceeded is not None:
                    self.stop(exceeded)
                    return Blocked.FOR_GOOD
            if self._requests.get(step.key):  # calls of running tasks go first
                return Blocked.PERMIT
            task.permit = self._throttle(step.key).try_acquire(step.tokens) or self._fallback_permit(step)
            if task.permit is None:
                return Blocked.PERMIT
            if budget.limited:
                task.reserved = budget.reserve(step)
        if step.lane_limit is not None:
            self._in_lane[step.lane] += 1
        if step.needs_slot:
            self._active += 1
            self._active_processes += step.process
            task.has_slot = True
        return None

    def _fallback_permit(self, step: Step) -> Permit | None:
        """A permit of another key, for a step that has several and whose own is rate-limited for long."""
        assert step.key is not None
        if not step.fallback_keys or self._throttle(step.key).pause_left <= self._shared.config.fallback_after:
            return None
        keys = (key for key in step.fallback_keys if not self._requests.get(key))
        return next(filter(None, (self._throttle(key).try_acquire(step.tokens) for key in keys)), None)

    def _start(self, task: Task, now: float) -> None:
        group = self.groups[task.step.stage, task.group]
        task.state = State.RUNNING
        task.started_at = now
        group.queued -= 1
        group.in_flight += 1
        self._submitted += 1
        self._actions.append(Start(task))

    def _release(self, task: Task, usage: TaskUsage | None, *, sent: bool = True) -> None:
        """Release what a task held; its permit was settled by the attempt."""
        self._submitted -= 1
        step = task.step
        if step.lane_limit is not None:
            self._in_lane[step.lane] -= 1
            self._unblock_all(Blocked.LANE_LIMIT)
        if task.reserved is not None:
            self._budget.settle(step, task.reserved, None if usage is None else usage.total, sent=sent)
            task.reserved = None
            self._unblock_all(Blocked.BUDGET)
        if task.has_slot:
            task.has_slot = False
            self._free_slot(process=step.process)

    def _free_slot(self, *, process: bool) -> None:
        self._active -= 1
        self._active_processes -= process
        if self._blocked:
            self._unblock_all(Blocked.SLOT)

    def _unblock(self, lane: Hashable, reason: Blocked) -> None:
        if self._blocked.get(lane) is reason:
            del self._blocked[lane]
            self._lanes.unblock(lane)

    def _unblock_all(self, reason: Blocked) -> None:
        for lane in [lane for lane, why in self._blocked.items() if why is reason]:
            self._unblock(lane, reason)

    # Stopping.

    def _count_outcome(self, group: RowGroup, outcome: Outcome) -> None:
        """Enter an attempt into its error window, and stop the run if too much of it is errors."""
        error = outcome.status is not Status.SUCCESS
        if outcome.task.attempt > 1:
            full = group.salvage.record(outcome.task.salvage_round, error=error)
            option = "salvage_error_threshold"
        else:
            exceeded = self.window.record(error=error, in_flight=self._submitted)
            full, option = self.window if exceeded else None, "shutdown_error_rate"
        if full is not None:
            stopped = EarlyShutdown(
                f"{full.errors} of the last {len(full)} attempts failed, more than {option}={full.threshold:g}; "
                f"the last one: column {outcome.task.step.name!r}: {outcome.error}"
            )
            stopped.__cause__ = outcome.error
            self.stop(stopped)

    def _next_instant(self) -> float:
        return min(
            self._parked[0][0] if self._parked else math.inf,
            self._cancel_at,
            self._abandoned.next_check,
        )

    def _check_progress(self) -> None:
        """Raise `Stalled` if no event can come that would let the build continue."""
        without_permit = {lane for lane, why in self._blocked.items() if why is Blocked.PERMIT}
        waits_outside = (
            self._submitted  # an attempt ends
            or any(stage.admitting or (stage.intake and stage.intake.taking) for stage in self.stages.values())
            or any(task.state is State.PARKED for _, _, task in self._parked)
            or self._abandoned.running.total()  # one of them ends
            or any(group.phase is Phase.CLOSING for group in self.groups.values())
            or any(
                self._throttle(key).will_notify
                for key, lanes in self._lanes_of_key.items()
                if not without_permit.isdisjoint(lanes)
            )
            or sum(stage.admission.visited for stage in self.stages.values()) > len(self.groups)
            or self.done
        )
        if not waits_outside:
            lanes = "; ".join(f"lane {lane!r} waits for {why.value}" for lane, why in self._blocked.items())
            waiting = "; ".join(group.describe_wait() for group in self.groups.values())
            raise Stalled(f"nothing runs and nothing can run: {waiting}{'; ' if lanes else ''}{lanes}")


def _column_major(task: Task) -> tuple[int, int]:
    return task.step.position, task.row
