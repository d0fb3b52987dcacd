"""The engine as a whole: random graphs, latencies, failures and limits, in virtual time.

Every run is held against what its script alone implies and against the same build with `engine="sequential"`.
"""

from __future__ import annotations

import random
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_columns import Scenario, Watch, expected, scenarios
from trio.testing import MockClock

import seedbed as sb
from seedbed.runtime.throttle import Permit, Throttle

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from seedbed.engine.run import Run
    from seedbed.observe.report import BuildReport

# Virtual seconds: no run comes near it, so a run that reaches it waits for something that never comes.
NEVER = 1e8


@attrs.define(eq=False)
class Result:
    """What one run left behind."""

    watch: Watch
    run: Run | None = None
    groups: dict[int, list[dict[str, Any]]] = attrs.field(factory=dict)
    report: BuildReport | None = None
    error: BaseException | None = None
    cancelled: bool = False


def in_virtual_time(function: Callable[[], Awaitable[Any]]) -> Any:
    """Run it with a clock that jumps."""
    return trio.run(function, clock=MockClock(autojump_threshold=0))


def watch_grants(run: Run, watch: Watch) -> None:
    """Look at every permit as it is granted: never while as many calls as the limit allows are in flight."""

    class Watched(dict[str, Throttle]):
        def __setitem__(self, key: str, throttle: Throttle) -> None:
            try_acquire = throttle.try_acquire

            def watched(tokens: int = 0) -> Permit | None:
                before = throttle.in_flight
                permit = try_acquire(tokens)
                if permit is not None and before >= throttle.limit:
                    watch.problems.append(f"a permit of {key} with {before} in flight: {throttle.statistics()}")
                return permit

            throttle.try_acquire = watched  # type: ignore[method-assign]
            super().__setitem__(key, throttle)

    run.throttles._throttles = Watched(run.throttles._throttles)


async def run_scenario(
    scenario: Scenario,
    *,
    engine: str = "concurrent",
    cancel_at: float | None = None,
    stop_at: Sequence[float] = (),
    out: Path | None = None,
) -> Result:
    """Run it to its end, whatever that is, and check what must hold in any case."""
    watch = Watch(scenario)
    result = Result(watch)
    config = attrs.evolve(scenario.config, engine=engine)
    tasks_before = trio.lowlevel.current_statistics().tasks_living
    async with AsyncExitStack() as stack:
        throttles = None
        if scenario.shared_throttles:
            throttles = await stack.enter_async_context(
                sb.open_throttles(scenario.limits, patience=config.throttle_patience, rng=random.Random(5))
            )
        with trio.fail_after(NEVER), trio.CancelScope() as scope:
            if cancel_at is not None:
                scope.deadline = trio.current_time() + cancel_at
            async with sb.open_build(
                watch.columns,
                rows=scenario.rows,
                out=out,
                config=config,
                limits=scenario.limits,
                processors=watch.processors(),
                readers=[watch.read] if scenario.listening else [],
                throttles=throttles,
            ) as build:
                while build._run is None and not build._ended.is_set():
                    await trio.lowlevel.checkpoint()
                result.run = build._run
                assert result.run is not None
                watch_grants(result.run, watch)
                for at in stop_at:
                    result.run.timers.call_at(at, build.stop)
                try:
                    async for group in build:
                        result.groups[group.row_group] = group.to_polars().to_dicts()
                    result.report = build.report
                except sb.BuildStopped as stopped:
                    result.error, result.report = stopped, stopped.report
        result.cancelled = scope.cancelled_caught
        await threads_ended(result)
        check_all_is_back(result)
        if throttles is not None:
            # Permits of rate-limited calls stay taken for a second at most.
            await trio.sleep(2)
            for throttle in map(throttles.get, scenario.limits):
                assert throttle._limiter.borrowed_tokens == 0
                assert not throttle._listeners
    assert trio.lowlevel.current_statistics().tasks_living == tasks_before
    assert not watch.problems, watch.problems
    check_stateful_order(result)
    return result


async def threads_ended(result: Result) -> None:
    """Threads cannot be interrupted: those that were abandoned may end a moment after their run did."""
    if any(spec.sync for spec in result.watch.scenario.columns):
        patience = time.monotonic() + 20
        while (result.watch.still_running or _slots_taken(result)) and time.monotonic() < patience:
            await trio.lowlevel.checkpoint()


def _slots_taken(result: Result) -> int:
    return 0 if result.run is None else result.run.scheduler.statistics().active


def check_all_is_back(result: Result) -> None:
    """Nothing is held and nothing runs once a run has ended."""
    run = result.run
    assert result.watch.still_running == {}
    if run is None:
        return
    limits = run.scheduler.statistics()
    assert (limits.submitted, limits.active, limits.queued) == (0, 0, 0)
    assert run.scheduler.groups == {}
    assert not any(instance.busy for instance in run.output.shared.instances.values())
    for key, throttle in run.throttles.statistics().items():
        assert throttle.in_flight == 0
        changed = [limit for name, limit in result.watch.limits if name == key]
        assert max(throttle.limit, *changed, 0) <= throttle.ceiling


def check_stateful_order(result: Result) -> None:
    """A stateful generator sees row groups, columns and rows in order; the same one again only as another attempt."""
    for calls in result.watch.instances.values():
        assert calls == sorted(calls)


