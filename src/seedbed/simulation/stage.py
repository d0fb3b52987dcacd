"""From a recipe to the plan of its simulation: the same graph, keys and limits, with simulated model clients.

Samplers, seed files, expressions and pre-batch processors of the recipe run as in a build. User code runs only if
`run_code` names it; post-batch and after-generation processors, which would judge placeholders, never run.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from typing import TYPE_CHECKING, Any

import attrs
import yaml

from ..columns.chat import ChatSpec
from ..columns.conversation import Conversation
from ..columns.custom import Custom
from ..columns.expression import Expression
from ..columns.templates import SkipRule
from ..columns.validation import Validation
from ..engine.plan import plan_build
from ..engine.source import DOMAINS, make_source
from ..errors import ConfigError
from ..graph import Stage, nearest
from ..models.distributions import mean, stable_seed
from ..recipe.acceptance import Acceptance, Predicate, RowRules
from ..recipe.recipe import Recipe
from ..recipe.stages import RESERVED
from ..recipe.stages import Stage as StageSpec
from .calls import (
    Caller,
    Network,
    Notes,
    SimulatedModel,
    code_filler,
    guarded,
    model_filler,
    of_outputs,
    sampled_checks,
    with_callers,
)
from .profiles import CallProfile, Measured, check_names, resolve_profile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ..columns.base import CellContext, Column
    from ..columns.spec import ColumnSpec
    from ..engine.config import RunConfig
    from ..engine.plan import StagePlan
    from ..engine.source import Source
    from ..engine.tasks import Processor, Step
    from ..runtime.throttle import KeyLimits


# From this number of calls on, instants are rounded to this share of the shortest mean latency.
_MANY = 100_000
_ROUNDING = 0.08


# The items of a list that is a placeholder, unless their number is given, and what they are.
ITEMS = 3
_ITEM = "placeholder"
# The share of candidates that a rule over placeholders accepts.
ASSUMED_ACCEPTED = 0.5


@attrs.frozen(kw_only=True)
class Setting:
    """A simulation without its seed; it can be sent to another process if the recipe can."""

    recipe: Recipe | tuple[Column, ...]
    rows: int | Mapping[str, int] | None
    config: RunConfig
    limits: Mapping[str, KeyLimits] = attrs.field(factory=dict)
    processors: tuple[Processor, ...] = ()
    given: Mapping[str, CallProfile] = attrs.field(factory=dict)
    measured: tuple[Measured, ...] = ()  # the first precedes
    run_code: frozenset[str] = frozenset()  # columns whose code is run
    overhead: float = 0.0
    # By stage: how many items its lists have, where they are not generated in the simulation.
    items: Mapping[str, int] = attrs.field(factory=dict)
    accepted: float | None = None  # the share of candidates that are accepted, where not every row counts

    @property
    def specs(self) -> tuple[ColumnSpec | None, ...]:
        """The spec of each column, None for columns without a recipe."""
        return self.recipe.all_columns if isinstance(self.recipe, Recipe) else (None,) * len(self.recipe)

    @property
    def root_rows(self) -> int:
        """The rows of the stages that have a number of rows, together."""
        if isinstance(self.rows, int):
            return self.rows
        stages = self.recipe.stages if isinstance(self.recipe, Recipe) else ()
        given = self.rows or {}
        return sum(given.get(stage.name, stage.rows or 0) for stage in stages if stage.from_ is None)


class Staged:
    """A simulation that is ready to run. Raises what planning the build would raise, except for missing API keys."""

    def __init__(self, setting: Setting, seed: int) -> None:
        recipe = setting.recipe
        specs: Mapping[str, Any] = recipe.models if isinstance(recipe, Recipe) else {}
        self.notes: Notes = {}
        # By column and alias: the profile of the calls, and the origin of each of its fields.
        self.profiles: dict[tuple[str, str], tuple[CallProfile, dict[str, str]]] = {}
        self._setting = setting
        self._seed = seed
        self._callers: dict[tuple[str, str], Caller] = {}
        self._models = {alias: SimulatedModel(alias=alias, spec=specs[alias], caller=self._of_alias) for alias in specs}
        self._network = Network(overhead=setting.overhead, chance=random.Random(stable_seed(seed, "network")).random)
        self.source = self._make_source()
        self._real: set[str] = set()  # columns with the values of a real run
        plan = plan_build(self.source, rows=setting.rows)
        stages = tuple(map(self._fill_stage, plan.stages))
        output = stages[plan.stages.index(plan.output)]
        self.plan = attrs.evolve(plan, stages=stages, output=output)
        latencies = [mean(profile.latency) for profile, _ in self.profiles.values()]
        if sum(stage.rows for stage in stages) * len(latencies) >= _MANY:
            self._network.rounding = _ROUNDING * min((each for each in latencies if each > 0), default=0.0)

    def aliases(self, key: str) -> tuple[str, ...]:
        """The aliases of the models that share a throttle key."""
        return tuple(alias for alias, model in self._models.items() if any(model.key(each) == key for each in DOMAINS))

    def _make_source(self) -> Source:
        setting = self._setting
        config = attrs.evolve(setting.config, jitter_seed=self._seed, trace=False)
        recipe: Any = setting.recipe
        if isinstance(recipe, Recipe):
            recipe = attrs.evolve(recipe, models=self._models)
        source = make_source(
            recipe, config=config, limits=setting.limits, processors=setting.processors, is_simulated=True
        )
        names = tuple(column.name for column in source.columns)
        keys = {column.key: None for column in source.columns if column.key}
        check_names(setting.given, {**self._models, **keys}, names)
        unknown = sorted(setting.run_code.difference(names, (each.label for each in source.processors)))
        if unknown:
            raise ConfigError(f"unknown column {unknown[0]!r} in run_code{nearest(unknown[0], names)}")
        unknown = [name for name in setting.items if name not in {part.stage for part in source.parts if part.parent}]
        if unknown:
            raise ConfigError(f"items are given for {unknown[0]!r}, which is no stage that takes rows from another")
        chosen = tuple(self._choose_processors(part.processors) for part in source.stages)
        if not source.parts:
            return attrs.evolve(source, processors=chosen[0], acceptance=self._acceptance(source))
        parts = tuple(
            attrs.evolve(part, processors=each, acceptance=self._acceptance(part))
            for part, each in zip(source.parts, chosen, strict=True)
        )
        return attrs.evolve(source, processors=tuple(each for some in chosen for each in some), parts=parts)

    def _acceptance(self, source: Source) -> Acceptance | None:
        """The rules of a stage: by the share that is given or measured, else by themselves or an assumption.

        Rows are not compared: the share has to take duplicates into account.
        """
        acceptance = source.acceptance
        if acceptance is None:
            if self._setting.accepted is not None and not any(part.acceptance for part in source.stages):
                self.notes.setdefault("accepted: the recipe has no accept, unique or near_duplicates")
            return None
        rules, predicate = acceptance.rules, acceptance.predicate
        share = self._setting.accepted
        if share is None:
            share = next((each.accepted for each in self._setting.measured if each.accepted is not None), None)
        chance = random.Random(stable_seed(self._seed, source.stage, "accept")).random
        # A duplicate is known once its row is complete.
        outputs = tuple(name for each in source.columns for name in (*each.outputs, *each.side_effects))
        requires = outputs if predicate is None else predicate.requires

        def accepts(values: Mapping[str, Any]) -> bool:
            if share is not None:
                return chance() < share
            if predicate is not None and self._real.issuperset(predicate.requires):
                return predicate.decide(values)
            kind = "unique and near_duplicates are not simulated" if predicate is None else "accept reads placeholders"
            assumed = 1.0 if predicate is None else ASSUMED_ACCEPTED
            self.notes.setdefault(f"{kind}; {assumed:.0%} of the candidates are accepted: set the share")
            return chance() < assumed

        fields = {each.name: getattr(rules, each.name) for each in attrs.fields(RowRules)}
        fields |= {"unique": (), "near_duplicates": None, "on_exhausted": "partial"}
        name = "accept" if predicate is None else predicate.name
        return Acceptance(
            rules=RowRules(**{**fields, "accept": name}),
            predicate=Predicate(name=name, requires=requires, evaluate=accepts),
        )

    def _fill_stage(self, plan: StagePlan) -> StagePlan:
        """The stage with what fills its columns in the simulation."""
        specs = {spec.name: spec for spec in self._setting.specs if spec is not None}
        steps, inherited = list(plan.steps), plan.inherited_step
        for node in plan.graph.order:
            if steps[node] is not inherited:
                steps[node] = self._fill_step(plan, steps[node], specs.get(steps[node].name))
        spec, source = plan.source.spec, plan.source
        if spec is not None and isinstance(spec.each, str) and not self._real.issuperset(spec.needs):
            items = self._setting.items.get(spec.name, ITEMS)
            if spec.name not in self._setting.items:
                self.notes.setdefault(
                    f"stage {spec.name!r}: lists are placeholders, taken to have {ITEMS} items; set their length"
                )
            fields = {each.name: getattr(spec, each.name) for each in attrs.fields(StageSpec)}
            source = attrs.evolve(source, spec=_SimulatedStage(**fields, items=items))
        elif inherited is not None:
            self._real.update(name for name in inherited.outputs if name in (*RESERVED, spec and spec.item_column))
        return attrs.evolve(plan, steps=tuple(steps), source=source)

    def _choose_processors(self, processors: Iterable[Processor]) -> tuple[Processor, ...]:
        """The pre-batch processors that run: they decide for which rows calls are made."""
        recipe, chosen = self._setting.recipe, []
        specs = recipe.all_processors if isinstance(recipe, Recipe) else ()
        safe = {spec.label for spec in specs if _is_built_in(type(spec))} | self._setting.run_code
        for processor in processors:
            if processor.stage is not Stage.PRE_BATCH:
                self.notes.setdefault(f"processor {processor.label!r} is not run: it follows the calls")
            elif processor.label in safe:
                chosen.append(processor)
            else:
                self.notes.setdefault(f"processor {processor.label!r} is user-defined and not run; it removes no rows")
        return tuple(chosen)

    def _called_by(self, step: Step, spec: ColumnSpec | None) -> list[tuple[str, str, str]]:
        """The models that a column calls: alias, domain and throttle key."""
        if step.key is None:
            return []
        if isinstance(spec, Validation):
            return [(step.key, "validation", step.key)]
        own = spec.aliases() if spec is not None else ()
        chat = "function" if _is_user_code(spec) else "chat"
        if isinstance(spec, Custom) and own:
            # A function calls each of its models; those that share its key use the permit of its task.
            return [(alias, chat, self._models[alias].key("chat")) for alias in dict.fromkeys(own)]
        found = (
            (alias, chat if domain == "chat" else domain, step.key)
            for alias in (*own, *self._models)
            for domain in DOMAINS
            if self._models[alias].key(domain) == step.key
        )
        return [next(found, (step.key, chat, step.key))]

    def _resolve(self, column: str, alias: str | None, domain: str) -> tuple[CallProfile, dict[str, str]]:
        given, measured = self._setting.given, self._setting.measured
        spec = self._models[alias].spec if alias in self._models else None
        return resolve_profile(column, alias, domain, given=given, measured=measured, spec=spec)

    def _caller(self, column: str, alias: str, domain: str, key: str, max_tokens: int | None = None) -> Caller:
        if (column, alias) not in self._callers:
            self.profiles[column, alias] = profile, _ = self._resolve(column, alias, domain)
            self._callers[column, alias] = Caller(
                alias,
                self._models[alias].spec if alias in self._models else None,
                profile,
                self._network,
                key=key,
                rng=random.Random(stable_seed(self._seed, column, alias)),
                uses_engine=domain != "code",  # a user's function without a model takes no time of the engine
                max_tokens=max_tokens,
            )
        return self._callers[column, alias]

    def _of_alias(self, alias: str, domain: str) -> Caller:
        return self._caller("", alias, domain, self._models[alias].key(domain))

    def _fill_step(self, plan: StagePlan, step: Step, spec: ColumnSpec | None) -> Step:
        """The step with its generator for the simulation; its lane, limits and slots are those of the build."""
        column = step.column
        assert column is not None  # not a processor
        rule = None if column.skip is None else self._skip_rule(step.name, column.skip)
        is_real = self._real.issuperset((*step.inputs, *(rule.requires if rule is not None else ())))
        fill = self._filler(plan, step, spec, is_real=is_real)
        once_per = column.once_per if self._real.issuperset(column.once_per) else ()
        if column.once_per and not once_per:
            self.notes.setdefault(f"once_per of column {step.name!r} reads placeholders; all its cells are simulated")
        if fill is None and rule is None:
            return step
        generator, runtime = (column.generator, column.runtime) if fill is None else (fill, None)
        column = attrs.evolve(
            column, generator=generator, runtime=runtime, requires=column.inputs, skip=rule, once_per=once_per
        )
        return attrs.evolve(step, column=column)

    def _skip_rule(self, name: str, rule: SkipRule) -> SkipRule:
        """The rule itself over real values; over placeholders, or if the user gave it, the share that it skips."""
        is_real = self._real.issuperset(rule.requires)
        profile, origins = self._resolve(name, None, "code")
        share = None if is_real and origins.get("skipped") != "given" else profile.skipped
        if share is None and not is_real:
            self.notes.setdefault(f"skip_when of column {name!r} reads placeholders; set the share that it skips")
        chance = random.Random(stable_seed(self._seed, name, "skip")).random

        def decide(values: Mapping[str, Any]) -> bool:
            if share is not None:
                return chance() < share
            try:
                return rule.decide(values)
            except Exception as error:  # noqa: BLE001  placeholders may be wrong in any way
                self.notes.setdefault(f"skip_when of column {name!r} fails on placeholders and skips nothing ({error})")
                return False

        return SkipRule(requires=rule.requires, decide=decide)

    def _filler(
        self, plan: StagePlan, step: Step, spec: ColumnSpec | None, *, is_real: bool
    ) -> Callable[..., Any] | None:
        """The function that fills the column; None for its own generator. Notes which outputs are real."""
        own = step.call.function
        written = getattr(spec, "function", None)  # what the engine calls may be a wrapper without annotations
        fallback = of_outputs(step.outputs, plan.declared, written if callable(written) else own)
        if isinstance(spec, Expression):
            self._real.update(step.outputs if is_real else ())
            return guarded(step.name, own, self.notes)
        if isinstance(spec, Validation) and spec.kind not in ("remote", "callable"):
            return sampled_checks(own, fallback)
        if _is_user_code(spec) or isinstance(spec, Validation):
            return self._code(step, spec, fallback, is_real=is_real)
        if step.key is None:
            self._real.update(step.outputs)
            return None
        dedupe = bool(getattr(spec, "dedupe", False))
        if dedupe and not is_real:
            self.notes.setdefault(f"column {step.name!r}: dedupe is not simulated where prompts contain placeholders")
        if getattr(spec, "repair_with", None) is not None:
            self.notes.setdefault(f"column {step.name!r}: repairs are not simulated; set how many calls a cell makes")
        if spec is not None and any(True for _ in spec.sources()):
            self.notes.setdefault(f"column {step.name!r}: tools are not simulated; set how many calls a cell makes")
        called = self._called_by(step, spec)
        if isinstance(spec, Conversation):
            called = [(alias, "chat", self._models[alias].key("chat")) for alias in spec.aliases()]
        callers = [self._caller(step.name, alias, domain, key, step.tokens) for alias, domain, key in called]
        # Unless the number of calls is known, that of the generator counts.
        has_turns = isinstance(spec, Conversation) or (isinstance(spec, ChatSpec) and spec.is_list)
        is_counted = self.profiles[step.name, called[0][0]][1].get("calls") in ("given", "measured")
        if isinstance(spec, Conversation) and spec.until is not None and not is_counted:
            self.notes.setdefault(
                f"column {step.name!r}: until reads placeholders, so that most have max_turns; set how many calls a "
                "cell makes"
            )
        always = (dedupe and is_real) or (has_turns and not is_counted)
        return model_filler(step.name, own, callers, fallback, self.notes, always=always, never_more=dedupe)

    def _code(self, step: Step, spec: ColumnSpec | None, fallback: Any, *, is_real: bool) -> Callable[..., Any] | None:
        name = step.name
        callers = [(self._caller(name, alias, domain, key), key) for alias, domain, key in self._called_by(step, spec)]
        if name in self._setting.run_code:
            self._real.update(step.outputs if is_real else ())
            if not step.call.is_async:
                return None
            return with_callers(step.call.function, {caller.alias: caller for caller, _ in callers})
        own = None if callers else self._caller(name, name, "code", name)
        if not (isinstance(spec, Validation) and spec.kind == "remote"):
            takes = ", takes no time" if own is not None and not own.profile.latency else ""
            self.notes.setdefault(f"column {name!r} is user-defined: it is not run{takes} and returns {fallback!r}")

        async def work(context: CellContext) -> None:
            if own is not None:
                await own.call()
            for caller, key in callers:
                # Calls under the key of the column use the permit that the task was started with.
                await caller.make_calls(context, key=None if key == step.key else key)

        return code_filler(step, fallback, work)


@attrs.frozen(kw_only=True)
class _SimulatedStage(StageSpec):
    """A stage whose lists are placeholders: they have `items` items, whatever is in them."""

    items: int

    def count(self, values: Mapping[str, Any]) -> tuple[int, Sequence[Any]]:  # noqa: ARG002
        return self.items, [_ITEM] * self.items


def _is_user_code(spec: ColumnSpec | None) -> bool:
    return spec is None or isinstance(spec, Custom) or not _is_built_in(type(spec))


def _is_built_in(kind: type) -> bool:
    """True for a spec of seedbed itself; others, of plug-ins too, are user code."""
    return kind.__module__.startswith("seedbed.columns.")


_MAX_VARIANTS = 64
# A comma outside brackets.
_COMMA = re.compile(r",(?![^(\[]*[)\]])")
_PATHS = "models.ALIAS.FIELD, columns.NAME.FIELD, run.OPTION or profile.NAME.FIELD"


def parse_vary(text: str) -> tuple[str, list[Any]]:
    """Read `models.writer.max_parallel_requests=32,64`: the path, and the values, which are YAML."""
    path, equals, values = text.partition("=")
    if not equals or not values.strip():
        raise ConfigError(f"a change is written PATH=VALUE,VALUE, not {text!r}; a path is {_PATHS}")
    try:
        return path.strip(), [yaml.safe_load(each) for each in _COMMA.split(values)]
    except yaml.YAMLError:
        raise ConfigError(f"{path.strip()}: {values!r} is not a list of YAML values") from None


def variants(setting: Setting, varied: Mapping[str, Sequence[Any]]) -> Iterator[tuple[dict[str, Any], Setting]]:
    """Every combination of changes, with its setting."""
    for path, values in varied.items():
        if isinstance(values, str) or not values:
            raise ConfigError(f"{path} must be varied over a list of values, not {values!r}")
    count = math.prod(map(len, varied.values()))
    if count > _MAX_VARIANTS:
        raise ConfigError(f"{count} variants were requested; at most {_MAX_VARIANTS} are simulated together")
    for chosen in itertools.product(*varied.values()):
        changes = dict(zip(varied, chosen, strict=True))
        changed = setting
        for path, value in changes.items():
            changed = _change(changed, path, value)
        yield changes, changed


def _change(setting: Setting, path: str, value: Any) -> Setting:
    """The setting with one thing changed. Raises `ConfigError` for an unknown path or an invalid value."""
    kind, _, rest = path.partition(".")
    if kind == "run":
        return attrs.evolve(setting, config=_evolve(path, setting.config, rest, value))
    name, dot, field = rest.rpartition(".")
    if kind not in ("models", "columns", "profile") or not dot:
        raise ConfigError(f"{path!r} cannot be varied; a path is {_PATHS}")
    if kind == "profile":
        profile = _evolve(path, setting.given.get(name, CallProfile()), field, value)
        return attrs.evolve(setting, given={**setting.given, name: profile})
    recipe = setting.recipe
    if not isinstance(recipe, Recipe):
        raise ConfigError(f"{path}: {kind} can be varied only in a recipe")
    known = tuple(recipe.models) if kind == "models" else tuple(spec.name for spec in recipe.all_columns)
    if name not in known:
        raise ConfigError(f"{path}: unknown {kind[:-1]} {name!r}{nearest(name, known)}")
    if kind == "models":
        models = {**recipe.models, name: _evolve(path, recipe.models[name], field, value)}
        return attrs.evolve(setting, recipe=attrs.evolve(recipe, models=models))

    def varied(specs: Iterable[ColumnSpec]) -> tuple[ColumnSpec, ...]:
        return tuple(_evolve(path, spec, field, value) if spec.name == name else spec for spec in specs)

    stages = [attrs.evolve(stage, columns=varied(stage.columns)) for stage in recipe.stages]
    changed = attrs.evolve(recipe, columns=varied(recipe.columns), stages=stages)
    access = recipe.access
    if access is not None:  # paths that come from the user and not from the file are allowed
        before, after = ({given for spec in each.all_columns for given in spec.paths()} for each in (recipe, changed))
        access = access.granting(recipe.base / given for given in after - before)
    return attrs.evolve(setting, recipe=attrs.evolve(changed, access=access))


def _evolve(path: str, value: Any, field: str, changed: Any) -> Any:
    known = [each.name for each in attrs.fields(type(value)) if each.init]
    if field not in known:
        what = "option" if path.startswith("run.") else "field"
        raise ConfigError(f"{path}: unknown {what} {field!r}{nearest(field, known)}")
    return attrs.evolve(value, **{field: changed})
