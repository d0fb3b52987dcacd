"""One request: a nursery under a deadline, in which every node starts when the last of its inputs is done.

A node on the loop is cancelled at its timeout. A segment of CPU nodes runs on the loop or in a thread; what runs in a
thread reads and writes nothing but its own `UnitRun`, so that an abandoned thread cannot disturb other requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs
import numpy as np
import trio

from ..errors import EndpointUnavailable, NodeFailed, NodeTimeout, Overloaded, PlanError, RequestDeadlineExceeded
from ..runtime.asyncio import looks_like_asyncio
from ..runtime.tasks import sole_leaf
from .admission import current_claim
from .opspec import OpContext, Rows
from .registries import ID
from .request import Coverage, Degraded, NodeTrace, Trace
from .rowset import NO_ROWS, RowSet, concat, unwritten_column

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from .admission import ThreadPool
    from .compile import Schedule, Step, Unit
    from .opspec import RequestContext

_NO_REFS: Mapping[str, RowSet] = {}


class Execution:
    """The state of one request. Only its own tasks change it, all on trio's thread."""

    def __init__(self, schedule: Schedule, shared: RequestContext, pool: ThreadPool, hop: float) -> None:
        self._compiled = schedule.compiled
        self._schedule = schedule
        self._shared = shared
        self._clock = shared.clock
        self._pool = pool
        self._hop = hop  # a segment that is estimated to take less than this runs on the loop
        self.results: list[RowSet | None] = [None] * len(self._compiled.steps)  # by position
        self._waiting = schedule.needs.copy()  # by unit: how many units that it needs are not done
        self._left = len(schedule.units)
        self._runs: dict[Unit, UnitRun] = {}  # in the order in which the units started
        self._nursery: trio.Nursery | None = None
        self._error: PlanError | None = None
        self._degraded: list[Degraded] = []
        self.late = 0  # results after their timeout, which were ignored; threads are counted by the pool
        self._traces: list[NodeTrace] = []  # in the order in which the nodes ended

    async def run(self) -> bool:
        """Run all nodes and raise the first failure once all tasks have ended. False if the deadline passed before."""
        first, *others = self._schedule.roots
        ended_by: BaseException | None = None
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.cancel_scope.deadline = self._shared.deadline
                for unit in others:
                    nursery.start_soon(self._walk, unit)
                await self._walk(first)
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
        """Decide about exceptions of ops that raised in a nursery of their own while they were cancelled.

        The first is the failure of its node. Returns what has to be raised: a cancellation, an exit, a Ctrl-C.
        """
        failures, others = group.split(Exception)
        if others is not None:
            return sole_leaf(others)
        if self._error is None and failures is not None and self._clock() < self._shared.deadline:
            self._error = failure_of(next(self._unfinished()).step.node_id, failures)
        return None

    def _unfinished(self) -> Iterator[UnitRun]:
        """The runs of units that have started and not finished, in the order in which they started."""
        return (run for unit, run in self._runs.items() if self.results[unit.steps[-1].position] is None)

    def may_answer(self, *, partial: bool) -> bool:
        """True if the response may be built: a partial one after the deadline too, and none after `abort`."""
        return not isinstance(self._error, Overloaded) and (partial or self._clock() < self._shared.deadline)

    def deadline_error(self) -> PlanError:
        """The error of a missed deadline: it names the node that has run longest, or the first that did not start."""
        if self._error is not None:
            return self._error
        if not self._left:
            output = self._compiled.steps[self._compiled.outputs[0]].node_id
            return RequestDeadlineExceeded("the request's deadline passed while the response was built", node=output)
        run = next(self._unfinished(), None)
        return not_started(self._schedule.roots[0]) if run is None else _ran_too_long(run.step)

    def coverage(self) -> Coverage:
        """The nodes that were degraded, and those that have not finished."""
        unfinished: list[str] = []
        for unit in self._schedule.units:
            if self.results[unit.steps[-1].position] is None:
                run = self._runs.get(unit)
                unfinished.extend(step.node_id for step in unit.steps[0 if run is None else run.current :])
        return Coverage(degraded=tuple(self._degraded), unfinished=tuple(unfinished))

    def abort(self, error: PlanError) -> None:
        """End the request now with that error, unless it has one already."""
        if self._error is None:
            self._error = error
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel(reason=str(error))

    async def _walk(self, first: Unit) -> None:
        """Run a unit, then one that it makes ready; the others that become ready get their own tasks."""
        unit: Unit | None = first
        while unit is not None:
            now = self._clock()
            if now >= self._shared.deadline:
                return self.abort(not_started(unit))
            try:
                self.results[unit.steps[-1].position] = await self._run(unit, now)
            except PlanError as error:
                return self.abort(error)
            self._left -= 1
            successors, unit = unit.successors, None
            for index in successors:
                self._waiting[index] -= 1
                if self._waiting[index]:
                    continue
                if unit is None:
                    unit = self._schedule.units[index]
                elif self._nursery is not None:
                    self._nursery.start_soon(self._walk, self._schedule.units[index])
        return None

    async def _run(self, unit: Unit, now: float) -> RowSet:
        """Run an async node on the loop, and CPU nodes there too if that is faster than a hop to a thread."""
        known = {position: self.results[position] for position in unit.outside}
        run = self._runs[unit] = UnitRun(unit, known, self._shared, now, "loop" if unit.is_async else "inline")
        try:
            if unit.is_async:
                return await run.run_async()
            # A node timeout of zero runs nothing, which needs no thread.
            if unit.always_inline or self._shared.node_timeout <= 0 or unit.cost.of(run.size()) < self._hop:
                return run.run()
            run.where = "thread"
            # Only a unit of one node has a finite timeout: see `CompiledPlan.schedule`.
            with trio.CancelScope(deadline=now + self._shared.node_timeout):
                try:
                    return await self._pool.run(run.run, current_claim.get())
                except Overloaded as error:
                    raise Overloaded(error.message, node=run.step.node_id) from None
                finally:
                    run.abandoned = True
            # The thread still writes to the other one.
            run = self._runs[unit] = UnitRun(unit, known, self._shared, now, "thread")
            return run.time_out()
        finally:
            self.late += run.late
            self._degraded += run.degraded
            self._traces += run.traces

    def trace(self, began: float, ended: float) -> Trace:
        """The trace of a request that left the queue at `began`."""
        steps, ends = self._compiled.steps, {each.node: each.end_ms for each in self._traces}
        path: list[str] = []
        candidates = self._compiled.outputs
        # A node starts when the last of its inputs is done.
        while done := [steps[position] for position in candidates if steps[position].node_id in ends]:
            last = max(done, key=lambda step: ends[step.node_id])
            path.append(last.node_id)
            candidates = last.upstream
        return Trace(
            total_ms=(ended - self._shared.arrival) * 1000,
            queued_ms=(began - self._shared.arrival) * 1000,
            nodes=tuple(self._traces),
            reads=tuple(self._shared.reads),
            critical_path=tuple(reversed(path)),
        )