def check_groups(result: Result) -> None:
    """Each row group that was returned holds exactly what the script implies, and the report says why rows lack."""
    scenario, report = result.watch.scenario, result.report
    implied = expected(scenario)
    for index, rows in result.groups.items():
        assert rows == implied[index].rows
    if report is None:
        return
    drops = {(drop.row, drop.copy): drop for drop in report.dropped}
    assert len(drops) == len(report.dropped)
    reasons = {who: why for index in result.groups for who, why in implied[index].drops.items()}
    assert drops.keys() == reasons.keys()
    for who, drop in drops.items():
        assert (drop.kind, drop.column, drop.attempts) in reasons[who]
        assert drop.error
    # Every row is in the dataset, dropped or unfinished.
    unfinished = {row for each in report.unfinished for row in each}
    assert unfinished == {
        row for index, each in enumerate(implied) if index not in result.groups for row in each.source
    }
    kept = [who for index in result.groups for who in implied[index].kept]
    assert report.written == len(kept)
    settled = len(kept) + len(drops) + len(unfinished) + report.removed
    assert settled == scenario.rows + report.added


def check_finished(result: Result) -> None:
    """A run that nothing stopped has all of its row groups."""
    assert result.error is None
    assert not result.cancelled
    assert result.report is not None
    assert result.report.unfinished == ()
    assert sorted(result.groups) == list(range(len(result.watch.scenario.groups)))
    check_groups(result)


def drop_set(result: Result) -> set[tuple[int, int]]:
    """Which rows are not in the dataset."""
    assert result.report is not None
    return {(drop.row, drop.copy) for drop in result.report.dropped}


@given(scenarios())
def test_a_build_gives_what_its_script_implies_and_what_the_sequential_engine_gives(scenario: Scenario) -> None:
    """Values and drops are those of the script and of the sequential engine, within every limit, and the run ends."""
    concurrent = in_virtual_time(lambda: run_scenario(scenario))
    check_finished(concurrent)
    sequential = in_virtual_time(lambda: run_scenario(scenario, engine="sequential"))
    check_finished(sequential)
    assert concurrent.groups == sequential.groups
    assert drop_set(concurrent) == drop_set(sequential)


instants = st.one_of(st.integers(0, 40).map(lambda quarter: quarter / 4), st.floats(0, 120))


@given(scenarios(), instants)
def test_cancelling_the_caller_unwinds_everything(scenario: Scenario, instant: float) -> None:
    """Whenever the caller is cancelled, nothing is held, nothing runs on, and finished groups are right."""
    result = in_virtual_time(lambda: run_scenario(scenario, cancel_at=instant))
    if result.cancelled:
        check_groups(result)
    else:
        check_finished(result)


@given(scenarios(), st.lists(instants, min_size=1, max_size=2))
def test_stopping_preserves_finished_rows_and_lists_the_rest(scenario: Scenario, at: list[float]) -> None:
    """Whenever a build is stopped, once or twice, its report accounts for every row."""
    result = in_virtual_time(lambda: run_scenario(scenario, stop_at=at))
    if result.error is None:
        check_finished(result)
    else:
        assert isinstance(result.error, sb.Interrupted)
        assert result.report is not None
        check_groups(result)


@given(scenarios(), instants.filter(bool))
def test_a_deadline_preserves_finished_rows_and_lists_the_rest(scenario: Scenario, deadline: float) -> None:
    """Whenever the deadline passes, the build ends at that instant and its report accounts for every row."""
    limited = attrs.evolve(scenario, config=attrs.evolve(scenario.config, deadline=deadline))
    result = in_virtual_time(lambda: run_scenario(limited))
    assert result.report is not None
    assert result.report.seconds <= deadline * (1 + 1e-9)
    if result.error is None:
        check_finished(result)
    else:
        assert isinstance(result.error, sb.DeadlineExceeded)
        check_groups(result)


def test_a_finished_run_passes_no_turn_on() -> None:
    """When everything is cancelled at once, the row group that waits for a stateful generator does not enter it."""

    class Generator:
        is_stateful = True

        def __init__(self) -> None:
            self.entered: list[int] = []

        async def agenerate(self, rows: range) -> list[int]:
            self.entered.append(rows.start)
            await trio.sleep(10)
            return list(rows)

    async def entered() -> list[int]:
        generator = Generator()
        column = sb.Column("a", generator, kind="from_scratch")
        with trio.move_on_after(1):
            async with sb.open_build([column], rows=3, config=sb.RunConfig(buffer_size=1)) as build:
                await build.wait()
        return generator.entered

    # Which of the cancelled tasks is the first to know is up to trio, so not one run but some.
    assert all(in_virtual_time(entered) == [0] for _ in range(30))


@settings(max_examples=settings.default.max_examples // 4)
@given(scenarios())
def test_the_directory_holds_the_same_in_declared_order(scenario: Scenario) -> None:
    """A dataset on disk equals the one in memory, in the order of the rows, whichever group finished first."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "dataset")
        result = in_virtual_time(lambda: run_scenario(scenario, out=out))
        check_finished(result)
        frame = sb.Dataset.open(out).to_polars()
        assert frame.columns == scenario.outputs
        assert frame.to_dicts() == [row for group in expected(scenario) for row in group.rows]
        names = {path.name for path in out.iterdir() if path.suffix == ".parquet"}
        assert names == {f"batch_{index:07d}.parquet" for index, rows in result.groups.items() if rows}
