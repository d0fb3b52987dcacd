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
from ..store.entries import Purpose
from .dispatch import Dispatcher
from .fill import error_text
from .recorder import Recorder
from .shutdown import ErrorWindow
from .spending import Spending
from .stateful import Instance, read_state, restore_state, state_name
from .threads import Threads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..errors import RateLimited
    from ..runtime.offload import Processes
    from ..runtime.throttle import ThrottleManager
    from ..runtime.timers import Timers
    from ..store.journal import Recovered
    from ..store.manifest import Manifest
    from ..store.records import Drop, GroupRecord
    from .plan import BuildPlan, Step
    from .row_group import RowGroup
    from .shutdown import SalvageWindow
    from .storage import Store
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
        store: Store | None,
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
        self.store = store
        self.ledger = Ledger()
        self.rng = random.Random(config.jitter_seed)
        self.spending = Spending(
            config.max_tokens, config.max_cost, metered=plan.source.metered, priced=plan.source.priced
        )
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
        self._store_limiter = trio.CapacityLimiter(STORE_THREADS)
        # Finished row groups whose dropped rows are to be tried again, and which were not yet.
        self.retrying: dict[int, GroupRecord] = {}
        # Stateful generators whose state was not kept, of a dataset that is gone on with: they are called again.
        self.replaying: set[int] = set()
        # What the journal keeps of calls of stateful generators, until everything is made.
        self.calls_kept = (
            set() if store is None else {key for key in store.recovered.kept if key.purpose is Purpose.CALLS}
        )
        self.recorder: Recorder | None = None
        # Row groups that the journal has entries of.
        self.recorded = frozenset(
            () if store is None else (key.group for key in store.recovered.groups if key.purpose is Purpose.BUILD)
        )
        if store is not None:
            self.ledger.damage = store.damage
            if store.journal is not None:
                self.recorder = Recorder(
                    store.journal,
                    config,
                    in_thread=self.store_thread,
                    spending=self.spent,
                    on_commit=self.committed,
                    on_unkept=self.not_kept,
                )
            if store.manifest is not None:
                self._take_over(store.manifest, store.recovered)
        self._latency: dict[str, float] = {}
        # When a column without a key was first refused since it last succeeded.
        self._refusing_since: dict[str, float] = {}

    def _take_over(self, done: Manifest, recovered: Recovered) -> None:
        """Go on where earlier runs of this dataset ended."""
        retry = self.plan.retry_dropped
        for index, group in sorted(done.groups.items()):
            if retry and group.skipped is not None:
                continue  # nothing of it was made that could be lost: it is made as a whole
            self.group_done(index)
            self.ledger.written += group.rows
            if group.skipped is not None:
                self.ledger.skipped.append(index)
            if retry and any(drop.kind == "failed" for drop in group.drops):
                self.retrying[index] = group
            else:
                self.ledger.dropped.extend(group.drops)
        # The journal is as a rule ahead of the manifest, whose last word was at the last checkpoint.
        entries = (*(done.spending.entries if done.spending is not None else ()), *recovered.spending)
        for column, model, calls, input_tokens, output_tokens, cost in entries:
            if calls >= self.ledger.spent[column, model][0]:
                self.ledger.spent[column, model] = (calls, input_tokens, output_tokens, cost)
        for (column, _), (calls, input_tokens, output_tokens, cost) in self.ledger.spent.items():
            self.spending.take_over(column, calls, input_tokens + output_tokens, cost)
        if done.groups or recovered.groups:
            states = {**(done.states.states if done.states is not None else {}), **recovered.states}
            for identity, nodes in self.plan.instances.items():
                if not restore_state(self.plan.steps, nodes, states, trusted=self.plan.runs_own_code):
                    self.replaying.add(identity)

    def must_replay(self, step: Step) -> bool:
        """Whether a stateful generator has to see again what earlier runs have already had from it."""
        return step.instance is not None and id(step.instance) in self.replaying

    def keep_state(self, step: Step) -> None:
        """A stateful generator was called: its state goes with the outcome, where it can tell it."""
        state = read_state(step)
        if state is not None and self.recorder is not None:
            nodes = self.plan.instances[id(step.instance)]
            self.recorder.keep_state(state_name(self.plan.steps, nodes), state)

    def states(self) -> dict[str, bytes]:
        """The states of all stateful generators that can tell it."""
        steps = self.plan.steps
        found = {state_name(steps, nodes): read_state(steps[nodes[0]]) for nodes in self.plan.instances.values()}
        return {name: state for name, state in found.items() if state is not None}

    def spent(self) -> tuple[tuple[str, str, int, int, int, float], ...]:
        """What all runs of this dataset have used so far, as the store keeps it."""
        return tuple((column, model, *entry) for (column, model), entry in self.ledger.spent.items())

    def committed(self, cells: int) -> None:
        """So many more finished cells are durable."""
        if not cells:
            return
        self.ledger.durable += cells
        if self.events.active:
            self.events.emit(events.CellsCommitted(time=trio.current_time(), cells=cells, total=self.ledger.durable))

    def not_kept(self, column: str) -> None:
        """A column has values that the journal cannot keep."""
        if self.events.active:
            self.events.emit(events.ColumnNotKept(time=trio.current_time(), column=column))

    def restored(self, row_group: int, cells: Mapping[str, int]) -> None:
        """So many finished cells of each column were taken over from earlier runs."""
        for column, count in cells.items():
            self.ledger.restored += count
            self.ledger.durable += count
            if self.events.active:
                self.events.emit(
                    events.CellsRestored(time=trio.current_time(), row_group=row_group, column=column, cells=count)
                )

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
