"""`seedbed models`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  cyclopts reads the annotations
from typing import TYPE_CHECKING, Any

from cyclopts import App

from .exit_codes import ExitCode
from .options import Machine, RecipeChanges

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..generators import Column
    from ..models.base import ModelSpec

models = App(name="models", help="Look after the models of a recipe.")

_DOMAINS = ("chat", "embedding", "image")


@models.command(name="check")
def check_models(
    recipe: Path,
    /,
    *,
    timeout: float = 60.0,
    changes: RecipeChanges | None = None,
    machine: Machine | None = None,
) -> int:
    """Make one cheap call to each model of a recipe, to see that it is there and how long it takes.

    Parameters
    ----------
    recipe
        A recipe file: YAML, TOML or JSON.
    timeout
        Seconds after which a model counts as not there.

    """
    import trio

    from ..errors import ConfigError, DatasetGenerationError
    from . import output
    from .recipes import announce_contacts, planned_columns, read_recipe

    changes = changes or RecipeChanges()
    given = read_recipe(recipe, changes)
    if not given.models:
        raise ConfigError(f"{recipe} has no models")
    if problems := given.access_problems():
        raise DatasetGenerationError(problems)
    announce_contacts(given)
    specs: Any = given.models
    used = _domains(specs, planned_columns(given, allow_code=changes.allow_code))
    results = trio.run(_call_all, specs, used, timeout)
    if machine is not None and machine.json:
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


def _domains(specs: Mapping[str, ModelSpec], columns: Iterable[Column]) -> dict[str, list[str]]:
    """What each alias is used for; chat where no column says."""
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
        result["answer"] = "not asked: a picture is not cheap"
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
    from ..models.base import ChatRequest, Message

    if domain == "embedding":
        answer = await client.embed(["hello"], {})
        return f"a vector of {len(answer.vectors[0])} numbers"
    # Long enough for a model that thinks first, short enough to cost nothing.
    request = ChatRequest(messages=(Message(role="user", text="Say OK."),), parameters={"max_tokens": 16})
    text = " ".join((await client.chat(request)).text.split())
    return text if len(text) <= 60 else text[:60] + "…"


@models.command(name="fetch-local")
def fetch_local(*, machine: Machine | None = None) -> int:
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
    if machine is not None and machine.json:
        output.print_json({"weights": str(path), "fetched": before is None, "server_installed": has_server})
        return ExitCode.OK
    output.console().print(f"the weights are here: {path}", markup=False, soft_wrap=True)
    if not has_server:
        out.print("the model also needs its server: pip install 'seedbed[local]'", markup=False)
    return ExitCode.OK
