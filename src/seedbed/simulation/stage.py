"""From a recipe to the plan of its simulation: the same graph, keys and limits, with nobody behind the calls.

What is run for real: samplers, seed files, expressions, recipe processors before a batch. What is not: calls, and code
of the user's unless it is said to be safe; what is after a batch, which would judge rows by placeholders.
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
from ..generators import Call
from ..graph import Kind, nearest
from ..models.distributions import mean, stable_seed
from ..recipe.custom import Custom
from ..recipe.expression import Expression
from ..recipe.recipe import Recipe
from ..recipe.validation import Validation
from . import placeholders
from .calls import Caller, Line, Processor, Waits
from .fillers import CallFiller, CodeFiller, GuardedSkip, Notes, guarded, sampled_checks, with_callers
from .models import SimulatedModel
from .profiles import CallProfile, Measured, Resolved, check_names, of_script, resolve_profile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ..engine.config import RunConfig
    from ..engine.plan import Step
    from ..engine.processor import Processor as RowProcessor
    from ..engine.source import Source
    from ..generators import Column
    from ..models.base import ModelSpec
    from ..recipe.spec import ColumnSpec
    from ..runtime.throttle import KeyLimits

# The finest and, for many cells, the share of the shortest mean latency that instants are rounded to.
_FINEST = 0.001
_COARSE = 0.08
_MANY = 100_000


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
    waits: Waits
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
        self._waits = Waits(_FINEST, random.Random(seed))
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
        self._waits = Waits(self._grid(plan, specs), random.Random(stable_seed(self._seed, "grid")))
        real: set[str] = set()  # columns that hold what a real run would put there
        steps = list(plan.steps)
        for node in plan.graph.order:
            steps[node] = self._step(plan, steps[node], source.columns[node], specs[node], real)
        return Staged(
            plan=attrs.evolve(plan, steps=tuple(steps)),
            source=source,
            waits=self._waits,
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

    def _grid(self, plan: BuildPlan, specs: list[ColumnSpec | None]) -> float:
        """How fine instants are told apart: in a large simulation by what its shortest calls need."""
        calls = [
            mean(self._resolve(step.name, alias, domain).profile.latency)
            for step, spec in zip(plan.steps, specs, strict=True)
            if step.key is not None
            for alias, domain, _ in self._asked(step, spec)
        ]
        cells = plan.rows * len(calls)
        if cells < _MANY:
            return _FINEST
        return max(_FINEST, _COARSE * min((each for each in calls if each > 0), default=_FINEST))

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
                waits=self._waits,
                # What a function of the user's does itself is not the engine's work.
                processor=self._processor if domain != "code" else Processor(0.0),
                seed=self._seed,
                timeout=math.inf if model is None else model.timeout,
                max_tokens=max_tokens,
            )
        return self._callers[column, alias]

    def _model_caller(self, alias: str, domain: str) -> Caller:
        return self._caller("", alias, domain, self._models[alias].key(domain))

    def _prices(self, alias: str) -> tuple[float, float]:
        spec: ModelSpec | None = self._models.get(alias)
        return (0.0, 0.0) if spec is None else (spec.input_price / 1e6, spec.output_price / 1e6)

    # What fills a column.

    def _step(self, plan: BuildPlan, step: Step, column: Column, spec: ColumnSpec | None, real: set[str]) -> Step:
        own = step.call
        assert own is not None  # a processor is no column
        if step.skip is not None:
            said = self._resolve(step.name, None, "code")
            made_up = not real.issuperset(step.skip.requires)
            # Over real values the rule itself knows better than an earlier run.
            share = said.profile.skipped if made_up or said.origins.get("skipped") == "given" else None
            if share is None and made_up:
                self._notes.say(f"skip_when of column {step.name!r} reads made-up values: say the share that it skips")
            rule = GuardedSkip(
                step.name, step.skip, share, seed=stable_seed(self._seed, step.name, "skip"), notes=self._notes
            )
            step = attrs.evolve(step, skip=rule)
        is_real = real.issuperset(step.inputs) and (step.skip is None or real.issuperset(step.skip.requires))
        otherwise = placeholders.of_outputs(step.outputs, plan.declared, _own_function(spec, step))
        if isinstance(spec, Expression):
            real.update(step.outputs if is_real else ())
            fill = guarded(step.name, own, self._notes)
            call = attrs.evolve(own, function=fill, context_keyword="context")
            return attrs.evolve(step, call=call, wants_context=True)
        if isinstance(spec, Validation) and spec.kind not in ("remote", "callable"):
            checks = sampled_checks(own, otherwise)
            return attrs.evolve(step, call=attrs.evolve(own, function=checks, context_keyword=None))
        if spec is not None and _is_ours(type(spec)) and not isinstance(spec, Custom | Validation):
            if step.key is None:
                real.update(step.outputs)
                return step
            dedupe = bool(getattr(spec, "dedupe", False))
            if dedupe and not is_real:
                self._notes.say(f"column {step.name!r}: dedupe is not simulated where prompts are made up")
            ((alias, domain, key),) = self._asked(step, spec)
            filler = CallFiller(
                step.name,
                own,
                step.inputs,
                self._caller(step.name, alias, domain, key, step.tokens),
                prices=self._prices(alias),
                otherwise=otherwise,
                always=dedupe and is_real,
                never_more=dedupe,
                notes=self._notes,
            )
            return _filled(step, filler.fill)
        return self._code(step, column, spec, otherwise, real if is_real else set())

    def _code(self, step: Step, column: Column, spec: ColumnSpec | None, otherwise: Any, real: set[str]) -> Step:
        assert step.call is not None
        name = step.name
        asked = self._asked(step, spec) if step.key is not None else []
        callers = [(self._caller(name, *each), self._prices(each[0]), each[2]) for each in asked]
        if name in self._setting.run_code:
            real.update(step.outputs)
            if not step.call.is_async or column.kind is not Kind.CELL:
                return step
            function = with_callers(step.call.function, {caller.alias: caller for caller, _, _ in callers})
            return attrs.evolve(
                step,
                call=attrs.evolve(step.call, function=function),
                direct=None if step.direct is None else function,
            )
        if step.allow_resize:
            raise ConfigError(f"column {name!r} may resize, and only its own code knows how: say run_code={name!r}")
        own = self._caller(name, name, "code", name) if not callers else callers[0][0]
        if not (isinstance(spec, Validation) and spec.kind == "remote"):
            takes = "" if callers or own.profile.latency else ", takes no time"
            self._notes.say(f"column {name!r} is code of your own: it is not run{takes} and gives {otherwise!r}")
        filler = CodeFiller(
            column.kind,
            step.outputs,
            otherwise,
            own=own,
            # The first one's calls go under the permit that the task is started with.
            callers=[(caller, prices, None if key == step.key else key) for caller, prices, key in callers],
        )
        return _filled(step, filler.fill) if column.kind is Kind.CELL else _filled_group(step, filler.fill_group)


def _filled(step: Step, fill: Callable[..., Any]) -> Step:
    """The step of a cell with another function, which gets the context and the inputs by position."""
    call = Call(function=fill, is_async=True, positional=(None, *step.inputs), keywords=(), context_keyword=None)
    return attrs.evolve(
        step,
        call=call,
        positional=call.positional,
        wants_context=True,
        direct=fill if len(step.outputs) == 1 and not step.allow_resize else None,
    )


def _filled_group(step: Step, fill: Callable[..., Any]) -> Step:
    call = Call(function=fill, is_async=True, positional=(), keywords=(), context_keyword="context")
    return attrs.evolve(step, call=call, positional=(), wants_context=True)


def _own_function(spec: ColumnSpec | None, step: Step) -> Callable[..., Any]:
    """The function that a user wrote; what the engine calls may be a wrapper that says nothing of types."""
    assert step.call is not None
    function = getattr(spec, "function", None)
    return function if callable(function) else step.call.function


def _is_ours(kind: type) -> bool:
    return kind.__module__.startswith("seedbed.recipe.")
