"""One small call to each model behind HTTP before a build begins: a wrong key is found before anything is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from ..errors import CellError, ModelCheckFailed, ModelMisconfigured, Permanent, Unreachable
from ..models.base import send_small_call, usage_of
from ..models.provider import HttpModel

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ..models.base import ModelClient, ModelSpec
    from ..observe.report import Usage

# A server that takes longer is slow, which is no mistake of the configuration.
_DEADLINE = 30.0


async def check_models(
    specs: Mapping[str, ModelSpec], clients: Mapping[str, ModelClient], keys: Collection[str | None]
) -> list[tuple[str, Usage]]:
    """Call each model behind HTTP once for what the columns with these throttle keys need; returns usage by alias.

    Raises `ModelCheckFailed` with a sentence for each that is misconfigured or cannot be reached. Models that are
    rate-limited, slow or fail for another reason pass.
    """
    usage: list[tuple[str, Usage]] = []
    problems: dict[str, str] = {}
    checked: set[str] = set()

    async def check(alias: str, spec: HttpModel, domains: list[str]) -> None:
        failures: list[CellError] = []
        for domain in domains:
            try:
                answer = await send_small_call(clients[alias], domain)
            except (ModelMisconfigured, Unreachable) as error:
                failures.append(error)
                continue
            except Permanent:  # such as a kind of call that the model does not have
                if failures:
                    continue
                return
            except CellError:
                return
            usage.append((alias, usage_of(spec, answer.tokens)))
            return
        if failures:
            problems[alias] = str(failures[0])
            if isinstance(failures[0], Unreachable):
                problems[alias] += (
                    f"; check the base_url of model {alias!r} and that its server is running, "
                    "or begin without this check: --no-model-check (check_models=False)"
                )

    with trio.move_on_after(_DEADLINE):
        async with trio.open_nursery() as nursery:
            for alias, spec in specs.items():
                if not isinstance(spec, HttpModel):
                    continue
                domains = [domain for domain in ("chat", "embedding") if spec.key(domain) in keys]
                if not domains and spec.key("image") in keys:
                    continue  # an image is not cheap
                # A function of the user's may call a model for anything: it passes if one kind of call does.
                needed = domains or ["chat", "embedding"]
                if not checked.issuperset(spec.key(domain) for domain in needed):
                    checked.update(spec.key(domain) for domain in needed)
                    for each in [[domain] for domain in domains] or [needed]:
                        nursery.start_soon(check, alias, spec, each)
    if problems:
        listed = "\n".join(problems[alias] for alias in specs if alias in problems)
        raise ModelCheckFailed(listed)
    return usage
