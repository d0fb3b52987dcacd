"""The public functions: `build`, `build_async`, `open_build`, `resume` and `preview`."""

from __future__ import annotations

import functools
import logging
import math
import os
import signal
import threading
from collections import deque
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, TypeVar, Unpack

import attrs
import polars as pl
import trio

from ..checks import RowCounts, row_counts
from ..columns.spec import Grants
from ..errors import AllRowsDropped, ConfigError, Interrupted, SeedbedError
from ..graph import nearest
from ..observe.events import Event, Events
from ..observe.history import History
from ..observe.html import rows_html
from ..observe.log import BlockingWatch, warn_of_missing_rows
from ..observe.preview import PreviewReader, PreviewRow
from ..observe.progress import ProgressState
from ..observe.show import open_display
from ..recipe.recipe import Recipe
from ..runtime.asyncio import anywhere, anywhere_context
from ..runtime.tasks import open_hidden_nursery
from ..runtime.threads import Lease, finish_in_thread, in_event_loop, new_clock, run_in_thread, virtual_clock
from ..store.dataset import Dataset
from ..store.history import HistoryFile
from ..store.manifest import is_dataset
from ..store.schema import arrow_table
from ..store.values import is_json, python_rows
from .checkpoint import CHECKPOINT_DEADLINE, FinishedGroup, process_all
from .config import RunConfig
from .describe import describe_run
from .estimate import ColumnEstimate, estimate_cells
from .plan import BuildPlan, plan_build
from .redo import RedoRequest, draws_of
from .run import run_build
from .source import make_source, stored_recipe
from .storage import abandon_revision, open_stores

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from ..columns.base import Column
    from ..observe.report import BuildReport, Usage
    from ..observe.show import Progress
    from ..runtime.throttle import KeyLimits, ThrottleManager
    from .run import Run
    from .storage import Stores
    from .tasks import Processor

logger = logging.getLogger("seedbed")

T = TypeVar("T")
Out = str | os.PathLike[str]

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Build:
    """A running build. Iterate over it for row groups as they finish, or `wait` for all of it."""

    def __init__(
        self, plan: BuildPlan, emitter: Events, throttles: ThrottleManager | None, *, checks_models: bool = False
    ) -> None:
        self._plan = plan
        self._checks_models = checks_models
        self._check_scope = trio.CancelScope()
        self._events = emitter
        self._throttles = throttles
        self._send, self._receive = trio.open_memory_channel[FinishedGroup](math.inf)
        # Received and not handed out: a row group that arrives while a cancelled caller waited goes to the next caller.
        self._arrived: deque[FinishedGroup] = deque()
        self._ended = trio.Event()
        self._run: Run | None = None
        self._stop_early = False  # `stop` was called before there was anything to stop
        self._failure: BaseException | None = None
        self._failure_seen = False
        self._report: BuildReport | None = None
        self._stores: Stores | None = None

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
        """Wait until the run is finished; raises what stopped it early, or `AllRowsDropped` if failures left no row."""
        await self._ended.wait()
        self._raise_failure()
        self._raise_if_all_dropped()
        return self.report

    @property
    def report(self) -> BuildReport:
        """The report; available once the build is finished."""
        if self._report is None:
            raise SeedbedError("the build is still running; its report is available once it is finished")
        return self._report

    @property
    def dataset(self) -> Dataset:
        """The dataset on disk, also while the build is running."""
        if self._stores is None or self._plan.out is None:
            raise SeedbedError("this build writes nothing to disk")
        dataset = Dataset.open(self._plan.out)
        dataset.report = self._report
        return dataset

    def stop(self) -> None:
        """End early: the first call lets calls in flight end within `grace`, the second cancels them."""
        if self._ended.is_set():
            return
        if self._run is None:
            self._stop_early = True
            self._check_scope.cancel(reason="the build was stopped")
        elif self._run.stopping is None:
            self._run.stop(Interrupted("the build was stopped; complete row groups are preserved"))
        else:
            self._run.cancel()

    def _started(self, run: Run) -> None:
        self._run = run
        if self._stop_early:
            self.stop()

    async def _check_models(self) -> list[tuple[str, Usage]]:
        """Call each model once, if that was asked for and there is something to generate."""
        plan = self._plan
        if not self._checks_models or plan.source.check_models is None or plan.is_finished:
            return []
        with self._check_scope:
            return await plan.source.check_models()
        return []

    def _raise_if_all_dropped(self) -> None:
        report = self.report
        before_columns = {step.name for step in self._plan.output.pre_batch}
        is_filtered = any(removed for name, removed, _ in report.resized if name not in before_columns)
        if report.written or is_filtered or not report.dropped:
            return
        assert self._run is not None  # it has just ended
        error = AllRowsDropped(
            f"all {len(report.dropped):,} rows were dropped: {report.dropped_because}; "
            f"once the cause is fixed, {'try again' if self._plan.out is None else 'resume with retry_dropped=True'}"
        )
        error.report = report
        error.__cause__ = self._run.ledger.causes.get(next(iter(report.drops_by_reason)))
        raise error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            self._failure_seen = True
            raise self._failure

    async def _main(self) -> None:
        """Run the build to its end; raises nothing but a cancellation."""
        try:
            watched = self._plan.source.watched  # warn about async functions that block the event loop
            async with self._plan.source.resources():
                checked = await self._check_models()  # before anything is written
                if self._plan.out is not None:
                    self._stores = await finish_in_thread(partial(open_stores, self._plan, self._plan.out))
                with BlockingWatch(watched) if watched else nullcontext():
                    self._report = await run_build(
                        self._plan,
                        stores=self._stores,
                        emitter=self._events,
                        deliver=self._send.send_nowait,
                        throttles=self._throttles,
                        on_start=self._started,
                        checked=checked,
                    )
        except Exception as failure:  # noqa: BLE001  it is raised where the build is waited for
            self._failure = failure
        finally:
            if self._report is None and self._run is not None:
                self._report = self._run.report()
            if self._stores is not None:
                # Release the directory, cancelled or not; a disk that hangs blocks only its own thread.
                with trio.CancelScope(shield=True, deadline=trio.current_time() + CHECKPOINT_DEADLINE):
                    await Lease(lambda: None).run(self._stores.close)
            self._send.close()
            self._ended.set()


