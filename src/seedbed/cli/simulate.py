"""`seedbed simulate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import attrs
from cyclopts import Group, Parameter

from .options import Machine, RecipeChanges, RecipeFile, Rows, RunOptions, Several, named_values, row_counts

if TYPE_CHECKING:
    from ..simulation.profiles import CallProfile


@Parameter(name="*", group=Group("Profiles of calls; NAME is the alias of a model or a column", sort_key=2))
@attrs.frozen(kw_only=True)
class Calls:
    """Profiles of calls; values that are not given are measured or assumed."""

    latency: Several = ()
    """NAME=SECONDS, or NAME=lognormal(0.8,0.5) and other distributions. Like the others, it may be repeated."""
    tokens: Several = ()
    """NAME=INPUT/OUTPUT, such as writer=300/120, or NAME=OUTPUT: tokens of one call, numbers or distributions."""
    rate_limited: Several = ()
    """NAME=SHARE of calls that are rate-limited (429)."""
    failed: Several = ()
    """NAME=SHARE of calls that fail with a retryable error (5xx)."""
    capacity: Several = ()
    """NAME=CALLS that the server processes concurrently; further ones are rate-limited."""
    skipped: Several = ()
    """COLUMN=SHARE of cells that skip_when skips."""
    profile: Path | None = None
    """A YAML file with these and more: NAME: {latency: …, input_tokens: …, calls: …}."""
    measured_from: Annotated[Path | None, Parameter(name="--from")] = None
    """Measure the rest in an earlier run: a dataset built with --profile or --trace, or the file of --trace."""
    probe: int = 0
    """Measure the rest in this number of real rows, which are generated and paid for."""


def simulate(
    recipe: RecipeFile,
    /,
    *,
    rows: Rows = None,
    items: Several = (),
    accepted: float | None = None,
    vary: Several = (),
    seeds: int | None = None,
    run_code: Several = (),
    html: Path | None = None,
    calls: Calls = Calls(),
    changes: RecipeChanges = RecipeChanges(),
    options: RunOptions = RunOptions(),
    machine: Machine = Machine(),
) -> int:
    """Predict the duration, calls, tokens, cost and bottleneck of a run; no model is called.

    Parameters
    ----------
    rows
        The number of rows of the run, such as 1000, 1e6 or 100k, unless the recipe has it; of a recipe with several
        stages that have a number of rows STAGE=N. May be repeated.
    items
        STAGE=N: how many items the lists have that the rows of a stage come from, 3 by default. May be repeated.
    accepted
        The share of candidates that become rows, with accept, unique or near_duplicates in the recipe, such as 0.3;
        measured with --from and --probe.
    vary
        PATH=VALUE,VALUE: also simulate with these, such as models.writer.max_parallel_requests=32,64,
        run.buffer_size=200,1000 or columns.answer.model=small,large. If repeated, every combination is simulated.
    seeds
        The number of random seeds; 3 by default, 2 for a large simulation.
    run_code
        A column whose user-defined function is run, because it is fast and calls only its models. May be repeated.
    html
        Also write the result to this file, as a web page.

    """
    from ..simulation import result, run, stage
    from . import output
    from .recipes import announce_contacts, make_config, read_recipe

    given = read_recipe(recipe, changes)
    profiles, varied = _profiles(calls), dict[str, list[Any]]()
    for each in vary:
        path, values = stage.parse_vary(each)
        varied.setdefault(path, []).extend(values)
    if calls.probe:
        announce_contacts(given)
    with output.console(error=True).status("simulating …"):  # may take a minute; not shown in a pipe
        found = run.simulate(
            given,
            rows=row_counts(rows),
            items=_items(items),
            accepted=accepted,
            calls=profiles,
            measured_from=calls.measured_from,
            probe=calls.probe,
            vary=varied,
            seeds=seeds,
            config=make_config(given, options),
            run_code=run_code,
        )
    if html is not None:
        html.write_text(result.page(found, given.name or recipe.stem), encoding="utf-8")
    if machine.json:
        output.print_json(result.simulation_data(found))
    else:
        out = output.console()
        out.print(*result.render(found, width=max(20, min(100, out.width - 10))), sep="\n")
    return 0


def _items(given: tuple[str, ...]) -> dict[str, int]:
    from ..checks import row_count

    return {name: row_count(value, where=f"--items {name} takes") for name, value in named_values("--items", given)}


def _profiles(calls: Calls) -> dict[str, CallProfile]:
    """The profiles of the options, over those of the file."""
    from ..simulation.profiles import as_profile, load_profiles

    fields: dict[str, dict[str, Any]] = {}
    for field in ("latency", "tokens", "rate_limited", "failed", "capacity", "skipped"):
        for name, value in named_values(f"--{field.replace('_', '-')}", getattr(calls, field)):
            fields.setdefault(name, {})[field] = value
    found = {} if calls.profile is None else load_profiles(calls.profile)
    for name, given in fields.items():
        profile = as_profile(name, given)
        found[name] = profile.over(found[name]) if name in found else profile
    return found
