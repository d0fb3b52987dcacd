from __future__ import annotations

from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

import seedbed
from seedbed.observe import events
from seedbed.observe.progress import ColumnProgress, Meter, ProgressState

TASK: dict[str, Any] = {"kind": "cell", "column": "b", "row_group": 0, "attempt": 1}


def started(time: float, row: int | None, **fields: Any) -> events.TaskStarted:
    """A task of column b begins."""
    return events.TaskStarted(time=time, row=row, **{**TASK, **fields})


def finished(time: float, row: int | None, status: str = "success", **fields: Any) -> events.TaskFinished:
    """A task of column b ends."""
    given = {"status": status, "error": None, "seconds": 1.0, "tokens": 0, "cost": 0.0, **TASK, **fields}
    return events.TaskFinished(time=time, row=row, **given)


def state(rows: int = 10, *, limits: dict[str, int] | None = None, **options: Any) -> ProgressState:
    """A run of one row group that has just begun."""
    made = ProgressState()
    keys = {"a": None, "b": "key"}
    begun: dict[str, Any] = {"columns": ("a", "b"), "keys": keys, "limits": limits or {}, **options}
    made(events.BuildStarted(time=100.0, rows=rows, row_groups=1, **begun))
    made(events.RowGroupAdmitted(time=100.0, row_group=0, rows=rows))
    return made


def at(made: ProgressState, now: float) -> ProgressState:
    """The state with its rates and times as of `now`."""
    made.update(now)
    return made


def column(progress: ProgressState, name: str = "b") -> ColumnProgress:
    """One column."""
    return progress.columns[name]


def test_columns_count_rows_whatever_their_tasks_are() -> None:
    """A task for a whole row group completes all of its rows, a cell one."""
    made = state()
    made(started(100.0, None, column="a", kind="from_scratch"))
    made(finished(100.0, None, column="a", kind="from_scratch"))
    made(started(100.0, 0))
    made(started(100.0, 1))
    made(finished(101.0, 0))
    view = at(made, 101.0)
    assert [(each.name, each.done, each.running) for each in view.columns.values()] == [("a", 10, 0), ("b", 1, 1)]


def test_rate_and_eta_are_those_of_the_last_seconds() -> None:
    """A column that completes two rows a second and has four left needs two seconds more."""
    made = state()
    at(made, 100.0)
    for row in range(6):
        made(started(100.0, row))
        made(finished(100.5 + row / 2, row))
    found = column(at(made, 103.0))
    assert (found.done, found.rate, found.eta, found.percent) == (6, 2.0, 2.0, 60)


def test_eta_is_unknown_before_anything_happened() -> None:
    """Neither a column that has not begun nor the whole run has an ETA."""
    view = at(state(), 105.0)
    assert column(view).eta is None
    assert view.eta is None
    assert view.elapsed == 5.0


def test_keys_count_calls_tokens_cost_and_rate_limits() -> None:
    """A key shows what its columns have in flight, what they used and how often they were rate-limited."""
    made = state(limits={"key": 32})
    assert at(made, 100.0).keys["key"].limit == 32
    made(events.ThrottleChanged(time=100.0, key="key", limit=7))
    for row in range(3):
        made(started(100.0, row))
    made(finished(102.0, 0, tokens=500, cost=0.25))
    made(finished(102.0, 1, status="rate_limited"))
    made(events.TaskRateLimited(time=102.0, row=1, key="key", eligible_at=103.0, **TASK))
    key = at(made, 102.0).keys["key"]
    assert (key.in_flight, key.limit, key.rate_limited, key.tokens, key.cost) == (1, 7, 1, 500, 0.25)
    assert key.tokens_per_second == 250.0
    assert column(at(made, 102.0)).done == 0 + 1


def test_cells_without_a_task_are_done_when_their_group_ends() -> None:
    """Skipped cells and cells of dropped rows count as done once their row group is finished."""
    made = state()
    made(started(100.0, 0))
    made(finished(101.0, 0))
    made(events.RowDropped(time=101.0, row_group=0, row=1, column="b", attempts=3, error="no"))
    made(events.RowGroupFinished(time=102.0, row_group=0, rows=9, dropped=1))
    view = at(made, 102.0)
    assert [(each.done, each.percent, each.failed) for each in view.columns.values()] == [(10, 100, 0), (10, 100, 1)]
    assert (view.written, view.dropped, view.eta) == (9, 1, 0.0)


def test_the_percentage_is_100_only_when_all_rows_are_done() -> None:
    """999 of 1000 rows are 99 percent."""
    made = state(rows=1000)
    for row in range(999):
        made(finished(101.0, row))
    assert column(at(made, 102.0)).percent == 99


