"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  cyclopts reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, Literal

import attrs
from cyclopts import Group, Parameter

if TYPE_CHECKING:
    from ..recipe.access import Grants


@Parameter(name="*", group=Group("For machines and for debugging", sort_key=4))
@attrs.frozen(kw_only=True)
class Machine:
    """How a command speaks."""

    json: Annotated[bool, Parameter(negative="", show_default=False)] = False
    """Write one JSON value to standard output, for machines."""
    debug: Annotated[bool, Parameter(negative="", show_default=False)] = False
    """Show the traceback of an error."""


_ALLOWED = Group("What the recipe may do", sort_key=2)


@Parameter(name="*", group=_ALLOWED)
@attrs.frozen(kw_only=True)
class Permissions:
    """What a recipe file may do beyond reading below its own folder; docs/explanation/security.md has the whole."""

    allow_code: Annotated[bool, Parameter(negative="", show_default=False, group=_ALLOWED)] = False
    """Let the recipe import the code that it names as module:name."""
    allow_path: Annotated[
        tuple[Path, ...], Parameter(negative="", show_default=False, consume_multiple=False, group=_ALLOWED)
    ] = ()
    """Let the recipe read files below this folder too. May be given several times."""
    allow_env: Annotated[
        tuple[str, ...], Parameter(negative="", show_default=False, consume_multiple=False, group=_ALLOWED)
    ] = ()
    """Let headers of the recipe's models send this environment variable. May be given several times."""

    def grants(self) -> Grants:
        """The same as the library has it."""
        from ..recipe.access import Grants

        return Grants(code=self.allow_code, paths=self.allow_path, env=self.allow_env)


@Parameter(name="*", group=Group("Changes to the recipe", sort_key=1))
@attrs.frozen(kw_only=True)
class RecipeChanges(Permissions):
    """What of a recipe is changed for this command."""

    model_override: Annotated[tuple[str, ...], Parameter(negative="", show_default=False, consume_multiple=False)] = ()
    """ALIAS=MODEL, or MODEL for all: `scripted` or `local` instead of the recipe's own. May be given several times."""
    seed: int | None = None
    """The seed of everything that is drawn, instead of the recipe's."""


@Parameter(name="*", group=Group("Knobs of the run", sort_key=3))
@attrs.frozen(kw_only=True)
class Knobs:
    """Knobs of the run, instead of the recipe's; docs/reference/run-config.md says what each does."""

    buffer_size: int | None = None
    """Rows in a row group, the unit of checkpoints."""
    max_concurrent_row_groups: int | None = None
    """Row groups worked on at once."""
    max_parallel_requests: int | None = None
    """Calls in flight for an endpoint that has no limit of its own."""
    max_cost: float | None = None
    """Stop before the call that would pass this cost."""
    max_tokens: int | None = None
    """Stop before the call that would pass so many tokens."""
    deadline: float | None = None
    """Stop after so many seconds."""
    cell_timeout: float | None = None
    """Seconds that one cell may take."""
    salvage_max_rounds: int | None = None
    """How often a cell that failed in a way that may pass is tried again."""
    shutdown_error_rate: float | None = None
    """Stop when more than this share of the last attempts failed."""
    throttle_patience: float | None = None
    """Seconds for which an endpoint may refuse everything."""
    engine: Literal["concurrent", "sequential"] | None = None
    """How cells are run."""
    knob: Annotated[tuple[str, ...], Parameter(negative="", show_default=False, consume_multiple=False)] = ()
    """NAME=VALUE, any other knob. May be given several times."""

    def given(self) -> dict[str, Any]:
        """The knobs that were given, by name; values of `knob` are read as YAML."""
        import yaml

        from ..errors import ConfigError

        found = {
            field.name: value
            for field in attrs.fields(Knobs)
            if field.name != "knob" and (value := getattr(self, field.name)) is not None
        }
        for each in self.knob:
            name, equals, value = each.partition("=")
            if not equals:
                raise ConfigError(f"--knob takes NAME=VALUE, not {each!r}")
            found[name.strip().replace("-", "_")] = yaml.safe_load(value)
        return found


@Parameter(name="*", group=Group("Watching the run", sort_key=2))
@attrs.frozen(kw_only=True)
class Watching:
    """What is shown and kept of a run."""

    progress: Literal["auto", "panel", "lines", "none"] = "auto"
    """A live panel, a line every 10 seconds, or neither; auto: the panel if standard error is a terminal."""
    trace: Path | None = None
    """Write a timeline of all tasks to this file, for Perfetto or chrome://tracing."""
    profile: Annotated[bool, Parameter(negative="", show_default=False)] = False
    """Keep what `inspect --profile` needs; --trace does so too."""
    head: int = 5
    """How many of the first rows to print at the end."""
    verbose: Annotated[bool, Parameter(name=["--verbose", "-v"], negative="", show_default=False)] = False
    """Also log salvage rounds and checkpoints."""
