"""Every exception that seedbed raises.

::

    SeedbedError
    ├── DatasetGenerationError      columns that cannot be built; lists every problem (before anything runs)
    ├── ConfigError (ValueError)    a knob that is unknown or outside its range (before anything runs)
    ├── CellError                   why one task failed; column code may raise these
    │   ├── RateLimited             flow control: the call was refused and may be sent again later
    │   ├── Retryable               the same call may succeed later
    │   │   └── CellTimeout         the cell passed its own timeout
    │   └── Permanent               the same call would fail again
    │       ├── BadOutput           a generator gave something that does not fit its column
    │       └── WorkerCrashed       the process that ran the cell died
    ├── BuildError                  the run ended without the whole dataset; carries the report
    │   ├── BuildStopped            ended on purpose; the directory is intact
    │   │   ├── EarlyShutdown       too many errors in the window
    │   │   ├── DeadlineExceeded    the build's deadline passed
    │   │   ├── QuotaExhausted      a key refused everything for as long as patience lasts
    │   │   ├── BudgetExceeded      the next call would pass max_cost or max_tokens
    │   │   ├── ThreadsStuck        threads that overran hold every slot or a stateful generator
    │   │   └── Interrupted         Ctrl-C or SIGTERM
    │   ├── Stalled                 nothing runs and nothing can run: a defect of the engine
    │   └── ProcessorFailed         a processor raised after its rows were made
    ├── PlanError                   a plan or a request; has a stable code
    │   ├── InvalidPlan             the plan does not validate; lists every problem with its JSON path
    │   ├── InvalidRequest          INVALID_REQUEST
    │   ├── Overloaded              OVERLOADED: refused at once, or its deadline could not be met
    │   ├── RequestDeadlineExceeded DEADLINE_EXCEEDED
    │   ├── NodeTimeout             NODE_TIMEOUT
    │   ├── NodeFailed              NODE_FAILED
    │   └── EndpointUnavailable     ENDPOINT_UNAVAILABLE
    └── StoreError                  the dataset directory
        ├── OutputDirectoryError    not empty, not writable, or not a directory
        ├── ManifestError           the manifest is missing, damaged or of another build
        ├── PartError               a part is missing or damaged
        └── SchemaConflict          parts whose types cannot be unified
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .observe.report import BuildReport


class SeedbedError(Exception):
    """Base of everything that seedbed raises."""


class DatasetGenerationError(SeedbedError):
    """The columns cannot be built; `problems` holds one sentence for each thing that is wrong."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems: tuple[str, ...] = tuple(problems)
        lines = "\n".join(f"  - {problem}" for problem in self.problems)
        count = len(self.problems)
        head = "1 problem" if count == 1 else f"{count} problems"
        super().__init__(f"the dataset cannot be generated, {head}:\n{lines}")


class ConfigError(SeedbedError, ValueError):
    """A knob that is unknown or has a value outside its range."""


class CellError(SeedbedError):
    """Why one task failed."""