@attrs.define(eq=False)
class UnitRun:
    """One run of the steps of a unit, one after the other, on the loop or in a thread.

    All fields are written by the thread that runs the steps, except `abandoned` and `where`, and read by the task that
    waits.
    """

    unit: Unit
    _known: Mapping[int, Any]  # the results of other units that the steps need, by position
    _shared: RequestContext
    _since: float  # when the current step became ready
    where: str  # loop, inline or thread
    current: int = 0  # the current step
    _rows: RowSet = NO_ROWS  # of the last step done
    traces: list[NodeTrace] = attrs.field(factory=list)  # of each step done, if the request is traced
    degraded: list[Degraded] = attrs.field(factory=list)
    late: int = 0  # results after their timeout, which were ignored
    abandoned: bool = False  # set by the task that waits when it is cancelled

    @property
    def step(self) -> Step:
        """The current step; after the end, the last."""
        return self.unit.steps[min(self.current, len(self.unit.steps) - 1)]

    def size(self) -> int:
        """The number of rows that it reads."""
        return sum(map(len, self._known.values()))

    async def run_async(self) -> RowSet:
        """Run the only step of a unit that waits; it is cancelled at its timeout."""
        step, rows, failure = self.unit.steps[0], None, None
        inputs, ctx = self._prepared(step)
        run = step.op.run_async
        assert run is not None
        try:
            if self._since >= ctx.deadline:
                pass  # a timeout of zero runs nothing
            elif ctx.deadline < self._shared.deadline:
                with trio.CancelScope(deadline=ctx.deadline):
                    rows = await run(inputs, step.params, ctx)
            else:
                rows = await run(inputs, step.params, ctx)
        except Exception as error:  # noqa: BLE001  whatever an op raises fails its node
            failure = failure_of(step.node_id, error)
        return self._finish(step, inputs, ctx, rows, failure)

    def run(self) -> RowSet:
        """Run the steps and return the rows of the last; raises a PlanError that names its node."""
        while self.current < len(self.unit.steps) and not self.abandoned:
            step, rows, failure = self.step, None, None
            inputs, ctx = self._prepared(step)
            try:
                if self._since < ctx.deadline:
                    assert step.op.run is not None
                    rows = step.op.run(inputs, step.params, ctx)
            except Exception as error:  # noqa: BLE001  as above
                failure = failure_of(step.node_id, error)
            self._finish(step, inputs, ctx, rows, failure)
        return self._rows

    def time_out(self) -> RowSet:
        """The fallback rows of the only step, whose thread was abandoned; raises if its policy does not permit them."""
        step = self.unit.steps[0]
        failure = timed_out(step, self._shared.clock(), self._shared)
        return self._finish(step, *self._prepared(step), None, failure)

    def _prepared(self, step: Step) -> tuple[tuple[RowSet, ...], OpContext]:
        known, shared = self._known, self._shared
        # An input that is not of another unit is the result of the step before.
        inputs = tuple([known.get(position, self._rows) for position in step.inputs])
        refs = {name: known.get(position, self._rows) for name, position in step.refs} if step.refs else _NO_REFS
        ends = self._since + shared.node_timeout
        return inputs, OpContext(shared, step.node_id, ends if ends < shared.deadline else shared.deadline, refs)

    def _finish(
        self,
        step: Step,
        inputs: tuple[RowSet, ...],
        ctx: OpContext,
        rows: RowSet | None,
        failure: PlanError | None,
    ) -> RowSet:
        """End a step: return its rows, or those that its policy permits; raises its failure if there are none."""
        now, shared = self._shared.clock(), self._shared
        if failure is None and now >= ctx.deadline:
            self.late += rows is not None
            failure = timed_out(step, now, shared)
        elif failure is None and not step.is_core:
            try:
                check_output(step, inputs, rows)
            except (TypeError, ValueError) as error:
                failure = failure_of(step.node_id, error)
        if failure is not None:
            rows = fallback_rows(step, failure, ctx, inputs, in_time=now < shared.deadline)
            self.degraded.append(
                Degraded(node=step.node_id, policy=step.policy, code=failure.code, message=failure.message)
            )
        assert rows is not None
        if shared.traced:
            trace = NodeTrace(
                node=step.node_id,
                op=step.op.name,
                label=step.params.get("trace"),
                where=self.where,
                segment=self.unit.steps[0].position,
                start_ms=(self._since - shared.arrival) * 1000,
                end_ms=(now - shared.arrival) * 1000,
                rows_in=len(inputs[0]) if inputs else 0,
                rows_out=len(rows),
            )
            self.traces.append(trace)
        self._rows = rows
        self._since = now
        self.current += 1
        return rows


