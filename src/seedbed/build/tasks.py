"""The unit of work: what a task is, its life in the dispatcher, and how it ended."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import attrs

from ..errors import SeedbedError
from ..graph import GROUP

if TYPE_CHECKING:
    import trio

    from ..generators import Usage
    from ..runtime.throttle import Permit
    from ..store.entries import Entry
    from .plan import Step
    from .rows import Rows


class Group(Protocol):
    """What a task knows of its row group."""

    @property
    def index(self) -> int: ...
    @property
    def nursery(self) -> trio.Nursery: ...
    @property
    def rows(self) -> Rows: ...

    def live_rows(self) -> list[int]:
        """The rows that are not dropped, in order."""
        ...

    def missing_rows(self, step: Step) -> list[int]:
        """The rows that are not dropped and that a whole column is still to be made for, in order."""
        ...

    def record(self, entry: Entry) -> None:
        """Have the journal keep something of a task that is under way."""
        ...

    def gave_up(self, cell: Cell[Any]) -> bool:
        """Whether nobody wants the result of that task any more."""
        ...


G_co = TypeVar("G_co", bound=Group, covariant=True)


class TaskKind(enum.Enum):
    """What a task fills."""

    FROM_SCRATCH = "from_scratch"
    CELL = "cell"
    FULL_COLUMN = "full_column"
    PRE_BATCH = "pre_batch"
    POST_BATCH = "post_batch"


class Status(enum.Enum):
    """How a task ended."""

    SUCCESS = "success"
    REFUSED = "refused"  # a rate limit: flow control
    RETRYABLE = "retryable"
    PERMANENT = "permanent"
    CANCELLED = "cancelled"  # its row was dropped


class State(enum.Enum):
    """Where a task is on its way."""

    NEW = "new"
    QUEUED = "queued"  # in its lane
    PARKED = "parked"  # back in its lane at a later instant
    DEFERRED = "deferred"  # waits for a salvage round
    FLYING = "flying"  # runs
    OVER = "over"  # has its last outcome, or its row was dropped


@attrs.frozen
class Task:
    """Which work: a value, hashable. `row` is the local row index, None for the whole row group."""

    kind: TaskKind
    column: str
    row_group: int
    row: int | None = None


@attrs.define(eq=False)
class Cell(Generic[G_co]):
    """One task on its way from ready to its outcome.

    Its row group makes it; the dispatcher and the task that runs it change it, never both at once.
    """

    step: Step
    group: G_co
    row: int  # local row index, or GROUP
    attempt: int = 1  # counts from 1; a refusal is not an attempt
    refusals: int = 0
    salvage_round: int = 0  # of its row group, which it was tried again in
    # Answers of calls that need not be made again, by what they asked: of an attempt whose later call failed, or of a
    # run that died.
    answers: dict[bytes, Any] | None = None
    permit: Permit | None = None
    has_slot: bool = False
    reserved: tuple[int, float] | None = None  # of the spending budget
    state: State = State.NEW
    scope: trio.CancelScope | None = None
    ready_at: float = 0.0
    submitted_at: float = 0.0

    @property
    def task(self) -> Task:
        """What this is, as a value."""
        row = None if self.row == GROUP else self.row
        return Task(self.step.kind, self.step.name, self.group.index, row)


def locate(error: Exception, row_group: int, cell: Cell[Any] | None = None) -> None:
    """Note on an exception that nobody expected what the engine was working on; our own errors say it themselves."""
    if isinstance(error, SeedbedError) or any(note.startswith("(column=") for note in getattr(error, "__notes__", ())):
        return
    column = None if cell is None else cell.step.name
    row = None if cell is None or cell.row == GROUP else cell.group.rows.identity(cell.row)[0]
    error.add_note(f"({column=}, {row_group=}, {row=})")


@attrs.define(eq=False)
class Outcome(Generic[G_co]):
    """How one attempt ended. Made by the task that ran it, read by its row group."""

    cell: Cell[G_co]
    status: Status
    value: Any  # of a success: a tuple of values in the order of the outputs, or a list of columns for a whole group
    error: BaseException | None
    started: float
    finished: float
    usage: Usage | None = None
    retry_delay: float = 0.0  # of a refusal
    goes_on: bool = False  # of a failure: the next attempt has the answers of this one

    @property
    def task(self) -> Task:
        return self.cell.task

    @property
    def attempt(self) -> int:
        return self.cell.attempt

    @property
    def seconds(self) -> float:
        return self.finished - self.started
