from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import trio
from plan_helpers import INLINE, FakeEndpoint, NoEndpoints, ids, node, open_engine, plan_of, with_ops

from seedbed.errors import Overloaded, RequestDeadlineExceeded
from seedbed.plans import ops, request
from seedbed.plans.engine import PlanEngine
from seedbed.plans.opspec import OpSpec, Rows
from seedbed.plans.rowset import SLICE_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trio.testing import MockClock

EP = "ep_0001"
MANY = 5 * SLICE_ROWS + 7


class Steps(trio.abc.Instrument):
    """Counts the rows that each kind of work handles between two checkpoints of a task, and records the maximum."""

    def __init__(self) -> None:
        self.most: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._now: Counter[str] = Counter()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._now.clear()

    def add(self, work: str, rows: int) -> None:
        self.calls[work] += 1
        self._now[work] += rows
        self.most[work] = max(self.most[work], self._now[work])


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Counts parsed ids, users that become rows, and candidates."""
    found = Steps()

    def counted(module: Any, name: str) -> None:
        original: Callable[..., Any] = getattr(module, name)

        def wrapper(rows: Any, *others: Any) -> Any:
            found.add(name, len(rows))
            return original(rows, *others)

        monkeypatch.setattr(module, name, wrapper)

    counted(ops, "_integers")
    counted(ops, "_users")
    counted(request, "_candidates")
    return found


@pytest.fixture
async def instrumented(steps: Steps) -> Any:
    """The same, in the run of the test."""
    trio.lowlevel.add_instrument(steps)
    yield steps
    trio.lowlevel.remove_instrument(steps)


class CountingEndpoint(FakeEndpoint):
    """Counts the keys that each call asks for, and answers without any wait."""

    def __init__(self, lists: dict[str, list[str]]) -> None:
        super().__init__({}, lists)
        self.most_keys = 0

    async def _answer(self, keys: Sequence[str]) -> None:
        self.most_keys = max(self.most_keys, len(keys))


def numbers(count: int) -> list[str]:
    """The elements of a list of ids."""
    return [str(number) for number in range(1, count + 1)]


async def test_a_large_list_is_worked_on_in_slices(instrumented: Steps, autojump_clock: MockClock) -> None:
    """Whether it is read or already known, no step handles more rows of a list than a slice has."""
    endpoint = CountingEndpoint({"follow:1": numbers(MANY)})
    plan = plan_of(
        node("v", "fixed_source"),
        node("f", "follow", "v", endpoint=EP, fanout=MANY),
        node("again", "sleep", "v", duration_ms=10),
        node("g", "follow", "again", endpoint=EP, fanout=MANY),
        outputs=["f", "g"],
    )
    async with open_engine(endpoints=endpoint) as engine:
        found = await engine.execute(plan, {"user_id": 1})
        assert ids(found) == [*range(1, MANY + 1)] * 2
        assert found.candidates[MANY - 1] == {"id": MANY, "fields": {"country": None}}
    assert endpoint.most_keys == SLICE_ROWS
    assert instrumented.most == dict.fromkeys(("_integers", "_users", "_candidates"), SLICE_ROWS)


async def test_many_lists_are_worked_on_in_slices(instrumented: Steps, autojump_clock: MockClock) -> None:
    """The lists of many rows are read and become rows a slice at a time, also those that are already known."""
    endpoint = CountingEndpoint({f"media:{number}": [str(number), "none", ""] for number in range(1, MANY + 1)})
    plan = plan_of(
        node("s", "fixed_source", row_count=MANY),
        node("m", "media", "s", endpoint=EP, fanout=3),
        node("again", "sleep", "s", duration_ms=10),
        node("n", "media", "again", endpoint=EP, fanout=3),
        outputs=["m", "n"],
    )
    async with open_engine(endpoints=endpoint) as engine:
        assert ids(await engine.execute(plan, {"user_id": 1})) == [*range(1, MANY + 1)] * 2
    assert endpoint.most_keys == SLICE_ROWS
    assert set(instrumented.most.values()) == {SLICE_ROWS}


async def test_the_reads_of_a_custom_op_are_cut_into_slices(autojump_clock: MockClock) -> None:
    """An op that reads thousands of keys in one call gets all answers, and the endpoint a slice at a time."""
    endpoint = CountingEndpoint({f"k{number}": [str(number)] for number in range(MANY)})
    rounds = 0

    async def read(inputs: Any, params: Any, ctx: Any) -> Any:
        lists = await ctx.endpoint(EP).lrange_many([f"k{number}" for number in range(MANY)], 0, 0)
        return ctx.new_rows([int(one) for (one,) in lists])

    async def count_rounds() -> None:
        nonlocal rounds
        while True:
            await trio.lowlevel.checkpoint()
            rounds += 1

    registry = with_ops(OpSpec(name="t::read", inputs=(0, 0), gives=Rows.NEW, run_async=read))
    async with open_engine(endpoints=endpoint, ops=registry) as engine, trio.open_nursery() as nursery:
        nursery.start_soon(count_rounds)
        found = await engine.execute(plan_of(node("r", "t::read"), ops=registry), {"user_id": 1})
        nursery.cancel_scope.cancel()
    assert ids(found) == list(range(MANY))
    assert endpoint.most_keys == SLICE_ROWS
    assert rounds >= MANY // SLICE_ROWS


PLAN = plan_of(node("s", "fixed_source", row_count=20 * SLICE_ROWS))


async def tick(clock: MockClock) -> None:
    """Advance the clock by a millisecond in every round of the loop."""
    while True:
        await trio.lowlevel.checkpoint()
        clock.jump(0.001)


async def test_building_the_response_counts_against_the_deadline(instrumented: Steps, mock_clock: MockClock) -> None:
    """A deadline that passes while candidates are built ends the request there, unless it may be partial."""
    async with open_engine() as engine, trio.open_nursery() as nursery:
        nursery.start_soon(tick, mock_clock)
        with pytest.raises(RequestDeadlineExceeded, match="while the response was built") as caught:
            await engine.execute(PLAN, {"user_id": 1}, deadline=0.012)
        assert caught.value.node == "s"
        assert 1 <= instrumented.calls["_candidates"] < 20
        found = await engine.execute(PLAN, {"user_id": 1}, deadline=0.012, partial=True)
        assert len(found.candidates) == 20 * SLICE_ROWS
        assert engine.statistics().outcomes == {"DEADLINE_EXCEEDED": 1, "OK": 1}
        nursery.cancel_scope.cancel()


async def test_a_small_response_is_in_time_only_if_it_is_built_in_time(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline is checked once more after the last candidate."""
    original = request._candidates

    def slow(*arguments: Any) -> Any:
        mock_clock.jump(1)
        return original(*arguments)

    monkeypatch.setattr(request, "_candidates", slow)
    async with open_engine() as engine:
        with pytest.raises(RequestDeadlineExceeded, match="while the response was built"):
            await engine.execute(plan_of(node("s", "fixed_source")), {"user_id": 1}, deadline=1)


async def test_an_engine_that_closes_ends_responses_that_are_being_built(
    instrumented: Steps, mock_clock: MockClock
) -> None:
    """At the end of grace a request that builds its response is cancelled, as one that runs its nodes."""
    rejected: list[Overloaded] = []

    async def ask() -> None:
        with pytest.raises(Overloaded, match="its grace is over") as caught:
            await engine.execute(PLAN, {"user_id": 1})
        rejected.append(caught.value)

    engine = PlanEngine(endpoints=NoEndpoints(), costs=INLINE, grace=0.0)
    async with trio.open_nursery() as nursery, engine:
        nursery.start_soon(ask)
        while not instrumented.calls["_candidates"]:
            await trio.lowlevel.checkpoint()
    assert len(rejected) == 1
    assert instrumented.calls["_candidates"] < 20
