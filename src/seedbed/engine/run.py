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
from functools import partial
from typing import TYPE_CHECKING

import attrs
import trio

from ..errors import (
    BudgetExceeded,
    BuildError,
    BuildStopped,
    CandidatesExhausted,
    DeadlineExceeded,
    ManifestError,
    StoreError,
)
from ..graph import Kind
from ..observe import events
from ..observe.report import Ledger
from ..recipe.stages import ROW
from ..runtime.tasks import Timers, leaves
from ..runtime.threads import open_processes
from ..runtime.throttle import KeyLimits, ThrottleManager
from ..store.children import Children
from ..store.values import python_values
from .admission import AcceptedAdmission, Admission
from .budget import Budget
from .checkpoint import checkpoint, finish, finished_group, write_usage
from .decisions import Decisions
from .failures import Availability, UnkeyedSteps, breakdown, error_text, is_panic, locate
from .intake import Intake
from .opening import open_group, restore_shared
from .resume import History, take_over_usage
from .row_group import Shared
from .scheduler import Scheduler, StageState
from .services import OpenGroup, Services, make_store_limiter
from .storage import Recorder
from .taking import take
from .tasks import Admit, Cancel, CancelRun, Close, Grant, Notices, Outcome, Start, Take, WakeAt
from .worker import attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import polars as pl

    from ..observe.report import BuildReport, Usage
    from ..runtime.threads import Processes
    from ..runtime.throttle import Throttle
    from .checkpoint import FinishedGroup
    from .plan import BuildPlan, StagePlan
    from .row_group import RowGroup
    from .storage import Stores
    from .tasks import Action, Step, Task