class PreviewOptions(TypedDict, total=False):
    """Options that every build takes, by keyword."""

    config: RunConfig | None
    """How the build runs; by default the `run` options of the recipe."""
    limits: Mapping[str, KeyLimits] | None  # by throttle key
    """Limits by throttle key; those of a recipe's models need not be given."""
    processors: Iterable[Processor]
    """Processors besides those of the recipe."""
    readers: Iterable[Callable[[Event], None]]  # called with every event
    """Functions that are called with every event; one that has a method `close` is closed when the build has ended."""
    progress: Progress
    """On standard error: "panel", "lines" (one every ten seconds), "none", or "auto": the panel on a terminal and, as
    the output of the cell, in a notebook, else lines. `build`, `resume` and `preview` default to "auto", for which the
    environment variable SEEDBED_PROGRESS may set another one; asynchronous builds default to "none"."""


class BuildOptions(PreviewOptions, total=False):
    """Options of a build that may write a directory."""

    resume: bool
    """Continue an existing directory: finished rows are not generated again, and the dataset grows if `rows` is larger
    than before."""
    overwrite: bool
    """Replace the dataset in the directory, if there is one; a directory with anything else in it is an error."""
    retry_dropped: bool
    """Also retry rows that were dropped because of a failure."""
    accept_changes: bool
    """Resume although the code of functions or the rows of seed files changed."""
    reuse: Out
    """For a new dataset: take over from the dataset in this directory every column that has not changed and depends on
    none that has, with its row groups; only the rest is generated."""
    redo: Iterable[str]
    """Regenerate these columns of a finished dataset, and what depends on them, as a revision that takes its place once
    it is complete; empty to regenerate what the recipe changed. See `redo`."""
    redo_where: str
    """With `redo`: only in the rows for which this expression, as in `skip_when`, is true."""
    confirm: Callable[[Sequence[ColumnEstimate]], bool]
    """With `redo` or `reuse`: called with what is to be generated of each column, and its estimated cost, before
    anything is written; if it returns False nothing is."""
    check_models: bool
    """Send one small call to each chat and embedding model behind HTTP before anything is written, and raise
    `ModelCheckFailed` for those that are misconfigured or cannot be reached; the command does so by default."""


