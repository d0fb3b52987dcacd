"""The result of a simulation: figures with their spread over seeds, the bottleneck, and their text, JSON and HTML."""

from __future__ import annotations

import io
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import attrs
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..models.distributions import distribution_text
from ..observe.progress import duration, money
from ..observe.report import Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from .profiles import CallProfile

# The number of equal parts of the run in a timeline.
BUCKETS = 120
# A limit that holds up work for a smaller share of the time is not a bottleneck.
_BOTTLENECK_SHARE = 0.25


@attrs.frozen(kw_only=True)
class KeyLoad:
    """The use of a throttle key, in shares of the run's time; `models` are the aliases that share it.

    `limit`: the median of what the throttle allowed. `busy`: calls in flight as a share of the ceiling. `at_limit`: as
    many calls in flight as allowed at the time. `held_up`: that, and work waited. `paced`: work waited although fewer
    were in flight, for rates per minute or a pause after rate limits. `rate_limited` counts calls.
    """

    key: str
    models: tuple[str, ...]
    ceiling: int
    limit: float
    busy: float
    at_limit: float
    held_up: float
    paced: float
    rate_limited: float

    @property
    def name(self) -> str:
        """The aliases, or the key if it has none."""
        return ", ".join(self.models) or self.key


@attrs.frozen(kw_only=True)
class LimitLoad:
    """The use of a limit of the run: on average, and the share of time in which it was reached and held work up."""

    name: str
    option: str
    allowed: int
    used: float
    held_up: float


@attrs.frozen(kw_only=True)
class Track:
    """Calls in flight of one key beside what was allowed, in equal parts of the run."""

    key: str
    ceiling: int
    in_flight: tuple[float, ...]
    limit: tuple[float, ...]


@attrs.frozen(kw_only=True)
class Outcome:
    """The result of one seed."""

    seconds: float
    written: int
    dropped: int
    candidates: int | None  # None if every row counts
    # By column and model.
    usage: Mapping[tuple[str, str], Usage]
    keys: tuple[KeyLoad, ...]
    limits: tuple[LimitLoad, ...]
    tracks: tuple[Track, ...]
    stopped: str | None  # why it ended early
    notes: tuple[str, ...]
    profiles: Mapping[tuple[str, str], tuple[CallProfile, dict[str, str]]]
    scaled_from: int | None = None  # the rows that were simulated, if the figures are scaled from them


@attrs.frozen(kw_only=True)
class Spread:
    """A figure over all seeds."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(mean=sum(values) / len(values), low=min(values), high=max(values))


@attrs.frozen(kw_only=True)
class Used:
    """The usage of a model or of the whole run."""

    calls: Spread
    input_tokens: Spread
    cached_tokens: Spread
    output_tokens: Spread
    cost: Spread


@attrs.frozen(kw_only=True)
class ColumnUsed(Used):
    """The usage of one column of one model, the profile of its calls, and the origin of each field of it."""

    column: str
    model: str
    profile: CallProfile
    origins: Mapping[str, str]

    @property
    def assumed(self) -> dict[str, str]:
        """The fields that were neither given nor measured."""
        names = ("latency", "input_tokens", "output_tokens")
        return {
            name.replace("_", " "): distribution_text(getattr(self.profile, name))
            for name in names
            if self.origins.get(name) == "assumed"
        }


@attrs.frozen(kw_only=True)
class Estimate:
    """The result of one setting, over all seeds."""

    rows: int
    seeds: int
    seconds: Spread
    written: Spread
    dropped: Spread
    candidates: Spread | None  # None if every row counts
    total: Used
    columns: tuple[ColumnUsed, ...]
    models: Mapping[str, Used]
    keys: tuple[KeyLoad, ...]
    limits: tuple[LimitLoad, ...]
    bottleneck: str
    timeline: tuple[Track, ...]  # of the first seed
    stopped: str | None  # why the run would end early
    notes: tuple[str, ...]
    scaled_from: int | None = None  # the rows that were simulated, if the figures are scaled from them

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The fields that were neither given nor measured, by column and model."""
        return tuple(
            f"{each.column} ({each.model}): {', '.join(each.assumed)}" for each in self.columns if each.assumed
        )


