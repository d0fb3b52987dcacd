"""`seedbed models`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from .exit_codes import ExitCode
from .options import Machine, RecipeChanges, RecipeFile

if TYPE_CHECKING:
    from ..columns.base import Column
    from ..models.base import ModelSpec
    from ..recipe.recipe import Recipe

models = App(name="models", help="Check the models of a recipe, or fetch the local one.")


@models.command(name="check")
def check_models(
    recipe: RecipeFile,
    /,
    *,
    timeout: Annotated[float, Parameter(help="Seconds to wait for an answer.")] = 60.0,
    changes: RecipeChanges = RecipeChanges(),
    machine: Machine = Machine(),
) -> int:
    """Make one cheap call to each model of a recipe and report whether it answers, and how fast."""
    import trio

    from ..engine.source import DOMAINS
    from ..errors import ConfigError, DatasetGenerationError
    from . import output
    from .recipes import announce_contacts, read_recipe

    given = read_recipe(recipe, changes)
    if not given.models:
        raise ConfigError(f"{recipe} has no models")
    if problems := given.access_problems():
        raise DatasetGenerationError(problems)
    announce_contacts(given)
    keys = {column.key for column in _columns(given)}
    specs: Any = given.models
    results: list[dict[str, Any]] = []

    async def call_all() -> None:
        async with trio.open_nursery() as nursery:
            for alias, spec in specs.items():
                for domain in [each for each in DOMAINS if spec.key(each) in keys] or ["chat"]:
                    results.append({"alias": alias, "model": spec.model, "domain": domain})
                    nursery.start_soon(_call, spec, timeout, results[-1])

    trio.run(call_all)
    if machine.json:
        output.print_json({"models": results})
    else:
        output.print_table(
            ("alias", "model", "for", "answer", "seconds", "tokens/s", ""),
            [(*list(each.values())[:-1], each["error"] or "") for each in results],
        )
    return ExitCode.MODEL if any(each["error"] for each in results) else ExitCode.OK


def _columns(recipe: Recipe) -> list[Column]:
    """The columns that are valid, whatever the problems of the others or of the models."""
    from contextlib import suppress

    from ..columns.spec import make_column
    from ..errors import ConfigError, DatasetGenerationError

    environment = recipe.environment()
    columns: list[Column] = []
    for spec in recipe.all_columns:
        with suppress(ConfigError, DatasetGenerationError):
            columns.append(make_column(spec, environment))
    return columns


async def _call(spec: ModelSpec, timeout: float, result: dict[str, Any]) -> None:  # noqa: ASYNC109  from the user
    """Open a model, call it once, and add its answer, time or error to the result."""
    import trio

    from ..errors import SeedbedError

    problems = "; ".join(spec.problems()) or None
    result |= {"answer": None, "seconds": None, "tokens_per_second": None, "error": problems}
    if result["error"]:
        return
    if result["domain"] == "image":
        result["answer"] = "not called: an image is not cheap"
        return
    with trio.move_on_after(timeout) as scope:
        try:
            async with spec.open() as client:
                began = trio.current_time()
                result["answer"], tokens = await _ask(client, result["domain"])
                result["seconds"] = seconds = trio.current_time() - began
                if tokens and seconds > 0:
                    result["tokens_per_second"] = round(tokens / seconds, 1)
        except (SeedbedError, OSError) as error:
            result["error"] = str(error)
    if scope.cancelled_caught:
        result["error"] = f"no answer within {timeout:g} s"


async def _ask(client: Any, domain: str) -> tuple[str, int]:
    """The answer of one small call, and how many tokens were generated for it."""
    from ..models.base import ChatAnswer, EmbeddingAnswer, send_small_call

    answer = await send_small_call(client, domain)
    if isinstance(answer, EmbeddingAnswer):
        return f"a vector of {len(answer.vectors[0])} numbers", 0
    assert isinstance(answer, ChatAnswer)  # images are not asked for
    text = " ".join(answer.text.split())
    return text if len(text) <= 60 else text[:60] + "…", answer.tokens.output


@models.command(name="fetch-local")
def fetch_local(*, machine: Machine = Machine()) -> int:
    """Fetch the weights of the local model (98 MB, once); they stay on this machine."""
    import importlib.util

    from ..models.local import fetch_weights, find_weights
    from . import output

    out = output.console(error=True)
    before = find_weights()
    if before is None:
        out.print("fetching 98 MB …")
    path = fetch_weights()
    has_server = importlib.util.find_spec("xllamacpp") is not None
    if machine.json:
        output.print_json({"weights": str(path), "fetched": before is None, "server_installed": has_server})
        return ExitCode.OK
    output.print_line(f"weights: {path}")
    if not has_server:
        out.print("the model also needs its server: pip install 'seedbed[local]'", markup=False)
    return ExitCode.OK
