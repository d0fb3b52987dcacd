"""What the exit status of `seedbed` means; docs/reference/cli.md has the same table."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Self

from .. import errors

if TYPE_CHECKING:
    from ..observe.report import BuildReport


class ExitCode(enum.IntEnum):
    """Exit statuses, each with its sentence."""

    OK = 0, "everything was done; rows that were dropped are in the report"
    FAILED = 1, "something unexpected, or code of a recipe or plan file, raised"
    BAD_INPUT = 2, "the command, the recipe, plan or request, a knob or the output directory is wrong; nothing was run"
    BAD_DATASET = 3, "the directory holds no dataset, a damaged or a foreign one, cannot be written, or values conflict"
    TOO_MANY_ERRORS = 4, "stopped early: too many errors; or every row was dropped and nothing came out"
    DEADLINE = 5, "stopped early: the deadline passed"
    QUOTA = 6, "stopped early: an endpoint refused everything for as long as patience lasted"
    BUDGET = 7, "stopped early: the next call would have passed max_cost or max_tokens"
    THREADS_STUCK = 8, "stopped early: threads that overran their timeout held everything up"
    PROCESSOR = 9, "a processor failed; the rows that it was given are kept"
    STOPPED = 10, "ended without the whole dataset for another reason"
    MODEL = 11, "`models check`: a model did not answer"
    OVERLOADED = 12, "`plan`: OVERLOADED, the engine had no place for the request or could not answer it in time"
    REQUEST_DEADLINE = 13, "`plan`: DEADLINE_EXCEEDED, the request's deadline passed"
    NODE_TIMEOUT = 14, "`plan`: NODE_TIMEOUT, a node took longer than a node may"
    NODE_FAILED = 15, "`plan`: NODE_FAILED, an op raised"
    ENDPOINT = 16, "`plan`: ENDPOINT_UNAVAILABLE, a server did not answer"
    INTERRUPTED = 130, "Ctrl-C or SIGTERM"
    CLOSED_OUTPUT = 141, "whoever read the output closed it"

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Self:
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member


# The first class that fits decides.
_CODES: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (errors.Interrupted, ExitCode.INTERRUPTED),
    (errors.EarlyShutdown, ExitCode.TOO_MANY_ERRORS),
    (errors.DeadlineExceeded, ExitCode.DEADLINE),
    (errors.QuotaExhausted, ExitCode.QUOTA),
    (errors.BudgetExceeded, ExitCode.BUDGET),
    (errors.ThreadsStuck, ExitCode.THREADS_STUCK),
    (errors.ProcessorFailed, ExitCode.PROCESSOR),
    (errors.BuildError, ExitCode.STOPPED),
    (errors.OutputDirectoryError, ExitCode.BAD_INPUT),
    (errors.StoreError, ExitCode.BAD_DATASET),
    (errors.DatasetGenerationError, ExitCode.BAD_INPUT),
    (errors.ConfigError, ExitCode.BAD_INPUT),
    (errors.Overloaded, ExitCode.OVERLOADED),
    (errors.RequestDeadlineExceeded, ExitCode.REQUEST_DEADLINE),
    (errors.NodeTimeout, ExitCode.NODE_TIMEOUT),
    (errors.NodeFailed, ExitCode.NODE_FAILED),
    (errors.EndpointUnavailable, ExitCode.ENDPOINT),
    (errors.PlanError, ExitCode.BAD_INPUT),
    (KeyboardInterrupt, ExitCode.INTERRUPTED),
    (BrokenPipeError, ExitCode.CLOSED_OUTPUT),
)


def exit_code(error: BaseException) -> ExitCode:
    """The status that stands for an exception."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.FAILED)


def report_code(report: BuildReport) -> ExitCode:
    """The status of a build that went on to its end: rows may be dropped, but not all of them."""
    return ExitCode.TOO_MANY_ERRORS if report.rows and not report.written else ExitCode.OK
