"""What all row groups of one run share."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from ..errors import BuildStopped, EarlyShutdown, QuotaExhausted
from ..graph import GROUP
from ..observe import events
from ..observe.report import Ledger
from ..runtime.backoff import backoff_base, backoff_delay, parse_retry_after
from ..runtime.offload import Lease
from .dispatch import Dispatcher
from .fill import error_text
from .shutdown import ErrorWindow
from .spending import Spending
from .stateful import Instance
from .threads import Threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..errors import RateLimited
    from ..runtime.offload import Processes
    from ..runtime.throttle import ThrottleManager
    from ..runtime.timers import Timers
    from ..store.manifest import Manifest
    from ..store.records import Drop
    from ..store.writer import DatasetWriter
    from .plan import BuildPlan, Step
    from .row_group import RowGroup
    from .shutdown import SalvageWindow
    from .tasks import Cell, Group, Outcome

T = TypeVar("T")

# Threads for checkpoints and for making frames; they are the store's own and take no slot from user code.
STORE_THREADS = 4


class Run:
    """The shared state of one build. Changed on trio's thread only; the row groups and the dispatcher call it."""

    def __init__(
        self,
        plan: BuildPlan,
        *,
        timers: Timers,
        throttles: ThrottleManager,
        processes: Processes,
        emitter: events.Events,
        writer: DatasetWriter | None,
    ) -> None:
        config = plan.config
        self.plan = plan
        self.trace = config.trace
        # What `trio.current_time` reads, without its detours: it is asked several times a cell.
        self.now = trio.lowlevel.current_clock().current_time
        self.timers = timers
        self.throttles = throttles
        self.processes = processes
        self.events = emitter
        emitter.on_failure = self._reader_failed
        self.writer = writer
        self.ledger = Ledger()
        self.rng = random.Random(config.jitter_seed)
        self.spending = Spending(config.max_tokens, config.max_cost)
        self.window = ErrorWindow(config.shutdown_error_window, config.shutdown_error_rate)
        self.instances = {identity: Instance(nodes) for identity, nodes in plan.instances.items()}
        self.dispatcher = Dispatcher(self)
        self.threads = Threads(self)
        self.started = trio.current_time()
        # Row groups that are admitted and not over.
        self.groups: dict[int, RowGroup] = {}
        # The first reason to end early; None while the run goes on.
        self.stopping: BuildStopped | None = None
        # Cancels every task of the run; set by whoever opens the nursery.
        self.scope: trio.CancelScope | None = None
        # Row groups that are over: all below the first, and these.
        self._done_below = 0
        self._done_above: set[int] = set()
        if plan.done is not None:
            self._take_over(plan.done)
        self._store_limiter = trio.CapacityLimiter(STORE_THREADS)
        self._latency: dict[str, float] = {}
        # When a column without a key was first refused since it last succeeded.
        self._refusing_since: dict[str, float] = {}

    def _take_over(self, done: Manifest) -> None:
        """Go on where earlier runs of this dataset ended."""
        for index, group in sorted(done.groups.items()):
            self.group_done(index)
            self.ledger.written += group.rows
            self.ledger.dropped.extend(group.drops)
            if group.skipped is not None:
                self.ledger.skipped.append(index)
        entries = done.spending.entries if done.spending is not None else ()
        for column, model, calls, input_tokens, output_tokens, cost in entries:
            self.ledger.spent[column, model] = (calls, input_tokens, output_tokens, cost)
            self.spending.tokens += input_tokens + output_tokens
            self.spending.cost += cost

    def is_done(self, index: int) -> bool:
        """Whether a row group is checkpointed or skipped, by this run or an earlier one."""
        return index < self._done_below or index in self._done_above

    def instance_of(self, step: Step) -> Instance | None:
        """The stateful generator of a column, if it has one."""
        return None if step.instance is None else self.instances[id(step.instance)]

    def stop(self, reason: BuildStopped) -> None:
        """End early: start nothing more, give what is in flight its grace, then cancel it. The first reason counts."""
        if self.stopping is not None:
            return
        self.stopping = reason
        self.dispatcher.stop()
        if self.events.active:
            self.events.emit(events.StopRequested(time=trio.current_time(), reason=str(reason)))
        for group in list(self.groups.values()):
            group.wake()
        self.timers.call_at(trio.current_time() + self.plan.config.grace, self.cancel)

    def _reader_failed(self, event: events.Event, error: Exception) -> None:
        what = type(event).__name__
        stopped = BuildStopped(f"a reader of events raised on {what}: {type(error).__name__}: {error}")
        stopped.__cause__ = error
        self.stop(stopped)

    def cancel(self) -> None:
        """End at once: whatever is in flight is cancelled."""
        if self.scope is not None:
            self.scope.cancel(reason=f"the build is stopping: {self.stopping}")

    def record(self, outcome: Outcome[Group], salvage: SalvageWindow, *, error: bool) -> None:
        """Enter an attempt into the error window it belongs to, and stop the run if that is full of errors."""
        full: ErrorWindow | None
        if outcome.attempt > 1:
            full, what = salvage.record(outcome.cell.salvage_round, error=error), "salvage_error_threshold"
        else:
            passed = self.window.record(error=error, in_flight=self.dispatcher.submitted)
            full, what = self.window if passed else None, "shutdown_error_rate"
        if full is not None:
            self.stop(
                EarlyShutdown(
                    f"{full.errors} of the last {len(full)} attempts failed, more than {what}={full.threshold:g}; "
                    f"the last one: column {outcome.cell.step.name!r}: {outcome.error}"
                )
            )

    def group_done(self, index: int) -> None:
        """A row group is checkpointed or skipped."""
        self._done_above.add(index)
        while self._done_below in self._done_above:
            self._done_above.remove(self._done_below)
            self._done_below += 1

    def unfinished(self) -> list[range]:
        """The source rows of all row groups that are not done, as few ranges as possible."""
        plan = self.plan
        ranges: list[range] = []
        start = self._done_below
        for index in [*sorted(self._done_above), plan.group_count]:
            if start < index:
                ranges.append(range(plan.group_rows(start).start, plan.group_rows(index - 1).stop))
            start = index + 1
        return ranges

    def mean_latency(self, step: Step) -> float | None:
        """How long a call of this column's key takes, or of the column itself where it has no key."""
        if step.key is not None:
            return self.throttles.get(step.key).mean_latency
        return self._latency.get(step.name)

    def note_latency(self, step: Step, seconds: float) -> None:
        """A call of a column without a key took that long."""
        known = self._latency.get(step.name)
        self._latency[step.name] = seconds if known is None else known + 0.1 * (seconds - known)
        if self._refusing_since:
            self._refusing_since.pop(step.name, None)

    def refused_without_permit(self, cell: Cell[Group], refusal: RateLimited) -> float:
        """How long a task waits that was refused where no throttle is in between; stops the run when patience ends."""
        step, config, now = cell.step, self.plan.config, self.now()
        base = backoff_base(self.mean_latency(step), config.backoff_base)
        delay = parse_retry_after(refusal.retry_after, time.time())
        if delay is None:
            delay = backoff_delay(cell.refusals + 1, base, config.backoff_max, self.rng)
        if step.key is not None:
            return delay
        until = self._refusing_since.setdefault(step.name, now) + config.throttle_patience
        # The clock adds a rounding error to the last wait.
        if until - now <= config.throttle_patience * 1e-9:
            self.stop(QuotaExhausted(step.name, config.throttle_patience, refusal))
        return min(delay, max(0.0, until - now))

    async def store_thread(self, function: Callable[[], T]) -> T:
        """Run the store's own work in one of its threads."""
        holder = object()
        await self._store_limiter.acquire_on_behalf_of(holder)
        return await Lease(lambda: self._store_limiter.release_on_behalf_of(holder)).run(function)

    def emit_task(self, kind: type[events.TaskEvent], cell: Cell[Group], **fields: Any) -> None:
        """Emit an event about a task; ask `events.active` first."""
        step = cell.step
        self.events.emit(
            kind(
                time=trio.current_time(),
                kind=step.kind.value,
                column=step.name,
                row_group=cell.group.index,
                row=None if cell.row == GROUP else cell.row,
                attempt=cell.attempt,
                **fields,
            )
        )

    def emit_finished(self, outcome: Outcome[Group]) -> None:
        """Emit how an attempt ended; ask `events.active` first."""
        usage = outcome.usage
        self.emit_task(
            events.TaskFinished,
            outcome.cell,
            status=outcome.status.value,
            error=None if outcome.error is None else error_text(outcome.error),
            seconds=outcome.seconds,
            tokens=0 if usage is None else usage.tokens,
            cost=0.0 if usage is None else usage.cost,
        )

    def emit_drop(self, row_group: int, drop: Drop) -> None:
        """Emit that a row is given up, if anybody reads."""
        if self.events.active:
            self.events.emit(
                events.RowDropped(
                    time=trio.current_time(),
                    row_group=row_group,
                    row=drop.row,
                    column=drop.column,
                    attempts=drop.attempts,
                    error=drop.error,
                )
            )

    def emit_salvage(self, row_group: int, salvage_round: int, cells: int) -> None:
        """Emit that a salvage round begins, if anybody reads."""
        if self.events.active:
            self.events.emit(
                events.SalvageStarted(time=trio.current_time(), row_group=row_group, round=salvage_round, cells=cells)
            )

    def emit_rebuilt(self, row_group: int, before: int, after: int) -> None:
        """Emit that pre-batch processors left other rows, if anybody reads."""
        if self.events.active:
            self.events.emit(
                events.RowsRebuilt(time=trio.current_time(), row_group=row_group, before=before, after=after)
            )

    def emit_skipped(self, row_group: int, error: str) -> None:
        """Emit that a row group is given up, if anybody reads."""
        if self.events.active:
            self.events.emit(events.RowGroupSkipped(time=trio.current_time(), row_group=row_group, error=error))
