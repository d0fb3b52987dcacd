"""What users call: `build`, `build_async`, `open_build` and `preview`."""

from __future__ import annotations

import functools
import logging
import os
from collections import deque
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import attrs
import outcome
import polars as pl
import trio

from ..embed import anywhere, anywhere_context
from ..errors import Interrupted, SeedbedError
from ..observe.blocking import BlockWarning, watch_blocking
from ..observe.events import Event, Events
from ..recipe.access import Grants
from ..recipe.recipe import Recipe
from ..runtime.clocks import new_clock
from ..runtime.exceptions import open_hidden_nursery
from ..runtime.offload import Lease, finish_in_thread
from ..runtime.portal import in_event_loop
from ..store.dataset import Dataset
from ..store.manifest import read as read_manifest
from ..store.schema import arrow_table
from .checkpoint import CHECKPOINT_DEADLINE, FinishedGroup
from .config import RunConfig
from .plan import BuildPlan, plan_build
from .run import run_build
from .signals import Interrupts, run_in_thread
from .source import make_source, stored_recipe
from .storage import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping

    from ..generators import Column
    from ..observe.report import BuildReport
    from ..runtime.throttle import KeyLimits, ThrottleManager
    from .processor import Processor
    from .run import Run
    from .storage import Store

logger = logging.getLogger("seedbed")

T = TypeVar("T")
Out = str | os.PathLike[str]


class Build:
    """A build under way. Iterate over it for row groups as they finish, or `wait` for the whole."""

    def __init__(self, plan: BuildPlan, emitter: Events, throttles: ThrottleManager | None) -> None:
        self._plan = plan
        self._events = emitter
        self._throttles = throttles
        self._send, self._receive = trio.open_memory_channel[FinishedGroup](plan.group_count or 1)
        # Received and not handed out: what arrives for one whose wait is cancelled stays for the next.
        self._arrived: deque[FinishedGroup] = deque()
        self._over = trio.Event()
        self._run: Run | None = None
        self._stop_early = False  # `stop` was called before there was anything to stop
        self._failure: BaseException | None = None
        self._failure_seen = False
        self._report: BuildReport | None = None
        self._store: Store | None = None

    def __aiter__(self) -> AsyncIterator[FinishedGroup]:
        return self

    async def __anext__(self) -> FinishedGroup:
        while not self._arrived:
            await self._next()
        return self._arrived.popleft()

    @anywhere
    async def _next(self) -> None:
        try:
            self._arrived.append(await self._receive.receive())
        except trio.EndOfChannel:
            self._raise_failure()
            raise StopAsyncIteration from None

    @anywhere
    async def wait(self) -> BuildReport:
        """Wait until the run is over; raises what ended it early."""
        await self._over.wait()
        self._raise_failure()
        assert self._report is not None
        return self._report

    @property
    def report(self) -> BuildReport:
        """What the build did; there once it is over."""
        if self._report is None:
            raise SeedbedError("the build is not over; its report comes with its last row group")
        return self._report

    @property
    def dataset(self) -> Dataset:
        """What is on disk, also while the build goes on."""
        if self._store is None:
            raise SeedbedError("this build writes nothing to disk")
        dataset = Dataset.open(self._store.writer.path)
        dataset.report = self._report
        return dataset

    def stop(self) -> None:
        """End early: the first call gives what is in flight its grace, the second cancels it."""
        if self._over.is_set():
            return
        if self._run is None:
            self._stop_early = True
        elif self._run.stopping is None:
            self._run.stop(Interrupted("the build was stopped; what is complete is kept"))
        else:
            self._run.cancel()

    def _started(self, run: Run) -> None:
        self._run = run
        if self._stop_early:
            self.stop()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            self._failure_seen = True
            raise self._failure

    def _watch(self) -> AbstractContextManager[None]:
        """Warn of users' async functions that keep everything else waiting."""
        watched = self._plan.source.watched
        return watch_blocking(BlockWarning(watched)) if watched else nullcontext()

    async def _main(self) -> None:
        """Run the build to its end, whatever that is; only a cancellation leaves this."""
        try:
            if self._plan.out is not None:
                self._store = await finish_in_thread(partial(open_store, self._plan, self._plan.out))
            async with self._plan.source.resources():
                with self._watch():
                    self._report = await run_build(
                        self._plan,
                        store=self._store,
                        emitter=self._events,
                        deliver=self._send.send_nowait,
                        throttles=self._throttles,
                        on_start=self._started,
                    )
        except Exception as failure:  # noqa: BLE001  it is raised where the build is waited for
            self._failure = failure
        finally:
            if self._report is None and self._run is not None:
                self._report = self._run.report()
            if self._store is not None:
                await _close(self._store)
            self._send.close()
            self._over.set()


