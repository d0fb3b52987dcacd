"""Threads and processes, and the way back from a thread into its run.

A thread cannot be killed: when its task is cancelled or times out it is abandoned, and its slot is held until it
ends. A virtual clock must not jump while a thread works, so everything here holds the clock meanwhile; there is no
other way to a thread.
"""

from __future__ import annotations

import ast
import contextvars
import math
import multiprocessing
import queue
import signal
import sys
import threading
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import outcome
import trio
import trio_parallel

from ..errors import ConfigError, Permanent, WorkerCrashed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from types import FrameType

    from trio.abc import Clock
    from trio.testing import MockClock
    from trio_parallel import WorkerContext

T = TypeVar("T")

_hold_count: trio.lowlevel.RunVar[int] = trio.lowlevel.RunVar("seedbed.hold_count", default=0)
_hold_threshold: trio.lowlevel.RunVar[float] = trio.lowlevel.RunVar("seedbed.hold_threshold", default=math.inf)
# Makes the clock of runs that synchronous calls start; None for trio's own.
_make_clock: contextvars.ContextVar[Callable[[], Clock] | None] = contextvars.ContextVar(
    "seedbed.make_clock", default=None
)
# Set in the worker thread of a cell, so that what the cell calls finds the run that it belongs to.
current_portal: contextvars.ContextVar[Portal | None] = contextvars.ContextVar("seedbed_portal", default=None)

# Seconds until a signal is handled that the system gave to another thread than the main one.
_SIGNAL_INTERVAL = 0.1


def new_clock() -> Clock | None:
    """The clock for a new `trio.run`; call it in the thread of the caller, which may have set one."""
    make = _make_clock.get()
    return None if make is None else make()


@contextmanager
def clocks_made_by(make: Callable[[], Clock]) -> Iterator[None]:
    """Runs that synchronous calls start in this block get their clock from `make`."""
    token = _make_clock.set(make)
    try:
        yield
    finally:
        _make_clock.reset(token)


def virtual_clock() -> MockClock | None:
    """The clock of this run, if its time is virtual."""
    # Without trio.testing, which is slow to import, no clock is virtual.
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

    Given to trio in place of a limiter: its owner already has the slot, so acquiring grants at once, and
    trio calls `release_on_behalf_of` when the thread has ended, even if its task was cancelled.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        self.on_end = on_end  # called exactly once, on trio's thread, unless the run ends before the thread
        self._state = "new"
        # True if the task was cancelled while the thread worked.
        self.abandoned = False

    async def acquire_on_behalf_of(self, _borrower: object) -> None:
        """Trio is about to start the thread."""
        self._state = "running"
        hold_clock()

    def release_on_behalf_of(self, _borrower: object) -> None:
        """The thread has ended."""
        self._state = "ended"
        release_clock()
        self.on_end()

    async def run(self, function: Callable[[], T]) -> T:
        """Run `function` in a thread, once. When cancelled, the thread is abandoned and this raises at once."""
        try:
            # mypy knows CapacityLimiter only; trio documents that any object with these two methods will do.
            return await trio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=self)  # type: ignore[arg-type]
        finally:
            if self._state == "running":
                self.abandoned = True
            elif self._state == "new":  # cancelled before there was a thread
                self._state = "ended"
                self.on_end()


@contextmanager
def clock_held() -> Iterator[None]:
    """A virtual clock does not jump during this block."""
    hold_clock()
    try:
        yield
    finally:
        release_clock()


async def finish_in_thread(function: Callable[[], T]) -> T:
    """Run `function`, which must be short, in a thread and wait for it, cancelled or not."""
    with clock_held():
        return await trio.to_thread.run_sync(function)


async def run_abandonable(function: Callable[[], T]) -> T:
    """Run `function` in a thread; when cancelled, the thread is abandoned and this raises at once."""
    limiter = trio.to_thread.current_default_thread_limiter()
    holder = object()
    await limiter.acquire_on_behalf_of(holder)
    return await Lease(lambda: limiter.release_on_behalf_of(holder)).run(function)


class Portal:
    """Calls from one worker thread into its run: they run in `nursery`, each under a scope that the row owns.

    trio's own `from_thread.run` would run in a system task, which a row that is dropped cannot reach.
    """

    def __init__(self, nursery: trio.Nursery, adopt: Callable[[trio.CancelScope], Callable[[], None]]) -> None:
        self._nursery = nursery
        self._token = trio.lowlevel.current_trio_token()
        # Registers a scope with its row; returns what unregisters it.
        self._adopt = adopt

    def run(self, function: Callable[..., Awaitable[T]], *args: object) -> T:
        """Await `function(*args)` on the run's thread and return its result here."""
        answers: queue.SimpleQueue[outcome.Outcome[T]] = queue.SimpleQueue()

        def start() -> None:
            try:
                self._nursery.start_soon(self._serve, function, args, answers)
            except RuntimeError as closed:  # the row group has ended
                answers.put(outcome.Error(Permanent(f"the run that this thread belongs to has ended: {closed}")))
            else:
                release_clock()  # the thread only waits now

        try:
            self._token.run_sync_soon(start)
        except trio.RunFinishedError as error:
            raise Permanent("the run that this thread belongs to has ended") from error
        return answers.get().unwrap()

    async def _serve(
        self,
        function: Callable[..., Awaitable[T]],
        args: tuple[object, ...],
        answers: queue.SimpleQueue[outcome.Outcome[T]],
    ) -> None:
        answer: outcome.Outcome[T] = outcome.Error(Permanent("the cell was cancelled"))
        scope = trio.CancelScope()
        release = self._adopt(scope)
        try:
            with scope:
                try:
                    # An abandoned thread may still call, for a cell that has been retried since.
                    await trio.lowlevel.checkpoint_if_cancelled()
                    answer = outcome.Value(await function(*args))
                except Exception as error:  # noqa: BLE001  it is raised in the calling thread
                    answer = outcome.Error(error)
        finally:
            release()
            hold_clock()  # the thread works again
            answers.put(answer)


