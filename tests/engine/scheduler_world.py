"""Everything around a scheduler, without trio: rows, throttles, a journal, a clock that is moved by hand.

A `World` performs what the scheduler decides and checks every action against a model of its own. What happens next is
decided by whoever owns it: a state machine, or a test.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import attrs

import seedbed as sb
from seedbed.engine.admission import AcceptedAdmission, Admission
from seedbed.engine.budget import Budget
from seedbed.engine.config import RunConfig
from seedbed.engine.failures import UnkeyedSteps
from seedbed.engine.row_group import Phase, RowGroup, Shared
from seedbed.engine.scheduler import Scheduler, StageState
from seedbed.engine.tasks import (
    ASYNC_LANE,
    PROCESS_LANE,
    THREAD_LANE,
    Admit,
    Cancel,
    CancelRun,
    Close,
    Grant,
    Notices,
    Outcome,
    PermitRequest,
    Stage,
    Start,
    State,
    Status,
    Step,
    Task,
    TaskUsage,
    WakeAt,
)
from seedbed.errors import CellError, ProcessorFailed
from seedbed.graph import GROUP, Graph, Kind
from seedbed.observe.events import Events
from seedbed.observe.report import Ledger, Origin, Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from seedbed.engine.row_group import Consequence

KEYS = ("k", "l")
PROCESSES = 1
LARGE = 10  # no column declares more tokens


@attrs.frozen(kw_only=True)
class ColumnPlan:
    """One column of a random graph."""

    kind: Kind = Kind.CELL
    requires: tuple[str, ...] = ()
    key: str | None = None
    tokens: int = 0
    runs_in: str = "async"  # or "thread" or "process"
    outputs: int = 1
    generator: int | None = None  # which stateful generator it shares, if any
    skips: bool = False
    skips_with_inputs: bool = False
    lane: str | None = None


@attrs.frozen(kw_only=True)
class Plan:
    """A graph, the rows of its row groups and the options of its runs."""

    columns: tuple[ColumnPlan, ...]
    rows: tuple[int, ...]  # of each row group
    pre_batch: int = 0  # processors
    post_batch: int = 0
    config: RunConfig = attrs.field(factory=RunConfig)
    lane_limits: Mapping[str, int] = attrs.field(factory=dict)
    salt: int = 0  # decides which cells are skipped, and which rows are accepted
    accept: tuple[str, ...] = ()  # the columns that decide whether a row is accepted
    wanted: int | None = None  # how many rows are to be accepted; None if every row counts


@attrs.frozen
class Drop:
    row: int
    column: str
    attempts: int
    error: str
    reason: str = "failed"


class Rows:
    """The values of a row group; each may be written once."""

    def __init__(self, world: World, index: int, count: int) -> None:
        self._world = world
        self._index = index
        self._count = count
        self.skipped: str | None = None
        self.resized: tuple[tuple[str, int, int], ...] = ()
        self.written: set[tuple[str, int]] = set()
        self.skipped_cells: set[tuple[int, int]] = set()
        self.dropped: dict[int, Drop] = {}
        self.dropped_before: dict[int, Drop] = {}  # by the columns from scratch, before pre-batch processors ran
        self.generation = 0  # 1 behind the pre-batch processors
        self.left: int | None = None  # rows that processors returned last

    @property
    def count(self) -> int:
        return self._count

    def skips(self, step: Step, row: int) -> bool:
        column = self._world.plan.columns[step.node]
        skip = any((up, row) in self.skipped_cells for up in step.skipped_with)
        if not skip and column.skips:
            chance = random.Random(hash((self._world.plan.salt, self._index, step.node, row))).random()
            if chance < 0.1:
                raise ValueError("a skip rule that raises")
            skip = chance < 0.5
        if skip:
            self.skipped_cells.add((step.node, row))
        return skip

    def accepts(self, row: int) -> bool:
        """Raises for some rows."""
        chance = random.Random(hash((self._world.plan.salt, self._index, self.generation, row, "accept"))).random()
        if chance < 0.05:
            raise ValueError("a rule that raises")
        return chance < 0.5

    def is_accepted(self, row: int) -> bool:
        """True if a row is accepted."""
        try:
            return self.accepts(row)
        except ValueError:
            return False

    def reject(self, row: int) -> Drop:
        assert not self.accepts(row)
        assert row not in self.dropped, f"row {row} was dropped before it was rejected"
        drop = self.dropped[row] = Drop(row, "accept", 1, "not accepted", reason="rejected")
        return drop

    def write_cell(self, step: Step, row: int, value: Any) -> None:
        values = value if len(step.outputs) > 1 else (value,)
        for name, each in zip(step.outputs, values, strict=True):
            self.write_value(name, row, each)

    def write_value(self, name: str, row: int, value: Any) -> None:
        assert 0 <= row < self._count
        assert (name, row) not in self.written, f"{name!r} of row {row} was written twice"
        self.written.add((name, row))

    def drop(self, row: int, step: Step, attempts: int, error: str, code: str) -> Drop:
        assert row not in self.dropped, f"row {row} was dropped twice"
        drop = self.dropped[row] = Drop(row, step.name, attempts, error)
        return drop

    def skip(self, reason: str) -> str:
        assert self.skipped is None
        self.skipped = reason
        return reason

    def processed(self, name: str, before: int, after: int, came_from: None) -> None:
        self.resized = (*self.resized, (name, max(0, before - after), max(0, after - before)))
        self.left = after

    def rebuild(self) -> int:
        assert self.left is not None
        return self.replace(self.left)

    def replace(self, count: int) -> int:
        """Continue with other rows, whose columns from scratch are there."""
        self.dropped_before |= self.dropped
        self.dropped, self.skipped_cells = {}, set()
        self._count, self.generation, self.left = count, 1, None
        seeds = [name for step in self._world.steps if step.kind is Kind.FROM_SCRATCH for name in step.outputs]
        self.written = {(name, row) for name in seeds for row in range(count)}
        return count

    def has(self, step: Step, row: int) -> bool:
        """True if a cell is there or was skipped."""
        return (step.node, row) in self.skipped_cells or all((name, row) in self.written for name in step.outputs)


@attrs.define(eq=False)
class Journal:
    """Records what a row group reports, in one log for all of them."""

    log: list[tuple[int, tuple[Any, ...]]]
    index: int
    rows: Rows

    def finished(self, task: Task, value: Any, origin: Origin | None) -> None:
        self.log.append((self.index, ("finished", task.step.name, task.row, value, origin)))

    def failed(self, task: Task, error: str, consequence: Consequence, code: str) -> None:
        at = (task.step.name, task.row, task.attempt, task.salvage_round)
        entry = ("failed", *at, error, consequence, code, task.spent)
        self.log.append((self.index, entry))

    def forgiven(self) -> None:
        self.log.append((self.index, ("forgiven",)))

    def rebuilt(self) -> None:
        rows = self.rows
        self.log.append((self.index, ("rebuilt", rows.count, rows.resized, dict(rows.dropped_before))))


@attrs.define(eq=False)
class Permit:
    throttle: Throttle

    def _end(self) -> None:
        self.throttle.held.remove(self)  # once
        self.throttle.notify()

    def accepted(self, tokens: int | None = None) -> None:
        self._end()

    def finished(self, tokens: int | None = None) -> None:
        self._end()

    def unused(self) -> None:
        self._end()

    def rate_limited(self, error: object, attempt: int) -> float:
        raise NotImplementedError


@attrs.define(eq=False)
class Throttle:
    """So many permits at once, as long as it is not paused; both change at any time."""

    notify: Callable[[], None]
    total: int = 2
    paused: bool = False  # as by a rate: not full, but there is no permit
    small_only: bool = False  # as by a rate of tokens: large calls wait
    broken: bool = False  # it refuses, and will never say that it does so no more
    held: list[Permit] = attrs.field(factory=list)

    @property
    def full(self) -> bool:
        return len(self.held) >= self.total

    @property
    def will_notify(self) -> bool:
        return not self.broken

    def grants(self, tokens: int = 0) -> bool:
        return not (self.full or self.paused or self.broken or (self.small_only and tokens > LARGE))

    def try_acquire(self, tokens: int = 0) -> Permit | None:
        if not self.grants(tokens):
            return None
        permit = Permit(self)
        self.held.append(permit)
        return permit


@attrs.define(eq=False)
class Attempt:
    """A running task, as the trio side has it."""

    task: Task
    usage: TaskUsage
    rows: tuple[int, ...] = ()  # of a whole column: for which rows it was called
    live: int = 0  # of a processor: rows that it was called with
    thread: bool = False
    had_slot: bool = False
    cancelled: bool = False
    request: PermitRequest | None = None
    permit: Permit | None = None  # of a further call that is on the wire

    def end_call(self) -> None:
        """The further call is answered."""
        permit, self.permit = self.permit, None
        if permit is not None:
            permit.accepted()


class World:
    """One dataset: `restart` begins another run of it from a prefix of the journal."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.graph, self.steps = _compile(plan)
        self.pre_batch = tuple(_processor(f"pre{n}", Stage.PRE_BATCH) for n in range(plan.pre_batch))
        self.post_batch = tuple(_processor(f"post{n}", Stage.POST_BATCH) for n in range(plan.post_batch))
        self.accept = tuple({self.graph.node(name).index: None for name in plan.accept})
        self.now = 0.0
        self.log: list[tuple[int, tuple[Any, ...]]] = []
        self.written: dict[int, Rows] = {}  # checkpointed row groups
        self.accepted: dict[int, int] = {}  # of these: how many rows count
        self.decided: list[int] = []  # row groups of which that is decided, where not every row counts
        self.used: list[tuple[str, int, int, float]] = []  # usage by column of all runs: calls, tokens, cost
        self.is_damaged = False  # entries in the middle of the log were lost
        self.start_run(plan.config)

    # A run.

    def start_run(self, config: RunConfig) -> None:
        """Begin a run; row groups take in what the log has of them when they are admitted."""
        self.config = config
        self.recorded = list(self.log)
        self.budget = Budget(config.max_tokens, config.max_cost, metered=frozenset(KEYS), priced=frozenset(KEYS))
        for column, calls, tokens, cost in self.used:
            self.budget.take_over(column, Usage(calls=calls, input_tokens=tokens, cost=cost))
        # By how much calls exceeded what was known of them before they were sent, and what earlier runs used.
        self.surprise = [float(self.budget.tokens), self.budget.cost]
        self.ledger = Ledger()
        self.shared = Shared(
            graph=self.graph,
            steps=self.steps,
            pre_batch=self.pre_batch,
            post_batch=self.post_batch,
            config=config,
            budget=self.budget,
            ledger=self.ledger,
            notify=Notices(Events(), lambda: self.now),
            rng=random.Random(0),
            now=lambda: self.now,
            unkeyed=UnkeyedSteps(config, random.Random(0), lambda: self.now, lambda _: 1.0, self.stop),
            accept=self.accept,
        )
        self.throttles = {key: Throttle(lambda key=key: self.scheduler.permits_available(key)) for key in KEYS}
        self.admission = self._admission(config)
        self.scheduler = Scheduler(
            [StageState(self.shared, self.admission)],
            throttle=self.throttles.__getitem__,
            processes=PROCESSES,
        )
        self.attempts: dict[Task, Attempt] = {}
        self.threads: list[Attempt] = []  # abandoned
        self.admitting: tuple[int, int] | None = None
        self.closing: dict[int, bool] = {}  # row groups to be closed; True if they are to be checkpointed
        self.groups: dict[int, RowGroup] = {}
        self.turns: dict[int, int] = {}
        self.wakes: list[float] = []
        self.succeeded: set[tuple[int, int, int, int]] = set()  # (row group, generation, node, row)
        self.order: dict[int, list[tuple[int, int, int]]] = {identity: [] for identity in self.shared.instances}
        self.not_before: dict[Task, float] = {}  # of rate-limited tasks: the instant of their next attempt
        self.ended = False
        self.is_undecided = False  # an attempt has ended since the last decision
        self.failed = False  # a check failed: the rest of the run proves nothing

    def _admission(self, config: RunConfig) -> Admission:
        count, limit = len(self.plan.rows), config.admitted_at_once
        if self.plan.wanted is None:
            return Admission(count, lambda index: index not in self.written, limit)
        admission = AcceptedAdmission(
            count,
            lambda index: index not in self.written,
            limit,
            wanted=self.plan.wanted,
            size=lambda index: self.plan.rows[index],
        )
        complete = [(index, rows, rows if index in self.decided else 0) for index, rows in self.accepted.items()]
        admission.resume(complete, retried=(), reached=len(self.decided), kept=self.kept)
        self._decide_rows(admission)
        return admission

    def _decide_rows(self, admission: AcceptedAdmission) -> None:
        """Decide complete row groups; no row of them is a duplicate."""
        while (due := admission.next_decision()) is not None:
            assert due[0] == len(self.decided), "row groups are decided out of order"
            self.decided.append(due[0])
            admission.decided(due[0], due[2] - due[1])

    @property
    def kept(self) -> int:
        """How many rows count."""
        return sum(self.accepted[index] for index in self.decided)

    @property
    def is_complete(self) -> bool:
        """True if the dataset is: all row groups are there, or enough rows are accepted."""
        if self.plan.wanted is not None and self.kept >= self.plan.wanted:
            return True
        return len(self.written) == len(self.plan.rows)

    @property
    def done(self) -> bool:
        """True if the run has ended: everything is closed and no thread is left."""
        return self.ended or (self.scheduler.done and not self.attempts)

    def decide(self) -> None:
        """Ask the scheduler, perform what it decides, and check that it decided everything that it could."""
        if self.ended:
            return
        self.failed = True
        self._decide()
        self.failed = False

    def _decide(self) -> None:
        was_stopping = self.scheduler.stopping is not None
        rounds = {index: group.salvage.rounds for index, group in self.groups.items()}
        queued = self.queued()
        self.is_undecided = False
        actions = self.scheduler.decide()
        for task in queued:
            group = self.groups[task.group]
            began = group.salvage.rounds > rounds[task.group]
            assert not began or task.state is not State.QUEUED, (
                "a salvage round began before the group had nothing queued"
            )
        assert not was_stopping or not any(isinstance(action, Start | Admit) for action in actions)
        for action in actions:
            self._perform(action)
            if self.ended:
                return
        self.check()
        moved = sum(isinstance(action, Start | Grant) for action in actions)
        if not moved and not any(isinstance(action, WakeAt) and action.when <= self.now for action in actions):
            self._check_work_conserving()

    def _perform(self, action: object) -> None:
        match action:
            case Start(task):
                self._started(task)
            case Cancel(task, _):
                assert not self.groups[task.group].is_wanted(task), f"{task} is cancelled although its row is live"
                if task in self.attempts:
                    self.attempts[task].cancelled = True
            case Grant(request):
                assert request.permit is not None
                attempt = self.attempts[request.task]
                assert attempt.request is request
                attempt.request = None
                self._send(attempt, request)
            case Admit(index, turn):
                assert self.admitting is None
                assert index not in self.written
                assert index not in self.groups
                self._check_need(index)
                self.admitting = (index, turn)
            case Close(index, is_complete):
                assert is_complete or self.scheduler.stopping is not None or self.groups[index].is_abandoned
                assert index not in self.closing
                self.closing[index] = is_complete
            case WakeAt(when):
                self.wakes.append(when)
            case CancelRun():
                self.end_run()

    def _check_need(self, index: int) -> None:
        """No row group is admitted if the rows that are accepted already will do."""
        if self.plan.wanted is None or any(index < other for other in self.accepted):
            return  # what comes after it waits for it
        waiting = sum(rows for other, rows in self.accepted.items() if other not in self.decided)
        accepted = sum(group.accepted for other, group in self.groups.items() if other not in self.written)
        assert self.kept + waiting + accepted < self.plan.wanted, "more is started than is needed"

    # Starts.

    def _started(self, task: Task) -> None:
        group, step, row = self.groups[task.group], task.step, task.row
        rows: Rows = group.rows
        assert task.group not in self.closing
        cell = (task.group, step.name, row)
        assert all((each.group, each.step.name, each.row) != cell for each in self.attempts), f"{cell} runs twice"
        assert task.attempt <= self.config.salvage_max_rounds + 1, f"{cell} has too many attempts"
        assert self.now >= self.not_before.pop(task, self.now), f"{cell} was started before its delay had ended"
        before = list(self.attempts.values())
        attempt = self.attempts[task] = Attempt(task, TaskUsage())
        if step.node < 0:
            self._check_processor(group, rows, step)
            attempt.live = group.frontier.live if rows.left is None else rows.left
        else:
            assert (task.group, rows.generation, step.node, row) not in self.succeeded, f"{cell} had succeeded"
            assert step.kind is Kind.FROM_SCRATCH or not self.pre_batch or rows.generation == 1, "the barrier"
            if row == GROUP:
                attempt.rows = tuple(group.frontier.missing_rows(step.node))
                assert attempt.rows
                if step.kind is Kind.FULL_COLUMN and step.has_skip_rule:
                    attempt.rows = tuple(each for each in attempt.rows if not self._group_skips(rows, step, each))
            of = attempt.rows if row == GROUP else (row,)
            if self.accept and self.graph.nodes[step.node].is_gated:
                assert all(rows.is_accepted(each) for each in of), f"{cell} was started for a row that is not accepted"
            for each, up in itertools.product(of, self.graph.nodes[step.node].upstream):
                assert rows.has(self.steps[up], each), f"{cell} was started before {self.steps[up].name!r}"
            assert step.node in self.shared.always or not rows.dropped.keys() & set(of), "a task of a dropped row"
        if step.key is not None:
            assert task.permit in self.throttles[step.key].held
            assert all(each.request is None or each.request.key != step.key for each in before), (
                "a new task went before a call of a running one"
            )
        if step.instance is not None:
            self._check_turn(task)
        if step.needs_slot and not step.process:
            attempt.thread = True
            attempt.had_slot = self.scheduler.thread_started(task)
            assert attempt.had_slot

    def _group_skips(self, rows: Rows, step: Step, row: int) -> bool:
        try:
            return rows.skips(step, row)
        except ValueError:
            return False

    def _check_processor(self, group: RowGroup, rows: Rows, step: Step) -> None:
        frontier = group.frontier
        if step.kind is Stage.PRE_BATCH:
            assert rows.generation == 0
            needed = [each for each in self.steps if each.kind is Kind.FROM_SCRATCH]
        else:
            needed = list(self.steps)
        for each, row in itertools.product(needed, frontier.live_rows()):
            assert rows.has(each, row)

    def _check_turn(self, task: Task) -> None:
        """Of one stateful generator: one call at a time, in the order of (row group, column, row)."""
        identity = id(task.step.instance)
        instance = self.shared.instances[identity]
        inside = [each for each in (*self.attempts.values(), *self.threads) if each.task.step.instance is not None]
        assert [id(each.task.step.instance) for each in inside].count(identity) == 1, "two calls at once"
        turn = (self.turns[task.group], instance.nodes.index(task.step.node), task.row)
        order = self.order[identity]
        if order:
            assert turn > order[-1] or (turn == order[-1] and (task.attempt > 1 or task.rate_limits)), "out of order"
        order.append(turn)

    # Calls and ends of running tasks.

    def sendable(self) -> list[Attempt]:
        """Running tasks that can make a further call."""
        return [each for each in self.attempts.values() if each.request is None and each.task.step.node >= 0]

    def beside_others(self) -> list[Attempt]:
        """Running cells whose row has another running cell."""
        rows = Counter((task.group, task.row) for task in self.attempts if task.row != GROUP)
        return [each for each in self.attempts.values() if rows[each.task.group, each.task.row] > 1]

    def rebuilt(self) -> int | None:
        """Where in the log pre-batch processors of an unfinished row group had run; None if they have not."""
        found = (at for at, (of, entry) in enumerate(self.log, 1) if entry[0] == "rebuilt" and of not in self.written)
        return next(found, None)

    def waiting(self) -> list[Attempt]:
        """Running tasks that wait for a permit."""
        return [each for each in self.attempts.values() if each.request is not None]

    def call(self, attempt: Attempt, key: str, tokens: int) -> None:
        """A running task wants to send one more call."""
        task = attempt.task
        attempt.end_call()
        self._give_back(task)
        request = PermitRequest(task, key, tokens, lambda: None)
        waits = any(each.request.key == key for each in self.waiting() if each.request is not None)
        could = self.throttles[key].grants(tokens) and not waits
        self.scheduler.request_permit(request)
        if request.permit is None:
            assert not could, "a request waits for nothing"
            attempt.request = request
        else:
            self._send(attempt, request)

    def _send(self, attempt: Attempt, request: PermitRequest) -> None:
        """The call is sent, if the budget allows it."""
        task, permit = attempt.task, request.permit
        assert permit is not None
        before = task.reserved
        if self.budget.limited:
            exceeded = self.scheduler.reserve(task, attempt.usage.total, request.tokens, request.key)
            if exceeded is not None:
                permit.finished()
                self.finish(attempt, Status.RATE_LIMITED)
                return
            assert task.reserved is not None
            assert before is None or task.reserved >= before
            assert task.reserved[0] >= attempt.usage.total.tokens + request.tokens, "a call is not in the budget"
        attempt.usage.add("m", Usage(calls=1, input_tokens=request.tokens))
        attempt.permit = permit

    def withdraw(self, attempt: Attempt) -> None:
        """A task that waits for a permit is cancelled."""
        assert attempt.request is not None
        request, attempt.request = attempt.request, None
        if request.permit is not None:
            request.permit.unused()
        self.scheduler.withdraw_request(request)

    def _give_back(self, task: Task) -> None:
        permit, task.permit = task.permit, None
        if permit is not None:
            permit.unused()

    def finish(
        self,
        attempt: Attempt,
        status: Status,
        *,
        tokens: int = 0,
        cost: float = 0.0,
        delay: float = 0.0,
        bad_rows: int = 0,
        rows_after: int = 0,
        abandon: bool = False,
    ) -> None:
        """An attempt ends; `abandon` leaves its thread behind."""
        self.is_undecided = True
        task, step = attempt.task, attempt.task.step
        group = self.groups[task.group]
        if attempt.request is not None:
            self.withdraw(attempt)
        if status is Status.CANCELLED and group.is_wanted(task):
            status = Status.RETRYABLE  # only the row of a task cancels it
        if step.key is not None and status is not Status.RATE_LIMITED and (tokens or cost):
            attempt.usage.add("m", Usage(calls=1, input_tokens=tokens, cost=cost))
        del self.attempts[task]
        attempt.end_call()
        self._give_back(task)
        if attempt.thread:
            if abandon:
                self.threads.append(attempt)
                self.scheduler.thread_abandoned(step)
            else:
                self.scheduler.thread_ended(step, had_slot=attempt.had_slot, late=False)
        value: Any = None
        if status is Status.SUCCESS:
            value = self._value(attempt, bad_rows, rows_after)
        error = None if status in (Status.SUCCESS, Status.CANCELLED) else RuntimeError(status.value)
        used = attempt.usage if attempt.usage.total.calls else None
        outcome = Outcome(task, status, value, error, task.started_at, self.now, usage=used, retry_delay=delay)
        if status is Status.SUCCESS and step.node >= 0:
            self.succeeded.add((task.group, group.rows.generation, step.node, task.row))
        if status is Status.RATE_LIMITED:
            self.not_before[task] = self.now + delay
        self._count(task, used, sent=status is not Status.RATE_LIMITED)
        try:
            self.scheduler.finished(outcome)
        except ProcessorFailed:
            assert step.kind is Stage.POST_BATCH
            self.end_run()

    def _count(self, task: Task, usage: TaskUsage | None, *, sent: bool) -> None:
        if task.reserved is None or not sent:
            return
        reserved = task.reserved
        tokens, cost = (task.step.tokens, 0.0) if usage is None else (usage.total.tokens, usage.total.cost)
        self.used.append((task.step.name, 1, tokens, cost))
        self.surprise[0] += max(0, tokens - reserved[0])
        self.surprise[1] += max(0.0, cost - reserved[1])

    def _value(self, attempt: Attempt, bad_rows: int, rows_after: int) -> Any:
        task, step = attempt.task, attempt.task.step
        if step.node < 0:
            return attempt.live, max(0, attempt.live - 1 + rows_after), None
        if task.row != GROUP:
            return (0,) * len(step.outputs) if len(step.outputs) > 1 else 0
        bad = set(attempt.rows[:bad_rows])
        columns = [[CellError("bad row") if row in bad else 0 for row in attempt.rows] for _ in step.outputs]
        return list(attempt.rows), columns

    def end_thread(self, attempt: Attempt) -> None:
        """An abandoned thread really ends."""
        self.threads.remove(attempt)
        self.scheduler.thread_ended(attempt.task.step, had_slot=attempt.had_slot, late=True)

    # Row groups.

    def open_group(self) -> None:
        """Perform `Admit`."""
        assert self.admitting is not None
        (index, turn), self.admitting = self.admitting, None
        self.failed = True
        rows = Rows(self, index, self.plan.rows[index])
        journal = Journal(self.log, index, rows)
        group = RowGroup(index, turn, self.shared, rows, journal=journal, barrier=bool(self.pre_batch))
        self.groups[index], self.turns[index] = group, turn
        group.begin()
        by_name = {step.name: step for step in self.steps}
        for of, entry in self.recorded:
            if of == index:
                self._restore(group, rows, by_name, entry)
        self.scheduler.admitted(group)
        self.failed = False

    def _restore(self, group: RowGroup, rows: Rows, steps: dict[str, Step], entry: tuple[Any, ...]) -> None:
        match entry:
            case ("finished", name, row, value, origin):
                was_live = group.frontier.live
                if group.restore_finished(steps[name], row, value, origin):
                    self.succeeded.add((group.index, rows.generation, steps[name].node, row))
                else:
                    assert self.is_damaged or (row == GROUP and not was_live), f"{name!r} of row {row} is lost"
            case ("failed", name, row, attempt, salvage_round, error, fate, code, spent):
                group.restore_failed(
                    steps[name],
                    row,
                    attempt=attempt,
                    salvage_round=salvage_round,
                    error=error,
                    consequence=fate,
                    code=code,
                    spent=spent,
                )
            case ("rebuilt", count, resized, dropped) if not group.can_restore_rebuilt():
                assert self.is_damaged
            case ("rebuilt", count, resized, dropped):
                before = rows.count
                rows.replace(count)
                rows.resized, rows.dropped_before = resized, dropped
                group.restore_rebuilt(before, count)

    def close_group(self, index: int) -> None:
        """Perform `Close`."""
        is_complete = self.closing.pop(index)
        group = self.groups.pop(index)
        assert not [task for task in self.attempts if task.group == index], "it was closed with tasks in flight"
        if is_complete:
            assert index not in self.written, "a row group was checkpointed twice"
            self._check_complete(group)
            self.written[index] = group.rows
            self.accepted[index] = 0 if group.rows.skipped is not None else group.frontier.live
            if self.accept and group.rows.skipped is None:
                assert all(group.rows.is_accepted(row) for row in group.frontier.live_rows())
            if isinstance(self.admission, AcceptedAdmission):
                self.admission.completed(index, self.accepted[index])
                self._decide_rows(self.admission)
        self.scheduler.closed(index)

    def _check_complete(self, group: RowGroup) -> None:
        """Every row of a finished row group is written or dropped."""
        rows = group.rows
        if rows.skipped is not None:
            return
        for row in range(rows.count):
            is_dropped = bool(group.frontier.dropped[row])
            assert is_dropped == (row in rows.dropped), f"row {row} is dropped here and not there"
            if not is_dropped and (rows.generation or not self.pre_batch):
                for step in self.steps:
                    assert rows.has(step, row), f"row {row} has no {step.name!r}"
            for step in self.steps if is_dropped else ():
                # A retry of the row takes over the cells that are there.
                is_there = all((name, row) in rows.written for name in step.outputs)
                assert group.frontier.is_done(step.node, row) or not is_there
        if self.pre_batch and not rows.generation:
            assert not group.frontier.live
        else:
            assert group.resized == rows.resized[: len(self.pre_batch)], "the counts of pre-batch processors are lost"
            for step in self.steps if rows.generation else ():
                was_called = (group.index, 0, step.node, GROUP) in self.succeeded
                assert was_called or step.kind is not Kind.FROM_SCRATCH or step.instance is None, "a call is missing"

    def stop(self) -> None:
        self.scheduler.stop(sb.BuildStopped("stopped by the test"))

    def end_run(self) -> None:
        """The run is cancelled: every attempt ends without an outcome, every row group unfinished."""
        self.ended = True
        self.scheduler.die()
        for attempt in list(self.attempts.values()):
            if attempt.request is not None:
                self.withdraw(attempt)
            del self.attempts[attempt.task]
            attempt.end_call()
            self._give_back(attempt.task)
            if attempt.thread:
                self.scheduler.thread_ended(attempt.task.step, had_slot=attempt.had_slot, late=False)
            self._count(attempt.task, attempt.usage if attempt.usage.total.calls else None, sent=True)
            self.scheduler.aborted(attempt.task, attempt.usage)
        for index in list(self.groups):
            self.scheduler.closed(index)
        assert not [each for each in self.scheduler.decide() if not isinstance(each, WakeAt)]
        self.check_nothing_leaks()

    def check_nothing_leaks(self) -> None:
        """After a run nothing is held."""
        while self.threads:
            self.end_thread(self.threads[0])
        statistics = self.scheduler.statistics()
        assert (statistics.submitted, statistics.active, statistics.queued) == (0, 0, 0)
        assert (statistics.parked, statistics.waiting_calls) == (0, 0)
        assert not self.scheduler.groups
        assert not self.budget.in_flight
        for throttle in self.throttles.values():
            assert not throttle.held

    # What must hold after each decision.

    def check(self) -> None:
        """All limits hold, and what the scheduler counts is what there is."""
        config, statistics = self.config, self.scheduler.statistics()
        sequential = config.engine == "sequential"
        tasks = list(self.attempts)
        assert statistics.submitted == len(tasks)
        assert len(tasks) <= (1 if sequential else config.max_submitted_tasks)
        slots = [each for each in (*self.attempts.values(), *self.threads) if each.task.step.needs_slot]
        assert statistics.active == len(slots) <= config.max_active_tasks
        assert sum(task.step.process for task in tasks) <= PROCESSES
        in_lane = Counter(task.step.lane for task in tasks if task.step.lane_limit is not None)
        for step in self.steps:
            assert step.lane_limit is None or in_lane[step.lane] <= step.lane_limit
        visited = len(self.groups) + (self.admitting is not None)
        assert visited <= config.admitted_at_once
        assert statistics.waiting_calls == len(self.waiting())
        assert sum(group.queued for group in self.groups.values()) == len(self.queued())
        assert all(sum(task.group == index for task in tasks) == each.in_flight for index, each in self.groups.items())
        # A task that does not run, be it queued, deferred or rate-limited, holds nothing.
        idle = [
            each for group in self.groups.values() for each in group.unfinished_tasks() if each not in self.attempts
        ]
        for task in idle:
            assert task.permit is None
            assert not task.has_slot
            assert task.reserved is None
        for attempt in self.attempts.values():
            task = attempt.task
            if task.group in self.scheduler.groups and not self.groups[task.group].is_wanted(task):
                assert attempt.cancelled, f"{task} runs on although its row was dropped"
        if config.max_tokens is not None:
            assert self.budget.tokens <= max(config.max_tokens, 0) + self.surprise[0]
        if config.max_cost is not None:
            assert self.budget.cost <= config.max_cost + self.surprise[1] + 1e-9
        # A lane that is passed over has a reason, and only such a lane.
        lanes = self.scheduler._lanes
        assert {lane.key for lane in lanes._lanes.values() if lane.blocked} == set(statistics.blocked)

    def queued(self) -> list[Task]:
        return [
            task for group in self.groups.values() for task in group.unfinished_tasks() if task.state is State.QUEUED
        ]

    def _check_work_conserving(self) -> None:
        """No queued task could start; every row group that could be admitted is.

        Where tasks of one lane may differ in what they need, by the order of columns or by their usage, none is
        overtaken: then it is the lane's next task.
        """
        scheduler, config = self.scheduler, self.config
        if scheduler.stopping is not None:
            return
        sequential = config.engine == "sequential"
        for task in self.heads() if sequential or self.budget.limited else self.queued():
            assert not self._could_start(task), f"{task} could start; blocked: {scheduler.statistics().blocked}"
        if self.plan.wanted is not None:  # it is decided by an estimate
            return
        room = len(self.groups) < config.admitted_at_once
        left = [i for i in range(len(self.plan.rows)) if i not in self.written and i not in self.groups]
        assert self.admitting is not None or not room or not left, "a row group could be admitted"

    def heads(self) -> Sequence[Task]:
        """The next task of each lane."""
        lanes = self.scheduler._lanes._lanes.values()
        in_lanes = [[task for *_, task in sorted(lane._heap) if task.state is State.QUEUED] for lane in lanes]
        return [tasks[0] for tasks in in_lanes if tasks]

    def _could_start(self, task: Task) -> bool:
        step, config = task.step, self.config
        if len(self.attempts) >= (1 if config.engine == "sequential" else config.max_submitted_tasks):
            return False
        slots = [each for each in (*self.attempts.values(), *self.threads) if each.task.step.needs_slot]
        if step.needs_slot and len(slots) >= config.max_active_tasks:
            return False
        if step.process and sum(each.step.process for each in self.attempts) >= PROCESSES:
            return False
        if step.lane_limit is not None and sum(t.step.lane == step.lane for t in self.attempts) >= step.lane_limit:
            return False
        if step.key is None:
            return True
        if self.budget.must_wait(step) or self.budget.would_exceed(step) is not None:
            return False
        if any(each.request is not None and each.request.key == step.key for each in self.attempts.values()):
            return False
        return self.throttles[step.key].grants(step.tokens)

    # The end.

    def can_progress(self) -> bool:
        """True if something is under way that this side will report."""
        return bool(self.attempts or self.threads or self.admitting or self.closing or self.wakes)

    def run_to_end(self) -> None:
        """Let everything succeed until the run has ended."""
        for throttle in self.throttles.values():
            throttle.total, throttle.paused, throttle.small_only = 2, False, False
            throttle.notify()
        self.decide()
        for _ in range(100_000):
            if self.done:
                break
            if self.admitting is not None:
                self.open_group()
            elif self.closing:
                self.close_group(next(iter(self.closing)))
            elif self.sendable():
                self.finish(self.sendable()[0], Status.SUCCESS, rows_after=self.plan.salt % 3)
            elif self.attempts:
                attempt = next(iter(self.attempts.values()))
                assert attempt.task.step.node < 0, "a call waits although there are permits"
                self.finish(attempt, Status.SUCCESS, rows_after=self.plan.salt % 3)
            elif self.threads:
                self.end_thread(self.threads[0])
            elif not self.is_undecided:  # else a call was granted that would have exceeded the budget
                assert self.wakes, "the scheduler waits for nothing"
                self.now = max(self.now, min(self.wakes))
                self.wakes = [when for when in self.wakes if when > self.now]
            self.decide()
        assert self.done
        if not self.ended:
            self.check_nothing_leaks()
        assert self.scheduler.stopping is not None or self.ended or self.is_complete