def not_started(unit: Unit) -> RequestDeadlineExceeded:
    """The error of a request whose deadline passed before this unit could start."""
    return RequestDeadlineExceeded("the request's deadline passed before it started", node=unit.steps[0].node_id)


def _ran_too_long(step: Step) -> RequestDeadlineExceeded:
    return RequestDeadlineExceeded("the request's deadline passed while it ran", node=step.node_id)


def timed_out(step: Step, now: float, shared: RequestContext) -> PlanError:
    """The error of a node that was not done in time: of whichever of its two limits was exceeded."""
    if now >= shared.deadline:
        return _ran_too_long(step)
    return NodeTimeout(f"it took longer than {shared.node_timeout * 1000:g} ms (node timeout)", node=step.node_id)


def failure_of(node_id: str, error: Exception) -> PlanError:
    """Turn an exception of an op into the error of its node."""
    # An op may read several things at once in a nursery of its own, which raises a group.
    others = error.split(EndpointUnavailable)[1] if isinstance(error, ExceptionGroup) else error
    unavailable = others is None or isinstance(others, EndpointUnavailable)
    failure = (EndpointUnavailable if unavailable else NodeFailed)(_message(error), node=node_id)
    failure.__cause__ = error
    return failure


def _message(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):  # of the op's nursery, whose own message is empty
        return "; ".join(map(_message, error.exceptions))
    text = str(error)
    if isinstance(error, PlanError):
        return text
    if looks_like_asyncio(error):
        return f"its code is written for asyncio: declare the op with runtime='asyncio' ({text})"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def fallback_rows(
    step: Step, failure: PlanError, ctx: OpContext, inputs: tuple[RowSet, ...], *, in_time: bool
) -> RowSet:
    """The rows of a degraded node, with the columns that it would have written; raises if its policy permits none."""
    degradable = isinstance(failure, NodeFailed | NodeTimeout | EndpointUnavailable)
    if not (degradable and step.policy != "fail" and in_time):
        raise failure
    new = step.op.gives is Rows.NEW
    try:
        if new and step.policy == "default" and step.op.fallback is not None:
            return step.op.fallback(inputs, step.params, ctx)
        rows = inputs[0] if inputs and not new else NO_ROWS
        if step.policy == "empty":
            rows = rows.head(0)
        if step.op.gives is Rows.APPENDED:
            rows = concat([rows, *(one.head(0) for one in (*inputs[1:], *ctx.refs.values()))], ctx.keys)
        for key_id in sorted((step.writes - {ID}) & ctx.keys.keys()):
            rows = rows.with_column(key_id, unwritten_column(ctx.keys[key_id], len(rows)))
    except Exception as error:
        raise failure_of(step.node_id, error) from error
    return rows