async def _close(store: Store) -> None:
    """Let go of the directory, cancelled or not; a disk that hangs is left to its thread."""
    with trio.CancelScope(shield=True, deadline=trio.current_time() + CHECKPOINT_DEADLINE):
        await Lease(lambda: None).run(store.close)


@anywhere_context
@asynccontextmanager
async def open_build(
    recipe: Recipe | Iterable[Column],
    *,
    rows: int,
    out: Out | None = None,
    config: RunConfig | None = None,
    limits: Mapping[str, KeyLimits] | None = None,
    processors: Iterable[Processor] = (),
    readers: Iterable[Callable[[Event], None]] = (),
    throttles: ThrottleManager | None = None,
    resume: bool = False,
    retry_dropped: bool = False,
    accept_changes: bool = False,
) -> AsyncIterator[Build]:
    """Start a build and go on beside it; under trio, anyio or asyncio.

    Leaving the block before the build is over cancels the rest; row groups that are on disk stay. Without `out` nothing
    is written and each row group is handed out with its rows.

    With `resume` a directory that is there is gone on with: what is in it is not made again, and where `rows` is more
    than before the dataset grows. Then `retry_dropped` tries the rows again that were dropped because of a failure, and
    `accept_changes` goes on although the code of functions or the rows of seed files are not what they were.
    """
    path = None if out is None else Path(out)
    source = make_source(recipe, config=config, limits=limits, processors=processors, artifacts=path)
    plan = plan_build(
        source, rows=rows, out=path, resume=resume, retry_dropped=retry_dropped, accept_changes=accept_changes
    )
    build = Build(plan, Events(readers), throttles)
    async with open_hidden_nursery("the block of open_build was left") as nursery:
        nursery.start_soon(build._main)  # noqa: SLF001  Build and this are one thing in two halves
        yield build
    if not build._failure_seen:  # noqa: SLF001
        build._raise_failure()  # noqa: SLF001


@anywhere
async def build_async(
    recipe: Recipe | Iterable[Column],
    *,
    rows: int,
    out: Out,
    config: RunConfig | None = None,
    limits: Mapping[str, KeyLimits] | None = None,
    processors: Iterable[Processor] = (),
    readers: Iterable[Callable[[Event], None]] = (),
    throttles: ThrottleManager | None = None,
    resume: bool = False,
    retry_dropped: bool = False,
    accept_changes: bool = False,
) -> Dataset:
    """Build a dataset under trio, anyio or asyncio.

    Signals are the caller's; cancelling it unwinds everything and keeps what is on disk.
    """
    async with open_build(
        recipe,
        rows=rows,
        out=out,
        config=config,
        limits=limits,
        processors=processors,
        readers=readers,
        throttles=throttles,
        resume=resume,
        retry_dropped=retry_dropped,
        accept_changes=accept_changes,
    ) as running:
        await running.wait()
        return running.dataset


def build(
    recipe: Recipe | Iterable[Column],
    *,
    rows: int,
    out: Out,
    config: RunConfig | None = None,
    limits: Mapping[str, KeyLimits] | None = None,
    processors: Iterable[Processor] = (),
    readers: Iterable[Callable[[Event], None]] = (),
    resume: bool = False,
    retry_dropped: bool = False,
    accept_changes: bool = False,
) -> Dataset:
    """Build a dataset from synchronous code, also inside a running event loop.

    Ctrl-C and SIGTERM stop it: the first lets calls in flight end within `grace`, the second cancels them, the third
    kills the process. Row groups that are on disk stay.
    """

    async def main(watch: Callable[[Build], None]) -> Dataset:
        async with open_build(
            recipe,
            rows=rows,
            out=out,
            config=config,
            limits=limits,
            processors=processors,
            readers=readers,
            resume=resume,
            retry_dropped=retry_dropped,
            accept_changes=accept_changes,
        ) as running:
            watch(running)
            await running.wait()
            return running.dataset

    return _run_sync(main)


