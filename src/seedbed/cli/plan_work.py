"""The work of the plan commands: read plans, run an engine, measure requests, print results as JSON or tables."""

from __future__ import annotations

import functools
import json
import math
import runpy
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs
import trio

from ..columns.code import imports_from
from ..errors import ConfigError, InvalidPlan, PlanError
from ..plans.builder import AuthoredPlan
from ..plans.compile import written_columns
from ..plans.engine import PlanEngine
from ..plans.format import parse_plan
from ..plans.ops import OpRegistry, default_ops
from ..plans.registries import default_registries, load_registries
from ..plans.request import parse_request
from . import output
from .output import print_line

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
    from types import ModuleType

    from ..plans.compile import Explanation, SegmentPlan
    from ..plans.format import Plan
    from ..plans.registries import Registries
    from ..plans.request import Request, Response, Trace
    from .options import Machine, PlanSource, RequestLimits

T = TypeVar("T")


@attrs.frozen
class LoadedPlan:
    """A valid plan and the ops that it was checked against."""

    plan: Plan
    ops: OpRegistry

    def request(self, text: str) -> Request:
        """Read a request: JSON text, or - for standard input."""
        return parse_request(sys.stdin.read() if text.strip() == "-" else text, self.plan.registries)

    def engine(self, limits: RequestLimits, *, at_once: int = 1, max_queue: int = 0) -> PlanEngine:
        return PlanEngine(
            registries=self.plan.registries,
            ops=self.ops,
            max_concurrent_requests=at_once,
            max_queue=max_queue,
            cpu_threads=limits.cpu_threads,
            fusion=limits.fusion,
            grace=0,  # all requests are finished by then, so results of threads that still run are not needed
        )


def load_plan(given: str, source: PlanSource) -> LoadedPlan:
    """Read a plan from a JSON file or, where code is allowed, from a function as FILE.py:FUNCTION."""
    file, colon, name = given.rpartition(":")
    if not (colon and file.endswith(".py")):
        if given.endswith(".py"):
            raise ConfigError(f"a plan in Python is given as FILE.py:FUNCTION, not {given!r}")
        with _readable(f"the plan {given!r}"):
            return LoadedPlan(parse_plan(Path(given), read_registries(source)), default_ops())
    if not source.allow_code:
        raise ConfigError(f"the plan {given!r} is code, which is run only with --allow-code")
    found = authored_plans(Path(file))
    if name not in found:
        raise ConfigError(f"{file!r} has no plan {name!r}; there are: {', '.join(found) or 'none'}")
    return compile_plan(found[name], source)


def compile_plan(authored: AuthoredPlan, source: PlanSource) -> LoadedPlan:
    """The plan that a plan function returns; registries of the command line replace its own."""
    if source.registries is not None:
        authored = attrs.evolve(authored, registries=read_registries(source))
    return LoadedPlan(authored.plan(), default_ops() if authored.ops is None else authored.ops)


def authored_plans(file: Path) -> dict[str, AuthoredPlan]:
    """Run a Python file, as Python would, and return its plans by the names that they have there."""
    if not file.is_file():
        raise ConfigError(f"the plan file {str(file)!r} does not exist")
    try:
        with imports_from(file.resolve().parent):
            names: dict[str, Any] = runpy.run_path(str(file), run_name=file.stem)
    except SystemExit as error:
        # Passed on, its status 0 would report success.
        raise ConfigError(f"the plan file {str(file)!r} is not a file of plans: it exits ({error.code})") from error
    return {name: value for name, value in names.items() if isinstance(value, AuthoredPlan)}


def read_registries(source: PlanSource) -> Registries:
    """The registries of the option, or the embedded ones."""
    path = source.registries
    with _readable(f"the registries {str(path)!r}"):
        return default_registries() if path is None else load_registries(path)


def serve_module() -> ModuleType:
    """The module of the plan server, which needs an extra."""
    try:
        from ..plans.serve import processes
    except ImportError as error:
        raise ConfigError(
            f"serving plans needs uvicorn, which is not installed ({error}): install seedbed[serve]"
        ) from error
    return processes


