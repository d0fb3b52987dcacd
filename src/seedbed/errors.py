"""Every exception that seedbed raises.

::

    SeedbedError
    ├── DatasetGenerationError, ConfigError (also a ValueError)
    ├── CellError
    │   ├── RateLimited
    │   ├── Retryable: CellTimeout, Unreachable
    │   └── Permanent: ModelMisconfigured, BadOutput, WorkerCrashed
    ├── BuildError
    │   ├── BuildStopped: EarlyShutdown, DeadlineExceeded, QuotaExhausted, BudgetExceeded, ThreadsStuck, Interrupted,
    │   │                 ModelCheckFailed, CandidatesExhausted
    │   └── Stalled, ProcessorFailed, AllRowsDropped
    ├── PlanError: InvalidPlan, InvalidRequest, Overloaded, RequestDeadlineExceeded, NodeTimeout, NodeFailed,
    │              EndpointUnavailable
    └── StoreError: OutputDirectoryError, ManifestError, PartError, SchemaConflict
"""

from __future__ import annotations

import copyreg
import errno
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .observe.report import BuildReport


# Names and values of a recipe may be of any length; a problem shows the beginning.
_LONGEST_PROBLEM = 2_000
# What the loader of extension modules and `threading` say where memory ran out.
_NO_MEMORY = ("failed to map segment", "annot allocate memory", "can't start new thread")


