"""`seedbed.simulate`: the real engine on a virtual clock, while a sampler finds the limits that it waits for."""

from __future__ import annotations

import gc
import os
import pickle
import random
import sys
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import trio

from .. import checks
from ..engine.api import Interrupts, preview
from ..engine.config import RunConfig
from ..engine.run import run_build
from ..errors import BuildError, ConfigError, SeedbedError
from ..observe.events import Events
from ..observe.report import Usage, traces_frame
from ..recipe.recipe import Recipe
from ..runtime.threads import in_event_loop, run_in_thread
from .profiles import CallProfile, Measured, as_profile, measure, measure_path
from .result import BUCKETS, KeyLoad, LimitLoad, Outcome, Probed, Simulation, Track, Variant, make_estimate
from .scaled import scale, scaled_settings
from .stage import Setting, Staged, variants

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from trio.abc import Clock

    from ..columns.base import Column
    from ..engine.run import Run
    from ..engine.tasks import Processor
    from ..runtime.throttle import KeyLimits

T = TypeVar("T")

# The most samples; at that number every second one is discarded and the interval doubled.
_SAMPLES = 800
_FIRST_INTERVAL = 0.05
_RUN_LIMITS = (
    ("execution slots", "max_active_tasks"),
    ("submission budget", "max_submitted_tasks"),
    ("row-group admission", "max_concurrent_row_groups"),
)


@attrs.frozen(kw_only=True)
class Sample:
    """The state of a run at one instant."""

    time: float
    # Of each key: calls in flight, its limit, and tasks that wait for it.
    keys: Mapping[str, tuple[int, int, int]]
    can_start: bool  # neither slots nor the submission budget kept the run from starting a task
    limits: tuple[tuple[int, bool], ...]  # of each limit of the run: what was used, and whether it held work up


class Sampler:
    """Samples the limits of a run at a random instant of each interval; constant latencies would bias fixed ones."""

    def __init__(self, run: Run, seed: int) -> None:
        self.run = run
        self._chance = random.Random(seed).random
        self._samples: list[Sample] = []

    async def sample(self) -> None:
        """Sample until cancelled, at least once."""
        interval, begins = _FIRST_INTERVAL, self.run.started
        try:
            while True:
                await trio.sleep_until(begins + interval * self._chance())
                self._samples.append(_sample(self.run))
                begins += interval
                if len(self._samples) >= _SAMPLES:
                    del self._samples[::2]
                    interval *= 2
        finally:
            self._samples = self._samples or [_sample(self.run)]

    def _of_key(self, key: str, ceiling: int) -> list[tuple[int, int, int]]:
        """The samples of a key; before its first call it is not known to the run, and nothing waits for it."""
        return [sample.keys.get(key, (0, ceiling, 0)) for sample in self._samples]

    def key_load(self, key: str, ceiling: int, models: tuple[str, ...], rate_limited: int) -> KeyLoad:
        samples = self._of_key(key, ceiling)
        full = [used >= limit > 0 for used, limit, _ in samples]
        waits = [waiting > 0 for _, _, waiting in samples]
        free = [sample.can_start for sample in self._samples]
        return KeyLoad(
            key=key,
            models=models,
            ceiling=ceiling,
            # The median: a mean moves with each probe above what the server takes.
            limit=float(median(limit for _, limit, _ in samples)),
            busy=fmean(used for used, _, _ in samples) / ceiling,
            at_limit=fmean(full),
            held_up=fmean(a and b for a, b in zip(full, waits, strict=True)),
            paced=fmean(a and b and not c for a, b, c in zip(free, waits, full, strict=True)),
            rate_limited=rate_limited,
        )

    def limit_loads(self) -> tuple[LimitLoad, ...]:
        return tuple(
            LimitLoad(
                name=name,
                option=option,
                allowed=getattr(self.run.plan.config, option),
                used=fmean(sample.limits[at][0] for sample in self._samples),
                held_up=fmean(sample.limits[at][1] for sample in self._samples),
            )
            for at, (name, option) in enumerate(_RUN_LIMITS)
        )

    def track(self, key: str, ceiling: int, seconds: float) -> Track:
        parts: list[list[tuple[int, int, int]]] = [[] for _ in range(BUCKETS)]
        for sample, values in zip(self._samples, self._of_key(key, ceiling), strict=True):
            parts[min(BUCKETS - 1, int(sample.time / seconds * BUCKETS)) if seconds else 0].append(values)
        in_flight, limits = [0.0], [float(ceiling)]
        for part in parts:  # one without a sample is like the one before it
            in_flight.append(fmean(used for used, _, _ in part) if part else in_flight[-1])
            limits.append(fmean(limit for _, limit, _ in part) if part else limits[-1])
        return Track(key=key, ceiling=ceiling, in_flight=tuple(in_flight[1:]), limit=tuple(limits[1:]))


