"""`seedbed.simulate`: what a build will take, before anything is spent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from ..engine.api import preview
from ..engine.config import RunConfig
from ..errors import ConfigError
from ..recipe.recipe import Recipe
from .fan import simulate_all
from .measure import measure_path, measure_report
from .profiles import CallProfile, Measured, as_profile
from .result import Probed, Simulation, Variant, make_estimate
from .stage import Setting, stage
from .vary import variants

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence

    from ..engine.processor import Processor
    from ..generators import Column
    from ..runtime.throttle import KeyLimits

# A simulation of more cells than this has two seeds, one for each of two cores; a smaller one has three.
_LARGE = 250_000
OVERHEAD = 0.0005
"""Seconds of the processor that the engine takes for a call over HTTP: about what an ordinary machine needs."""


def simulate(
    recipe: Recipe | Iterable[Column],
    *,
    rows: int,
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
    allow_code: bool = True,
    processes: int | None = None,
) -> Simulation:
    """Run a recipe in virtual time: how long it will take, what it will use and cost, and which limit it waits for.

    No model is called and nothing is written. `calls` says how calls go, by model alias or by column; `measured_from`
    takes what it does not say from an earlier run (its directory, or the file that `--trace` wrote), `probe` from so
    many real rows, which are made and paid for. The rest is assumed, and said so in the result.

    `vary` simulates every combination of changes too: `{"models.writer.max_parallel_requests": [32, 64]}`. Functions of
    your own are not run but for the columns that `run_code` names. `overhead` is the time that the engine itself takes
    for each call, one after the other: what a run waits for when its models are very quick. Can be called anywhere,
    also where an event loop runs.
    """
    given_recipe = recipe if isinstance(recipe, Recipe) else tuple(recipe)
    own = RunConfig.from_mapping(recipe.run) if isinstance(recipe, Recipe) else RunConfig()
    if seeds is not None and (isinstance(seeds, bool) or seeds < 1):
        raise ConfigError(f"seeds must be 1 or more, not {seeds!r}")
    if not 0 <= overhead < 1:
        raise ConfigError(f"overhead must be seconds between 0 and 1, not {overhead!r}")
    if isinstance(probe, bool) or probe < 0:
        raise ConfigError(f"probe must be a number of rows, not {probe!r}")
    setting = Setting(
        recipe=given_recipe,
        rows=rows,
        config=config or own,
        limits=dict(limits or {}),
        processors=tuple(processors),
        given={name: as_profile(name, value) for name, value in (calls or {}).items()},
        measured=Measured() if measured_from is None else measure_path(Path(measured_from)),
        run_code=frozenset(run_code),
        overhead=overhead,
        allow_code=allow_code,
    )
    settings = [({}, setting), *(variants(setting, vary) if vary else ())]
    # What is wrong is said here and not in a process of its own, and before a probe costs anything.
    for _, each in settings:
        stage(each, 0)
    probed: Probed | None = None
    if probe:
        found, probed = _probe(setting, probe)
        # What was measured just now goes before what was measured once.
        measured = found.over(setting.measured)
        settings = [(changes, attrs.evolve(each, measured=measured)) for changes, each in settings]
    columns = len(setting.recipe) if isinstance(setting.recipe, tuple) else len(setting.recipe.columns)
    count = seeds or (3 if rows * columns <= _LARGE else 2)
    jobs = [(each, seed) for _, each in settings for seed in range(count)]
    outcomes = simulate_all(jobs, processes=processes)
    estimates = [make_estimate(rows, outcomes[at * count : (at + 1) * count]) for at in range(len(settings))]
    return Simulation(
        base=estimates[0],
        variants=tuple(
            Variant(changes=changes, estimate=estimate)
            for (changes, _), estimate in zip(settings[1:], estimates[1:], strict=True)
        ),
        probed=probed,
    )


def _probe(setting: Setting, rows: int) -> tuple[Measured, Probed]:
    """Make a few real rows, in memory."""
    made = preview(
        setting.recipe,
        rows=rows,
        config=attrs.evolve(setting.config, trace=True),
        limits=setting.limits,
        processors=setting.processors,
    )
    profiles, probed = measure_report(made.report)
    specs = setting.recipe.columns if isinstance(setting.recipe, Recipe) else ()
    return Measured(profiles=profiles, models={spec.name: spec.aliases() for spec in specs if spec.aliases()}), probed
