"""What kind of failure an exception of a generator is, and how it is written in reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import CellError, Permanent, RateLimited, Retryable, SeedbedError
from ..runtime.async_functions import looks_like_asyncio
from ..runtime.exceptions import leaves
from .tasks import Status

if TYPE_CHECKING:
    from .tasks import Step, Task


def classify(step: Step, error: Exception) -> tuple[Status, Exception]:
    """What kind of failure this is, and the exception that says why."""
    if isinstance(error, ExceptionGroup):
        # A generator's own nursery raised it: the leaf that weighs most stands for all, of equals the first.
        error = max((leaf for leaf in leaves(error) if isinstance(leaf, Exception)), key=_weight)
    if isinstance(error, RateLimited):
        return Status.RATE_LIMITED, error
    if isinstance(error, Retryable) or (step.column is not None and isinstance(error, step.column.retry_on)):
        return Status.RETRYABLE, error
    if looks_like_asyncio(error):
        explained = Permanent(f"its code is written for asyncio: say runtime='asyncio' of the column ({error})")
        explained.__cause__ = error
        return Status.PERMANENT, explained
    return Status.PERMANENT, error


def _weight(error: Exception) -> int:
    if not isinstance(error, CellError):
        return 3
    return 2 if isinstance(error, Permanent) else 1 if isinstance(error, Retryable) else 0


def error_text(error: BaseException) -> str:
    """One line for reports: the class, unless it is one of ours, and the message."""
    message = " ".join(str(error).split())
    if type(error) in (Permanent, Retryable) and message:
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def locate(error: Exception, row_group: int, task: Task | None = None, row: int | None = None) -> None:
    """Note on an unexpected exception what the engine was working on; our own errors contain it."""
    if isinstance(error, SeedbedError) or any(note.startswith("(column=") for note in getattr(error, "__notes__", ())):
        return
    column = None if task is None else task.step.name
    error.add_note(f"({column=}, {row_group=}, {row=})")
