"""Plans under load: one engine for many requests at once."""

from __future__ import annotations

import functools
import itertools
import math
import os
import secrets
from collections import Counter
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn

import attrs
import trio

from ..embed import anywhere, anywhere_context
from ..errors import ConfigError, Overloaded, PlanError, RequestDeadlineExceeded
from .admission import Admission, Forecast, LoopMeter
from .calibration import calibrate
from .compile import FUSIONS, CompiledPlan
from .context import RequestContext
from .endpoints import open_endpoints
from .execute import Execution, not_started
from .memo import RequestEndpoints
from .model import Plan
from .opspec import default_ops
from .pool import ThreadPool
from .problems import shown
from .registries import default_registries
from .request import Request, parse_request
from .response import Response, build_candidates
from .rowset import NO_ROWS, concat

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from types import TracebackType
    from typing import Self

    from .admission import Claim
    from .calibration import Calibration
    from .compile import Fusion, Schedule
    from .documents import Source
    from .memo import EndpointSource
    from .model import Registries
    from .opspec import OpRegistry

# How many plans stay compiled. A service has tens; whoever makes a plan for each request must not fill the memory.
_COMPILED: Final = 256
# How long requests that were cancelled at the end of grace may take to unwind before their endpoints are closed.
_UNWIND: Final = 1.0


@attrs.frozen(kw_only=True)
class EngineStatistics:
    """What an engine has done and does. Outcomes are counted by the code of the error, and as OK."""

    running: int
    queued: int
    threads_busy: int
    threads_late: int  # they work for requests that are over
    late_completions: int  # threads that ended after their time, and results that came after it
    outcomes: Mapping[str, int]


@attrs.frozen(kw_only=True)
class DrainReport:
    """How an engine ended: requests that ended within grace, requests cut off after it, threads still at work."""

    finished: int
    cancelled: int
    threads_left: int


@attrs.frozen(kw_only=True)
class SegmentPlan:
    """What `explain` says of nodes that run as one; from `inline_below` rows on, `auto` uses a thread."""

    nodes: tuple[str, ...]
    ops: tuple[str, ...]
    where: str  # loop, inline, thread or auto
    inline_below: int | None
    writes: tuple[str, ...]
    endpoints: tuple[str, ...]
    needs: tuple[str, ...]


@attrs.frozen(kw_only=True)
class Explanation:
    """How a plan runs in one fusion mode on this machine."""

    plan: str
    fusion: str
    segments: tuple[SegmentPlan, ...]
    calibration: Calibration