def resume(
    directory: Out,
    recipe: Recipe | Iterable[Column] | None = None,
    *,
    rows: int | None = None,
    config: RunConfig | None = None,
    limits: Mapping[str, KeyLimits] | None = None,
    processors: Iterable[Processor] = (),
    readers: Iterable[Callable[[Event], None]] = (),
    retry_dropped: bool = False,
    accept_changes: bool = False,
    allow_code: bool = False,
    allow_paths: Iterable[Out] = (),
    allow_env: Iterable[str] = (),
) -> Dataset:
    """Go on with a directory that a build left unfinished; row groups that are complete are not touched.

    A recipe that came from a file is kept in the directory. One that was written in Python is passed again, or found
    again by the names of its functions with `allow_code=True`. `rows` lets the dataset grow to so many; what may differ
    besides is in docs/reference/resume.md. `retry_dropped` and `accept_changes` are those of `open_build`,
    `allow_paths` and `allow_env` those of `load_recipe`: the folder that a stored recipe came from grants nothing.
    """
    path = Path(directory)
    header = read_manifest(path).manifest.header
    assert header is not None  # a manifest without one cannot be read
    if recipe is None:
        recipe = stored_recipe(path, Grants(code=allow_code, paths=allow_paths, env=allow_env))
    return build(
        recipe,
        rows=header.rows if rows is None else rows,
        out=path,
        config=config,
        limits=limits,
        processors=processors,
        readers=readers,
        resume=True,
        retry_dropped=retry_dropped,
        accept_changes=accept_changes,
    )


@attrs.frozen(kw_only=True)
class Preview:
    """A few rows, in memory."""

    frame: pl.DataFrame = attrs.field(eq=False)
    report: BuildReport = attrs.field(eq=False, repr=False)

    def to_polars(self) -> pl.DataFrame:
        """The rows."""
        return self.frame

    def _repr_html_(self) -> str:
        return self.frame._repr_html_()


def preview(
    recipe: Recipe | Iterable[Column],
    *,
    rows: int = 5,
    config: RunConfig | None = None,
    limits: Mapping[str, KeyLimits] | None = None,
    processors: Iterable[Processor] = (),
    readers: Iterable[Callable[[Event], None]] = (),
) -> Preview:
    """Make a few rows as one row group; nothing is written to disk."""
    config = config or (RunConfig.from_mapping(recipe.run) if isinstance(recipe, Recipe) else RunConfig())
    if isinstance(rows, int) and rows > config.buffer_size:
        config = attrs.evolve(config, buffer_size=rows)

    async def main(watch: Callable[[Build], None]) -> Preview:
        async with open_build(
            recipe, rows=rows, config=config, limits=limits, processors=processors, readers=readers
        ) as running:
            watch(running)
            frames = [group.to_polars() async for group in running]
            if not frames:  # no rows, but the columns that they would have
                plan = running._plan  # noqa: SLF001
                frames.append(pl.DataFrame(arrow_table({name: [] for name in plan.graph.outputs}, plan.declared)[0]))
            return Preview(frame=frames[0], report=running.report)

    return _run_sync(main)


def _run_sync(main: Callable[[Callable[[Build], None]], Awaitable[T]]) -> T:
    """Run a build from synchronous code with the signals in our hands, whatever thread or loop this is."""
    interrupts = Interrupts()

    async def watched() -> T:
        return await main(lambda build: interrupts.watch(build.stop))

    with interrupts.handled():
        return _run_in_thread(watched) if in_event_loop() else trio.run(watched, clock=new_clock())


def _run_in_thread(main: Callable[[], Awaitable[T]]) -> T:
    """A notebook: its loop runs in this thread, so trio gets one of its own, and this one waits for it."""
    _explain_thread()
    results: list[outcome.Outcome[T]] = []
    run = partial(trio.run, main, clock=new_clock())  # asked for here: the thread does not know who called
    run_in_thread(lambda: results.append(outcome.capture(run)))
    return results[0].unwrap()


@functools.cache  # once is enough
def _explain_thread() -> None:
    logger.warning(
        "an event loop runs in this thread, as in a notebook: the build runs in a thread of its own, and the loop "
        "stands still until it is over; `await seedbed.build_async(...)` would let it go on"
    )