async def run_build(
    plan: BuildPlan,
    *,
    stores: Stores | None,
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
            plan, timers=timers, throttles=own, processes=processes, emitter=emitter, stores=stores, deliver=deliver
        )
        run.ledger.spend("", checked)
        for _, usage in checked:
            run.budget.take_over("", usage)
        on_start(run)
        notify = run.notify
        notify.emit(
            events.BuildStarted,
            rows=sum(stage.requested for stage in plan.stages),
            row_groups=sum(stage.layout.count for stage in plan.stages),
            columns=tuple(name for stage in plan.stages for name in stage.stored),
            keys={step.name: step.key for step in run.shown_steps},
            limits={key: each.max_parallel_requests for key, each in plan.source.limits.items()},
            models=plan.source.model_names,
            sampled=frozenset(step.name for step in run.shown_steps if step.kind is Kind.FROM_SCRATCH),
            finished_rows=sum(stage.finished_rows for stage in plan.stages),
            candidates=run.finished_candidates(run.stages),
            stages={
                stage.stage: events.StageStarted(
                    rows=stage.requested,
                    finished_rows=stage.finished_rows,
                    columns=tuple(step.name for step in stage.steps if step is not stage.inherited_step),
                    candidates=run.finished_candidates([stage.stage]),
                    parent=stage.parent,
                )
                for stage in plan.stages
                if stage.stage
            },
            output=plan.output.stage,
        )
        for message in run.ledger.damage:
            notify.emit(events.DamageFound, message=message)
        unwatch = own.watch(lambda key, limit: notify.emit(events.ThrottleChanged, key=key, limit=limit))
        try:
            async with run.recorder.committing() if run.recorder else contextlib.nullcontext():
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
        if error is not None and run.output.store is not None and run.ledger.usage:
            # The usage of row groups that are not finished counts too.
            with contextlib.suppress(StoreError):
                await write_usage(run.output, run.output.store.writer)
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
        stores: Stores | None,
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
        self.budget = budget = Budget(
            config.max_tokens, config.max_cost, metered=plan.source.metered, priced=plan.source.priced
        )
        self.notify = Notices(emitter, now)
        unkeyed = UnkeyedSteps(config, rng, now, lambda key: throttles.get(key).mean_latency, self.stop)
        # What is counted by column is counted in one ledger: a column belongs to one stage.
        self.ledger = ledger = Ledger()
        touched: set[RowGroup] = set()
        states: list[StageState] = []
        stages: dict[str, Services] = {}
        confirming, store_limiter = trio.Lock(), make_store_limiter()
        availability = Availability(config.fallback_after)
        for stage in plan.stages:
            store = None if stores is None else stores.by_stage[stage.stage]
            own = ledger if stage is plan.output else ledger.for_stage()
            shared = Shared(
                stage=stage.stage,
                graph=stage.graph,
                steps=stage.steps,
                pre_batch=stage.pre_batch,
                post_batch=stage.post_batch,
                config=config,
                budget=budget,
                ledger=own,
                notify=Notices(emitter, now, stage.stage),
                rng=rng,
                now=now,
                late=frozenset(step.node for step in stage.steps if step.name in stage.header.late),
                unkeyed=unkeyed,
                touched=touched,
                accept=stage.deciding,
            )
            history = History(stage, store, own)
            admission = self._admission(stage, history)
            states.append(StageState(shared, admission, self._intake(stage, stages)))
            stages[stage.stage] = Services(
                plan=stage,
                store=store,
                history=history,
                shared=shared,
                processes=processes,
                ledger=own,
                notify=shared.notify,
                now=now,
                wake=self._wake,
                stages=stages,
                throttle=self._throttle,
                availability=availability,
                confirming=confirming,
                store_limiter=store_limiter,
            )
            if stage.acceptance is not None and isinstance(admission, AcceptedAdmission):
                services = stages[stage.stage]
                services.placed = [] if store is None else [group for group, _ in store.writer.placed]
                services.decisions = Decisions(
                    admission,
                    rules=stage.acceptance.rules,
                    layout=stage.layout,
                    writer=None if store is None else store.writer,
                    in_thread=services.store_thread,
                    ledger=own,
                    notices=shared.notify,
                    deliver=partial(self._deliver_decided, services),
                )
        self.scheduler = Scheduler(states, throttle=self._throttle, processes=processes.count)
        self.stages = stages
        self.output = stages[plan.output.stage]
        take_over_usage((each.store for each in stages.values() if each.store is not None), ledger, budget)
        self.recorder: Recorder | None = None
        if stores is not None and stores.journal is not None:
            self.recorder = Recorder(
                stores.journal,
                config,
                in_thread=self.output.store_thread,
                usage=self.output.usage_entries,
                finished=lambda: sum(each.history.finished_groups() for each in stages.values()),
                on_commit=self.output.committed,
                on_unpicklable=lambda column: self.notify.emit(events.UnjournaledColumn, column=column),
            )
        for services in stages.values():
            services.scheduler, services.recorder = self.scheduler, self.recorder
        self._scope: trio.CancelScope | None = None  # of every task of the run
        self._send, self._receive = trio.open_memory_channel[Outcome | None](math.inf)
        self._woken = False  # a None is in the channel
        self._unsubscribe: dict[str, Callable[[], None]] = {}

    @staticmethod
    def _admission(stage: StagePlan, history: History) -> Admission:
        config, layout = stage.config, stage.layout
        if stage.acceptance is None:
            return Admission(layout.count, history.is_open, config.admitted_at_once)
        admission = AcceptedAdmission(
            layout.count,
            history.is_open,
            # Small row groups, but as many rows at once as there would be of large ones.
            config.admitted_at_once * max(1, stage.source.config.buffer_size // layout.size),
            wanted=stage.wanted,
            size=lambda index: len(layout.group_rows(index)),
        )
        history.resume_admission(admission)
        return admission

    @staticmethod
    def _intake(stage: StagePlan, stages: Mapping[str, Services]) -> Intake | None:
        """How a stage takes its rows from another, which is among `stages` already."""
        children = stage.layout
        if not isinstance(children, Children):
            return None
        parent = stages.get(children.source.stage)
        if parent is None:
            raise ManifestError(
                f"the directory takes the rows of stage {stage.stage!r} from {children.source.stage!r}, which is no "
                "stage before it: no run wrote that"
            )
        if parent.decisions is not None:  # its files of rows that count, which never change
            return Intake(
                parent.stage,
                children,
                lambda: len(parent.placed),
                lambda _: True,
                lambda index: children.taken.get(index) == parent.version(index),
            )

        def is_taken(index: int) -> bool:
            is_skipped = parent.store is None and index not in parent.finished_rows
            if parent.store is not None:
                record = parent.store.writer.group(index)
                is_skipped = record is None or record.skipped is not None
            return is_skipped or children.taken.get(index) == parent.version(index)

        return Intake(parent.stage, children, lambda: parent.plan.layout.count, parent.history.is_settled, is_taken)

    @property
    def shown_steps(self) -> list[Step]:
        """The columns of all stages, as displays show them."""
        return [step for stage in self.plan.stages for step in stage.steps if step is not stage.inherited_step]

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
        """The report of the run so far; its rows are those of the stage at the root."""
        own = {name: self._report_of(services) for name, services in self.stages.items()}
        report = own[self.output.stage]
        return report if len(own) == 1 else attrs.evolve(report, stages=own)

    def finished_candidates(self, names: Iterable[str]) -> int | None:
        """How many candidates of these stages earlier runs finished; None where every row counts."""
        stages = [self.stages[name] for name in names]
        found = [each.decisions.admission.complete_candidates for each in stages if each.decisions]
        return sum(found) if found else None

    def _report_of(self, services: Services) -> BuildReport:
        history, plan = services.history, services.plan
        candidates, surplus, unfinished = None, 0, history.unfinished()
        if (decisions := services.decisions) is not None:
            candidates, surplus, unfinished = decisions.counts(history.recorded)
        return services.ledger.report(
            rows=plan.requested,
            candidates=candidates,
            surplus=surplus,
            unfinished=unfinished,
            untried=[drop for record in history.retrying.values() for drop in record.drops],
            throttles=self.throttles.statistics(),
            seconds=self._now() - self.started,
        )

    def _deliver_decided(
        self, services: Services, index: int, rows: int, frame: pl.DataFrame | None, name: str | None
    ) -> None:
        if frame is not None and ROW in frame.columns:
            services.finished_rows[len(services.placed)] = {each.name: python_values(each) for each in frame}
        services.placed.append(index)
        self._deliver(finished_group(services, index, rows, frame, name))

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
                for services in self.stages.values():
                    await restore_shared(services)
                for services in self.stages.values():  # an earlier run may have stopped between two decisions
                    if services.decisions is not None:
                        await services.decisions.advance()
                try:
                    async with trio.open_nursery() as groups:
                        await self._drive(groups)
                finally:
                    self._drain()
                exhausted = self._exhausted()
                if self.stopping is None or exhausted is not None:
                    self.ledger.exhausted = exhausted
                    await finish(self.stages.values())
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
        stopping = self.stopping
        lacking = [
            each
            for each in self.stages.values()
            if each.plan.parent is None and each.decisions is not None and not each.decisions.admission.enough
        ]
        if not lacking:
            return None
        is_partial = all(each.decisions and each.decisions.rules.on_exhausted == "partial" for each in lacking)
        if stopping is not None:
            return str(stopping) if is_partial and isinstance(stopping, BudgetExceeded) else None
        reason = "; ".join(map(_shortage, lacking))
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
            group = self.stages[task.step.stage].groups[task.group]
            locate(error, group.index, task, group.number(task))
            raise

    def _perform(self, action: Action, nursery: trio.Nursery) -> None:
        if type(action) is Start:
            task = action.task
            group = self.stages[task.step.stage].groups[task.group]
            group.nursery.start_soon(self._run_task, group, task, name=task.step.name)
            return
        match action:
            case Cancel(task, reason):
                # Without a scope it has not taken its first step, and will see that its row was dropped.
                if task.scope is not None:
                    task.scope.cancel(reason=reason)
            case Grant(request):
                request.wake()
            case Admit(index, turn, stage):
                nursery.start_soon(self._run_group, self.stages[stage], index, turn, name=f"row group {index}")
            case Take(stage, parent):
                nursery.start_soon(self._take, self.stages[stage], parent, name=f"rows of stage {stage}")
            case Close(index, is_complete, stage):
                self.stages[stage].groups[index].is_complete = is_complete
                self.stages[stage].groups[index].closing.set()
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
                group = self.stages[outcome.task.step.stage].groups.get(outcome.task.group)
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
            outcome = await attempt(self.stages[task.step.stage], group, task)
        except BaseException as error:
            # The run ends: what is still queued must not start in the slot that is released here.
            self.scheduler.aborted(task)
            if isinstance(error, Exception):
                locate(error, group.index, task, group.number(task))
            raise
        self._send.send_nowait(outcome)

    async def _take(self, services: Services, parent: int | None) -> None:
        """Take rows of the parent stage, which the scheduler then admits."""
        try:
            await take(services, parent)
        except BaseException:
            self.scheduler.die()
            raise
        finally:
            self._wake()

    async def _run_group(self, services: Services, index: int, turn: int) -> None:
        """Open a row group, wait until the scheduler closes it, and write it if it is complete."""
        try:
            async with trio.open_nursery() as nursery:
                try:
                    group = await open_group(services, index, turn, nursery)
                    if group is not None:
                        await group.closing.wait()
                        if group.is_complete:
                            finished = await checkpoint(services, group)
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
            services.groups.pop(index, None)
        finally:
            self.scheduler.closed(index, services.stage)
            self._wake()


def _shortage(services: Services) -> str:
    """How many rows a stage has of those that it was to have."""
    assert services.decisions is not None
    admission, of = services.decisions.admission, f"stage {services.stage!r}: " if services.stage else ""
    return f"{of}{admission.candidates:,} candidates gave {admission.kept:,} of {admission.wanted:,} rows"


def _sole(error: BaseException) -> BaseException:
    """One leaf is raised as itself; several as one `BuildError` with the group as its cause."""
    found = list(leaves(error))
    if len(found) == 1 or all(isinstance(leaf, StoreError) for leaf in found):
        # A disk that fails for one thread fails for the others too: that is one message and not several.
        return found[0]
    several = BuildError(f"{len(found)} errors ended the build: " + "; ".join(error_text(leaf) for leaf in found))
    several.__cause__ = error
    return several