@attrs.frozen(kw_only=True)
class Variant:
    """The estimate of the same run with other fields or options."""

    changes: Mapping[str, Any]
    estimate: Estimate


@attrs.frozen(kw_only=True)
class Probed:
    """The usage of the real rows that a probe generated."""

    rows: int
    calls: int
    tokens: int
    cost: float
    seconds: float


@attrs.frozen(kw_only=True)
class Simulation:
    """A predicted run: `base` is the recipe as it is, each of `variants` the same with changes."""

    base: Estimate
    variants: tuple[Variant, ...] = ()
    probed: Probed | None = None

    @property
    def seconds(self) -> float:
        """The predicted duration, the mean of all seeds."""
        return self.base.seconds.mean

    @property
    def cost(self) -> float:
        """The predicted cost, the mean of all seeds."""
        return self.base.total.cost.mean

    @property
    def bottleneck(self) -> str:
        """The limit that the run waits for."""
        return self.base.bottleneck

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=120, highlight=False, color_system=None)
        console.print(*render(self), sep="\n")
        return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def make_estimate(rows: int, outcomes: Sequence[Outcome]) -> Estimate:
    """Combine the outcomes of all seeds."""
    first = outcomes[0]
    pairs = list(dict.fromkeys(pair for outcome in outcomes for pair in outcome.usage))

    def used(*wanted: tuple[str, str]) -> dict[str, Spread]:
        sums = [sum((outcome.usage.get(pair, Usage()) for pair in wanted), Usage()) for outcome in outcomes]
        return {field.name: Spread.of([getattr(each, field.name) for each in sums]) for field in attrs.fields(Used)}

    columns = []
    for pair in pairs:
        # A user's function in a thread calls its models without the profile of its column.
        profile, origins = first.profiles.get(pair) or first.profiles["", pair[1]]
        columns.append(ColumnUsed(column=pair[0], model=pair[1], profile=profile, origins=origins, **used(pair)))
    keys: dict[str, list[KeyLoad]] = {}
    for load in (load for outcome in outcomes for load in outcome.keys):
        keys.setdefault(load.key, []).append(load)
    key_loads = tuple(map(_average, keys.values()))
    limits = tuple(map(_average, zip(*(outcome.limits for outcome in outcomes), strict=True)))
    return Estimate(
        rows=rows,
        seeds=len(outcomes),
        seconds=Spread.of([outcome.seconds for outcome in outcomes]),
        written=Spread.of([outcome.written for outcome in outcomes]),
        dropped=Spread.of([outcome.dropped for outcome in outcomes]),
        candidates=None if first.candidates is None else Spread.of([outcome.candidates or 0 for outcome in outcomes]),
        total=Used(**used(*pairs)),
        columns=tuple(columns),
        models={
            model: Used(**used(*(pair for pair in pairs if pair[1] == model)))
            for model in dict.fromkeys(model for _, model in pairs)
        },
        keys=key_loads,
        limits=limits,
        bottleneck=_find_bottleneck(key_loads, limits),
        timeline=first.tracks,
        stopped=next((outcome.stopped for outcome in outcomes if outcome.stopped is not None), None),
        notes=tuple(dict.fromkeys(note for outcome in outcomes for note in outcome.notes)),
        scaled_from=first.scaled_from,
    )


def _average(loads: Sequence[Any]) -> Any:
    """The same load with the mean of each number."""
    fields = [field.name for field in attrs.fields(type(loads[0])) if field.type == "float"]
    return attrs.evolve(loads[0], **{name: sum(getattr(load, name) for load in loads) / len(loads) for name in fields})


