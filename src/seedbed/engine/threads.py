"""Worker threads of generators and processors, and those that were abandoned."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ..observe import events
from ..runtime.offload import Lease
from ..runtime.portal import Portal, current_portal

if TYPE_CHECKING:
    from collections.abc import Callable

    import trio

    from ..observe.report import Ledger
    from .notices import Notices
    from .scheduler import Scheduler
    from .tasks import Task

T = TypeVar("T")


class Threads:
    """Runs a task's function in a thread, which holds the task's slot until it really ends.

    A thread cannot be killed. When its task is cancelled it is abandoned: it runs on, in its slot, in its generator and
    in the call it makes; its result is ignored, and it is counted.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        ledger: Ledger,
        notify: Notices,
        *,
        now: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        self._scheduler = scheduler
        self._ledger = ledger
        self._notify = notify
        self._now = now
        self._wake = wake

    async def run(self, task: Task, nursery: trio.Nursery, work: Callable[[], T]) -> T:
        """Run `work` in a thread, from which it can await through the portal."""
        lease = self._lease(task)
        awaited: set[trio.CancelScope] = set()

        def adopt(scope: trio.CancelScope) -> Callable[[], None]:
            awaited.add(scope)
            if lease.abandoned:
                scope.cancel(reason="the thread was abandoned")
            return lambda: awaited.discard(scope)

        token = current_portal.set(Portal(nursery, adopt))
        try:
            return await lease.run(work)
        finally:
            current_portal.reset(token)
            if lease.abandoned:
                self._abandoned(task, lease)
                for scope in awaited:
                    scope.cancel(reason="the thread was abandoned")

    def _lease(self, task: Task) -> Lease:
        scheduler = self._scheduler
        had_slot = scheduler.thread_started(task)

        def on_end() -> None:
            scheduler.thread_ended(task.step, had_slot=had_slot, late=lease.abandoned)
            self._wake()

        lease = Lease(on_end)
        return lease

    def _abandoned(self, task: Task, lease: Lease) -> None:
        column, ledger = task.step.name, self._ledger
        ledger.running_threads[column] += 1
        abandoned_at = self._now()
        permit, task.permit = task.permit, None
        self._scheduler.thread_abandoned(task.step)
        self._wake()

        def late() -> None:
            ledger.running_threads[column] -= 1
            ledger.late_threads[column] += 1
            if permit is not None:
                permit.finished()
            seconds = self._now() - abandoned_at
            ledger.waste(column, 0, 0, seconds)
            self._notify.emit(events.LateThread, column=column, seconds=seconds)

        lease.when_late(late)