@anywhere_context
@asynccontextmanager
async def open_build(
    recipe: Recipe | Iterable[Column],
    *,
    rows: RowCounts = None,
    out: Out | None = None,
    throttles: ThrottleManager | None = None,
    **options: Unpack[BuildOptions],
) -> AsyncIterator[Build]:
    """Start a build that runs beside the block; under trio, anyio or asyncio.

    Leaving the block before the build is finished cancels the rest; row groups on disk are preserved. Without `out`
    nothing is written, and each row group is handed out with its rows. `BuildOptions` describes the options.
    """
    known = BuildOptions.__annotations__
    if unknown := [f"{name!r}{nearest(name, known)}" for name in options if name not in known]:
        raise TypeError(f"unknown option of a build: {', '.join(unknown)}")
    path = None if out is None else Path(out)
    request = _redo_request(options)
    is_resumed = path is not None and options.get("resume", False) and is_dataset(path)
    reused = None if (other := options.get("reuse")) is None else Path(other)
    drawn = path if is_resumed else reused  # the directory whose columns may have been redone
    source = make_source(
        recipe,
        config=options.get("config"),
        limits=options.get("limits"),
        processors=options.get("processors", ()),
        artifacts=path,
        draws={} if drawn is None else draws_of(drawn, request),
    )
    plan = plan_build(
        source,
        rows=row_counts(rows),
        out=path,
        resume=options.get("resume", False),
        overwrite=options.get("overwrite", False),
        retry_dropped=options.get("retry_dropped", False),
        accept_changes=options.get("accept_changes", False),
        redo=request,
        reuse=reused,
    )
    confirm = options.get("confirm")
    output = plan.output
    is_partial = output.redo is not None or output.reuse is not None
    if confirm is not None and is_partial and not confirm(estimate_cells(output)):
        raise ConfigError("nothing was changed: what is to be generated was not confirmed")
    title = source.recipe.name if source.recipe is not None else ""
    progress = options.get("progress", "none")
    # In virtual time hours take no time: there is nothing to watch.
    is_quiet = progress == "auto" and virtual_clock() is not None
    display = None if is_quiet else open_display(progress, title=title or (path.name if path else "") or "seedbed")
    readers = [*options.get("readers", ())]
    if display is not None:
        readers.append(display)
    history = None
    if path is not None and virtual_clock() is None:
        state = ProgressState() if display is None else display.state
        history_file = HistoryFile(path)
        history = History(state, history_file, describe_run(plan, title=title), counts=display is None)
        readers.append(history)
    build = Build(plan, Events(readers), throttles, checks_models=options.get("check_models", False))
    try:
        async with open_hidden_nursery("the block of open_build was left") as nursery:
            nursery.start_soon(build._main)  # noqa: SLF001  Build and this are one thing in two halves
            yield build
    finally:
        for reader in readers:
            if callable(close := getattr(reader, "close", None)):
                close()
        if history is not None:
            if build._report is not None:  # noqa: SLF001
                history.add_report(build._report)  # noqa: SLF001
            history_file.close()
    if not build._failure_seen:  # noqa: SLF001
        build._raise_failure()  # noqa: SLF001


@anywhere
async def build_async(
    recipe: Recipe | Iterable[Column],
    *,
    rows: RowCounts = None,
    out: Out,
    throttles: ThrottleManager | None = None,
    **options: Unpack[BuildOptions],
) -> Dataset:
    """Do what `build` does under trio, anyio or asyncio.

    Builds that are given the same `throttles` (`open_throttles`) share the limits of their endpoints. The host handles
    signals; cancelling this call cancels the build and preserves what is on disk.
    """
    async with open_build(recipe, rows=rows, out=out, throttles=throttles, **options) as running:
        warn_of_missing_rows(await running.wait())
        return running.dataset


def _redo_request(options: BuildOptions) -> RedoRequest | None:
    columns, where = options.get("redo"), options.get("redo_where")
    if columns is None and where is None:
        return None
    if isinstance(columns, str):
        raise ConfigError(f"redo takes names of columns, not the text {columns!r}")
    return RedoRequest(columns=tuple(dict.fromkeys(columns or ())), where=where)