def test_processors_change_the_total() -> None:
    """Rows that a pre-batch processor adds or removes change the total."""
    made = state()
    made(started(100.0, None, column="a", kind="from_scratch"))
    made(finished(100.0, None, column="a", kind="from_scratch"))
    made(events.RowsRebuilt(time=100.0, row_group=0, before=10, after=4))
    assert [(each.done, each.total) for each in at(made, 101.0).columns.values()] == [(4, 4), (0, 4)]


def test_rows_of_earlier_runs_are_done() -> None:
    """A resumed run begins where the earlier one ended, and its rate is its own."""
    made = state(rows=100, finished_rows=90)
    made(events.RowGroupAdmitted(time=100.0, row_group=0, rows=10))
    at(made, 100.0)
    assert column(at(made, 100.0)).done == 90
    made(started(100.0, 0))
    made(finished(101.0, 0))
    assert column(at(made, 101.0)).rate == 1.0


def test_the_end_is_counted() -> None:
    """A stop and the end of the run are counted, and the elapsed time no longer changes."""
    made = state()
    made(started(100.0, 0))
    made(events.StopRequested(time=101.0, reason="enough"))
    assert at(made, 101.0).stopping == "enough"
    assert not made.finished
    made(events.BuildFinished(time=103.0, rows=5, dropped=2, error="enough"))
    view = at(made, 1e9)
    assert made.finished
    assert (view.elapsed, view.written, view.dropped, view.error) == (3.0, 5, 2, "enough")
    assert (column(view).running, view.keys["key"].in_flight) == (0, 0)
    assert column(view).eta is None


def test_a_skipped_group_is_dropped() -> None:
    """Every row of a row group that is skipped counts as dropped."""
    made = state()
    made(events.RowGroupSkipped(time=101.0, row_group=0, error="no"))
    assert at(made, 101.0).dropped == 10


@given(st.lists(st.tuples(st.floats(0.01, 5), st.integers(0, 100)), min_size=1, max_size=50))
def test_a_rate_lies_between_the_slowest_and_the_fastest(steps: list[tuple[float, int]]) -> None:
    """For any intervals between samples the rate is between the lowest and the highest of the steps."""
    meter, now, count = Meter(), 0.0, 0
    meter.sample(now, count)
    for pause, more in steps:
        now, count = now + pause, count + more
        rate = meter.sample(now, count)
        rates = [more / pause for pause, more in steps]
        assert min(0.0, *rates) - 1e-9 <= rate <= max(rates) + 1e-9


def test_a_rate_is_known_between_slow_calls() -> None:
    """With calls of 40 seconds most windows of ten seconds see none that ends; a stall still lowers the rate."""
    made = state(rows=10, limits={"key": 1})
    now = 100.0
    rates = []
    for row in range(4):
        made(started(now, row))
        for _ in range(40):
            now += 1
            made.update(now)
            rates.append((column(made).rate, made.keys["key"].tokens_per_second, column(made).eta))
        made(finished(now, row, seconds=40.0, tokens=80))
    assert all(rate == pytest.approx(1 / 40, rel=0.4) for rate, _, _ in rates[90:])
    assert all(tokens == pytest.approx(2, rel=0.4) for _, tokens, _ in rates[90:])
    assert None not in [eta for _, _, eta in rates[90:]]
    for second in range(200):
        made.update(now + second)
    assert (column(made).rate, made.keys["key"].tokens_per_second) == (0.0, 0.0)


@pytest.mark.parametrize("failing", [False, True])
async def test_it_agrees_with_the_report_of_a_build(failing: bool, autojump_clock: object) -> None:
    """After a real run every column has completed every row, and drops and rows are those of the report."""

    def a(rows: range) -> list[int]:
        return list(rows)

    async def b(a: int, context: seedbed.CellContext) -> int:
        await trio.sleep(0.1)
        context.report_usage(input_tokens=3, output_tokens=4, cost=0.5)
        if failing and a % 7 == 0:
            raise seedbed.Permanent("no sevens")
        if failing and a % 5 == 0 and context.attempt == 1:
            raise seedbed.Retryable("once more")
        return a

    counted = ProgressState()
    columns = [seedbed.Column("a", a, kind="from_scratch"), seedbed.Column("b", b, key="key")]
    config = seedbed.RunConfig(buffer_size=10, shutdown_error_rate=1.0)
    async with seedbed.open_build(columns, rows=25, config=config, readers=[counted]) as build:
        report = await build.wait()
    view = at(counted, 0.0)
    assert [(each.done, each.total) for each in view.columns.values()] == [(25, 25), (25, 25)]
    assert (view.written, view.dropped) == (report.written, len(report.dropped))
    assert column(view).failed == len(report.dropped)
    assert column(view).retried == (report.attempts["b"] - 25)
    assert view.keys["key"].tokens == report.usage["b"].tokens
    assert view.keys["key"].cost == report.usage["b"].cost
