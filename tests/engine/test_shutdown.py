"""However a run is ended, it ends soon, says why, and what is complete stays."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from step_harness import check_run

import seedbed as sb
from seedbed.engine import checkpoint as checkpoint_module
from seedbed.engine import run as run_module
from seedbed.engine import worker
from seedbed.engine.row_group import RowGroup
from seedbed.engine.scheduler import Scheduler
from seedbed.observe import events
from seedbed.store import parts, writer
from seedbed.store.files import PRIVATE
from seedbed.store.manifest import MANIFEST_NAME

if TYPE_CHECKING:
    from collections.abc import Callable

CONFIG: dict[str, Any] = {"jitter_seed": 1, "buffer_size": 2}


async def numbers(rows: range) -> list[int]:
    """Fill a column with the numbers of its rows."""
    return list(rows)


SEED = sb.Column("n", numbers, kind="from_scratch")


def slow_after(row: int, seconds: float) -> sb.Column:
    """A column that takes a second, and from `row` on longer."""

    async def slow(n: int) -> int:
        await trio.sleep(1 if n < row else seconds)
        return n

    return sb.Column("slow", slow)


def open_build(columns: list[sb.Column], *, rows: int = 6, **options: Any) -> Any:
    """Open a build of small row groups."""
    config = sb.RunConfig(**CONFIG, **options.pop("run_options", {}))
    return sb.open_build(columns, rows=rows, config=config, **options)


def left_in(directory: Path) -> set[str]:
    """What is in an output directory beside its manifest and its journal."""
    return {path.name for path in directory.iterdir()} - {PRIVATE}


async def test_the_first_stop_gives_grace(autojump_clock: trio.testing.MockClock) -> None:
    """After one stop, what ends within the grace counts, nothing new is started, and the error carries the report."""
    started = []

    async def watched(n: int) -> int:
        started.append(n)
        await trio.sleep(4)
        return n

    with pytest.raises(sb.Interrupted) as stopped:
        async with open_build(
            [SEED, sb.Column("watched", watched)], run_options={"max_concurrent_row_groups": 1}
        ) as build:
            await trio.sleep(1)
            build.stop()
            await build.wait()
    assert trio.current_time() == 4
    assert sorted(started) == [0, 1]
    report = stopped.value.report
    assert report is not None
    assert (report.written, report.unfinished) == (2, (range(2, 6),))
    assert build.report.written == 2
    check_run(build._run)


async def test_grace_has_an_end(autojump_clock: trio.testing.MockClock) -> None:
    """What has not ended when the grace has ended is cancelled."""
    async with open_build([SEED, slow_after(2, 100)], run_options={"grace": 3}) as build:
        await trio.sleep(2)
        build.stop()
        with pytest.raises(sb.Interrupted):
            await build.wait()
        assert trio.current_time() == 5
        assert build.report.unfinished == (range(2, 6),)
        check_run(build._run)


async def test_the_second_stop_cancels_at_once(autojump_clock: trio.testing.MockClock) -> None:
    """After two stops nothing is waited for."""
    async with open_build([SEED, slow_after(0, 100)]) as build:
        await trio.sleep(2)
        build.stop()
        build.stop()
        with pytest.raises(sb.Interrupted):
            await build.wait()
        assert trio.current_time() == 2
        check_run(build._run)


async def test_a_stop_before_the_run_has_begun_counts(autojump_clock: trio.testing.MockClock, tmp_path: Path) -> None:
    """A build that is stopped as soon as it is opened generates nothing and leaves a directory that opens."""
    async with open_build([SEED, slow_after(0, 1)], out=tmp_path / "out") as build:
        build.stop()
        with pytest.raises(sb.Interrupted):
            await build.wait()
        assert build.report.attempts == {}
    assert sb.Dataset.open(tmp_path / "out").rows == 0


async def test_a_stop_after_the_end_does_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """A stop of a build that has ended changes nothing."""
    async with open_build([SEED]) as build:
        report = await build.wait()
        build.stop()
        assert (await build.wait()) is report


async def test_cancelling_the_caller_preserves_complete_groups(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """Cancelling the caller's scope unwinds the run at once and leaves the finished row groups readable."""
    with trio.move_on_after(3) as scope:
        await sb.build_async([SEED, slow_after(2, 100)], rows=6, out=tmp_path / "out", config=sb.RunConfig(**CONFIG))
    assert scope.cancelled_caught
    assert trio.current_time() == 3
    dataset = sb.Dataset.open(tmp_path / "out")
    dataset.verify()
    assert dataset.to_polars()["n"].to_list() == [0, 1]
    assert left_in(tmp_path / "out") == {"batch_0000000.parquet"}