def build(
    recipe: Recipe | Iterable[Column], *, rows: RowCounts = None, out: Out, **options: Unpack[BuildOptions]
) -> Dataset:
    """Build a dataset of so many rows in the directory `out`, which must be new or empty; from synchronous code.

    `rows` is a number, such as 1000 or 1e6, or a text such as "100k", in all functions. For a recipe with stages it may
    be a mapping of them by stage, and is needed only for those without `rows` in the recipe. `build` also works inside
    a running event loop. The options are those of `BuildOptions`. It raises what stopped it early, with the report.

    Ctrl-C and SIGTERM stop it: the first lets calls in flight end within `grace`, the second cancels them, the third
    kills the process. Row groups on disk are preserved.
    """
    options.setdefault("progress", "auto")

    async def main(watch: Callable[[Build], None]) -> Dataset:
        async with open_build(recipe, rows=rows, out=out, **options) as running:
            watch(running)
            warn_of_missing_rows(await running.wait())
            return running.dataset

    return _run_sync(main)


def resume(
    directory: Out,
    recipe: Recipe | Iterable[Column] | None = None,
    *,
    rows: RowCounts = None,
    allow_code: bool = False,
    allow_paths: Iterable[Out] = (),
    allow_env: Iterable[str] = (),
    **options: Unpack[BuildOptions],
) -> Dataset:
    """Resume an unfinished build; complete row groups are not touched.

    A recipe that came from a file is stored in the directory. One that was written in Python is passed again, or found
    again by the names of its functions with `allow_code=True`. With `rows` the dataset grows. `allow_paths` and
    `allow_env` are those of `load_recipe`: the folder that a stored recipe came from grants nothing. The other options
    are those of `BuildOptions`.
    """
    path = Path(directory)
    if recipe is None:
        recipe = stored_recipe(path, Grants(code=allow_code, paths=allow_paths, env=allow_env))
    options["resume"] = True
    return build(recipe, rows=rows, out=path, **options)


def redo(
    directory: Out,
    columns: Iterable[str] = (),
    *,
    where: str | None = None,
    recipe: Recipe | Iterable[Column] | None = None,
    allow_code: bool = False,
    allow_paths: Iterable[Out] = (),
    allow_env: Iterable[str] = (),
    **options: Unpack[BuildOptions],
) -> Dataset:
    """Regenerate columns of a finished dataset, and all that depends on them, in place.

    `where` is an expression as in `skip_when`; only the rows for which it is true are regenerated. A `recipe` replaces
    the one of the dataset: what it changes is regenerated in all rows. Models are called anew, and samplers that are
    named draw other values.

    Until the new revision is complete the directory holds the old one. A redo that was stopped or killed is continued
    by the same call or by `resume`, or taken back by `abandon_redo`. The other arguments are those of `resume`.
    """
    options["redo"] = columns
    if where is not None:
        options["redo_where"] = where
    return resume(directory, recipe, allow_code=allow_code, allow_paths=allow_paths, allow_env=allow_env, **options)


def abandon_redo(directory: Out) -> bool:
    """Take back a redo that is not finished: the dataset stays as it was. False if there is none."""
    return abandon_revision(Path(directory))


@attrs.frozen(kw_only=True, repr=False)
class Preview:
    """A few rows, in memory."""

    frame: pl.DataFrame = attrs.field(eq=False)
    """The rows."""
    report: BuildReport = attrs.field(eq=False)
    """The report."""
    rows: tuple[PreviewRow, ...] = attrs.field(default=(), eq=False, repr=False)
    """All rows as they were generated, also those that were dropped or removed, with the reason, and their prompts."""

    def __repr__(self) -> str:
        return f"<Preview: {self._summary()}>\n{self.frame}"

    def _summary(self) -> str:
        report = self.report
        return f"{report.counts} ({report.dropped_because})" if report.dropped else report.counts

    def to_polars(self) -> pl.DataFrame:
        """The rows."""
        return self.frame

    def _repr_html_(self) -> str:
        types = {name: "json" if is_json(dtype) else str(dtype) for name, dtype in self.frame.schema.items()}
        rows = python_rows(self.frame)
        return rows_html(types, rows, summary=f"Preview: {self._summary()}", total=len(rows))