def _sample(run: Run) -> Sample:
    scheduler, config, throttles = run.scheduler, run.plan.config, run.throttles
    counts, groups = scheduler.statistics(), scheduler.groups
    keys = {
        key: (throttles.get(key).in_flight, throttles.get(key).limit, scheduler.waiting(key))
        for key in throttles.keys()  # noqa: SIM118  not a mapping
    }
    has_slot, has_budget = counts.active < config.max_active_tasks, counts.submitted < config.max_submitted_tasks
    # Row groups are admitted in order. Another one would have had work for a key that was idle.
    has_more = any(stage.admission.has_more for stage in scheduler.stages.values())
    has_idle_key = any(used < limit for used, limit, _ in keys.values())
    waits_for_group = has_more and has_idle_key and not counts.queued
    limits = (
        (counts.active, not has_slot and counts.queued > 0),
        (counts.submitted, not has_budget and counts.queued > 0),
        (len(groups), waits_for_group and len(groups) >= config.max_concurrent_row_groups),
    )
    return Sample(time=trio.current_time() - run.started, keys=keys, can_start=has_slot and has_budget, limits=limits)


def _run(function: Callable[[], Awaitable[T]], clock: Clock | None = None) -> T:
    """`trio.run`, also inside a running event loop; Ctrl-C and SIGTERM cancel it."""
    interrupts = Interrupts()

    async def main() -> T:
        with trio.CancelScope() as scope:
            interrupts.watch(partial(scope.cancel, "interrupted"))
            return await function()
        raise KeyboardInterrupt

    run = partial(trio.run, main, clock=clock)
    with interrupts.handled():
        return run_in_thread(run) if in_event_loop() else run()


def simulate_once(setting: Setting, seed: int) -> Outcome:
    """Run one simulation to its end, also inside a running event loop; a very large one from two smaller ones."""
    parts = scaled_settings(setting)
    if parts is not None:
        small, large = ((part.root_rows, simulate_once(part, seed)) for part in parts)
        return scale(setting, small, large)
    # Imported here: it takes longer than the rest of trio, and only simulations need it.
    from trio.testing import MockClock  # noqa: PLC0415

    return _run(partial(_simulate, Staged(setting, seed), seed), MockClock(autojump_threshold=0))


async def _simulate(staged: Staged, seed: int) -> Outcome:
    samplers: list[Sampler] = []
    stopped = None

    def watch(run: Run) -> None:
        samplers.append(Sampler(run, seed))
        nursery.start_soon(samplers[0].sample)

    async with staged.source.resources(), trio.open_nursery() as nursery:
        try:
            report = await run_build(staged.plan, stores=None, emitter=Events(), deliver=lambda _: None, on_start=watch)
        except BuildError as error:
            if error.report is None:
                raise
            report, stopped = error.report, str(error)
        nursery.cancel_scope.cancel(reason="the simulated run is finished")
    (sampler,) = samplers
    run = sampler.run
    keys = {key: run.throttles.get(key).limits.max_parallel_requests for key in report.throttles}
    return Outcome(
        seconds=report.seconds,
        written=report.written,
        dropped=len(report.dropped),
        candidates=report.candidates if report.accepts else None,
        usage=dict(run.ledger.usage),
        keys=tuple(
            sampler.key_load(key, ceiling, staged.aliases(key), report.throttles[key].rate_limited)
            for key, ceiling in keys.items()
        ),
        limits=sampler.limit_loads(),
        tracks=tuple(sampler.track(key, ceiling, report.seconds) for key, ceiling in keys.items()),
        stopped=stopped or report.exhausted,
        notes=tuple(staged.notes),
        profiles=staged.profiles,
    )


