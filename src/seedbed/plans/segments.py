"""Running the nodes of a segment one after the other, on the loop or in a thread.

What runs here reads and writes nothing but its own `SegmentRun`, so a thread that was given up can go on with it and
disturbs nobody. The task that waits for the thread sees in it which node the thread is at, since when.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import EndpointUnavailable, NodeFailed, NodeTimeout, PlanError, RequestDeadlineExceeded
from ..runtime.async_functions import looks_like_asyncio
from .context import OpContext
from .ops import sort_and_take
from .opspec import Rows
from .rowset import ID, NO_ROWS, RowSet, concat, unwritten_column

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .compile import Step, Unit
    from .context import RequestContext


class SegmentRun:
    """One run of a unit's steps."""

    __slots__ = (
        "_clock",
        "_deadline",
        "_known",
        "_node_timeout",
        "_shared",
        "abandoned",
        "degraded",
        "late",
        "outputs",
        "overran",
        "place",
        "since",
        "size",
        "times",
        "unit",
    )

    def __init__(
        self,
        unit: Unit,
        known: Mapping[int, RowSet],
        shared: RequestContext,
        *,
        clock: Callable[[], float],
        deadline: float,
        node_timeout: float,
    ) -> None:
        self.unit = unit
        # The results that the steps need from outside, by position.
        self._known = known
        self.size = sum(map(len, known.values()))
        self._shared = shared
        self._clock = clock
        self._deadline = deadline
        self._node_timeout = node_timeout
        # All below: written by whoever runs the steps, read by the task that waits.
        self.place = 0  # the step that runs now
        self.since = clock()  # when it became ready
        self.outputs: list[RowSet] = []  # of each step done
        self.times: list[tuple[float, float, int, int]] = []  # of each step done: start, end, rows in, rows out
        self.degraded: list[tuple[Step, PlanError]] = []
        self.late = 0  # results that came after their time and were dropped
        # Below: written by the task that waits.
        self.abandoned = False  # nobody waits any more
        self.overran: int | None = None  # the step that was found to have taken too long

    @property
    def ends(self) -> float:
        """When the time of the step that runs now is over, its request's deadline left aside."""
        return self.since + self._node_timeout

    def run(self) -> RowSet:
        """Run the steps from `place` on and give the rows of the last; raises a PlanError that names its node."""
        steps, pairs = self.unit.steps, self.unit.pairs
        taken: RowSet | None = None  # what sort and take gave together, when the take is next
        while self.place < len(steps) and not self.abandoned:
            step = steps[self.place]
            inputs, ctx = self.prepared(step)
            before = len(inputs[0]) if inputs else 0
            failure: PlanError | None = None
            try:
                if self.since >= ctx.deadline:
                    failure = self.too_late(step, self.since)  # there is no time at all
                    rows, count = NO_ROWS, 0
                elif taken is not None:
                    before = self.times[-1][3]  # as many as the sort would have given
                    rows, count = taken, len(taken)
                    taken = None
                elif self.place in pairs:
                    rows = taken = sort_and_take(inputs, step.params, steps[self.place + 1].params, ctx)
                    count = before
                else:
                    rows = call(step, inputs, ctx)
                    count = len(rows)
            except Exception as error:  # noqa: BLE001  whatever an op raises fails its node
                failure = failure_of(step.node_id, error)
                now = self._clock()
            else:
                now = self._clock()
                if now >= ctx.deadline and failure is None:
                    self.late += 1
                    failure = self.too_late(step, now)
            if failure is not None:
                rows = self._stand_in(step, inputs, ctx, failure, now)
                taken = None
                count = len(rows)
            self.advance(rows, now, before, count)
        return self.outputs[-1] if self.outputs else NO_ROWS

    def prepared(self, step: Step) -> tuple[tuple[RowSet, ...], OpContext]:
        """The inputs of a step, and its context."""
        inputs = tuple([self._rows_of(position) for position in step.inputs])
        refs = {name: self._rows_of(position) for name, position in step.refs}
        return inputs, OpContext(self._shared, step.node_id, min(self._deadline, self.ends), refs)

    def too_late(self, step: Step, now: float) -> PlanError:
        """The error of a step whose time was over at that instant."""
        return overdue(step.node_id, now, self._deadline, self._node_timeout)

    def advance(self, rows: RowSet, now: float, before: int, count: int) -> None:
        """The step at `place` is done."""
        self.outputs.append(rows)
        self.times.append((self.since, now, before, count))
        # The waiting task must never see the next step with the time of this one: it would time out too early.
        self.since = now
        self.place += 1

    @property
    def done(self) -> bool:
        """Whether all steps are done, though perhaps nobody has seen it yet."""
        return self.place == len(self.unit.steps)

    def overdue(self, now: float) -> bool:
        """Whether the step that runs now has taken too long; remembers which one it was."""
        place = self.place
        # In this order: a step that begins in between has all its time before it.
        if now < self.ends or place == len(self.unit.steps):
            return False
        self.overran = place
        return True

    def resumed(self, place: int, failure: PlanError) -> SegmentRun:
        """A run that goes on behind the step at `place`, with what stands in for it; this one keeps its thread."""
        fresh = SegmentRun(
            self.unit,
            self._known,
            self._shared,
            clock=self._clock,
            deadline=self._deadline,
            node_timeout=self._node_timeout,
        )
        step = self.unit.steps[place]
        fresh.since = self._clock() if place == 0 else self.times[place - 1][1]
        fresh.place = place
        fresh.outputs, fresh.times = self.outputs[:place], self.times[:place]
        # The thread may be further than that by now, and what it made of later steps is forgotten with it.
        before = self.unit.steps[:place]
        fresh.degraded = [one for one in self.degraded if one[0] in before] + [(step, failure)]
        inputs, ctx = fresh.prepared(step)
        rows = stand_in(step, inputs, ctx)
        fresh.advance(rows, self._clock(), len(inputs[0]) if inputs else 0, len(rows))
        return fresh

    def _rows_of(self, position: int) -> RowSet:
        found = self._known.get(position)
        if found is not None:
            return found
        return self.outputs[-1]  # what is not from outside is from the step before

    def _stand_in(
        self, step: Step, inputs: tuple[RowSet, ...], ctx: OpContext, failure: PlanError, now: float
    ) -> RowSet:
        if not may_degrade(step, failure) or now >= self._deadline:
            raise failure
        self.degraded.append((step, failure))
        return stand_in(step, inputs, ctx)


