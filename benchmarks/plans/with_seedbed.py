"""The plan as the engine runs it, with its own client or another."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import trio

from seedbed.plans.endpoint import EndpointPolicy
from seedbed.plans.engine import PlanEngine
from seedbed.plans.format import parse_plan
from seedbed.plans.registries import Registries, default_registries

from .clients import open_reads
from .work import Meter, check, given_load, tell

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from seedbed.plans.format import Plan

    from .clients import Reads
    from .work import Answer, Load, Rate

OWN = "own"
PLAN = Path(__file__).parents[2] / "examples" / "plans" / "complex_dag.json"
# Nothing is late however busy the machine is; what is late is measured elsewhere.
_PATIENT = EndpointPolicy(max_inflight=4_096, connect_timeout_ms=10_000, request_timeout_ms=10_000)


def registries_at(port: int) -> Registries:
    """The embedded registries, with the server at a port of this machine."""
    found = default_registries()
    endpoints = {name: attrs.evolve(each, port=port, policy=_PATIENT) for name, each in found.endpoints.items()}
    return attrs.evolve(found, endpoints=endpoints)


@attrs.frozen
class OneEndpoint:
    """Endpoints that are all the same one."""

    reads: Reads

    def get(self, _endpoint_id: str) -> Any:
        return self.reads


@asynccontextmanager
async def open_engine(load: Load, **options: Any) -> AsyncIterator[tuple[PlanEngine, Plan]]:
    """An engine, with the client that the load names, and the plan."""
    registries = registries_at(load.port)
    plan = parse_plan(PLAN, registries)
    options = {"max_concurrent_requests": load.at_once, **options}
    if load.client == OWN:
        async with PlanEngine(registries=registries, **options) as engine:
            yield engine, plan
    else:
        async with (
            open_reads(load.client, load.port) as reads,
            PlanEngine(registries=registries, endpoints=OneEndpoint(reads), **options) as engine,
        ):
            yield engine, plan


async def measure(load: Load, answer: Answer) -> Rate:
    """Keep so many requests under way."""
    await check(answer)
    meter = Meter(load.requests)
    numbers = iter(range(load.requests))
    async with trio.open_nursery() as nursery:
        for _ in range(load.at_once):
            nursery.start_soon(meter.worker, numbers, answer)
    return meter.rate()


async def run(load: Load) -> Rate:
    """All of it."""
    async with open_engine(load) as (engine, plan):

        async def answer(user_id: int) -> list[dict[str, Any]]:
            return (await engine.execute(plan, {"user_id": user_id}, deadline=10)).candidates

        return await measure(load, answer)


if __name__ == "__main__":
    tell(trio.run(partial(run, given_load())))