# With fewer cells than this, several processes are not worth the second that each takes to start.
_WORTH_PROCESSES = 30_000


def simulate_all(jobs: Sequence[tuple[Setting, int]], *, processes: int | None = None) -> list[Outcome]:
    """The outcome of each setting with its seed, in order; raises the first failure.

    A recipe with functions of a script or a notebook cannot be pickled: its simulations run here, one by one.
    """
    count = min(len(jobs), processes or os.cpu_count() or 1)
    cells = sum(setting.root_rows * len(setting.specs) for setting, _ in jobs)
    wanted = count > 1 and (processes is not None or cells >= _WORTH_PROCESSES)
    shares = _pickled([jobs[at::count] for at in range(count)]) if wanted else None
    if shares is None:
        return [simulate_once(*job) for job in jobs]
    outcomes: list[Any] = [None] * len(jobs)
    for at, share in enumerate(_run(partial(_in_processes, shares))):
        outcomes[at::count] = share
    return outcomes


def _pickled(shares: Sequence[Sequence[tuple[Setting, int]]]) -> list[bytes] | None:
    try:
        pickled = [pickle.dumps(share) for share in shares]
    except Exception:  # noqa: BLE001  a recipe may hold any object
        return None
    # Another process has another main module.
    return None if any(b"__main__" in share for share in pickled) else pickled