@contextmanager
def _readable(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{what} cannot be read: {error.strerror or error}") from error


def problems_data(error: InvalidPlan) -> list[dict[str, str]]:
    """The problems of a plan as JSON values."""
    return [{"code": str(code), "path": path, "message": message} for code, path, message in error.problems]


def list_directory(directory: Path, source: PlanSource) -> list[dict[str, Any]]:
    """Describe each plan of a directory; one that is invalid or raises does not hide the others."""
    found: list[dict[str, Any]] = []
    for path in sorted(directory.iterdir()):
        if path.suffix == ".json" and path.is_file() and _has_nodes(path):
            found.append(_describe(str(path), functools.partial(load_plan, str(path), source)))
        elif path.suffix == ".py" and source.allow_code:
            try:
                authored = authored_plans(path)
            except Exception as error:  # noqa: BLE001  a file is user code
                found.append({"plan": str(path), **_NO_FACTS, "problems": [_raised(error)]})
                continue
            for name, each in authored.items():
                found.append(_describe(f"{path}:{name}", functools.partial(compile_plan, each, source)))
    return found


_NO_FACTS: Final[Mapping[str, Any]] = {"name": None, "nodes": None, "outputs": [], "ops": [], "problems": []}


def _has_nodes(path: Path) -> bool:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and "nodes" in document


def _describe(location: str, load: Callable[[], LoadedPlan]) -> dict[str, Any]:
    facts = {"plan": location, **_NO_FACTS}
    try:
        plan = load().plan
    except InvalidPlan as error:
        return {**facts, "problems": problems_data(error)}
    except Exception as error:  # noqa: BLE001  a plan function is user code
        return {**facts, "problems": [_raised(error)]}
    ops = sorted({node.op for node in plan.nodes})
    return {**facts, "name": plan.name, "nodes": len(plan.nodes), "outputs": list(plan.outputs), "ops": ops}


def _raised(error: Exception) -> dict[str, str]:
    return {"code": "RAISED", "path": "$", "message": f"{type(error).__name__}: {error}"}


def run_engine(engine: PlanEngine, work: Callable[[PlanEngine], Awaitable[T]]) -> T:
    """Open an engine, run `work` with it and close it."""

    async def opened() -> T:
        async with engine:
            return await work(engine)

    try:
        return trio.run(opened)
    except BaseExceptionGroup as group:
        # Ctrl-C arrives in the task that happens to run, so nurseries wrap it.
        if group.subgroup(KeyboardInterrupt) is not None:
            raise KeyboardInterrupt from None
        raise


@attrs.define(eq=False)
class Measured:
    """Latencies and errors of requests, filled by the tasks that send them."""

    seconds: float = 0.0
    latencies: list[float] = attrs.field(factory=list)  # of answered requests
    errors: Counter[str] = attrs.field(factory=Counter)
    examples: dict[str, PlanError] = attrs.field(factory=dict)  # the first error of each code

    def data(self) -> dict[str, Any]:
        """The figures as JSON values."""
        ordered = sorted(self.latencies)

        def percentile(share: float) -> float | None:
            return ordered[max(0, math.ceil(share * len(ordered)) - 1)] * 1000 if ordered else None

        return {
            "seconds": self.seconds,
            "answered": len(ordered),
            "throughput_per_second": len(ordered) / self.seconds,
            "p50_ms": percentile(0.50),
            "p99_ms": percentile(0.99),
            "max_ms": percentile(1.0),
            "errors": dict(self.errors.most_common()),
            "examples": {code: str(error) for code, error in self.examples.items()},
        }


async def measure_requests(execute: Callable[[], Awaitable[object]], requests: int, concurrency: int) -> Measured:
    """Answer one request uncounted, then many, `concurrency` at a time."""

    async def send(numbers: Any, measured: Measured) -> None:
        for _ in numbers:
            began = time.perf_counter()
            try:
                await execute()
            except PlanError as error:
                measured.errors[error.code] += 1
                measured.examples.setdefault(error.code, error)
                # A request that is rejected at once has not waited: without this, other tasks would not run.
                await trio.lowlevel.checkpoint()
            else:
                measured.latencies.append(time.perf_counter() - began)

    await send(range(1), Measured())
    measured, numbers, began = Measured(), iter(range(requests)), time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(min(concurrency, requests)):
            nursery.start_soon(send, numbers, measured)
    measured.seconds = time.perf_counter() - began
    return measured


def print_result(machine: Machine, data: dict[str, Any], show: Callable[[], None]) -> None:
    """Write a result as one JSON value for machines, else show it."""
    if machine.json:
        output.print_json(data)
    else:
        show()


def show_check(given: str, found: dict[str, Any]) -> None:
    """Print the result of `plan check`."""
    if found["ok"]:
        facts = f"plan {found['plan']}, {found['nodes']} nodes, outputs: {', '.join(found['outputs'])}"
        return print_line(f"{given}: no problems; {facts}")
    for each in found["problems"]:
        print_line(f"{each['code']}: {each['path']}: {each['message']}")
    return print_line(f"{given}: INVALID_PLAN: {_count(found['problems'], 'problem')}", error=True)


def _count(items: Sequence[object], noun: str) -> str:
    return f"1 {noun}" if len(items) == 1 else f"{len(items):,} {noun}s"


def show_response(response: Response) -> None:
    """Print candidates, the trace if the request was traced, and the nodes that degraded or did not finish."""
    candidates = response.candidates
    if candidates:
        rows: list[list[Any]] = [[str(each["id"]), *each["fields"].values()] for each in candidates]
        output.print_table(["id", *candidates[0]["fields"]], rows)
    if response.trace is not None:
        show_trace(response.trace)
    if response.coverage is not None:
        for each in response.coverage.degraded:
            print_line(f"degraded: node {each.node!r} ({each.policy}): {each.code}: {each.message}", error=True)
        if response.coverage.unfinished:
            print_line(f"unfinished: {', '.join(response.coverage.unfinished)}", error=True)
    print_line(f"request {response.request_id}: {_count(candidates, 'candidate')}")


def show_trace(trace: Trace) -> None:
    """Print when and where each node ran, and what the answer waited for."""
    fields = ("node", "op", "label", "where", "segment", "start_ms", "end_ms", "rows_in", "rows_out")
    title = f"{trace.total_ms:,.3f} ms, of which queued {trace.queued_ms:,.3f} ms"
    _print_fields([attrs.asdict(each) for each in trace.nodes], fields, title)
    print_line(f"critical path: {' → '.join(trace.critical_path)}")


def show_bench(found: dict[str, Any]) -> None:
    """Print the result of `plan bench`."""
    sent = f"{found['requests']:,} requests, {found['concurrency']:,} at once, {found['seconds']:,.2f} s"
    print_line(f"{found['plan']}: {sent}")
    print_line(f"{found['answered']:,} answered, {found['throughput_per_second']:,.0f} a second")
    if found["answered"]:
        print_line(f"p50 {found['p50_ms']:,.2f} ms, p99 {found['p99_ms']:,.2f} ms, longest {found['max_ms']:,.2f} ms")
    for code, count in found["errors"].items():
        print_line(f"{count:,} × {code}, such as: {found['examples'][code]}")


def explanation_data(loaded: LoadedPlan, explained: Explanation) -> dict[str, Any]:
    """The result of `plan explain` as JSON values."""
    plan, costs, nodes = loaded.plan, explained.costs, []
    written = written_columns(plan, loaded.ops)
    segments = {node: (number, each) for number, each in enumerate(explained.segments) for node in each.nodes}
    for node in plan.nodes:
        number, segment = segments[node.node_id]
        head = {"node": node.node_id, "op": node.op, "needs": list(node.upstream), "segment": number}
        tail = {"writes": _key_names(plan.registries, written[node.node_id]), "label": node.params.get("trace")}
        nodes.append({**head, "runs": _runs(segment), "endpoint": node.params.get("endpoint"), **tail})
    endpoints = []
    for name in sorted({name for segment in explained.segments for name in segment.endpoints}):
        each = plan.registries.endpoints[name]
        addresses = each.shards or each.cluster or ((each.host, each.port),)
        address = each.host if each.host == "memory" else ", ".join(f"{host}:{port}" for host, port in addresses)
        head = {"id": name, "name": each.name, "kind": each.kind, "at": address}
        endpoints.append({**head, **attrs.asdict(each.policy)})
    ops = {name: {"fixed_us": cost.fixed * 1e6, "per_row_us": cost.per_row * 1e6} for name, cost in costs.ops.items()}
    return {
        "plan": plan.name,
        "fusion": explained.fusion,
        "nodes": nodes,
        "outputs": plan.outputs,
        "segments": [attrs.asdict(segment) for segment in explained.segments],
        "endpoints": endpoints,
        "costs": {"hop_us": costs.hop * 1e6, "ops": ops},
    }


def _runs(segment: SegmentPlan) -> str:
    if segment.where != "auto":
        return segment.where
    return "inline" if segment.inline_below is None else f"inline below {segment.inline_below:,} rows, else thread"


def show_explanation(found: dict[str, Any], trace: Trace | None) -> None:
    """Print the result of `plan explain`."""
    title = f"{found['plan']}, fusion {found['fusion']}"
    _print_fields(found["nodes"], ("node", "op", "needs", "segment", "runs", "endpoint", "writes"), title)
    print_line(f"outputs: {', '.join(found['outputs'])}")
    if found["endpoints"]:
        _print_fields(found["endpoints"], tuple(found["endpoints"][0]), "endpoints")
    costs = found["costs"]
    rows = [(name, cost["fixed_us"], cost["per_row_us"]) for name, cost in costs["ops"].items()]
    output.print_table(("op", "a call, µs", "a row, µs"), rows, title="costs")
    print_line(f"a hop to a thread and back: {costs['hop_us']:,.0f} µs")
    if trace is not None:
        show_trace(trace)


def write_page(file: Path, found: dict[str, Any]) -> None:
    """Write the page of an explanation."""
    from .plan_page import page_text

    try:
        file.write_text(page_text(found), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the page {str(file)!r} cannot be written: {error.strerror or error}") from error


def mermaid_text(plan: Plan, explained: Explanation) -> str:
    """The graph with nodes by their ids, which are letters, digits and _, so that no name can break the text."""
    lines = ["graph TD"]
    ops = {node.node_id: node.op for node in plan.nodes}
    for number, segment in enumerate(explained.segments):
        boxed = len(segment.nodes) > 1
        if boxed:
            lines.append(f'    subgraph segment_{number} ["segment {number}: {_runs(segment)}"]')
        for node in segment.nodes:
            shape = f'(["{node}<br/>{ops[node]}"])' if segment.where == "loop" else f'["{node}<br/>{ops[node]}"]'
            lines.append(f"    {'    ' if boxed else ''}node_{node}{shape}")
        if boxed:
            lines.append("    end")
    lines.extend(f"    node_{needed} --> node_{node.node_id}" for node in plan.nodes for needed in node.upstream)
    return "\n".join(lines) + "\n"


def ops_data(registries: Registries) -> list[dict[str, Any]]:
    """The registered ops as JSON values."""
    found = []
    for op in sorted(default_ops(), key=lambda op: op.name):
        few, many = op.inputs
        params, written = {}, _key_names(registries, op.writes)
        for name, spec in op.params.items():
            if name != "trace":
                default = "" if spec.required else f" (default {json.dumps(spec.default)})"
                params[name] = f"{spec.description}{default}"
                written += [name] if spec.writes else []
        inputs = str(few) if few == many else f"{few} to {many}"
        runs = "loop" if op.run_async is not None else "inline" if op.run_inline else "cpu"
        head = {"name": op.name, "aliases": list(op.aliases), "inputs": inputs, "params": params}
        found.append({**head, "gives": op.gives.value, "writes": written, "runs": runs})
    return found


def _key_names(registries: Registries, keys: Iterable[int]) -> list[str]:
    return [registries.keys[key].name if key in registries.keys else str(key) for key in sorted(keys)]


def registries_data(registries: Registries) -> dict[str, list[dict[str, Any]]]:
    """The registries as JSON values."""
    groups: dict[str, Mapping[Any, Any]]
    groups = {"keys": registries.keys, "params": registries.params, "endpoints": registries.endpoints}
    return {name: [attrs.asdict(each) for each in group.values()] for name, group in groups.items()}


def show_listing(found: dict[str, Any]) -> None:
    """Print the result of `plan list`."""
    if found["plans"]:
        plans = [{**each, "state": _state(each["problems"])} for each in found["plans"]]
        _print_fields(plans, ("plan", "name", "nodes", "outputs", "state"), "plans")
    else:
        print_line("no plans here", error=True)
    _print_fields(found["ops"], ("name", "inputs", "params", "gives", "writes", "runs"), "ops")
    registries = found["registries"]
    _print_fields(registries["keys"], ("id", "name", "type", "nullable", "default", "writable"), "keys")
    _print_fields(registries["params"], ("id", "name", "type", "nullable"), "params")
    endpoints = [{**each, **each["policy"]} for each in registries["endpoints"]]
    policy = ("max_inflight", "connect_timeout_ms", "request_timeout_ms")
    _print_fields(endpoints, ("id", "name", "kind", "host", "port", *policy), "endpoints")


def _state(problems: list[dict[str, str]]) -> str:
    if not problems:
        return "valid"
    code = "RAISED" if problems[0]["code"] == "RAISED" else f"INVALID_PLAN, {_count(problems, 'problem')}"
    return f"{code}: {problems[0]['message']}"


def _print_fields(values: list[dict[str, Any]], fields: tuple[str, ...], title: str) -> None:
    """Print these fields of JSON objects, a row for each object."""
    rows = [[_text(field, each[field]) for field in fields] for each in values]
    output.print_table([field.replace("_", " ") for field in fields], rows, title=title)


def _text(field: str, value: Any) -> Any:
    """A JSON value as a table shows it; ids, ports and defaults without thousands separators."""
    if field in ("id", "port", "default") and value is not None:
        return str(value)
    if isinstance(value, list):
        return ", ".join(value)
    if isinstance(value, dict):
        return "; ".join(f"{name}: {each}" for name, each in value.items())
    return ("yes" if value else "no") if isinstance(value, bool) else value
