"""The values that the scheduler and the trio side exchange: steps, tasks, outcomes and actions."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import attrs

from ..errors import ConfigError
from ..graph import GROUP, Kind, Stage
from ..observe.report import Origin, Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    import polars as pl

    from ..columns.base import Call, Column
    from ..observe.events import Event, Events, TaskEvent
    from ..runtime.throttle import Permit

# Lanes of work that waits for no throttle key.
ASYNC_LANE = ("local", "async")
THREAD_LANE = ("local", "thread")
PROCESS_LANE = ("local", "process")
NO_USAGE = Usage()
# Keys of answers of tools that are not idempotent begin with this; no digest does, for it is longer than one.
RUN_ONCE = b"run this tool once: "


def _stage(value: Stage | str) -> Stage:
    return Stage.named(value)  # mypy does not know class methods as converters


def _apply(_: object, __: object, value: Any) -> None:
    if not callable(value):
        raise ConfigError(f"a processor's apply must be a function of a frame, not {value!r}")


@attrs.frozen(kw_only=True)
class Processor:
    """A synchronous function from frame to frame, run off the loop.

    Pre-batch: gets the columns from scratch, may add, remove and change rows and must return the same columns; if it
    raises, its row group is skipped. Post-batch: gets all columns, in their declared types, and may change rows,
    columns and types; if it raises, the run stops. After generation: gets a `polars.LazyFrame` of the whole dataset
    and returns a frame, lazy or not, which is the dataset; `Dataset.raw()` has the rows before.
    """

    stage: Stage = attrs.field(converter=_stage)
    """`pre_batch`, `post_batch` or `after_generation`."""
    apply: Callable[[Any], pl.DataFrame | pl.LazyFrame] = attrs.field(validator=_apply)
    """The function, from frame to frame."""
    name: str = ""
    """Its name in messages; by default that of the function."""

    @property
    def label(self) -> str:
        """Its name, or its function's."""
        return self.name or getattr(self.apply, "__name__", type(self.apply).__name__)


def _of_column(name: str, default: Any = None) -> Any:
    """A field with the value that the step's column has, because every attempt reads it; a processor has `default`."""
    value = attrs.Factory(lambda step: getattr(step.column, name, default), takes_self=True)
    return attrs.field(init=False, repr=False, default=value)


@attrs.frozen(kw_only=True, eq=False)
class Step:
    """A resolved column or processor: its place in the graph and the lane in which its tasks queue."""

    name: str
    stage: str = ""  # of the recipe
    kind: Kind | Stage
    node: int  # index in the graph; -1 for a processor
    position: int = -1  # in topological order
    lane: Hashable
    needs_slot: bool = True  # it uses a thread or a process
    timeout: float | None = None
    outputs: tuple[str, ...] = ()  # those that must be returned, then its side effects
    column: Column | None = None  # None for a processor
    processor: Processor | None = None
    instance: object | None = None  # the generator whose calls must not overlap, if it is stateful
    # The columns that it requires and that may be skipped, if it is skipped with them.
    skipped_with: tuple[int, ...] = ()
    key: str | None = _of_column("key")
    fallback_keys: tuple[str, ...] = _of_column("fallback_keys", ())
    once_per: tuple[str, ...] = _of_column("once_per", ())
    tokens: int = _of_column("tokens", 0)
    lane_limit: int | None = _of_column("lane_limit")
    process: bool = _of_column("process", default=False)
    first_call_timeout: float | None = _of_column("first_call_timeout")
    inputs: tuple[str, ...] = _of_column("inputs", ())
    required_outputs: tuple[str, ...] = _of_column("outputs", ())
    call: Call = attrs.field(init=False, repr=False)
    is_async_cell: bool = attrs.field(init=False)
    wants_context: bool = attrs.field(init=False)
    has_skip_rule: bool = attrs.field(init=False)  # some of its cells may be skipped
    makes_calls: bool = attrs.field(init=False)  # its cells may make calls, so that they have an `Origin`

    def __attrs_post_init__(self) -> None:
        """Derive what every attempt reads."""
        put, call = object.__setattr__, None if self.column is None else self.column.call
        put(self, "call", call)
        put(self, "is_async_cell", self.kind is Kind.CELL and call is not None and call.is_async)
        put(self, "wants_context", call is not None and call.wants_context)
        has_rule = self.column is not None and self.column.skip is not None
        put(self, "has_skip_rule", has_rule or bool(self.skipped_with))
        may_call = self.column is not None and bool(self.key or self.column.other_keys or self.wants_context)
        put(self, "makes_calls", may_call and self.kind is not Kind.FROM_SCRATCH)


class Status(enum.Enum):
    """How an attempt ended."""

    SUCCESS = "success"
    RATE_LIMITED = "rate_limited"  # flow control: spends no attempt
    RETRYABLE = "retryable"
    PERMANENT = "permanent"
    CANCELLED = "cancelled"  # its row was dropped


class State(enum.Enum):
    """Where a task is."""

    NEW = "new"
    QUEUED = "queued"  # in its lane
    PARKED = "parked"  # returns to its lane at a later instant
    DEFERRED = "deferred"  # waits for a salvage round
    RUNNING = "running"
    DONE = "done"  # has its last outcome, or its row was dropped


class Scope(Protocol):
    """What cancels a running task: a `trio.CancelScope`."""

    def cancel(self, reason: str | None = None) -> None: ...