async def _in_processes(shares: Sequence[bytes]) -> list[list[Outcome]]:
    """Run each share of the jobs in a process of its own; cancelling it kills them."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    # Not multiprocessing, which would import the caller's script again.
    command = [sys.executable, "-c", "from seedbed.simulation.run import main; main()"]
    children: dict[int, subprocess.CompletedProcess[bytes]] = {}

    async def run(at: int, share: bytes) -> None:
        children[at] = await trio.run_process(
            command, stdin=share, capture_stdout=True, capture_stderr=True, check=False, env=environment
        )

    async with trio.open_nursery() as nursery:
        for at, share in enumerate(shares):
            nursery.start_soon(run, at, share)
    for child in children.values():
        if child.returncode:
            last = (child.stderr.decode(errors="replace").strip().splitlines() or ["no output"])[-1]
            raise SeedbedError(f"a simulation process ended with status {child.returncode}: {last}")
    return [pickle.loads(children[at].stdout) for at in range(len(shares))]


def main() -> None:
    """Run the pickled jobs of standard input and write their outcomes to standard output."""
    # This process creates millions of objects, none of them in cycles, and ends.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    jobs: list[tuple[Setting, int]] = pickle.load(sys.stdin.buffer)
    sys.stdout.buffer.write(pickle.dumps([simulate_once(*job) for job in jobs]))


# Seconds of one core that the engine takes for a call over HTTP on an ordinary machine.
OVERHEAD = 0.0005
# Above this number of cells two seeds are simulated by default, one for each of two cores; otherwise three.
_LARGE = 250_000


def simulate(
    recipe: Recipe | Iterable[Column],
    *,
    rows: checks.RowCounts = None,
    calls: Mapping[str, CallProfile | Mapping[str, Any]] | None = None,
    measured_from: str | os.PathLike[str] | None = None,
    probe: int = 0,
    vary: Mapping[str, Sequence[Any]] | None = None,
    seeds: int | None = None,
    config: RunConfig | None = None,
    limits: Mapping[str, KeyLimits] | None = None,
    processors: Iterable[Processor] = (),
    run_code: Iterable[str] = (),
    overhead: float = OVERHEAD,
    items: Mapping[str, int] | None = None,
    accepted: float | None = None,
    processes: int | None = None,
) -> Simulation:
    """Run a recipe in virtual time to predict its duration, usage, cost and bottleneck.

    No model is called and nothing is written. `calls` has profiles of calls by model alias or by column. Fields that it
    lacks are measured in an earlier run (`measured_from`: its directory, or the file that `--trace` wrote) or in
    `probe` real rows, which are generated and paid for; the rest is assumed, and the result lists it.

    `vary` also simulates every combination of changes: `{"models.writer.max_parallel_requests": [32, 64]}`.
    User-defined functions run only if `run_code` names their columns. `overhead` is the time of the engine itself for
    each call, which limits a run whose models are very fast. `items` has, by stage, how many items the lists have that
    its rows come from; lists that models write are placeholders here. `accepted` is the share of candidates that
    become rows, where the recipe has `accept`, `unique` or `near_duplicates`; it is measured, too. Works also inside a
    running event loop.
    """
    own = RunConfig.from_mapping(recipe.run) if isinstance(recipe, Recipe) else RunConfig()
    if seeds is not None and (not checks.is_whole(seeds) or seeds < 1):
        raise ConfigError(f"seeds must be 1 or more, not {seeds!r}")
    if not 0 <= overhead < 1:
        raise ConfigError(f"overhead must be seconds between 0 and 1, not {overhead!r}")
    if not checks.is_whole(probe) or probe < 0:
        raise ConfigError(f"probe must be a number of rows, not {probe!r}")
    if accepted is not None and not (checks.is_number(accepted) and 0 < accepted <= 1):
        raise ConfigError(f"accepted must be a share above 0 and at most 1, not {accepted!r}")
    counts = checks.row_counts(rows)
    setting = Setting(
        recipe=recipe if isinstance(recipe, Recipe) else tuple(recipe),
        rows=counts,
        config=config or own,
        limits=dict(limits or {}),
        processors=tuple(processors),
        given={name: as_profile(name, value) for name, value in (calls or {}).items()},
        measured=() if measured_from is None else (measure_path(Path(measured_from)),),
        run_code=frozenset(run_code),
        overhead=overhead,
        items=dict(items or {}),
        accepted=accepted,
    )
    settings = [({}, setting), *(variants(setting, vary) if vary else ())]
    # Problems are raised here and not in another process, and before a probe costs anything.
    for _, each in settings:
        Staged(each, 0)
    probed: Probed | None = None
    if probe:
        measured, probed = _probe(setting, probe)
        settings = [(changes, attrs.evolve(each, measured=(measured, *each.measured))) for changes, each in settings]
    count = seeds or (3 if setting.root_rows * len(setting.specs) <= _LARGE else 2)
    outcomes = simulate_all([(each, seed) for _, each in settings for seed in range(count)], processes=processes)
    base, *others = [
        make_estimate(setting.root_rows, outcomes[at * count : (at + 1) * count]) for at in range(len(settings))
    ]
    return Simulation(
        base=base,
        variants=tuple(
            Variant(changes=changes, estimate=estimate)
            for (changes, _), estimate in zip(settings[1:], others, strict=True)
        ),
        probed=probed,
    )


def _probe(setting: Setting, rows: int) -> tuple[Measured, Probed]:
    """Generate real rows in memory and measure their calls."""
    report = preview(
        setting.recipe,
        rows=rows,
        config=attrs.evolve(setting.config, trace=True),
        limits=setting.limits,
        processors=setting.processors,
        progress="none",
    ).report
    used = sum(report.usage.values(), Usage())
    probed = Probed(rows=report.requested, calls=used.calls, tokens=used.tokens, cost=used.cost, seconds=report.seconds)
    models = {spec.name: spec.aliases() for spec in setting.specs if spec is not None and spec.aliases()}
    found = measure(traces_frame(report.traces), report.usage)
    return Measured(profiles=found, models=models, accepted=report.acceptance_rate or None), probed