_CONTRACTS: Final[Mapping[Rows, Callable[[RowSet, RowSet], bool]]] = {
    Rows.SAME: lambda rows, first: np.array_equal(rows.ids(), first.ids()),
    Rows.PREFIX: lambda rows, first: np.array_equal(rows.ids(), first.ids()[: len(rows)]),
    Rows.SUBSET: lambda rows, first: len(rows) <= len(first),
    Rows.REORDERED: lambda rows, first: len(rows) == len(first),
    Rows.APPENDED: lambda rows, first: len(rows) >= len(first),
}


def check_output(step: Step, inputs: tuple[RowSet, ...], rows: Any) -> None:
    """Raise if a user-defined op violates its output contract."""
    op = step.op
    if not isinstance(rows, RowSet):
        raise TypeError(f"op {op.name!r} returned {type(rows).__name__}, not a RowSet")
    if len(rows.columns) > 1 and (
        extra := set(rows.columns).difference(step.writes, {ID}, *(one.columns for one in inputs))
    ):
        raise ValueError(f"op {op.name!r} wrote the keys {sorted(extra)}, which it does not declare")
    contract = _CONTRACTS.get(op.gives)
    if inputs and contract is not None and not contract(rows, inputs[0]):
        found = f"returned {len(rows)} of {len(inputs[0])}"
        raise ValueError(f"op {op.name!r} declares {op.gives.value!r} rows, but {found}")