def run_sync(function: Callable[..., Awaitable[T]], *args: object) -> T:
    """Await `function(*args)` from synchronous code: in a worker thread, a script or a running event loop."""

    async def call() -> T:
        return await function(*args)

    if in_event_loop():  # it cannot run another one: a thread of its own can
        return run_in_thread(partial(contextvars.copy_context().run, trio.run, call))
    portal = current_portal.get()
    return trio.run(call) if portal is None else portal.run(call)


def run_in_thread(function: Callable[[], T]) -> T:
    """Run `function` in a thread of its own and wait for it; in the main thread, signals are handled meanwhile."""
    results: list[outcome.Outcome[T]] = []
    thread = threading.Thread(target=lambda: results.append(outcome.capture(function)), name="seedbed-run")
    thread.start()
    # Python runs signal handlers in the main thread, which does not wake up if the system gave a signal to another one.
    while thread.is_alive():
        thread.join(_SIGNAL_INTERVAL)
    return results[0].unwrap()


def in_event_loop() -> bool:
    """True if an event loop runs in this thread, so that another one cannot be started here."""
    if trio.lowlevel.in_trio_run():
        return True
    # Without the module, which is slow to import, no asyncio loop runs.
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None  # noqa: SLF001  documented, never raises


def check_main_guard(*, starts_processes: bool) -> None:
    """Raise `ConfigError` where a worker process would build again: it imports the script that started it.

    The script must call `build` under `if __name__ == "__main__":`.
    """
    # Set by multiprocessing while a new process imports the script.
    if getattr(multiprocessing.current_process(), "_inheriting", False) or (starts_processes and _is_unguarded()):
        raise ConfigError(
            "a column with process=True starts processes that import this script again: "
            'put the call that builds under `if __name__ == "__main__":`'
        )


def _is_unguarded() -> bool:
    """True if the script's top level called this, outside an `if` about `__name__`."""
    main = sys.modules.get("__main__")
    path, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    # Without a file (a notebook, -c) there is nothing to import, and `python -m package` is not imported again.
    if path is None or (spec is not None and spec.name.endswith("__main__")):
        return False
    frame: FrameType | None = sys._getframe()  # noqa: SLF001  the only way to find the caller
    while frame is not None and not (frame.f_globals is vars(main) and frame.f_code.co_name == "<module>"):
        frame = frame.f_back
    if frame is None:
        return False
    try:
        script = ast.parse(Path(path).read_bytes())
    except (OSError, ValueError, SyntaxError):
        return False
    return not any(_guards(node, frame.f_lineno) for node in ast.walk(script))


def _guards(node: ast.AST, line: int) -> bool:
    """True if an `if` about `__name__` contains that line, or precedes it and may end the script."""
    if not isinstance(node, ast.If) or node.lineno > line:
        return False
    if not any(isinstance(name, ast.Name) and name.id == "__name__" for name in ast.walk(node.test)):
        return False
    may_end = any(isinstance(each, ast.Raise | ast.Call) for part in node.body for each in ast.walk(part))
    return may_end or line <= (node.end_lineno or 0)


class Processes:
    """Worker processes for CPU-bound functions, ended with the run that opened them."""

    def __init__(self, context: WorkerContext, count: int) -> None:
        self._context = context
        self.count = count
        self._limiter = trio.CapacityLimiter(count)

    async def run(self, column: str, function: Callable[..., T], *args: object) -> T:
        """Run `function(*args)` in a process; a cancelled call kills its process, a dead process is `WorkerCrashed`."""
        try:
            with clock_held():
                return await self._context.run_sync(function, *args, kill_on_cancel=True, limiter=self._limiter)
        except trio_parallel.BrokenWorkerError as broken:
            if getattr(broken.args[-1], "exitcode", None) == -signal.SIGKILL:
                # Nothing of ours kills a worker that is not cancelled: the system does when memory runs out.
                raise MemoryError("its process was killed by the system (SIGKILL)") from broken
            raise WorkerCrashed(f"the process that ran column {column!r} died: {broken}") from broken


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
        # A worker that did not end in time was killed. Its work was finished, so this is no failure.
        if raised is not None:
            raise raised from raised.__cause__
    finally:
        release_clock()
