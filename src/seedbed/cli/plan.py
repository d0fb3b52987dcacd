"""`seedbed plan`: check, run, measure, explain and list plans. Help texts come from here, so imports are late."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import attrs
from cyclopts import App, Parameter
from cyclopts.validators import Number

from .exit_codes import ExitCode, exit_code
from .options import Flag, Machine, PlanSource, RequestLimits

if TYPE_CHECKING:
    from ..plans.compile import Explanation
    from ..plans.engine import PlanEngine
    from ..plans.request import Response
    from .plan_work import Measured

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
def check_plan(plan: PlanText, /, *, source: PlanSource | None = None, machine: Machine | None = None) -> int:
    """Report everything that is wrong with a plan; nothing is run.

    No server is contacted.
    """
    from ..errors import InvalidPlan
    from . import output
    from .plan_work import load_plan, print_text, problems_data

    try:
        found, problems = load_plan(plan, source or PlanSource()).plan, []
    except InvalidPlan as error:
        found, problems = None, problems_data(error)
    if machine is not None and machine.json:
        facts = {} if found is None else {"plan": found.name, "nodes": len(found.nodes), "outputs": found.outputs}
        output.print_json({"ok": found is not None, "problems": problems, **facts})
    elif found is None:
        for each in problems:
            print_text(f"{each['code']}: {each['path']}: {each['message']}")
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        print_text(f"{plan}: INVALID_PLAN: {count}", error=True)
    else:
        facts_text = f"plan {found.name}, {len(found.nodes)} nodes, outputs: {', '.join(found.outputs)}"
        print_text(f"{plan}: no problems; {facts_text}")
    return ExitCode.OK if found is not None else ExitCode.BAD_INPUT


@plan.command(name="run")
def run_plan(
    plan: PlanText,
    /,
    *,
    request: RequestText,
    trace: Flag = False,
    source: PlanSource | None = None,
    limits: RequestLimits | None = None,
    machine: Machine | None = None,
) -> int:
    """Answer one request.

    Parameters
    ----------
    trace
        Show when and where each node ran, and the nodes that the answer waited for.

    """
    from . import output
    from .plan_work import load_plan, run_engine, show_response

    limits = limits or RequestLimits()
    loaded = load_plan(plan, source or PlanSource())
    given = loaded.request(request)

    async def answer(engine: PlanEngine) -> Response:
        return await engine.execute(loaded.plan, given, **limits.options(trace=trace))

    response = run_engine(loaded.engine(limits), answer)
    if machine is not None and machine.json:
        output.print_json(response.to_dict())
    else:
        show_response(response)
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
    source: PlanSource | None = None,
    limits: RequestLimits | None = None,
    machine: Machine | None = None,
) -> int:
    """Answer many requests and report throughput, latency and errors.

    One request goes ahead, uncounted, so that servers are connected. Requests that fail are figures of the result; if
    not one is answered, the exit status is that of the most frequent error.

    Parameters
    ----------
    requests
        Number of requests.
    concurrency
        Number of requests under way at any time.
    max_concurrent_requests
        Requests that the engine runs at once; by default the concurrency.
    max_queue
        Requests that may wait in the engine; those above are rejected.

    """
    from . import output
    from .plan_work import bench_data, load_plan, measure_requests, run_engine, show_bench

    limits = limits or RequestLimits()
    loaded = load_plan(plan, source or PlanSource())
    given, options = loaded.request(request), limits.options()
    engine = loaded.engine(limits, at_once=max_concurrent_requests or concurrency, max_queue=max_queue)

    async def measure(engine: PlanEngine) -> Measured:
        return await measure_requests(
            engine, loaded.plan, given, options=options, requests=requests, concurrency=concurrency
        )

    measured = run_engine(engine, measure)
    figures = bench_data(measured, requests, concurrency)
    if machine is not None and machine.json:
        output.print_json({"plan": loaded.plan.name, **figures})
    else:
        show_bench(loaded.plan.name, figures)
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
    source: PlanSource | None = None,
    limits: RequestLimits | None = None,
    machine: Machine | None = None,
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

    from . import output
    from .plan_work import explanation_data, load_plan, mermaid_text, run_engine, show_explanation, show_trace

    limits = limits or RequestLimits()
    loaded = load_plan(plan, source or PlanSource())
    given = None if request is None else loaded.request(request)

    async def explain(engine: PlanEngine) -> tuple[Explanation, Response | None]:
        explained = engine.explain(loaded.plan)
        if given is None:
            return explained, None
        return explained, await engine.execute(loaded.plan, given, **limits.options(trace=True))

    explained, response = run_engine(loaded.engine(limits), explain)
    trace = None if response is None else response.trace
    if mermaid and not (machine is not None and machine.json):
        sys.stdout.write(mermaid_text(loaded.plan, explained))
        return ExitCode.OK
    found = explanation_data(loaded, explained)
    if machine is not None and machine.json:
        output.print_json({**found, **({} if trace is None else {"trace": attrs.asdict(trace)})})
    else:
        show_explanation(found)
        if trace is not None:
            show_trace(trace)
    return ExitCode.OK


@plan.command(name="list")
def list_plans(directory: Path = Path(), /, *, source: PlanSource | None = None, machine: Machine | None = None) -> int:
    """List the plans of a directory, the ops and the registries.

    JSON files that have nodes are plans. Python files are run only with --allow-code.

    Parameters
    ----------
    directory
        Where to look for plans; folders in it are left out.

    """
    from ..errors import ConfigError
    from . import output
    from .plan_work import list_directory, ops_data, read_registries, registries_data, show_listing

    source = source or PlanSource()
    if not directory.is_dir():
        raise ConfigError(f"{str(directory)!r} is not a directory")
    registries = read_registries(source)
    # Plans first: a file with plans may register ops.
    plans = list_directory(directory, source)
    found = {"plans": plans, "ops": ops_data(registries), "registries": registries_data(registries)}
    if machine is not None and machine.json:
        output.print_json(found)
    else:
        show_listing(found)
    return ExitCode.OK
