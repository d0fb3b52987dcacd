"""`seedbed plan`: check, run, measure, explain and list plans. Help texts come from here, so imports are late."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import attrs
from cyclopts import App, Group, Parameter
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
Milliseconds = Annotated[float, Parameter(validator=Number(gte=0))]
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
    html: Path | None = None,
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
    html
        Write a page to this file that draws the plan: segments, written keys and, with --request, times and the
        critical path. It loads nothing from elsewhere.

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
    if html is not None:
        work.write_page(html, found)
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


_REACH = Group("Who may call", sort_key=1)
_LIMITS = Group("Limits", sort_key=2)


@plan.command(name="serve")
def serve_plans(
    directory: Path,
    /,
    *,
    registries: Path | None = None,
    port: Annotated[int, Parameter(validator=Number(gte=0, lte=65_535))] = 8080,
    workers: Count = 1,
    host: Annotated[str, Parameter(group=_REACH)] = "127.0.0.1",
    token_env: Annotated[str | None, Parameter(group=_REACH)] = None,
    cert_file: Annotated[Path | None, Parameter(group=_REACH)] = None,
    key_file: Annotated[Path | None, Parameter(group=_REACH)] = None,
    client_ca_file: Annotated[Path | None, Parameter(group=_REACH)] = None,
    deadline_ms: Annotated[Milliseconds, Parameter(group=_LIMITS)] = 1_000,
    max_deadline_ms: Annotated[Milliseconds, Parameter(group=_LIMITS)] = 60_000,
    max_body: Annotated[Count, Parameter(group=_LIMITS)] = 1 << 20,
    max_connections: Annotated[Count, Parameter(group=_LIMITS)] = 1_000,
    header_timeout_ms: Annotated[Milliseconds, Parameter(group=_LIMITS)] = 10_000,
    max_concurrent_requests: Annotated[Count, Parameter(group=_LIMITS)] = 64,
    max_queue: Annotated[int, Parameter(validator=Number(gte=0), group=_LIMITS)] = 256,
    cpu_threads: Annotated[Count | None, Parameter(group=_LIMITS)] = None,
    grace_ms: Annotated[Milliseconds, Parameter(group=_LIMITS)] = 10_000,
    drain_delay_ms: Annotated[Milliseconds, Parameter(group=_LIMITS)] = 0,
) -> int:
    """Serve the plans of a directory over HTTP, until SIGTERM.

    Every JSON file of the directory holds a plan, which is served by its name. Changed files are taken over within a
    second, and at once on SIGHUP, if they are valid and their warm-up requests (FILE.warmup.json) are answered.

    Parameters
    ----------
    directory
        The folder with the plans.
    registries
        Keys, params and endpoints: a TOML or JSON file instead of the embedded ones.
    port
        The port to listen at; 0 takes a free one, which is printed.
    workers
        Processes behind the port. Limits are those of each.
    host
        The address to listen at. Any but a loopback address needs a token or certificates of clients.
    token_env
        The environment variable with the token that callers must send as `Authorization: Bearer TOKEN`.
    cert_file
        The certificate of the server, for TLS.
    key_file
        The key of the certificate.
    client_ca_file
        Accept only clients with a certificate of this authority (mutual TLS).
    deadline_ms
        Milliseconds that a request may take if it has no X-Deadline-Ms.
    max_deadline_ms
        The longest deadline that a request can ask for.
    max_body
        Bytes of the body of a request.
    max_connections
        Connections of each process; others are answered with status 503.
    header_timeout_ms
        Milliseconds until a request must have arrived whole; then its connection is closed.
    max_concurrent_requests
        Requests that run at once.
    max_queue
        Requests that may wait; those above are rejected.
    cpu_threads
        Threads for CPU nodes; by default one per core.
    grace_ms
        Milliseconds for requests that run when the server is asked to end.
    drain_delay_ms
        Milliseconds between SIGTERM, from which on /readyz fails, and the end of listening.

    """
    import sys

    from . import output
    from . import plan_work as work

    server = work.serve_module()
    config = server.ServerConfig(
        directory=str(directory),
        registries=None if registries is None else str(registries),
        host=host,
        port=port,
        workers=workers,
        token_env=token_env,
        cert_file=None if cert_file is None else str(cert_file),
        key_file=None if key_file is None else str(key_file),
        client_ca_file=None if client_ca_file is None else str(client_ca_file),
        max_connections=max_connections,
        header_timeout=header_timeout_ms / 1000,
        drain_delay=drain_delay_ms / 1000,
        serve=server.ServeConfig(
            deadline=deadline_ms / 1000,
            max_deadline=max_deadline_ms / 1000,
            max_body=max_body,
            max_concurrent_requests=max_concurrent_requests,
            max_queue=max_queue,
            cpu_threads=cpu_threads,
            grace=grace_ms / 1000,
        ),
    )
    with server.listen(config) as listener:
        scheme = "https" if cert_file is not None else "http"
        shown = f"[{host}]" if ":" in host else host
        output.print_line(f"serving plans at {scheme}://{shown}:{listener.getsockname()[1]}")
        sys.stdout.flush()
        server.run_server(config, listener)
    return ExitCode.OK


@plan.command(name="rollback")
def rollback_plan(directory: Path, name: str, /, *, to: str | None = None, machine: Machine = Machine()) -> int:
    """Serve an earlier version of a plan.

    All processes that serve the directory follow within a second. The next change of the plan's file ends it; rolling
    back twice leads to the version of the file again.

    Parameters
    ----------
    directory
        The folder that is served.
    name
        The name of the plan.
    to
        The beginning of the digest of the version; by default the one that was served before.

    """
    from ..plans.serve.catalog import rollback
    from . import output
    from . import plan_work as work

    before, after = rollback(directory, name, to)
    text = f"{name}: {after[:12]} is served instead of {before[:12]}"
    work.print_result(machine, {"plan": name, "before": before, "now": after}, lambda: output.print_line(text))
    return ExitCode.OK
