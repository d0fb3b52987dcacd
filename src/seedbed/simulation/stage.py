"""From a recipe to the plan of its simulation: the same graph, keys and limits, with simulated model clients.

Samplers, seed files, expressions and recipe processors before a batch run as in a build. Not run: user code that
`run_code` does not name, and what comes after a batch, which would judge rows by placeholders.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

import attrs

from ..engine.plan import BuildPlan, plan_build
from ..engine.processor import Stage
from ..engine.source import DOMAINS, make_source
from ..errors import ConfigError
from ..graph import Kind, nearest
from ..models.distributions import mean, stable_seed
from ..recipe.custom import Custom
from ..recipe.expression import Expression
from ..recipe.recipe import Recipe
from ..recipe.validation import Validation
from . import placeholders
from .calls import Caller, Grid, Line, Processor
from .fillers import GuardedSkip, Notes, code_filler, guarded, model_filler, sampled_checks, with_callers
from .models import SimulatedModel
from .profiles import CallProfile, Measured, Resolved, check_names, of_script, resolve_profile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ..engine.config import RunConfig
    from ..engine.processor import Processor as RowProcessor
    from ..engine.source import Source
    from ..engine.tasks import Step
    from ..generators import Column, SkipRule
    from ..recipe.spec import ColumnSpec
    from ..runtime.throttle import KeyLimits


# In a simulation of many calls instants are rounded to this share of the shortest mean latency.
_MANY = 100_000
_COARSE = 0.08


@attrs.frozen(kw_only=True)
class Setting:
    """Everything that a simulation is about, but for its seed; can be sent to another process if the recipe can."""

    recipe: Recipe | tuple[Column, ...]
    rows: int
    config: RunConfig
    limits: Mapping[str, KeyLimits] = attrs.field(factory=dict)
    processors: tuple[RowProcessor, ...] = ()
    given: Mapping[str, CallProfile] = attrs.field(factory=dict)
    measured: Measured = attrs.field(factory=Measured)
    # Columns whose code is run for real.
    run_code: frozenset[str] = frozenset()
    # Seconds of the processor that a call takes.
    overhead: float = 0.0
    allow_code: bool = True


@attrs.frozen(kw_only=True, eq=False)
class Staged:
    """A simulation that is ready to run."""

    plan: BuildPlan
    source: Source
    notes: Notes
    # By column and model: how its calls go, and where that is known from.
    profiles: Mapping[tuple[str, str], Resolved]
    # The aliases of each throttle key.
    aliases: Mapping[str, tuple[str, ...]]


def stage(setting: Setting, seed: int) -> Staged:
    """Plan a simulation; raises what planning the build itself would raise, but for keys that are missing."""
    return _Staging(setting, seed).stage()


class _Staging:
    """One planning; nothing of it is kept but what `stage` returns."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self._setting = setting
        self._seed = seed
        self._notes = Notes()
        self._lines: dict[str, Line] = {}
        self._callers: dict[tuple[str, str], Caller] = {}
        self._profiles: dict[tuple[str, str], Resolved] = {}
        recipe = setting.recipe
        specs: Any = recipe.models if isinstance(recipe, Recipe) else {}  # the recipe checked that they are specs
        self._models: dict[str, SimulatedModel] = {
            alias: SimulatedModel(alias=alias, spec=spec, caller=self._model_caller) for alias, spec in specs.items()
        }
        self._grid = Grid(0.0, random.Random(seed))
        self._processor = Processor(setting.overhead)

    def stage(self) -> Staged:
        setting = self._setting
        source, specs = self._source()
        names = tuple(column.name for column in source.columns)
        check_names(
            setting.given, {**self._models, **{column.key: 0 for column in source.columns if column.key}}, names
        )
        unknown = sorted(setting.run_code.difference(names, (each.label for each in source.processors)))
        if unknown:
            raise ConfigError(f"run_code names {unknown[0]!r}, which is no column{nearest(unknown[0], names)}")
        source = attrs.evolve(source, processors=self._safe_processors(source.processors))
        plan = plan_build(source, rows=setting.rows)
        self._grid = Grid(self._rounding(plan, specs), random.Random(stable_seed(self._seed, "grid")))
        real: set[str] = set()  # columns that hold what a real run would put there
        steps = list(plan.steps)
        for node in plan.graph.order:
            steps[node] = self._step(plan, steps[node], specs[node], real)
        return Staged(
            plan=attrs.evolve(plan, steps=tuple(steps)),
            source=source,
            notes=self._notes,
            profiles=self._profiles,
            aliases=self._aliases(plan),
        )

    def _source(self) -> tuple[Source, list[ColumnSpec | None]]:
        setting = self._setting
        config = attrs.evolve(setting.config, jitter_seed=self._seed, trace=False)
        recipe = setting.recipe
        if not isinstance(recipe, Recipe):
            source = make_source(recipe, config=config, limits=setting.limits, processors=setting.processors)
            return source, [None] * len(source.columns)
        source = make_source(
            attrs.evolve(recipe, models=self._models),
            config=config,
            limits=setting.limits,
            processors=setting.processors,
            allow_code=setting.allow_code,
        )
        return source, list(recipe.columns)

    def _safe_processors(self, processors: Iterable[RowProcessor]) -> tuple[RowProcessor, ...]:
        """Those before a batch whose code is ours; the rows that they leave are what the calls are made for."""
        recipe, kept = self._setting.recipe, []
        ours = {
            spec.label for spec in (recipe.processors if isinstance(recipe, Recipe) else ()) if _is_ours(type(spec))
        }
        for processor in processors:
            if processor.stage is not Stage.PRE_BATCH:
                self._notes.say(f"{processor.label!r} comes after the calls and is not run")
            elif processor.label in ours or processor.label in self._setting.run_code:
                kept.append(processor)
            else:
                self._notes.say(f"{processor.label!r} is code of your own and is not run; it leaves all rows")
        return tuple(kept)

    def _rounding(self, plan: BuildPlan, specs: list[ColumnSpec | None]) -> float:
        latencies = [
            mean(self._resolve(step.name, alias, domain).profile.latency)
            for step, spec in zip(plan.steps, specs, strict=True)
            if step.key is not None
            for alias, domain, _ in self._asked(step, spec)
        ]
        if plan.rows * len(latencies) < _MANY:
            return 0.0
        return _COARSE * min((each for each in latencies if each > 0), default=0.0)

    # Who is called.

    def _asked(self, step: Step, spec: ColumnSpec | None) -> list[tuple[str, str, str]]:
        """The models that a column calls: alias, domain and throttle key."""
        assert step.key is not None
        if isinstance(spec, Validation):
            return [(step.key, "validation", step.key)]
        chat = "function" if spec is None or isinstance(spec, Custom) or not _is_ours(type(spec)) else "chat"
        found = [
            (alias, chat if domain == "chat" else domain, step.key)
            for alias in (spec.aliases() if spec is not None else ())
            for domain in DOMAINS
            if self._models[alias].key(domain) == step.key
        ][:1]
        if isinstance(spec, Custom):
            # A function that asks several models asks each of them.
            others = [alias for alias in spec.aliases() if not found or alias != found[0][0]]
            found += [(alias, chat, self._models[alias].key("chat")) for alias in dict.fromkeys(others)]
        named = [alias for alias, model in self._models.items() if model.key("chat") == step.key]
        return found or [(named[0] if named else step.key, chat, step.key)]

    def _aliases(self, plan: BuildPlan) -> dict[str, tuple[str, ...]]:
        keys = dict.fromkeys(step.key for step in plan.steps if step.key is not None)
        keys |= dict.fromkeys(plan.limits)
        return {
            key: tuple(alias for alias, model in self._models.items() if any(model.key(d) == key for d in DOMAINS))
            for key in keys
        }

    def _resolve(self, column: str, alias: str | None, domain: str) -> Resolved:
        setting = self._setting
        model = self._models.get(alias) if alias is not None else None
        script = None if model is None else of_script(model.spec)
        return resolve_profile(column, alias, domain, given=setting.given, measured=setting.measured, script=script)

    def _caller(self, column: str, alias: str, domain: str, key: str, max_tokens: int | None = None) -> Caller:
        if (column, alias) not in self._callers:
            found = self._profiles[column, alias] = self._resolve(column, alias, domain)
            model = self._models.get(alias)
            self._callers[column, alias] = Caller(
                column,
                alias,
                found.profile,
                line=self._lines.setdefault(key, Line()),
                grid=self._grid,
                # What a function of the user's does itself is not the engine's work.
                processor=self._processor if domain != "code" else Processor(0.0),
                seed=self._seed,
                timeout=math.inf if model is None else model.timeout,
                max_tokens=max_tokens,
                prices=(0.0, 0.0) if model is None else (model.input_price / 1e6, model.output_price / 1e6),
            )
        return self._callers[column, alias]

    def _model_caller(self, alias: str, domain: str) -> Caller:
        return self._caller("", alias, domain, self._models[alias].key(domain))

    # What fills a column.

    def _step(self, plan: BuildPlan, step: Step, spec: ColumnSpec | None, real: set[str]) -> Step:
        """The step with what fills it in a simulation; where it stands, waits and holds slots is as in the build."""
        column = step.column
        assert column is not None  # a processor is no column
        rule = column.skip
        is_real = real.issuperset(step.inputs) and (rule is None or real.issuperset(rule.requires))
        fill = self._filler(plan, step, spec, real, is_real=is_real)
        if rule is not None:
            rule = self._skip_rule(step.name, rule, made_up=not real.issuperset(rule.requires))
        if fill is None and rule is None:
            return step
        generator = column.generator if fill is None else fill
        runtime = column.runtime if fill is None else None
        column = attrs.evolve(column, generator=generator, runtime=runtime, requires=column.inputs, skip=rule)
        assert column.call is not None
        return attrs.evolve(step, column=column)

    def _skip_rule(self, name: str, rule: SkipRule, *, made_up: bool) -> GuardedSkip:
        said = self._resolve(name, None, "code")
        # Over real values the rule itself knows better than an earlier run.
        share = said.profile.skipped if made_up or said.origins.get("skipped") == "given" else None
        if share is None and made_up:
            self._notes.say(f"skip_when of column {name!r} reads made-up values: say the share that it skips")
        return GuardedSkip(name, rule, share, seed=stable_seed(self._seed, name, "skip"), notes=self._notes)

    def _filler(
        self, plan: BuildPlan, step: Step, spec: ColumnSpec | None, real: set[str], *, is_real: bool
    ) -> Callable[..., Any] | None:
        """What fills the column; None if that is its own generator as it is. Its outputs are added to `real`."""
        own = step.call.function
        otherwise = placeholders.of_outputs(step.outputs, plan.declared, _own_function(spec, step))
        if isinstance(spec, Expression):
            real.update(step.outputs if is_real else ())
            return guarded(step.name, own, self._notes)
        if isinstance(spec, Validation) and spec.kind not in ("remote", "callable"):
            return sampled_checks(own, otherwise)
        if spec is None or not _is_ours(type(spec)) or isinstance(spec, Custom | Validation):
            return self._code(step, spec, otherwise, real if is_real else set())
        if step.key is None:
            real.update(step.outputs)
            return None
        dedupe = bool(getattr(spec, "dedupe", False))
        if dedupe and not is_real:
            self._notes.say(f"column {step.name!r}: dedupe is not simulated where prompts are made up")
        ((alias, domain, key),) = self._asked(step, spec)
        caller = self._caller(step.name, alias, domain, key, step.tokens)
        return model_filler(
            step.name, own, caller, otherwise, self._notes, always=dedupe and is_real, never_more=dedupe
        )

    def _code(self, step: Step, spec: ColumnSpec | None, otherwise: Any, real: set[str]) -> Callable[..., Any] | None:
        name = step.name
        asked = self._asked(step, spec) if step.key is not None else []
        # The calls of the column's own key go under the permit that the task is started with.
        callers = [(self._caller(name, *each), None if each[2] == step.key else each[2]) for each in asked]
        if name in self._setting.run_code:
            real.update(step.outputs)
            if not step.call.is_async:
                return None
            return with_callers(step.call.function, {caller.alias: caller for caller, _ in callers})
        own = callers[0][0] if callers else self._caller(name, name, "code", name)
        if not (isinstance(spec, Validation) and spec.kind == "remote"):
            takes = "" if callers or own.profile.latency else ", takes no time"
            self._notes.say(f"column {name!r} is code of your own: it is not run{takes} and gives {otherwise!r}")
        assert isinstance(step.kind, Kind)
        return code_filler(step.kind, step.outputs, otherwise, own, callers)


def _own_function(spec: ColumnSpec | None, step: Step) -> Callable[..., Any]:
    """The function that a user wrote; what the engine calls may be a wrapper that says nothing of types."""
    function = getattr(spec, "function", None)
    return function if callable(function) else step.call.function


def _is_ours(kind: type) -> bool:
    return kind.__module__.startswith("seedbed.recipe.")
