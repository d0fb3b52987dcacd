"""A simulation in words and in blocks: a summary, and the timeline of each key."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from ..observe.show import duration, money

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .result import Estimate, Simulation, Spread, Variant
    from .watch import Track

_BLOCKS = " ▁▂▃▄▅▆▇█"
_LIMIT = "╌"
USE_HEADS = ("column", "model", "calls", "input tokens", "output tokens", "cost")
VARIANT_HEADS = ("variant", "time", "", "cost", "bottleneck")


def spread_text(spread: Spread, show: Callable[[float], str]) -> str:
    """A figure and, where seeds differ, from where to where it goes."""
    mean, low, high = show(spread.mean), show(spread.low), show(spread.high)
    return mean if low == high else f"{mean} ({low} to {high})"


def brief_text(spread: Spread, show: Callable[[float], str]) -> str:
    """A figure for a table, and by how much seeds differ from it, if that is a percent or more."""
    off = max(spread.high - spread.mean, spread.mean - spread.low) / spread.mean if spread.mean else 0.0
    return show(spread.mean) if off < 0.01 else f"{show(spread.mean)} ±{off:.0%}"


def seconds_text(seconds: float) -> str:
    """A time for people; short ones with a decimal."""
    return f"{seconds:.1f}s" if seconds < 60 else duration(seconds)


def count_text(count: float) -> str:
    """A number of things."""
    return f"{count:,.0f}"


def summary_lines(simulation: Simulation) -> Iterator[str]:
    """The whole result in a few lines."""
    base = simulation.base
    yield headline(base)
    used = base.total
    yield (
        f"{brief_text(used.calls, count_text)} calls, {brief_text(used.input_tokens, count_text)} + "
        f"{brief_text(used.output_tokens, count_text)} tokens, cost {brief_text(used.cost, money)}"
    )
    yield f"bottleneck: {base.bottleneck}"
    if base.stopped is not None:
        yield f"it would end early: {base.stopped}"
    for variant in simulation.variants:
        estimate = variant.estimate
        time, cost = spread_text(estimate.seconds, seconds_text), brief_text(estimate.total.cost, money)
        yield f"{changes_text(variant)}: {time}, cost {cost}; bottleneck: {estimate.bottleneck}"
    for assumption in base.assumptions:
        yield f"assumed: {assumption}"


def changes_text(variant: Variant) -> str:
    """What is changed, as it was asked for."""
    return ", ".join(f"{path}={value}" for path, value in variant.changes.items())


def headline(estimate: Estimate) -> str:
    """How many rows in how long."""
    seeds = f"{estimate.seeds} seed{'' if estimate.seeds == 1 else 's'}"
    dropped = f", {spread_text(estimate.dropped, count_text)} dropped" if estimate.dropped.high else ""
    time = spread_text(estimate.seconds, seconds_text)
    return f"{count_text(estimate.written.mean)} of {estimate.rows:,} rows in {time}{dropped} (simulated, {seeds})"


def use_rows(estimate: Estimate) -> list[tuple[str, ...]]:
    """What each column uses of each model, each model where there are several, and all of them."""
    lines = [(each.column, each.model, each.used) for each in estimate.calls]
    lines += [("all", model, used) for model, used in estimate.models.items()] if len(estimate.models) > 1 else []
    lines.append(("all", "all", estimate.total))
    return [
        (
            column,
            model,
            brief_text(used.calls, count_text),
            brief_text(used.input_tokens, count_text),
            brief_text(used.output_tokens, count_text),
            brief_text(used.cost, money),
        )
        for column, model, used in lines
    ]


def variant_rows(simulation: Simulation) -> list[tuple[str, ...]]:
    """The time, cost and bottleneck of the recipe as it is and of each variant."""
    base = simulation.base
    rows = [("as it is", base), *((changes_text(each), each.estimate) for each in simulation.variants)]
    return [
        (
            what,
            spread_text(estimate.seconds, seconds_text),
            f"× {estimate.seconds.mean / (base.seconds.mean or 1.0):.2f}",
            brief_text(estimate.total.cost, money),
            estimate.bottleneck + ("" if estimate.stopped is None else "; ends early"),
        )
        for what, estimate in rows
    ]


def timeline_lines(track: Track, seconds: float, *, width: int = 72, height: int = 4) -> list[str]:
    """Calls in flight of a key over time, as high as its ceiling; a dashed line is what its throttle allowed."""
    in_flight, limits = _squeezed(track.in_flight, width), _squeezed(track.limit, width)
    margin = len(f"{track.ceiling:,}")
    lines = []
    for line in range(height, 0, -1):
        label = f"{track.ceiling:,}" if line == height else "0" if line == 1 else ""
        cells = (_cell(used, limit, track.ceiling, line, height) for used, limit in zip(in_flight, limits, strict=True))
        lines.append(f"{label:>{margin}} ┤{''.join(cells)}")
    end = seconds_text(seconds)
    lines.append(f"{'':>{margin}} └{'─' * len(in_flight)}")
    lines.append(f"{'':>{margin}}  0s{end:>{len(in_flight) - 2}}")
    return lines


def _cell(used: float, limit: float, ceiling: int, line: int, height: int) -> str:
    filled = used / ceiling * height - (line - 1)
    if filled >= 1 - 1 / 16:
        return _BLOCKS[-1]
    if filled > 1 / 16:
        return _BLOCKS[max(1, round(filled * 8))]
    allowed = limit / ceiling * height
    return _LIMIT if limit < ceiling - 0.5 and line - 1 < allowed <= line else " "


def _squeezed(values: Sequence[float], width: int) -> list[float]:
    """The values in so many parts; fewer where there are fewer."""
    width = min(width, len(values))
    bounds = [at * len(values) // width for at in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(bounds)]
