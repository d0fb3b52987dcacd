"""The only way to a thread or a process.

A thread cannot be killed: when its task is cancelled or times out it goes on, and what it holds stays held until it
really ends. Under virtual time the clock must not jump while a thread works, so the clock is held here, in one place.
"""

from __future__ import annotations

import ast
import math
import multiprocessing
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import trio
import trio_parallel

from ..errors import ConfigError, WorkerCrashed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from types import FrameType

    from trio.testing import MockClock
    from trio_parallel import WorkerContext

T = TypeVar("T")

_hold_count: trio.lowlevel.RunVar[int] = trio.lowlevel.RunVar("seedbed.hold_count", default=0)
_hold_threshold: trio.lowlevel.RunVar[float] = trio.lowlevel.RunVar("seedbed.hold_threshold", default=math.inf)


def virtual_clock() -> MockClock | None:
    """The clock of this run, if its time is made up."""
    # Nobody has a virtual clock who has not imported trio.testing, which takes longer than all the rest of trio.
    testing = sys.modules.get("trio.testing")
    clock = trio.lowlevel.current_clock()
    return clock if testing is not None and isinstance(clock, testing.MockClock) else None


def hold_clock() -> None:
    """Keep an autojumping clock from jumping until `release_clock` is called as often; on trio's thread only."""
    clock = virtual_clock()
    if clock is None:
        return
    count = _hold_count.get()
    if count == 0:
        _hold_threshold.set(clock.autojump_threshold)
        clock.autojump_threshold = math.inf
    _hold_count.set(count + 1)


def release_clock() -> None:
    """Undo one `hold_clock`."""
    clock = virtual_clock()
    if clock is None:
        return
    count = _hold_count.get() - 1
    _hold_count.set(count)
    if count == 0:
        clock.autojump_threshold = _hold_threshold.get()


class Lease:
    """What a thread holds from before it starts until it really ends.

    Given to trio in place of a limiter: whoever made the lease already has the slot, so acquiring grants at once, and
    trio calls `release_on_behalf_of` when the thread has ended, even if nobody waits for it any more.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end  # called exactly once, on trio's thread, unless the run is over before the thread is
        self._state = "new"
        self._when_late: Callable[[], None] | None = None
        # Whether the thread was given up: it runs, or ran, on although its task was cancelled.
        self.abandoned = False

    def when_late(self, callback: Callable[[], None]) -> None:
        """Call back when a thread that was given up has ended, before anything else learns of it."""
        self._when_late = callback

    async def acquire_on_behalf_of(self, _borrower: object) -> None:
        """Trio is about to start the thread."""
        self._state = "running"
        hold_clock()

    def release_on_behalf_of(self, _borrower: object) -> None:
        """The thread has ended."""
        self._state = "ended"
        release_clock()
        if self._when_late is not None:
            self._when_late()
        self._on_end()

    async def run(self, function: Callable[[], T]) -> T:
        """Run `function` in a thread, once. When cancelled, the thread is given up and this raises at once."""
        try:
            # mypy knows CapacityLimiter only; trio documents that any object with these two methods will do.
            return await trio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=self)  # type: ignore[arg-type]
        finally:
            if self._state == "running":
                self.abandoned = True
            elif self._state == "new":  # cancelled before there was a thread
                self._state = "ended"
                self._on_end()


async def finish_in_thread(function: Callable[[], T]) -> T:
    """Run `function`, which must be short, in a thread and wait for it, cancelled or not."""
    hold_clock()
    try:
        return await trio.to_thread.run_sync(function)
    finally:
        release_clock()


def check_main_guard(*, starts_processes: bool) -> None:
    """Refuse to build where a worker process would build again: it imports the script that started it.

    The script must call `build` under `if __name__ == "__main__":`.
    """
    # Set by multiprocessing while a new process imports the script.
    if getattr(multiprocessing.current_process(), "_inheriting", False) or (starts_processes and _is_unguarded()):
        raise ConfigError(
            "a column with process=True starts processes that import this script again: "
            'put the call that builds under `if __name__ == "__main__":`'
        )


def _is_unguarded() -> bool:
    """Whether the script's own top level called this, outside an `if` about `__name__`."""
    main = sys.modules.get("__main__")
    path, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    # Without a file (a notebook, -c) there is nothing to import, and `python -m package` is not imported again.
    if path is None or (spec is not None and spec.name.endswith("__main__")):
        return False
    frame: FrameType | None = sys._getframe()  # noqa: SLF001  there is no other way to ask who calls
    while frame is not None and not (frame.f_globals is vars(main) and frame.f_code.co_name == "<module>"):
        frame = frame.f_back
    if frame is None:
        return False
    try:
        statements = ast.parse(Path(path).read_bytes()).body
    except (OSError, ValueError, SyntaxError):
        return False
    return not any(_guards(node, frame.f_lineno) for statement in statements for node in ast.walk(statement))


def _guards(node: ast.AST, line: int) -> bool:
    """Whether an `if` about `__name__` holds that line, or comes before it and may leave the script."""
    if not isinstance(node, ast.If) or not any(
        isinstance(name, ast.Name) and name.id == "__name__" for name in ast.walk(node.test)
    ):
        return False
    assert node.end_lineno is not None  # as for everything that was parsed
    return node.lineno <= line and (
        line <= node.end_lineno
        or any(isinstance(each, ast.Raise | ast.Call) for part in node.body for each in ast.walk(part))
    )


class Processes:
    """Worker processes for CPU-bound functions, ended with the run that opened them."""

    def __init__(self, context: WorkerContext, count: int) -> None:
        self._context = context
        self.count = count
        self._limiter = trio.CapacityLimiter(count)

    async def run(self, column: str, function: Callable[..., T], *args: object) -> T:
        """Run `function(*args)` in a process; a cancelled call kills its process, a dead process is `WorkerCrashed`."""
        hold_clock()
        try:
            return await self._context.run_sync(function, *args, kill_on_cancel=True, limiter=self._limiter)
        except trio_parallel.BrokenWorkerError as broken:
            if getattr(broken.args[-1], "exitcode", None) == -signal.SIGKILL:
                # Nothing of ours kills a worker that is not cancelled: the system does when memory runs out.
                raise MemoryError("its process was killed by the system (SIGKILL)") from broken
            raise WorkerCrashed(f"the process that ran column {column!r} died: {broken}") from broken
        finally:
            release_clock()


@asynccontextmanager
async def open_processes(count: int) -> AsyncIterator[Processes]:
    """At most `count` processes, each started when it is first needed."""
    raised: BaseException | None = None
    try:
        async with trio_parallel.open_worker_context(grace_period=2.0) as context:
            try:
                yield Processes(context, count)
            except BaseException as error:
                raised = error
                raise
            finally:
                # Leaving the context joins the workers in a thread of its own.
                hold_clock()
    except trio_parallel.BrokenWorkerError:
        # A worker that did not end in time was killed. All its work is over, so that is nobody's failure.
        if raised is not None:
            raise raised from raised.__cause__
    finally:
        release_clock()
