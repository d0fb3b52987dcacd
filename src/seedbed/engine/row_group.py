"""The state of one row group and what each outcome does to it: synchronous, without trio and without the store.

A row group does not act. What it decides is collected in `ready`, `parked` and `cancelled`, which the scheduler takes
over after each batch of events, and in `phase`.
"""

from __future__ import annotations

import enum
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import msgspec

from ..errors import CellError, ProcessorFailed
from ..graph import GROUP, Kind, Stage
from ..graph.frontier import Frontier
from ..observe import events
from ..observe.tracebacks import user_traceback
from .failures import Salvage, error_code, error_text
from .once import Once, SharedAnswer
from .stateful import Gate, Instance, always_nodes, stateful_nodes
from .tasks import NO_USAGE, Outcome, State, Status, Task

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ..graph import Graph
    from ..observe.report import Drop, Ledger, Origin, Resized, Usage
    from .budget import Budget
    from .config import RunConfig
    from .failures import UnkeyedSteps
    from .tasks import Notices, Step


class Phase(enum.Enum):
    """How far a row group is."""

    FILLING = "filling"
    POST_BATCH = "post_batch"  # every cell is done or dropped; its post-batch processors run
    COMPLETE = "complete"  # ready for its checkpoint
    CLOSING = "closing"  # the caller was asked to checkpoint or to close it


class Rows(Protocol):
    """The values of a row group. The row group decides when they change, and reads none of them."""

    skipped: str | None
    drops: list[Drop]
    resized: Resized  # per processor

    @property
    def count(self) -> int: ...
    def skips(self, step: Step, row: int) -> bool: ...
    def shared_key(self, step: Step, row: int) -> bytes: ...
    def write_cell(self, step: Step, row: int, value: Any) -> None: ...
    def write_value(self, name: str, row: int, value: Any) -> None: ...
    def accepts(self, row: int) -> bool: ...
    def reject(self, row: int) -> Drop: ...
    def drop(self, row: int, step: Step, attempts: int, error: str, code: str) -> Drop: ...
    def skip(self, reason: str) -> str: ...
    def row(self, row: int) -> tuple[int, dict[str, Any]]: ...
    def processed(self, name: str, before: Any, after: Any, came_from: Any) -> None: ...
    def rebuild(self) -> int: ...


class GroupJournal(Protocol):
    """Where a row group's outcomes are recorded, in order."""

    def finished(self, task: Task, value: Any, origin: Origin | None) -> None: ...
    def shared(self, task: Task, answer: SharedAnswer) -> None: ...
    def failed(self, task: Task, error: str, consequence: Consequence, code: str) -> None: ...
    def rebuilt(self) -> None: ...
    def forgiven(self) -> None: ...


class Consequence(enum.Enum):
    """What a failed attempt means for its task."""

    DROPPED = "dropped"
    RETRY = "retry"
    RETRY_WITH_ANSWERS = "retry_with_answers"


@attrs.frozen(kw_only=True, eq=False)
class Shared:
    """What all row groups of a stage share with the scheduler; stages have different graphs, steps and ledgers."""

    stage: str = ""

    graph: Graph
    steps: Sequence[Step]  # by node index
    pre_batch: Sequence[Step]
    post_batch: Sequence[Step]
    config: RunConfig
    budget: Budget
    ledger: Ledger
    notify: Notices
    rng: random.Random
    now: Callable[[], float]
    unkeyed: UnkeyedSteps
    late: frozenset[int] = frozenset()  # nodes of columns from scratch that pre-batch processors do not see
    accept: Sequence[int] = ()  # the nodes that decide whether a row is accepted, if that is to be decided
    touched: set[RowGroup] = attrs.field(factory=set)  # row groups that the scheduler has to look at
    instances: Mapping[int, Instance] = attrs.field(init=False)  # stateful generators, by identity
    always: frozenset[int] = attrs.field(init=False)  # nodes that run also for dropped rows
    once: Mapping[str, Once] = attrs.field(init=False)  # columns that run once per key

    @instances.default
    def _instances(self) -> Mapping[int, Instance]:
        return {identity: Instance(nodes) for identity, nodes in stateful_nodes(self.graph, self.steps).items()}

    @always.default
    def _always(self) -> frozenset[int]:
        return always_nodes(self.graph, self.steps)

    @once.default
    def _once(self) -> Mapping[str, Once]:
        return {step.name: Once() for step in self.steps if step.once_per}

    def instance_of(self, step: Step) -> Instance | None:
        """The stateful generator of a step, if it has one."""
        return None if step.instance is None else self.instances[id(step.instance)]