def is_out_of_memory(error: BaseException) -> bool:
    """True if memory ran out, or room for another thread, in whatever words that was raised."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    says_so = isinstance(error, ImportError | RuntimeError) and any(words in str(error) for words in _NO_MEMORY)
    return says_so or isinstance(error, MemoryError)


class SeedbedError(Exception):
    """Base of everything that seedbed raises. Any of them can be pickled, with its attributes and notes."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Default pickling passes the message to `__init__`, which in some subclasses takes other arguments.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class DatasetGenerationError(SeedbedError):
    """The recipe cannot be built; `problems` holds one sentence per problem."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems: tuple[str, ...] = tuple(
            problem if len(problem) <= _LONGEST_PROBLEM else f"{problem[:_LONGEST_PROBLEM]}…" for problem in problems
        )
        lines = "\n".join(f"  - {problem}" for problem in self.problems)
        count = len(self.problems)
        head = "1 problem" if count == 1 else f"{count} problems"
        super().__init__(f"the dataset cannot be generated, {head}:\n{lines}")


class ConfigError(SeedbedError, ValueError):
    """An option that is unknown or has a value outside its range; `field` names it if a validator raised."""

    def __init__(self, *args: object, field: str | None = None) -> None:
        super().__init__(*args)
        self.field = field


class CellError(SeedbedError):
    """Why one task failed; column code may raise the subclasses.

    `code` is a stable word for the kind of failure, which dropped rows have; an instance may have its own.
    """

    code = "failed"

    def __init__(self, *args: object, code: str | None = None) -> None:
        super().__init__(*args)
        if code is not None:
            self.code = code


class RateLimited(CellError):
    """The server rate-limited the call: flow control, which neither counts as a failure nor drops a row.

    `retry_after` is the wait that the server requested: seconds, or the text of the header (seconds or an HTTP date).
    `reset` means that the quota of the whole key is used up: seconds until it resets, or the text of the header.
    """

    code = "rate_limited"

    def __init__(
        self, message: str = "rate limited", *, retry_after: float | str | None = None, reset: float | str | None = None
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.reset = reset


class Retryable(CellError):
    """The same call may succeed later: a timeout, a lost connection, a server error."""

    code = "unavailable"


class Unreachable(Retryable):
    """No connection to the server could be opened."""

    code = "unreachable"


class CellTimeout(Retryable):
    """The cell exceeded `cell_timeout` or the timeout of its column."""

    code = "timeout"


class Permanent(CellError):
    """The same call would fail again."""


class ModelMisconfigured(Permanent):
    """A model cannot be called as it is configured: wrong key, name, URL or certificate, or a quota that is used up.

    `cause` and `fix` are sentences for the user, `answer` is an excerpt of what the server sent, without secrets.
    `blames_no_row` is True if no request could have succeeded; otherwise another request may show that this one was
    rejected for its content.
    """

    code = "misconfigured"

    def __init__(self, cause: str, *, fix: str, answer: str = "", blames_no_row: bool = False) -> None:
        super().__init__(f"{cause}: {answer}; {fix}" if answer else f"{cause}; {fix}")
        self.cause = cause
        self.fix = fix
        self.answer = answer
        self.blames_no_row = blames_no_row


class BadOutput(Permanent):
    """A generator returned something that does not fit its column: a missing output, a wrong number of values."""

    code = "bad_output"


class WorkerCrashed(Permanent):
    """The process that ran the cell died."""

    code = "worker_crashed"


class BuildError(SeedbedError):
    """The run ended before the dataset was complete. `report` lists what was written and what is unfinished."""

    report: BuildReport | None = None


class Stalled(BuildError):
    """A defect of the engine: the build is not finished and no task can run; the message names what waits for what."""


class BuildStopped(BuildError):
    """The run was ended on purpose; the directory is intact and finished row groups stay."""


class EarlyShutdown(BuildStopped):
    """The error rate over the window exceeded its threshold."""


class DeadlineExceeded(BuildStopped):
    """The deadline of the build passed."""


class QuotaExhausted(BuildStopped):
    """Every call of a throttle key was rate-limited for `throttle_patience` seconds."""

    def __init__(self, key: str, patience: float, last: RateLimited) -> None:
        super().__init__(
            f"key {key!r}: every call was rate-limited for {patience:g} s (throttle_patience); last answer: {last}"
        )
        self.key = key
        self.last = last


class BudgetExceeded(BuildStopped):
    """The next call could exceed `max_cost` or `max_tokens`."""


class CandidatesExhausted(BuildStopped):
    """`max_candidates` of them did not give as many rows as were requested."""


class ModelCheckFailed(BuildStopped):
    """A model is misconfigured or cannot be reached, which a small call showed before the build began."""


class ThreadsStuck(BuildStopped):
    """Threads that exceeded their timeout hold every execution slot, or a stateful generator."""

    def __init__(self, columns: Sequence[str], held: str, grace: float) -> None:
        names = ", ".join(repr(name) for name in columns)
        super().__init__(f"threads that exceeded their timeout have held {held} for {grace:g} s; columns: {names}")
        self.columns = tuple(columns)


class Interrupted(BuildStopped):
    """The run was stopped by Ctrl-C or SIGTERM."""


class ProcessorFailed(BuildError):
    """A post-batch or after-generation processor raised; its input rows are stored."""


class AllRowsDropped(BuildError):
    """Every row failed: the dataset is complete and empty; with `retry_dropped` a resume retries the rows.

    `__cause__` is the exception of the most frequent drop reason.
    """


class PlanError(SeedbedError):
    """A plan is invalid, or a request could not be answered. `node` names the node concerned, if any."""

    code = "PLAN_ERROR"

    def __init__(self, message: str, *, node: str | None = None) -> None:
        super().__init__(f"node {node!r}: {message}" if node is not None else message)
        self.message = message
        self.node = node


def problem_listing(subject: str, problems: Sequence[tuple[str, str, str]]) -> str:
    """All problems of a document, each with its code, JSON path and message, as the lines of one message."""
    lines = "\n".join(f"  - {path}: {message} [{code}]" for code, path, message in problems)
    return f"{subject} invalid, {len(problems)} problem{'s' if len(problems) != 1 else ''}:\n{lines}"


class InvalidPlan(PlanError):
    """The plan does not validate; `problems` holds (code, JSON path, message) of each problem."""

    code = "INVALID_PLAN"

    def __init__(self, problems: Iterable[tuple[str, str, str]]) -> None:
        self.problems: tuple[tuple[str, str, str], ...] = tuple(problems)
        super().__init__(problem_listing("the plan is", self.problems))


class InvalidRequest(PlanError):
    """The request does not fit the plan's inputs; `problems` holds (code, JSON path, message) of each problem."""

    code = "INVALID_REQUEST"

    def __init__(self, problems: Iterable[tuple[str, str, str]]) -> None:
        self.problems: tuple[tuple[str, str, str], ...] = tuple(problems)
        super().__init__(problem_listing("the request is", self.problems))


class Overloaded(PlanError):
    """The engine has no slot for the request, or could not answer it before its deadline."""

    code = "OVERLOADED"


class RequestDeadlineExceeded(PlanError):
    """The request's deadline passed while `node` ran or before it started."""

    code = "DEADLINE_EXCEEDED"


class NodeTimeout(PlanError):
    """A node exceeded `node_timeout`."""

    code = "NODE_TIMEOUT"


class NodeFailed(PlanError):
    """A node's op raised."""

    code = "NODE_FAILED"


class EndpointUnavailable(PlanError):
    """The server behind an endpoint did not answer."""

    code = "ENDPOINT_UNAVAILABLE"


class StoreError(SeedbedError):
    """A dataset directory cannot be read or written. `report` is set if the error ended a run."""

    report: BuildReport | None = None


class OutputDirectoryError(StoreError):
    """The output directory is not empty, not writable, or not a directory."""


class ManifestError(StoreError):
    """The manifest is missing, damaged, or belongs to another build."""


class PartError(StoreError):
    """A part is missing or damaged."""


class SchemaConflict(StoreError):
    """Parts hold types of one column that cannot be unified; each part is stored with its own types."""