class RateLimited(CellError):
    """The call was refused for now: flow control, never an error and never a lost row.

    `retry_after` is what the server asked for: seconds, or the text of the header (seconds or an HTTP date).
    `reset` says that the whole key has nothing left: seconds until it has, or the text of the header.
    """

    def __init__(
        self,
        message: str = "rate limited",
        *,
        retry_after: float | str | None = None,
        reset: float | str | None = None,
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.reset = reset


class Retryable(CellError):
    """The same call may succeed later: a timeout, a lost connection, a server error."""


class CellTimeout(Retryable):
    """The cell passed `cell_timeout` or its column's own timeout."""


class Permanent(CellError):
    """The same call would fail again."""


class BadOutput(Permanent):
    """A generator gave something that does not fit its column: a missing output, a wrong number of values."""


class WorkerCrashed(Permanent):
    """The process that ran the cell died."""


class BuildError(SeedbedError):
    """The run ended without the whole dataset. `report` says what there is and what is unfinished."""

    report: BuildReport | None = None


class Stalled(BuildError):
    """Nothing runs and nothing can run, but the build is not finished; the message names what waits for what."""


class BuildStopped(BuildError):
    """The run was ended on purpose; what is checkpointed stays."""


class EarlyShutdown(BuildStopped):
    """The error rate over the window passed its threshold."""


class DeadlineExceeded(BuildStopped):
    """The deadline of the build passed."""


class QuotaExhausted(BuildStopped):
    """A throttle key refused everything for `throttle_patience`."""

    def __init__(self, key: str, patience: float, last: RateLimited) -> None:
        super().__init__(f"key {key!r} refused every call for {patience:g} s (throttle_patience); last refusal: {last}")
        self.key = key
        self.last = last


class BudgetExceeded(BuildStopped):
    """The next call would pass `max_cost` or `max_tokens`."""


class ThreadsStuck(BuildStopped):
    """Threads that overran their timeout hold every execution slot, or a stateful generator."""

    def __init__(self, columns: Sequence[str], held: str, grace: float) -> None:
        names = ", ".join(repr(name) for name in columns)
        super().__init__(f"threads that overran their timeout have held {held} for {grace:g} s; their columns: {names}")
        self.columns = tuple(columns)


class Interrupted(BuildStopped):
    """The run was stopped by Ctrl-C or SIGTERM."""


class ProcessorFailed(BuildError):
    """A post-batch or after-generation processor raised; the rows it was given are kept."""


class PlanError(SeedbedError):
    """Something is wrong with a plan, or a request could not be answered. `node` names the node it is about, if any."""

    code = "PLAN_ERROR"

    def __init__(self, message: str, *, node: str | None = None) -> None:
        super().__init__(f"node {node!r}: {message}" if node is not None else message)
        self.message = message
        self.node = node


class InvalidPlan(PlanError):
    """The plan does not validate; `problems` holds (code, JSON path, message) for each thing that is wrong."""

    code = "INVALID_PLAN"

    def __init__(self, problems: Iterable[tuple[str, str, str]]) -> None:
        self.problems: tuple[tuple[str, str, str], ...] = tuple(problems)
        lines = "\n".join(f"  - {path}: {message} [{code}]" for code, path, message in self.problems)
        count = len(self.problems)
        super().__init__(f"the plan is invalid, {count} problem{'s' if count != 1 else ''}:\n{lines}")

    def __reduce__(self) -> tuple[type[InvalidPlan], tuple[tuple[tuple[str, str, str], ...]]]:
        # An exception is pickled by its text, of which it could not be made again.
        return type(self), (self.problems,)


class InvalidRequest(PlanError):
    """The request is not one that a plan can be run for."""

    code = "INVALID_REQUEST"


class Overloaded(PlanError):
    """The engine has no place for the request, or could not answer it in time any more."""

    code = "OVERLOADED"


class RequestDeadlineExceeded(PlanError):
    """The request's deadline passed while `node` ran or before it started."""

    code = "DEADLINE_EXCEEDED"


class NodeTimeout(PlanError):
    """A node took longer than a node may."""

    code = "NODE_TIMEOUT"


class NodeFailed(PlanError):
    """A node's op raised."""

    code = "NODE_FAILED"


class EndpointUnavailable(PlanError):
    """The server that a node asked did not answer."""

    code = "ENDPOINT_UNAVAILABLE"


class StoreError(SeedbedError):
    """Something is wrong with a dataset directory. `report` is there if it ended a run."""

    report: BuildReport | None = None


class OutputDirectoryError(StoreError):
    """The output directory is not empty, not writable, or not a directory."""


class ManifestError(StoreError):
    """The manifest is missing, damaged, or belongs to another build."""


class PartError(StoreError):
    """A part is missing or damaged."""


class SchemaConflict(StoreError):
    """Parts hold types of one column that cannot be unified; each part is kept with its own types."""