def call(step: Step, inputs: tuple[RowSet, ...], ctx: OpContext) -> RowSet:
    """Run a sync op."""
    run = step.op.run
    assert run is not None
    rows = run(inputs, step.params, ctx)
    if not step.is_core:
        check_output(step, inputs, rows)
    return rows


def overdue(node_id: str, now: float, deadline: float, node_timeout: float) -> PlanError:
    """The error of a node that was not done in time: whichever of its two limits was passed."""
    if now >= deadline:
        return RequestDeadlineExceeded("the request's deadline passed while it ran", node=node_id)
    return NodeTimeout(f"it took longer than {node_timeout * 1000:g} ms (node timeout)", node=node_id)


def failure_of(node_id: str, error: Exception) -> PlanError:
    """What an op raised, as the error of its node; one that names a node is of another plan, which the op has run."""
    # An op may ask several things at once in a nursery of its own, which raises a group.
    others = error.split(EndpointUnavailable)[1] if isinstance(error, ExceptionGroup) else error
    unavailable = others is None or isinstance(others, EndpointUnavailable)
    failure = (EndpointUnavailable if unavailable else NodeFailed)(_told(error), node=node_id)
    failure.__cause__ = error
    return failure


def _told(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):  # of a nursery of the op's own, which says nothing by itself
        return "; ".join(map(_told, error.exceptions))
    text = str(error)
    if isinstance(error, PlanError):
        return text
    if looks_like_asyncio(error):
        return f"its code is written for asyncio: say runtime='asyncio' of the op ({text})"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def may_degrade(step: Step, failure: PlanError) -> bool:
    """Whether the node's policy lets the request go on."""
    return step.may_degrade and isinstance(failure, NodeFailed | NodeTimeout | EndpointUnavailable)


def stand_in(step: Step, inputs: tuple[RowSet, ...], ctx: OpContext) -> RowSet:
    """The rows that a node is said to have given although it failed, with the columns that it would have given."""
    new = step.op.gives is Rows.NEW
    try:
        if new and step.policy == "default" and step.op.fallback is not None:
            return step.op.fallback(inputs, step.params, ctx)
        rows = inputs[0] if inputs and not new else NO_ROWS
        if step.policy == "empty":
            rows = rows.none()
        if step.op.gives is Rows.APPENDED:
            rows = concat([rows, *(one.none() for one in (*inputs[1:], *ctx.refs.values()))], ctx.keys)
        for key_id in sorted((step.writes - {ID}) & ctx.keys.keys()):
            column = unwritten_column(ctx.keys[key_id], len(rows))
            rows = rows.with_column(key_id, column.values, column.nulls)
    except Exception as error:
        raise failure_of(step.node_id, error) from error
    return rows


def check_output(step: Step, inputs: tuple[RowSet, ...], rows: Any) -> None:
    """See whether an op that is not ours kept what it declares."""
    op = step.op
    if not isinstance(rows, RowSet):
        raise TypeError(f"op {op.name!r} gave {type(rows).__name__}, not a RowSet")
    if not step.may_have.issuperset(rows.columns) and (
        extra := set(rows.columns).difference(step.may_have, *(one.columns for one in inputs))
    ):
        raise ValueError(f"op {op.name!r} wrote the keys {sorted(extra)}, which it does not declare")
    if not inputs or op.gives is Rows.NEW:
        return
    first = inputs[0]
    if op.gives is Rows.SAME:
        fits = np.array_equal(rows.ids(), first.ids())
    elif op.gives is Rows.PREFIX:
        fits = np.array_equal(rows.ids(), first.ids()[: len(rows)])
    elif op.gives is Rows.SUBSET:
        fits = len(rows) <= len(first)
    else:
        fits = len(rows) == len(first) if op.gives is Rows.REORDERED else len(rows) >= len(first)
    if not fits:
        raise ValueError(f"op {op.name!r} declares {op.gives.value!r} rows, but gave {len(rows)} of {len(first)}")
