"""Simulations of runs that are too large to be simulated whole: two smaller ones, and what grows with the rows scaled.

The first row groups of a run, in which its limits are found, and the last ones, in which columns run out of work, count
only once: what a row adds is the difference between a run and one of twice its rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ..observe.progress import duration
from ..observe.report import Usage
from ..recipe.recipe import Recipe

if TYPE_CHECKING:
    from .result import KeyLoad, Outcome
    from .stage import Setting

# A run of more cells than this is scaled: this many take about a minute for each seed.
MOST_CELLS = 1_000_000
# The cells of the larger of the two runs, and how often each call in flight is replaced in it at least.
_CELLS = 20_000
_TURNS = 40


def scaled_settings(setting: Setting) -> tuple[Setting, Setting] | None:
    """The two smaller runs, of as many row groups as are open at once and of twice as many; None for a smaller run."""
    columns = len(setting.specs)
    if not isinstance(setting.rows, int) or setting.root_rows * columns <= MOST_CELLS:
        return None
    if isinstance(setting.recipe, Recipe) and setting.recipe.stages:
        return None  # what a row adds depends on its children
    config = setting.config
    models = setting.recipe.models.values() if isinstance(setting.recipe, Recipe) else ()
    parallel = sum(model.max_parallel_requests for model in models) or config.max_parallel_requests
    groups = config.max_concurrent_row_groups
    rows = max(_CELLS, _TURNS * parallel) // columns
    size = min(config.buffer_size, max(1, rows // (2 * groups)))
    if 2 * groups * size >= setting.root_rows:
        return None
    # What ends the whole run early is found in its scaled figures.
    small = attrs.evolve(config, buffer_size=size, max_cost=None, max_tokens=None, deadline=None)
    return (
        attrs.evolve(setting, rows=groups * size, config=small),
        attrs.evolve(setting, rows=2 * groups * size, config=small),
    )


def scale(setting: Setting, small: tuple[int, Outcome], large: tuple[int, Outcome]) -> Outcome:
    """The outcome of the whole run, from those of two smaller ones with their numbers of rows."""
    if large[1].stopped is not None:
        return attrs.evolve(large[1], scaled_from=large[0])
    whole = _at(setting.root_rows, small, large)
    config = setting.config
    used = sum(whole.usage.values(), Usage())
    limits = (
        (config.max_cost, used.cost, f"max_cost={config.max_cost} is used up"),
        (config.max_tokens, used.tokens, f"max_tokens={config.max_tokens} is used up"),
        (config.deadline, whole.seconds, f"the deadline of {duration(config.deadline)} is reached"),
    )
    shares = [(limit / value, why) for limit, value, why in limits if limit is not None and value > limit]
    if not shares:
        return whole
    share, why = min(shares)
    rows = int(setting.root_rows * share)
    return attrs.evolve(_at(rows, small, large), stopped=f"{why} after about {rows:,} rows")


def _at(rows: int, small: tuple[int, Outcome], large: tuple[int, Outcome]) -> Outcome:
    (few, less), (many, more) = small, large
    factor = (rows - many) / (many - few)

    def grown(before: float, after: float) -> float:
        return max(0.0, after + (after - before) * factor)

    def usage(before: Usage, after: Usage) -> Usage:
        return Usage(
            calls=round(grown(before.calls, after.calls)),
            input_tokens=round(grown(before.input_tokens, after.input_tokens)),
            output_tokens=round(grown(before.output_tokens, after.output_tokens)),
            cached_tokens=round(grown(before.cached_tokens, after.cached_tokens)),
            cache_write_tokens=round(grown(before.cache_write_tokens, after.cache_write_tokens)),
            cost=grown(before.cost, after.cost),
        )

    refused = {load.key: load.rate_limited for load in less.keys}

    def key(load: KeyLoad) -> KeyLoad:
        return attrs.evolve(load, rate_limited=round(grown(refused.get(load.key, 0), load.rate_limited)))

    return attrs.evolve(
        more,
        seconds=grown(less.seconds, more.seconds),
        written=round(grown(less.written, more.written)),
        dropped=round(grown(less.dropped, more.dropped)),
        candidates=None if more.candidates is None else round(grown(less.candidates or 0, more.candidates)),
        usage={pair: usage(less.usage.get(pair, Usage()), used) for pair, used in more.usage.items()},
        keys=tuple(map(key, more.keys)),
        scaled_from=many,
    )
