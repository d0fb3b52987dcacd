"""The exit statuses of `seedbed`; docs/reference/cli.md has the same table."""

from __future__ import annotations

import enum
from typing import Self

from .. import errors


class ExitCode(enum.IntEnum):
    """An exit status and its meaning."""

    OK = 0, "success; dropped rows are in the report"
    FAILED = 1, "an unexpected error, or an exception in code of a recipe or plan file"
    BAD_INPUT = 2, "invalid command, option, recipe, plan, request or output directory; nothing was run"
    BAD_DATASET = 3, "the directory is no dataset, damaged, of another recipe or not writable; or values conflict"
    TOO_MANY_ERRORS = 4, "stopped early: too many errors; or every row was dropped"
    DEADLINE = 5, "stopped early: the deadline passed"
    QUOTA = 6, "stopped early: an endpoint rate-limited every call for longer than throttle_patience"
    BUDGET = 7, "stopped early: the next call could have exceeded max_cost or max_tokens"
    THREADS_STUCK = 8, "stopped early: threads that exceeded their timeout blocked all others"
    PROCESSOR = 9, "a processor failed; its input rows are stored"
    STOPPED = 10, "stopped early for another reason, such as memory that ran out"
    MODEL = 11, "a model did not answer: before the build began, where nothing was written, or in `models check`"
    OVERLOADED = 12, "`plan`: OVERLOADED, the queue is full or the request could not finish in time"
    REQUEST_DEADLINE = 13, "`plan`: DEADLINE_EXCEEDED, the request's deadline passed"
    NODE_TIMEOUT = 14, "`plan`: NODE_TIMEOUT, a node exceeded its timeout"
    NODE_FAILED = 15, "`plan`: NODE_FAILED, an op raised"
    ENDPOINT = 16, "`plan`: ENDPOINT_UNAVAILABLE, a server did not answer"
    EXHAUSTED = 17, "stopped early: `max_candidates` did not give as many rows as were requested"
    INTERRUPTED = 130, "Ctrl-C or SIGTERM"
    CLOSED_OUTPUT = 141, "the reader of standard output closed it"

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Self:
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member


# The first matching class decides.
_CODES: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (errors.Interrupted, ExitCode.INTERRUPTED),
    (errors.EarlyShutdown, ExitCode.TOO_MANY_ERRORS),
    (errors.ModelCheckFailed, ExitCode.MODEL),
    (errors.AllRowsDropped, ExitCode.TOO_MANY_ERRORS),
    (errors.DeadlineExceeded, ExitCode.DEADLINE),
    (errors.QuotaExhausted, ExitCode.QUOTA),
    (errors.BudgetExceeded, ExitCode.BUDGET),
    (errors.CandidatesExhausted, ExitCode.EXHAUSTED),
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
    """The status for an exception."""
    if errors.is_out_of_memory(error):
        return ExitCode.STOPPED
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.FAILED)
