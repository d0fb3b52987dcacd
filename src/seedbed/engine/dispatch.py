"""From ready to running: the lanes, the submission budget, the execution slots and the permits.

The dispatcher takes everything a task needs and only then starts it, so no task ever waits for its first permit, and a
key that is throttled holds no budget and no slot.
"""

from __future__ import annotations

import contextvars
from collections import Counter
from typing import TYPE_CHECKING

import attrs
import trio

from ..observe import events
from ..runtime.lanes import Lanes
from .cell import run_cell
from .tasks import Cell, Group, State

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from ..runtime.throttle import Throttle
    from .row_group import RowGroup
    from .run import Run


@attrs.frozen(kw_only=True)
class DispatchStatistics:
    """A snapshot of the limits of a run."""

    submitted: int
    submitted_peak: int
    active: int
    active_peak: int
    queued: int
    parked: int


class Dispatcher:
    """The one place where tasks start. Synchronous: called by row groups, by ending tasks and by timers.

    All fields are changed on trio's thread, by these methods only.
    """

    def __init__(self, run: Run) -> None:
        config = run.plan.config
        self._run = run
        self._budget = config.max_submitted_tasks
        self._slots = config.max_active_tasks
        self._processes = run.processes.count
        self._lanes: Lanes[Cell[RowGroup]] = Lanes()
        self._submitted = 0
        self._submitted_peak = 0
        self._active = 0
        self._active_peak = 0
        self._active_processes = 0
        self._parked = 0
        self._stopped = False
        # Lanes that were passed over because there was no slot; any slot that comes free gives them another try.
        self._without_slot: set[object] = set()
        # Lanes that were passed over because the calls in flight may use up the budget; any task that ends does.
        self._without_budget: set[object] = set()
        # The throttles of the keys that were queued so far; each tells the dispatcher when it may let more through.
        self._throttles: dict[str, Throttle] = {}
        self._unsubscribe: list[Callable[[], None]] = []
        self._lanes_of: dict[str, set[Hashable]] = {}
        # Tasks that exist, in lanes that have a limit of their own.
        self._in_lane: Counter[Hashable] = Counter()
        self._limited = run.spending.limited
        # Tasks are started from wherever something came free, and must not inherit that place's context.
        self._context = contextvars.copy_context()

    def statistics(self) -> DispatchStatistics:
        return DispatchStatistics(
            submitted=self._submitted,
            submitted_peak=self._submitted_peak,
            active=self._active,
            active_peak=self._active_peak,
            queued=len(self._lanes),
            parked=self._parked,
        )

    def waiting(self, key: str) -> int:
        """Tasks that are ready and wait for a permit of `key`."""
        return sum(self._lanes.size(lane) for lane in self._lanes_of.get(key, ()))

    @property
    def submitted(self) -> int:
        """Tasks that exist now."""
        return self._submitted

    def submit(self, cells: Iterable[Cell[RowGroup]]) -> None:
        """Queue ready tasks; `pump` starts them."""
        now = self._run.now()
        active = self._run.events.active
        for cell in cells:
            cell.ready_at = now
            self._enqueue(cell, first=False)
            if active:
                self._run.emit_task(events.TaskReady, cell)

    def _enqueue(self, cell: Cell[RowGroup], *, first: bool) -> None:
        step = cell.step
        if step.key is not None and step.key not in self._throttles:
            self._subscribe(step.key)
        cell.state = State.QUEUED
        cell.group.queued += 1
        self._lanes.push(step.lane, cell.group.index, cell, first=first)

    def _subscribe(self, key: str) -> None:
        throttle = self._throttles[key] = self._run.throttles.get(key)
        self._lanes_of[key] = {step.lane for step in self._run.plan.steps if step.key == key}

        def free() -> None:
            for lane in self._lanes_of[key]:
                self._lanes.unblock(lane)
            self.pump()

        self._unsubscribe.append(throttle.subscribe(free))

    def park(self, cell: Cell[RowGroup], eligible_at: float) -> None:
        """Queue a task, but not before `eligible_at`; until then it holds nothing."""
        cell.state = State.PARKED
        self._parked += 1

        def due() -> None:
            if cell.state is State.PARKED:
                self._parked -= 1
                cell.ready_at = trio.current_time()
                # It had its turn before, so it goes in front of its row group's others.
                self._enqueue(cell, first=True)
                self.pump()

        self._run.timers.call_at(eligible_at, due)

    def unpark(self, cell: Cell[RowGroup]) -> None:
        """A parked task will not run after all."""
        cell.state = State.OVER
        self._parked -= 1

    def forget(self, row_group: int) -> None:
        """A row group is over: what it had queued will not run."""
        self._lanes.discard(row_group)

    def stop(self) -> None:
        """Start nothing more."""
        self._stopped = True

    def close(self) -> None:
        """The run is over; throttles that it shares with others need not tell it any more."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()

    def pump(self) -> None:
        """Start all that can be started now, lanes in turn."""
        lanes = self._lanes
        while self._submitted < self._budget and not self._stopped:
            lane = lanes.next()
            if lane is None:
                return
            cell = lane.peek()
            if cell.state is not State.QUEUED:  # its row was dropped meanwhile
                lanes.skip()
            elif self._take(cell):
                key = cell.step.key
                if key is not None and self._throttles[key].full:
                    # The lane's next task would find no permit; the throttle says when there is one again.
                    lanes.pop_and_block()
                else:
                    lanes.pop()
                self._start(cell)

    def _take(self, cell: Cell[RowGroup]) -> bool:
        """Take what the task needs, all of it or nothing; its lane is blocked until what is missing comes free."""
        step = cell.step
        if step.needs_slot and (
            self._active >= self._slots or (step.process and self._active_processes >= self._processes)
        ):
            self._without_slot.add(self._lanes.block().key)
            return False
        if step.lane_limit is not None and self._in_lane[step.lane] >= step.lane_limit:
            self._lanes.block()
            return False
        if step.key is not None:
            if self._limited:
                spending = self._run.spending
                stop = spending.would_pass(step)
                if spending.must_wait(step) or (stop is not None and spending.in_flight):
                    # What is under way may use less than expected; that is known when it ends.
                    self._without_budget.add(self._lanes.block().key)
                    return False
                if stop is not None:
                    self._run.stop(stop)
                    return False
            cell.permit = self._throttles[step.key].try_acquire(step.tokens)
            if cell.permit is None:
                self._lanes.block()
                return False
            if self._limited:
                cell.reserved = self._run.spending.reserve(step)
        if step.lane_limit is not None:
            self._in_lane[step.lane] += 1
        if step.needs_slot:
            self._active += 1
            self._active_processes += step.process
            if self._active > self._active_peak:
                self._active_peak = self._active
            cell.has_slot = True
        return True

    def _start(self, cell: Cell[RowGroup]) -> None:
        group = cell.group
        cell.state = State.FLYING
        group.queued -= 1
        group.in_flight += 1
        self._submitted += 1
        if self._submitted > self._submitted_peak:
            self._submitted_peak = self._submitted
        cell.submitted_at = self._run.now()
        self._context.run(self._spawn, cell)

    def _spawn(self, cell: Cell[RowGroup]) -> None:
        cell.group.nursery.start_soon(run_cell, self._run, cell, name=cell.step.name)

    def ended(self, cell: Cell[RowGroup]) -> None:
        """A task is over and its permit settled; its slot is free unless a thread took it over."""
        self._submitted -= 1
        step = cell.step
        if step.lane_limit is not None:
            self._in_lane[step.lane] -= 1
            self._lanes.unblock(step.lane)
        if self._without_budget:
            self._unblock(self._without_budget)
        if cell.has_slot:
            cell.has_slot = False
            self._free_slot(process=cell.step.process)
        self.pump()

    def hand_over_slot(self, cell: Cell[Group]) -> Callable[[], None]:
        """Let a thread have the task's slot, if it has one; returns what gives it back when the thread has ended."""
        had_slot, cell.has_slot = cell.has_slot, False

        def release() -> None:
            if had_slot:
                self._free_slot(process=False)
                self.pump()

        return release

    def _free_slot(self, *, process: bool) -> None:
        self._active -= 1
        self._active_processes -= process
        if self._without_slot:
            self._unblock(self._without_slot)

    def _unblock(self, keys: set[object]) -> None:
        blocked = list(keys)
        keys.clear()
        for key in blocked:
            self._lanes.unblock(key)
