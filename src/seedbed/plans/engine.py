"""`PlanEngine`: runs plans for many requests at once."""

from __future__ import annotations

import functools
import itertools
import logging
import math
import os
import secrets
from collections import Counter
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import attrs
import trio

from .. import checks
from ..errors import ConfigError, Overloaded, PlanError, RequestDeadlineExceeded
from ..runtime.asyncio import anywhere, anywhere_context
from .admission import Admission, Forecast, LoopMeter, ThreadPool
from .compile import DEFAULT_COSTS, FUSIONS, CompiledPlan, explain
from .documents import shown
from .execute import Execution, not_started
from .format import Plan
from .ops import default_ops
from .opspec import RequestContext
from .redis import open_endpoints
from .registries import default_registries
from .request import Request, RequestEnd, Response, build_candidates, parse_request
from .rowset import NO_ROWS, concat

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping
    from types import TracebackType
    from typing import Self

    from .admission import Claim
    from .compile import Costs, Explanation, Fusion, Schedule
    from .documents import Source
    from .ops import OpRegistry
    from .redis import EndpointSource
    from .registries import Registries
    from .request import Trace

logger = logging.getLogger("seedbed")

K = TypeVar("K")
V = TypeVar("V")

# How many plans stay compiled. A service has tens; one that builds a plan per request must not fill the memory.
_CACHED: Final = 256
# How long requests that were cancelled at the end of grace may take to unwind before their endpoints are closed.
_UNWIND: Final = 1.0


@attrs.frozen(kw_only=True)
class EngineStatistics:
    """A snapshot of an engine. Outcomes are counted by the code of the error, and as OK."""

    running: int
    queued: int
    threads_busy: int
    threads_late: int  # working for requests that have ended
    late_completions: int  # threads and results that finished after their timeout
    outcomes: Mapping[str, int]


@attrs.frozen(kw_only=True)
class DrainReport:
    """How an engine ended: requests that finished within grace, requests cancelled after it, threads still at work."""

    finished: int
    cancelled: int
    threads_left: int


def _not_open() -> NoReturn:
    raise ConfigError("the engine is not open: use it as `async with PlanEngine(...) as engine`")


def _given_registries(given: Registries | None) -> Registries:
    return default_registries() if given is None else given


def _given_ops(given: OpRegistry | None) -> OpRegistry:
    return default_ops() if given is None else given


def _thread_count(given: int | None) -> int:
    return (os.cpu_count() or 1) if given is None else given


def _seconds(option: str, value: float | None) -> float:
    """The seconds of an option; infinite if it is not given."""
    try:
        if value is None or not math.isnan(value):
            return math.inf if value is None else float(value)
    except (TypeError, OverflowError):
        pass
    raise ConfigError(f"{option} must be a number of seconds, not {shown(value)}")


def _cached(cache: dict[K, V], key: K, make: Callable[[], V]) -> V:
    """The entry of a cache; a new one replaces the oldest if the cache is full."""
    found = cache.get(key)
    if found is None:
        found = make()
        if len(cache) >= _CACHED:
            del cache[next(iter(cache))]
        cache[key] = found
    return found


