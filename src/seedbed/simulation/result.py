"""What a simulation says: figures with their spread over seeds, and what holds the run up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from .text import summary_lines
from .watch import ADMISSION, BUDGET, SLOTS, KeyLoad, LimitLoad, Track

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .once import Outcome
    from .profiles import Resolved

# Below this share of its time, no limit is what a run waits for.
_MATTERS = 0.25


@attrs.frozen(kw_only=True)
class Spread:
    """A figure over all seeds."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of at least one value."""
        return cls(mean=sum(values) / len(values), low=min(values), high=max(values))


@attrs.frozen(kw_only=True)
class Used:
    """What a column, a model, or the whole run uses."""

    calls: Spread
    input_tokens: Spread
    output_tokens: Spread
    cost: Spread


@attrs.frozen(kw_only=True)
class CallsOf:
    """The calls of one column to one model, and what was taken for granted of them."""

    column: str
    model: str
    used: Used
    profile: Resolved


@attrs.frozen(kw_only=True)
class KeyUse:
    """How a throttle key is used, on average over all seeds; `models` are the aliases that share it."""

    models: tuple[str, ...]
    load: KeyLoad
    refused: float

    @property
    def name(self) -> str:
        """The aliases, or the key itself where it has none."""
        return ", ".join(self.models) or self.load.key


@attrs.frozen(kw_only=True)
class Estimate:
    """What one setting gives, over all seeds."""

    rows: int
    seeds: int
    seconds: Spread
    written: Spread
    dropped: Spread
    total: Used
    calls: tuple[CallsOf, ...]
    models: Mapping[str, Used]
    keys: tuple[KeyUse, ...]
    limits: tuple[LimitLoad, ...]
    bottleneck: str
    # Of the first seed.
    timeline: tuple[Track, ...]
    # Why the run would end early, if it would.
    stopped: str | None
    notes: tuple[str, ...]

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What nobody gave and nobody measured."""
        return tuple(
            f"{each.column} ({each.model}): {', '.join(each.profile.assumed).replace('_', ' ')}"
            for each in self.calls
            if each.profile.assumed
        )


@attrs.frozen(kw_only=True)
class Variant:
    """The same run with something changed."""

    changes: Mapping[str, Any]
    estimate: Estimate


@attrs.frozen(kw_only=True)
class Probed:
    """What measuring beforehand took: real rows, real calls."""

    rows: int
    calls: int
    tokens: int
    cost: float
    seconds: float


@attrs.frozen(kw_only=True)
class Simulation:
    """A run that was not run. `base` is the recipe as it is, `variants` what changes if something changes."""

    base: Estimate
    variants: tuple[Variant, ...] = ()
    probed: Probed | None = None

    @property
    def seconds(self) -> float:
        """How long the run will take, on average over the seeds."""
        return self.base.seconds.mean

    @property
    def cost(self) -> float:
        """What it will cost."""
        return self.base.total.cost.mean

    @property
    def bottleneck(self) -> str:
        """Which limit it waits for."""
        return self.base.bottleneck

    def __str__(self) -> str:
        return "\n".join(summary_lines(self))


def make_estimate(rows: int, outcomes: Sequence[Outcome]) -> Estimate:
    """Put what the seeds gave together."""
    first = outcomes[0]
    pairs = list(dict.fromkeys(pair for outcome in outcomes for pair in outcome.spent))
    models = list(dict.fromkeys(model for _, model in pairs))
    keys = _keys(outcomes)
    limits = tuple(
        attrs.evolve(
            each,
            used=_mean([outcome.limits[at].used for outcome in outcomes]),
            held_up=_mean([outcome.limits[at].held_up for outcome in outcomes]),
        )
        for at, each in enumerate(first.limits)
    )
    return Estimate(
        rows=rows,
        seeds=len(outcomes),
        seconds=Spread.of([outcome.seconds for outcome in outcomes]),
        written=Spread.of([outcome.written for outcome in outcomes]),
        dropped=Spread.of([outcome.dropped for outcome in outcomes]),
        total=_used(outcomes, lambda _: True),
        calls=tuple(
            CallsOf(
                column=pair[0],
                model=pair[1],
                used=_used(outcomes, lambda each, pair=pair: each == pair),  # type: ignore[misc]
                profile=first.profiles[pair] if pair in first.profiles else first.profiles["", pair[1]],
            )
            for pair in pairs
        ),
        models={model: _used(outcomes, lambda pair, model=model: pair[1] == model) for model in models},  # type: ignore[misc]
        keys=keys,
        limits=limits,
        bottleneck=find_bottleneck(keys, limits),
        timeline=first.tracks,
        stopped=next((outcome.stopped for outcome in outcomes if outcome.stopped is not None), None),
        notes=tuple(dict.fromkeys(note for outcome in outcomes for note in outcome.notes)),
    )


def _used(outcomes: Sequence[Outcome], wanted: Callable[[tuple[str, str]], bool]) -> Used:
    sums = [
        [sum(entry[part] for pair, entry in outcome.spent.items() if wanted(pair)) for part in range(4)]
        for outcome in outcomes
    ]
    calls, asked, answered, cost = (Spread.of([each[part] for each in sums]) for part in range(4))
    return Used(calls=calls, input_tokens=asked, output_tokens=answered, cost=cost)


def _keys(outcomes: Sequence[Outcome]) -> tuple[KeyUse, ...]:
    found: dict[str, list[KeyLoad]] = {}
    for outcome in outcomes:
        for load in outcome.keys:
            found.setdefault(load.key, []).append(load)
    return tuple(
        KeyUse(
            models=outcomes[0].aliases.get(key, ()),
            load=attrs.evolve(
                loads[0],
                limit=_mean([each.limit for each in loads]),
                busy=_mean([each.busy for each in loads]),
                at_limit=_mean([each.at_limit for each in loads]),
                held_up=_mean([each.held_up for each in loads]),
                paced=_mean([each.paced for each in loads]),
            ),
            refused=_mean([outcome.refused.get(key, 0) for outcome in outcomes]),
        )
        for key, loads in found.items()
    )


def find_bottleneck(keys: Sequence[KeyUse], limits: Sequence[LimitLoad]) -> str:
    """The limit that held work up for most of the time, in a sentence."""
    told: list[tuple[float, str]] = []
    for use in keys:
        load = use.load
        share = f"for {load.held_up:.0%} of the time"
        if load.limit < 0.9 * load.ceiling and use.refused:
            found = f"{use.name}: its server refuses; about {load.limit:.0f} of {load.ceiling} calls at once {share}"
        else:
            found = f"{use.name}: max_parallel_requests={load.ceiling} is used up {share}"
        told.append((load.held_up, found))
        why = "it pauses after refusals" if use.refused else "its requests or tokens per minute are used up"
        told.append((load.paced, f"{use.name}: {why} for {load.paced:.0%} of the time"))
    knobs = {
        SLOTS: "max_active_tasks",
        BUDGET: "max_submitted_tasks",
        ADMISSION: "max_concurrent_row_groups",
    }
    for each in limits:
        held = f"{each.name}: {knobs[each.name]}={each.allowed} is used up for {each.held_up:.0%} of the time"
        told.append((each.held_up, held))
    most, sentence = max(told, default=(0.0, ""))
    if most >= _MATTERS:
        return sentence
    return "none: calls wait for each other's answers and not for a limit"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
