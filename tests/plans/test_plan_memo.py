from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from plan_helpers import FakeEndpoint, node, open_engine, plan_of
from trio.testing import MockClock

from seedbed.errors import EndpointUnavailable, NodeFailed
from seedbed.plans.redis import OnceEndpoint

if TYPE_CHECKING:
    from collections.abc import Sequence

EP = "ep_0001"


@attrs.frozen
class Reader:
    """A node that reads some keys; times are milliseconds."""

    start: int
    keys: tuple[str, ...]
    cancel_after: int | None = None


class Backend:
    """Answers each key with itself after some time, but fails reads by their number; never reads a key needlessly."""

    def __init__(self, delays: Sequence[int], failing: frozenset[int], error: type[Exception]) -> None:
        self.delays = delays
        self.failing = failing
        self.error = error
        self.reads: list[tuple[str, ...]] = []
        self.failed_in: set[trio.lowlevel.Task] = set()
        self._under_way: set[str] = set()
        self._answered: set[str] = set()

    async def hgetall_many(self, keys: Sequence[str]) -> list[dict[str, str]]:
        number = len(self.reads)
        self.reads.append(tuple(keys))
        assert not self._under_way.intersection(keys), "two nodes read a key at the same time"
        assert not self._answered.intersection(keys), "a key is read that is known"
        self._under_way.update(keys)
        try:
            await trio.sleep(self.delays[number % len(self.delays)] / 1000)
        finally:
            self._under_way.difference_update(keys)
        if number in self.failing:
            self.failed_in.add(trio.lowlevel.current_task())
            raise self.error(f"read {number}")
        self._answered.update(keys)
        return [{"key": key} for key in keys]


async def read_all(readers: Sequence[Reader], backend: Backend) -> list[str]:
    """Run all readers; returns the outcome of each: ok, failed or cancelled."""
    once = OnceEndpoint(backend)  # type: ignore[arg-type]
    outcomes = ["cancelled"] * len(readers)

    async def run(number: int, reader: Reader) -> None:
        await trio.sleep(reader.start / 1000)
        with trio.CancelScope() as scope:
            if reader.cancel_after is not None:
                scope.deadline = trio.current_time() + reader.cancel_after / 1000
            try:
                found = await once.hgetall_many(list(reader.keys))
            except backend.error:
                assert trio.lowlevel.current_task() in backend.failed_in, "it fails although its own reads did not"
                outcomes[number] = "failed"
            else:
                assert found == [{"key": key} for key in reader.keys]
                outcomes[number] = "ok"

    with trio.fail_after(3600):
        async with trio.open_nursery() as nursery:
            for number, reader in enumerate(readers):
                nursery.start_soon(run, number, reader)
    return outcomes


readers = st.builds(
    Reader,
    start=st.integers(0, 6),
    keys=st.lists(st.sampled_from("KLMNOP"), max_size=5).map(tuple),
    cancel_after=st.none() | st.integers(0, 6),
)


@given(
    st.lists(readers, min_size=1, max_size=6),
    st.lists(st.integers(0, 5), min_size=1, max_size=6),
    st.frozensets(st.integers(0, 6)),
    st.sampled_from([EndpointUnavailable, NodeFailed, ValueError]),
)
def test_a_node_fails_by_its_own_reads_only(
    nodes: list[Reader], delays: list[int], failing: frozenset[int], error: type[Exception]
) -> None:
    """Whichever other node fails or is cancelled, a node gets its answers, and no key is read twice without need."""
    backend = Backend(delays, failing, error)
    outcomes = trio.run(read_all, nodes, backend, clock=MockClock(autojump_threshold=0))
    assert all(
        outcome != "cancelled" or one.cancel_after is not None for outcome, one in zip(outcomes, nodes, strict=True)
    )
    assert outcomes.count("failed") == len(backend.failed_in)


@pytest.mark.parametrize("error", [EndpointUnavailable, NodeFailed])
async def test_a_waiting_node_reads_the_keys_of_a_failed_reader(
    error: type[Exception], autojump_clock: MockClock
) -> None:
    """B, which shares K with A and reads L itself, reads K after A failed, before or after L has been answered."""
    for delays in ([2, 5, 1], [5, 2, 1]):
        backend = Backend(delays, frozenset({0}), error)
        outcomes = await read_all([Reader(0, ("J", "K")), Reader(1, ("K", "L"))], backend)
        assert outcomes == ["failed", "ok"]
        assert backend.reads == [("J", "K"), ("L",), ("K",)]


async def test_a_waiting_node_reads_the_keys_of_a_cancelled_reader(autojump_clock: MockClock) -> None:
    """B reads K itself as soon as A, which was reading it, is cancelled."""
    for delays in ([9, 5, 1], [9, 1, 1]):
        backend = Backend(delays, frozenset(), EndpointUnavailable)
        outcomes = await read_all([Reader(0, ("K",), cancel_after=3), Reader(1, ("K", "L"))], backend)
        assert outcomes == ["cancelled", "ok"]
        assert backend.reads == [("K",), ("L",), ("K",)]


@pytest.mark.parametrize("cancelled", [True, False])
async def test_one_of_the_waiting_nodes_reads_for_all(autojump_clock: MockClock, *, cancelled: bool) -> None:
    """However many nodes wait for a reader that fails or is cancelled, one of them reads in its place."""
    backend = Backend([9], frozenset({} if cancelled else {0}), EndpointUnavailable)
    first = Reader(0, ("K",), cancel_after=3 if cancelled else None)
    outcomes = await read_all([first, *[Reader(1, ("K",))] * 5], backend)
    assert outcomes == ["cancelled" if cancelled else "failed", *["ok"] * 5]
    assert backend.reads == [("K",), ("K",)]


class FailsFirst(FakeEndpoint):
    """Its first read of users fails after 22 ms, or hangs if it has no failure; all others are answered."""

    failure: Exception | None = None
    first = True

    async def hgetall_many(self, keys: Sequence[str]) -> list[dict[str, str]]:
        if self.first:
            self.first = False
            await trio.sleep(0.022)
            if self.failure is None:
                await trio.sleep_forever()
            else:
                raise self.failure
        return await super().hgetall_many(keys)


@pytest.mark.parametrize("error", [EndpointUnavailable("away"), NodeFailed("WRONGTYPE"), None])
async def test_a_policy_on_a_node_protects_the_nodes_that_share_its_reads(
    error: Exception | None, autojump_clock: MockClock
) -> None:
    """A fails or times out under `on_error: empty`; B, which waited for A's reads, gives all of its rows."""
    lists = {"follow:1": ["2"], "recommendation:1": ["2", "3"]}
    endpoint = FailsFirst({f"user:{n}": {"country": "NO"} for n in (2, 3)}, lists)
    endpoint.failure = error
    plan = plan_of(
        node("s", "fixed_source"),
        node("a", "follow", "s", endpoint=EP, fanout=5, on_error="empty"),
        node("wait", "sleep", "s", duration_ms=20),
        node("b", "recommendation", "wait", endpoint=EP, fanout=5),
        outputs=["a", "b"],
    )
    async with open_engine(endpoints=endpoint) as engine:
        found = await engine.execute(plan, {"user_id": 1}, node_timeout=0.025)
        assert found.candidates == [{"id": n, "fields": {"country": "NO"}} for n in (2, 3)]
        assert found.coverage is not None
        assert [one.node for one in found.coverage.degraded] == ["a"]
