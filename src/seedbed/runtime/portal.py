"""How synchronous code awaits.

Three callers want an async function's result without being async themselves: code in one of our worker threads, a plain
script, and code called from inside a running event loop (a notebook). None of them may deadlock.
"""

from __future__ import annotations

import contextvars
import queue
import sys
import threading
from typing import TYPE_CHECKING, TypeVar

import outcome
import trio

from ..errors import Permanent
from .offload import hold_clock, release_clock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

# Set for the worker thread of a cell, so that what the cell calls finds its way back to the run it belongs to.
current_portal: contextvars.ContextVar[Portal | None] = contextvars.ContextVar("seedbed_portal", default=None)


class Portal:
    """From one worker thread back into the run: what is awaited runs in `nursery`, under a scope that the row owns.

    trio's own `from_thread.run` would run in a system task, which a row that is dropped cannot reach.
    """

    def __init__(self, nursery: trio.Nursery, adopt: Callable[[trio.CancelScope], Callable[[], None]]) -> None:
        self._nursery = nursery
        self._token = trio.lowlevel.current_trio_token()
        # Puts a scope into its row's hands and returns how to take it out again.
        self._adopt = adopt

    def run(self, function: Callable[..., Awaitable[T]], *args: object) -> T:
        """Await `function(*args)` on the run's thread and give its result here."""
        answers: queue.SimpleQueue[outcome.Outcome[T]] = queue.SimpleQueue()

        def start() -> None:
            try:
                self._nursery.start_soon(self._serve, function, args, answers)
            except RuntimeError as closed:  # the row group is over
                answers.put(outcome.Error(Permanent(f"the run this thread belongs to is over: {closed}")))
            else:
                release_clock()  # the thread only waits now

        try:
            self._token.run_sync_soon(start)
        except trio.RunFinishedError as over:
            raise Permanent("the run this thread belongs to is over") from over
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
                    # A thread that was given up may still ask, in the name of a cell that has long begun anew.
                    await trio.lowlevel.checkpoint_if_cancelled()
                    answer = outcome.Value(await function(*args))
                except Exception as error:  # noqa: BLE001  it is raised in the thread that asked
                    answer = outcome.Error(error)
        finally:
            release()
            hold_clock()  # the thread works again
            answers.put(answer)


def run_sync(function: Callable[..., Awaitable[T]], *args: object) -> T:
    """Await `function(*args)` from synchronous code, wherever that is called."""
    portal = current_portal.get()
    if portal is not None and not in_event_loop():
        return portal.run(function, *args)
    if not in_event_loop():
        return trio.run(_call, function, args)
    # A loop runs in this thread and cannot run another one: a thread of its own can.
    answers: list[outcome.Outcome[T]] = []
    context = contextvars.copy_context()

    def call() -> T:
        return context.run(trio.run, _call, function, args)

    def work() -> None:
        answers.append(outcome.capture(call))

    thread = threading.Thread(target=work, name="seedbed-bridge")
    thread.start()
    thread.join()
    return answers[0].unwrap()


async def _call(function: Callable[..., Awaitable[T]], args: tuple[object, ...]) -> T:
    return await function(*args)


def in_event_loop() -> bool:
    """Whether an event loop runs in this thread, so that another one cannot be started here."""
    if trio.lowlevel.in_trio_run():
        return True
    # Nobody runs asyncio who has not imported it, and importing it is slow.
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