def _find_bottleneck(keys: Sequence[KeyLoad], limits: Sequence[LimitLoad]) -> str:
    """The limit that held up work for most of the time, in a sentence."""
    found: list[tuple[float, str]] = []
    for load in keys:
        if load.limit < 0.9 * load.ceiling and load.rate_limited:
            text = f"{load.name}: its server rate-limits above about {load.limit:.0f} of {load.ceiling} parallel calls"
        else:
            text = f"{load.name}: max_parallel_requests={load.ceiling} is used up"
        why = "it pauses after rate limits" if load.rate_limited else "its requests or tokens per minute are used up"
        found += [(load.held_up, text), (load.paced, f"{load.name}: {why}")]
    found += [(each.held_up, f"{each.name}: {each.option}={each.allowed} is used up") for each in limits]
    share, sentence = max(found, default=(0.0, ""))
    if share < _BOTTLENECK_SHARE:
        return "none: calls wait for each other's answers and not for a limit"
    return f"{sentence} for {share:.0%} of the time"


def simulation_data(simulation: Simulation) -> dict[str, Any]:
    """The whole result as JSON values."""

    def data(estimate: Estimate) -> dict[str, Any]:
        return {**attrs.asdict(estimate), "assumptions": list(estimate.assumptions)}

    return {
        **data(simulation.base),
        "variants": [{"changes": dict(each.changes), **data(each.estimate)} for each in simulation.variants],
        "probed": None if simulation.probed is None else attrs.asdict(simulation.probed),
    }


def page(simulation: Simulation, title: str) -> str:
    """The result as a web page, as a terminal shows it."""
    console = Console(record=True, file=io.StringIO(), width=140, highlight=False)
    console.print(Text(f"{title}: a simulated run\n", style="bold"), *render(simulation), sep="\n")
    return console.export_html()


def spread_text(spread: Spread, show: Callable[[float], str]) -> str:
    """A figure and, where seeds differ by a percent or more, by how much."""
    off = max(spread.high - spread.mean, spread.mean - spread.low) / spread.mean if spread.mean else 0.0
    return show(spread.mean) if off < 0.01 else f"{show(spread.mean)} ±{off:.0%}"


def seconds_text(seconds: float) -> str:
    """A duration; with a decimal below a minute."""
    return f"{seconds:.1f}s" if seconds < 60 else duration(seconds)


def render(simulation: Simulation, *, width: int = 100) -> Iterator[Text | Table]:
    """The result for a terminal, a string or a page; the timelines are `width` characters wide."""
    base, probed = simulation.base, simulation.probed
    if probed is not None:
        yield Text(
            f"measured with {probed.rows:,} real rows: {probed.calls:,} calls, {probed.tokens:,} tokens, "
            f"cost {probed.cost:.4f}, {probed.seconds:.1f} s"
        )
    dropped = f", {spread_text(base.dropped, '{:,.0f}'.format)} dropped" if base.dropped.high else ""
    if base.candidates is not None:
        dropped = f", {spread_text(base.candidates, '{:,.0f}'.format)} candidates{dropped}"
    seeds = f"{base.seeds} seed{'' if base.seeds == 1 else 's'}"
    time = spread_text(base.seconds, seconds_text)
    written = f"{base.written.mean:,.0f}"
    if base.scaled_from is not None:
        seeds += f"; scaled from {base.scaled_from:,} rows"
    yield Text(f"{written} of {base.rows:,} rows in {time}{dropped} (simulated, {seeds})", style="bold")
    yield Text(f"bottleneck: {base.bottleneck}", style="bold")
    if base.stopped is not None:
        yield Text(f"the run would end early: {base.stopped}", style="red")
    yield _usage_table(base)
    yield _limit_table(base)
    names = {load.key: load.name for load in base.keys}
    for track in base.timeline:
        yield Text(f"\n{names.get(track.key, track.key)}: calls in flight", style="bold")
        yield Text("\n".join(timeline_lines(track, base.seconds.mean, width=width)), no_wrap=True)
    if simulation.variants:
        yield _variant_table(simulation)
    if base.assumptions:
        yield Text("\nassumed, because neither given nor measured (latency, tokens, an earlier run or a probe):")
        for each in base.columns:
            if each.assumed:
                values = ", ".join(f"{name} {value}" for name, value in each.assumed.items())
                yield Text(f"  {each.column} ({each.model}): {values}")
    if base.notes:
        yield Text("\n".join(["\nnotes:", *(f"  {note}" for note in base.notes)]))


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(title=f"\n{title}", title_justify="left", title_style="bold", box=None, pad_edge=False)
    for head in heads:
        table.add_column(head, overflow="fold", header_style="dim")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _usage_table(estimate: Estimate) -> Table:
    """The usage of each column, of each model if there are several, and in total."""
    lines: list[tuple[str, str, Used]] = [(each.column, each.model, each) for each in estimate.columns]
    lines += [("all", model, used) for model, used in estimate.models.items()] if len(estimate.models) > 1 else []
    lines.append(("all", "all", estimate.total))
    counts = ["calls", "input_tokens", "cached_tokens", "output_tokens"]
    if not estimate.total.cached_tokens.high:
        counts.remove("cached_tokens")
    rows = [
        (
            column,
            model,
            *(spread_text(getattr(used, count), "{:,.0f}".format) for count in counts),
            spread_text(used.cost, money),
        )
        for column, model, used in lines
    ]
    return _table("usage", ("column", "model", *(count.replace("_", " ") for count in counts), "cost"), rows)