@attrs.define(eq=False, kw_only=True)
class PlanEngine:
    """Runs plans for many requests at once; used as `async with PlanEngine(...) as engine`.

    `max_concurrent_requests` run and `max_queue` wait, all others are rejected with `Overloaded`. `cpu_threads` is the
    number of threads for CPU nodes. Leaving the engine rejects requests that wait, gives those that run `grace` seconds
    to finish and cancels the rest; `drained` then reports what happened. Endpoints that are not given are opened.
    """

    registries: Registries = attrs.field(default=None, converter=_given_registries)
    ops: OpRegistry = attrs.field(default=None, converter=_given_ops)
    endpoints: EndpointSource | None = None
    max_concurrent_requests: int = attrs.field(default=64, validator=checks.whole(1))
    max_queue: int = attrs.field(default=256, validator=checks.whole(0))
    cpu_threads: int = attrs.field(default=None, converter=_thread_count, validator=checks.whole(1))
    fusion: Fusion = attrs.field(default="auto", validator=checks.one_of(*FUSIONS))
    grace: float = attrs.field(default=5.0, validator=checks.at_least(0, "seconds"))
    costs: Costs = DEFAULT_COSTS
    # Called at the end of every request, for metrics and traces of other systems; all requests are traced then. The
    # first error that it raises is logged.
    on_request: Callable[[RequestEnd], object] | None = None

    drained: DrainReport | None = attrs.field(default=None, init=False)
    _outcomes: Counter[str] = attrs.field(factory=Counter, init=False)
    _late_results: int = attrs.field(default=0, init=False)
    _report_failed: bool = attrs.field(default=False, init=False)
    # By the identity of the plan, which the entry holds so that no other plan can get it; the oldest first.
    _compiled: dict[int, CompiledPlan] = attrs.field(factory=dict, init=False)
    # By the name of the plan, so that one that is loaded again keeps what was learnt.
    _forecasts: dict[str, Forecast] = attrs.field(factory=dict, init=False)
    _executions: set[Execution] = attrs.field(factory=set, init=False)
    _name: str = attrs.field(factory=functools.partial(secrets.token_hex, 4), init=False)
    _numbers: Iterator[int] = attrs.field(factory=functools.partial(itertools.count, 1), init=False)
    # Set when the engine is entered.
    _open: AbstractAsyncContextManager[None] = attrs.field(init=False)
    _admission: Admission = attrs.field(init=False)
    _pool: ThreadPool = attrs.field(init=False)
    _opened_endpoints: EndpointSource = attrs.field(init=False)
    _clock: Callable[[], float] = attrs.field(default=_not_open, init=False)

    async def __aenter__(self) -> Self:
        self._open = anywhere_context(self._opened)()
        await self._open.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._open.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[None]:
        self._clock = trio.lowlevel.current_clock().current_time
        meter = LoopMeter(self._clock)
        self._pool = ThreadPool(self.cpu_threads, self._clock)
        self._admission = Admission(
            self.max_concurrent_requests, self.max_queue, meter=meter, pool=self._pool, clock=self._clock
        )
        async with AsyncExitStack() as stack:
            trio.lowlevel.add_instrument(meter)
            stack.callback(trio.lowlevel.remove_instrument, meter)
            opened = self.endpoints
            if opened is None:
                opened = await stack.enter_async_context(open_endpoints(self.registries))
            self._opened_endpoints = opened
            try:
                yield
            finally:
                await self._drain()

    async def _drain(self) -> None:
        self._admission.close()
        finished, cancelled = len(self._executions), 0
        try:
            with trio.move_on_after(self.grace):
                await self._admission.wait_idle()
                await self._pool.wait_idle()
        finally:
            cancelled = len(self._executions)
            for execution in list(self._executions):
                execution.abort(Overloaded("the engine was closed and its grace is over"))
            with trio.CancelScope(deadline=self._clock() + _UNWIND, shield=True):
                await self._admission.wait_idle()
            self.drained = DrainReport(finished=finished - cancelled, cancelled=cancelled, threads_left=self._pool.busy)

    def statistics(self) -> EngineStatistics:
        """A snapshot."""
        self._clock()  # raises if the engine is not open
        return EngineStatistics(
            running=self._admission.running,
            queued=self._admission.queued,
            threads_busy=self._pool.busy,
            threads_late=self._pool.late,
            late_completions=self._pool.late_completions + self._late_results,
            outcomes=dict(self._outcomes),
        )

    @anywhere
    async def execute(
        self,
        plan: Plan,
        request: Request | Source,
        *,
        deadline: float | None = None,
        node_timeout: float | None = None,
        trace: bool = False,
        fusion: Fusion | None = None,
        partial: bool = False,
        parent: str | None = None,
    ) -> Response:
        """Answer a request, or raise a PlanError.

        `deadline` is seconds from now for the whole request, `node_timeout` seconds for each node. With `partial`, a
        request that misses its deadline is answered by the nodes that finished, and `coverage` names the others.
        `parent` is a W3C traceparent, which `on_request` gets.
        """
        arrival = self._clock()
        # Before a slot is requested: a failure between the claim and the request would not release it.
        traces: list[Trace] | None = None if self.on_request is None else []
        deadline = arrival + _seconds("deadline", deadline)
        node_timeout = _seconds("node_timeout", node_timeout)
        try:
            schedule = self._compile(plan).schedule(fusion or self.fusion, timed_nodes=node_timeout < math.inf)
            if arrival >= deadline:
                raise not_started(schedule.roots[0])
            # Nothing is allocated for a request that is rejected: that must be cheap under overload.
            claim = self._admission.ask(deadline, _cached(self._forecasts, plan.name, Forecast))
            response = await self._answer(
                claim,
                schedule,
                request,
                node_timeout=node_timeout,
                arrival=arrival,
                trace=trace,
                partial=partial,
                traces=traces,
            )
        except PlanError as error:
            self._outcomes[error.code] += 1
            if traces is not None:
                self._report(plan, request, error, parent=parent, arrival=arrival, traces=traces)
            if isinstance(error, Overloaded | RequestDeadlineExceeded):
                # Perhaps nothing was waited for. A caller that retries at once must not keep the loop for itself.
                await trio.lowlevel.checkpoint()
            raise
        self._outcomes["OK"] += 1
        if traces is not None:
            self._report(plan, request, None, parent=parent, arrival=arrival, traces=traces)
        return response

    def _report(
        self,
        plan: Plan,
        request: Request | Source,
        error: PlanError | None,
        *,
        parent: str | None,
        arrival: float,
        traces: list[Trace],
    ) -> None:
        assert self.on_request is not None
        end = RequestEnd(
            plan=plan.name,
            code="OK" if error is None else error.code,
            error=error,
            request_id=request.request_id if isinstance(request, Request) else None,
            parent=parent,
            seconds=self._clock() - arrival,
            trace=traces[0] if traces else None,
        )
        try:
            self.on_request(end)
        except Exception:
            # Whatever collects metrics and traces must change no answer, and fill no log while it fails.
            if not self._report_failed:
                self._report_failed = True
                logger.exception("on_request raised; the request was answered all the same, and so are further ones")

    async def _answer(
        self,
        claim: Claim,
        schedule: Schedule,
        request: Request | Source,
        *,
        node_timeout: float,
        arrival: float,
        trace: bool,
        partial: bool,
        traces: list[Trace] | None,
    ) -> Response:
        compiled = schedule.compiled
        if not isinstance(request, Request):
            try:
                request = parse_request(request, compiled.plan.registries)
            except BaseException:
                self._admission.withdraw(claim)
                raise
        if not claim.has_slot():
            await self._admission.wait(claim)
        shared = RequestContext(
            request=request,
            endpoints=self._opened_endpoints,
            keys=compiled.keys,
            expressions=compiled.plan.expressions,
            predicates=compiled.plan.predicates,
            clock=self._clock,
            arrival=arrival,
            deadline=claim.deadline,
            node_timeout=node_timeout,
            traced=trace or traces is not None,
        )
        execution = Execution(schedule, shared, self._pool, self.costs.hop)
        began = self._clock()
        complete: bool | None = None
        candidates: list[dict[str, Any]] | None = None
        self._executions.add(execution)
        try:
            # Building the candidates is work on the loop too, and counts for the claim.
            with self._admission.work_for(claim):
                complete = await execution.run()
                ended = self._clock()
                done = [found for position in compiled.outputs if (found := execution.results[position]) is not None]
                rows = concat(done, compiled.keys) if done else NO_ROWS
                if complete or partial:
                    may_continue = functools.partial(execution.may_answer, partial=partial)
                    candidates = await build_candidates(rows, compiled.keys, may_continue)
                    complete = complete and candidates is not None
        finally:
            self._executions.discard(execution)
            self._late_results += execution.late
            self._admission.leave(claim, in_time=complete)
            if traces is not None:
                traces.append(execution.trace(began, self._clock()))
        if candidates is None:
            raise execution.deadline_error()
        engine_id = f"{self._name}-{next(self._numbers)}"
        return Response(
            request_id=request.request_id if request.request_id is not None else engine_id,
            engine_request_id=engine_id,
            rows=rows,
            candidates=candidates,
            trace=execution.trace(began, ended) if trace else None,
            coverage=execution.coverage() if partial or compiled.has_policies else None,
        )

    def explain(self, plan: Plan, *, fusion: Fusion | None = None) -> Explanation:
        """How a plan would run."""
        self._clock()  # raises if the engine is not open
        return explain(self._compile(plan), fusion or self.fusion, self.costs)

    def _compile(self, plan: Plan) -> CompiledPlan:
        if not isinstance(plan, Plan):
            raise ConfigError(
                f"the plan is of type {type(plan).__name__}, not a Plan: parse_plan(document) returns one, and so does "
                "plan() of a function under @plan"
            )
        return _cached(self._compiled, id(plan), lambda: CompiledPlan(plan, self.ops, self.costs))
