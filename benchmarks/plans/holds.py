"""How long one request with a large fan-out holds up the loop that all requests share."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Any

import attrs
import trio

from seedbed.plans.engine import PlanEngine
from seedbed.plans.format import parse_plan
from seedbed.plans.registries import default_registries

from ..common import Bar, Table, expect
from .server import fill

if TYPE_CHECKING:
    from collections.abc import Iterator

    from seedbed.plans.format import Plan
    from seedbed.plans.registries import Registries

IDS = 100_000
BAR_MS = 5.0
_VIEWER = 1_000_000


class _LongestStep(trio.abc.Instrument):
    """Measures how long tasks use the processor without a checkpoint; what others do to the machine is left out.

    `collections` is the longest with the pauses of Python's garbage collector, which nobody can cut into slices.
    """

    def __init__(self) -> None:
        self.work = self.collections = 0.0
        self._began = self._pause_began = time.thread_time()
        self._paused = 0.0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began, self._paused = time.thread_time(), 0.0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        taken = time.thread_time() - self._began
        self.work = max(self.work, taken - self._paused)
        self.collections = max(self.collections, taken)

    def collect(self, phase: str, _info: object) -> None:
        """What the collector calls before and after each collection."""
        if phase == "start":
            self._pause_began = time.thread_time()
        else:
            self._paused += time.thread_time() - self._pause_began


def _commands(fanout: int) -> Iterator[tuple[str, ...]]:
    first = _VIEWER + 1
    yield ("DEL", f"follow:{_VIEWER}")
    for start in range(first, first + fanout, 1_000):
        yield ("RPUSH", f"follow:{_VIEWER}", *map(str, range(start, min(start + 1_000, first + fanout))))
    for user in range(first, first + fanout):
        yield ("HSET", f"user:{user}", "country", "NO", "name", f"user {user}")


def _plan(fanout: int, registries: Registries) -> Plan:
    nodes: list[dict[str, Any]] = [
        {"node_id": "v", "op": "core::viewer", "inputs": [], "params": {"endpoint": "ep_0001"}},
        {"node_id": "f", "op": "core::follow", "inputs": ["v"], "params": {"endpoint": "ep_0001", "fanout": fanout}},
    ]
    document = {"schema_version": 1, "plan_name": "holds", "nodes": nodes, "outputs": ["f"]}
    return parse_plan({**document, "expr_table": {}, "pred_table": {}}, registries=registries)


async def longest_hold(port: int, fanout: int) -> dict[str, float]:
    """Milliseconds: the longest step of any task during a request, and all of the request."""
    registries = default_registries()
    endpoint = registries.endpoints["ep_0001"]
    # The server is to be waited for, whatever else this machine does.
    policy = attrs.evolve(endpoint.policy, connect_timeout_ms=10_000, request_timeout_ms=10_000)
    endpoint = attrs.evolve(endpoint, host="127.0.0.1", port=port, policy=policy)
    registries = attrs.evolve(registries, endpoints={"ep_0001": endpoint})
    plan = _plan(fanout, registries)
    async with PlanEngine(registries=registries) as engine:
        await engine.execute(plan, {"user_id": 1})
        steps = _LongestStep()
        trio.lowlevel.add_instrument(steps)
        gc.callbacks.append(steps.collect)
        try:
            began = time.perf_counter()
            found = await engine.execute(plan, {"user_id": _VIEWER})
            taken = time.perf_counter() - began
        finally:
            gc.callbacks.remove(steps.collect)
            trio.lowlevel.remove_instrument(steps)
        expect(len(found.candidates) == fanout, "candidates are missing")
    held = {"longest hold": steps.work, "with garbage collections": steps.collections, "request": taken}
    return {name: seconds * 1000 for name, seconds in held.items()}


def measure(port: int, *, short: bool) -> tuple[list[Table], list[Bar]]:
    """The least of several requests, since whatever else the machine does only adds."""
    fanout, rounds = (2_000, 1) if short else (IDS, 5)
    fill(port, _commands(fanout))
    measured = [trio.run(longest_hold, port, fanout) for _ in range(rounds)]
    best = {name: min(one[name] for one in measured) for name in measured[0]}
    title = f"CPU that a request with a large fan-out uses between two checkpoints, best of {rounds}"
    rows = [{"ids": fanout, **{f"{name}, ms": value for name, value in best.items()}}]
    bar = Bar(name="longest hold of the loop, ms", measured=best["longest hold"], allowed=BAR_MS)
    return [Table(title=title, rows=rows)], [bar]