def _limit_table(estimate: Estimate) -> Table:
    rows = []
    for load in estimate.keys:
        allowed = "" if load.limit > load.ceiling - 0.5 else f", median {load.limit:.1f}"
        shares = (load.busy, load.at_limit, load.held_up + load.paced)
        rows.append(
            (load.name, f"{load.ceiling:,}{allowed}", *(f"{each:.0%}" for each in shares), f"{load.rate_limited:,.0f}")
        )
    rows += [
        (each.name, f"{each.allowed:,}", f"{each.used / each.allowed:.0%}", "", f"{each.held_up:.0%}", "–")
        for each in estimate.limits
    ]
    heads = ("limit", "allows", "busy", "at limit", "held work up", "429")
    return _table("limits, in shares of the run's time", heads, rows)


def _variant_table(simulation: Simulation) -> Table:
    base = simulation.base
    changed = [(", ".join(f"{k}={v}" for k, v in each.changes.items()), each.estimate) for each in simulation.variants]
    rows = [
        (
            what,
            spread_text(estimate.seconds, seconds_text),
            f"× {estimate.seconds.mean / (base.seconds.mean or 1.0):.2f}",
            spread_text(estimate.total.cost, money),
            estimate.bottleneck + ("" if estimate.stopped is None else "; ends early"),
        )
        for what, estimate in [("unchanged", base), *changed]
    ]
    return _table("variants", ("variant", "time", "", "cost", "bottleneck"), rows)


_BLOCKS = " ▁▂▃▄▅▆▇█"


def timeline_lines(track: Track, seconds: float, *, width: int = 72, height: int = 4) -> list[str]:
    """Calls in flight of a key over time, as high as its ceiling; a dashed line is the limit of its throttle."""
    width = min(width, len(track.in_flight))
    bounds = list(pairwise(at * len(track.in_flight) // width for at in range(width + 1)))
    means = [(sum(track.in_flight[a:b]) / (b - a), sum(track.limit[a:b]) / (b - a)) for a, b in bounds]
    margin = len(f"{track.ceiling:,}")
    lines = []
    for line in range(height, 0, -1):
        label = f"{track.ceiling:,}" if line == height else "0" if line == 1 else ""
        cells = (_cell(used, limit, track.ceiling, line, height) for used, limit in means)
        lines.append(f"{label:>{margin}} ┤{''.join(cells)}")
    lines.append(f"{'':>{margin}} └{'─' * width}")
    lines.append(f"{'':>{margin}}  0s{seconds_text(seconds):>{width - 2}}")
    return lines


def _cell(used: float, limit: float, ceiling: int, line: int, height: int) -> str:
    filled = used / ceiling * height - (line - 1)
    if filled > 1 / 16:
        return _BLOCKS[min(8, max(1, round(filled * 8)))]
    return "╌" if limit < ceiling - 0.5 and line - 1 < limit / ceiling * height <= line else " "
