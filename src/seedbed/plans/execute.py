"""One request: a nursery under a deadline, in which every node starts when the last of its inputs is done."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import trio

from ..errors import Overloaded, PlanError, RequestDeadlineExceeded
from ..runtime.exceptions import sole_leaf
from .admission import current_claim
from .context import OpContext
from .response import Coverage, Degraded
from .segments import SegmentRun, check_output, failure_of, may_degrade, overdue, stand_in
from .traces import Traces

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .compile import CompiledPlan, Schedule, Step, Unit
    from .context import RequestContext
    from .pool import ThreadPool
    from .rowset import RowSet

_NO_REFS: Mapping[str, RowSet] = {}


class Execution:
    """The state of one request. Only its own tasks change it, all on trio's thread."""

    __slots__ = (
        "_active",
        "_clock",
        "_compiled",
        "_degraded",
        "_error",
        "_hop",
        "_left",
        "_node_timeout",
        "_nursery",
        "_pool",
        "_runs",
        "_schedule",
        "_shared",
        "_timed",
        "_waiting",
        "_watching",
        "deadline",
        "late",
        "results",
        "traces",
    )

    def __init__(
        self,
        compiled: CompiledPlan,
        schedule: Schedule,
        shared: RequestContext,
        *,
        clock: Callable[[], float],
        pool: ThreadPool,
        hop: float,
        deadline: float,
        node_timeout: float,
        arrival: float | None,
    ) -> None:
        self._compiled = compiled
        self._schedule = schedule
        self._shared = shared
        self._clock = clock
        self._pool = pool
        # A segment that is estimated to take less than this runs on the loop.
        self._hop = hop
        self.deadline = deadline
        self._node_timeout = node_timeout
        self._timed = deadline < math.inf or node_timeout < math.inf or arrival is not None
        self.results: list[RowSet | None] = [None] * len(compiled.steps)  # by position
        self._waiting = schedule.needs.copy()  # by unit: how many that it needs are not done
        self._left = len(schedule.units)
        # The units that run and since when, the first to start standing first; and where those that are segments are.
        self._active: dict[Unit, float] = {}
        self._runs: dict[int, SegmentRun] = {}
        # The scope of the task that sees to node timeouts, if there is one.
        self._watching: trio.CancelScope | None = None
        self._nursery: trio.Nursery | None = None
        self._error: PlanError | None = None
        self._degraded: list[Degraded] = []
        self.late = 0  # results that came after their time and were dropped; threads are counted by the pool
        # Filled if the request arrived at a known instant, from which traces count.
        self.traces: Traces | None = None if arrival is None else Traces(arrival)

    async def run(self) -> bool:
        """Run all nodes. False if the deadline passed before; raises the first failure, after all else has ended."""
        roots = self._schedule.roots
        ended_by: BaseException | None = None
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.cancel_scope.deadline = self.deadline
                if self._node_timeout < self.deadline - self._clock():
                    self._watching = trio.CancelScope()
                    nursery.start_soon(self._watch_nodes, self._watching)
                for unit in roots[1:]:
                    nursery.start_soon(self._walk, unit)
                if roots:
                    await self._walk(roots[0])
        except BaseExceptionGroup as group:
            ended_by = self._settle(group)
        finally:
            self._nursery = None
        if ended_by is not None:
            raise ended_by
        if self._error is not None and not isinstance(self._error, RequestDeadlineExceeded):
            raise self._error
        return not self._left

    def _settle(self, group: BaseExceptionGroup[BaseException]) -> BaseException | None:
        """An op with a nursery of its own raised while it was cancelled: that is its node's failure, if the first.

        Gives what is no failure of a node and has to be raised: a cancellation, an exit, a Ctrl-C.
        """
        failures, others = group.split(Exception)
        if others is not None:
            return sole_leaf(others)
        if self._error is None and failures is not None and self._clock() < self.deadline:
            self._error = failure_of(self._at(next(iter(self._active))).node_id, failures)
        return None

    def may_answer(self, *, partial: bool) -> bool:
        """Whether the response may be built: a partial one after the deadline too, and none after `abort`."""
        return not isinstance(self._error, Overloaded) and (partial or self._clock() < self.deadline)

    def deadline_error(self) -> PlanError:
        """What to say when the deadline passed: the node that has run longest, or the first that could not start."""
        if self._error is not None:
            return self._error
        if not self._left:
            output = self._compiled.steps[self._compiled.outputs[0]].node_id
            return RequestDeadlineExceeded("the request's deadline passed while the response was built", node=output)
        for unit in self._active:
            return RequestDeadlineExceeded("the request's deadline passed while it ran", node=self._at(unit).node_id)
        return not_started(self._schedule.roots[0])

    def _at(self, unit: Unit) -> Step:
        """The step that a unit is at."""
        run = self._runs.get(unit.index)
        if run is None:
            return unit.steps[0]
        return unit.steps[min(run.place, len(unit.steps) - 1) if run.overran is None else run.overran]

    def coverage(self) -> Coverage:
        """What was degraded, and what has not ended."""
        unfinished: list[str] = []
        for unit in self._schedule.units:
            if self.results[unit.steps[-1].position] is None:
                run = self._runs.get(unit.index)
                unfinished.extend(step.node_id for step in unit.steps[0 if run is None else run.place :])
        return Coverage(degraded=tuple(self._degraded), unfinished=tuple(unfinished))

    def abort(self, error: PlanError) -> None:
        """End the request now with that error, unless it has one already."""
        if self._error is None:
            self._error = error
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel(reason=str(error))

    async def _walk(self, first: Unit) -> None:
        """Run a unit and go on with what it makes ready; what else becomes ready gets tasks of its own."""
        unit: Unit | None = first
        # Who has all the time there is, and is not asked when, need not look at the clock.
        timed = self._timed
        now = 0.0
        while unit is not None:
            if timed and (now := self._clock()) >= self.deadline:
                return self.abort(not_started(unit))
            self._active[unit] = now
            try:
                rows = await (self._on_loop(unit.steps[0], now) if unit.is_async else self._segment(unit))
            except PlanError as error:
                return self.abort(error)
            del self._active[unit]
            self.results[unit.steps[-1].position] = rows
            self._left -= 1
            unit = self._release(unit) if unit.successors else None
        if not self._left and self._watching is not None:
            self._watching.cancel()
        return None

    def _release(self, unit: Unit) -> Unit | None:
        waiting, units = self._waiting, self._schedule.units
        ready: Unit | None = None
        for index in unit.successors:
            waiting[index] -= 1
            if not waiting[index]:
                if ready is None:
                    ready = units[index]
                elif self._nursery is not None:
                    self._nursery.start_soon(self._walk, units[index])
        return ready

    async def _on_loop(self, step: Step, now: float) -> RowSet:
        """Run an async op; it is cancelled when its time is over."""
        results = self.results
        inputs: tuple[RowSet, ...] = tuple([results[position] for position in step.inputs])  # type: ignore[misc]
        refs: Mapping[str, RowSet] = _NO_REFS
        if step.refs:
            refs = {name: results[position] for name, position in step.refs}  # type: ignore[misc]
        ends = now + self._node_timeout
        effective = ends if ends < self.deadline else self.deadline
        ctx = OpContext(self._shared, step.node_id, effective, refs)
        run = step.op.run_async
        assert run is not None
        rows: RowSet | None = None
        failure: PlanError | None = None
        try:
            if ends <= now:
                pass  # there is no time at all
            elif step.may_degrade and ends < self.deadline:
                with trio.CancelScope(deadline=ends):
                    rows = await run(inputs, step.params, ctx)
            else:
                # If it takes too long the whole request ends, so it needs no scope of its own.
                rows = await run(inputs, step.params, ctx)
            end = self._clock() if self._timed else now
            if end >= effective:
                self.late += rows is not None
                failure = overdue(step.node_id, end, self.deadline, self._node_timeout)
            elif not step.is_core:
                check_output(step, inputs, rows)
        except Exception as error:  # noqa: BLE001  whatever an op raises fails its node
            failure = failure_of(step.node_id, error)
            end = self._clock()
        if failure is not None:
            if not may_degrade(step, failure) or end >= self.deadline:
                raise failure
            self._degrade(step, failure)
            rows = stand_in(step, inputs, ctx)
        assert rows is not None
        if self.traces is not None:
            self.traces.add(step, "loop", step.position, (now, end, len(inputs[0]) if inputs else 0, len(rows)))
        return rows

    async def _segment(self, unit: Unit) -> RowSet:
        """Run CPU nodes: here if that is quicker than a hop to a thread."""
        run = self._runs[unit.index] = SegmentRun(
            unit,
            {position: self.results[position] for position in unit.outside},  # type: ignore[misc]
            self._shared,
            clock=self._clock,
            deadline=self.deadline,
            node_timeout=self._node_timeout,
        )
        # Where there is no time at all nothing is run, so that needs no thread.
        at_once = unit.always_inline or self._node_timeout <= 0
        inline = at_once or unit.fixed + unit.per_row * run.size < self._hop
        try:
            return run.run() if inline else await self._in_thread(run)
        finally:
            run = self._runs[unit.index]  # another one if a node overran and the rest went on without it
            self.late += run.late
            for step, failure in run.degraded:
                self._degrade(step, failure)
            if self.traces is not None:
                for step, times in zip(unit.steps, run.times, strict=False):
                    self.traces.add(step, "inline" if inline else "thread", unit.steps[0].position, times)

    async def _in_thread(self, run: SegmentRun) -> RowSet:
        steps = run.unit.steps
        while True:
            place = await self._hop_once(run)
            if place is None:
                return run.outputs[-1]
            # The thread is still at that step, and nobody wants what it makes of it.
            failure = run.too_late(steps[place], self._clock())
            if not may_degrade(steps[place], failure):
                raise failure
            run = self._runs[run.unit.index] = run.resumed(place, failure)
            if run.place == len(steps):
                return run.outputs[-1]

    async def _hop_once(self, run: SegmentRun) -> int | None:
        """Run the steps that are left in a thread; gives the place of one that took too long but may degrade."""
        watching: trio.CancelScope | None = None
        with trio.CancelScope() as scope:
            if run.unit.may_degrade and run.ends < self.deadline and self._nursery is not None:
                watching = trio.CancelScope()
                self._nursery.start_soon(self._watch, run, scope, watching)
            try:
                await self._pool.run(run.run, current_claim.get())
            except Overloaded as refusal:
                raise Overloaded(refusal.message, node=run.unit.steps[run.place].node_id) from None
            finally:
                run.abandoned = True
                if watching is not None:
                    watching.cancel()
        return run.overran if scope.cancelled_caught else None

    async def _watch_nodes(self, scope: trio.CancelScope) -> None:
        """End the request when a node has taken too long.

        One task for all nodes: they have the same timeout, so while it sleeps for the first of them, no other that
        starts can be due before.
        """
        with scope:
            while True:
                now = self._clock()
                wake = now + self._node_timeout
                for unit, since in self._active.items():
                    run = self._runs.get(unit.index)
                    if unit.may_degrade or (run is not None and run.done):
                        continue  # it has a scope of its own, or its result is on the way
                    if run.overdue(now) if run is not None else now >= since + self._node_timeout:
                        return self.abort(overdue(self._at(unit).node_id, now, self.deadline, self._node_timeout))
                    wake = min(wake, (since if run is None else run.since) + self._node_timeout)
                await trio.sleep_until(wake)

    async def _watch(self, run: SegmentRun, scope: trio.CancelScope, watching: trio.CancelScope) -> None:
        """Cancel `scope` when the step that the thread is at has taken too long, whichever that is by then."""
        with watching:
            while True:
                await trio.sleep_until(run.ends)
                if run.overdue(self._clock()):
                    scope.cancel(reason="node timeout")
                    return

    def _degrade(self, step: Step, failure: PlanError) -> None:
        self._degraded.append(
            Degraded(node=step.node_id, policy=step.policy, code=failure.code, message=failure.message)
        )


def not_started(unit: Unit) -> RequestDeadlineExceeded:
    """What to say of a request whose deadline passed before this could start."""
    return RequestDeadlineExceeded("the request's deadline passed before it started", node=unit.steps[0].node_id)
