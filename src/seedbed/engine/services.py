"""The objects that the attempts of a run share, and how they run functions in threads. Nothing here decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import trio

from ..graph import GROUP
from ..observe import events
from ..runtime.threads import Lease, Portal, current_portal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..observe.report import Ledger
    from ..runtime.threads import Processes
    from ..runtime.throttle import Permit, Throttle
    from ..store.entries import Key, UsageEntries
    from .decisions import Decisions
    from .failures import Availability
    from .plan import StagePlan
    from .resume import History, RenewedRows, RetriedRows
    from .row_group import RowGroup, Shared
    from .rows import Rows
    from .scheduler import Scheduler
    from .storage import GroupEntries, Recorder, Store
    from .tasks import Notices, Step, Task

T = TypeVar("T")

# Threads for checkpoints and for building frames; they belong to the store and take no slot from user code.
STORE_THREADS = 4


def make_store_limiter() -> trio.CapacityLimiter:
    """The limiter of the threads of a run's store."""
    return trio.CapacityLimiter(STORE_THREADS)


@attrs.define(eq=False)
class OpenGroup:
    """The trio side of a row group. `state` is None if it is only replayed."""

    index: int
    rows: Rows
    nursery: trio.Nursery
    journal_key: Key
    retry: RetriedRows | None = None
    renewal: RenewedRows | None = None
    state: RowGroup | None = None
    journal: GroupEntries | None = None
    closing: trio.Event = attrs.field(factory=trio.Event)  # set when it is to be checkpointed or closed
    is_complete: bool = False

    def number(self, task: Task) -> int | None:
        """The number of a task's row in the dataset; None if the task is for the whole row group."""
        return None if task.row == GROUP else self.rows.identity(task.row)[0]

    def seed_rows(self, numbers: Sequence[int | None]) -> list[int | None]:
        """The row of the seed file of each row; `numbers` are those of the source rows, if there is a seed file."""
        earlier = self.retry or self.renewal
        return self.rows.seed_rows(numbers, {} if earlier is None else earlier.seed_rows)

    def live_rows(self) -> list[int]:
        return self.state.frontier.live_rows() if self.state is not None else list(range(self.rows.count))

    def missing_rows(self, step: Step) -> list[int]:
        """The rows that a whole column is still to be generated for."""
        return self.state.frontier.missing_rows(step.node) if self.state is not None else list(range(self.rows.count))

    def rows_without(self, step: Step) -> list[int]:
        """The rows, dropped or not, for which a column is not done."""
        frontier, rows = None if self.state is None else self.state.frontier, range(self.rows.count)
        return [row for row in rows if frontier is None or not frontier.is_done(step.node, row)]

    def is_wanted(self, task: Task) -> bool:
        return self.state is None or self.state.is_wanted(task)


@attrs.define(kw_only=True, eq=False)
class Services:
    """Those of one stage: set up by the run, used by attempts, threads, checkpoints and replays.

    The scheduler, the processes, the recorder and the limits of threads are those of the run, the same for all stages.
    """

    plan: StagePlan
    scheduler: Scheduler = attrs.field(init=False)  # set once there is one, like the recorder
    shared: Shared
    processes: Processes
    history: History
    store: Store | None
    recorder: Recorder | None = None
    decisions: Decisions | None = None  # where not every row counts
    ledger: Ledger
    notify: Notices
    now: Callable[[], float]
    throttle: Callable[[str], Throttle]
    availability: Availability  # of the throttle keys
    wake: Callable[[], None]  # called after a report to the scheduler: it may have new actions
    # Those of every stage of the run, by name.
    stages: Mapping[str, Services] = attrs.field(factory=dict)
    groups: dict[int, OpenGroup] = attrs.field(factory=dict)
    # Where not every row counts: the row group of each file of rows that do.
    placed: list[int] = attrs.field(factory=list)
    # Without a directory: the rows of finished row groups that other stages take.
    finished_rows: dict[int, dict[str, list[Any]]] = attrs.field(factory=dict)
    confirming: trio.Lock = attrs.field(factory=trio.Lock)  # held during the small call that confirms a failure
    store_limiter: trio.CapacityLimiter = attrs.field(factory=make_store_limiter)

    @property
    def stage(self) -> str:
        return self.plan.stage

    def version(self, index: int) -> tuple[int, int]:
        """Which state of a row group there is: it has other rows once dropped ones were retried.

        Where not every row counts, this is about files of rows that do, and these never change.
        """
        record = None if self.store is None or self.decisions is not None else self.store.writer.group(index)
        return (0, 0) if record is None else (record.revision, record.edition)

    def usage_entries(self) -> UsageEntries:
        """The usage of all runs of this dataset so far, all stages together, as the store writes it."""
        return tuple((*key, usage) for key, usage in self.ledger.usage.items())

    def committed(self, cells: int) -> None:
        """More finished cells are durable."""
        if cells:
            self.ledger.durable += cells
            self.notify.emit(events.CellsCommitted, cells=cells, total=self.ledger.durable)

    async def store_thread(self, function: Callable[[], T]) -> T:
        """Run the store's own work in one of its threads."""
        holder = object()
        await self.store_limiter.acquire_on_behalf_of(holder)
        return await Lease(lambda: self.store_limiter.release_on_behalf_of(holder)).run(function)

    async def run_in_thread(self, task: Task, nursery: trio.Nursery, work: Callable[[], T]) -> T:
        """Run a task's function in a thread, from which it can await through the portal.

        The thread holds the task's slot until it ends. It cannot be killed: when its task is cancelled it is abandoned
        and runs on, in its slot, in its generator and in the call that it makes. Its result is ignored.
        """
        had_slot = self.scheduler.thread_started(task)
        column, ledger = task.step.name, self.ledger
        # Of an abandoned thread: since when it is, and the permit of its call.
        abandoned_at = 0.0
        permit: Permit | None = None
        awaited: set[trio.CancelScope] = set()

        def on_end() -> None:
            if lease.abandoned:
                seconds = self.now() - abandoned_at
                ledger.late_threads[column] += 1
                ledger.waste(column, 0, 0, seconds)
                if permit is not None:
                    permit.finished()
                self.notify.emit(events.LateThread, column=column, seconds=seconds)
            self.scheduler.thread_ended(task.step, had_slot=had_slot, late=lease.abandoned)
            self.wake()

        def adopt(scope: trio.CancelScope) -> Callable[[], None]:
            awaited.add(scope)
            if lease.abandoned:
                scope.cancel(reason="the thread was abandoned")
            return lambda: awaited.discard(scope)

        lease = Lease(on_end)
        token = current_portal.set(Portal(nursery, adopt))
        try:
            return await lease.run(work)
        finally:
            current_portal.reset(token)
            if lease.abandoned:
                abandoned_at = self.now()
                permit, task.permit = task.permit, None
                self.scheduler.thread_abandoned(task.step)
                self.wake()
                for scope in awaited:
                    scope.cancel(reason="the thread was abandoned")
