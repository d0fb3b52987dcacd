"""One row group: the only reader of its outcomes and the only writer of its frontier and buffer."""

from __future__ import annotations

import contextlib
import math
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from ..errors import CellError, ProcessorFailed
from ..graph import GROUP, Frontier
from ..observe import events
from ..store.entries import Failed, Fate, Finished, GeneratorCall, Key, Purpose
from .fill import error_text
from .replay import collector_paused, replay
from .retry import kept_entries
from .rows import Rows
from .salvage import Salvage
from .stateful import Gate, is_called_again
from .tasks import Cell, Outcome, State, Status, TaskKind, locate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..store.entries import Entry
    from ..store.records import Drop
    from .identity import Identity
    from .plan import Step
    from .retry import RetriedRows
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

    def __init__(
        self, run: Run, index: int, place: int, nursery: trio.Nursery, retry: RetriedRows | None = None
    ) -> None:
        """All rows of a row group or, with `retry`, those that an earlier run dropped."""
        plan = run.plan
        self.run = run
        self.index = index
        self.nursery = nursery
        self.retry = retry
        self.rows = Rows(plan, plan.group_rows(index), None if retry is None else list(retry.identities))
        # What is tried again has passed the pre-batch processors.
        barrier = bool(plan.pre_batch) and retry is None
        self.frontier = Frontier(plan.graph, self.rows.buffer.rows, barrier=barrier)
        self.recorder = run.recorder if plan.config.durability == "cell" else None
        self.journal_key = (
            Key(group=index) if retry is None else Key(group=index, revision=retry.revision, purpose=Purpose.RETRY)
        )
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
        # Which rows of the dataset the dropped ones are; processors change what the others are called.
        self._dropped_as: dict[int, Identity] = {}
        # Calls of stateful generators, in order: the step, its row, and the rows that a whole column was made for.
        self._calls: list[tuple[Step, int, Sequence[int]]] = []
        # While earlier outcomes are taken in again nothing is dispatched.
        self._restoring = False

    # What others call.

    def deliver(self, outcome: Outcome[RowGroup]) -> None:
        """A task of this group is over; called by that task."""
        try:
            self._send.send_nowait(outcome)
        except trio.ClosedResourceError:
            # The group was cancelled, and closed, in the instant in which the task ended.
            self._came_after_the_end(outcome)

    def wake(self) -> None:
        """Look again whether there is anything left to wait for."""
        self._send.send_nowait(None)

    def live_rows(self) -> list[int]:
        """The rows that are not dropped, in order."""
        return self.frontier.live_rows()

    def missing_rows(self, step: Step) -> list[int]:
        """The rows that a whole column is still to be made for: not those that an earlier run made it for."""
        return self.frontier.live_rows() if self.retry is None else self.frontier.missing_rows(step.node)

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
        # Tasks that ended and whose outcome nobody took in when the group was cancelled: they are paid for.
        with contextlib.suppress(trio.WouldBlock):
            while True:
                outcome = self._receive.receive_nowait()
                if outcome is not None:
                    self._came_after_the_end(outcome)
        self._send.close()
        self._receive.close()

    def _came_after_the_end(self, outcome: Outcome[RowGroup]) -> None:
        """Nothing is done with an outcome any more but to keep it for the next run."""
        if outcome.usage is not None and outcome.usage.calls:
            self.run.ledger.spend(outcome.cell.step.name, outcome.usage.take())
        step = outcome.cell.step
        if outcome.status is Status.SUCCESS and step.node >= 0:
            self._record_success(outcome, None if step.key is None else cost_of(outcome))

    # Where an earlier run left off.

    def begin(self, entries: Iterable[Entry] = ()) -> list[tuple[Step, int]]:
        """Find what is ready, after taking in what earlier runs have recorded.

        Returns the tasks of stateful generators among that which have to be made once more, for their state alone.
        """
        self._restoring = True
        self.make_ready(self.frontier.begin())
        with collector_paused():
            replayed = replay(self, entries)
        self._restoring = False
        self._ready = [cell for cell in self._ready if cell.state is State.NEW]
        self.run.restored(self.index, replayed.cells)
        return [(step, row) for step, row, _ in self._calls if self.run.must_replay(step)]

    def note_call(self, step: Step, row: int, value: Any = None) -> None:
        """A stateful generator was called, now or in an earlier run; `value` is what came of it, if anything did."""
        rows = [row] if row != GROUP else self.missing_rows(step) if value is None else value[0]
        self._calls.append((step, row, rows))

    def call_entries(self) -> list[Entry]:
        """What stateful generators were called with, where the part will not show it."""
        if not self.run.plan.post_batch and not self._dropped_as:
            return []
        return [
            GeneratorCall(column=step.name, rows=len(rows), inputs=inputs)
            for step, _, rows in self._calls
            if is_called_again(step)
            for inputs in [self.rows.buffer.take(step.inputs, rows)]
        ]

    def find(self, column: str, row: int) -> Cell[RowGroup] | None:
        """The task of this column and row that is ready or was tried before."""
        for cell in self._alive.get(row, ()):
            if cell.step.name == column:
                return cell
        return None

    def kept_entries(self, order: Sequence[Identity]) -> list[Entry]:
        """What is finished of the rows that were dropped, for a run that tries them again.

        `order` names the rows that the part will hold.
        """
        return kept_entries(self.run.plan, self.rows, self._dropped_as, self.frontier.is_done, order)

    # The trio side.

    async def drive(self) -> bool:
        """Work until every cell is done or dropped; False if the run stopped before that."""
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
            run.ledger.spend(step.name, usage.take())
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
        step = cell.step
        if step.node < 0:
            self._over(cell)
            self._processed(outcome)
            return
        run.record(outcome, self.salvage.window, error=False)
        if step.key is None:
            run.note_latency(step, outcome.seconds)
        cost = None if step.key is None else cost_of(outcome)
        if self.recorder is not None:
            self._record_success(outcome, cost)
        if cell.row != GROUP and self.frontier.dropped[cell.row]:
            self._waste(outcome)
        self.take(cell, outcome.value, cost)

    def take(self, cell: Cell[RowGroup], value: Any, cost: tuple[int, int, float] | None) -> None:
        """A task is finished, now or in an earlier run: write its values and go on with what that makes ready."""
        step, row = cell.step, cell.row
        self._over(cell)
        if row == GROUP:
            ready = self._write_group(cell, *value)
            ready += self.frontier.complete_group(step.node)
        else:
            self.write_cell(step, row, value)
            if self.frontier.dropped[row]:
                ready = []
            else:
                if cost is not None:
                    self._paid.setdefault(row, []).append((step.name, *cost))
                ready = self.frontier.complete_cell(step.node, row)
        if step.node in self._gates:
            self._gates[step.node].settle(step.node, row)
        if ready:
            self.make_ready(ready)

    def write_cell(self, step: Step, row: int, value: Any) -> None:
        """Write what a cell function gave. The cell of a dropped row is kept for the case that it is tried again."""
        update_cell = self.rows.buffer.update_cell
        if len(step.outputs) == 1:
            update_cell(row, step.outputs[0], value)
        else:
            for name, each in zip(step.outputs, value, strict=True):
                update_cell(row, name, each)
        if self.frontier.dropped[row]:
            self.frontier.note_done(step.node, row)

    def take_rows(self, step: Step, rows: Sequence[int], columns: Sequence[Sequence[Any]]) -> None:
        """An earlier run has made a whole column for some of the rows that are tried again."""
        for name, values in zip(step.outputs, columns, strict=True):
            for row, value in zip(rows, values, strict=True):
                self.rows.buffer.update_cell(row, name, value)
        self.make_ready(self.frontier.complete_rows(step.node, rows))

    def take_rebuilt(self, columns: dict[str, list[Any]], identities: list[Identity], drops: list[Drop]) -> None:
        """Pre-batch processors left these rows in an earlier run."""
        for cell in list(self._alive.get(GROUP, ())):
            self._over(cell)
        before, after = self.frontier.rows, self.rows.take_over(columns, identities, drops)
        self._go_on_with(before, after)

    def _record_success(self, outcome: Outcome[RowGroup], cost: tuple[int, int, float] | None) -> None:
        cell = outcome.cell
        step = cell.step
        if step.instance is not None:
            self.run.keep_state(step)
            self.note_call(step, cell.row, outcome.value)
        self.record(
            Finished(
                column=step.name,
                row=cell.row,
                attempt=cell.attempt,
                salvage_round=cell.salvage_round,
                value=outcome.value,
                cost=cost,
            )
        )

    def record(self, entry: Entry) -> None:
        """Have the journal keep something of a task that is under way."""
        if self.recorder is not None:
            self.recorder.add(self.journal_key, entry)

    def _record_failure(self, cell: Cell[RowGroup], error: str, fate: str) -> None:
        if self.recorder is None:
            return
        if cell.step.instance is not None:
            self.run.keep_state(cell.step)
            self.note_call(cell.step, cell.row)
        self.record(
            Failed(
                column=cell.step.name,
                row=cell.row,
                attempt=cell.attempt,
                salvage_round=cell.salvage_round,
                error=error,
                fate=fate,
            )
        )

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
        cell = outcome.cell
        if self.gave_up(cell):
            self._came_late(cell)
            return
        assert outcome.error is not None
        error = error_text(outcome.error)
        deferred = outcome.status is Status.RETRYABLE and self.defer(cell, outcome.finished)
        again = Fate.RETRIED_WITH_ANSWERS if outcome.goes_on else Fate.RETRIED
        self._record_failure(cell, error, again if deferred else Fate.DROPPED)
        if not deferred:
            self.give_up(cell, error)

    def defer(self, cell: Cell[RowGroup], now: float) -> bool:
        """Keep a failed task for the next salvage round, if it may be tried again."""
        eligible_at = self.salvage.defer(cell, now, self.run.mean_latency(cell.step))
        if eligible_at is None:
            return False
        cell.state = State.DEFERRED
        if self.run.events.active:
            self.run.emit_task(events.TaskDeferred, cell, eligible_at=eligible_at)
        return True

    def give_up(self, cell: Cell[RowGroup], error: str) -> None:
        """A task failed for good: drop its row, or every row if it was for the whole group."""
        self._over(cell)
        rows, ready = self.frontier.fail(cell.row)
        for row in rows:
            self._drop(row, cell, error)
        if cell.step.node in self._gates:
            self._gates[cell.step.node].settle(cell.step.node, cell.row)
        for gate in self._gate_list:
            gate.advance()
        if not self.frontier.live:
            # Nobody is left who could use the result of a task for the whole group.
            self._end_cells(GROUP, "every row of the group was dropped")
        self.make_ready(ready)

    def _drop(self, row: int, failed: Cell[RowGroup], error: str) -> None:
        """Record a dropped row and end everything that is still under way for it."""
        drop = self.rows.drop(row, failed.step, failed.attempt, error)
        self._dropped_as[row] = (drop.row, drop.copy)
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
                if not self._restoring:
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

    def make_ready(self, ready: Sequence[tuple[int, int]]) -> None:
        for node, row in ready:
            step = self.run.plan.steps[node]
            if row == GROUP and self.retry is not None and not self.frontier.missing_rows(node):
                continue
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
        self.make_ready(ready)
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
        if self._ready and not self._restoring:
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
        self.record(self.rows.rebuilt_as())
        self._go_on_with(before, after)

    def _go_on_with(self, before: int, after: int) -> None:
        self._dropped_as.clear()
        ready = self.frontier.rebuild(after)
        self.run.emit_rebuilt(self.index, before, after)
        for gate in self._gate_list:
            gate.advance()
        self.make_ready(ready)

    def _processor_failed(self, outcome: Outcome[RowGroup]) -> None:
        step, error = outcome.cell.step, outcome.error
        assert error is not None
        if step.kind is TaskKind.POST_BATCH:
            raise processor_failed(step, self.index, error) from error
        self._processors = []
        self.rows.skip(f"{step.name}: {error_text(error)}")
        self.run.emit_skipped(self.index, self.rows.skipped or step.name)