@attrs.define(eq=False)
class Task:
    """One cell, or one task of a whole row group, from ready to its last outcome.

    The scheduler creates it and changes it, except for `permit`, `answers` and `scope`, which belong to the attempt
    while it runs.
    """

    step: Step
    group: int  # index of its row group
    row: int  # local row index, or GROUP
    attempt: int = 1  # counts from 1; a rate limit is not an attempt
    rate_limits: int = 0  # in a row
    salvage_round: int = 0  # of its row group, in which this attempt was started
    # Answers of calls that need not be sent again, by idempotency key: of an attempt whose later call failed, or of a
    # run that died. With a key that begins with `RUN_ONCE`: what a tool returned, None if that is not known.
    answers: dict[bytes, Any] | None = None
    spent: Usage = NO_USAGE  # by attempts that have ended
    shared_key: bytes | None = None  # of a column with `once_per`: whose answer it is
    permit: Permit | None = None
    has_slot: bool = False
    reserved: tuple[int, float] | None = None  # of the usage budget
    state: State = State.NEW
    scope: Scope | None = None
    ready_at: float = 0.0
    started_at: float = 0.0

    def reject_answers(self) -> None:
        """The next attempt sends its calls again; but tools that are not idempotent are not run again."""
        self.answers = {key: answer for key, answer in (self.answers or {}).items() if key.startswith(RUN_ONCE)} or None

    @property
    def row_or_none(self) -> int | None:
        """The local row, None for a task of the whole row group, as events and traces have it."""
        return None if self.row == GROUP else self.row


@attrs.define(eq=False)
class TaskUsage:
    """The usage that one task reported. Changed by `Context` only."""

    total: Usage = NO_USAGE
    _untaken: list[tuple[str, Usage]] = attrs.field(factory=list)  # with the model of each

    def add(self, model: str, usage: Usage) -> None:
        """Count a call, or several."""
        # Most tasks make one call (overhead benchmark).
        self.total = usage if self.total is NO_USAGE else self.total + usage
        self._untaken.append((model, usage))

    def take(self) -> list[tuple[str, Usage]]:
        """What was reported since the last call of this method, with the model of each."""
        taken = self._untaken.copy()
        del self._untaken[: len(taken)]  # a worker thread may have appended to it meanwhile
        return taken


@attrs.define(eq=False)
class Outcome:
    """How one attempt ended. Created by the attempt, read by the scheduler."""

    task: Task
    status: Status
    # Of a success: the cell's value (a tuple in the order of several outputs), (rows, columns) of a whole row group,
    # or (before, after) of a processor.
    value: Any
    error: BaseException | None
    started: float
    finished: float
    usage: TaskUsage | None = None
    model: str = ""  # the alias of the model whose answer the value is
    retry_delay: float = 0.0  # of a rate limit
    keeps_answers: bool = False  # of a failure: the next attempt has the answers of this one

    @property
    def seconds(self) -> float:
        return self.finished - self.started

    @property
    def work(self) -> tuple[int, int, float]:
        """Calls, tokens and seconds; a task that reported nothing was one call."""
        usage = None if self.usage is None else self.usage.total
        seconds = self.finished - self.started
        return (1, 0, seconds) if usage is None else (usage.calls or 1, usage.tokens, seconds)

    @property
    def origin(self) -> Origin | None:
        """Of a success: how the value was generated; None for a column that makes no calls."""
        task, usage = self.task, self.usage
        if not task.step.makes_calls:
            return None
        spent = task.spent if usage is None else task.spent + usage.total if task.spent is not NO_USAGE else usage.total
        return Origin(
            self.model,
            task.attempt,
            spent.calls,
            spent.input_tokens,
            spent.output_tokens,
            spent.cached_tokens,
            spent.cost,
            self.finished - self.started,
        )


@attrs.define(eq=False)
class PermitRequest:
    """A running task waits for a permit for one more call."""

    task: Task
    key: str
    tokens: int
    wake: Callable[[], None]  # called when `Grant` is performed
    permit: Permit | None = None


# Actions: what the scheduler decides and `run.py` performs.


@attrs.frozen
class Start:
    """Run an attempt of a task, then report `finished` or `aborted`."""

    task: Task


@attrs.frozen
class Cancel:
    """Cancel a running task whose row was dropped. Its attempt still reports `finished`."""

    task: Task
    reason: str


@attrs.frozen
class Grant:
    """Wake a task that waits for a permit."""

    request: PermitRequest


@attrs.frozen
class Admit:
    """Open row group `index`, then report `admitted` or `passed_over`."""

    index: int
    turn: int  # in the order of row groups for stateful generators
    stage: str = ""


@attrs.frozen
class Take:
    """Take the rows of finished row group `parent` for a stage that is made from them, then report `taken`.

    `parent` is None at the end of the parent's rows: then groups of rows end that are not full.
    """

    stage: str
    parent: int | None


@attrs.frozen
class Close:
    """Write a row group whose cells are all done or dropped, or leave it unfinished; then report `closed`."""

    index: int
    is_complete: bool
    stage: str = ""


@attrs.frozen
class WakeAt:
    """Call `decide` at that instant."""

    when: float


@attrs.frozen
class CancelRun:
    """The grace period of a stopped run has ended."""


Action: TypeAlias = Start | Cancel | Grant | Admit | Take | Close | WakeAt | CancelRun


@attrs.frozen(eq=False)
class Notices:
    """Emits the events of one stage of a run; an event is created only while there are readers."""

    events: Events
    _now: Callable[[], float]
    _stage: str = ""

    def emit(self, kind: type[Event], **fields: Any) -> None:
        if self.events.active:
            self.events.emit(kind(time=self._now(), stage=self._stage, **fields))

    def emit_task(self, kind: type[TaskEvent], task: Task, **fields: Any) -> None:
        if self.events.active:
            self.events.emit(
                kind(
                    time=self._now(),
                    stage=self._stage,
                    kind=task.step.kind.value,
                    column=task.step.name,
                    row_group=task.group,
                    row=task.row_or_none,
                    attempt=task.attempt,
                    **fields,
                )
            )
