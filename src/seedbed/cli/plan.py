"""`seedbed plan`: check, run, measure, explain and list plans. Help texts come from here, so imports are late."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import attrs
from cyclopts import App, Parameter
from cyclopts.validators import Number

from .exit_codes import ExitCode, exit_code
from .options import Flag, Machine, PlanSource, RequestLimits

if TYPE_CHECKING:
    from ..plans.compile import Explanation
    from ..plans.engine import PlanEngine
    from ..plans.request import Trace

plan = App(name="plan", help="Run plans: request-scoped graphs of ops under a deadline.")

PlanText = Annotated[str, Parameter(help="A JSON file, or FILE.py:FUNCTION with --allow-code.")]
Count = Annotated[int, Parameter(validator=Number(gte=1))]
RequestText = Annotated[
    str,
    Parameter(
        name=["--request", "-r"],
        allow_leading_hyphen=True,
        help='The request as JSON, such as {"user_id": 1}; - reads it from standard input.',
    ),
]


@plan.command(name="check")
def check_plan(plan: PlanText, /, *, source: PlanSource = PlanSource(), machine: Machine = Machine()) -> int:
    """Report every problem of a plan; nothing is run and no server is contacted."""
    from ..errors import InvalidPlan
    from . import plan_work as work

    found: dict[str, Any] = {"ok": True, "problems": []}
    try:
        valid = work.load_plan(plan, source).plan
        found |= {"plan": valid.name, "nodes": len(valid.nodes), "outputs": valid.outputs}
    except InvalidPlan as error:
        found = {"ok": False, "problems": work.problems_data(error)}
    work.print_result(machine, found, lambda: work.show_check(plan, found))
    return ExitCode.OK if found["ok"] else ExitCode.BAD_INPUT


@plan.command(name="run")
def run_plan(
    plan: PlanText,
    /,
    *,
    request: RequestText,
    trace: Flag = False,
    source: PlanSource = PlanSource(),
    limits: RequestLimits = RequestLimits(),
    machine: Machine = Machine(),
) -> int:
    """Answer one request.

    Parameters
    ----------
    trace
        Show when and where each node ran, and the nodes that the answer waited for.

    """
    from . import plan_work as work

    loaded = work.load_plan(plan, source)
    given, options = loaded.request(request), limits.options(trace=trace)
    response = work.run_engine(loaded.engine(limits), lambda engine: engine.execute(loaded.plan, given, **options))
    work.print_result(machine, response.to_dict(), lambda: work.show_response(response))
    return ExitCode.OK


@plan.command(name="bench")
def bench_plan(
    plan: PlanText,
    /,
    *,
    request: RequestText,
    requests: Annotated[Count, Parameter(name=["--requests", "-n"])] = 1_000,
    concurrency: Annotated[Count, Parameter(name=["--concurrency", "-c"])] = 1,
    max_concurrent_requests: Count | None = None,
    max_queue: Annotated[int, Parameter(validator=Number(gte=0))] = 256,
    source: PlanSource = PlanSource(),
    limits: RequestLimits = RequestLimits(),
    machine: Machine = Machine(),
) -> int:
    """Answer many requests and report throughput, latency and errors.

    One request is answered first, uncounted, so that servers are connected. Failed requests are figures of the result;
    if none is answered, the exit status is that of the most frequent error.

    Parameters
    ----------
    requests
        Number of requests.
    concurrency
        Number of requests in flight at any time.
    max_concurrent_requests
        Requests that the engine runs at once; by default the concurrency.
    max_queue
        Requests that may wait in the engine; those above are rejected.

    """
    from . import plan_work as work

    loaded = work.load_plan(plan, source)
    given, options = loaded.request(request), limits.options()
    engine = loaded.engine(limits, at_once=max_concurrent_requests or concurrency, max_queue=max_queue)

    async def measure(engine: PlanEngine) -> work.Measured:
        execute = functools.partial(engine.execute, loaded.plan, given, **options)
        return await work.measure_requests(execute, requests, concurrency)

    measured = work.run_engine(engine, measure)
    figures = {"plan": loaded.plan.name, "requests": requests, "concurrency": concurrency, **measured.data()}
    work.print_result(machine, figures, lambda: work.show_bench(figures))
    if measured.latencies:
        return ExitCode.OK
    return exit_code(measured.examples[measured.errors.most_common(1)[0][0]])


@plan.command(name="explain")
def explain_plan(
    plan: PlanText,
    /,
    *,
    request: RequestText | None = None,
    mermaid: Flag = False,
    source: PlanSource = PlanSource(),
    limits: RequestLimits = RequestLimits(),
    machine: Machine = Machine(),
) -> int:
    """Show what runs where: nodes, segments, endpoints, written keys, and the costs that decide it.

    Parameters
    ----------
    request
        Also run this request and show what its answer waited for; - reads it from standard input.
    mermaid
        Write the graph as mermaid text, with a box around each segment, and nothing else.

    """
    import sys

    from . import plan_work as work

    loaded = work.load_plan(plan, source)
    given = None if request is None else loaded.request(request)

    async def explain(engine: PlanEngine) -> tuple[Explanation, Trace | None]:
        explained = engine.explain(loaded.plan)
        if given is None:
            return explained, None
        return explained, (await engine.execute(loaded.plan, given, **limits.options(trace=True))).trace

    explained, trace = work.run_engine(loaded.engine(limits), explain)
    if mermaid and not machine.json:
        sys.stdout.write(work.mermaid_text(loaded.plan, explained))
        return ExitCode.OK
    found = work.explanation_data(loaded, explained)
    if trace is not None:
        found["trace"] = attrs.asdict(trace)
    work.print_result(machine, found, lambda: work.show_explanation(found, trace))
    return ExitCode.OK


@plan.command(name="list")
def list_plans(directory: Path = Path(), /, *, source: PlanSource = PlanSource(), machine: Machine = Machine()) -> int:
    """List the plans of a directory, the ops and the registries.

    JSON files that have nodes are plans. Python files are run only with --allow-code.

    Parameters
    ----------
    directory
        Where to look for plans; folders in it are left out.

    """
    from ..errors import ConfigError
    from . import plan_work as work

    if not directory.is_dir():
        raise ConfigError(f"{str(directory)!r} is not a directory")
    registries = work.read_registries(source)
    # Plans first: a file with plans may register ops.
    plans = work.list_directory(directory, source)
    found = {"plans": plans, "ops": work.ops_data(registries), "registries": work.registries_data(registries)}
    work.print_result(machine, found, lambda: work.show_listing(found))
    return ExitCode.OK