def _processor(name: str, stage: Stage) -> Step:
    return Step(name=name, kind=stage, node=-1, lane=THREAD_LANE)


def _compile(plan: Plan) -> tuple[Graph, tuple[Step, ...]]:
    columns = []
    for index, column in enumerate(plan.columns):
        made = sb.Column(
            f"c{index}",
            lambda *_: None,
            kind=column.kind,
            requires=column.requires,
            outputs=[f"c{index}", *(f"c{index}_{n}" for n in range(1, column.outputs))],
            key=column.key,
            tokens=column.tokens if column.key is not None else 0,
            process=column.runs_in == "process",
            lane_limit=None if column.lane is None else plan.lane_limits[column.lane],
        )
        columns.append(attrs.evolve(made, skip=_Skip()) if column.skips else made)
    graph = sb.build_graph(columns, accept=plan.accept)
    generators: dict[int, object] = {}
    steps = []
    for index, (column, node) in enumerate(zip(plan.columns, graph.nodes, strict=True)):
        local = {"async": ASYNC_LANE, "thread": THREAD_LANE, "process": PROCESS_LANE}[column.runs_in]
        steps.append(
            Step(
                name=node.name,
                kind=node.kind,
                node=index,
                position=graph.order.index(index),
                lane=(column.key, column.lane) if column.lane is not None else column.key or local,
                needs_slot=column.runs_in != "async",
                outputs=node.outputs,
                column=columns[index],
                instance=None if column.generator is None else generators.setdefault(column.generator, object()),
                skipped_with=tuple({graph.node(name).index: None for name in column.requires})
                if column.skips_with_inputs
                else (),
            )
        )
    return graph, tuple(steps)


class _Skip:
    """Only says that there is a rule; `Rows.skips` decides."""

    requires = ()


__all__ = ["KEYS", "Attempt", "ColumnPlan", "Phase", "Plan", "World"]
