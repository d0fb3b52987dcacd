"""Worker threads of generators and processors, and those among them that overran."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeVar

import trio

from ..errors import ThreadsStuck
from ..observe import events
from ..runtime.offload import Lease
from ..runtime.portal import Portal, current_portal

if TYPE_CHECKING:
    from collections.abc import Callable

    from .run import Run
    from .stateful import Instance
    from .tasks import Cell, Group

T = TypeVar("T")


class Threads:
    """Runs a task's function in a thread, which holds the task's slot until it really ends.

    A thread cannot be killed. When its task is given up it runs on, in its slot, in its generator and in the call it
    makes; its result is dropped, and it is counted.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._slots = run.plan.config.max_active_tasks
        self._overrun: Counter[str] = Counter()  # threads given up and still running, by column
        self._late = 0

    async def run(self, cell: Cell[Group], work: Callable[[], T]) -> T:
        """Run `work` in a thread, from which it can await through the portal."""
        lease = self._lease(cell)
        awaited: set[trio.CancelScope] = set()

        def adopt(scope: trio.CancelScope) -> Callable[[], None]:
            awaited.add(scope)
            if lease.abandoned:
                scope.cancel(reason="the cell was given up")
            return lambda: awaited.discard(scope)

        token = current_portal.set(Portal(cell.group.nursery, adopt))
        try:
            return await lease.run(work)
        finally:
            current_portal.reset(token)
            if lease.abandoned:
                self._gave_up(cell, lease)
                for scope in awaited:
                    scope.cancel(reason="the cell was given up")

    def _lease(self, cell: Cell[Group]) -> Lease:
        release = self._run.dispatcher.hand_over_slot(cell)
        instance = self._run.instance_of(cell.step)
        if instance is not None:
            instance.thread_started()

        def on_end() -> None:
            release()
            if instance is not None:
                instance.thread_ended()

        return Lease(on_end)

    def _gave_up(self, cell: Cell[Group], lease: Lease) -> None:
        column, ledger = cell.step.name, self._run.ledger
        self._overrun[column] += 1
        ledger.running_threads[column] += 1
        given_up = trio.current_time()
        permit, cell.permit = cell.permit, None

        def late() -> None:
            self._late += 1
            self._overrun[column] -= 1
            ledger.running_threads[column] -= 1
            ledger.late_threads[column] += 1
            if permit is not None:
                permit.finished()
            seconds = trio.current_time() - given_up
            ledger.waste(column, 0, 0, seconds)
            if self._run.events.active:
                self._run.events.emit(events.LateThread(time=trio.current_time(), column=column, seconds=seconds))

        lease.when_late(late)
        instance = self._run.instance_of(cell.step)
        if instance is not None or self._overrun.total() >= self._slots:
            self._watch(column, instance)

    def _watch(self, column: str, instance: Instance | None) -> None:
        """Stop the run if the threads that overran hold all there is for `grace`."""
        late, grace = self._late, self._run.plan.config.grace

        def check() -> None:
            if self._late != late:  # a thread ended in between, so they do end
                return
            if self._overrun.total() >= self._slots:
                columns = [name for name, count in self._overrun.items() if count]
                self._run.stop(ThreadsStuck(columns, f"all {self._slots} execution slots", grace))
            elif instance is not None and instance.wanted:
                self._run.stop(ThreadsStuck([column], "a stateful generator that others need", grace))

        self._run.timers.call_at(trio.current_time() + grace, check)
