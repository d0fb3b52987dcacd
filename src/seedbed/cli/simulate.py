"""`seedbed simulate`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  cyclopts reads the annotations
from typing import TYPE_CHECKING, Annotated, Any

import attrs
from cyclopts import Group, Parameter

from .options import Knobs, Machine, RecipeChanges

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..simulation.profiles import CallProfile
    from ..simulation.result import Estimate, Simulation

_Several = Annotated[tuple[str, ...], Parameter(negative="", show_default=False, consume_multiple=False)]


@Parameter(name="*", group=Group("How calls go; NAME is a model's alias or a column", sort_key=2))
@attrs.frozen(kw_only=True)
class Calls:
    """What is said of calls; what is not is measured or assumed."""

    latency: _Several = ()
    """NAME=SECONDS, or NAME=lognormal(0.8,0.5) and other distributions. May be given several times, as all of these."""
    tokens: _Several = ()
    """NAME=INPUT/OUTPUT, such as writer=300/120, or NAME=OUTPUT: tokens of one call, numbers or distributions."""
    refused: _Several = ()
    """NAME=SHARE of calls that are refused for now (429)."""
    failed: _Several = ()
    """NAME=SHARE of calls that fail in a way that may pass (5xx)."""
    capacity: _Several = ()
    """NAME=CALLS that the server works on at once; those above are refused."""
    skipped: _Several = ()
    """COLUMN=SHARE of cells that skip_when skips."""
    profile: Path | None = None
    """A YAML file that says all this and more: NAME: {latency: …, input_tokens: …, calls: …}."""
    measured_from: Annotated[Path | None, Parameter(name="--from")] = None
    """Take what is not said from an earlier run: a dataset made with --profile or --trace, or the file of --trace."""
    probe: int = 0
    """Measure what is not said with so many real rows, which are made and paid for."""


def simulate(
    recipe: Path,
    /,
    *,
    rows: Annotated[int, Parameter(name=["--rows", "-n"])],
    vary: _Several = (),
    seeds: int | None = None,
    run_code: _Several = (),
    html: Path | None = None,
    calls: Calls | None = None,
    changes: RecipeChanges | None = None,
    knobs: Knobs | None = None,
    machine: Machine | None = None,
) -> int:
    """Say what a run will take before anything is spent: time, calls, tokens, money, and the limit that it waits for.

    Parameters
    ----------
    recipe
        A recipe file: YAML, TOML or JSON.
    rows
        How many rows the run will have.
    vary
        PATH=VALUE,VALUE: also simulate with these, such as models.writer.max_parallel_requests=32,64,
        run.buffer_size=200,1000 or columns.answer.model=small,large. Several make every combination.
    seeds
        How often everything is drawn anew; 3, or 2 of a large simulation.
    run_code
        A column whose own function is run, because it is quick and calls nobody. May be given several times.
    html
        Write the result to this file too, as a page.

    """
    from ..simulation import api
    from . import output
    from .recipes import announce_contacts, make_config, read_recipe

    changes = changes or RecipeChanges()
    given, calls = read_recipe(recipe, changes), calls or Calls()
    profiles, varied = _profiles(calls), _varied(vary)
    if calls.probe:
        announce_contacts(given)
    # It may take a minute; a pipe is told nothing of it.
    with output.console(error=True).status(f"simulating {rows:,} rows …"):
        found = api.simulate(
            given,
            rows=rows,
            calls=profiles,
            measured_from=calls.measured_from,
            probe=calls.probe,
            vary=varied,
            seeds=seeds,
            config=make_config(given, knobs or Knobs()),
            run_code=run_code,
            allow_code=changes.allow_code,
        )
    if html is not None:
        from ..simulation.page import page

        html.write_text(page(found, given.name or recipe.stem), encoding="utf-8")
    if machine is not None and machine.json:
        from ..simulation.data import simulation_data

        output.print_json(output.finite(simulation_data(found)))
    else:
        _tell(found)
    return 0


def _profiles(calls: Calls) -> dict[str, CallProfile]:
    """What the options say, before what the file says."""
    from ..simulation.profiles import as_profile, load_profiles

    fields: dict[str, dict[str, Any]] = {}
    for option, field in (
        ("latency", "latency"),
        ("tokens", "tokens"),
        ("refused", "refused"),
        ("failed", "failed"),
        ("capacity", "capacity"),
        ("skipped", "skipped"),
    ):
        for name, value in _pairs(f"--{option}", getattr(calls, option)):
            fields.setdefault(name, {})[field] = value if option in ("latency", "tokens") else _number(option, value)
    found = {} if calls.profile is None else load_profiles(calls.profile)
    for name, said in fields.items():
        profile = as_profile(name, said)
        found[name] = profile.over(found[name]) if name in found else profile
    return found


def _pairs(option: str, given: Iterable[str]) -> list[tuple[str, str]]:
    from ..errors import ConfigError

    pairs = []
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise ConfigError(f"{option} takes NAME=VALUE, not {each!r}")
        pairs.append((name.strip(), value.strip()))
    return pairs


def _number(option: str, value: str) -> float | int:
    from ..errors import ConfigError

    try:
        return int(value) if option == "capacity" else float(value)
    except ValueError:
        raise ConfigError(f"--{option}: {value!r} is no number") from None


def _varied(vary: Iterable[str]) -> dict[str, list[Any]]:
    from ..simulation.vary import parse_vary

    varied: dict[str, list[Any]] = {}
    for each in vary:
        path, values = parse_vary(each)
        varied.setdefault(path, []).extend(values)
    return varied


def _tell(found: Simulation) -> None:
    from ..simulation.text import headline
    from . import output

    print = output.console().print  # noqa: A001
    base, probed = found.base, found.probed
    if probed is not None:
        print(
            f"measured with {probed.rows:,} real rows: {probed.calls:,} calls, {probed.tokens:,} tokens, "
            f"cost {probed.cost:.4f}, {probed.seconds:.1f} s",
            markup=False,
        )
    print(headline(base), markup=False, style="bold")
    print(f"bottleneck: {base.bottleneck}", markup=False, style="bold")
    if base.stopped is not None:
        print(f"it would end early: {base.stopped}", markup=False, style="red")
    print()
    _tell_use(base)
    print()
    _tell_limits(base)
    _tell_timeline(base)
    if found.variants:
        print()
        _tell_variants(found)
    _tell_doubts(base)


def _tell_use(base: Estimate) -> None:
    from ..simulation.text import USE_HEADS, use_rows
    from . import output

    output.print_table(USE_HEADS, use_rows(base), title="use")


def _tell_limits(base: Estimate) -> None:
    from . import output

    rows: list[tuple[object, ...]] = []
    for use in base.keys:
        load = use.load
        limit = f"{load.ceiling} at once" + ("" if load.limit > load.ceiling - 0.5 else f", allowed {load.limit:.1f}")
        held = load.held_up + load.paced
        rows.append((use.name, limit, f"{load.busy:.0%}", f"{load.at_limit:.0%}", f"{held:.0%}", round(use.refused)))
    for each in base.limits:
        share = f"{each.used / each.allowed:.0%}"
        rows.append((each.name, f"{each.allowed:,}", share, "", f"{each.held_up:.0%}", None))
    heads = ("limit", "allows", "busy", "at limit", "held work up", "refusals")
    output.print_table(heads, rows, title="limits, in shares of the run's time")


def _tell_timeline(base: Estimate) -> None:
    from ..simulation.text import timeline_lines
    from . import output

    out = output.console()
    names = {use.load.key: use.name for use in base.keys}
    width = max(20, min(100, out.width - 10))
    for track in base.timeline:
        out.print()
        out.print(f"{names.get(track.key, track.key)}: calls in flight", markup=False, style="bold")
        for line in timeline_lines(track, base.seconds.mean, width=width):
            out.print(line, markup=False, no_wrap=True, crop=False)


def _tell_variants(found: Simulation) -> None:
    from ..simulation.text import VARIANT_HEADS, variant_rows
    from . import output

    output.print_table(VARIANT_HEADS, variant_rows(found), title="variants")


def _tell_doubts(base: Estimate) -> None:
    from . import output

    out = output.console()
    if base.assumptions:
        out.print()
        out.print("assumed, for nobody said it and it was not measured (--latency, --tokens, --from, --probe):")
        for each in base.calls:
            if each.profile.assumed:
                parts = {name: each.profile.profile.said()[name] for name in each.profile.assumed}
                out.print(f"  {each.column} ({each.model}): {_parts(parts)}", markup=False)
    if base.notes:
        out.print()
        out.print("note:")
        for note in base.notes:
            out.print(f"  {note}", markup=False)


def _parts(parts: dict[str, Any]) -> str:
    from ..models.distributions import distribution_text

    return ", ".join(f"{name.replace('_', ' ')} {distribution_text(value)}" for name, value in parts.items())
