"""Budgets: the run stops before the call that would exceed one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio
from engine_helpers import config, grow, seed

import seedbed as sb
from seedbed import BudgetExceeded, CellContext, Column
from seedbed.engine.budget import Budget
from seedbed.engine.plan import plan_build
from seedbed.engine.source import make_source
from seedbed.observe.report import Usage

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from seedbed.columns.spec import ColumnSpec

ENGINES = pytest.mark.parametrize("engine", ["concurrent", "sequential"])


class Meter:
    """A column that costs the same each time."""

    def __init__(self, tokens: int = 0, cost: float = 0.0) -> None:
        self.calls = 0
        self._tokens = tokens
        self._cost = cost

    async def agenerate(self, n: int, context: CellContext) -> int:
        self.calls += 1
        await trio.sleep(1)
        context.report_usage(output_tokens=self._tokens, cost=self._cost)
        return n


@ENGINES
async def test_max_tokens_is_never_exceeded(autojump_clock: MockClock, engine: str) -> None:
    """With an honest estimate the run stops exactly before the call that would exceed the budget."""
    meter = Meter(tokens=100)
    with pytest.raises(BudgetExceeded) as raised:
        await grow(
            [seed(), Column("v", meter, key="k", tokens=100)], rows=50, config=config(max_tokens=1_050, engine=engine)
        )
    assert meter.calls == 10
    assert str(raised.value).startswith("the next call of column 'v' could exceed max_tokens=1050: ")
    report = raised.value.report
    assert report is not None
    assert report.usage["v"].tokens == 1_000
    assert report.unfinished == (range(50),)
    assert report.dropped == ()


@ENGINES
async def test_max_cost_learns_what_a_call_costs(autojump_clock: MockClock, engine: str) -> None:
    """Costs are not declared: after the first calls the dearest of them is what the next one is expected to cost."""
    meter = Meter(cost=0.5)
    with pytest.raises(BudgetExceeded, match=r"could exceed max_cost=3: 3 used, 0 in flight, about 0\.5 more"):
        await grow(
            [seed(), Column("v", meter, key="k")],
            rows=50,
            config=config(max_cost=3.0, max_parallel_requests=1, engine=engine),
        )
    assert meter.calls == 6


async def test_usage_without_a_call_counts(autojump_clock: MockClock) -> None:
    """A cost that is reported with `calls=0` is in the report and counts against the budget."""

    async def priced(n: int, context: CellContext) -> int:
        await trio.sleep(1)
        context.report_usage(calls=0, cost=0.5)
        return n

    with pytest.raises(BudgetExceeded, match=r"max_cost=2: 2 used") as raised:
        await grow(
            [seed(), Column("v", priced, key="k")], rows=50, config=config(max_cost=2.0, max_parallel_requests=1)
        )
    assert raised.value.report is not None
    assert raised.value.report.usage["v"].cost == 2.0


@ENGINES
async def test_a_budget_that_is_enough_stops_nothing(autojump_clock: MockClock, engine: str) -> None:
    """Using it up exactly is within it."""
    meter = Meter(tokens=100, cost=1.0)
    grown = await grow(
        [seed(), Column("v", meter, key="k", tokens=100)],
        rows=10,
        config=config(max_tokens=1_000, max_cost=10.0, engine=engine),
    )
    assert grown.report.written == 10


async def test_max_cost_is_not_exceeded_by_many_at_once(autojump_clock: MockClock) -> None:
    """Nobody knows what a call costs before the first has ended, so the others wait for it."""
    meter = Meter(cost=1.0)
    with pytest.raises(BudgetExceeded, match="max_cost=3"):
        await grow([seed(), Column("v", meter, key="k")], rows=50, config=config(max_cost=3.0))
    assert meter.calls == 3


async def test_max_cost_delays_only_the_first_call(autojump_clock: MockClock) -> None:
    """After the first call the rest run at once, also where nothing is ever reported."""

    async def silent(n: int) -> int:
        await trio.sleep(1)
        return n

    start = trio.current_time()
    await grow(
        [seed(), Column("v", silent, key="k"), Column("w", Meter(cost=0.1), key="k2")],
        rows=30,
        config=config(max_cost=100.0),
    )
    assert trio.current_time() - start < 8


async def test_a_budget_of_nothing_makes_no_call(autojump_clock: MockClock) -> None:
    """With max_tokens=0 a column that expects tokens is never called."""
    meter = Meter(tokens=100)
    with pytest.raises(BudgetExceeded, match="max_tokens=0"):
        await grow([seed(), Column("v", meter, key="k", tokens=1)], rows=3, config=config(max_tokens=0))
    assert meter.calls == 0


@ENGINES
async def test_an_estimate_stands_where_nothing_is_reported(autojump_clock: MockClock, engine: str) -> None:
    """A column that declares its tokens and never reports any is held to what it declared."""
    calls = 0

    async def v(n: int) -> int:
        nonlocal calls
        calls += 1
        return n

    with pytest.raises(BudgetExceeded, match="max_tokens=500"):
        await grow([seed(), Column("v", v, key="k", tokens=100)], rows=50, config=config(max_tokens=500, engine=engine))
    assert calls == 5


@ENGINES
async def test_later_calls_of_a_cell_are_held_to_the_budget_too(autojump_clock: MockClock, engine: str) -> None:
    """A cell of many calls stops before the one that would pass it, not only before its first."""
    calls = 0

    async def v(n: int, context: CellContext) -> int:
        nonlocal calls

        async def send() -> None:
            nonlocal calls
            calls += 1
            context.report_usage(output_tokens=100)

        for _ in range(20):
            await context.call(partial(send), tokens=100)
        return n

    with pytest.raises(BudgetExceeded, match="max_tokens=500"):
        await grow([seed(), Column("v", v, key="k", tokens=100)], rows=1, config=config(max_tokens=500, engine=engine))
    assert calls == 5


@ENGINES
async def test_columns_without_a_key_are_held_to_the_budget_by_their_calls(
    autojump_clock: MockClock, engine: str
) -> None:
    """It is calls that are counted, whoever makes them; rows that were not made are unfinished, not dropped."""
    calls = 0

    async def v(n: int, context: CellContext) -> int:
        async def send() -> None:
            nonlocal calls
            calls += 1
            await trio.sleep(1)
            context.report_usage(output_tokens=100)

        await context.call(send, key="k", tokens=100)
        return n

    with pytest.raises(BudgetExceeded, match="max_tokens=500") as raised:
        await grow([seed(), Column("v", v)], rows=20, config=config(max_tokens=500, engine=engine))
    assert calls == 5
    assert raised.value.report is not None
    assert raised.value.report.dropped == ()


@ENGINES
async def test_an_estimate_that_is_too_high_is_settled(autojump_clock: MockClock, engine: str) -> None:
    """Calls that use far less than declared are waited for: a run that stays within its budget is not stopped."""
    meter = Meter(tokens=2)
    grown = await grow(
        [seed(), Column("v", meter, key="k", tokens=100)], rows=40, config=config(max_tokens=180, engine=engine)
    )
    assert grown.report.usage["v"].tokens == 80


async def test_what_is_in_flight_may_end(autojump_clock: MockClock) -> None:
    """A budget that is passed lets the calls under way finish within `grace`, so that they are not paid for nothing."""
    meter = Meter(tokens=100)
    with pytest.raises(BudgetExceeded) as raised:
        await grow(
            [seed(), Column("v", meter, key="k", tokens=100)],
            rows=20,
            config=config(max_tokens=800, buffer_size=4, max_parallel_requests=8),
        )
    assert raised.value.report is not None
    assert raised.value.report.written == 8
    assert raised.value.report.wasted == {}


class Priced:
    """A recipe of one model, which counts its calls."""

    def __init__(self, **prices: float) -> None:
        self.calls = 0
        self.model = sb.Scripted(answers=self.answer, **prices)  # type: ignore[arg-type]

    def answer(self, _: object) -> str:
        self.calls += 1
        return "a text"

    def recipe(self, *columns: ColumnSpec) -> sb.Recipe:
        return sb.Recipe(
            columns=[sb.Category("n", values=[1]), *columns], models={"m": self.model, "free": sb.Scripted(model="f")}
        )


@sb.column(models={"own": "free", "other": "m"})
async def both(n: int, own: sb.Model, other: sb.Model) -> str:
    """The key of its task is that of the free model."""
    return await own.chat("a") + await other.chat("b")


class TestTheFirstCall:
    """Nobody knows what it will use, but that of a model which has a price it is more than nothing."""

    @ENGINES
    @pytest.mark.parametrize("prices", [{"input_price": 1.0}, {"output_price": 1.0}])
    @pytest.mark.parametrize("column", [sb.LLMText("t", model="m", prompt="{{ n }}"), both])
    async def test_no_call_without_a_budget(
        self, column: ColumnSpec, prices: dict[str, float], engine: str, autojump_clock: MockClock
    ) -> None:
        """With max_cost=0 the run stops before it, whichever key the column waits for."""
        priced = Priced(**prices)
        told = f"column '{column.name}' could exceed max_cost=0: 0 used, 0 in flight, its model has a price"
        with pytest.raises(BudgetExceeded, match=told) as raised:
            await grow(priced.recipe(column), rows=20, config=config(max_cost=0, engine=engine))
        assert priced.calls == 0
        assert raised.value.report is not None
        assert raised.value.report.dropped == ()

    @ENGINES
    async def test_free_models_need_no_budget(self, engine: str, autojump_clock: MockClock) -> None:
        """A model without a price costs nothing, nor do embeddings where only what is answered has one."""
        free, answers = Priced(), Priced(output_price=1.0)
        text, vector = sb.LLMText("t", model="m", prompt="{{ n }}"), sb.Embedding("e", model="m", of="n")
        for recipe in (free.recipe(text), answers.recipe(vector)):
            made = await grow(recipe, rows=5, config=config(max_cost=0, engine=engine))
            assert made.report.written == 5
        assert free.calls == 5

    @ENGINES
    async def test_no_call_without_tokens(self, engine: str, autojump_clock: MockClock) -> None:
        """Every call of a model uses some."""
        free = Priced()
        with pytest.raises(BudgetExceeded, match="max_tokens=0: 0 used, 0 in flight, its usage is not known yet"):
            await grow(
                free.recipe(sb.LLMText("t", model="m", prompt="p")), rows=3, config=config(max_tokens=0, engine=engine)
            )
        assert free.calls == 0

    @ENGINES
    async def test_another_column_has_spent_it_all(self, engine: str, autojump_clock: MockClock) -> None:
        """The first call of a later column is not made either."""
        priced = Priced(output_price=1_000_000.0)  # 1 for each token
        first = sb.LLMText("t", model="m", prompt="{{ n }}")
        cost = (await grow(priced.recipe(first), rows=1, config=config(max_cost=100))).report
        priced.calls = 0
        later = sb.LLMText("u", model="m", prompt="{{ t }}")
        with pytest.raises(BudgetExceeded, match="column 'u' could exceed"):
            await grow(priced.recipe(first, later), rows=1, config=config(max_cost=cost.usage["t"].cost, engine=engine))
        assert priced.calls == 1

    @ENGINES
    async def test_what_earlier_runs_paid_is_known(self, engine: str, tmp_path: Path) -> None:
        """A resume with a budget that is nearly used up makes no call that would pass it."""
        meter = Meter(cost=1.0)
        columns = [seed(), Column("v", meter, key="k")]
        options = config(max_cost=2.5, max_parallel_requests=1, engine=engine)
        for calls in (2, 2):
            with pytest.raises(BudgetExceeded, match=r"max_cost=2\.5: 2 used, 0 in flight, about 1 more"):
                await sb.build_async(columns, rows=5, out=tmp_path / "d", config=options, resume=True)
            assert meter.calls == calls


def test_the_core_reserves_and_settles() -> None:
    """What is in flight counts as expected and, once settled, as used."""
    column = Column("v", Meter(), key="k", tokens=10)
    step = plan_build(make_source([seed(), column], config=config()), rows=1).output.steps[1]
    spending = Budget(100, None)
    assert spending.limited
    held = [spending.reserve(step) for _ in range(10)]
    over = spending.would_exceed(step)
    assert over is not None
    assert str(over) == "the next call of column 'v' could exceed max_tokens=100: 0 used, 100 in flight, about 10 more"
    for each in held[:5]:
        spending.settle(step, each, Usage(calls=1, output_tokens=2))
    assert spending.tokens == 10
    assert spending.would_exceed(step) is None
    assert not Budget(None, None).limited


def test_rounding_leaves_nothing_in_flight() -> None:
    """When nobody is under way nothing is, whatever sums of fractions come to."""
    column = Column("v", Meter(), key="k")
    step = plan_build(make_source([seed(), column], config=config()), rows=1).output.steps[1]
    spending = Budget(None, 1.0)
    spending.settle(step, spending.reserve(step), Usage(calls=1, cost=0.1))
    for each in [spending.reserve(step) for _ in range(3)]:
        spending.settle(step, each, Usage(calls=1, cost=0.3))
    over = spending.would_exceed(step)
    assert str(over) == "the next call of column 'v' could exceed max_cost=1: 1 used, 0 in flight, about 0.3 more"
