"""`seedbed models`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import App

from .exit_codes import ExitCode
from .options import Machine, RecipeChanges

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..columns.base import Column
    from ..models.base import ModelSpec
    from ..recipe.recipe import Recipe

models = App(name="models", help="Check the models of a recipe, or fetch the local one.")

_DOMAINS = ("chat", "embedding", "image")


@models.command(name="check")
def check_models(
    recipe: Path,
    /,
    *,
    timeout: float = 60.0,
    changes: RecipeChanges = RecipeChanges(),
    machine: Machine = Machine(),
) -> int:
    """Make one cheap call to each model of a recipe and report whether it answers, and how fast.

    Parameters
    ----------
    recipe
        A recipe file: YAML, TOML or JSON.
    timeout
        Seconds to wait for an answer.

    """
    import trio

    from ..errors import ConfigError, DatasetGenerationError
    from . import output
    from .recipes import announce_contacts, read_recipe

    given = read_recipe(recipe, changes)
    if not given.models:
        raise ConfigError(f"{recipe} has no models")
    if problems := given.access_problems():
        raise DatasetGenerationError(problems)
    announce_contacts(given)
    specs: Any = given.models
    used = _domains(specs, _columns(given))
    results = trio.run(_call_all, specs, used, timeout)
    if machine.json:
        output.print_json({"models": results})
    else:
        heads = ("alias", "model", "for", "answer", "seconds", "")
        rows = [
            (each["alias"], each["model"], each["domain"], each["answer"], each["seconds"], each["error"] or "")
            for each in results
        ]
        output.print_table(heads, rows)
    failed = any(each["error"] for each in results)
    return ExitCode.MODEL if failed else ExitCode.OK


def _columns(recipe: Recipe) -> list[Column]:
    """The columns that are valid, whatever the problems of the others or of the models."""
    from contextlib import suppress

    from ..columns.spec import make_column
    from ..engine.source import allows_code
    from ..errors import ConfigError, DatasetGenerationError

    environment = recipe.environment(allow_code=allows_code(recipe))
    columns: list[Column] = []
    for spec in recipe.columns:
        with suppress(ConfigError, DatasetGenerationError):
            columns.append(make_column(spec, environment))
    return columns


def _domains(specs: Mapping[str, ModelSpec], columns: Iterable[Column]) -> dict[str, list[str]]:
    """The domains that columns use each alias for; chat if there are none."""
    keys = {column.key for column in columns}
    found = {alias: [each for each in _DOMAINS if spec.key(each) in keys] for alias, spec in specs.items()}
    return {alias: domains or ["chat"] for alias, domains in found.items()}


async def _call_all(
    specs: Mapping[str, ModelSpec],
    used: Mapping[str, list[str]],
    timeout: float,  # noqa: ASYNC109  for each call
) -> list[dict[str, Any]]:
    import trio

    calls = [(alias, domain) for alias in specs for domain in used[alias]]
    results: list[dict[str, Any]] = [{} for _ in calls]

    async def call(at: int, alias: str, domain: str) -> None:
        results[at] = await _call(alias, specs[alias], domain, timeout)

    async with trio.open_nursery() as nursery:
        for at, (alias, domain) in enumerate(calls):
            nursery.start_soon(call, at, alias, domain)
    return results


async def _call(alias: str, spec: ModelSpec, domain: str, timeout: float) -> dict[str, Any]:  # noqa: ASYNC109
    """Open a model and call it once."""
    import trio

    from ..errors import SeedbedError

    result: dict[str, Any] = {
        "alias": alias,
        "model": spec.model,
        "domain": domain,
        "answer": None,
        "seconds": None,
        "error": "; ".join(spec.problems()) or None,
    }
    if result["error"]:
        return result
    if domain == "image":
        result["answer"] = "not called: an image is not cheap"
        return result
    with trio.move_on_after(timeout) as scope:
        try:
            async with spec.open() as client:
                began = trio.current_time()
                result["answer"] = await _ask(client, domain)
                result["seconds"] = trio.current_time() - began
        except (SeedbedError, OSError) as error:
            result["error"] = str(error)
    if scope.cancelled_caught:
        result["error"] = f"no answer within {timeout:g} s"
    return result


async def _ask(client: Any, domain: str) -> str:
    from ..models.base import EmbeddingAnswer, send_small_call

    answer = await send_small_call(client, domain)
    if isinstance(answer, EmbeddingAnswer):
        return f"a vector of {len(answer.vectors[0])} numbers"
    text = " ".join(answer.text.split())
    return text if len(text) <= 60 else text[:60] + "…"


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
