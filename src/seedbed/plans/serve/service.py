"""`PlanService`: an engine, the plans of a directory that it serves, and what is counted about both."""

from __future__ import annotations

import math
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import attrs
import trio

from ... import checks
from ...errors import ConfigError
from ...observe.metrics import Metrics
from ...runtime.asyncio import anywhere_context
from ...runtime.tasks import open_hidden_nursery
from ..engine import PlanEngine
from ..ops import default_ops
from ..redis import open_endpoints
from ..registries import default_registries
from .catalog import Catalog
from .metrics import BUCKETS, HELP, read_samples, write_samples

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from ...observe.metrics import Samples
    from ..ops import OpRegistry
    from ..redis import Endpoints
    from ..registries import Registries
    from ..request import RequestEnd


@attrs.frozen(kw_only=True)
class ServeConfig:
    """Limits of a plan server; seconds and bytes."""

    deadline: float = attrs.field(default=1.0, validator=checks.at_least(0, "seconds"))  # unless a request has its own
    max_deadline: float = attrs.field(default=60.0, validator=checks.at_least(0, "seconds"))
    max_body: int = attrs.field(default=1 << 20, validator=checks.whole(1))
    max_concurrent_requests: int = attrs.field(default=64, validator=checks.whole(1))
    max_queue: int = attrs.field(default=256, validator=checks.whole(0))
    cpu_threads: int | None = None
    grace: float = attrs.field(default=10.0, validator=checks.at_least(0, "seconds"))
    poll: float = attrs.field(default=1.0, validator=checks.at_least(0.01, "seconds"))  # between looks at the directory


class PlanService:
    """Serves the plans of a directory while `open()` is entered, under trio and under asyncio."""

    def __init__(
        self,
        directory: Path,
        *,
        registries: Registries | None = None,
        ops: OpRegistry | None = None,
        config: ServeConfig | None = None,
        metrics_folder: Path | None = None,
        on_request: Callable[[RequestEnd], object] | None = None,
    ) -> None:
        if not directory.is_dir():
            raise ConfigError(f"{str(directory)!r} is not a directory")
        self.config = config or ServeConfig()
        self.registries = default_registries() if registries is None else registries
        self.ops = default_ops() if ops is None else ops
        self.catalog = Catalog(directory, self.registries, self.ops)
        self.metrics = Metrics(HELP, BUCKETS)
        self.draining = False  # set by the server when it is asked to end
        self._metrics_folder = metrics_folder
        self._on_request = on_request
        self._ready = False
        # Set while it is open.
        self._engine: PlanEngine | None = None
        self._endpoints: Endpoints | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._wanted = trio.Event()  # set when the directory shall be looked at, replaced by `_watch`

    @property
    def engine(self) -> PlanEngine:
        if self._engine is None:
            raise ConfigError("the plan service is not open: enter `async with app.open()` before requests come")
        return self._engine

    @property
    def is_ready(self) -> bool:
        """True once the directory was read and a plan is served, until the service is asked to end."""
        return self._ready and not self.draining and bool(self.catalog.active)

    def reload_soon(self) -> None:
        """Look at the directory now; it may be called from a signal handler."""
        if self._token is not None:
            self._token.run_sync_soon(self._want)

    def _want(self) -> None:
        self._wanted.set()

    @anywhere_context
    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Serve requests until this is left; requests that run then get `grace` seconds."""
        config = self.config
        async with (
            open_endpoints(self.registries) as self._endpoints,
            PlanEngine(
                registries=self.registries,
                ops=self.ops,
                endpoints=self._endpoints,
                max_concurrent_requests=config.max_concurrent_requests,
                max_queue=config.max_queue,
                cpu_threads=config.cpu_threads,
                grace=config.grace,
                on_request=self._on_request,
            ) as engine,
            open_hidden_nursery("the plan service is closed") as nursery,
        ):
            self._engine, self._token = engine, trio.lowlevel.current_trio_token()
            await self.catalog.refresh(engine)
            self._ready = True
            nursery.start_soon(self._watch, engine)
            try:
                yield
            finally:
                self._ready, self._token = False, None
                self._share_samples()

    async def _watch(self, engine: PlanEngine) -> None:
        while True:
            self._share_samples()
            with trio.move_on_after(self.config.poll):
                await self._wanted.wait()
            self._wanted = trio.Event()
            await self.catalog.refresh(engine)

    def _share_samples(self) -> None:
        if self._metrics_folder is not None:
            write_samples(self._metrics_folder, self._samples())

    def all_samples(self) -> list[Samples]:
        """The metrics of this process, and of the others behind the same port."""
        others = [] if self._metrics_folder is None else read_samples(self._metrics_folder)
        return [self._samples(), *others]

    def _samples(self) -> Samples:
        statistics = self.engine.statistics()
        found: dict[Any, float] = {
            **self.metrics.samples,
            ("seedbed_requests_running", ()): statistics.running,
            ("seedbed_requests_queued", ()): statistics.queued,
            ("seedbed_threads_busy", ()): statistics.threads_busy,
            ("seedbed_processes", ()): 1,
            ("seedbed_plan_reloads_total", ()): self.catalog.reloads,
            ("seedbed_plan_reload_failures_total", ()): self.catalog.failures,
        }
        if self._endpoints is not None:
            for name, each in self._endpoints.statistics().items():
                label = (("endpoint", name),)
                found["seedbed_endpoint_commands_total", label] = each.sent
                found["seedbed_endpoint_sends_total", label] = each.sends
                found["seedbed_endpoint_errors_total", label] = each.errors
                found["seedbed_endpoint_connections", label] = each.connections
                found["seedbed_endpoint_in_flight", label] = each.in_flight
        return found

    def count(self, plan: str, code: str, began: float, *, partial: bool = False) -> None:
        """Count a request that has ended; `began` is of the monotonic clock."""
        label = ("plan", plan)
        self.metrics.add("seedbed_plan_requests_total", label, ("code", code))
        self.metrics.observe("seedbed_plan_request_seconds", time.monotonic() - began, label)
        if partial:
            self.metrics.add("seedbed_plan_partial_total", label)

    def deadline_of(self, given: str | None, began: float) -> float:
        """Seconds that are left for a request with this `X-Deadline-Ms`; raises ValueError if it is no number."""
        seconds = self.config.deadline
        if given is not None:
            seconds = float(given) / 1000
            if not math.isfinite(seconds) or seconds < 0:
                raise ValueError(given)
        return max(0.0, min(seconds, self.config.max_deadline) - (time.monotonic() - began))