class PlanEngine:
    """Runs plans for many requests at once; used as `async with PlanEngine(...) as engine`.

    `max_concurrent_requests` run and `max_queue` wait, all others are refused with `Overloaded`. `cpu_threads` is the
    number of threads for CPU nodes. Leaving the engine refuses what waits, lets what runs go on for `grace` seconds and
    ends the rest; `drained` then says what happened. What is not given is opened (`endpoints`) or measured
    (`calibration`).
    """

    def __init__(
        self,
        *,
        registries: Registries | None = None,
        ops: OpRegistry | None = None,
        endpoints: EndpointSource | None = None,
        max_concurrent_requests: int = 64,
        max_queue: int = 256,
        cpu_threads: int | None = None,
        fusion: Fusion = "auto",
        grace: float = 5.0,
        calibration: Calibration | None = None,
    ) -> None:
        threads = (os.cpu_count() or 1) if cpu_threads is None else cpu_threads
        for knob, value, least in (
            ("max_concurrent_requests", max_concurrent_requests, 1),
            ("max_queue", max_queue, 0),
            ("cpu_threads", threads, 1),
        ):
            if not isinstance(value, int) or isinstance(value, bool):
                raise ConfigError(f"{knob} is {value!r}; it must be an integer")
            _at_least(knob, value, least)
        grace = _seconds("grace", grace)
        _at_least("grace", grace, 0)
        if fusion not in FUSIONS:
            raise ConfigError(f"fusion is {fusion!r}; allowed are {', '.join(FUSIONS)}")
        self.registries = default_registries() if registries is None else registries
        self._ops = default_ops() if ops is None else ops
        self._given_endpoints = endpoints
        self._limits = max_concurrent_requests, max_queue, threads
        self._fusion: str = fusion
        self._grace = grace
        self._calibration = calibration
        self._outcomes: Counter[str] = Counter()
        self._late_results = 0
        # By the identity of the plan, which is kept so that no other can get it; the oldest first.
        self._compiled: dict[int, CompiledPlan] = {}
        # By the name of the plan, so that one that is loaded again keeps what was learnt.
        self._forecasts: dict[str, Forecast] = {}
        self._executions: set[Execution] = set()
        self._name = secrets.token_hex(4)
        self._numbers = itertools.count(1)
        self.drained: DrainReport | None = None
        # Set when the engine is entered.
        self._open: AbstractAsyncContextManager[None]
        self._admission: Admission
        self._pool: ThreadPool
        self._endpoints: EndpointSource
        self._clock: Callable[[], float] = _not_open

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
        limit, max_queue, threads = self._limits
        self._clock = trio.lowlevel.current_clock().current_time
        meter = LoopMeter(self._clock)
        self._pool = ThreadPool(threads, self._clock)
        self._admission = Admission(limit, max_queue, meter=meter, pool=self._pool, clock=self._clock)
        if self._calibration is None:
            self._calibration = await calibrate()
        async with AsyncExitStack() as stack:
            trio.lowlevel.add_instrument(meter)
            stack.callback(trio.lowlevel.remove_instrument, meter)
            if self._given_endpoints is None:
                self._endpoints = await stack.enter_async_context(open_endpoints(self.registries))
            else:
                self._endpoints = self._given_endpoints
            try:
                yield
            finally:
                await self._drain()

    async def _drain(self) -> None:
        self._admission.close()
        finished, cancelled = len(self._executions), 0
        try:
            with trio.move_on_after(self._grace):
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
        self._clock()  # before it is open there is nothing to count, and this says so
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
    ) -> Response:
        """Answer a request, or raise a PlanError that says why not.

        `deadline` is seconds from now for all of it, `node_timeout` seconds for each node. With `partial`, what is
        done by the deadline is the answer, and its coverage says what is missing.
        """
        arrival = self._clock()
        # Before a place is asked for: what fails between the claim and the request would keep it.
        deadline = math.inf if deadline is None else arrival + _seconds("deadline", deadline)
        node_timeout = math.inf if node_timeout is None else _seconds("node_timeout", node_timeout)
        try:
            compiled = self._compile(plan)
            schedule = compiled.schedule(fusion or self._fusion)
            if arrival >= deadline:
                raise not_started(schedule.roots[0])
            # Nothing is made for a request that is refused: refusing must stay cheap when it happens most.
            claim = self._admission.ask(deadline, self._forecast(plan.name))
            response = await self._answer(
                claim,
                compiled,
                schedule,
                request,
                deadline=deadline,
                node_timeout=node_timeout,
                arrival=arrival if trace else None,
                partial=partial,
            )
        except PlanError as error:
            self._outcomes[error.code] += 1
            if isinstance(error, Overloaded | RequestDeadlineExceeded):
                # Perhaps nothing was waited for. A caller that tries again at once must not keep the loop for itself.
                await trio.lowlevel.checkpoint()
            raise
        self._outcomes["OK"] += 1
        return response

    async def _answer(
        self,
        claim: Claim,
        compiled: CompiledPlan,
        schedule: Schedule,
        request: Request | Source,
        *,
        deadline: float,
        node_timeout: float,
        arrival: float | None,
        partial: bool,
    ) -> Response:
        if not isinstance(request, Request):
            try:
                request = parse_request(request, compiled.plan.registries)
            except BaseException:
                self._admission.withdraw(claim)
                raise
        if not claim.has_slot():
            await self._admission.wait(claim)
        execution = Execution(
            compiled,
            schedule,
            RequestContext(
                request, RequestEndpoints(self._endpoints), compiled.keys, compiled.expressions, compiled.predicates
            ),
            clock=self._clock,
            pool=self._pool,
            hop=self._measured().hop,
            deadline=deadline,
            node_timeout=node_timeout,
            arrival=arrival,
        )
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
                    may_go_on = functools.partial(execution.may_answer, partial=partial)
                    candidates = await build_candidates(rows, compiled.keys, may_go_on)
                    complete = complete and candidates is not None
        finally:
            self._executions.discard(execution)
            self._late_results += execution.late
            self._admission.leave(claim, in_time=complete)
        if candidates is None:
            raise execution.deadline_error()
        engine_id = f"{self._name}-{next(self._numbers)}"
        return Response(
            request_id=request.request_id if request.request_id is not None else engine_id,
            engine_request_id=engine_id,
            rows=rows,
            candidates=candidates,
            trace=None if execution.traces is None else execution.traces.trace(compiled, began, ended),
            coverage=execution.coverage() if partial or compiled.has_policies else None,
        )

    def explain(self, plan: Plan, *, fusion: Fusion | None = None) -> Explanation:
        """How a plan would run."""
        compiled, calibration = self._compile(plan), self._measured()
        names = plan.registries.keys
        segments = []
        for unit in compiled.schedule(fusion or self._fusion).units:
            where, below = "auto", None
            if unit.is_async or unit.always_inline or unit.fixed >= calibration.hop:
                where = "loop" if unit.is_async else "inline" if unit.always_inline else "thread"
            elif unit.per_row:
                below = math.ceil((calibration.hop - unit.fixed) / unit.per_row)
            segments.append(
                SegmentPlan(
                    nodes=tuple(step.node_id for step in unit.steps),
                    ops=tuple(step.op.name for step in unit.steps),
                    where=where,
                    inline_below=below,
                    writes=tuple(
                        names[key].name for step in unit.steps for key in sorted(step.op.written_keys(step.params))
                    ),
                    endpoints=tuple(step.params["endpoint"] for step in unit.steps if "endpoint" in step.params),
                    needs=tuple(compiled.steps[position].node_id for position in sorted(unit.outside)),
                )
            )
        return Explanation(
            plan=plan.name, fusion=fusion or self._fusion, segments=tuple(segments), calibration=calibration
        )

    def _measured(self) -> Calibration:
        return _not_open() if self._calibration is None else self._calibration

    def _forecast(self, name: str) -> Forecast:
        found = self._forecasts.get(name)
        if found is None:
            if len(self._forecasts) >= _COMPILED:
                del self._forecasts[next(iter(self._forecasts))]
            found = self._forecasts[name] = Forecast()
        return found

    def _compile(self, plan: Plan) -> CompiledPlan:
        found = self._compiled.get(id(plan))
        if found is None:
            if not isinstance(plan, Plan):
                raise ConfigError(
                    f"the plan is of type {type(plan).__name__}, not a Plan: parse_plan gives one of a document, and "
                    "so does plan() of a function under @plan"
                )
            found = CompiledPlan(plan, self._ops, self._measured())
            if len(self._compiled) >= _COMPILED:
                del self._compiled[next(iter(self._compiled))]
            self._compiled[id(plan)] = found
        return found


def _not_open() -> NoReturn:
    raise ConfigError("the engine is not open: use it as `async with PlanEngine(...) as engine`")


def _seconds(knob: str, value: float) -> float:
    try:
        if not math.isnan(value):
            return float(value)
    except (TypeError, OverflowError):
        pass
    raise ConfigError(f"{knob} is {shown(value)}; it must be a number of seconds")


def _at_least(knob: str, value: float, least: int) -> None:
    if value < least:
        raise ConfigError(f"{knob} is {value}; it must be at least {least}")
