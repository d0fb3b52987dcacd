"""The trio side of a build: it performs what the scheduler decides.

One nursery for the run; a task and a nursery for each row group that is admitted; cells are children of their row
group's nursery. Finished attempts send their outcomes through one memory channel to the driver, which takes in a batch,
asks the scheduler once and performs its actions.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
from typing import TYPE_CHECKING

import trio

from ..errors import BudgetExceeded, BuildError, BuildStopped, CandidatesExhausted, DeadlineExceeded, StoreError
from ..graph import Kind
from ..observe import events
from ..observe.report import Ledger
from ..runtime.tasks import Timers, leaves
from ..runtime.threads import open_processes
from ..runtime.throttle import KeyLimits, ThrottleManager
from .admission import AcceptedAdmission, Admission
from .budget import Budget
from .checkpoint import checkpoint, finish, finished_group, write_usage
from .decisions import Decisions
from .failures import UnkeyedSteps, breakdown, error_text, is_panic, locate
from .opening import open_group
from .resume import History
from .row_group import Shared
from .scheduler import Scheduler
from .services import OpenGroup, Services
from .storage import Recorder
from .tasks import Admit, Cancel, CancelRun, Close, Grant, Notices, Outcome, Start, WakeAt
from .worker import attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import polars as pl

    from ..observe.report import BuildReport, Usage
    from ..runtime.threads import Processes
    from ..runtime.throttle import Throttle
    from .checkpoint import FinishedGroup
    from .plan import BuildPlan
    from .storage import Store
    from .tasks import Action, Task


async def run_build(
    plan: BuildPlan,
    *,
    store: Store | None,
    emitter: events.Events,
    deliver: Callable[[FinishedGroup], None],
    throttles: ThrottleManager | None = None,
    on_start: Callable[[Run], None],
    checked: Sequence[tuple[str, Usage]] = (),
) -> BuildReport:
    """Run a whole build; raises the error that stopped it, with the report. Checkpoints remain on disk.

    Each finished row group is given to `deliver`. `checked` is the usage of the models' check before the build.
    """
    config = plan.config
    timers = Timers()
    own = throttles or ThrottleManager(
        limits=plan.limits,
        timers=timers,
        default=KeyLimits(max_parallel_requests=config.max_parallel_requests),
        patience=config.throttle_patience,
        backoff_base=config.backoff_base,
        backoff_max=config.backoff_max,
        rng=random.Random(config.jitter_seed),
    )
    error: BaseException | None = None
    async with open_processes(config.max_processes or os.cpu_count() or 1) as processes:
        run = Run(
            plan, timers=timers, throttles=own, processes=processes, emitter=emitter, store=store, deliver=deliver
        )
        run.ledger.spend("", checked)
        for _, usage in checked:
            run.services.shared.budget.take_over("", usage)
        on_start(run)
        notify = run.services.notify
        notify.emit(
            events.BuildStarted,
            rows=plan.rows,
            row_groups=plan.layout.count,
            columns=plan.graph.outputs,
            keys={column.name: column.key for column in plan.source.columns},
            limits={key: each.max_parallel_requests for key, each in plan.source.limits.items()},
            models=plan.source.model_names,
            sampled=frozenset(step.name for step in plan.steps if step.kind is Kind.FROM_SCRATCH),
            finished_rows=plan.finished_rows,
            candidates=None if run.services.decisions is None else run.services.decisions.admission.complete_candidates,
        )
        for message in run.ledger.damage:
            notify.emit(events.DamageFound, message=message)
        unwatch = own.watch(lambda key, limit: notify.emit(events.ThrottleChanged, key=key, limit=limit))
        try:
            async with run.services.recorder.committing() if run.services.recorder else contextlib.nullcontext():
                await run.execute()
        except BaseException as failure:  # it is raised below, with the report
            found = list(leaves(failure))
            # Memory that ran out or a panic of polars is the message, whatever else failed because of it.
            error = next(filter(None, map(breakdown, found)), None) or failure
            if not all(isinstance(leaf, Exception) or is_panic(leaf) for leaf in found):
                raise
        finally:
            unwatch()
            run.close()
        if error is not None and store is not None and run.ledger.usage:
            # The usage of row groups that are not finished counts too.
            with contextlib.suppress(StoreError):
                await write_usage(run.services, store.writer)
        report = run.report()
        notify.emit(
            events.BuildFinished,
            rows=report.written,
            dropped=len(report.dropped),
            error=None if error is None else error_text(_sole(error)),
        )
    # A reader that raised stopped the run; one that raised after the end counts too.
    error = error or emitter.failure
    if error is None:
        return report
    sole = _sole(error)
    if isinstance(sole, BuildError | StoreError):
        sole.report = report
    raise sole


class Run:
    """One build. All state is changed on trio's thread."""

    def __init__(
        self,
        plan: BuildPlan,
        *,
        timers: Timers,
        throttles: ThrottleManager,
        processes: Processes,
        emitter: events.Events,
        store: Store | None,
        deliver: Callable[[FinishedGroup], None],
    ) -> None:
        config = plan.config
        self.plan = plan
        self.timers = timers
        self.throttles = throttles
        self._deliver = deliver
        emitter.on_failure = self._reader_failed
        self._now = now = trio.lowlevel.current_clock().current_time
        self.started = now()
        rng = random.Random(config.jitter_seed)
        self.ledger = ledger = Ledger()
        budget = Budget(config.max_tokens, config.max_cost, metered=plan.source.metered, priced=plan.source.priced)
        self.history = history = History(plan, store, ledger, budget)
        notify = Notices(emitter, now)
        shared = Shared(
            graph=plan.graph,
            steps=plan.steps,
            pre_batch=plan.pre_batch,
            post_batch=plan.post_batch,
            config=config,
            budget=budget,
            ledger=ledger,
            notify=notify,
            rng=rng,
            now=now,
            late=frozenset(step.node for step in plan.steps if step.name in plan.header.late),
            unkeyed=UnkeyedSteps(config, rng, now, lambda key: throttles.get(key).mean_latency, self.stop),
            accept=plan.deciding,
        )
        admission: Admission = Admission(plan.layout.count, history.is_open, config.admitted_at_once)
        accepted: AcceptedAdmission | None = None
        if plan.acceptance is not None:
            layout = plan.layout
            admission = accepted = AcceptedAdmission(
                layout.count,
                history.is_open,
                # Small row groups, but as many rows at once as there would be of large ones.
                config.admitted_at_once * max(1, plan.source.config.buffer_size // layout.size),
                wanted=plan.rows,
                size=lambda index: len(layout.group_rows(index)),
            )
            history.resume_admission(accepted)
        self.scheduler = Scheduler(
            shared,
            admission=admission,
            throttle=self._throttle,
            processes=processes.count,
        )
        self.services = Services(
            plan=plan,
            store=store,
            history=history,
            scheduler=self.scheduler,
            shared=shared,
            processes=processes,
            ledger=ledger,
            notify=notify,
            now=now,
            wake=self._wake,
        )
        if plan.acceptance is not None and accepted is not None:
            self.services.decisions = Decisions(
                accepted,
                rules=plan.acceptance.rules,
                layout=plan.layout,
                writer=None if store is None else store.writer,
                in_thread=self.services.store_thread,
                ledger=ledger,
                notices=notify,
                deliver=self._deliver_decided,
            )
        if store is not None and store.journal is not None:
            self.services.recorder = Recorder(
                store.journal,
                config,
                in_thread=self.services.store_thread,
                usage=self.services.usage_entries,
                finished=history.finished_groups,
                on_commit=self.services.committed,
                on_unpicklable=lambda column: notify.emit(events.UnjournaledColumn, column=column),
            )
        self._scope: trio.CancelScope | None = None  # of every task of the run
        self._send, self._receive = trio.open_memory_channel[Outcome | None](math.inf)
        self._woken = False  # a None is in the channel
        self._unsubscribe: dict[str, Callable[[], None]] = {}

    # What the owner of the build calls.

    @property
    def stopping(self) -> BuildStopped | None:
        """Why the run ends early, if it does."""
        return self.scheduler.stopping

    def stop(self, reason: BuildStopped) -> None:
        """End early: tasks in flight have `grace` seconds."""
        self.scheduler.stop(reason)
        self._wake()

    def cancel(self) -> None:
        """End at once: tasks in flight are cancelled."""
        if self._scope is not None:
            self._scope.cancel(reason=f"the build is stopping: {self.stopping}")

    def close(self) -> None:
        """Unsubscribe from throttles, which may be shared with other runs."""
        for unsubscribe in self._unsubscribe.values():
            unsubscribe()

    def report(self) -> BuildReport:
        """The report of the run so far."""
        candidates, surplus, unfinished = None, 0, self.history.unfinished()
        if (decisions := self.services.decisions) is not None:
            candidates, surplus, unfinished = decisions.counts(self.history.recorded)
        return self.ledger.report(
            rows=self.plan.rows,
            candidates=candidates,
            surplus=surplus,
            unfinished=unfinished,
            untried=[drop for record in self.history.retrying.values() for drop in record.drops],
            throttles=self.throttles.statistics(),
            seconds=self._now() - self.started,
        )

    def _deliver_decided(self, index: int, rows: int, frame: pl.DataFrame | None, name: str | None) -> None:
        self._deliver(finished_group(self.services, index, rows, frame, name))

    def _reader_failed(self, event: events.Event, error: Exception) -> None:
        kind = type(event).__name__
        stopped = BuildStopped(f"a reader of events raised on {kind}: {type(error).__name__}: {error}")
        stopped.__cause__ = error
        self.stop(stopped)

    # The driver.

    async def execute(self) -> None:
        """Run until everything is done or the run stops."""
        config = self.plan.config
        deadline = math.inf if config.deadline is None else self.started + config.deadline
        finished = False
        with trio.CancelScope(deadline=deadline) as self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.timers.run)
                if self.services.decisions is not None:  # an earlier run may have stopped between two of them
                    await self.services.decisions.advance()
                try:
                    async with trio.open_nursery() as groups:
                        await self._drive(groups)
                finally:
                    self._drain()
                exhausted = self._exhausted()
                if self.stopping is None or exhausted is not None:
                    self.ledger.exhausted = exhausted
                    await finish(self.services)
                    # A stop that came in the meantime was too late.
                    finished = True
                nursery.cancel_scope.cancel(reason="all row groups are done")
        if self._scope.cancelled_caught and self.stopping is None:
            raise DeadlineExceeded(f"the build did not finish within deadline={config.deadline:g} s")
        if self.stopping is not None and not finished:
            raise self.stopping

    def _exhausted(self) -> str | None:
        """Why there are fewer rows than were requested, where that is no error.

        Raises `CandidatesExhausted` where it is one: the directory can be resumed with more candidates.
        """
        decisions, stopping = self.services.decisions, self.stopping
        if decisions is None or decisions.admission.enough:
            return None
        is_partial = decisions.rules.on_exhausted == "partial"
        if stopping is not None:
            return str(stopping) if is_partial and isinstance(stopping, BudgetExceeded) else None
        accepted, candidates = decisions.admission.kept, decisions.admission.candidates
        reason = f"{candidates:,} candidates gave {accepted:,} of {self.plan.rows:,} rows"
        if is_partial:
            return reason
        raise CandidatesExhausted(
            f"{reason}; to go on, resume with a larger max_candidates, "
            "or set on_exhausted to 'partial' to finish the dataset with these rows"
        )

    async def _drive(self, nursery: trio.Nursery) -> None:
        scheduler = self.scheduler
        try:
            while True:
                for action in scheduler.decide():
                    self._perform(action, nursery)
                if scheduler.done:
                    return
                self._take_in(await self._receive.receive())
                with contextlib.suppress(trio.WouldBlock):
                    while True:
                        self._take_in(self._receive.receive_nowait())
        except BaseException:
            scheduler.die()
            raise

    def _take_in(self, outcome: Outcome | None) -> None:
        if outcome is None:
            self._woken = False
            return
        try:
            self.scheduler.finished(outcome)
        except Exception as error:
            task = outcome.task
            group = self.services.groups[task.group]
            locate(error, group.index, task, group.number(task))
            raise

    def _perform(self, action: Action, nursery: trio.Nursery) -> None:
        if type(action) is Start:
            task = action.task
            group = self.services.groups[task.group]
            group.nursery.start_soon(self._run_task, group, task, name=task.step.name)
            return
        match action:
            case Cancel(task, reason):
                # Without a scope it has not taken its first step, and will see that its row was dropped.
                if task.scope is not None:
                    task.scope.cancel(reason=reason)
            case Grant(request):
                request.wake()
            case Admit(index, turn):
                nursery.start_soon(self._run_group, index, turn, name=f"row group {index}")
            case Close(index, is_complete):
                self.services.groups[index].is_complete = is_complete
                self.services.groups[index].closing.set()
            case WakeAt(when):
                self.timers.call_at(when, self._wake)
            case CancelRun():
                self.cancel()

    def _wake(self) -> None:
        """Have the driver ask the scheduler once more."""
        if not self._woken:
            self._woken = True
            with contextlib.suppress(trio.ClosedResourceError):
                self._send.send_nowait(None)

    def _drain(self) -> None:
        """Journal outcomes that arrived when the driver had already ended: they are paid for."""
        with contextlib.suppress(trio.WouldBlock):
            while True:
                outcome = self._receive.receive_nowait()
                if outcome is None:
                    continue
                self.scheduler.aborted(outcome.task, outcome.usage)
                if outcome.usage is not None:
                    self.ledger.spend(outcome.task.step.name, outcome.usage.take())
                group = self.services.groups.get(outcome.task.group)
                if group is not None and group.state is not None:
                    group.state.record(outcome)
        self._send.close()
        self._receive.close()

    def _throttle(self, key: str) -> Throttle:
        throttle = self.throttles.get(key)
        if key not in self._unsubscribe:

            def available() -> None:
                self.scheduler.permits_available(key)
                self._wake()

            self._unsubscribe[key] = throttle.subscribe(available)
        return throttle

    async def _run_task(self, group: OpenGroup, task: Task) -> None:
        """Run one attempt and send its outcome."""
        try:
            outcome = await attempt(self.services, group, task)
        except BaseException as error:
            # The run ends: what is still queued must not start in the slot that is released here.
            self.scheduler.aborted(task)
            if isinstance(error, Exception):
                locate(error, group.index, task, group.number(task))
            raise
        self._send.send_nowait(outcome)

    async def _run_group(self, index: int, turn: int) -> None:
        """Open a row group, wait until the scheduler closes it, and write it if it is complete."""
        try:
            async with trio.open_nursery() as nursery:
                try:
                    group = await open_group(self.services, index, turn, nursery)
                    if group is not None:
                        await group.closing.wait()
                        if group.is_complete:
                            finished = await checkpoint(self.services, group)
                            if finished is not None:
                                self._deliver(finished)
                except BaseException as error:
                    self.scheduler.die()
                    if isinstance(error, Exception):
                        locate(error, index)
                    raise
                # What still runs here only serves abandoned threads.
                nursery.cancel_scope.cancel(reason=f"row group {index} has ended")
            # Not after an exception: outcomes that were not taken in are still to be journaled.
            self.services.groups.pop(index, None)
        finally:
            self.scheduler.closed(index)
            self._wake()


def _sole(error: BaseException) -> BaseException:
    """One leaf is raised as itself; several as one `BuildError` with the group as its cause."""
    found = list(leaves(error))
    if len(found) == 1 or all(isinstance(leaf, StoreError) for leaf in found):
        # A disk that fails for one thread fails for the others too: that is one message and not several.
        return found[0]
    several = BuildError(f"{len(found)} errors ended the build: " + "; ".join(error_text(leaf) for leaf in found))
    several.__cause__ = error
    return several