class RowGroup:
    """One row group. `queued` and `in_flight` are changed by the scheduler, which moves tasks from one to the other."""

    def __init__(
        self, index: int, turn: int, shared: Shared, rows: Rows, *, journal: GroupJournal | None, barrier: bool
    ) -> None:
        """`turn` is its place in the order of stateful generators; `barrier` if pre-batch processors are to run."""
        self.index = index
        self.stage = shared.stage
        self.rank = 0  # in the order of admission over all stages; set by the scheduler
        self.rows = rows
        self._shared = shared
        self._journal = journal
        self.frontier = Frontier(shared.graph, rows.count, barrier=barrier, always=shared.always, late=shared.late)
        self.salvage = Salvage(shared.config, shared.rng)
        self.phase = Phase.FILLING
        self.queued = 0
        self.in_flight = 0
        # Taken over by the scheduler.
        self.ready: deque[Task] = deque()
        self.parked: list[tuple[Task, float]] = []
        self.cancelled: list[tuple[Task, str]] = []
        # Tasks that are not done, by row, so that dropping a row finds them.
        self._alive: dict[int, list[Task]] = {}
        self._processors: list[Step] = []  # that are still to run, the first of them started
        self._gates: dict[int, Gate] = {}  # by node
        self._gate_list: list[Gate] = []
        for instance in shared.instances.values():
            gate = Gate(instance, turn, shared.graph, self.frontier, self._release_stateful)
            self._gate_list.append(gate)
            self._gates.update(dict.fromkeys(instance.nodes, gate))
        # How cells of columns that make calls were generated, by column and row.
        self.origins: dict[str, dict[int, Origin]] = {}
        # The usage of failed attempts of cells that succeeded later: it was counted as wasted when they failed.
        self._failed_before: dict[tuple[str, int], Usage] = {}
        # Of rows that this run dropped: their drops, and the cost of tasks that have no value.
        self._dropped: dict[int, Drop] = {}
        self._lost: dict[int, float] = {}
        # The same for rows that were dropped before the pre-batch processors, which numbered the others anew.
        self._costs: dict[Drop, float] = {}
        # Calls of stateful generators, in order: the step, its row, and the rows that a whole column was for.
        self.calls: list[tuple[Step, int, Sequence[int]]] = []
        self._has_failures = False  # attempts failed in this run
        # Rows of which was decided whether they are accepted, and those that are and have not failed since.
        self._judged = bytearray(rows.count)
        self._is_accepted = bytearray(rows.count)
        self.accepted = 0
        self.is_abandoned = False  # its rows are not needed
        # What the pre-batch processors removed and added, None until they have run.
        self.resized: Resized | None = None if barrier else rows.resized

    # Tasks that are ready at admission, and outcomes of earlier runs.

    def begin(self) -> None:
        """Find the tasks that are ready at admission; outcomes of earlier runs are restored after that."""
        self._make_ready(self.frontier.begin())

    def find(self, column: str, row: int) -> Task | None:
        """The task of this column and row that is ready or was tried before."""
        return next((task for task in self._alive.get(row, ()) if task.step.name == column), None)

    def restore_finished(self, step: Step, row: int, value: Any, origin: Origin | None) -> bool:
        """An earlier run finished this task; False if it is not known, because an earlier entry was lost."""
        task = self.find(step.name, row)
        if task is None:
            # A cell of a dropped row that was in flight; but not a stateful one, whose turn comes after lost entries.
            is_dropped = 0 <= row < self.frontier.rows and self.frontier.dropped[row]
            if not is_dropped or self.frontier.runs_always(step.node):
                return False
            self._write_cell(step, row, value)
            self._note_origin(step, row, origin)
        else:
            if row == GROUP and not self._covers(step, value[0]):
                return False
            self.salvage.discard(task)
            self._complete(task, value, origin)
        if step.instance is not None:
            self.note_call(step, row, value)
        return True

    def _covers(self, step: Step, generated: Sequence[int]) -> bool:
        """True if a whole column has a value for each row but skipped ones; not if the record of a drop is damaged."""
        missing = set(self.frontier.missing_rows(step.node)).difference(generated)
        return not missing or (step.has_skip_rule and all(self.rows.skips(step, row) for row in missing))

    def restore_failed(
        self,
        step: Step,
        row: int,
        *,
        attempt: int,
        salvage_round: int,
        error: str,
        consequence: Consequence,
        code: str,
        spent: Usage,
    ) -> None:
        """An earlier run failed at this task."""
        task = self.find(step.name, row)
        if task is None:
            return
        if step.instance is not None:
            self.note_call(step, row)
        self.salvage.discard(task)
        task.attempt, task.salvage_round, task.spent = attempt, salvage_round, spent
        self.salvage.rounds = max(self.salvage.rounds, salvage_round)
        if consequence is not Consequence.RETRY_WITH_ANSWERS:
            task.reject_answers()
        if consequence is Consequence.DROPPED or not self._defer(task, self._shared.now()):
            self._fail(task, error, code)

    def restore_answer(self, column: str, row: int, key: bytes, answer: Any, spent: Usage) -> None:
        """A call of this task was answered in an earlier run."""
        task = self.find(column, row)
        if task is not None:
            if spent.calls >= task.spent.calls:
                task.spent = spent
            task.answers = {**(task.answers or {}), key: answer}

    def restore_rows(
        self,
        step: Step,
        rows: Sequence[int],
        columns: Sequence[Sequence[Any]],
        origins: Sequence[Origin | None],
    ) -> None:
        """An earlier run filled a column for some of the rows that are retried."""
        frontier, is_cell = self.frontier, step.kind is Kind.CELL
        for row, origin in zip(rows, origins, strict=False):
            self._note_origin(step, row, origin)
        for name, values in zip(step.outputs, columns, strict=True):
            for row, value in zip(rows, values, strict=True):
                self.rows.write_value(name, row, value)
        for row in rows:
            if frontier.dropped[row] and not frontier.runs_always(step.node):
                frontier.note_done(step.node, row)
            if step.has_skip_rule:  # columns that depend on it may be skipped with it
                with suppress(Exception):  # the rule reads values of generators; its cell is finished in any case
                    self.rows.skips(step, row)
        if not is_cell and len(rows) == frontier.rows:
            ready = frontier.complete_group(step.node)
        else:
            ready = frontier.complete_rows(step.node, rows)
        for row in rows if is_cell else () if frontier.missing_rows(step.node) else (GROUP,):
            task = self.find(step.name, row)
            if task is not None:
                self._done(task)
                self._give_up_shared(task)
            self._settle(step.node, row)
        if step.node in self._shared.accept:
            ready += self._judge(rows)
        self._make_ready(ready)

    def restore_dropped(self, step: Step | None, row: int, drop: Drop) -> None:
        """A row that an earlier run dropped stays dropped; `step` failed, None if its column was removed since."""
        ready: Sequence[tuple[int, int]]
        if step is None or step.node < 0:
            ready = self.frontier.drop_row(row)
        else:
            _, ready = self.frontier.fail(step.node, row)
        self.rows.drops.append(drop)
        self._forget_accepted(row)
        self._cancel_dropped(row, drop)
        self._advance_gates()
        self._make_ready(ready)

    def can_restore_rebuilt(self) -> bool:
        """True if the rows that pre-batch processors returned still fit.

        Not if the call of a stateful column from scratch was lost, here or in an earlier row group: then it is called,
        and the rows are generated again, or the generator would continue without having seen them.
        """
        return self.frontier.barrier and not any(
            self.frontier.missing_rows(step.node)
            for step in self._shared.steps
            if step.kind is Kind.FROM_SCRATCH and step.instance is not None and step.node not in self._shared.late
        )

    def restore_rebuilt(self, before: int, after: int) -> None:
        """Pre-batch processors ran in an earlier run; `rows` holds what they returned."""
        for task in list(self._alive.get(GROUP, ())):
            self._done(task)
        self._continue_with(before, after)

    def note_call(self, step: Step, row: int, value: Any = None) -> None:
        """A stateful generator was called, now or in an earlier run, and returned `value`, unless it raised."""
        rows = [row] if row != GROUP else self.frontier.missing_rows(step.node) if value is None else value[0]
        self.calls.append((step, row, rows))

    # Which rows are accepted.

    @property
    def undecided(self) -> int:
        """How many rows may still be accepted."""
        return self.frontier.live - self.accepted

    def abandon(self) -> None:
        """No row of it is needed: cancel what runs and start nothing more. What it has remains in the journal."""
        if self.is_abandoned or self.phase is Phase.CLOSING:
            return
        self.is_abandoned = True
        self.close()  # before a stateful generator passes on to the next row
        for row in list(self._alive):
            self._cancel_tasks(row, "enough rows are accepted", always=True)
        self._shared.touched.add(self)

    def restore_rejected(self, row: int) -> None:
        """An earlier run rejected a row of those that are retried now."""
        self._judged[row] = 1
        ready = self.frontier.reject(row)
        self._cancel_tasks(row, "the row was not accepted")
        self._advance_gates()
        self._make_ready(ready)

    def _judge(self, rows: Iterable[int]) -> list[tuple[int, int]]:
        """Reject rows that are not accepted, of those for which that can be decided now.

        Returns tasks that became ready. A row that failed is decided too: its stateful cells depend on it.
        """
        ready: list[tuple[int, int]] = []
        frontier, has_rejected = self.frontier, False
        if frontier.barrier:
            return ready
        for row in rows:
            if self._judged[row] or not all(frontier.is_done(node, row) for node in self._shared.accept):
                continue
            self._judged[row] = 1
            was_dropped = frontier.dropped[row]
            problem: str | None = None
            code = ""
            try:
                if self.rows.accepts(row):
                    if not was_dropped:
                        self._is_accepted[row] = 1
                        self.accepted += 1
                    continue
            except Exception as error:  # noqa: BLE001  the rule reads values that generators returned
                problem, code = error_text(error), error_code(error)
            ready += frontier.reject(row)
            has_rejected = True
            if was_dropped:
                continue
            if problem is None:
                self._reject(row)
            else:
                self._drop(row, Task(self._shared.steps[self._shared.accept[0]], self.index, row), problem, code)
        if has_rejected:
            self._advance_gates()
        return ready

    def _reject(self, row: int) -> None:
        drop = self._dropped[row] = self.rows.reject(row)
        self._waste(row)
        self._cancel_tasks(row, f"row {drop.row} was not accepted")
        if not self.frontier.live:
            self._cancel_tasks(GROUP, "every row of the group was dropped")
        notify = self._shared.notify
        values = self.rows.row(row)[1] if notify.events.wants_rows else {}
        notify.emit(events.RowRejected, row_group=self.index, row=drop.row, by=drop.column, values=values)

    # Questions of the scheduler and of attempts.

    def is_wanted(self, task: Task) -> bool:
        """False if the task's row was dropped, or no row of the group is needed, so that its result is not needed."""
        if self.is_abandoned:
            return False
        if task.step.node >= 0 and self.frontier.runs_always(task.step.node):
            return True
        return self.frontier.live > 0 if task.row == GROUP else not self.frontier.dropped[task.row]

    def unfinished_tasks(self) -> list[Task]:
        """Tasks that have not had their last outcome."""
        return [task for tasks in self._alive.values() for task in tasks]

    def describe_wait(self) -> str:
        """What the row group waits for, for the error of a stalled run."""
        states = ", ".join(sorted({f"{task.step.name!r} {task.state.value}" for task in self.unfinished_tasks()}))
        gates = ", ".join(gate.describe_wait() for gate in self._gate_list if gate.waiting)
        what = "; ".join(each for each in (states, gates) if each) or "nothing"
        return f"row group {self.index} has {self.frontier.left} cells left and waits for {what}"

    def close(self) -> None:
        """The row group ends, finished or not."""
        for gate in self._gate_list:
            gate.close()

    # Outcomes.

    def apply(self, outcome: Outcome, *, stopping: bool = False) -> None:
        """Take in how an attempt ended; what fails while the run stops, maybe because of that, stays unfinished."""
        task, status = outcome.task, outcome.status
        step, ledger = task.step, self._shared.ledger
        if status is Status.RATE_LIMITED:
            self._rate_limited(outcome)
            return
        ledger.attempts[step.name] += 1
        if self.is_abandoned and step.node < 0:  # a processor whose cancellation came too late: none follows it
            self._done(task)
        elif status is Status.SUCCESS:
            self._succeeded(outcome)
        elif status is Status.CANCELLED:
            ledger.waste(step.name, *outcome.work)
            self._discard(task)
        else:
            ledger.errors[step.name] += 1
            if step.node < 0:
                self._done(task)
                self._processor_failed(outcome)
                return
            ledger.waste(step.name, *outcome.work)
            if stopping and step.instance is None and self.is_wanted(task):
                task.state = State.DEFERRED
            else:
                self._failed(outcome)

    def forgive(self) -> None:
        """The run stops because too much failed: failures so far do not count in the run that resumes this one.

        Not if a stateful generator has passed them over: its later calls depend on that.
        """
        steps = self._shared.steps
        if self._journal is None or any(step.instance and step.kind is not Kind.FROM_SCRATCH for step in steps):
            return
        if self._has_failures:
            self._journal.forgiven()

    def record(self, outcome: Outcome) -> None:
        """Journal an outcome that arrived when the run had ended: it is paid for."""
        if outcome.status is Status.SUCCESS and outcome.task.step.node >= 0:
            self._journal_success(outcome)

    def _journal_success(self, outcome: Outcome) -> Origin | None:
        task = outcome.task
        origin = outcome.origin
        if task.shared_key is not None:
            origin = None if origin is None else msgspec.structs.replace(origin, shared=True)
        elif self._journal is not None:
            if task.step.instance is not None:
                self.note_call(task.step, task.row, outcome.value)
            self._journal.finished(task, outcome.value, origin)
        return origin

    def _succeeded(self, outcome: Outcome) -> None:
        task = outcome.task
        step = task.step
        if step.node < 0:
            self._done(task)
            self._processed(outcome)
            return
        if step.key is None:
            self._shared.unkeyed.succeeded(outcome)
        origin = self._journal_success(outcome)
        if task.row != GROUP and self.frontier.dropped[task.row]:
            self._shared.ledger.waste(step.name, *outcome.work)
        self._complete(task, outcome.value, origin)
        if task.shared_key is not None:
            self._share(task, SharedAnswer(value=outcome.value, origin=origin))

    def _note_origin(self, step: Step, row: int, origin: Origin | None) -> None:
        if origin is not None:
            known = self.origins.get(step.name)
            if known is None:
                known = self.origins[step.name] = {}
            known[row] = origin

    def _complete(self, task: Task, value: Any, origin: Origin | None) -> None:
        """A task succeeded, now or in an earlier run: write its values and find the tasks that become ready."""
        step, row = task.step, task.row
        self._done(task)
        if row != GROUP:
            self._note_origin(step, row, origin)
            if task.spent is not NO_USAGE:
                self._failed_before[step.name, row] = task.spent
        elif origin is not None and value[0]:
            for each, share in zip(value[0], origin.split(len(value[0])), strict=True):
                self._note_origin(step, each, share)
        if row == GROUP:
            ready = self._write_group(task, *value)
            ready += self.frontier.complete_group(step.node)
        else:
            self._write_cell(step, row, value)
            ready = self.frontier.complete_cell(step.node, row)
        if step.node in self._shared.accept:
            ready = [*ready, *self._judge((row,) if row != GROUP else range(self.frontier.rows))]
        self._settle(step.node, row)
        if ready:
            self._make_ready(ready)
        if self._shared.notify.events.wants_rows and not self.frontier.barrier:
            self._notify_rows(range(self.frontier.rows) if row == GROUP else (row,))

    def _notify_rows(self, rows: Iterable[int]) -> None:
        """Emit those of the rows that are complete now."""
        for row in rows:
            if self.frontier.is_row_done(row):
                number, values = self.rows.row(row)
                self._shared.notify.emit(events.RowFinished, row_group=self.index, row=number, values=values)

    def _write_cell(self, step: Step, row: int, value: Any) -> None:
        """Write a cell. That of a dropped row is stored in case the row is retried."""
        self.rows.write_cell(step, row, value)
        if self.frontier.dropped[row] and not self.frontier.runs_always(step.node):
            self.frontier.note_done(step.node, row)

    def _write_group(self, task: Task, rows: Sequence[int], columns: Sequence[Sequence[Any]]) -> list[tuple[int, int]]:
        """Write the values of a whole column; a row whose value is an exception failed, and it alone."""
        frontier, node, write = self.frontier, task.step.node, self.rows.write_value
        always = frontier.runs_always(node)
        ready: list[tuple[int, int]] = []
        for name, values in zip(task.step.outputs, columns, strict=True):
            for row, value in zip(rows, values, strict=True):
                if frontier.is_dead(node, row) if always else frontier.dropped[row]:
                    continue
                if isinstance(value, CellError):
                    failed, more = frontier.fail(node, row)
                    ready += more
                    for each in failed:
                        self._drop(each, task, error_text(value), error_code(value))
                else:
                    write(name, row, value)
        if ready:
            self._advance_gates()
        return ready

    def _rate_limited(self, outcome: Outcome) -> None:
        task = outcome.task
        task.rate_limits += 1
        if not self.is_wanted(task):
            self._discard(task)
            return
        when = outcome.finished + outcome.retry_delay
        task.state = State.DEFERRED
        self._shared.notify.emit_task(events.TaskRateLimited, task, key=task.step.key, eligible_at=when)
        self.parked.append((task, when))

    def _failed(self, outcome: Outcome) -> None:
        task = outcome.task
        if not self.is_wanted(task):
            self._discard(task)
            return
        assert outcome.error is not None
        error, code = error_text(outcome.error), error_code(outcome.error)
        consequence = Consequence.DROPPED
        if outcome.status is Status.RETRYABLE and self._defer(task, outcome.finished):
            consequence = Consequence.RETRY_WITH_ANSWERS if outcome.keeps_answers else Consequence.RETRY
        self._has_failures = True
        if self._journal is not None:
            if task.step.instance is not None:
                self.note_call(task.step, task.row)
            if task.shared_key is None or consequence is not Consequence.DROPPED:  # else its answer is the failure
                self._journal.failed(task, error, consequence, code)
        if consequence is Consequence.DROPPED:
            self._shared.ledger.note_cause(f"{task.step.name}: {error}", outcome.error, user_traceback)
            self._fail(task, error, code)

    def _defer(self, task: Task, now: float) -> bool:
        """Defer a failed task to the next salvage round; False if it has no attempts left."""
        eligible_at = self.salvage.defer(task, now, self._shared.unkeyed.mean_latency(task.step))
        if eligible_at is None:
            return False
        task.state = State.DEFERRED
        self._shared.notify.emit_task(events.TaskDeferred, task, eligible_at=eligible_at)
        return True

    def _fail(self, task: Task, error: str, code: str) -> None:
        """A task failed for good: drop its row, or every row if it was for the whole group."""
        self._done(task)
        if task.shared_key is not None:
            self._share(task, SharedAnswer(error=error, code=code, attempts=task.attempt))
        rows, ready = self.frontier.fail(task.step.node, task.row)
        for row in rows:
            self._lost[row] = self._lost.get(row, 0.0) + task.spent.cost / len(rows)
            self._drop(row, task, error, code)
        self._settle(task.step.node, task.row)
        self._advance_gates()
        self._make_ready(ready)

    def _drop(self, row: int, failed: Task, error: str, code: str) -> None:
        """Record a dropped row and cancel its tasks, and with the last row those of the whole group."""
        self._forget_accepted(row)
        drop = self._dropped[row] = self.rows.drop(row, failed.step, failed.attempt, error, code)
        self._waste(row)
        self._cancel_dropped(row, drop)
        notify = self._shared.notify
        notify.emit(
            events.RowDropped,
            values=self.rows.row(row)[1] if notify.events.wants_rows else {},
            row_group=self.index,
            row=drop.row,
            column=drop.column,
            attempts=drop.attempts,
            error=drop.error,
        )

    def _waste(self, row: int) -> None:
        """Count what was generated of a row that is dropped as wasted."""
        for column, origins in self.origins.items():
            if (origin := origins.get(row)) is not None and not origin.shared:
                counted = self._failed_before.get((column, row), NO_USAGE)
                calls, tokens = max(1, origin.calls - counted.calls), origin.tokens - counted.tokens
                self._shared.ledger.waste(column, calls, tokens, origin.seconds)

    def drop_costs(self) -> Mapping[Drop, float]:
        """The cost of each row that this run dropped: of its values, and of what failed or was cancelled."""
        for row, drop in self._dropped.items():
            found = (origins.get(row) for origins in self.origins.values())
            paid = sum(origin.cost for origin in found if origin is not None and not origin.shared)
            self._costs[drop] = self._lost.get(row, 0.0) + paid
        return self._costs

    def _forget_accepted(self, row: int) -> None:
        """A row failed: it does not count, even if it was accepted."""
        self.accepted -= self._is_accepted[row]
        self._is_accepted[row] = 0

    def _cancel_dropped(self, row: int, drop: Drop) -> None:
        self._cancel_tasks(row, f"row {drop.row} was dropped: {drop.reason}")
        if not self.frontier.live:
            self._cancel_tasks(GROUP, "every row of the group was dropped")

    def _cancel_tasks(self, row: int, reason: str, *, always: bool = False) -> None:
        """Cancel every task of a row, or of the whole group; those that run for dropped rows too only if `always`."""
        for task in list(self._alive.get(row, ())):
            node = task.step.node
            if not always and node >= 0 and self.frontier.runs_always(node):
                continue
            if task.state is State.RUNNING:
                self.cancelled.append((task, reason))  # it is discarded when its attempt has ended
                continue
            if task.state is State.DEFERRED:
                self.salvage.discard(task)
            elif task.state in (State.QUEUED, State.PARKED):
                self.cancelled.append((task, reason))
            self._discard(task)

    def _discard(self, task: Task) -> None:
        """A task is not needed any more."""
        self._done(task)
        self._give_up_shared(task)
        if task.spent.cost:
            self._lost[task.row] = self._lost.get(task.row, 0.0) + task.spent.cost
        self._settle(task.step.node, task.row)

    def _settle(self, node: int, row: int) -> None:
        """A task has ended for good: its generator, if it is stateful, continues with the next one."""
        gate = self._gates.get(node)
        if gate is not None:
            gate.settle(node, row)

    def _advance_gates(self) -> None:
        """Rows were dropped, skipped or replaced: stateful generators do not wait for what will never run."""
        for gate in self._gate_list:
            gate.advance()

    def _done(self, task: Task) -> None:
        if task.state in (State.NEW, State.RUNNING, State.DEFERRED):
            task.state = State.DONE
        # QUEUED and PARKED tasks are counted by the scheduler, which marks them when it takes `cancelled` over.
        alive = self._alive[task.row]
        alive.remove(task)
        if not alive:
            del self._alive[task.row]

    # Tasks that become ready, and phases.

    def _make_ready(self, ready: Sequence[tuple[int, int]]) -> None:
        # A loop and not recursion: a chain of skipped cells may be as long as the graph.
        pending = deque(ready)
        while pending:
            node, row = pending.popleft()
            step = self._shared.steps[node]
            if self.is_abandoned:
                return
            # Its rows may have been dropped since by a skip rule that raised.
            if row == GROUP and not self.frontier.missing_rows(node):
                continue
            if row != GROUP and self.frontier.dropped[row] and not self.frontier.runs_for_dropped(node, row):
                continue
            if row != GROUP and step.has_skip_rule:
                more = self._skip_cell(step, row)
                if more is not None:
                    pending.extend(more)
                    continue
            gate = self._gates.get(node)
            if gate is not None:
                gate.arrive(node, row)
            elif step.once_per:
                pending.extend(self._share_or_run(step, row))
            else:
                self._new_task(step, row)

    def _share_or_run(self, step: Step, row: int) -> Sequence[tuple[int, int]]:
        """A cell of a column with `once_per` takes the answer of its key, waits for it, or runs; what becomes ready."""
        once = self._shared.once[step.name]
        try:
            key = self.rows.shared_key(step, row)
        except Exception as error:  # noqa: BLE001  it reads values that generators returned
            return self._fail_shared(step, row, SharedAnswer(error=f"once_per: {error_text(error)}", code="exception"))
        answer = once.find(key)
        if answer is None:
            if once.claim(key, partial(self._wake_shared, step.node, row)):
                self._new_task(step, row, shared_key=key)
            return ()
        if answer.error is not None:
            return self._fail_shared(step, row, answer)
        self._note_origin(step, row, answer.origin)
        self._write_cell(step, row, answer.value)
        ready = self.frontier.complete_cell(step.node, row)
        if step.node in self._shared.accept:
            ready = [*ready, *self._judge((row,))]
        if self._shared.notify.events.wants_rows and not self.frontier.barrier:
            self._notify_rows((row,))
        return ready

    def _fail_shared(self, step: Step, row: int, answer: SharedAnswer) -> Sequence[tuple[int, int]]:
        assert answer.error is not None
        rows, ready = self.frontier.fail(step.node, row)
        for each in rows:
            self._drop(each, Task(step, self.index, row, attempt=answer.attempts), answer.error, answer.code)
        self._advance_gates()
        return ready

    def _wake_shared(self, node: int, row: int) -> None:
        """There is an answer that the cell waited for, or it may be its turn to run."""
        if self.phase is not Phase.CLOSING and not self.frontier.is_done(node, row):
            self._make_ready([(node, row)])
            # The answer may have come from another row group.
            self._shared.touched.add(self)

    def _give_up_shared(self, task: Task) -> None:
        if task.shared_key is not None:
            self._shared.once[task.step.name].give_up(task.shared_key)

    def _share(self, task: Task, answer: SharedAnswer) -> None:
        """The cell of a key has its answer, or has failed for good."""
        assert task.shared_key is not None
        if self._journal is not None:
            self._journal.shared(task, answer)
        self._shared.once[task.step.name].finish(task.shared_key, answer)

    def _skip_cell(self, step: Step, row: int) -> Sequence[tuple[int, int]] | None:
        """Complete a cell that is skipped and return the tasks that become ready; None if it is to run."""
        ready: Sequence[tuple[int, int]]
        try:
            if not self.rows.skips(step, row):
                return None
        except Exception as error:  # noqa: BLE001  a rule reads values that generators returned; anything may happen
            rows, ready = self.frontier.fail(step.node, row)
            for each in rows:
                self._drop(each, Task(step, self.index, row), f"skip_when: {error_text(error)}", "skip_rule")
        else:
            ready = self.frontier.complete_cell(step.node, row)
            if step.node in self._shared.accept:
                ready = [*ready, *self._judge((row,))]
        self._advance_gates()
        return ready

    def _release_stateful(self, node: int, row: int) -> None:
        self._new_task(self._shared.steps[node], row)
        # The turn may have come from another row group or from a thread that ended.
        self._shared.touched.add(self)

    def _new_task(self, step: Step, row: int, shared_key: bytes | None = None) -> None:
        task = Task(step, self.index, row, shared_key=shared_key)
        if shared_key is not None and (known := self._shared.once[step.name].take_calls(shared_key)) is not None:
            task.answers, task.spent = known
        self._alive.setdefault(row, []).append(task)
        self.ready.append(task)

    def turn_over(self, *, stopping: bool) -> None:
        """After a batch of outcomes: pass the barrier, start a salvage round or move on to the next phase."""
        if self.phase is Phase.CLOSING or self.is_abandoned:
            return
        if self.frontier.barrier and not self._processors and self.rows.skipped is None:
            if not self.frontier.live:
                if self.frontier.barrier_unreachable:
                    self.frontier.end_at_barrier()
            elif self.frontier.from_scratch_done:
                self._processors = list(self._shared.pre_batch)
                self._start_processor()
        self._finish_phase()
        if not self.queued and not self.ready and len(self.salvage) and not stopping:
            deferred = self.salvage.start_round(self.frontier.rows)
            self._shared.notify.emit(
                events.SalvageStarted, row_group=self.index, round=self.salvage.rounds, cells=len(deferred)
            )
            for task, eligible_at in deferred:
                self._retry(task, eligible_at)

    def _finish_phase(self) -> None:
        """Once every cell is done or dropped, start the post-batch processors; after them, the group is complete."""
        frontier, is_skipped = self.frontier, self.rows.skipped is not None
        has_work = self._processors or self.in_flight or self.ready
        if not is_skipped and (has_work or frontier.barrier or not frontier.complete):
            return
        if self.phase is Phase.FILLING and not is_skipped and frontier.live and self._shared.post_batch:
            self.phase = Phase.POST_BATCH
            self._processors = list(self._shared.post_batch)
            self._start_processor()
        else:
            self.phase = Phase.COMPLETE

    def _retry(self, task: Task, eligible_at: float) -> None:
        """Queue a deferred task again, but not while an abandoned thread is still in its stateful generator."""
        if task.state is not State.DEFERRED:
            return
        instance = self._shared.instance_of(task.step)
        if instance is not None and instance.busy:
            instance.when_free(partial(self._retry, task, eligible_at))
        else:
            self.parked.append((task, eligible_at))
            self._shared.touched.add(self)

    # Processors.

    def _start_processor(self) -> None:
        self._new_task(self._processors[0], GROUP)

    def _processed(self, outcome: Outcome) -> None:
        step = outcome.task.step
        before, after, came_from = outcome.value
        self.rows.processed(step.name, before, after, came_from)
        if self._shared.notify.events.wants_rows:
            processed = {"processor": step.name, "before": before, "after": after}
            self._shared.notify.emit(events.RowsProcessed, row_group=self.index, **processed)
        self._processors.pop(0)
        if self._processors:
            self._start_processor()
        elif step.kind is Stage.PRE_BATCH:
            count = self.frontier.rows
            rebuilt = self.rows.rebuild()
            if self._journal is not None:
                self._journal.rebuilt()
            self._continue_with(count, rebuilt)

    def _continue_with(self, before: int, after: int) -> None:
        self.drop_costs()
        self._dropped, self._lost, self.origins = {}, {}, {}
        self.resized = self.rows.resized
        self._judged, self._is_accepted, self.accepted = bytearray(after), bytearray(after), 0
        ready = self.frontier.rebuild(after)
        if self._shared.accept:
            ready += self._judge(range(after))
        self._shared.notify.emit(events.RowsRebuilt, row_group=self.index, before=before, after=after)
        self._advance_gates()
        self._make_ready(ready)
        if self._shared.notify.events.wants_rows:  # there may be no other columns
            self._notify_rows(range(after))

    def _processor_failed(self, outcome: Outcome) -> None:
        step, error = outcome.task.step, outcome.error
        assert error is not None
        if step.kind is Stage.POST_BATCH:
            raise ProcessorFailed(
                f"post-batch processor {step.name!r} failed (row_group={self.index}): {error_text(error)}"
            ) from error
        self._processors = []
        reason = f"{step.name}: {error_text(error)}"
        drop_reason = self.rows.skip(reason)
        self._shared.ledger.note_cause(drop_reason, error, user_traceback)
        self._shared.notify.emit(events.RowGroupSkipped, row_group=self.index, error=reason)