async def test_leaving_the_block_early_ends_the_build(autojump_clock: trio.testing.MockClock) -> None:
    """Leaving `open_build` after the first row group cancels the rest, and that is no error."""
    async with open_build([SEED, slow_after(2, 100)]) as build:
        async for group in build:
            assert group.row_group == 0
            break
    assert trio.current_time() == 1
    check_run(build._run)


async def test_what_the_block_raises_leaves_as_it_is(autojump_clock: trio.testing.MockClock) -> None:
    """An exception of the caller's own block is not wrapped in a group."""
    with pytest.raises(KeyError, match="mine"):
        async with open_build([SEED, slow_after(0, 100)]):
            raise KeyError("mine")


@pytest.mark.parametrize(
    ("where", "engine"),
    [
        ("attempt", "concurrent"),
        ("apply", "concurrent"),
        ("checkpoint", "concurrent"),
        ("attempt", "sequential"),
        ("checkpoint", "sequential"),
    ],
)
async def test_an_error_of_the_engine_says_where(
    where: str, engine: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An exception that nobody expected stops the run, names column, row group and row, and keeps the checkpoints."""

    async def gated(n: int) -> int:
        if n == 2:
            await finished.wait()
        return n

    finished = trio.Event()

    def see(event: events.Event) -> None:
        if isinstance(event, events.RowGroupFinished):
            finished.set()

    def broken(original: Callable[..., Any], row: int) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            task = next((each for each in args if hasattr(each, "step")), None)
            task = args[1].task if where == "apply" else task
            if task is not None and task.step.name == "gated" and task.group == 1 and task.row == row:
                raise RuntimeError("the engine is broken")
            return original(*args, **kwargs)

        return call

    if where == "attempt":
        monkeypatch.setattr(worker, "_settle", broken(worker._settle, 0))
        key = "k"
    elif where == "apply":
        monkeypatch.setattr(RowGroup, "apply", broken(RowGroup.apply, 0))
        key = None
    else:
        key = None
        original = run_module.checkpoint

        async def checkpoint(run: Any, group: Any) -> Any:
            if group.index == 1:
                raise RuntimeError("the engine is broken")
            return await original(run, group)

        monkeypatch.setattr(run_module, "checkpoint", checkpoint)

    columns = [SEED, sb.Column("gated", gated, key=key)]
    with pytest.raises(RuntimeError, match="the engine is broken") as raised:
        async with open_build(
            columns, readers=[see], out=tmp_path / "out", rows=4, run_options={"engine": engine}
        ) as build:
            await build.wait()
    column, row = (None, None) if where == "checkpoint" else ("gated", 2)
    assert raised.value.__notes__ == [f"(column={column!r}, row_group=1, row={row})"]
    assert build.report.unfinished == (range(2, 4),)
    assert sb.Dataset.open(tmp_path / "out").to_polars()["n"].to_list() == [0, 1]


async def test_an_error_in_a_timer_ends_the_run(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception in a callback of the timers stops the run instead of leaving it without timers."""

    async def refuses(n: int) -> int:
        raise sb.RateLimited(retry_after=5)

    def broken(self: Scheduler, cell: Any, *, first: bool) -> None:
        if first:
            raise RuntimeError("the engine is broken")
        original(self, cell, first=first)

    original = Scheduler._enqueue
    monkeypatch.setattr(Scheduler, "_enqueue", broken)
    with pytest.raises(RuntimeError, match="the engine is broken"):
        async with open_build([SEED, sb.Column("refuses", refuses, key="k")]) as build:
            await build.wait()


async def test_a_failing_post_batch_processor_stops_the_run(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """A post-batch failure ends the run with its group's number; groups before it are readable, its own is not."""

    def check(frame: Any) -> Any:
        if 2 in frame["n"]:
            raise ValueError("bad batch")
        return frame

    post = sb.Processor(stage="post_batch", apply=check)
    run_options = {"max_concurrent_row_groups": 1}
    with pytest.raises(sb.ProcessorFailed, match=r"'check' failed \(row_group=1\): ValueError: bad batch") as failed:
        async with open_build([SEED], processors=[post], out=tmp_path / "out", run_options=run_options) as build:
            await build.wait()
    assert failed.value.report is not None
    assert failed.value.report.unfinished == (range(2, 6),)
    assert sb.Dataset.open(tmp_path / "out").to_polars()["n"].to_list() == [0, 1]
    assert left_in(tmp_path / "out") == {"batch_0000000.parquet"}
    check_run(build._run)


def _no_space(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def _broken_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    real = parts.os.fsync

    def fsync(descriptor: int) -> None:
        if "batch_0000001" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            _no_space()
        real(descriptor)

    monkeypatch.setattr(parts.os, "fsync", fsync)


def _broken_rename(monkeypatch: pytest.MonkeyPatch) -> None:
    real = parts.PartRecord

    def record(**fields: Any) -> Any:
        if fields["name"] == "batch_0000001.parquet":
            _no_space()
        return real(**fields)

    monkeypatch.setattr(parts, "PartRecord", record)


def _broken_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    real = writer.append

    def append(file: Any, record: Any, **options: Any) -> None:
        if getattr(record, "index", None) == 1:
            _no_space()
        real(file, record, **options)

    monkeypatch.setattr(writer, "append", append)


async def test_a_disk_error_at_the_end_of_a_run_names_the_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What cannot be written after the last row group is a StoreError, not the OSError or a group of it."""
    monkeypatch.setattr(writer.DatasetWriter, "finish", _no_space)
    with pytest.raises(sb.StoreError, match=r"the dataset in .*out could not be finished: .*No space left on device"):
        await sb.build_async([SEED], rows=4, out=tmp_path / "out")


@pytest.mark.parametrize("break_it", [_broken_fsync, _broken_rename, _broken_manifest])
async def test_a_checkpoint_that_fails_names_group_and_directory(
    break_it: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A disk that refuses a part is a StoreError with its group and directory; the others can be read."""
    break_it(monkeypatch)
    out = tmp_path / "out"
    with pytest.raises(sb.StoreError, match=rf"row group 1 could not be written to {out}: .*No space left") as failed:
        async with open_build([SEED], out=out, run_options={"max_concurrent_row_groups": 1}) as build:
            await build.wait()
    assert failed.value.report is not None
    assert failed.value.report.unfinished == (range(2, 6),)
    monkeypatch.undo()
    dataset = sb.Dataset.open(out)
    dataset.verify()
    assert dataset.to_polars()["n"].to_list() == [0, 1]
    assert not [path for path in out.rglob("*") if path.name.endswith(".tmp")]
    check_run(build._run)


@pytest.mark.parametrize("where", ["part", "manifest"])
async def test_a_disk_that_hangs_does_not_hang_the_run(
    where: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A writer that does not come back is abandoned after the checkpoint's deadline, and never commits afterwards."""
    unhang, hung = threading.Event(), threading.Event()
    real = parts.os.fsync

    def fsync(descriptor: int) -> None:
        name = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if threading.current_thread() is not threading.main_thread() and (
            ".parquet" in name if where == "part" else armed and MANIFEST_NAME in name
        ):
            hung.set()
            unhang.wait()
        real(descriptor)

    armed = False
    monkeypatch.setattr(parts.os, "fsync", fsync)
    monkeypatch.setattr(checkpoint_module, "CHECKPOINT_DEADLINE", 0.2)
    out = tmp_path / "out"
    try:
        with pytest.raises(sb.StoreError, match=r"writing row group 0 to .* took more than 0.2 s"):
            async with open_build([SEED], rows=2, out=out) as build:
                while build._run is None:
                    await trio.testing.wait_all_tasks_blocked()
                armed = True
                await build.wait()
        assert hung.is_set()
        assert build.report.unfinished == (range(2),)
    finally:
        unhang.set()
    assert build._stores is not None
    with trio.fail_after(10):  # the thread comes back at last and closes the file that it held
        while not build._stores.by_stage[""].writer._file.closed or any(out.glob(".*.tmp")):
            await trio.testing.wait_all_tasks_blocked(0.001)
    assert left_in(out) == ({"batch_0000000.parquet"} if where == "manifest" else set())
    sb.Dataset.open(out).verify()


async def test_a_stop_reaches_a_processor_after_generation(tmp_path: Path) -> None:
    """Two stops end a build whose last processor does not; the rows are there and the report names the thread."""
    entered, leave = trio.Event(), threading.Event()
    token = trio.lowlevel.current_trio_token()

    def hangs(frame: Any) -> Any:
        token.run_sync_soon(entered.set)
        leave.wait()
        return frame

    try:
        processor = sb.Processor(stage="after_generation", apply=hangs)
        async with open_build([SEED], out=tmp_path / "out", processors=[processor]) as build:
            await entered.wait()
            build.stop()
            build.stop()
            with pytest.raises(sb.Interrupted) as stopped:
                await build.wait()
        assert stopped.value.report is not None
        assert stopped.value.report.running_threads == {"hangs": 1}
        assert stopped.value.report.unfinished == ()
        assert sb.Dataset.open(tmp_path / "out").to_polars()["n"].to_list() == list(range(6))
    finally:
        leave.set()


async def test_a_stop_while_parts_are_rewritten_leaves_them_readable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two stops while the parts get one schema end that between two parts."""
    entered, leave = trio.Event(), threading.Event()
    token = trio.lowlevel.current_trio_token()
    real = writer.DatasetWriter._rewrite
    rewritten = []

    def rewrite(self: Any, group: Any, *args: Any) -> Any:
        token.run_sync_soon(entered.set)
        leave.wait()
        rewritten.append(group.index)
        return real(self, group, *args)

    async def mixed(n: int) -> float:
        return n if n < 4 else n + 0.5

    monkeypatch.setattr(writer.DatasetWriter, "_rewrite", rewrite)
    async with open_build([SEED, sb.Column("mixed", mixed)], out=tmp_path / "out") as build:
        await entered.wait()
        build.stop()
        build.stop()
        await trio.testing.wait_all_tasks_blocked()
        leave.set()
        with pytest.raises(sb.Interrupted):
            await build.wait()
    assert rewritten == [0]
    dataset = sb.Dataset.open(tmp_path / "out")
    dataset.verify()
    assert not dataset.complete
    assert dataset.to_polars()["mixed"].to_list() == [0, 1, 2, 3, 4.5, 5.5]
    assert len(left_in(tmp_path / "out")) == 3


@pytest.mark.parametrize(
    "kind", [events.BuildStarted, events.RowGroupAdmitted, events.TaskReady, events.TaskStarted, events.TaskFinished]
)
async def test_a_reader_that_raises_stops_the_run(
    kind: type[events.Event], autojump_clock: trio.testing.MockClock
) -> None:
    """A reader's exception ends the run with the report and itself as the cause; other readers miss no record."""
    seen: list[events.Event] = []

    def raises(event: events.Event) -> None:
        if isinstance(event, kind):
            raise ValueError("bad reader")  # noqa: TRY004 - it is about no type

    columns = [SEED, sb.Column("x", slow_after(0, 1).generator, key="k")]
    with pytest.raises(sb.BuildStopped, match=rf"reader of events raised on {kind.__name__}: .*bad reader") as stopped:
        async with open_build(columns, readers=[raises, seen.append]) as build:
            await build.wait()
    assert isinstance(stopped.value.__cause__, ValueError)
    assert stopped.value.report is not None
    assert any(isinstance(event, kind) for event in seen)
    assert isinstance(seen[-1], events.BuildFinished)
    assert build.report.throttles.get("k") is None or build.report.throttles["k"].in_flight == 0
    check_run(build._run)


@pytest.mark.parametrize("kind", [events.StopRequested, events.BuildFinished])
async def test_a_reader_that_raises_at_the_end_is_heard(
    kind: type[events.Event], autojump_clock: trio.testing.MockClock
) -> None:
    """A reader that raises when the run is ending anyway hides neither its exception nor what ended the run."""

    def raises(event: events.Event) -> None:
        if isinstance(event, kind):
            raise ValueError("bad reader")  # noqa: TRY004 - it is about no type

    expected = sb.Interrupted if kind is events.StopRequested else ValueError
    with pytest.raises(expected):
        async with open_build([SEED, slow_after(0, 1)], readers=[raises]) as build:
            if kind is events.StopRequested:
                build.stop()
            await build.wait()


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_a_generator_that_ends_the_program_ends_it(error: BaseException, tmp_path: Path) -> None:
    """What is no Exception leaves a build as itself; the row groups before it are readable."""

    def exits(n: int) -> int:
        if n == 2:
            raise error
        return n

    run_options = sb.RunConfig(**CONFIG, max_concurrent_row_groups=1)
    with pytest.raises(type(error)) as raised:
        sb.build([SEED, sb.Column("exits", exits)], rows=6, out=tmp_path / "out", config=run_options)
    assert raised.value is error
    assert sb.Dataset.open(tmp_path / "out").to_polars()["n"].to_list() == [0, 1]


async def test_a_row_group_that_ends_with_the_grace_is_finished_or_not(autojump_clock: trio.testing.MockClock) -> None:
    """Whichever comes first in that instant: a row group that is not returned is listed as unfinished."""
    for _ in range(20):  # trio decides the order of what happens at one instant
        groups = []
        with pytest.raises(sb.Interrupted) as stopped:
            async with open_build([SEED, slow_after(0, 3)], rows=2, run_options={"grace": 2}) as build:
                await trio.sleep(1)
                build.stop()
                async for group in build:
                    groups.append(group)  # noqa: PERF401  those before the end count
        report = stopped.value.report
        assert report is not None
        assert (report.written, report.unfinished) == ((2, ()) if groups else (0, (range(2),)))
