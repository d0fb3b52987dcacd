"""One row group: the only reader of its outcomes and the only writer of its frontier and buffer."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from ..errors import CellError, ProcessorFailed
from ..graph import GROUP, Frontier
from ..observe import events
from .fill import error_text
from .rows import Rows
from .salvage import Salvage
from .stateful import Gate
from .tasks import Cell, Outcome, State, Status, TaskKind, locate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .plan import Step
    from .run import Run
    from .tasks import Group


def processor_failed(step: Step, row_group: int, error: BaseException) -> ProcessorFailed:
    """The error that stops a run whose post-batch processor raised."""
    return ProcessorFailed(f"post-batch processor {step.name!r} failed (row_group={row_group}): {error_text(error)}")


def cost_of(outcome: Outcome[Group]) -> tuple[int, int, float]:
    """Calls, tokens and seconds of one attempt; a task that reported nothing was one call."""
    usage = outcome.usage
    return (1, 0, outcome.seconds) if usage is None else (max(1, usage.calls), usage.tokens, outcome.seconds)


class RowGroup:
    """The state of a row group and what each outcome does to it. Synchronous but for `drive` and `post_process`.

    `queued` and `in_flight` are also changed by the dispatcher, which moves tasks from one to the other.
    """

    def __init__(self, run: Run, index: int, place: int, nursery: trio.Nursery) -> None:
        plan = run.plan
        self.run = run
        self.index = index
        self.nursery = nursery
        self.rows = Rows(plan, plan.group_rows(index))
        self.frontier = Frontier(plan.graph, len(self.rows.source), barrier=bool(plan.pre_batch))
        self.salvage: Salvage[RowGroup] = Salvage(plan.config, run.rng)
        self.queued = 0
        self.in_flight = 0
        # Tasks that are not over, by row, so that dropping a row finds them.
        self._alive: dict[int, list[Cell[RowGroup]]] = {}
        self._ready: list[Cell[RowGroup]] = []
        self._processors: list[Step] = []
        self._send, self._receive = trio.open_memory_channel[Outcome[RowGroup] | None](math.inf)
        self._gates: dict[int, Gate] = {}  # by node
        self._gate_list = [
            Gate(instance, place, plan.graph, self.frontier, self._release_stateful)
            for instance in run.instances.values()
        ]
        for gate, instance in zip(self._gate_list, run.instances.values(), strict=True):
            for node in instance.nodes:
                self._gates[node] = gate
        # Calls, tokens and seconds of finished cells by row, to be counted as wasted if the row is dropped after all.
        self._paid: dict[int, list[tuple[str, int, int, float]]] = {}

    # What others call.

    def deliver(self, outcome: Outcome[RowGroup]) -> None:
        """A task of this group is over; called by that task."""
        try:  # noqa: SIM105  every cell passes here, and a context manager costs
            self._send.send_nowait(outcome)
        except trio.ClosedResourceError:
            # The group was cancelled, and closed, in the instant in which the task ended.
            pass

    def wake(self) -> None:
        """Look again whether there is anything left to wait for."""
        self._send.send_nowait(None)

    def live_rows(self) -> list[int]:
        """The rows that are not dropped, in order."""
        return self.frontier.live_rows()

    def gave_up(self, cell: Cell[RowGroup]) -> bool:
        """Whether nobody wants the result of that task any more."""
        return not self.frontier.live if cell.row == GROUP else bool(self.frontier.dropped[cell.row])

    def close(self) -> None:
        """The group is over, however it ended: pass every turn and forget what is queued."""
        for gate in self._gate_list:
            gate.close()
        self.run.dispatcher.forget(self.index)
        for cell in [cell for cells in self._alive.values() for cell in cells]:
            if cell.state is State.PARKED:
                self.run.dispatcher.unpark(cell)
        self._send.close()
        self._receive.close()

    # The trio side.

    async def drive(self) -> bool:
        """Work until every cell is done or dropped; False if the run stopped before that."""
        self._make_ready(self.frontier.begin())
        self._turn_over()
        while not self._finished():
            if self.run.stopping is not None and not self.in_flight:
                return False
            # Better a crash than a run that waits for ever for something that will not come.
            assert self._alive or any(gate.waiting for gate in self._gate_list), f"row group {self.index} is stalled"
            outcome = await self._receive.receive()
            while True:
                if outcome is not None:
                    self._apply(outcome)
                try:
                    outcome = self._receive.receive_nowait()
                except trio.WouldBlock:
                    break
            self._turn_over()
        return True

    def _finished(self) -> bool:
        return self.rows.skipped is not None or (
            self.frontier.complete and not self.frontier.barrier and not self._processors and not self.in_flight
        )

    async def post_process(self) -> bool:
        """Run the post-batch processors over the finished rows; False if the run stopped before that."""
        if not self.run.plan.post_batch or not self.frontier.live or self.rows.skipped is not None:
            return True
        self._processors = list(self.run.plan.post_batch)
        self._start_processor()
        self._turn_over()
        while self._processors:
            if self.run.stopping is not None and not self.in_flight:
                return False
            outcome = await self._receive.receive()
            if outcome is not None:
                self._apply(outcome)
            self._turn_over()
        return True

    # What an outcome does.

    def _apply(self, outcome: Outcome[RowGroup]) -> None:
        try:
            self.apply(outcome)
        except Exception as error:
            locate(error, self.index, outcome.cell)
            raise

    def apply(self, outcome: Outcome[RowGroup]) -> None:
        """Take one outcome in."""
        run, cell = self.run, outcome.cell
        step, status = cell.step, outcome.status
        self.in_flight -= 1
        if run.events.active:
            run.emit_finished(outcome)
        usage = outcome.usage
        if usage is not None and usage.calls:
            run.ledger.spend(step.name, usage.by_model)
        if status is Status.REFUSED:
            self._refused(outcome)
            return
        run.ledger.attempts[step.name] += 1
        if status is Status.SUCCESS:
            self._succeeded(outcome)
        elif status is Status.CANCELLED:
            self._waste(outcome)
            self._came_late(cell)
        else:
            run.ledger.errors[step.name] += 1
            if step.node < 0:
                self._over(cell)
                self._processor_failed(outcome)
                return
            self._waste(outcome)
            run.record(outcome, self.salvage.window, error=True)
            self._failed(outcome)

    def _succeeded(self, outcome: Outcome[RowGroup]) -> None:
        run, cell = self.run, outcome.cell
        step, row = cell.step, cell.row
        self._over(cell)
        if step.node < 0:
            self._processed(outcome)
            return
        run.record(outcome, self.salvage.window, error=False)
        if step.key is None:
            run.note_latency(step, outcome.seconds)
        if row == GROUP:
            ready = self._write_group(cell, *outcome.value)
            ready += self.frontier.complete_group(step.node)
        elif self.frontier.dropped[row]:
            self._waste(outcome)
            ready = []
        else:
            update_cell = self.rows.buffer.update_cell
            if len(step.outputs) == 1:
                update_cell(row, step.outputs[0], outcome.value)
            else:
                for name, value in zip(step.outputs, outcome.value, strict=True):
                    update_cell(row, name, value)
            if step.key is not None:
                self._paid.setdefault(row, []).append((step.name, *cost_of(outcome)))
            ready = self.frontier.complete_cell(step.node, row)
        if step.node in self._gates:
            self._gates[step.node].settle(step.node, row)
        if ready:
            self._make_ready(ready)

    def _write_group(
        self, cell: Cell[RowGroup], rows: Sequence[int], columns: Sequence[Sequence[Any]]
    ) -> list[tuple[int, int]]:
        """Write what a task for the whole group made; a row whose value is an exception failed, and it alone."""
        dropped, update_cell = self.frontier.dropped, self.rows.buffer.update_cell
        ready: list[tuple[int, int]] = []
        for name, values in zip(cell.step.outputs, columns, strict=True):
            for row, value in zip(rows, values, strict=True):
                if dropped[row]:
                    continue
                if isinstance(value, CellError):
                    ready += self.frontier.drop_row(row)
                    self._drop(row, cell, error_text(value))
                else:
                    update_cell(row, name, value)
        for gate in self._gate_list if ready else ():
            gate.advance()
        return ready

    def _refused(self, outcome: Outcome[RowGroup]) -> None:
        cell = outcome.cell
        cell.refusals += 1
        if self.gave_up(cell):
            self._came_late(cell)
            return
        eligible_at = outcome.finished + outcome.retry_delay
        if self.run.events.active:
            self.run.emit_task(events.TaskRefused, cell, key=cell.step.key, eligible_at=eligible_at)
        self.run.dispatcher.park(cell, eligible_at)

    def _failed(self, outcome: Outcome[RowGroup]) -> None:
        cell, run = outcome.cell, self.run
        if self.gave_up(cell):
            self._came_late(cell)
            return
        if outcome.status is Status.RETRYABLE:
            eligible_at = self.salvage.defer(cell, outcome.finished, run.mean_latency(cell.step))
            if eligible_at is not None:
                cell.state = State.DEFERRED
                if run.events.active:
                    run.emit_task(events.TaskDeferred, cell, eligible_at=eligible_at)
                return
        self._over(cell)
        assert outcome.error is not None
        rows, ready = self.frontier.fail(cell.row)
        for row in rows:
            self._drop(row, cell, error_text(outcome.error))
        if cell.step.node in self._gates:
            self._gates[cell.step.node].settle(cell.step.node, cell.row)
        for gate in self._gate_list:
            gate.advance()
        if not self.frontier.live:
            # Nobody is left who could use the result of a task for the whole group.
            self._end_cells(GROUP, "every row of the group was dropped")
        self._make_ready(ready)

    def _drop(self, row: int, failed: Cell[RowGroup], error: str) -> None:
        """Record a dropped row and end everything that is still under way for it."""
        drop = self.rows.drop(row, failed.step, failed.attempt, error)
        for paid in self._paid.pop(row, ()):
            self.run.ledger.waste(*paid)
        self._end_cells(row, f"row {drop.row} was dropped: {drop.reason}")
        self.run.emit_drop(self.index, drop)

    def _end_cells(self, row: int, reason: str) -> None:
        """End every task of a row, or of the whole group, wherever it is on its way."""
        for cell in list(self._alive.get(row, ())):
            if cell.state is State.FLYING:
                # Without a scope it has not made its first step, and will look whether it is wanted before it does.
                if cell.scope is not None:
                    cell.scope.cancel(reason=reason)
                continue
            if cell.state is State.NEW:
                self._ready.remove(cell)
            elif cell.state is State.QUEUED:
                self.queued -= 1
            elif cell.state is State.PARKED:
                self.run.dispatcher.unpark(cell)
            elif cell.state is State.DEFERRED:
                self.salvage.forget(cell)
            self._came_late(cell)

    def _came_late(self, cell: Cell[RowGroup]) -> None:
        """A task is over whose row was dropped meanwhile; a stateful generator goes on to the next row."""
        self._over(cell)
        gate = self._gates.get(cell.step.node)
        if gate is not None:
            gate.settle(cell.step.node, cell.row)

    def _waste(self, outcome: Outcome[RowGroup]) -> None:
        self.run.ledger.waste(outcome.cell.step.name, *cost_of(outcome))

    def _over(self, cell: Cell[RowGroup]) -> None:
        cell.state = State.OVER
        alive = self._alive[cell.row]
        alive.remove(cell)
        if not alive:
            del self._alive[cell.row]

    # What becomes ready.

    def _make_ready(self, ready: Sequence[tuple[int, int]]) -> None:
        for node, row in ready:
            step = self.run.plan.steps[node]
            if row != GROUP and (step.skip is not None or step.skipped_with) and self._skip_cell(step, row):
                continue
            gate = self._gates.get(node)
            if gate is not None:
                gate.arrive(node, row)
            else:
                self._new_cell(step, row)

    def _skip_cell(self, step: Step, row: int) -> bool:
        """Complete a cell without making it, if it is to be skipped; a rule that fails costs the row."""
        if self.frontier.dropped[row]:
            return True
        try:
            if not self.rows.skips(step, row):
                return False
        except Exception as error:  # noqa: BLE001  a rule reads values that generators made; anything may happen
            rows, ready = self.frontier.fail(row)
            for each in rows:
                self._drop(each, Cell(step, self, row), f"skip_when: {error_text(error)}")
        else:
            ready = self.frontier.complete_cell(step.node, row)
        for gate in self._gate_list:
            gate.advance()
        self._make_ready(ready)
        return True

    def _release_stateful(self, node: int, row: int) -> None:
        self._new_cell(self.run.plan.steps[node], row)
        # The turn may come from another row group or from a thread that ended, when nobody turns this group over.
        self._submit_ready()

    def _new_cell(self, step: Step, row: int) -> None:
        cell = Cell(step, self, row)
        self._alive.setdefault(row, []).append(cell)
        self._ready.append(cell)

    def _submit_ready(self) -> None:
        if self._ready:
            ready, self._ready = self._ready, []
            self.run.dispatcher.submit(ready)
            self.run.dispatcher.pump()

    def _turn_over(self) -> None:
        """After a batch of outcomes: pass the barrier, queue what is ready, start a salvage round if nothing is."""
        if self.frontier.barrier and not self._processors and self.rows.skipped is None:
            if not self.frontier.live:
                self.frontier.barrier = False
            elif self.frontier.seeds_done:
                self._processors = list(self.run.plan.pre_batch)
                self._start_processor()
        self._submit_ready()
        if not self.queued and len(self.salvage) and self.run.stopping is None:
            deferred = self.salvage.start_round(self.frontier.rows)
            self.run.emit_salvage(self.index, self.salvage.rounds, len(deferred))
            for cell, eligible_at in deferred:
                self._retry(cell, eligible_at)

    def _retry(self, cell: Cell[RowGroup], eligible_at: float) -> None:
        """Queue a deferred task again, but not while a thread that was given up is still in its stateful generator."""
        if cell.state is not State.DEFERRED or self.index not in self.run.groups:
            return
        instance = self.run.instance_of(cell.step)
        if instance is not None and instance.busy:
            instance.when_free(partial(self._retry, cell, eligible_at))
        else:
            self.run.dispatcher.park(cell, eligible_at)

    # Processors.

    def _start_processor(self) -> None:
        self._new_cell(self._processors[0], GROUP)

    def _processed(self, outcome: Outcome[RowGroup]) -> None:
        step = outcome.cell.step
        before, after = outcome.value
        self.rows.processed(step, before, after, self.live_rows())
        self._processors.pop(0)
        if self._processors:
            self._start_processor()
        elif step.kind is TaskKind.PRE_BATCH:
            self._rebuild()

    def _rebuild(self) -> None:
        """Start over with the rows that the pre-batch processors left."""
        before, after = self.frontier.rows, self.rows.rebuild()
        ready = self.frontier.rebuild(after)
        self.run.emit_rebuilt(self.index, before, after)
        for gate in self._gate_list:
            gate.advance()
        self._make_ready(ready)

    def _processor_failed(self, outcome: Outcome[RowGroup]) -> None:
        step, error = outcome.cell.step, outcome.error
        assert error is not None
        if step.kind is TaskKind.POST_BATCH:
            raise processor_failed(step, self.index, error) from error
        self._processors = []
        self.rows.skip(f"{step.name}: {error_text(error)}")
        self.run.emit_skipped(self.index, self.rows.skipped or step.name)