def preview(
    recipe: Recipe | Iterable[Column],
    *,
    rows: RowCounts = 5,
    on_row: Callable[[PreviewRow], None] | None = None,
    show_prompts: bool = False,
    **options: Unpack[PreviewOptions],
) -> Preview:
    """Generate a few rows; nothing is written to disk. With `accept` and the like these are so many candidates.

    `on_row` is called with each row as soon as it is finished or dropped, and once more if a processor removes it. With
    `show_prompts` rows have the messages that the models of their cells were called with. The other options are those
    of `BuildOptions`.
    """
    if isinstance(recipe, Recipe) and recipe.limits_rows and isinstance(rows, int) and rows > 0:
        recipe = attrs.evolve(recipe, max_candidates=rows, on_exhausted="partial")
    reader = PreviewReader(on_row, prompts=show_prompts)
    options["readers"] = (*options.get("readers", ()), reader)
    config = options.get("config") or (
        RunConfig.from_mapping(recipe.run) if isinstance(recipe, Recipe) else RunConfig()
    )
    counts = row_counts(rows)
    wanted = [*counts.values()] if isinstance(counts, dict) else [counts or 0]
    options["config"] = attrs.evolve(config, buffer_size=max(config.buffer_size, *wanted))
    options.setdefault("progress", "auto")

    async def main(watch: Callable[[Build], None]) -> Preview:
        async with open_build(recipe, rows=rows, **options) as running:
            watch(running)
            plan = running._plan.output  # noqa: SLF001
            groups = [group async for group in running if group.stage == plan.stage]
            frames = [group.to_polars() for group in sorted(groups, key=lambda group: group.row_group)]
            report = running.report
            if not frames:  # no rows, but the columns that they would have
                columns: dict[str, list[object]] = {name: [] for name in plan.stored}
                frames.append(pl.DataFrame(arrow_table(columns, plan.header.declared_types)[0]))
            frame = frames[0] if len(frames) == 1 else pl.concat(frames, how="diagonal_relaxed")
            for processor in plan.after_generation if frame.height else ():
                before = frame
                frame, resized = await finish_in_thread(partial(process_all, [processor], before.lazy(), before.height))
                report = attrs.evolve(report, written=frame.height, resized=(*report.resized, *resized))
                reader.processed(processor.label, before, frame)
            warn_of_missing_rows(report)
            return Preview(frame=frame, report=report, rows=reader.rows)

    return _run_sync(main)


def _run_sync(main: Callable[[Callable[[Build], None]], Awaitable[T]]) -> T:
    """Run a build from synchronous code and handle signals, in any thread and inside any loop."""
    interrupts = Interrupts()

    async def watched() -> T:
        return await main(lambda build: interrupts.watch(build.stop))

    run = partial(trio.run, watched, clock=new_clock())  # chosen here: the contextvar is that of the calling thread
    with interrupts.handled():
        if not in_event_loop():
            return run()
        _explain_thread()
        return run_in_thread(run)


@functools.cache  # once is enough
def _explain_thread() -> None:
    logger.warning(
        "an event loop runs in this thread, as in a notebook: the build runs in a thread of its own, and the loop "
        "is blocked until it is finished; `await seedbed.build_async(...)` does not block it"
    )


# Ctrl-C and SIGTERM while synchronous code waits for a build.


class Interrupts:
    """The first and the second signal stop the build; the third is left to the system, which ends the process.

    The handler counts signals in the main thread: so the third one works even if trio's thread hangs, and one that
    arrives before the build has started is not lost.
    """

    def __init__(self) -> None:
        self._count = 0  # changed by the handler only
        self._delivered = 0  # this and the two below are changed on trio's thread only
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop: Callable[[], None] | None = None

    def watch(self, stop: Callable[[], None]) -> None:
        """Call `stop`, on trio's thread, for each signal that has arrived or will arrive."""
        self._stop = stop
        self._token = trio.lowlevel.current_trio_token()
        self._deliver()

    def _deliver(self) -> None:
        assert self._stop is not None
        while self._delivered < self._count:
            self._delivered += 1
            self._stop()

    def _handle(self, number: int, _frame: object) -> None:
        self._count += 1
        if self._count > 2:  # grace and cancellation did not end it
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._deliver)

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle signals during the block, if this is the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._handle) for number in _NUMBERS}
        try:
            yield
        finally:
            for number, handler in before.items():
                # None: it was not installed from Python, and Python cannot put it back.
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
