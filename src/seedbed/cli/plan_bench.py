"""`seedbed plan bench`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import attrs
from cyclopts import Parameter
from cyclopts.validators import Number

from .exit_codes import ExitCode, exit_code
from .options import Machine  # noqa: TC001  cyclopts reads the annotations
from .plan_options import PlanSource, RequestLimits, RequestText

if TYPE_CHECKING:
    from ..errors import PlanError
    from ..plans.engine import PlanEngine
    from ..plans.request import Request
    from .plan_files import LoadedPlan

Count = Annotated[int, Parameter(validator=Number(gte=1))]


@attrs.define(eq=False)
class _Measured:
    """What requests took, filled by the tasks that make them."""

    seconds: float = 0.0
    latencies: list[float] = attrs.field(factory=list)  # of those that were answered
    errors: Counter[str] = attrs.field(factory=Counter)
    examples: dict[str, PlanError] = attrs.field(factory=dict)  # the first error of each code


def bench_plan(
    plan: str,
    /,
    *,
    request: RequestText,
    requests: Annotated[Count, Parameter(name=["--requests", "-n"])] = 1_000,
    concurrency: Annotated[Count, Parameter(name=["--concurrency", "-c"])] = 1,
    max_concurrent_requests: Count | None = None,
    max_queue: Annotated[int, Parameter(validator=Number(gte=0))] = 256,
    source: PlanSource | None = None,
    limits: RequestLimits | None = None,
    machine: Machine | None = None,
) -> int:
    """Answer the same request many times; say how many a second, how long they took and what failed.

    One request goes ahead, uncounted, so that servers are connected. Requests that fail are figures of the result; if
    not one is answered, the exit status is that of the most frequent error.

    Parameters
    ----------
    plan
        A JSON file, or FILE.py:FUNCTION with --allow-code.
    request
        The request as JSON, such as {"user_id": 1}; - reads it from standard input.
    requests
        How many to make.
    concurrency
        How many are under way at any time.
    max_concurrent_requests
        How many the engine runs at once; as many as are under way if not given.
    max_queue
        How many may wait in the engine; those above are refused.

    """
    from . import output
    from .plan_files import load_plan, run_engine

    limits = limits or RequestLimits()
    loaded = load_plan(plan, source or PlanSource())
    given = loaded.request(request)

    async def measure(engine: PlanEngine) -> _Measured:
        await _make_requests(engine, loaded, given, limits, requests=1, concurrency=1)
        return await _make_requests(engine, loaded, given, limits, requests=requests, concurrency=concurrency)

    engine = loaded.engine(limits, at_once=max_concurrent_requests or concurrency, max_queue=max_queue)
    measured = run_engine(engine, measure)
    found = _figures(measured, requests, concurrency)
    if machine is not None and machine.json:
        output.print_json({"plan": loaded.plan.name, **found})
    else:
        _tell(loaded.plan.name, found)
    if measured.latencies:
        return ExitCode.OK
    return exit_code(measured.examples[measured.errors.most_common(1)[0][0]])


async def _make_requests(
    engine: PlanEngine, loaded: LoadedPlan, request: Request, limits: RequestLimits, *, requests: int, concurrency: int
) -> _Measured:
    import time

    import trio

    from ..errors import PlanError

    measured = _Measured()
    numbers = iter(range(requests))

    async def make() -> None:
        for _ in numbers:
            began = time.perf_counter()
            try:
                await engine.execute(
                    loaded.plan,
                    request,
                    deadline=limits.deadline,
                    node_timeout=limits.node_timeout,
                    partial=limits.partial,
                )
            except PlanError as error:
                measured.errors[error.code] += 1
                measured.examples.setdefault(error.code, error)
                # One that is refused at once has not waited for anything, so that nobody else would get a turn.
                await trio.lowlevel.checkpoint()
            else:
                measured.latencies.append(time.perf_counter() - began)

    began = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(min(concurrency, requests)):
            nursery.start_soon(make)
    measured.seconds = time.perf_counter() - began
    return measured


def _figures(measured: _Measured, requests: int, concurrency: int) -> dict[str, Any]:
    latencies = sorted(measured.latencies)
    return {
        "requests": requests,
        "concurrency": concurrency,
        "seconds": measured.seconds,
        "answered": len(latencies),
        "throughput_per_second": len(latencies) / measured.seconds,
        "p50_ms": _percentile(latencies, 0.50),
        "p99_ms": _percentile(latencies, 0.99),
        "max_ms": _percentile(latencies, 1.0),
        "errors": dict(measured.errors.most_common()),
        "examples": {code: str(error) for code, error in measured.examples.items()},
    }


def _percentile(ordered: list[float], share: float) -> float | None:
    """The least latency, in milliseconds, that so large a share is not above."""
    import math

    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] * 1000 if ordered else None


def _tell(name: str, found: dict[str, Any]) -> None:
    from . import output

    print = output.console().print  # noqa: A001
    print(f"{name}: {found['requests']:,} requests, {found['concurrency']:,} at once, {found['seconds']:,.2f} s")
    print(f"{found['answered']:,} answered, {found['throughput_per_second']:,.0f} a second")
    if found["answered"]:
        print(f"p50 {found['p50_ms']:,.2f} ms, p99 {found['p99_ms']:,.2f} ms, longest {found['max_ms']:,.2f} ms")
    for code, count in found["errors"].items():
        print(f"{count:,} × {code}, such as: {found['examples'][code]}", markup=False, soft_wrap=True)
